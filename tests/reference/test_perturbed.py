"""``model.initial.method: perturbed``: released once to all holders, and from there on the plaintext network."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from veilgraph_testing.vertical import weights_of

from tests import about
from tests.paradigms.cutting import as_training_leaves_it
from tests.paradigms.runs import assert_same_run
from tests.reference.twins import assert_run_is_twin
from tests.roles.federation import CLASSES, NODES, Settings, fixed_secrets, merge, small_job, with_own_nodes
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.local_features import feature_mechanism
from veilgraph.privacy.local_publisher import LocalPublisher
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings, largest_epsilon, refusal, revelations
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.session import publishers as ledgers
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

FEATURES, LOW, HIGH = 48, -9.0, 9.0
TOLERANCE = 1e-6
RANGE = {"low": LOW, "high": HIGH}
SPARSE: Settings = {"epsilon": 2.0, **RANGE}
LAST: Settings = {"train": {"select_by": "last"}}


def parties(holders: int, own: Sequence[int] = ()) -> list[PartyGraph]:
    """The first has most of the columns; with so many own nodes each."""
    shares = [holders + 1, *[1] * (holders - 1)]
    names = [chr(ord("A") + index) for index in range(holders)]
    data = synthetic_data(NODES, FEATURES, CLASSES, 0)
    graphs = split_vertically(data, names=names, feature_proportions=shares, label_holder="A", seed=0)
    return with_own_nodes(graphs, own or [0] * holders)


def job(folder: Path, release: Settings, graphs: Sequence[PartyGraph], *changes: Settings) -> JobSettings:
    folder.mkdir()
    paths = {graph.party: str(folder / f"{graph.party}.safetensors") for graph in graphs}
    for graph in graphs:
        save_party(graph, Path(paths[graph.party]))
    model = {"initial": {"method": "perturbed", "release": release, "init_std": 1e-3}}
    base: Settings = {"precision": "float64", "data": {"dataset": None, "graphs": paths}, "model": model}
    return small_job(len(graphs), base, *changes)


def kept(run: Path, party: str) -> dict[str, Tensor]:
    return load_tensors(run / "parties" / party / "release.safetensors")[0]


def entries(run: Path, party: str) -> list[dict[str, Any]]:
    lines = (run / "parties" / party / "ledger.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def messages(run: Path, party: str, work: str = "traffic.json") -> Counter[tuple[str, str]]:
    """(kind, receiver) → messages that the party sent."""
    rows = json.loads((run / "parties" / party / work).read_text())
    return Counter({(row["kind"], row["peer"]): row["messages"] for row in rows if row["direction"] == "sent"})


def by_hand(packed: Tensor, columns: int) -> Tensor:
    """x* entry by entry, float64."""
    if packed.dtype == torch.float32:
        return packed.double()
    if packed.dtype == torch.uint8:
        return packed.double() - 1
    released = torch.zeros(len(packed), columns, dtype=torch.float64)
    for row, places in enumerate(packed.tolist()):
        for place in places:
            released[row, abs(place) - 1] = 1.0 if place > 0 else -1.0
    return released


def as_released(run: Path, settings: JobSettings, graph: PartyGraph, graphs: Sequence[PartyGraph]) -> PartyGraph:
    """The holder's graph with X'' in place of x: scale·x* of every holder; of its own nodes its own columns alone."""
    found, release = kept(run, graph.party), settings.noise.feature_release
    assert release is not None
    blocks = []
    for other in graphs:
        values = by_hand(found[f"features/{other.party}"], other.num_features)
        assert len(values) == (graph.num_nodes if other is graph else graph.common)
        block = torch.zeros(graph.num_nodes, other.num_features, dtype=torch.float64)
        block[: len(values)] = values * feature_mechanism(release, other.num_features).scale
        blocks.append(block)
    return replace(graph, features=torch.cat(blocks, dim=1))


CASES: dict[str, tuple[Settings, Settings]] = {
    "sampled, sparse at one": (SPARSE, {}),
    "a bit of every feature, two rounds": (
        {**SPARSE, "mechanism": "one-bit"},
        {"model": {"rounds": 2, "combine": {"strategy": "degree-weighted"}}},
    ),
    "gaussian, gat": (  # finer masked sums: attention over much noise magnifies their rounding
        {**SPARSE, "mechanism": "gaussian", "delta": 1e-5},
        {"model": {"local": {"model": "gat"}, "combine": {"bits": 42}}},
    ),
    "laplace, concat": (
        {**SPARSE, "mechanism": "laplace"},
        {"model": {"combine": {"strategy": "concat"}, "initial": {"dropout": 0.3, "activation": "tanh"}}},
    ),
}


class SameNoise(LocalPublisher):
    """Draws the same in every run: Adam divides by a gradient's size, and in a rare draw rounding is all of a step."""

    def __init__(self, mechanism: Any, response: Any, ledger: Any, source: object, *kept: Any) -> None:
        party = ledger.path.parent.name
        super().__init__(mechanism, response, ledger, fixed_secrets(f"noise of {party}"), *kept)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("release", "changes"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("own", [(), (7, 0, 5)], ids=["common nodes", "own nodes"])
def test_every_weight_equals_the_twins_with_what_was_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: Settings, changes: Settings, own: Sequence[int]
) -> None:
    monkeypatch.setattr(ledgers, "LocalPublisher", SameNoise)
    graphs = parties(3, own)
    settings = job(tmp_path / "data", release, graphs, LAST, changes)
    run = train(settings, tmp_path / "run")
    released = [as_released(run.path, settings, graph, graphs) for graph in graphs]
    weights = weights_of(assert_run_is_twin(run, settings, released, TOLERANCE))
    assert {weights[f"{graph.party}/W"].shape for graph in graphs} == {(FEATURES, vertical(settings).model.dim)}


