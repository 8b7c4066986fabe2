"""One bit a node: what is opened of it, what one record changes, what it costs, and what an attacker makes of it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests import about, nightly
from tests.errors import refused
from tests.mpc.sealed.parties import run as run_parties
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.sealed.programs import TWIN, by_trust, small_graphs
from tests.paradigms.sealed.records import noise_of, of_all, record_job, scored, two_classes, with_rows
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.sealed.machine import Machine, PlainMachine
from veilgraph.paradigms.sealed.inputs import short_rows
from veilgraph.paradigms.sealed.plan import MOST_WHITENED, Context, flips_of, record_noise_of, release_plan
from veilgraph.paradigms.sealed.records.bits import BITS, BitProgram, flips, midway
from veilgraph.paradigms.sealed.records.home import Home
from veilgraph.paradigms.sealed.records.program import RecordProgram
from veilgraph.paradigms.sealed.records.rows import feature_rows
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import record_twin, twin_context
from veilgraph.privacy import accountant
from veilgraph.privacy.event import EitherEvent, GaussianEvent, LocalEvent
from veilgraph.privacy.lifetime_costs import NOTHING, epsilon, price
from veilgraph.privacy.randomised_response import GRID, least_cells
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.budget import protection_of

WIDE = MOST_WHITENED + 1
FLIPS = "veilgraph.paradigms.sealed.records.bits.flips"


def bit_job(holders: int = 2, *changes: Settings, **privacy: object) -> SealedJob:
    return record_job(holders, *changes, **{"unit": "node", **privacy})


def bit_context(epsilon_total: float = 4.0, holders: int = 2, **sizes: Any) -> Context:
    """The twin's, where A's own model knows nothing, so that residuals are labels less a half."""
    graphs = two_classes(small_graphs(holders, **sizes))
    context, _ = twin_context(bit_job(holders, epsilon_total=epsilon_total), graphs)
    own, labels, trained = context.data["A"], graphs[0].labels, graphs[0].train_mask
    assert labels is not None
    assert trained is not None
    residuals = torch.where(trained, labels - 0.5, 0.0).double()[:, None]
    return replace(context, data={**context.data, "A": replace(own, residuals=residuals)})


@pytest.mark.cases(1)
@pytest.mark.parametrize(("holders", "columns"), [(2, 5), (3, 1), (2, WIDE), (3, 5)])
def test_parties_open_what_the_twin_does_to_the_bit(holders: int, columns: int) -> None:
    graphs = two_classes(small_graphs(holders, nodes=40, columns=columns, training=20))
    for job in by_trust(bit_job(holders)):
        check_with_twin(job, graphs, holders)


def check_with_twin(job: SealedJob, graphs: list[PartyGraph], holders: int) -> None:
    found = of_all(job, graphs)
    _, bits = found[TWIN]
    assert bits.shape == (40, holders - 1)
    assert torch.equal(found["A"][1], bits)
    assert set(bits.unique().tolist()) <= {0.0, 1.0}
    assert not bool(bits[:20].any()), "training nodes"
    assert {party for party, (_, told) in found.items() if told is not None} == {"A", TWIN}
    names = "ABC"[:holders]
    assert torch.equal(torch.stack([found[party][0][BITS] for party in names]).sum(0).double(), bits)
    assert {name for party in names for name in found[party][0]} == {BITS, "weight.trial"}, "neither weights nor sums"


@pytest.mark.parametrize("turned", [0.0, 1.0])
def test_a_bit_is_whether_a_score_is_nearer_to_the_second_class_and_flips_turn_it_over(
    turned: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed in another way of the noisy sums that a job of records has with the same noise."""
    context = bit_context(nodes=60, training=30, columns=4)
    monkeypatch.setattr(FLIPS, lambda nodes, *_: torch.full((nodes, 1), turned).double())
    _, bits = scored(BitProgram(PlainMachine(["A", "B"]), context, noise_of()))
    sums = RecordProgram(PlainMachine(["A", "B"]), context, noise_of())
    shares, _ = scored(sums)
    noise, residuals = sums.noises["B"], context.data["A"].residuals
    assert residuals is not None
    weights = shares["weight.sums.B"].double() * 2.0**-noise.bits
    rows = feature_rows(context.data["B"].columns["own"], shares["weight.whitening.B"], noise)
    scores, middle = rows @ weights, (weights**2).sum() / (2 * residuals.clamp_min(0).sum())
    clear = (scores - middle).abs()[30:, 0] > 1e-3
    assert int(clear.sum()) > 20
    assert bits is not None
    assert torch.equal(bits[30:, 0][clear] != turned, (scores > middle)[30:, 0][clear])
    assert 0 < int(bits[30:].sum()) < 30


