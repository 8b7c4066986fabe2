"""Votes with noise: what they are, how far one edge moves them, who knows the noise, and what an attacker makes."""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests import nightly
from tests.errors import refused
from tests.mpc.sealed.parties import NAMES, run, secret, wire
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.sealed.dense import STANDARD, graphs_of
from tests.paradigms.sealed.private import KEY, MARGINS, noise_from, noise_of, pairs, voting, with_edges
from tests.paradigms.sealed.programs import TWIN, outcomes, small_graphs, small_job, summed, trained
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.correlations import rounded_gaussian
from veilgraph.mpc.sealed.functions import BITS, one_hot_of_largest
from veilgraph.mpc.sealed.machine import Machine, PlainMachine
from veilgraph.mpc.sealed.wire import Summands, Wire
from veilgraph.paradigms.sealed.inputs import edges_once, neighbours_told, own_data, padded, slots_of
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.networks.propagation import Propagation
from veilgraph.paradigms.sealed.networks.voting import VOTE_BITS, Voting
from veilgraph.paradigms.sealed.plan import deviation_of, release_plan
from veilgraph.paradigms.sealed.program import WEIGHT_BITS, SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import together

FEW, MANY = 8, 26
CASES: dict[str, tuple[int, int, tuple[Settings, ...]]] = {
    "rows": (2, FEW, (voting(noise_multiplier=0.5),)),
    "rows, no noise": (3, FEW, (voting(),)),
    "columns, directed": (3, MANY, (voting(epsilon_total=4), {"model": {"directed": True, "blocks": ["pooled.4"]}})),
    "no hop, batches": (2, FEW, (voting(epsilon_total=1), {"model": {"blocks": ["own"]}, "train": {"batch_size": 3}})),
    "standard": (2, MANY, (voting(epsilon_total=4), merge(STANDARD, {"train": {"learning_rate": 0.125}}))),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("case", CASES)
def test_parties_compute_what_the_twin_does_with_the_same_noise(case: str) -> None:
    holders, training, changes = CASES[case]
    job = small_job(holders, MARGINS, {"train": {"epochs": 6}}, *changes)
    graphs = graphs_of(job, nodes=60, training=training)
    with noise_from(KEY):
        found = outcomes(job, graphs, lambda program: trained(program, 6), noise=noise_of())
    votes = "weight.votes"
    scale = {"weight.0": 2.0**-(WEIGHT_BITS), votes: 2.0**-BITS}
    for name, weight in summed(found, 0).items():
        twin = found[TWIN][0][name] * scale[name]
        assert float((weight * scale[name] - twin).abs().max()) < 2e-3, name
        assert float(twin.abs().max()) > 2e-2, name
    margins = {party: one[1] for party, one in found.items() if one[1] is not None}
    assert margins.keys() == {"A", TWIN}
    assert float((margins["A"] - margins[TWIN]).abs().max()) < 4e-3


class Counting(PlainMachine):
    """A twin that keeps what is going to be noised, and adds no noise."""

    counted: Tensor
    asked: float

    def noised(self, summands: Summands, deviation: float) -> Summands:
        self.counted, self.asked = summands.part, deviation
        return summands


def counted(job: SealedJob, graphs: list[PartyGraph]) -> tuple[Tensor, Tensor]:
    """The votes over others' edges before noise, and what the network takes nodes for then."""
    context, data = together(job, graphs)
    machine = Counting(list(data))
    program = SealedProgram(machine, context)
    program.enter(trains=True)
    program.begin()
    for number in range(job.train.epochs // 2):
        program.step(number)
    assert not hasattr(machine, "counted"), "half of the steps come before votes"
    before = program.network.predict(program.weights).public
    program.step(job.train.epochs // 2)
    assert before is not None
    assert machine.asked == deviation_of(job, context.sizes.nodes), (
        "what the ledger counts is what is asked of the dealer"
    )
    return machine.counted, before.argmax(1)


BOUNDS: list[Settings] = [
    *({"model": {"max_degree": degree}} for degree in range(4, 40)),
    *({"model": {"edge_slots": slots, "max_degree": 60}} for slots in range(1, 60)),
    {"model": {"directed": True}},
]


def test_jobs_of_one_bound_after_another_find_no_edge() -> None:
    """Whether a job ends by a bound hangs on the padded number of edges alone; without ``privacy`` it hangs on every
    edge: how many there are, how many at a node, and whether each goes both ways."""
    there = [(0, 1), (0, 2), (0, 3), (4, 5), (5, 6), (7, 8), (8, 9), (9, 10), (3, 4), (6, 7)]
    whole, one_less = pairs(*there), pairs(*(each for each in there if each != (0, 3)))
    one_way = whole[:, 1:]

    def ends(edges: Tensor, *changes: Settings) -> list[str | None]:
        graph, found = with_edges(small_graphs(2, nodes=12), 1, edges)[1], list[str | None]()
        for bound in BOUNDS:
            try:
                own_data(small_job(2, *changes, bound), graph)
                found.append(None)
            except DataError as error:
                found.append(error.key)
        return found

    assert padded(one_less.shape[1]) == padded(whole.shape[1]) == padded(one_way.shape[1]) == 20
    assert len({tuple(ends(edges, voting(epsilon_total=4))) for edges in (whole, one_less, one_way)}) == 1
    assert set(ends(whole, voting(epsilon_total=4))) == {None, "model.edge_slots"}
    assert len({tuple(ends(edges)) for edges in (whole, one_less, one_way)}) == 3
    hub = with_edges(small_graphs(2, nodes=12), 0, whole)[0]
    with refused(DataError, key="model.max_degree"):  # of the label holder's own edges, which ε is not about
        own_data(small_job(2, voting(epsilon_total=4), {"model": {"max_degree": 4}}), hub)


def test_what_a_private_job_states_of_edges_is_the_same_whatever_edges_there_are() -> None:
    """Without slots one edge more is seen where the padded number moves, so such a job is refused."""
    open_job, private = small_job(2, {"model": {"network": "linear"}}), small_job(2, voting(epsilon_total=4))
    assert len({slots_of(open_job, edges) for edges in (16, 17)}) == 2
    assert {slots_of(private, edges) for edges in (0, 16, 17, 1000)} == {4096}
    assert [neighbours_told(open_job, "B", most) for most in (0, 1, 2, 3, 4, 17, 1000)] == [1, 1, 3, 3, 7, 31, 1023]
    assert {neighbours_told(private, "B", most) for most in (0, 17, 1000)} == {0}
    assert neighbours_told(private, "A", 17) == 31, "the label holder's, which ε is not about"
    with refused(ConfigError, key="model.edge_slots", value=None):
        small_job(2, voting(epsilon_total=4), {"model": {"edge_slots": None}})


def test_votes_are_how_many_neighbours_at_others_are_taken_for_a_class() -> None:
    """However often an edge is recorded, and none from a node to itself; the label holder's are no votes."""
    job = small_job(3, voting())
    graphs = small_graphs(3, nodes=12)
    twice = torch.cat([pairs((0, 1), (2, 3)), pairs((0, 1), (5, 5))], 1)
    graphs = with_edges(with_edges(graphs, 1, twice), 2, pairs((0, 1), (1, 4)))
    votes, classes = counted(job, graphs)
    expected = torch.zeros(12, 3)
    for one, other in [(0, 1), (2, 3), (0, 1), (1, 4)]:
        expected[one, classes[other]] += 1
        expected[other, classes[one]] += 1
    assert torch.equal(votes, expected.double())
    assert torch.equal(edges_once(twice), edges_once(pairs((2, 3), (0, 1))))


@pytest.mark.parametrize("classes", [2, 5])
def test_every_node_votes_once_where_classes_are_equally_likely(classes: int) -> None:
    """Or one edge would move votes by more: rows without columns have all logits alike."""
    rows = torch.tensor([[0.0] * classes, [-1.0] + [0.5] * (classes - 1), [2.0**-16] + [0.0] * (classes - 1)])

    def program(machine: Machine) -> Wire:
        values = rows if machine.party in ("B", TWIN) else None
        return machine.open(one_hot_of_largest(machine, machine.put("B", values, tuple(rows.shape), 16)))

    found = run(program, 3)
    expected = torch.nn.functional.one_hot(torch.tensor([0, 1, 0]), classes)
    assert torch.equal(secret(found), expected)
    twin = wire(found, TWIN).public
    assert twin is not None
    assert torch.equal(twin, expected.double())


def graphs_on(nodes: int, directed: bool) -> Iterator[Tensor]:
    ends = list(itertools.permutations(range(nodes), 2) if directed else itertools.combinations(range(nodes), 2))
    for chosen in itertools.product([False, True], repeat=len(ends)):
        kept = [pair for pair, there in zip(ends, chosen, strict=True) if there]
        yield torch.tensor(kept, dtype=torch.int64).reshape(-1, 2).T if directed else pairs(*kept)


@pytest.mark.cases(1)
@pytest.mark.parametrize("directed", [False, True])
def test_one_edge_moves_votes_by_no_more_than_is_paid_for(directed: bool) -> None:
    """Of all graphs of B on four (directed: three) nodes, with every other one that differs between two nodes."""
    nodes = 3 if directed else 4
    job = small_job(3, voting(), {"model": {"directed": directed}, "train": {"epochs": 2}})
    graphs = small_graphs(3, nodes=6, training=4, directed=directed)
    found: dict[frozenset[tuple[int, int]], Tensor] = {}
    for edges in graphs_on(nodes, directed):
        key = frozenset((int(one), int(other)) for one, other in edges.T)
        found[key] = counted(job, with_edges(graphs, 1, edges))[0]
    plan = release_plan(job, "B", 100)
    assert plan is not None
    furthest = 0.0
    for one, other in itertools.combinations(found, 2):
        if len({frozenset(pair) for pair in one ^ other}) == 1:
            furthest = max(furthest, float((found[one] - found[other]).norm()))
    assert furthest == pytest.approx(plan.clips) == math.sqrt(2)


def test_noise_is_what_the_ledger_says() -> None:
    """√2 over its deviation is the μ of the event that is paid for, and the dealer draws so much."""
    job = small_job(2, voting(epsilon_total=2))
    plan, deviation = release_plan(job, "B", 5000), deviation_of(job, 5000)
    assert plan is not None
    assert plan.event is not None
    assert deviation is not None
    assert math.sqrt(2) / deviation == pytest.approx(plan.event.mu(1), rel=1e-12)
    assert plan.delta == 1e-5
    counted(job, small_graphs(2))
    program = partial(one_opening, deviation=deviation)
    found = opened(program, 1) - opened(partial(one_opening, deviation=0.0), 1)
    assert kstest(found.flatten().numpy() / deviation, "norm").pvalue > 1e-3


def one_opening(machine: Machine, *, deviation: float, values: float = 3.0) -> tuple[Tensor | None, Tensor]:
    """Counts of one holder's, noised and opened under masks."""
    shape = (40, 25)
    own = torch.full(shape, values) if machine.party in ("A", TWIN) else None
    put = machine.open(machine.split(machine.put("A", own, shape, 0)), ring=32)
    wire = machine.open(machine.noised(machine.split(put).scaled(1.0, VOTE_BITS), deviation))
    return wire.public, wire.mask


def opened(program: Any, number: int, holders: int = 2) -> Tensor:
    found: Any = run(program, holders, secrets=fixed_secrets("noise", number))
    public, masks = found["A"][0], [found[name][1] for name in NAMES[:holders]]
    return (public - sum(masks)).double() * 2.0**-VOTE_BITS  # type: ignore[no-any-return]


@pytest.mark.parametrize("coalition", ["AB", "AC", "BC"])
def test_all_holders_but_one_have_nothing_of_the_noise(coalition: str) -> None:
    """What they make of all that they have is uniform; with the last holder's share it would be the noise."""
    found: Any = run(partial(one_opening, deviation=5.0), 3, secrets=fixed_secrets("coalition", 1))
    without: Any = run(partial(one_opening, deviation=0.0), 3, secrets=fixed_secrets("coalition", 1))
    noise = opened(partial(one_opening, deviation=5.0), 1, 3) - 3
    assert noise.std() == pytest.approx(5, rel=0.1)
    known = found["A"][0] - sum(found[name][1] for name in coalition)
    assert kstest(known.flatten().numpy() / 2.0**64 + 0.5, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(known.flatten().numpy().astype(float), noise.flatten().numpy())[0, 1]) < 0.15
    for name in (*coalition, SERVER):
        assert torch.equal(found[name][1], without[name][1]), "a mask hangs on the noise"


def test_no_noise_is_drawn_twice() -> None:
    """Neither in a session nor in two."""

    def twice(machine: Machine) -> tuple[Tensor, Tensor]:
        first, second = (machine.noised(machine.summands(None, (8, 8), 8), 1.0).part for _ in range(2))
        return first, second

    drawn = [noise for _ in range(2) for noise in dealt(twice)]
    assert all(bool(noise.any()) for noise in drawn)
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(drawn, 2))


def dealt(program: Any) -> tuple[Tensor, Tensor]:
    """What a program gives the dealer; the holders have nothing of it."""
    results: dict[str, Any] = {}

    def one(machine: Machine) -> object:
        results[machine.party] = None if machine.party == TWIN else program(machine)
        return None

    run(one, 2)
    assert not any(bool(results[name][0].any()) for name in "AB")
    found: tuple[Tensor, Tensor] = results[SERVER]
    return found


def test_rounded_noise_commutes_with_whole_numbers() -> None:
    """So that rounding is of the release, and tells nothing more: ties at half a unit included."""
    halves = torch.arange(-9, 10) / 2
    for votes in (0, 1, 7, 16384):
        assert torch.equal((votes * 2.0 + halves).round(), votes * 2.0 + halves.round())
    drawn = rounded_gaussian((4000,), 0.7, 8, noise_of())
    assert kstest(drawn.double().numpy() / 256 / 0.7, "norm").pvalue > 1e-3


TRIALS, CLAIMED, DELTA, EPOCHS = 80, 1.0, 1e-3, 6


def outcomes_of(edges: list[tuple[int, int]], trials: int, noise: SecretSource | None, **privacy: float) -> Tensor:
    """What the label holder is given of nodes 0 and 5 over trials, where B has these edges: [trials, 4] margins.

    Args:
        edges: of B, both ways.
        trials: how many.
        noise: of votes; None: there is none, though they are trained on as if there were.
        privacy: of the job.
    """
    training = {"train": {"epochs": EPOCHS, "learning_rate": 1}, "model": {"blocks": ["own"]}}
    job = small_job(2, MARGINS, training, voting(**privacy))
    context, data = together(job, with_edges(small_graphs(nodes=6, training=5), 1, pairs(*edges)))
    machine = Counting if noise is None else partial(PlainMachine, noise=noise)
    found = [trained(SealedProgram(machine(list(data)), context), EPOCHS)[1] for _ in range(trials)]
    return torch.stack([each[[0, 5]].flatten() for each in found if each is not None])


def proven(**privacy: float) -> float:
    """The ε that an attacker proves who knows all columns, all labels, and all edges but that of nodes 0 and 5.

    It computes what both worlds give without noise, learns from half of the trials how noise moves predictions, and
    scores the others along the direction that tells the worlds apart best.
    """
    worlds: list[list[tuple[int, int]]] = [[(0, 5)], []]
    there, absent = (outcomes_of(edges, 1, None, **privacy)[0] for edges in worlds)
    source = fixed_secrets("outcomes")
    seen = [outcomes_of(edges, TRIALS, source, **privacy) for edges in worlds]
    half = TRIALS // 2
    moved = torch.cat([world[:half] - world[:half].mean(0) for world in seen])
    spread = moved.T @ moved / len(moved)
    direction = torch.linalg.pinv(spread + 1e-6 * spread.trace() * torch.eye(4)) @ (there - absent)
    scores = [(world[half:] - (there + absent) / 2) @ direction > 0 for world in seen]
    hits, alarms = (int(score.sum()) for score in scores)
    return epsilon_lower_bound(hits, alarms, half, DELTA, 0.999)


def shown(block: str) -> float:
    """How far an edge of B's moves what A is told, without votes."""
    valid = small_job(2, MARGINS, voting(epsilon_total=4))
    job = valid.model_copy(update={"model": valid.model.model_copy(update={"blocks": ("own", block)})})
    found = []
    for edges in ([(0, 5)], []):
        context, data = together(job, with_edges(small_graphs(), 1, pairs(*edges)))
        found.append(trained(SealedProgram(Silent(list(data)), context), 3)[1])
    there, absent = found
    assert there is not None
    assert absent is not None
    return float((there - absent).abs().max())


@pytest.mark.parametrize("block", ["neighbours", "quantiles", "each.1", "each.2"])
def test_blocks_over_others_own_edges_are_refused_for_one_edge_would_show(
    block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without votes, an edge of B's shows in what A is told if such a block is made of B's edges after all."""
    with refused(ConfigError, key="model.blocks"):
        small_job(2, voting(epsilon_total=4), {"model": {"blocks": ["own", block]}})
    if block.startswith("each."):  # which is made at home: hops have another lock
        assert shown(block) == 0
        monkeypatch.setattr("veilgraph.paradigms.sealed.program.network_of", lambda _: Unlocked)
    assert shown(block) > 1e-3


@pytest.mark.parametrize("block", ["pooled.1", "boosting"])
def test_no_edge_of_others_is_in_the_blocks_that_noise_allows(block: str) -> None:
    small_job(2, voting(epsilon_total=4), {"model": {"blocks": ["own", block]}})
    assert shown(block) == 0


class Unlocked(Voting):
    """Hops go over all holders' edges."""

    def _relations(self, holders: Sequence[PartyId]) -> dict[str, dict[str, Propagation]]:
        return Network._relations(self, holders)


class Silent(PlainMachine):
    """A twin whose votes come to nothing: what is told hangs on all else."""

    def noised(self, summands: Summands, deviation: float) -> Summands:
        return Summands(torch.zeros_like(summands.part), summands.bits)


def test_one_edge_shows_in_predictions_without_noise() -> None:
    there, absent = (outcomes_of(edges, 1, None) for edges in ([(0, 5)], []))
    assert float((there - absent).abs().max()) > 1e-4


@nightly
def test_what_one_edge_shows_is_held_to_epsilon() -> None:
    assert proven(epsilon_total=CLAIMED, delta=DELTA) <= CLAIMED


@nightly
def test_the_attack_finds_noise_that_is_too_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = lambda shape, deviation, bits, source: rounded_gaussian(shape, deviation / 64, bits, source)  # noqa: E731
    monkeypatch.setattr("veilgraph.mpc.sealed.machine.rounded_gaussian", weak)
    assert proven(epsilon_total=CLAIMED, delta=DELTA) > CLAIMED