def test_all_holders_have_the_same_of_the_common_nodes_and_nothing_of_others_own(tmp_path: Path) -> None:
    graphs = parties(2, (4, 3))
    run = train(job(tmp_path / "data", SPARSE, graphs), tmp_path / "run")
    ours, others = kept(run.path, "A"), kept(run.path, "B")
    assert ours.keys() == others.keys() == {"features/A", "features/B"}
    for name in ours:
        assert torch.equal(ours[name][:NODES], others[name][:NODES])
    assert [len(ours["features/A"]), len(ours["features/B"])] == [NODES + 4, NODES]
    assert [len(others["features/A"]), len(others["features/B"])] == [NODES, NODES + 3]
    assert ours["features/A"].dtype == torch.int64, "few features are sampled: columns, not a matrix"


# One release


def test_one_release_for_training_resuming_and_predicting(tmp_path: Path) -> None:
    settings = job(tmp_path / "data", SPARSE, parties(3), {"train": {"epochs": 7}})
    with as_training_leaves_it():
        run = train(settings, tmp_path / "run")
    cut = tmp_path / "cut"
    shutil.copytree(run.path, cut)
    (cut / "summary.json").unlink()
    for party in (*settings.data.names, SERVER):
        store = RunDirectory.open(cut).party(party)
        store.model_path.unlink()
        store.checkpoints.path(6).unlink()
    resumed = resume(cut, restart=True)
    assert resumed.summary["started_at"] == 4
    assert_same_run(run, resumed)
    assert torch.equal(predict(cut).probabilities, run.predictions.probabilities)
    for party in settings.data.names:
        (entry,) = entries(cut, party)
        assert (entry["channel"], entry["count"]) == ("features", 1)
        assert entry["event"]["unit"] == "node"
        assert resumed.summary["privacy"][party]["epsilon_total"] == 2
        first = {to: count for (kind, to), count in messages(run.path, party).items() if kind == "perturbed_features"}
        assert first == {other: 1 for other in settings.data.names if other != party}
        for work in ("traffic.json", "prediction_traffic.json"):
            assert not any(kind == "perturbed_features" for kind, _ in messages(cut, party, work))
    assert not (cut / "parties" / SERVER / "ledger.jsonl").exists()


# What it tells, and to whom


def test_disclosures_are_the_release_with_its_cost_and_what_limits_say(tmp_path: Path) -> None:
    settings = job(tmp_path / "data", SPARSE, parties(2))
    run = train(settings, tmp_path / "run")
    lines = [
        json.loads(line)
        for party in (*settings.data.names, SERVER)
        for line in (run.path / "parties" / party / "disclosures.jsonl").read_text().splitlines()
    ]
    released = [line for line in lines if line["kind"] == "perturbed_features"]
    assert [(line["party"], line["to"]) for line in released] == [("A", "B"), ("B", "A")]
    for line in released:
        assert (line["protection"], line["epsilon_release"], line["epsilon_total"]) == ("noise", 2, 2)
    assert {line["kind"] for line in lines if line["epsilon_total"] is not None} == {"perturbed_features"}
    assert {name for line in lines for name in line["reveals"]} == set(revelations(settings))
    to_b = {kind for kind, to in messages(run.path, "A") if to == "B"}
    assert to_b == {"hello", "key", "perturbed_features", "control"}


def perturbed(*changes: Settings) -> JobSettings:
    return parse_job(merge({"model": {"initial": {"method": "perturbed", "release": {"epsilon": 2.0}}}}, *changes))


def test_limits_ask_about_perturbed_features_and_count_edges_as_not_noised() -> None:
    settings = perturbed()
    assert set(revelations(settings)) == {
        "embedding-sums",
        "output-embeddings",
        "training-rows",
        "perturbed-features",
    }
    for party in "AB":
        reason = str(refusal(LimitSettings(), settings, party))
        assert "perturbed-features (model.initial.method=perturbed, release.epsilon=2)" in reason
        assert largest_epsilon(settings, party) == float("inf")
    accepting = LimitSettings(leakage=tuple(revelations(settings)))
    assert refusal(accepting, settings, "A") is None
    assert refusal(accepting.model_copy(update={"max_epsilon": 100.0, **about.NODES}), settings, "A") == (
        "limits.max_epsilon=100 and the job's total ε is infinite, for model.initial.method=perturbed noises features "
        "and nothing of edges and labels: take individual, or remove the limit"
    )


# Settings


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {"initial": {"release": None}}}, "method='perturbed' needs a release"),
        ({"model": {"initial": {"method": "individual"}}}, "release is for method='perturbed', not 'individual'"),
        ({"model": {"initial": {"release": {"epsilon": 0}}}}, "greater than 0"),
        ({"model": {"initial": {"release": {"low": 2.0}}}}, "low=2.0 must be below high=1.0"),
        ({"privacy": {"unit": "row", "epsilon_total": 4}}, "leave privacy out"),
        ({"privacy": {"unit": "row", "epsilon_total": 4, "schedule": "once"}}, "leave privacy out"),
        ({"data": {"feature_scaling": "standard"}}, "set data.feature_scaling to none or row or length"),
        ({"paradigm": "horizontal"}, "model.initial is not a setting"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: Settings, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        perturbed(changes)
    assert says in str(error.value)