def test_the_threshold_is_midway_between_mean_scores_of_the_classes() -> None:
    """Of weights without noise: the mean of scores weighed by residuals, of the second class and of the first."""
    draw = torch.Generator().manual_seed(3)
    rows, residuals = torch.randn(50, 3, generator=draw).double(), torch.randn(50, 1, generator=draw).double()
    residuals -= residuals.mean()
    scores = rows @ (rows.T @ residuals)
    means = [float((scores * part).sum() / part.sum()) for part in (residuals.clamp_min(0), residuals.clamp_max(0))]
    gap = (rows.T @ residuals).square().sum() * midway(residuals, 0)
    assert float(gap) == pytest.approx((means[0] - means[1]) / 2, rel=1e-9)
    assert torch.equal(midway(torch.zeros(3, 1).double(), 4), torch.full((1, 1), 2.0**12).double()), "the ring's bound"


@pytest.mark.parametrize("told", [0.5, 2.0])
def test_flips_have_their_exact_chance_and_are_drawn_anew(told: float) -> None:
    source = fixed_secrets("flips", told)
    one, other = flips(20_000, told, source), flips(20_000, told, source)
    for drawn in (one, other):
        assert binomtest(int(drawn.sum()), 20_000, least_cells(told) / GRID).pvalue > 1e-3
    assert not torch.equal(one, other)
    assert least_cells(told) / GRID >= 1 / (math.exp(told) + 1)


def test_only_the_holder_of_the_columns_draws_and_nothing_shows_a_bit_without_its_flip() -> None:
    graphs, links = two_classes(small_graphs(3, nodes=30, training=12)), dict[str, RecordedLink]()
    found = of_all(bit_job(3), graphs, links)
    opened = [each for each in links["A"].transcript() if each.tag.kind is Kind.MASK_SHARE]
    assert [(each.sender, tuple(each.tensor.shape)) for each in opened] == [("B", (30, 2)), ("C", (30, 2))]
    assert found["A"][1] is not None
    for party in ("B", "C", SERVER):
        shares = [each for each in links[party].transcript() if each.tag.kind is Kind.MASK_SHARE]
        assert {(each.sender, each.receiver) for each in shares} <= {(party, "A")}, "of their own, and of no other's"
    drawn = list[tuple[str, str]]()
    context, data = twin_context(bit_job(3), graphs)

    def one(machine: Machine) -> object:
        def source(party: str) -> SecretSource:
            drawn.append((party, machine.party))
            return system_secrets

        own = {name: part for name, part in data.items() if name == machine.party}
        if machine.party != TWIN:
            scored(BitProgram(machine, replace(context, data=own), source))
        return None

    run_parties(one, 3)
    assert set(drawn) == {("B", "B"), ("C", "C")}


def test_one_record_changes_no_bit_of_another_node_nor_of_another_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """With second moments, whose noise is for that, held: of nodes that are not trained on one bit alone hangs on one.

    A training node changes weights, and so bits of others, and has none of its own.
    """
    context = bit_context(holders=3, nodes=40, training=20)
    matrix = {graph: torch.eye(part.columns["own"].shape[1]).double() for graph, part in context.data.items()}
    monkeypatch.setattr(
        "veilgraph.paradigms.sealed.records.program.whitening", lambda rows, *_: matrix["ABC"[rows.shape[1] - 5]]
    )

    def bits(of: Context) -> Tensor:
        _, found = scored(BitProgram(PlainMachine(["A", "B", "C"]), of, noise_of()))
        assert found is not None
        return found

    rows, before = context.data["B"].columns["own"], bits(context)
    for node in range(20, 40):
        for other in (torch.zeros(6).double(), -9 * rows[node]):
            changed = rows.clone()
            changed[node] = short_rows(other[None])[0]
            after = bits(with_rows(context, "B", changed))
            assert torch.equal(after[:, 1], before[:, 1])
            assert not bool((after != before)[torch.arange(40) != node].any())
    changed = rows.clone()
    changed[3] = 0
    after = bits(with_rows(context, "B", changed))
    assert torch.equal(after[:, 1], before[:, 1])
    assert not bool(after[:20].any())


