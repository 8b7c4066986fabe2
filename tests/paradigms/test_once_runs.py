"""Whole runs with ``privacy.schedule: once``: one release for all epochs, evaluations, predictions and resumes."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests import about
from tests.errors import refused
from tests.paradigms.cutting import CutError, cut, cut_run, epochs_of
from tests.paradigms.exported import edited
from tests.paradigms.once import change_features, graph, lose, once_job, released
from tests.paradigms.private import (
    LABEL_HOLDER,
    NOISE,
    OTHER,
    arrived,
    cost,
    entries,
    kinds_sent,
    ledger,
    paid,
    refused_by_all,
    sent,
    spent_total,
)
from tests.paradigms.runs import assert_same_run
from tests.roles.federation import Settings, with_own_nodes
from veilgraph.core.errors import RunError
from veilgraph.core.tensor_file import FolderKeeper
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.graph.settings import DataSettings
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.ledger_files import ChainedFile, Payment
from veilgraph.privacy.release_cache import OWN_RELEASE
from veilgraph.protocol.cut import HolderCut
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.releases import KeptRelease, depends_on
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.checkpoints import Checkpoints
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory
from veilgraph.samples.organisations import export_dataset

ONE = Counter(embeddings=1)
PREDICTED = "prediction_traffic.json"


def assert_nothing_left(run: Path, party: str, work: str = "traffic.json") -> None:
    assert kinds_sent(run, party, work) == {"hello"}


JOBS: dict[str, tuple[int, Settings]] = {
    "two holders": (2, {}),
    "three, masked mean": (3, {}),
    "three, mean": (3, {"model": {"combine": {"masked": False}}}),
    "three, concat": (3, {"model": {"combine": {"strategy": "concat"}}}),
    "two, concat": (2, {"model": {"combine": {"strategy": "concat"}}}),
    "three, noise in every hop": (3, {"privacy": {"unit": "edge", "aggregation": {"hops": 2, "dim": 5}}}),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize(("holders", "changes"), JOBS.values(), ids=JOBS.keys())
def test_one_release_whatever_comes_after(tmp_path: Path, holders: int, changes: Settings) -> None:
    settings = once_job(tmp_path / "data", changes, {"train": {"epochs": 9}}, holders=holders, epsilon_total=4)
    run = train(settings, tmp_path / "run")
    assert len(run.metrics) == 9
    masked = holders == 3 and "model" not in changes
    for party in settings.data.names[1:]:
        assert paid(run.path, party) == sent(run.path, party) == arrived(run.path, party) == ONE
        assert ("masked" if masked else "embedding") in kinds_sent(run.path, party)
        assert 4 - 1e-6 < spent_total(run.path, party) <= 4
        assert run.summary["privacy"][party]["releases"] == {"embeddings": 1}
        assert epochs_of(run.path)[party] == []
    assert_nothing_left(run.path, LABEL_HOLDER)
    assert entries(run.path, LABEL_HOLDER) == []
    assert run.summary["privacy"][LABEL_HOLDER]["epsilon_total"] == 0
    concat = vertical(settings).model.combine.strategy == "concat"
    assert released(run.path).shape == (60, vertical(settings).released_dim * (holders - 1 if concat else 1))
    for _ in range(3):
        assert torch.equal(predict(run.path).probabilities, run.predictions.probabilities)
    (run.path / "summary.json").unlink()
    assert_same_run(run, resume(run.path))
    for party in settings.data.names:
        assert_nothing_left(run.path, party)
        assert_nothing_left(run.path, party, PREDICTED)
        assert paid(run.path, party) == (ONE if party != LABEL_HOLDER else Counter())


def test_an_epsilon_close_to_0_predicts_what_was_said_to_be_without(tmp_path: Path) -> None:
    """The control is not a claim: the same job with nothing but noise has those very figures."""
    with_rows = once_job(
        tmp_path / "with", {"train": {"epochs": 8, "select_by": "last", "patience": None}}, epsilon_total=64
    )
    ours = train(with_rows, tmp_path / "ours").summary
    for attempt in range(5):  # in one run of fourteen noise looks like evidence; other graphs, or it is the same
        without = once_job(
            tmp_path / f"without {attempt}",
            {"train": {"epochs": 8, "select_by": "last", "patience": None}},
            epsilon_total=1e-4,
        )
        control = train(without, tmp_path / f"control {attempt}").summary
        if not control["without_releases"]["changed"]:
            break
    for name in ("val_accuracy", "test_accuracy"):
        assert ours["without_releases"][name] == control["without_releases"][name] == control[name]


# Going on


def test_cut_in_training_it_goes_on_from_the_same_release(tmp_path: Path) -> None:
    settings = once_job(tmp_path / "data", {"train": {"epochs": 9}}, holders=3, epsilon_total=4)
    run = cut_run(settings, tmp_path / "run", 5)
    rows = released(run)
    assert epochs_of(run)[LABEL_HOLDER] == [2, 4]
    whole = tmp_path / "whole"
    shutil.copytree(run, whole)
    shutil.rmtree(whole / "parties" / LABEL_HOLDER / "checkpoints")
    from_the_start, result = resume(whole), resume(run)
    assert from_the_start.summary["started_at"] == 0
    assert result.summary["started_at"] == 4
    for resumed in (from_the_start, result):
        assert torch.equal(released(resumed.path), rows)
        for party in settings.data.names:
            assert_nothing_left(resumed.path, party)
            assert paid(resumed.path, party) == (ONE if party != LABEL_HOLDER else Counter())
    assert_same_run(from_the_start, result)


@pytest.mark.cases(1)
@pytest.mark.parametrize("loser", [LABEL_HOLDER, OTHER])
def test_a_lost_release_is_sent_again_and_costs_nothing(tmp_path: Path, loser: str) -> None:
    """Twice, by who learns or who releases, with a budget that has room for one release alone."""
    settings = once_job(tmp_path / "data", {"train": {"epochs": 4}}, holders=3, epsilon_total=4)
    run = cut_run(settings, tmp_path / "run", 3)
    rows = released(run)
    lose(run, loser)
    with refused(RunError, code="restart", party=loser):
        resume(run)
    for _ in range(2):
        (run / "summary.json").unlink(missing_ok=True)
        resumed = resume(run, restart=True)
        assert torch.equal(released(run), rows)
        for party in (OTHER, "C"):
            assert sent(run, party) == paid(run, party) == ONE
            assert 4 - 1e-6 < spent_total(run, party) <= 4
        assert len(resumed.metrics) == 4
        lose(run, loser)
    predict(run)
    assert paid(run, OTHER) == paid(run, "C") == ONE


@pytest.mark.usefixtures("from_memory")
def test_who_has_lost_its_own_bytes_too_pays_anew(tmp_path: Path) -> None:
    settings = once_job(tmp_path / "data", {"train": {"epochs": 5}}, holders=3, epsilon_total=4, predictions=1)
    run = cut_run(settings, tmp_path / "run", 3)
    rows = released(run)
    for again in (2, 3):
        lose(run, OTHER)
        (run / "parties" / OTHER / f"{OWN_RELEASE}.safetensors").unlink()
        if again == 2:
            resume(run, restart=True)
            assert not torch.equal(released(run), rows)
            assert (paid(run, OTHER), paid(run, "C")) == (Counter(embeddings=2), ONE)
        else:
            refused_by_all(lambda: predict(run), "the budget of B has no room for one")
            assert paid(run, OTHER) == Counter(embeddings=2)


def test_a_release_is_kept_once_checkpoints_of_earlier_ones_are_gone_back_over(tmp_path: Path) -> None:
    """Kept before, a session that is cut off between would let the next go on from what was trained on another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "begin", cut)
        with pytest.raises(CutError):
            train(once_job(tmp_path / "data"), tmp_path / "run")
    assert list((tmp_path / "run").glob("parties/*/release.safetensors")) == []


