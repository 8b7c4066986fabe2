"""Predictions of a sealed run from tables that have changed: shares of the model stay where they are, hops are new."""

import csv
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from tests.paradigms.apart import apart
from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.programs import predicting_twin, small_graphs, small_job, weights
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError, DataError, RunError, VeilgraphError
from veilgraph.core.tensor_file import FolderKeeper
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.paradigms.sealed.boosting import Examples
from veilgraph.paradigms.sealed.named_nodes import NamedNodes
from veilgraph.paradigms.sealed.plan import Context
from veilgraph.paradigms.sealed.program import SealedProgram, logits_of
from veilgraph.paradigms.sealed.roles import SealedHolder
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.paradigms.sealed.stacking import Stacking
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.messages import revelation_causes
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.predictions import name_next_nodes
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_organisations

MARGINS: Settings = {"output": "margins", "model": {"max_degree": 30, "edge_slots": 155}}
CASES: dict[str, Settings] = {
    "mlp": {},
    "each, judged": {
        "model": {"blocks": ["own", "each.2"]},
        "train": {"select_by": "accuracy", "evaluate_every": 3},
    },
    "boosting": merge(
        STANDARD, {"model": {"blocks": ["own", "boosting", "pooled.1"]}, "train": {"learning_rate": 0.125}}
    ),
    "standard, named": merge(
        STANDARD,
        {"model": {"blocks": ["neighbours", "pooled.1"]}, "train": {"learning_rate": 0.125}, "named_nodes": 6},
    ),
}
NEW = ("N1", "N2", "N3")