@pytest.mark.parametrize("told", [0.5, 4.0, 8.0])
def test_either_way_a_record_costs_what_the_ledger_says(told: float) -> None:
    job = bit_job(epsilon_total=told)
    plan, multiplier, flipped = release_plan(job, "B", 5000), record_noise_of(job, 5000), flips_of(job, 5000)
    assert plan is not None
    assert multiplier is not None
    assert flipped is not None
    context = bit_context(told)
    program = BitProgram(
        PlainMachine(["A", "B"]), replace(context, plan=replace(context.plan, records=multiplier)), noise_of()
    )
    noise = program.noises["B"]
    trained = accountant.gaussian_epsilon(math.hypot(1 / noise.of_sums, 1 / noise.of_moments), plan.delta)
    others = flipped + accountant.gaussian_epsilon(1 / noise.of_moments, plan.delta)
    assert 0.999 * told <= trained <= told * (1 + 1e-8)
    assert 0.999 * told <= others <= told
    assert plan.event == EitherEvent(multiplier, flipped, noise.of_moments, "zero-out", "node")
    assert plan.epsilon_total == pytest.approx(max(trained, others), rel=1e-9)
    assert plan.epsilon_total <= told
    assert 0.9 * told < flipped < told, "the bit has most of it"
    own = release_plan(job, "A", 5000)
    assert own is not None
    assert own.epsilon_total == 0


def test_shares_of_delta_add_up_and_leave_the_rest_to_others() -> None:
    event, other = EitherEvent(1.5, 2.0, 15.0), GaussianEvent(2.0)
    assert accountant.total({event: 1}, 1e-5) == accountant.epsilon_at(event, 1e-5)
    assert accountant.total({event: 4}, 1e-5) == pytest.approx(4 * accountant.epsilon_at(event, 2.5e-6))
    both = accountant.total({event: 1, other: 3, LocalEvent(0.5): 0}, 1e-5)
    assert both == pytest.approx(
        accountant.epsilon_at(event, 5e-6) + accountant.gaussian_epsilon(math.sqrt(3) / 2, 5e-6)
    )
    assert accountant.epsilon_at(event, 1e-5) == pytest.approx(
        max(accountant.gaussian_epsilon(1 / 1.5, 1e-5), 2.0 + accountant.gaussian_epsilon(1 / 15, 1e-5))
    )
    jobs = [price(event, 1, 1e-4).times(number) for number in (1, 9, 10)]
    assert [epsilon(each, 1e-4) for each in jobs] == [
        pytest.approx(accountant.epsilon_at(event, 1e-5)),
        pytest.approx(9 * accountant.epsilon_at(event, 1e-5)),
        math.inf,
    ]
    mixed = price(event, 2, 1e-4).plus(price(other, 1, 1e-4))
    assert epsilon(mixed, 1e-4) == pytest.approx(
        2 * accountant.epsilon_at(event, 1e-5) + accountant.gaussian_epsilon(0.5, 8e-5)
    )
    assert NOTHING.failure == 0


DRAWS = 400


def game_context(told: float, record: float, predicted: bool) -> Context:
    """A game about one record of B's, 1 or 0, of a node that is predicted or trained on; others are as bad as can be.

    Twenty others have the row 1 and the residual 1, so that a predicted record is on either side of the threshold. A
    trained one has the residual 1, and A looks at the bit of a node with the row 1.
    """
    context = bit_context(told, nodes=60, columns=0, training=20)
    own = context.data["A"]
    assert own.residuals is not None
    rows, residuals = torch.zeros(60, 1).double(), torch.zeros_like(own.residuals)
    if predicted:
        rows[:20], residuals[:20], rows[59] = 1.0, 1.0, record
    else:
        rows[0], residuals[0], rows[59] = record, 1.0, 1.0
    return replace(
        with_rows(context, "B", rows),
        data={**with_rows(context, "B", rows).data, "A": replace(own, residuals=residuals)},
    )