@pytest.mark.usefixtures("from_memory")
@pytest.mark.parametrize("moment", ["before it keeps", "before it pays", "before it sends"])
def test_killed_around_its_release_it_pays_once(tmp_path: Path, moment: str) -> None:
    settings, run = once_job(tmp_path / "data", epsilon_total=4), tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        if moment == "before it keeps":
            put = FolderKeeper.put
            patch.setattr(FolderKeeper, "put", lambda *of: cut() if OWN_RELEASE in of else put(*of))
        elif moment == "before it pays":
            patch.setattr(Ledger, "spend", lambda *_, **__: cut())
        else:
            patch.setattr(HolderCut, "publish", cut)
        with pytest.raises(CutError):
            train(settings, run)
    assert not sent(run, OTHER)
    assert paid(run, OTHER) == (ONE if moment == "before it sends" else Counter())
    own = run / "parties" / OTHER / f"{OWN_RELEASE}.safetensors"
    before = None if moment == "before it keeps" else own.read_bytes()
    assert own.exists() == (before is not None)
    resume(run)
    assert sent(run, OTHER) == paid(run, OTHER) == ONE
    assert before in (None, own.read_bytes())


@pytest.mark.usefixtures("from_memory")
def test_a_copy_of_older_bytes_is_not_sent_unpaid(tmp_path: Path) -> None:
    """Bytes that were kept and never paid for, put back after another release was: the ledger names what it is for."""
    settings, run = once_job(tmp_path / "data", epsilon_total=4), tmp_path / "run"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "spend", cut)
        with pytest.raises(CutError):
            train(settings, run)
    own = run / "parties" / OTHER / f"{OWN_RELEASE}.safetensors"
    unpaid = own.read_bytes()
    own.unlink()
    resume(run)
    own.write_bytes(unpaid)
    lose(run, LABEL_HOLDER)
    refused_by_all(lambda: predict(run), "the budget of B has no room for one")
    assert not sent(run, OTHER, PREDICTED)


