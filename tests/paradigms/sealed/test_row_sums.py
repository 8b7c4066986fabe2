"""Steps that change what training rows count, and evaluations by products of rows, are what weights would make."""

from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.mpc.sealed.bounded import BoundedMachine
from tests.paradigms.sealed.dense import STANDARD, graphs_of
from tests.paradigms.sealed.programs import TWIN, numbers, outcomes, small_graphs, small_job, trying
from tests.roles.federation import Settings
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.sealed.counting import CountingMachine
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.mpc.sealed.wire import Wire
from veilgraph.paradigms.sealed.costs import costs_of
from veilgraph.paradigms.sealed.inputs import plan_of
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.plan import Context, Sizes
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import trained_twin, twin_context
from veilgraph.protocol.job_file import parse_job

BALANCED: Final[Settings] = {"train": {"class_weights": "balanced"}}
MARGINS: Final[Settings] = {"output": "margins"}
SLOW: Final[Settings] = {"train": {"learning_rate": 0.005}}
OFTEN: Final[Settings] = {"train": {"epochs": 12, "evaluate_every": 2, "select_by": "accuracy", "weight_decay": 0.05}}
FEW: Final = 8
COLUMNS: Final = {"none": 20, "standard": 300}
"""Of the first holder, by scaling: of so many standardised ones products of rows are divided by 2^s, s > 0."""
KINDS: Final = {
    "linear": ("linear", {}),
    "linear, standard": ("linear", {**STANDARD, **SLOW}),
    "mlp": ("mlp", {}),
    "mlp, standard": ("mlp", {**STANDARD, **SLOW}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def job_of(kind: str, *changes: Settings, holders: int = 2) -> SealedJob:
    network, scaling = KINDS[kind]
    blocks: Settings = {"model": {"network": network, "blocks": ["own", "pooled.1", "pooled.5", "each.1"]}}
    return small_job(holders, blocks, scaling, *changes)


def wide_graphs(job: SealedJob) -> list[PartyGraph]:
    return graphs_of(job, nodes=60, columns=COLUMNS[job.data.feature_scaling], training=FEW)


def begun(context: Context) -> SealedProgram:
    program = SealedProgram(PlainMachine(list(context.sizes.columns)), context)
    program.enter(trains=True)
    program.begin()
    return program


@pytest.mark.parametrize(
    "kind", ["linear", "linear, standard", *(pytest.param(f"mlp{of}", marks=nightly) for of in ("", ", standard"))]
)
def test_sums_of_few_rows_are_the_weights_that_steps_would_have_made(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a second trial, of which decay leaves little of the initial weights, and from a checkpoint on."""
    changes: Settings = {"train": {"epochs": 40, "weight_decay": 0.05}}
    job = job_of(kind, changes, BALANCED, MARGINS)
    trials = [replace(plan_of(job).trials[0], blocks=blocks) for blocks in (("own", "pooled.1"), ("pooled.1", "own"))]
    graphs = graphs_of(job, training=FEW)
    with trying(*trials):
        found, cut_off = trained_twin(job, graphs), trained_twin(job, graphs, 27)
        resumed = SealedProgram(PlainMachine(["A", "B"]), twin_context(job, graphs)[0])
        resumed.enter(trains=True)
        resumed.restore(cut_off.shares(), training=True)
        for step in range(27, 40):
            resumed.step(step)
        assert found.network.sums_rows
        monkeypatch.setattr(Network, "sums_rows_of", lambda *_: False)
        stepped = trained_twin(job, graphs)
    for program in (found, resumed):
        for weight, expected in zip(numbers(program), numbers(stepped), strict=True):
            assert float(expected.abs().max()) > 0.1
            assert torch.allclose(weight, expected, atol=1e-4)


@every_kind
def test_products_of_rows_judge_as_weights_do(kind: str) -> None:
    """In two trials, and in a session that goes on in the midst of the second."""
    job = job_of(kind, OFTEN)
    graphs = wide_graphs(job)
    [trial] = plan_of(job).trials
    with trying(trial, replace(trial, blocks=("pooled.1", "own"))):
        context = twin_context(job, graphs)[0]
    program, saved = begun(context), dict[str, Tensor]()

    def judged(of: SealedProgram) -> Tensor:
        network, trial = of.network, of.network.trial
        assert network.judges_by_rows(trial)
        assert (network.row_shift(trial) > 0) == context.plan.standard
        found = of.network.judged(of.weights, of.learned, of.left).known
        expected = of.network.judged(of.weights).known
        assert found.shape == expected.shape == (context.sizes.validation, 3)
        assert float(expected.abs().max()) > 0.02
        assert torch.allclose(found, expected, atol=1e-3)  # W_0 is of 18 bits in one, of 24 in the other
        return found

    for step in range(12):
        program.step(step)
        last = judged(program)
        if step == 8:
            saved = program.shares()
    resumed = SealedProgram(PlainMachine(["A", "B"]), context)
    resumed.enter(trains=True)
    resumed.restore(saved, training=True)
    for step in range(9, 12):
        resumed.step(step)
    assert torch.allclose(judged(resumed), last, atol=2e-3)  # of rows that were rounded when they were saved


def scores(program: SealedProgram) -> tuple[list[Tensor | None], Tensor | None]:
    """What each evaluation tells, and the logits that the last one is made of, at the label holder."""
    program.enter(trains=True)
    program.begin()
    told = []
    for step in range(6):
        program.step(step)
        if step % 2:
            told.append(program.score(step + 1))
    assert program.network.judges_by_rows(program.network.trial)
    machine, logits = program.network.machine, program.network.judged(program.weights, program.learned, program.left)
    program.check_range(program.outside)
    return told, machine.reveal(machine.open(machine.split(logits)), "A")


def counted_scores(job: SealedJob, graphs: list[PartyGraph]) -> dict[PartyId, int]:
    """Bytes that each party sends for ``scores``, counted without data."""
    context, data = twin_context(job, graphs)
    machine = CountingMachine(list(data), job.dealing_party)
    scores(SealedProgram(machine, replace(context, data={})))
    parties = dict.fromkeys([*data, job.dealing_party])
    return {party: sum(cost.sent[party] for cost in machine.costs.values()) for party in parties}


@pytest.mark.parametrize(
    ("kind", "trust"),
    [
        ("mlp", "dealer"),
        ("linear, standard", "nobody"),
        ("mlp, standard", "majority"),
        *(
            pytest.param(kind, trust, marks=nightly)
            for kind in KINDS
            for trust in ("dealer", "majority", "nobody")
            if (kind, trust) not in {("mlp", "dealer"), ("linear, standard", "nobody"), ("mlp, standard", "majority")}
        ),
    ],
)
def test_parties_judge_by_products_of_rows_as_the_twin_does(kind: str, trust: str) -> None:
    job = job_of(kind, OFTEN, {"trust": trust}, {"train": {"epochs": 6}}, holders=3 if trust == "majority" else 2)
    graphs = wide_graphs(job)
    for _ in range(3):  # as rounding decides a comparison now and then
        links = dict[PartyId, RecordedLink]()
        found = outcomes(job, graphs, scores, links)
        if trust != "nobody":  # whose messages are not made here
            assert counted_scores(job, graphs) == {
                party: sum(each.bytes for each in link.traffic() if each.direction == "sent")
                for party, link in links.items()
            }
        (told, logits), (expected, twin) = found["A"], found[TWIN]
        assert all(one[1] is None for party, one in found.items() if party not in ("A", TWIN))
        assert float(twin.abs().max()) > 0.1
        near = float((logits - twin).abs().max()) < max(4e-3, 3e-4 * float(twin.abs().max()))
        if near and [float(each) for each in told] == [float(each) for each in expected]:
            return
    raise AssertionError(f"logits are {float((logits - twin).abs().max())} from the twin's, scores {told}")


@pytest.mark.parametrize("kind", ["linear, standard", "mlp, standard"])
def test_long_rows_stay_in_range(kind: str) -> None:
    """Of columns that are zero but at one training node all length is its own: T times the number of columns."""
    job = job_of(kind, OFTEN)
    graphs = [
        replace(graph, features=torch.nn.functional.pad(graph.features[:1], (0, 0, 0, graph.num_nodes - 1)))
        for graph in small_graphs(nodes=60, columns=900, training=FEW)
    ]
    context, data = twin_context(job, graphs)
    machine = BoundedMachine(list(data))
    program = SealedProgram(machine, context)
    program.enter(trains=True)
    program.begin()
    for step in range(4):
        program.step(step)
        program.score(step + 1)
    network = program.network
    assert network.judges_by_rows(network.trial)
    assert network.rows is not None
    assert float((network.rows.known**2).sum(1).max()) > 1.5 * context.sizes.most_opened
    assert machine.beyond == []
    program.check_range(program.outside)


def test_steps_of_some_rows_change_weights_and_so_do_those_whose_products_might_not_fit() -> None:
    context = twin_context(job_of("linear", OFTEN), wide_graphs(job_of("linear", OFTEN)))[0]

    def sums(**changes: Any) -> bool:
        columns = changes.pop("columns", context.sizes.columns)
        changed = replace(context, plan=replace(context.plan, **changes), sizes=replace(context.sizes, columns=columns))
        return Network(PlainMachine(list(context.data)), changed).sums_rows

    assert sums()
    assert not sums(batch=3)
    far = {"steps": 10**6, "kept_every": 10**6, "standard": True}
    assert sums(**far, columns={"A": 1 << 17, "B": 1 << 17})  # 8 rows of 5·2^18 columns: 2^24
    assert not sums(**far, columns={"A": 1 << 20, "B": 1 << 20})


def test_a_score_is_of_the_weights_that_decay_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits by products of rows, as ``score`` asks for them, are those by the weights."""
    job = job_of("mlp", OFTEN, {"train": {"weight_decay": 0.1}})
    context, judged = twin_context(job, wide_graphs(job))[0], list[Tensor]()
    whole = Network.judged

    def kept(network: Network, *given: Any) -> Wire:
        found = whole(network, *given)
        judged.extend([found.known, whole(network, given[0]).known])
        return found

    monkeypatch.setattr(Network, "judged", kept)
    program = begun(context)
    for step in range(4):
        program.step(step)
    program.score(4)
    assert program.network.judges_by_rows(program.network.trial)
    assert 0 < program.left < 0.7
    found, expected = judged
    assert torch.allclose(found, expected, atol=1e-4)


def counted(context: Context, job: SealedJob) -> int:
    stages = costs_of(context, job.train.epochs, job.train.evaluate_every).stages
    return sum(sum(stage.sent.values()) for stage in stages)


@pytest.mark.parametrize(
    ("scaling", "network", "every", "training", "columns", "classes"),
    [
        ("length", "mlp", 2, 30, 500, 2),  # steps and evaluations by rows
        ("standard", "linear", 20, 30, 500, 7),  # steps alone
        ("standard", "linear", 20, 300, 500, 2),  # neither: products of rows are more than weights of two classes
    ],
)
def test_steps_and_evaluations_are_by_rows_where_that_sends_less(
    scaling: str, network: str, every: int, training: int, columns: int, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in every way: what is chosen sends least."""
    data: Any = {"dataset": "cora", "holders": 2, "feature_scaling": scaling}
    train = {"epochs": 20, "evaluate_every": every, "select_by": "accuracy"}
    model = {"network": network, "blocks": ["own", "pooled.1"]}
    job = sealed(parse_job({"paradigm": "sealed", "data": data, "model": model, "train": train}, "job"))
    both = {"A": columns // 2, "B": columns - columns // 2}
    sizes = Sizes(4000, training, classes, both, dict.fromkeys("AB", 8000), max_degree=128, validation=500)
    context = Context(sizes, plan_of(job, sizes), "A", {})
    chosen, found = counted(context, job), list[int]()
    for sums, judges in ((False, False), (True, False), (True, True)):
        monkeypatch.setattr(Network, "sums_rows_of", lambda *_, sums=sums: sums)
        monkeypatch.setattr(Network, "judges_by_rows", lambda *_, judges=judges: judges)
        found.append(counted(context, job))
    assert chosen == min(found) < 0.98 * max(found)