def told_bits(told: float, record: float, *, predicted: bool, jobs: int = 1) -> Tensor:
    """The bits that A is told of the node 59 in ``DRAWS`` times so many jobs: [DRAWS, jobs]."""
    context, source = game_context(told, record, predicted), fixed_secrets("bits", record, predicted, jobs)
    found = []
    for _ in range(DRAWS * jobs):
        _, bits = scored(BitProgram(PlainMachine(["A", "B"]), context, lambda _: source))
        assert bits is not None
        found.append(float(bits[59, 0]))
    return torch.tensor(found).reshape(DRAWS, jobs)


def test_bits_of_one_job_and_of_two_prove_more_than_half_of_epsilon_and_no_more_than_all() -> None:
    """Of a predicted record; A says that it is there where all bits are 1."""
    there, absent = (told_bits(2.0, record, predicted=True, jobs=2) for record in (1.0, 0.0))
    for jobs in (1, 2):
        hits, false_hits = (int(bits[:, :jobs].min(1).values.sum()) for bits in (there, absent))
        found = epsilon_lower_bound(hits, false_hits, DRAWS, jobs * 1e-5, 0.999)
        assert 0.5 * jobs * 2.0 < found <= jobs * 2.0


def test_a_bit_of_another_node_proves_no_more_of_a_training_record_than_epsilon() -> None:
    there, absent = (told_bits(2.0, record, predicted=False).sum() for record in (1.0, 0.0))
    assert epsilon_lower_bound(int(there), int(absent), DRAWS, 1e-5, 0.999) <= 2.0


