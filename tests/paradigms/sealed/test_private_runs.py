"""Runs of sealed jobs with noise: paid for once, before anything is opened; the same noise later; what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests import about, nightly
from tests.errors import refused
from tests.paradigms.cutting import CutError, checkpoint, cut_at
from tests.paradigms.sealed.private import voting
from tests.paradigms.sealed.programs import saved, small_graphs, small_job, weights
from tests.roles.federation import Settings
from veilgraph.core.errors import BudgetSpent, ConfigError, VeilgraphError
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party
from veilgraph.mpc.sealed import machine
from veilgraph.paradigms.sealed.label_holder import SealedLabelHolder
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.privacy.geometric import two_sided
from veilgraph.privacy.publisher import CountPublisher
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.report.ledgers import ledger_at
from veilgraph.report.run_data import read_spent
from veilgraph.runtime.launch.jobs import TrainResult, predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_organisations

EPSILON = 4.0
PRIVATE: Settings = voting(epsilon_total=EPSILON)
STEPS: Settings = {"train": {"epochs": 6}}


def paid(run: Path, party: str = "B") -> list[dict[str, Any]]:
    lines = (run / "parties" / party / "ledger.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def private_job(folder: Path, *changes: Settings, holders: int = 2) -> SealedJob:
    return saved(folder / "data", small_job(holders, STEPS, PRIVATE, *changes), small_graphs(holders))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    folder = tmp_path_factory.mktemp("private")
    return train(private_job(folder, holders=3), folder / "run")


def test_every_holder_but_the_label_holder_pays_once(whole: TrainResult) -> None:
    for party in "BC":
        (entry,) = paid(whole.path, party)
        assert [entry["channel"], entry["count"], entry["event"]["kind"]] == ["predictions", 1, "geometric"]
        assert entry["event"]["unit"] == "edge"
        assert entry["total"] == pytest.approx(EPSILON, rel=1e-6)
    assert not (whole.path / "parties" / "A" / "ledger.jsonl").exists()
    spent = read_spent(RunDirectory.open(whole.path))
    assert [spent[party]["epsilon_total"] for party in "ABC"] == pytest.approx([0, EPSILON, EPSILON], rel=1e-6)


def test_predicting_again_is_of_the_same_noise_and_costs_nothing(whole: TrainResult) -> None:
    """So nobody averages noise away: what is predicted is the same however often."""
    before = paid(whole.path)
    for _ in range(2):
        again = predict(whole.path)
        assert torch.equal(again.classes, whole.predictions.classes)
    assert paid(whole.path) == before


def test_nothing_is_opened_before_it_is_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen, opens = tmp_path / "run", list[int](), SealedProgram.predict

    def watched(self: SealedProgram) -> Any:
        seen.append(len(paid(run)))
        return opens(self)

    monkeypatch.setattr("veilgraph.paradigms.sealed.paradigm.check_ranges", lambda *_: None)  # the twin predicts too
    monkeypatch.setattr(SealedProgram, "predict", watched)
    train(private_job(tmp_path), run)
    assert max(seen) == 1, "nobody predicted"

    def broke(self: CountPublisher, content: str) -> None:
        raise BudgetSpent("no room: allow more")

    monkeypatch.setattr(CountPublisher, "pay", broke)
    monkeypatch.setattr(SealedLabelHolder, "learn", lambda self, found: seen.append(-1))
    with pytest.raises(BudgetSpent):
        train(private_job(tmp_path), tmp_path / "other")
    assert -1 not in seen


@pytest.mark.cases(1)
@pytest.mark.parametrize("where", ["before votes", "after it was told"])
def test_gone_on_with_it_pays_once_for_what_is_told(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, run = private_job(tmp_path), tmp_path / "run"
    if where == "after it was told":
        told = list[torch.Tensor]()

        def learn(self: SealedLabelHolder, found: torch.Tensor) -> None:
            told.append(found)
            raise CutError

        with monkeypatch.context() as patch:
            patch.setattr(SealedLabelHolder, "learn", learn)
            with pytest.raises(CutError):
                train(job, run)
        resumed = resume(run)
        assert torch.equal(resumed.predictions.classes, told[0][:, 0].long())
    else:
        with cut_at(5), pytest.raises(CutError):
            train(job, run)
        assert paid(run) == []
        resumed = resume(run)
        assert resumed.summary["started_at"] == 4
    assert len(paid(run)) == 1
    assert torch.equal(predict(run).classes, resumed.predictions.classes)


def test_votes_that_are_counted_anew_have_new_noise_and_are_not_told_where_no_second_release_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The label holder goes back to before the votes, where its own program alone sees that its data are others."""
    run, drawn = tmp_path / "run", list[torch.Tensor]()

    def kept(*args: Any) -> torch.Tensor:
        drawn.append(two_sided(*args))
        return drawn[-1]

    monkeypatch.setattr(machine, "two_sided", kept)
    monkeypatch.setattr("veilgraph.paradigms.sealed.paradigm.check_ranges", lambda *_: None)  # the twin draws too
    job = private_job(tmp_path, {"train": {"checkpoint_every": 3}})
    with monkeypatch.context() as patch:
        patch.setattr(SealedLabelHolder, "learn", fails)
        with pytest.raises(CutError):
            train(job, run)
    checkpoint(run, "A", 6).unlink()
    for party in ("B", SERVER):  # killed as well, after what was told and before the weights were kept
        RunDirectory.open(run).party(party).model_path.unlink()
    told = list[torch.Tensor]()
    monkeypatch.setattr(SealedLabelHolder, "learn", lambda self, found: told.append(found))
    with pytest.raises(BudgetSpent):
        resume(run)
    first, second = drawn
    assert first.shape == second.shape
    assert not torch.equal(first, second)
    assert len(paid(run)) == 1
    assert not told


