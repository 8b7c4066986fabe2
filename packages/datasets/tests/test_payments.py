"""A world of payments: sizes, the shapes of patterns, who sees what, and that an account alone tells little."""

from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from veilgraph_datasets.laundering import crossing_share, draw_patterns, lookalike_transfers
from veilgraph_datasets.settings import LARGEST_PATTERN, PATTERN_KINDS, PaymentsSettings
from veilgraph_datasets.transfers import LAWFUL, SECONDS_A_DAY, Communities, draw_customers
from veilgraph_datasets.world import BANK_COLUMNS, UNKNOWN

import veilgraph as vg
from packages.datasets.tests.payments import SHAPES, SMALL, check_money, pairs_of, small_world
from research.payments import NEEDS_GRAPH, WHO, findings, with_neighbours
from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.dataset import load_at_home, load_parties, load_parts
from veilgraph.graph.settings import DataSettings, PartitionSettings
from veilgraph.protocol.job_file import parse_job


@given_settings(max_examples=20)
@given(
    customers=st.integers(400, 900),
    banks=st.integers(2, 7),
    laundering=st.sampled_from([0.17, 0.2]),
    overlap=st.sampled_from([0.2, 0.5, 1.0]),
    kinds=st.lists(st.sampled_from(PATTERN_KINDS), min_size=1, max_size=6, unique=True),
    fee=st.sampled_from([0.0, 0.02, 0.2]),
    days=st.sampled_from([14, 90]),
    lookalikes=st.integers(0, 3),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_pattern_has_its_shape_and_crosses_banks(
    customers, banks, laundering, overlap, kinds, fee, days, lookalikes, seed
):
    world = small_world(
        seed,
        customers=customers,
        banks=banks,
        laundering=laundering,
        overlap=overlap,
        patterns=tuple(kinds),
        fee=fee,
        days=days,
        lookalikes=lookalikes,
    )
    transfers, people = world.transfers, world.customers
    assert len(transfers) == 6_000
    assert (np.diff(transfers.time) >= 0).all()
    assert 0 <= transfers.time[0] <= transfers.time[-1] < days * SECONDS_A_DAY
    assert (transfers.payer != transfers.payee).all()
    for ends, at in ((transfers.payer, transfers.payer_bank), (transfers.payee, transfers.payee_bank)):
        assert ((at >= 0) & ((people.first[ends] == at) | (people.second[ends] == at))).all(), "no such account"
    assert len(people) == customers
    assert (people.second != UNKNOWN).sum() == round(overlap * customers)
    assert (people.first != people.second).all()
    members = Counter(world.pattern[world.launders].tolist())
    assert laundering * customers - LARGEST_PATTERN < world.launders.sum() <= round(laundering * customers)
    counts = Counter(world.kind_of(number) for number in range(len(world.kind)))
    assert set(counts) == set(kinds)
    assert max(counts.values()) - min(counts.values()) <= 1
    for number in range(len(world.kind)):
        own = transfers.take(transfers.pattern == number)
        assert SHAPES[world.kind_of(number)](pairs_of(own)), world.kind_of(number)
        check_money(own, fee, world.kind_of(number))
        ends = np.concatenate([own.payer, own.payee])
        assert (world.pattern[ends] == number).all()
        assert len(np.unique(ends)) == members[number]
        assert (own.payer_bank != own.payee_bank).mean() >= crossing_share(banks) - 1e-9
        assert not any(own.seen_by(bank).all() for bank in range(banks))


def test_the_seed_fixes_the_world_and_the_facts_do_not_change_it():
    one, again, clearer, other = small_world(1), small_world(1), small_world(1, signal=3.0), small_world(2)
    for each in fields(one.transfers):
        values = getattr(one.transfers, each.name)
        assert np.array_equal(values, getattr(again.transfers, each.name))
        assert np.array_equal(values, getattr(clearer.transfers, each.name))
        assert not np.array_equal(values, getattr(other.transfers, each.name))
    for name in ("A", "shop", "telecom"):
        assert np.array_equal(one.view(name).features(), again.view(name).features())
        assert np.array_equal(one.view(name).ends, again.view(name).ends)
        assert not np.array_equal(one.view(name).features(), clearer.view(name).features())
    assert np.array_equal(one.split, again.split)


def test_lookalikes_pay_and_are_paid_what_members_are():
    settings = PaymentsSettings(**SMALL)
    one, two, three = np.random.default_rng(5).spawn(3)
    customers = draw_customers(settings, one)
    patterns = draw_patterns(settings, customers, two)
    copies = lookalike_transfers(patterns, customers, 2, settings.days, three)
    original = patterns.transfers
    members = set(patterns.member.tolist())
    assert len(copies) == 4
    for pays, copy in zip((True, False) * 2, copies, strict=True):
        mine, slots = (copy.payer, original.payer) if pays else (copy.payee, original.payee)
        assert members.isdisjoint(mine.tolist())
        assert len(set(zip(mine.tolist(), slots.tolist(), strict=True))) == len(set(slots.tolist())), "one for each"
        assert np.array_equal(copy.amount, original.amount)
        assert np.array_equal(
            copy.payee_bank if pays else copy.payer_bank, (original.payee_bank if pays else original.payer_bank)
        )
        for ends, at in ((copy.payer, copy.payer_bank), (copy.payee, copy.payee_bank)):
            assert ((customers.first[ends] == at) | (customers.second[ends] == at)).all()
        shift = copy.time - original.time
        assert all(len(set(shift[original.pattern == each].tolist())) == 1 for each in np.unique(original.pattern))
        assert (copy.pattern == LAWFUL).all()
    assert np.array_equal(copies[0].time, copies[1].time), "what comes in and what goes out are as far apart"


# Views


def test_a_bank_sees_its_own_transfers_and_nothing_of_others_customers():
    world = small_world(3)
    for place, name in enumerate(world.banks):
        seen = world.view(name)
        mine = [
            row
            for row, banks in enumerate(zip(world.transfers.payer_bank, world.transfers.payee_bank, strict=True))
            if place in banks
        ]
        pairs = {tuple(sorted(pair)) for pair in pairs_of(world.transfers.take(np.array(mine)))}
        assert set(map(tuple, seen.ends.T.tolist())) == pairs
        assert seen.ends.shape[1] == len(pairs)
        own = world.customers.of_bank(place)
        known = set(np.flatnonzero(own).tolist()) | {customer for pair in pairs for customer in pair}
        assert seen.nodes.tolist() == sorted(known)
        for values in seen.columns.values():
            assert np.array_equal(np.isnan(values), ~own[seen.nodes])
        told = world.customers.first[seen.nodes] == place
        labels, splits = np.asarray(seen.labels), np.asarray(seen.splits)
        assert np.array_equal(labels != UNKNOWN, told)
        assert np.array_equal(labels[told] == 1, world.launders[seen.nodes[told]])
        assert np.array_equal(splits != UNKNOWN, told)
        assert set(splits[told].tolist()) == {0, 1, 2}


def test_a_banks_columns_are_of_its_own_accounts():
    world, bank = small_world(4), 1
    transfers, seen = world.transfers, world.view("B")
    euros = transfers.euros()
    for place in np.flatnonzero(~np.isnan(seen.columns["age"]))[:40]:
        customer = seen.nodes[place]
        came = (transfers.payee == customer) & (transfers.payee_bank == bank)
        went = (transfers.payer == customer) & (transfers.payer_bank == bank)
        count = came.sum() + went.sum()
        abroad = (transfers.payer_bank != transfers.payee_bank)[came | went].sum()
        wanted = {
            "log_received": np.log2(1 + came.sum()),
            "log_sent": np.log2(1 + went.sum()),
            "log_euros_in": np.log10(1 + euros[came].sum()),
            "log_euros_out": np.log10(1 + euros[went].sum()),
            "passed_on": min(euros[came].sum(), euros[went].sum()) / max(euros[came].sum(), euros[went].sum(), 1e-9),
            "other_banks": abroad / max(count, 1),
        }
        assert {name: seen.columns[name][place] for name in wanted} == pytest.approx(wanted, abs=1e-5)
    together = world.together()
    assert tuple(together.columns) == tuple(seen.columns) == BANK_COLUMNS
    sent = np.bincount(transfers.payer, minlength=600)
    assert np.allclose(together.columns["log_sent"], np.log2(1 + sent))


def test_the_shop_and_the_telecom_see_pairs_of_their_own_customers():
    world = small_world(5, reach=0.7)
    shop, telecom = world.view("shop"), world.view("telecom")
    paying = set(map(tuple, world.together().ends.T.tolist()))
    for seen in (shop, telecom):
        assert seen.labels is None
        assert np.isin(seen.ends, seen.nodes).all()
        assert 0.6 < len(seen.nodes) / 600 < 0.8
        inside = sum(one in seen.nodes and other in seen.nodes for one, other in paying)
        found = len(paying & set(map(tuple, seen.ends.T.tolist())))
        assert 0.2 < found / inside < 0.4
    assert not np.array_equal(shop.nodes, telecom.nodes)


# An honest signal


def auc(train: np.ndarray, test: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The better of two models on test rows."""
    models = (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
        HistGradientBoostingClassifier(max_iter=30),
    )
    scores = [model.fit(x[train], y[train]).predict_proba(x[test])[:, 1] for model in models]
    return max(float(roc_auc_score(y[test], each)) for each in scores)


@nightly
def test_an_account_alone_tells_less_than_the_pooled_neighbourhood():
    world = small_world(1, customers=12_000, transfers=100_000, laundering=0.05, overlap=0.2, lookalikes=5)
    own, graph, pooled = (findings(world)[who] for who in WHO)
    assert pooled.auc > 0.83
    assert own.auc < pooled.auc - 0.06
    assert graph.auc < pooled.auc - 0.03
    together = world.together()
    x, y, train, test = together.features(), world.launders, world.split == 0, world.split == 2
    assert max(abs(roc_auc_score(y, column) - 0.5) for column in x.T) < 0.22, "no column alone"
    boosted = auc(train, test, x, y)
    assert boosted < auc(train, test, with_neighbours(together), y) - 0.05, "nor all of them"
    who = np.column_stack([np.arange(len(y)), x[:, :3], world.customers.second != UNKNOWN])
    assert auc(train, test, who, y) < 0.6, "who one is tells nothing"


@pytest.mark.parametrize("signal", [0.0, 0.5, 1.0, 2.0])
def test_facts_lean_as_far_as_the_signal_says(signal):
    world = small_world(3, customers=30_000, transfers=120_000, laundering=0.2, lookalikes=0, signal=signal)
    scores = sum(norm.ppf(np.clip(values, 1e-6, 1 - 1e-6)) for values in list(world.bank_facts.values()))
    assert roc_auc_score(world.launders, scores) == pytest.approx(norm.cdf(signal / 2**0.5), abs=0.015)


def test_columns_of_members_who_are_no_mules_look_like_anybodys():
    world = small_world(3, customers=30_000, transfers=120_000, laundering=0.2, lookalikes=0, signal=2.0, mules=0.3)
    scores = sum(norm.ppf(np.clip(values, 1e-6, 1 - 1e-6)) for values in world.shop_facts.values() if values.max() <= 1)
    lawful = ~world.launders
    assert world.mule.sum() == pytest.approx(0.3 * world.launders.sum(), rel=0.05)
    assert not (world.mule & lawful).any()
    for leans, wanted in ((world.mule, norm.cdf(2**0.5)), (world.launders & ~world.mule, 0.5)):
        judged = lawful | leans
        assert roc_auc_score(leans[judged], scores[judged]) == pytest.approx(wanted, abs=0.015)
    assert small_world(3).mule.tolist() == small_world(3).launders.tolist()


@pytest.mark.parametrize("customers", [600, 615])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_dealings_stay_in_a_community_as_often_as_its_share_says(customers, share):
    order = np.random.default_rng(0).permutation(customers).astype(np.int32)
    number = np.empty(customers, np.int64)
    number[order] = np.minimum(np.arange(customers) // 30, 19)
    one = np.repeat(np.arange(customers), 40)
    nobody = np.full(len(one), UNKNOWN)
    found = Communities(order, share).divert(one, nobody, np.random.default_rng(1))
    stays = found != UNKNOWN
    assert stays.mean() == pytest.approx(share, abs=0.02)
    assert (number[found[stays]] == number[one[stays]]).all()
    assert (found != one).all()
    assert share < 1 or set(found) == set(range(customers)), "nobody is left out"


def test_launderers_deal_with_launderers_and_everybody_with_as_many_as_before():
    sizes = {"customers": 6_000, "transfers": 60_000, "laundering": 0.05, "lookalikes": 5}
    alike, apart = (small_world(6, **sizes, communities=share) for share in (0.0, 0.9))
    for name in ("shop", "telecom"):
        shares, most = [], []
        for world in (alike, apart):
            launders, ends = world.launders, world.view(name).ends
            shares.append(launders[ends].all(axis=0).sum() / launders[ends].any(axis=0).sum())
            most.append(np.quantile(np.bincount(ends.ravel(), minlength=len(launders)), [0.5, 0.9, 0.99]))
        assert shares[0] < 0.15
        assert shares[1] > 0.4
        assert most[0] == pytest.approx(most[1], rel=0.25)
    paid = []
    for world in (alike, apart):
        lawful = world.transfers.take(world.transfers.pattern == LAWFUL)
        inside = world.launders[lawful.payer] & world.launders[lawful.payee]
        paid.append(inside.sum() / world.launders[lawful.payer].sum())
    assert paid[0] < 0.1
    assert paid[1] > paid[0] + 0.05
    degrees = [np.bincount(each.together().ends.ravel()) for each in (alike, apart)]
    assert degrees[0].mean() == pytest.approx(degrees[1].mean(), rel=0.05)
    assert degrees[0].max() == pytest.approx(degrees[1].max(), rel=0.05)


@nightly
def test_a_world_of_communities_needs_its_graph():
    world = small_world(1, customers=12_000, transfers=100_000, laundering=0.05, lookalikes=5, **NEEDS_GRAPH)
    own, _, pooled = (findings(world)[who] for who in WHO)
    assert own.auc < 0.75
    assert pooled.auc > own.auc + 0.12


def test_day_hour_cents_and_currency_of_a_transfer_tell_nothing():
    world = small_world(4, customers=4_000, transfers=60_000, laundering=0.1, overlap=0.2, lookalikes=5)
    transfers = world.transfers
    unlawful = transfers.pattern != LAWFUL
    midnight = transfers.time % SECONDS_A_DAY
    for values in (transfers.time, midnight, transfers.amount % 100, transfers.currency):
        assert abs(roc_auc_score(unlawful, values) - 0.5) < 0.06


# Data set and settings


def test_banks_are_the_holders_of_a_horizontal_job():
    settings = DataSettings(dataset="payments", payments=PaymentsSettings(**SMALL), holders=3)
    world = small_world(7)
    for part, name in zip(load_parts(settings, 7), world.banks, strict=True):
        seen = world.view(name)
        assert part.ids.tolist() == seen.nodes.tolist()
        assert np.array_equal(part.graph.features.numpy(), seen.features())
        assert part.graph.num_edges == 2 * seen.ends.shape[1]
        assert np.array_equal(np.asarray(part.graph.train_mask), seen.splits == 0)
    shares = settings.model_copy(update={"split": (0.2, 0.2, 0.6)})
    masks = [np.asarray(part.graph.train_mask).sum() for part in load_parts(shares, 7)]
    assert int(sum(masks)) == pytest.approx(120, abs=4)


def test_banks_have_graphs_of_their_own_without_a_node_in_common():
    partition = PartitionSettings(by="nodes")
    settings = DataSettings(dataset="payments", payments=PaymentsSettings(**SMALL), holders=3, partition=partition)
    world = small_world(7)
    for place, part in enumerate(load_parts(settings, 7)):
        own = np.flatnonzero(world.customers.first == place)
        assert part.ids.tolist() == own.tolist()
        ends = world.view(world.banks[place]).ends
        assert part.graph.num_edges == 2 * np.isin(ends, own).all(axis=0).sum() > 0
        assert np.array_equal(np.asarray(part.graph.labels) == 1, world.launders[own])


def test_a_split_is_of_every_bank_s_own_customers_where_accounts_stay_home():
    settings = DataSettings(dataset="payments", payments=PaymentsSettings(**SMALL), holders=3, split=(0.2, 0.3, 0.5))
    graphs = [graph for graph, _ in load_at_home(settings, 7)]
    shares = [
        sum(int(getattr(graph, mask).sum()) for graph in graphs) for mask in ("train_mask", "val_mask", "test_mask")
    ]
    assert np.allclose(np.array(shares) / sum(shares), (0.2, 0.3, 0.5), atol=0.01)


def test_a_bank_a_shop_and_a_telecom_are_the_holders_of_a_vertical_one():
    settings = DataSettings(dataset="payments", payments=PaymentsSettings(**SMALL), holders=3, label_holder="B")
    world = small_world(8)
    people = world.customers
    common = np.flatnonzero((people.first == 0) & people.at_shop & people.at_telecom)
    graphs = load_parties(settings, 8)
    for graph, name in zip(graphs, ("A", "shop", "telecom"), strict=True):
        seen = world.view(name)
        assert graph.num_nodes == len(common)
        assert np.array_equal(graph.features.numpy(), seen.features()[np.searchsorted(seen.nodes, common)])
        assert graph.num_edges == 2 * np.isin(seen.ends, common).all(axis=0).sum()
        assert (graph.labels is None) == (graph.party != "B")
    assert np.array_equal(np.asarray(graphs[1].labels) == 1, world.launders[common])
    assert len(load_parties(settings.model_copy(update={"holders": 2}), 8)) == 2


@pytest.mark.parametrize(
    ("data", "loading", "problem"),
    [
        ({"holders": 4}, load_parties, {"key": "data.holders", "value": 4}),
        ({"holders": 2}, load_parts, {"key": "data.holders", "value": 2}),
        ({"holders": 3, "partition": {"overlap": 0.2}}, load_parts, {"key": "data.partition"}),
        ({"holders": 2, "edge_proportions": [1, 1]}, load_parties, {"key": "data.dataset"}),
    ],
)
def test_what_it_cannot_be_divided_into(data, loading, problem):
    with refused(DataError, **problem):
        loading(DataSettings(dataset="payments", payments=PaymentsSettings(**SMALL), **data), 0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"customers": 100}, {"key": "payments.customers", "value": 100}),
        ({"banks": 1}, {"key": "payments.banks", "value": 1}),
        ({"banks": 20}, {"key": "banks"}),
        ({"laundering": 0.05}, {"key": "laundering"}),
        ({"overlap": 0.1}, {"key": "overlap"}),
        ({"transfers": 1_000}, {"key": "transfers"}),
        ({"patterns": ["cycle", "cycle"]}, {"key": "payments.patterns"}),
        ({"patterns": ["star"]}, {"key": "payments.patterns.0", "value": "star"}),
        ({"mules": 1.1}, {"key": "payments.mules", "value": 1.1}),
        ({"communities": -0.1}, {"key": "payments.communities", "value": -0.1}),
        ({"signal": float("nan")}, {"key": "payments.signal"}),
        ({"size": 3}, {"key": "payments.size", "value": 3}),
    ],
)
def test_what_is_refused(changes, problem):
    with refused(
        ConfigError, **{**problem, "key": f"data.{problem['key']}" if "." in problem["key"] else problem["key"]}
    ):
        parse_job({"data": {"dataset": "payments", "payments": SMALL | changes}})


def test_from_python():
    world = vg.datasets.payments(seed=7, **SMALL)
    assert np.array_equal(world.transfers.amount, small_world(7).transfers.amount)
    bank = world.view("A").data()
    whole = vg.datasets.load("payments", payments=SMALL, seed=7)
    assert torch.equal(whole.x, world.together().data().x)
    assert bank.x.shape == (len(bank.n_id), len(BANK_COLUMNS))
    with refused(ConfigError, key="customers", value=3):
        vg.datasets.payments(customers=3)
    with refused(ConfigError, key="name", value="D"):
        world.view("D")