@pytest.mark.parametrize("trained", [True, False])
def test_a_lost_ledger_beside_a_release_is_one_clear_error(tmp_path: Path, trained: bool) -> None:
    """A holder that releases has no checkpoints: what it keeps of its release says that there was one."""
    settings = once_job(tmp_path / "data", epsilon_total=4)
    run = cut_run(settings, tmp_path / "run", 3)
    if trained:
        resume(run)
    else:
        PartyStore(run / "parties" / OTHER).model_path.unlink(missing_ok=True)
    ledger(run, OTHER).unlink()
    change_features(run, OTHER)
    with refused(RunError, code="refused", key="ledger.jsonl", party="B"):
        predict(run) if trained else resume(run)
    assert not ledger(run, OTHER).exists()


# Changed data


def test_whatever_changes_the_same_release_is_of_use_and_costs_nothing(tmp_path: Path) -> None:
    """A release that followed a change would tell that there was one. The label holder's own data count as they are."""
    run = train(once_job(tmp_path / "data", holders=3), tmp_path / "run")
    rows, at = released(run.path), graph(run.path, OTHER)
    before = load_party(at)
    changes: dict[str, PartyGraph] = {
        "features": replace(before, features=before.features.to_dense() + 1),
        "own nodes": with_own_nodes([before], [3])[0],
        "edges": replace(before, edge_index=before.edge_index[:, 1:]),
        "weights": replace(before, edge_weight=torch.ones(before.edge_index.shape[1])),
    }
    for what, changed in changes.items():
        save_party(changed, at)
        assert torch.equal(predict(run.path).probabilities, run.predictions.probabilities), what
        assert torch.equal(released(run.path), rows), what
    change_features(run.path, LABEL_HOLDER)
    assert not torch.equal(predict(run.path).probabilities, run.predictions.probabilities)
    for party in (LABEL_HOLDER, OTHER, "C"):
        assert paid(run.path, party) == (Counter() if party == LABEL_HOLDER else ONE)
        assert_nothing_left(run.path, party, PREDICTED)