def fails(*_: object) -> None:
    raise CutError


@nightly
def test_a_checked_dealer_has_noise_too(tmp_path: Path) -> None:
    little: Settings = {"privacy": {"epsilon_total": 0.2}}
    checked, run = private_job(tmp_path, {"dealer_checks": 0.3}, little), tmp_path / "run"
    train(checked, run)
    assert len(paid(run)) == 1
    votes = weights(run)["weight.votes"]
    assert bool((votes < 0).any()), "counts without noise are not below zero"


def test_of_named_nodes_alone_votes_are_told(tmp_path: Path) -> None:
    """As many rows as nodes are named, and not the others'; and they are the run's own counts, to the last one."""
    run = train(private_job(tmp_path, {"named_nodes": 5}), tmp_path / "run").path
    assert paid(run) == [], "nothing is told yet"
    told = list[tuple[torch.Tensor | None, torch.Tensor | None]]()

    def watched(self: SealedProgram) -> Any:
        found = OPENS(self)
        told.append((self.told, found))
        return found

    named = [17, 3, 22]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedProgram, "predict", watched)
        predict(run, nodes=named)
    (found,) = [each for each, classes in told if classes is not None and each is not None]
    assert torch.equal(found.long(), weights(run)["weight.votes"][named])
    assert len(paid(run)) == 1


OPENS = SealedProgram.predict


