"""Whole runs with ``privacy.joint_noise``: every sum has new noise of all holders, and all of them pay for it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests import about
from tests.errors import refused
from tests.paradigms.cutting import CutError, cut, cut_run
from tests.paradigms.graph_ledgers import ledger, limited
from tests.paradigms.once import change_features, lose, once_job, released
from tests.paradigms.private import (
    LABEL_HOLDER,
    NOISE,
    OTHER,
    arrived,
    cost,
    entries,
    kinds_sent,
    paid,
    planned,
    private_job,
    refused_by_all,
    sent,
    spent_total,
)
from veilgraph.core.errors import BudgetSpent, ConfigError
from veilgraph.graph.settings import DataSettings
from veilgraph.privacy.publisher import NoisedPublisher
from veilgraph.privacy.release_cache import OWN_RELEASE
from veilgraph.protocol.cut import HolderCut, Release
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.releases import KeptRelease
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.lifetime import lifetime_of
from veilgraph.samples.organisations import export_dataset
from veilgraph.samples.shipped import with_overrides

PUBLISHING = ("B", "C", "D")
PREDICTED = "prediction_traffic.json"


def joint_job(folder: Path, *changes: Any, colluding: int = 1, **privacy: Any) -> JobSettings:
    return once_job(folder, *changes, holders=4, joint_noise={"colluding": colluding}, **privacy)


def all_paid(run: Path, times: int) -> None:
    assert [paid(run, name) for name in PUBLISHING] == [Counter(embeddings=times)] * len(PUBLISHING)
    assert entries(run, LABEL_HOLDER) == []
    for name in PUBLISHING:
        assert spent_total(run, name) == pytest.approx(cost(times), rel=1e-12)


def test_each_pays_and_says_whom_it_relies_on_and_keeps_nothing(tmp_path: Path) -> None:
    """Nor does anybody make noise anew where data change: the sums' difference would show the changed rows."""
    run = train(joint_job(tmp_path / "data", {"train": {"epochs": 4}}), tmp_path / "run")
    all_paid(run.path, 1)
    for name in PUBLISHING:
        (entry,) = entries(run.path, name)
        assert entry["event"] == {
            "kind": "joint-gaussian",
            "noise_multiplier": NOISE,
            "neighbours": "zero-out",
            "unit": "row",
            "holders": 3,
            "colluding": 1,
        }
        assert kinds_sent(run.path, name) == {"hello", "key", "masked"}
        assert arrived(run.path, name) == Counter(embeddings=1)
        assert not (run.path / "parties" / name / f"{OWN_RELEASE}.safetensors").exists()
    rows = released(run.path)
    for _ in range(2):
        assert torch.equal(predict(run.path).probabilities, run.predictions.probabilities)
    change_features(run.path, OTHER)
    predict(run.path)
    assert torch.equal(released(run.path), rows)
    all_paid(run.path, 1)
    for name in PUBLISHING:
        assert not sent(run.path, name, PREDICTED)


def test_without_room_for_all_nobody_sends(tmp_path: Path) -> None:
    run = train(joint_job(tmp_path / "data", epsilon_total=cost(1) * 1.01, noise_multiplier=NOISE), tmp_path / "run")
    lose(run.path, OTHER)
    said = refused_by_all(lambda: predict(run.path), "the budget of B, C, D has no room for one")
    assert "a new release is needed" in said
    for name in PUBLISHING:
        assert not sent(run.path, name, PREDICTED)
    all_paid(run.path, 1)


def test_a_release_that_one_has_lost_is_made_anew_by_all(tmp_path: Path) -> None:
    run = train(joint_job(tmp_path / "data"), tmp_path / "run").path
    rows = released(run)
    lose(run, OTHER)
    predict(run)
    all_paid(run, 2)
    assert not bool((released(run) == rows).all(dim=1).any())