def test_a_release_is_of_one_alignment_and_one_number_of_nodes(tmp_path: Path) -> None:
    settings = once_job(tmp_path / "data")
    run = train(settings, tmp_path / "run").path
    rows = load_party(graph(run, OTHER))
    fewer = replace(rows, num_common=rows.common - 1)
    assert len({depends_on("one", rows), depends_on("two", rows), depends_on("one", fewer)}) == 3
    store = PartyStore(run / "parties" / OTHER)
    numbers = [KeptRelease(store.keeper, identity, rows).number for identity in ("", "another")]
    assert numbers == [1, -1], "a number is not given twice"


def test_a_budget_below_one_release_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    settings = once_job(tmp_path / "data", noise_multiplier=NOISE, epsilon_total=cost(1) / 2)
    run = tmp_path / "run"
    refused_by_all(lambda: train(settings, run), "the budget of .*has no room for one")
    for party in (LABEL_HOLDER, OTHER, SERVER):
        assert_nothing_left(run, party)
        assert entries(run, party) == []
    assert not RunDirectory.open(run).trained()


def test_an_unpaid_release_of_three_leaves_nothing_behind(tmp_path: Path) -> None:
    """C's disk is full when it pays: it sends nothing, and B's release alone is paid and not used."""
    settings = once_job(tmp_path / "data", holders=3, epsilon_total=4)
    append = ChainedFile.append

    def full(file: ChainedFile[Any, Any], entry: Payment) -> None:
        if "/C/" in str(file.path):
            raise OSError(28, "No space left on device")
        append(file, entry)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChainedFile, "append", full)
        with refused(RunError, key=tmp_path / "run" / "parties" / "C" / "ledger.jsonl"):
            train(settings, tmp_path / "run")
    run = tmp_path / "run"
    assert not sent(run, "C")
    assert paid(run, "C") == Counter()
    assert sent(run, "B") <= paid(run, "B") == ONE


# From tables


@pytest.fixture
def tables(tmp_path: Path) -> JobSettings:
    pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")
    parties = export_dataset(DataSettings(dataset="synthetic", holders=2), tmp_path / "tables", overlap=0.75, seed=3)
    for path in parties.values():
        accepted = yaml.safe_load(path.read_text()) | {"limits": {"leakage": [], **about.ROWS, "max_epsilon": 4}}
        path.write_text(yaml.safe_dump(accepted))
    content = once_job(tmp_path / "data", epsilon_total=4, predictions=1).model_dump(mode="json")
    return parse_job({**content, "data": {"parties": {name: str(path) for name, path in parties.items()}}})


def change_table(settings: JobSettings, party: str) -> None:
    """One value more in one row of its table."""
    assert settings.data.parties is not None
    with edited(settings.data.parties[party].parent / "nodes.csv") as rows:
        column = list(rows[4])[1]
        rows[4][column] = str(float(rows[4][column]) + 1)


def test_a_prediction_for_changed_tables_is_of_the_same_release(tables: JobSettings, tmp_path: Path) -> None:
    """Of the same ids nothing is sent again, nor aligned anew, whatever their values are: others see no change."""
    run = train(tables, tmp_path / "run").path
    before = predict(run)
    assert paid(run, OTHER) == ONE
    change_table(tables, OTHER)
    assert torch.equal(predict(run).probabilities, before.probabilities)
    change_table(tables, LABEL_HOLDER)
    assert not torch.equal(predict(run).probabilities, before.probabilities), "its own columns are as they are now"
    assert paid(run, OTHER) == ONE
    assert_nothing_left(run, OTHER, PREDICTED)


def test_an_alignment_lost_is_no_new_release_of_the_same_rows(tables: JobSettings, tmp_path: Path) -> None:
    """Everything is sent again, under a new number; whose data are the same sends the same bytes and pays nothing."""
    run = cut_run(tables, tmp_path / "run", 3)
    (run / "parties" / LABEL_HOLDER / "alignment.json").unlink()
    assert len(resume(run, restart=True).metrics) == 6
    assert paid(run, OTHER) == Counter(embeddings=1)
    assert kinds_sent(run, LABEL_HOLDER) == {"hello", "blinded_ids", "id_tokens", "row_order"}
