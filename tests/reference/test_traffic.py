"""Bytes on the wire against what is said of them before a job runs, to the byte."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from veilgraph.core.types import Kind, PartyId
from veilgraph.graph.dataset import load_parties
from veilgraph.mpc.product import AHEAD
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.costs import Costs, PartySizes
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import fit
from veilgraph.runtime.launch.jobs import train

JOBS: dict[str, dict[str, Any]] = {
    "usual": {},
    "judged every second step": {"train": {"evaluate_every": 2}},
    "judged at the end": {"train": {"evaluate_every": 9}},
    "not judged": {"train": {"select_by": "last", "patience": None}},
    "three, regression": {"data": {"holders": 3}, "model": {"combine": {"strategy": "regression"}}},
    "concat": {"model": {"combine": {"strategy": "concat"}}},
    "concat, no layers": {"model": {"combine": {"strategy": "concat"}, "server": {"layers": 0}}},
    "rounds": {"model": {"rounds": 3, "combine": {"strategy": "degree-weighted"}}},
    "rounds in the clear": {"model": {"rounds": 2, "combine": {"masked": False}}, "precision": "float64"},
    "secure-sum": {"data": {"holders": 3}, "model": {"initial": {"method": "secure-sum"}}},
    "individual": {"model": {"initial": {"method": "individual"}, "rounds": 2}},
    "dropout": {"model": {"local": {"dropout": 0.5}}, "train": {"evaluate_every": 2}},
    "dropout of h0": {"model": {"initial": {"dropout": 0.5}, "rounds": 2}},
    "drawn orders": {"model": {"local": {"model": "sage-lstm", "hops": 1}}},
}
AGREED = (Kind.HELLO,)
"""What parties state of themselves, whose length follows from their names and versions."""


def job(changes: Mapping[str, Any], **more: Any) -> JobSettings:
    parts: dict[str, dict[str, Any]] = {
        "data": {"dataset": "synthetic"},
        "model": {"dim": 8},
        "train": {"epochs": 3, "patience": None},
    }
    given = {**changes, **more}
    return parse_job({**given, **{name: {**part, **given.get(name, {})} for name, part in parts.items()}})


def planned(settings: JobSettings) -> Costs | None:
    graphs = load_parties(settings.data, settings.seed)
    sizes = {graph.party: PartySizes(graph.num_features, graph.num_edges) for graph in graphs}
    return paradigm_of(settings).session.costs(settings, graphs[0].common, sizes)


def sent(out: Path) -> dict[PartyId, int]:
    rows = [row for row in json.loads((out / "traffic.json").read_text()) if row["direction"] == "sent"]
    of_work = [row for row in rows if row["kind"] not in {kind.name.lower() for kind in AGREED}]
    return {row["party"]: sum(each["bytes"] for each in of_work if each["party"] == row["party"]) for row in rows}


@pytest.mark.cases(2)
@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
def test_a_job_sends_what_the_plan_says(changes: dict[str, Any], tmp_path: Path) -> None:
    settings = job(changes)
    costs = planned(settings)
    assert costs is not None
    train(settings, tmp_path / "run")
    assert costs.sent() == sent(tmp_path / "run")


def test_a_job_in_blocks_of_rows_sends_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks than are dealt ahead, so that holders say when they are ready."""

    def short(nodes: int, *_: object) -> list[slice]:
        return [slice(start, min(nodes, start + 20)) for start in range(0, nodes, 20)]

    for room in ("mpc.product", "paradigms.vertical.paradigm"):
        monkeypatch.setattr(f"veilgraph.{room}.row_blocks", short)
    settings = job({})
    costs = planned(settings)
    train(settings, tmp_path / "run")
    assert len(short(load_parties(settings.data, 0)[0].num_nodes)) > AHEAD
    assert costs is not None
    assert costs.sent() == sent(tmp_path / "run")


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["usual", "concat", "rounds", "secure-sum", "dropout", "dropout of h0"])
def test_what_is_not_sent_again_is_what_would_be(name: str, tmp_path: Path) -> None:
    """What is learned is what the twin learns, which computes every step whole; where holders draw, too."""
    losses = []
    for every in (1, 3):
        settings = job({**JOBS[name], "precision": "float64", "train": {"evaluate_every": every}})
        losses.append([record["loss"] for record in train(settings, tmp_path / f"{every}").metrics])
    assert losses[0] == losses[1]
    graphs = load_parties(settings.data, settings.seed)
    twin = fit(PlainNetwork(settings, graphs, settings.data.label_party))
    assert losses[0] == pytest.approx([record["loss"] for record in twin.metrics], rel=1e-6)


@pytest.mark.parametrize(
    ("nodes", "columns", "copies"),
    [(1000, 8000, 2), (2000, 8000, 1), (8000, 1048, 2), (8000, 1049, 1), (1_000_000, 100, None)],
)
def test_memory_of_masked_features_is_foreseen(nodes: int, columns: int, copies: int | None) -> None:
    """Of a party's features up to 64 MiB a transposed copy is kept; the dealer keeps no more than 1 GiB."""
    sizes = dict.fromkeys("AB", PartySizes(columns, 0))
    costs = paradigm_of(job({})).session.costs(job({}), nodes, sizes)
    assert costs is not None
    static = 8 * nodes * 2 * columns
    assert costs.memory["server"] == (1 << 30 if copies is None else copies * static)
    assert costs.memory["A"] >= (copies or 1) * static


def test_no_plan_is_made_of_what_sizes_do_not_say() -> None:
    assert planned(job({"train": {"batch_size": 10}})) is None