@pytest.mark.cases(1)
@pytest.mark.parametrize("moment", ["before it sends", "before it is kept"])
def test_killed_around_its_release_all_pay_again_and_send_other_bytes(tmp_path: Path, moment: str) -> None:
    settings, run, drawn = joint_job(tmp_path / "data"), tmp_path / "run", list[torch.Tensor]()
    summand = NoisedPublisher.summand

    def noted(self: NoisedPublisher, rows: torch.Tensor, *rest: Any) -> torch.Tensor:
        drawn.append(summand(self, rows, *rest))
        return drawn[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoisedPublisher, "summand", noted)
        with pytest.MonkeyPatch.context() as broken:
            kind, name = (HolderCut, "_publish") if moment == "before it sends" else (KeptRelease, "replace")
            broken.setattr(kind, name, cut)
            with pytest.raises(CutError):
                train(settings, run)
        first = len(drawn)
        assert 1 <= first <= 3
        resume(run)
    assert len(drawn) == first + 3
    for one, other in ((one, other) for one in drawn[:first] for other in drawn[first:]):
        assert not bool((one == other).all(dim=1).any())
    counts = {name: paid(run, name)["embeddings"] for name in PUBLISHING}
    assert sum(counts.values()) == len(drawn)
    assert min(counts.values()) >= 1


def test_one_that_drops_out_leaves_a_sum_that_nobody_opens(tmp_path: Path) -> None:
    settings, run = joint_job(tmp_path / "data"), tmp_path / "run"
    release = HolderCut.release

    def gone(self: HolderCut, step: int) -> Release | None:
        if self._link.party == "D":
            raise CutError
        return release(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HolderCut, "release", gone)
        with pytest.raises(CutError):
            train(settings, run)
    assert not (run / "parties" / LABEL_HOLDER / "release.safetensors").exists()
    assert paid(run, "D") == Counter()
    assert sent(run, "B") <= paid(run, "B")
    resume(run)
    assert released(run).shape[0] == 60


# In every step


def step_job(folder: Path, *changes: Any, **privacy: Any) -> JobSettings:
    return private_job(folder, *changes, holders=3, joint_noise={"colluding": 1}, **privacy)


def test_in_every_step_a_ledger_says_which_noise_is_whose_and_ends_at_the_budget(tmp_path: Path) -> None:
    settings = step_job(tmp_path / "data", {"model": {"rounds": 2}}, epsilon_total=8, predictions=1)
    run, epochs = train(settings, tmp_path / "run").path, settings.train.epochs
    for name in settings.data.names:
        labelled = name == LABEL_HOLDER
        assert paid(run, name) == sent(run, name) == arrived(run, name)
        kinds = Counter[tuple[str, str]]()
        for entry in entries(run, name):
            assert entry["event"]["noise_multiplier"] == planned(settings, LABEL_HOLDER).multiplier
            assert entry["event"].get("holders", 3) == 3
            kinds[entry["channel"], entry["event"]["kind"]] += entry["count"]
        shared = Counter({("embeddings", "joint-gaussian"): 2 * (epochs + 1), ("gradients", "joint-gaussian"): epochs})
        assert kinds == shared + Counter({("gradients", "gaussian"): labelled * epochs})
        assert spent_total(run, name) <= 8
    predict(run)
    assert 8 - 1e-6 < spent_total(run, LABEL_HOLDER) <= 8
    assert spent_total(run, OTHER) < 7
    refused_by_all(lambda: predict(run), "0 more releases fit the budget of A")