@pytest.mark.parametrize("kept", [True, False])
def test_asked_again_flips_that_are_kept_hide_a_bit_and_new_ones_do_not(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A asks 25 times, and takes the more frequent answer: right of every node where flips are new, else of some."""
    context, answers = bit_context(0.5, nodes=400, training=200, columns=4), list[Tensor]()
    with monkeypatch.context() as patch:
        patch.setattr(FLIPS, lambda nodes, *_: torch.zeros((nodes, 1)).double())
        _, truth = scored(BitProgram(PlainMachine(["A", "B"]), context, noise_of()))
    program = BitProgram(PlainMachine(["A", "B"]), context, noise_of())
    program.enter(trains=True)
    program.step(0)
    saved = program.shares()
    for time in range(101):
        if kept:
            program.restore(saved, training=False)
        else:  # as where weights stayed, and not the flips
            with monkeypatch.context() as patch:
                patch.setattr(FLIPS, lambda nodes, told, _, time=time: flips(nodes, told, fixed_secrets("anew", time)))
                program = BitProgram(PlainMachine(["A", "B"]), context, noise_of())
                program.enter(trains=True)
                program.step(0)
        told = program.predict()
        assert told is not None
        answers.append(told)
    assert truth is not None
    guessed = (torch.stack(answers).mean(0) > 0.5).double()
    right = float((guessed == truth)[200:].double().mean())
    assert right > 0.97 if not kept else 0.5 < right < 0.75


REFUSED: dict[str, tuple[Settings, str]] = {
    "classes alone": ({"output": "classes"}, "output"),
    "named nodes": ({"named_nodes": 3}, "named_nodes"),
    "released": ({"release": "holders"}, "release"),
    "judged": ({"train": {"select_by": "accuracy"}}, "train.select_by"),
    "edges of others": ({"model": {"blocks": ["pooled.2"]}}, "model.blocks"),
    "standardised by all rows": ({"data": {"feature_scaling": "standard"}}, "data.feature_scaling"),
    "too little ε": ({"privacy": {"epsilon_total": 0.49}}, "privacy.epsilon_total"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_open_more_than_a_bit_is_refused(name: str) -> None:
    changes, key = REFUSED[name]
    with refused(ConfigError, key=key):
        bit_job(2, changes)


def test_online_answers_and_three_classes_are_refused() -> None:
    told = {"holders": ["A", "B"], "label_holder": "A"}
    content = {"paradigm": "sealed", "preset": "auto", "data": told, "privacy": {"unit": "node", "epsilon_total": 1}}
    assert sealed(parse_job(content)).bits is not None
    for more, key in (({}, "online"), ({"named_nodes": 3}, "named_nodes")):
        with refused(ConfigError, key=key):
            parse_job(content | {"online": True} | more)
    with pytest.raises(ConfigError, match="online=True and privacy is set"):  # no way out that ends in another error
        parse_job(content | {"online": True})
    for unit in ("node", "training-record"):
        noised = {"unit": unit, "epsilon_total": 1, "degree_bound": 3}
        with refused(ConfigError, key="privacy.unit"):  # node-dp has other noise, which protects neither
            parse_job({"paradigm": "node-dp", "data": told, "privacy": noised})
    with refused(DataError, key="privacy.unit", value="node", party="A"):
        record_twin(bit_job(), small_graphs())
    sizes = {graph.party: size_of(graph, bit_job().inputs) for graph in small_graphs()}
    with refused(DataError, key="privacy.unit", value="node", party="A"):
        paradigm_of(bit_job()).session.costs(bit_job(), 12, sizes)


def test_no_holder_states_more_than_two_classes() -> None:
    stated = paradigm_of(bit_job()).session.stated(bit_job(), "A", releases=False)
    assert stated["classes"] == (2, 2)


def test_limits_are_about_nodes_and_accept_bits_by_them() -> None:
    job, nodes = bit_job(epsilon_total=2), {"epsilon_unit": "node", "epsilon_neighbours": "zero-out"}
    for most, refuses in ((2.0, False), (1.9, True)):
        assert bool(refusal(LimitSettings(max_epsilon=most, **nodes), job, "B", 5000)) == refuses
    assert "node-bits" in (refusal(LimitSettings(leakage=("record-scores",)), job, "B", 5000) or "")
    assert refusal(LimitSettings(leakage=("node-bits",)), job, "B", 5000) is None
    for unit in (about.RECORDS, about.EDGES):
        assert refusal(LimitSettings(max_epsilon=9.0, **unit), job, "B", 5000)


def test_words_are_of_nodes_and_bits() -> None:
    job = bit_job(3, epsilon_total=2)
    own = protection_of(job, 5000).facts()["B, C"]
    assert [own[name] for name in ("unit", "relation", "delta", "releases")] == ["node", "zero-out", 1e-5, 1]
    said = " ".join([*protection_of(job, 5000).notes(), *paradigm_of(job).words.describe(job)])
    assert "bit" in said
    assert "have no noise" not in said
    assert "made of edges" not in said


def informative(noise: float) -> tuple[Home, Tensor, Tensor]:
    """A label holder whose own model knows nothing, and bits that are labels but for a share of them."""
    graph = two_classes(small_graphs(nodes=600, training=200))[0]
    home = Home(graph, 2)
    assert graph.labels is not None
    turned = torch.rand(600, 1, generator=torch.Generator().manual_seed(1)) < noise
    bits = (graph.labels[:, None].bool() ^ turned).double()
    bits[:200] = 0
    return home, torch.zeros(600, 2).double(), bits


def test_bits_are_added_by_their_likelihood_ratio_and_left_out_where_they_say_nothing() -> None:
    home, opinions, bits = informative(0.1)
    found = home.with_bits(opinions, bits, None).diff(dim=1)[:, 0]
    test = torch.arange(600) >= 200
    ratio = float(found[test & (bits[:, 0] > 0)].mean() - found[test & (bits[:, 0] == 0)].mean())
    assert ratio == pytest.approx(2 * math.log(9), rel=0.25)
    assert float(found[:200].std()) < 1e-12, "training nodes have no bit"
    assert float(found[:200].mean()) == pytest.approx(float(found[200:].unique().mean()), abs=1e-6), "midway of both"
    home, opinions, bits = informative(0.5)
    assert float(home.with_bits(opinions, bits, None).diff(dim=1)[200:].std()) < 1e-12


@nightly
def test_a_game_over_messages_of_whole_jobs_proves_no_more_than_epsilon() -> None:
    """Parties with messages between them, and flips of their own."""
    rounds, hits = 200, dict[float, int]()
    for record in (1.0, 0.0):
        context, source, found = game_context(2.0, record, predicted=True), fixed_secrets("messages", record), 0

        def one(machine: Machine, context: Context = context, source: SecretSource = source) -> object:
            own = {name: each for name, each in context.data.items() if name == machine.party}
            if machine.party == TWIN:
                return None
            return scored(BitProgram(machine, replace(context, data=own), lambda _: source))[1]

        for _ in range(rounds):
            found += int(run_parties(one, 2)["A"][59, 0])  # type: ignore[index]
        hits[record] = found
    assert 1.0 < epsilon_lower_bound(hits[1.0], hits[0.0], rounds, 1e-5, 0.99) <= 2.0