REFUSED: dict[str, tuple[Settings, str]] = {
    "unit": ({"privacy": {"unit": "node-edges"}}, "privacy.unit"),
    "predictions": ({"privacy": {"predictions": 2}}, "privacy.predictions"),
    "canaries": ({"privacy": {"canaries": 9}, "named_nodes": 2}, "privacy.canaries"),
    "delta": ({"privacy": {"delta": 1e-5}}, "privacy.delta"),
    "blocks over each one's edges": ({"model": {"blocks": ["own", "each.2"]}}, "model.blocks"),
    "blocks made at home": ({"model": {"blocks": ["neighbours", "pooled.2"]}}, "model.blocks"),
    "edge weights": ({"model": {"edge_weights": True}}, "model.edge_weights"),
    "judged": ({"train": {"select_by": "accuracy"}}, "train.select_by"),
    "released": ({"release": "holders"}, "release"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_noise_is_refused(name: str) -> None:
    changes, key = REFUSED[name]
    with refused(ConfigError, key=key):
        small_job(2, STEPS, PRIVATE, changes)


def from_tables(folder: Path, **limits: object) -> SealedJob:
    """The job of two organisations, of which B has these limits."""
    job = small_job(2, STEPS, PRIVATE, {"model": {"max_degree": 60, "edge_slots": 200}})
    export_organisations(small_graphs(), folder, overlap=0.9, seed=1, job=job)
    for party, own in (("A", {}), ("B", limits)):
        path = folder / party / "party.yaml"
        content = yaml.safe_load(path.read_text())
        named = ["predicted-classes"] if "max_epsilon" in own else ["predicted-classes", "noisy-votes"]
        content["limits"] = {"leakage": named, **own}
        path.write_text(yaml.safe_dump(content))
    found = read_job(folder / "job.yaml")
    assert isinstance(found, SealedJob)
    return found


def test_a_lifetime_ledger_bounds_all_runs_together(tmp_path: Path) -> None:
    """Another training of the same tables has other noise, and is another release; where it has no room none begins."""
    job = from_tables(tmp_path / "tables", max_epsilon=8.0, **about.EDGES)
    folder, totals = tmp_path / "tables" / "B", list[float]()
    for run in ("one", "two"):
        train(job, tmp_path / run)
        assert torch.equal(predict(tmp_path / run).classes, predict(tmp_path / run).classes)
        ledger = ledger_at(Organisation(read_party_settings(folder / "party.yaml"), folder))
        assert ledger is not None
        totals.append(ledger.total())
    assert totals[0] == pytest.approx(EPSILON, rel=1e-6)
    assert totals[1] == pytest.approx(2 * EPSILON, rel=1e-6)
    with refused(ConfigError, party="B", code="refused"):
        train(job, tmp_path / "three")
    assert not list((tmp_path / "three").rglob("epoch-*"))


def test_predictions_are_of_the_tables_that_were_trained_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of others the same noise would come off by a subtraction, and a refusal would tell that an edge changed."""
    run = train(from_tables(tmp_path / "tables", max_epsilon=8.0, **about.EDGES), tmp_path / "run")
    edges = next((tmp_path / "tables" / "B").glob("*edges*.csv"))
    edges.write_text("".join(edges.read_text().splitlines(keepends=True)[:-1]))
    assert torch.equal(predict(run.path).classes, run.predictions.classes)
    assert "B: the tables have changed, and predictions are of those that were trained on" in caplog.text
    assert len(paid(run.path)) == 1


@nightly
@pytest.mark.parametrize("party", ["A", "B"])
def test_sealed_jobs_of_one_max_degree_after_another_find_no_hub(tmp_path: Path, party: str) -> None:
    """Of edges that no noise covers: the label holder's, and everybody's in a job without ``privacy``. With
    ``limits.most_neighbours`` a smaller bound is refused by the party file alone, and a larger one like all others."""
    job, file = from_tables(tmp_path / "tables"), tmp_path / "tables" / party / "party.yaml"
    content = yaml.safe_load(file.read_text())
    if party == "B":
        job = job.model_copy(update={"privacy": None})

    def told(share: int, declared: int | None) -> str:
        """What the others see of how a job with such a share of the bound ends: which error, and its words."""
        limits = {"leakage": ["predicted-classes", "noisy-votes"]} | (
            {} if declared is None else {"most_neighbours": declared}
        )
        file.write_text(yaml.safe_dump(content | {"limits": limits}))
        run = tmp_path / f"{share} {declared}"
        try:
            train(job.model_copy(update={"model": job.model.model_copy(update={"max_degree": 2 * share + 1})}), run)
        except VeilgraphError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    low, high = 1, 29  # refused, accepted
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if told(middle, None) == "" else (middle, high)
    graph = load_party(tmp_path / f"{high} None" / "parties" / party / "graph.safetensors").common_part()
    hub = int(torch.bincount(graph.edge_index[1]).max())
    assert hub == high, "which the jobs told"
    narrow = {told(share, hub + 3).partition(" and each holder")[0] for share in (hub - 1, hub, hub + 2)}
    assert narrow == {f"ConfigError: {party} refuses the job: limits.most_neighbours={hub + 3}"}
    assert told(hub + 3, hub + 3) == ""
    assert told(29, hub + 3) == ""
    broken = {told(share, hub - 2) for share in (hub - 2, hub - 1, hub, 29)}
    assert len(broken) == 1
    assert "more neighbours than limits.most_neighbours" in broken.pop()