class Tables:
    """A trained run, and the tables that it is from."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        job = small_job(2, MARGINS, settings)
        export_organisations(small_graphs(), folder / "tables", overlap=0.9, seed=1, job=job)
        self.folder = folder / "tables"
        for party in "AB":
            self.edit(party, lambda file: file.update(limits={"leakage": list(revelation_causes(job))}))
        self.run = folder / "run"
        train(read_job(self.folder / "job.yaml"), self.run)
        self.kept = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def restore(self) -> None:
        for path, content in self.kept.items():
            path.write_bytes(content)

    def edit(self, party: PartyId, change: Callable[[dict[str, Any]], object]) -> None:
        """The party file."""
        path = self.folder / party / "party.yaml"
        content = yaml.safe_load(path.read_text())
        change(content)
        path.write_text(yaml.safe_dump(content))

    def rows(self, party: PartyId, change: Callable[[list[list[str]]], object], table: str = "nodes") -> None:
        """Of a table, without its head."""
        path = self.folder / party / f"{table}.csv"
        with path.open(newline="") as file:
            head, *rows = csv.reader(file)
        change(rows)
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows])

    def grow(self) -> None:
        """New nodes without labels, edges of theirs, other features, and four labelled nodes left."""
        for party in "AB":
            marks = 2 if party == "A" else 0
            self.rows(party, partial(renewed, marks=marks))
            self.rows(party, lambda rows: rows.extend([["N1", "N2"], ["N2", rows[0][0]], ["N3", "N1"]]), "edges")

    def twin(self, graphs: dict[PartyId, PartyGraph]) -> Callable[[torch.Tensor | None], torch.Tensor]:
        job = sealed(RunDirectory.open(self.run).settings)
        keeper = RunDirectory.open(self.run).party("A").keeper
        kept, own = keeper.get("boosting"), keeper.get("stacking")
        examples = None if kept is None else Examples(**kept.tensors)
        assert (own is None) == job.outcome.predicts_named

        def one(asked: torch.Tensor | None) -> torch.Tensor:
            found = predicting_twin(job, [graphs[name] for name in "AB"], weights(self.run), asked, examples).predict()
            assert found is not None
            logits = logits_of(found)
            return (logits if own is None else Stacking(**own.tensors).logits(logits, graphs["A"])).softmax(1)

        return one


def renewed(rows: list[list[str]], marks: int) -> None:
    for row in rows[::3]:
        row[1] = str(float(row[1]) + 1)
    left = {"train": 2, "val": 2}
    for row in rows if marks else []:
        left[row[-1]] = left.get(row[-1], 0) - 1
        if left[row[-1]] < 0:
            row[-2:] = ["", ""]
    for name, like in zip(NEW, rows[:3], strict=True):
        rows.append([name, *like[1 : len(like) - marks], *[""] * marks])


@pytest.fixture(scope="module", params=CASES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp("tables"), CASES[request.param])


@pytest.fixture
def tables(trained: Tables) -> Iterator[Tables]:
    yield trained
    trained.restore()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> dict[PartyId, PartyGraph]:
    """What the holders compute on, as their roles get it."""
    found: dict[PartyId, PartyGraph] = {}
    begin, compute = SealedHolder.__init__, SealedProgram.__init__

    def with_sizes(self: SealedProgram, machine: Machine, context: Context) -> None:
        assert (context.sizes.training, context.sizes.validation) == (0, 0), "they need not be told"
        assert all(own.rows is own.judged is None for own in context.data.values())
        compute(self, machine, context)

    def seen(self: SealedHolder, session: Any, graph: PartyGraph) -> None:
        found[graph.party] = graph
        begin(self, session, graph)

    monkeypatch.setattr(SealedHolder, "__init__", seen)
    monkeypatch.setattr(SealedProgram, "__init__", with_sizes)
    return found


@pytest.mark.cases(1)
def test_new_nodes_are_predicted_as_the_twin_does(tables: Tables, graphs: dict[PartyId, PartyGraph]) -> None:
    tables.grow()
    if sealed(RunDirectory.open(tables.run).settings).outcome.predicts_named:
        known = predict(tables.run, ids=["N3", "N1"])
        assert known.ids == ("N3", "N1")
        assert graphs["A"].common == 30
        assert float((known.uncalibrated - tables.twin(graphs)(known.nodes)).abs().max()) < 4e-3
        return
    found = predict(tables.run)
    assert found.ids is not None
    assert set(NEW) < set(found.ids)
    expected = tables.twin(graphs)(None)
    assert float((found.uncalibrated - expected).abs().max()) < 4e-3
    before = dict(zip(found.ids, found.uncalibrated, strict=True))
    tables.restore()
    again = predict(tables.run)
    assert again.ids is not None
    assert not set(NEW) & set(again.ids)
    moved = [float((row - before[name]).abs().max()) for name, row in zip(again.ids, again.uncalibrated, strict=True)]
    assert max(moved) > 1e-2


def test_an_id_that_is_not_common_costs_nothing_and_is_told_to_nobody(tmp_path: Path) -> None:
    tables = Tables(tmp_path, CASES["standard, named"])
    job = sealed(RunDirectory.open(tables.run).settings)
    with refused(ConfigError, key="ids", value="nobody"):
        predict(tables.run, ids=["C000001", "nobody"])
    for party in ("A", "B", SERVER):
        part = tables.run / "parties" / party
        assert NamedNodes(job, FolderKeeper(part)).left("A") == 6
        assert party == "A" or all(b"nobody" not in path.read_bytes() for path in part.rglob("*") if path.is_file())


def hub(rows: list[list[str]]) -> None:
    """One node gets edges to all nodes that have edges."""
    rows.extend([[rows[0][0], other] for other in {row[0] for row in rows[1:]}])


def many(rows: list[list[str]]) -> None:
    rows.extend(rows[:])


REFUSALS: dict[str, tuple[Callable[[Tables], object], type[VeilgraphError], dict[str, Any]]] = {
    "a hub": (lambda t: t.rows("B", hub, "edges"), DataError, {"key": "model.max_degree", "party": "B"}),
    "edges": (lambda t: t.rows("B", many, "edges"), DataError, {"key": "model.edge_slots", "party": "B"}),
    "one way": (
        lambda t: t.edit("B", lambda file: file["edges"][0].update(directed=True)),
        DataError,
        {"key": "model.directed", "party": "B"},
    ),
    "classes": (
        lambda t: t.edit("A", lambda file: file["nodes"]["label"].update(classes=["0", "1", "2", "3"])),
        RunError,
        {"code": "other-network"},
    ),
    "columns": (
        lambda t: t.edit("B", lambda file: file["nodes"].update(features=[{"columns": "x0*1"}])),
        DataError,
        {"key": "nodes.features", "party": "B"},
    ),
    "limits": (
        lambda t: t.edit("B", lambda file: file.update(limits={"leakage": ["predicted-classes"]})),
        ConfigError,
        {"code": "refused"},
    ),
    "no model": (
        lambda t: RunDirectory.open(t.run).party("B").model_path.rename(t.run / "parties" / "B" / "aside"),
        RunError,
        {"key": Path("model.safetensors")},
    ),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_served_is_refused(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tables = once(tmp_path_factory)
    change, kind, about = REFUSALS[name]
    change(tables)
    traffic = tables.run / "parties" / about.get("party", "A" if name == "classes" else "B") / "prediction_traffic.json"
    traffic.unlink(missing_ok=True)
    try:
        with refused(kind, **about):
            predict(tables.run)
        sent = json.loads(traffic.read_text()) if traffic.is_file() else []
        assert "masked_wire" not in {entry["kind"] for entry in sent if entry["direction"] == "sent"}
    finally:
        tables.restore()
        aside = tables.run / "parties" / "B" / "aside"
        if aside.exists():
            aside.rename(aside.with_name("model.safetensors"))
    assert len(predict(tables.run).nodes) == 27


_ONCE: list[Tables] = []


def once(factory: pytest.TempPathFactory) -> Tables:
    """A run that refusals leave as it is."""
    if not _ONCE:
        _ONCE.append(Tables(factory.mktemp("once"), CASES["mlp"]))
    return _ONCE[0]


def test_across_organisations_the_label_holder_names_nodes_at_its_own_site(tmp_path: Path) -> None:
    job = small_job(2, MARGINS, CASES["standard, named"])
    files = export_organisations(small_graphs(), tmp_path / "tables", overlap=1, seed=1, job=job)
    for path in files.values():
        path.write_text(
            yaml.safe_dump(yaml.safe_load(path.read_text()) | {"limits": {"leakage": list(revelation_causes(job))}})
        )
    settings = read_job(tmp_path / "tables" / "network-job.yaml")
    runs = apart(tmp_path, files, settings)
    with refused(ConfigError, code="refused"):
        apart(tmp_path, files, settings, "predict")
    with refused(RunError, party="A"):
        name_next_nodes(runs["B"], ids=["C000003"])
    named = veilgraph("predict", runs["A"], "--ids", "C000003,C000020,C000003", "--ask")
    assert named.stdout.startswith("2 named for the next joint inference")
    apart(tmp_path, files, settings, "predict")
    assert predict(runs["A"]).ids == ("C000003", "C000020")
    assert "'C000004' (1 of 1) is not among the 2 nodes" in one_error(
        veilgraph("predict", runs["A"], "--ids", "C000004")
    )
    with refused(ConfigError, code="refused"):
        apart(tmp_path, files, settings, "predict")
