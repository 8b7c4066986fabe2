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

from tests import about
from tests.errors import refused
from tests.mpc.sealed.parties import NAMES, run, secret, wire
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.sealed.dense import STANDARD, graphs_of
from tests.paradigms.sealed.private import KEY, MARGINS, noise_from, noise_of, pairs, voting, with_edges
from tests.paradigms.sealed.programs import TWIN, by_trust, outcomes, small_graphs, small_job, summed, trained
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.partition import orient_pairs
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.functions import one_hot_of_largest
from veilgraph.mpc.sealed.machine import Machine, PlainMachine
from veilgraph.mpc.sealed.wire import Summands, Wire
from veilgraph.paradigms.sealed.audit import normal_scores
from veilgraph.paradigms.sealed.inputs import own_data, padded, slots_of, stated_neighbours
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.networks.propagation import Propagation
from veilgraph.paradigms.sealed.networks.voting import Voting
from veilgraph.paradigms.sealed.plan import epsilon_of, release_plan
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.steps import WEIGHT_BITS
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.privacy.event import GeometricEvent
from veilgraph.privacy.geometric import two_sided, variance
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.report.budget import protection_of

FEW, MANY = 8, 26
CASES: dict[str, tuple[int, int, tuple[Settings, ...]]] = {
    "rows": (2, FEW, (voting(epsilon_total=3),)),
    "hidden layer": (2, FEW, (voting(epsilon_total=2), {"model": {"network": "mlp"}})),
    "rows, no noise": (3, FEW, (voting(),)),
    "columns, directed": (3, MANY, (voting(epsilon_total=4), {"model": {"directed": True, "blocks": ["pooled.4"]}})),
    "no hop, batches": (2, FEW, (voting(epsilon_total=1), {"model": {"blocks": ["own"]}, "train": {"batch_size": 3}})),
    "standard": (2, MANY, (voting(epsilon_total=4), merge(STANDARD, {"train": {"learning_rate": 0.125}}))),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("case", CASES)
def test_parties_compute_what_the_twin_does_with_the_same_noise(case: str) -> None:
    holders, training, changes = CASES[case]
    for job in by_trust(small_job(holders, MARGINS, {"train": {"epochs": 6}}, *changes)):
        check_with_twin(job, training)


def check_with_twin(job: SealedJob, training: int) -> None:
    graphs = graphs_of(job, nodes=60, training=training)
    with noise_from(KEY):
        found = outcomes(job, graphs, lambda program: trained(program, 6), noise=noise_of())
    votes = "weight.votes"
    for name, weight in summed(found, 0).items():
        twin = found[TWIN][0][name]
        if name == votes:
            assert torch.equal(weight, twin), "whole numbers are exact"
            continue
        assert float((weight - twin).abs().max()) < 2e-3 * 2**WEIGHT_BITS, name
        assert float(twin.abs().max()) > 2e-2 * 2**WEIGHT_BITS, name
    margins = {party: one[1] for party, one in found.items() if one[1] is not None}
    assert margins.keys() == {"A", TWIN}
    assert float((margins["A"] - margins[TWIN]).abs().max()) < 4e-3


class Counting(PlainMachine):
    """A twin that keeps what is going to be noised, and adds no noise."""

    counted: Tensor
    asked: float

    def noised(self, summands: Summands, epsilon: float) -> Summands:
        self.counted, self.asked = summands.part, epsilon
        return summands


def counted(job: SealedJob, graphs: list[PartyGraph]) -> tuple[Tensor, Tensor]:
    """The votes over others' edges before noise, and the classes that nodes vote for."""
    context, data = twin_context(job, graphs)
    machine = Counting(list(data))
    program = SealedProgram(machine, context)
    program.enter(trains=True)
    program.begin()
    for number in range(job.train.epochs):
        assert not hasattr(machine, "counted"), "all steps come before votes"
        program.step(number)
    taken_for = program.network.predict(program.weights).public
    assert taken_for is not None
    assert machine.asked == epsilon_of(job), "what the ledger counts is what is asked of the dealer"
    labels, trained = graphs[0].labels, graphs[0].train_mask
    assert labels is not None
    assert trained is not None
    return machine.counted, torch.where(trained, labels, taken_for.argmax(1))


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

    found = {padded(orient_pairs(edges, 5).shape[1]) for edges in (whole, one_less, one_way)}
    assert found == {10}
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
    assert [stated_neighbours(open_job, "B", most) for most in (0, 1, 2, 3, 4, 17, 1000)] == [1, 1, 3, 3, 7, 31, 1023]
    assert {stated_neighbours(private, "B", most) for most in (0, 17, 1000)} == {0}
    assert stated_neighbours(private, "A", 17) == 31, "the label holder's, which ε is not about"
    with refused(ConfigError, key="model.edge_slots", value=None):
        small_job(2, voting(epsilon_total=4), {"model": {"edge_slots": None}})


def test_votes_are_how_many_neighbours_at_others_are_of_a_class() -> None:
    """However often an edge is recorded, and none from a node to itself; the label holder's are no votes. Nodes 0 to 3
    are trained on: edges of theirs count at the other end, and those between two of them nowhere."""
    job = small_job(3, voting())
    graphs = small_graphs(3, nodes=12, training=4)
    twice = torch.cat([pairs((0, 5), (2, 3), (7, 8)), pairs((0, 5), (5, 5)), torch.tensor([[9], [10]])], 1)
    graphs = with_edges(with_edges(graphs, 1, twice), 2, pairs((0, 5), (6, 1), (8, 7)))
    votes, classes = counted(job, graphs)
    expected = torch.zeros(12, 3)
    for source, target in [(0, 5), (0, 5), (1, 6), *2 * [directed(7, 8)], directed(9, 10)]:
        expected[target, classes[source]] += 1
    assert torch.equal(votes, expected.double())


def directed(one: int, other: int) -> tuple[int, int]:
    """As the orientation of the job has it."""
    (source, target), *_ = orient_pairs(torch.tensor([[one], [other]]), small_job().seed).T.tolist()
    return source, target


def test_where_a_pair_points_hangs_on_nothing_but_the_pair_and_the_seed() -> None:
    whole = torch.tensor(list(itertools.combinations(range(60), 2))).T
    turned = orient_pairs(whole.flip(0), 3)
    assert torch.equal(orient_pairs(torch.cat([whole, whole.flip(0), whole], 1), 3), turned)
    assert turned.shape == whole.shape
    there = set(map(tuple, turned.T.tolist()))
    for part in (whole[:, ::7], whole[:, 5:90], torch.tensor([[4, 9], [9, 4]])):
        assert set(map(tuple, orient_pairs(part, 3).T.tolist())) <= there
    up = int((turned[0] < turned[1]).sum())
    assert abs(up - 885) < 4 * 885**0.5 / 2**0.5, "a fair coin"
    assert not torch.equal(orient_pairs(whole, 4), turned)
    assert orient_pairs(torch.empty(2, 0, dtype=torch.int64), 3).shape == (2, 0)
    assert orient_pairs(torch.tensor([[2, 2], [2, 2]]), 3).shape == (2, 0)


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
@pytest.mark.parametrize("training", [2, 3, 5])
def test_one_edge_moves_one_vote_by_one(training: int) -> None:
    """Of all graphs of B on four nodes, with every other one that differs between two nodes: recorded once, often, one
    way or both, or not. Some of the four are trained on, some not, or all."""
    job = small_job(3, voting(), {"train": {"epochs": 2}})
    graphs = small_graphs(3, nodes=8, training=training)
    found: dict[frozenset[tuple[int, int]], Tensor] = {}
    for edges in graphs_on(4, directed=False):
        key = frozenset((int(one), int(other)) for one, other in edges.T)
        found[key] = counted(job, with_edges(graphs, 1, edges))[0]
    moved = []
    for one, other in itertools.combinations(found, 2):
        if len({frozenset(pair) for pair in one ^ other}) == 1:
            moved.append(float((found[one] - found[other]).abs().sum()))
    assert max(moved) == 1 or training > 4
    assert set(moved) <= {0, 1}
    plan, epsilon = release_plan(job, "B", 100), epsilon_of(job)
    assert plan is not None
    assert epsilon is not None
    assert plan.event == GeometricEvent(epsilon), "of a move by one"


def hub(*more: tuple[int, int]) -> Tensor:
    return torch.cat(
        [
            pairs(*((0, node) for node in range(1, 12))),
            pairs(*((4, node) for node in range(5, 12))),
            torch.tensor(more, dtype=torch.int64).reshape(-1, 2).T,
        ],
        1,
    )


@pytest.mark.parametrize("way", [[(4, 3)], [(3, 4)], [(3, 4), (4, 3)], [(4, 3)] * 9, [(3, 4), (4, 3), (3, 4), (3, 3)]])
def test_of_hubs_one_edge_moves_one_vote_however_it_is_recorded(way: list[tuple[int, int]]) -> None:
    """Between nodes 3 and 4, of which one has seven other edges and both have one to another hub."""
    job = small_job(2, voting(), {"train": {"epochs": 2}})
    graphs = small_graphs(2, nodes=12, training=3)
    there, absent = (counted(job, with_edges(graphs, 1, edges))[0] for edges in (hub(*way), hub()))
    assert float((there - absent).abs().sum()) == 1
    assert float((there - absent).abs().max()) == 1


def test_noise_is_what_the_ledger_says() -> None:
    """The event that is paid for has the ε of the law that the dealer draws from, and δ is 0."""
    job = small_job(2, voting(epsilon_total=0.5))
    plan, epsilon = release_plan(job, "B", 5000), epsilon_of(job)
    assert plan is not None
    assert plan.event == GeometricEvent(0.5)
    assert plan.event.epsilon == epsilon == plan.epsilon_total
    assert plan.delta == 0
    counted(job, small_graphs(2))
    program = partial(one_opening, epsilon=epsilon)
    found = opened(program, 1) - opened(partial(one_opening, epsilon=math.inf), 1)
    assert torch.equal(found, found.round())
    places = np.random.default_rng(0)
    assert kstest(normal_scores(found[:, :1], epsilon, 1, places).flatten(), "norm").pvalue > 1e-3
    assert kstest(normal_scores(found.sum(1, keepdim=True), epsilon, 25, places).flatten(), "norm").pvalue > 1e-3


def one_opening(machine: Machine, *, epsilon: float, values: float = 3.0) -> tuple[Tensor | None, Tensor]:
    """Counts of one holder's, noised and opened under masks."""
    shape = (40, 25)
    own = torch.full(shape, values) if machine.party in ("A", TWIN) else None
    wire = machine.open(machine.noised(machine.split(machine.put("A", own, shape, 0)), epsilon))
    return wire.public, wire.mask


def opened(program: Any, number: int, holders: int = 2) -> Tensor:
    found: Any = run(program, holders, secrets=fixed_secrets("noise", number))
    public, masks = found["A"][0], [found[name][1] for name in NAMES[:holders]]
    return (public - sum(masks)).double()  # type: ignore[no-any-return]


@pytest.mark.parametrize("coalition", ["AB", "AC", "BC"])
def test_all_holders_but_one_have_nothing_of_the_noise(coalition: str) -> None:
    """What they make of all that they have is uniform; with the last holder's share it would be the noise."""
    found: Any = run(partial(one_opening, epsilon=0.25), 3, secrets=fixed_secrets("coalition", 1))
    without: Any = run(partial(one_opening, epsilon=math.inf), 3, secrets=fixed_secrets("coalition", 1))
    noise = opened(partial(one_opening, epsilon=0.25), 1, 3) - 3
    assert noise.std() == pytest.approx(variance(0.25) ** 0.5, rel=0.1)
    known = found["A"][0] - sum(found[name][1] for name in coalition)
    assert kstest(known.flatten().numpy() / 2.0**64 + 0.5, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(known.flatten().numpy().astype(float), noise.flatten().numpy())[0, 1]) < 0.15
    for name in (*coalition, SERVER):
        assert torch.equal(found[name][1], without[name][1]), "a mask hangs on the noise"


def test_no_noise_is_drawn_twice() -> None:
    """Neither in a session nor in two."""

    def twice(machine: Machine) -> tuple[Tensor, Tensor]:
        first, second = (machine.noised(machine.summands(None, (8, 8), 0), 0.1).part for _ in range(2))
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


def test_tables_and_limits_know_that_delta_is_zero() -> None:
    """A limit on δ, however small, refuses no such job; one on ε does."""
    job = small_job(2, voting(epsilon_total=2))
    own = protection_of(job, 5000).facts()["B"]
    assert [own[name] for name in ("delta", "mechanism", "epsilon_release", "epsilon_total")] == [0, "geometric", 2, 2]
    assert dict(protection_of(job).guarantee().about)["δ"] == "0: the bound always holds"
    assert any("δ is 0" in note for note in protection_of(job).notes())
    for most, refuses in ((2.0, False), (1.9, True)):
        limits = LimitSettings(leakage=("predicted-classes",), max_epsilon=most, max_delta=1e-15, **about.EDGES)
        assert bool(refusal(limits, job, "B", 5000)) == refuses


def test_noise_is_on_whole_numbers_alone() -> None:
    """A number with fractional bits would show them through the noise."""
    with pytest.raises(ValueError, match="whole numbers"):
        run(lambda machine: machine.noised(machine.summands(None, (2, 2), 8), 1.0), 2)


DRAWS, AT_ONCE = 4000, 1000


def worlds(epsilon: float) -> tuple[Tensor, Tensor]:
    """What the label holder is told of a node's votes for one class, with an edge of B's that gives it one, and
    without: [draws] each. Noise is drawn for each node, so that a thousand nodes with such an edge are as many draws.
    """
    job = small_job(2, voting(epsilon_total=epsilon), {"model": {"blocks": ["own"]}, "train": {"epochs": 1}})
    graphs, found = small_graphs(nodes=5 + AT_ONCE, training=5), []
    labels = graphs[0].labels
    assert labels is not None
    for edges in ([(0, node) for node in range(5, 5 + AT_ONCE)], []):
        context, data = twin_context(job, with_edges(graphs, 1, pairs(*edges)))
        program = SealedProgram(PlainMachine(list(data), fixed_secrets("worlds", len(edges))), context)
        program.enter(trains=True)
        program.begin()
        program.step(0)
        told = []
        for _ in range(DRAWS // AT_ONCE):
            program.network.finish(program.weights)
            votes = program.network.told()
            assert votes is not None
            told.append(votes.known[5:, labels[0]])
        found.append(torch.cat(told))
    return found[0], found[1]


def proven(epsilon: float) -> float:
    """The ε that an attacker proves who knows all but that edge: whether the count is 1 or more is the best test."""
    there, absent = worlds(epsilon)
    return epsilon_lower_bound(int((there >= 1).sum()), int((absent >= 1).sum()), DRAWS, 0.0, 0.999)


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
def test_what_is_told_of_an_edge_proves_more_than_half_of_epsilon_and_no_more_than_all(epsilon: float) -> None:
    assert epsilon / 2 < proven(epsilon) <= epsilon


def test_the_attack_finds_noise_that_is_too_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = lambda shape, epsilon, source: two_sided(shape, 2 * epsilon, source)  # noqa: E731
    monkeypatch.setattr("veilgraph.mpc.sealed.machine.two_sided", weak)
    assert proven(1.0) > 1


def shown(block: str) -> float:
    """How far an edge of B's moves what A is told, without votes."""
    valid = small_job(2, MARGINS, voting(epsilon_total=4))
    job = valid.model_copy(update={"model": valid.model.model_copy(update={"blocks": ("own", block)})})
    found = []
    for edges in ([(0, 5)], []):
        context, data = twin_context(job, with_edges(small_graphs(), 1, pairs(*edges)))
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
        monkeypatch.setattr("veilgraph.paradigms.sealed.steps.network_of", lambda _: Unlocked)
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

    def noised(self, summands: Summands, epsilon: float) -> Summands:
        return Summands(torch.zeros_like(summands.part), summands.bits)