def test_a_step_that_is_replayed_has_new_noise_of_all_and_is_paid_again(tmp_path: Path) -> None:
    """Its sum beside the first one would else show whoever's summand is another."""
    settings = step_job(tmp_path / "data", {"train": {"checkpoint_every": 2}}, noise_multiplier=NOISE)
    put: dict[str, list[torch.Tensor]] = {}
    summand = NoisedPublisher.summand

    def noted(self: NoisedPublisher, rows: torch.Tensor, *rest: Any) -> torch.Tensor:
        released = summand(self, rows, *rest)
        put.setdefault(self.plan.party, []).append(released.detach().clone())
        return released

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoisedPublisher, "summand", noted)
        run = cut_run(settings, tmp_path / "run", 3)
        before = {name: paid(run, name) for name in settings.data.names}
        made = {name: len(each) for name, each in put.items()}
        resumed = resume(run)
        assert resumed.summary["started_at"] == 2
    for name in settings.data.names:
        assert paid(run, name) == before[name] + sent(run, name)
        assert len(put[name]) - made[name] == sent(run, name)["embeddings"] == settings.train.epochs - 2 + 1
        rows = torch.cat(put[name])
        assert len(torch.unique(rows, dim=0)) == len(rows)
    assert not list((run / "parties" / OTHER).rglob("*release*")), "nothing of a summand is kept"


# From tables


@pytest.fixture
def tables(tmp_path: Path) -> JobSettings:
    pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")
    parties = export_dataset(DataSettings(dataset="synthetic", holders=3), tmp_path / "tables", overlap=0.75, seed=3)
    content = once_job(tmp_path / "data", holders=3, epsilon_total=1, joint_noise={"colluding": 0}).model_dump(
        mode="json"
    )
    settings = parse_job({**content, "data": {"parties": {name: str(path) for name, path in parties.items()}}})
    for name in ("B", "C"):
        accepts(settings, name, min_colluding=0)
    return settings


def accepts(settings: JobSettings, party: str, **limits: Any) -> None:
    path = (settings.data.parties or {})[party]
    assert path is not None
    said = yaml.safe_load(path.read_text()) | {"limits": {"leakage": [], **about.ROWS, "max_epsilon": 1.6, **limits}}
    path.write_text(yaml.safe_dump(said))


def lifetime(settings: JobSettings) -> float:
    return lifetime_of(Organisation.read((settings.data.parties or {})[OTHER], OTHER)).total()


def test_a_ledger_for_life_takes_nothing_of_it_for_paid(tables: JobSettings, tmp_path: Path) -> None:
    """Neither in another sum, nor in a job in which each holder has noise of its own; nor the other way round."""
    alone, totals = with_overrides(tables, {"privacy.joint_noise": None, "name": "alone"}), list[float]()
    for number, settings in enumerate((tables, alone)):
        train(settings, tmp_path / f"{number}")
        totals.append(lifetime(tables))
    assert totals[0] == pytest.approx(1.0, rel=1e-6)
    assert totals[0] < totals[1] < 1.6
    with refused(BudgetSpent, code="no-room"):
        train(with_overrides(tables, {"name": "again"}), tmp_path / "again")
    assert lifetime(tables) == totals[1]


def test_a_party_file_that_says_nothing_of_it_refuses(tables: JobSettings, tmp_path: Path) -> None:
    accepts(tables, OTHER)
    with refused(ConfigError, code="refused", key="limits.min_colluding", party=OTHER):
        train(tables, tmp_path / "run")
    accepts(tables, OTHER, min_colluding=1)
    with refused(ConfigError, code="refused", key="limits.min_colluding", value=1, party=OTHER):
        train(tables, tmp_path / "other")


def test_the_ledger_of_a_saved_graph_says_how_many_may_collude(tmp_path: Path) -> None:
    """It had no key for that, and so refused every such job once it had a limit."""
    settings, folder = (
        joint_job(tmp_path / "data", {"train": {"epochs": 2}}, epsilon_total=1),
        tmp_path / "data/ledger/B",
    )
    limited(folder, max_epsilon=1.0, min_colluding=2)
    with refused(ConfigError, code="refused", party=OTHER):
        train(settings, tmp_path / "refused")
    limited(folder, max_epsilon=1.0, min_colluding=1)
    train(settings, tmp_path / "run")
    assert ledger(folder).total() == pytest.approx(1.0, rel=1e-6)
