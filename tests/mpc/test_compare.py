"""The secure maximum equals its plain twin, and every view in it is noise but for the viewer's result."""

from itertools import product
from math import ceil, log2, prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from veilgraph_testing.twins import plain_max

from tests.errors import refused
from tests.mpc.sessions import agreed_masks, fixed_secrets, simulate
from veilgraph.core.errors import ConfigError, DataError, ProtocolError
from veilgraph.core.randomness import expand
from veilgraph.core.types import SERVER, Kind, Tag
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.mpc import bits, compare
from veilgraph.mpc.bits import from_plane, to_planes, words_for
from veilgraph.mpc.compare import (
    MaxServer,
    SecureMax,
    comparison_levels,
    order_codes,
    packed,
    win_levels,
)
from veilgraph.mpc.mask import PairwiseMasks

INFINITY = float("inf")
NAMES = ["A", "B", "C", "D", "E"]


def maxima(rounds, seed=0):
    """All parties take part in one maximum after the other; ``rounds`` gives each one's values of every holder.

    Returns every party's results and link: a holder's masks, the server's maxima.
    """
    names, dtype = NAMES[: len(rounds[0])], rounds[0][0].dtype
    masks = agreed_masks(names, seed)

    def holder(plain_link):
        link = RecordedLink(plain_link, keep_transcript=True)
        secure = SecureMax(link, names, masks[link.party], dtype)
        at = names.index(link.party)
        return [secure.compete(values[at], n // 2, n % 2) for n, values in enumerate(rounds)], link

    def server(plain_link):
        link = RecordedLink(plain_link, keep_transcript=True)
        side = MaxServer(link, names, fixed_secrets("dealer", seed), dtype)
        side.send_seeds()
        for n, values in enumerate(rounds):
            side.deal(values[0].shape, n // 2, n % 2)
        return [side.receive(values[0].shape, n // 2, n % 2) for n, values in enumerate(rounds)], link

    return simulate({**dict.fromkeys(names, holder), SERVER: server})


def some_values(holders, shape, dtype=torch.float32, seed=0, unknown=0.3):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(holders)]
    for own in values:
        own[torch.rand(shape[0], generator=generator) < unknown] = -INFINITY
    return values


def assert_equals_twin(rounds):
    results = maxima(rounds)
    for n, values in enumerate(rounds):
        maximum, winners = plain_max(values)
        got = results[SERVER][0][n]
        assert got.dtype == maximum.dtype
        assert torch.equal(got, maximum)
        for name, winner in zip(NAMES, winners, strict=False):
            assert torch.equal(results[name][0][n], winner)
    return results


# Results


def edge_values(dtype):
    info = torch.finfo(dtype)
    subnormal = info.tiny * info.eps
    return [
        -INFINITY,
        INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
        1 + info.eps,
        info.max,
        info.min,
        info.tiny,
        subnormal,
        -subnormal,
    ]


@settings(max_examples=15)
@given(
    data=st.data(),
    holders=st.integers(2, 5),
    shape=st.sampled_from([(1, 1), (1, 5), (7, 1), (8, 8), (13, 5), (32, 4), (0, 3)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_maximum_and_the_wins_are_the_twins(data, holders, shape, dtype):
    pool = torch.tensor([*edge_values(dtype), *np.random.default_rng(1).standard_normal(4)], dtype=dtype)
    # Few different values: ties are common, and so are entries that nobody knows.
    start = data.draw(st.integers(0, len(pool) - 3))
    chosen = torch.cat([pool[:1], pool[start:]]) if data.draw(st.booleans()) else pool[start : start + 3]
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    values = [chosen[torch.randint(len(chosen), shape, generator=generator)] for _ in range(holders)]
    assert_equals_twin([values])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_pair_of_edge_values(dtype):
    pairs = list(product(edge_values(dtype), repeat=2))
    assert_equals_twin([[torch.tensor([pair[n] for pair in pairs], dtype=dtype) for n in (0, 1)]])


@pytest.mark.cases(1)
@pytest.mark.parametrize("holders", [2, 4])
def test_the_result_is_the_same_in_blocks_none_of_which_has_anothers_tags(holders, monkeypatch):
    monkeypatch.setattr(compare, "BLOCK_ENTRIES", 64)
    shapes, blocks = [(20, 7), (64, 1), (20, 7), (0, 3), (1, 65)], 3 + 1 + 3 + 1 + 2
    results = assert_equals_twin([some_values(holders, shape, seed=n) for n, shape in enumerate(shapes)])
    view = [m for m in results["B"][1].transcript() if m.receiver == "B"]
    exchanges = len(comparison_levels(NAMES[:holders], torch.float32)) + len(win_levels(NAMES[:holders]))
    for sender, kind, count in (("A", Kind.MASKED_BITS, blocks * exchanges), ("A", Kind.WIN_SHARE, len(shapes))):
        tags = [m.tag for m in view if m.sender == sender and m.tag.kind is kind]
        assert len(tags) == len(set(tags)) == count


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (torch.tensor([1.0, float("nan")]), {"key": "values", "party": "A"}),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), {"key": "values", "party": "A"}),
    ],
)
def test_nan_and_another_dtype_are_refused(values, complaint):
    def holder(link):
        secure = SecureMax(link, ["A", "B"], agreed_masks(["A", "B"])[link.party], torch.float32)
        return secure.compete(values if link.party == "A" else torch.zeros(2), 0, 0)

    def server(link):
        MaxServer(link, ["A", "B"], fixed_secrets(), torch.float32).send_seeds()

    with refused(DataError, **complaint):
        simulate({"A": holder, "B": holder, SERVER: server})


def test_contributions_whose_masks_do_not_cancel_are_refused():
    def holder(link):
        link.send(SERVER, Tag(Kind.MASKED), expand(bytes(32), link.party, (5000,)))

    def server(link):
        return MaxServer(link, ["A", "B"], fixed_secrets(), torch.float32).receive((100, 100), 0, 0)

    with refused(ProtocolError, code="no-maximum", value=0):
        simulate({"A": holder, "B": holder, SERVER: server})


# Bytes and messages


def expected_bytes(holders, shape, dtype):
    """Bytes that a holder and the server send for one maximum, by the closed formula."""
    digits, plane = 4 * dtype.itemsize, 8 * ceil(prod(shape) / 64)
    compares, wins = 1 + int(log2(digits)), ceil(log2(holders))
    to_peer = plane * (6 * digits - 4 + 2 * holders * (holders - 1) + 1) + HEADER_BYTES * (compares + wins + 1)
    holder = (holders - 1) * to_peer + HEADER_BYTES + 8 * ceil(prod(shape) * dtype.itemsize / 8)
    pairs = holders * (holders - 1) // 2
    server = plane * (pairs * (4 * digits - 3) + 2 * pairs) + HEADER_BYTES * ((holders - 1) * compares + wins)
    return holder, server


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("holders", [2, 3, 4, 5])
def test_bytes_and_kinds_are_those_of_the_protocol(holders, dtype):
    shape = (9, 11)
    results = maxima([some_values(holders, shape, dtype)])
    holder_bytes, server_bytes = expected_bytes(holders, shape, dtype)
    for name in NAMES[:holders]:
        entries = results[name][1].traffic()
        assert sum(entry.bytes for entry in entries if entry.direction == "sent") == holder_bytes
        assert {entry.kind for entry in entries if entry.peer == SERVER and entry.direction == "sent"} == {Kind.MASKED}
        assert {(entry.kind, entry.peer == SERVER) for entry in entries if entry.direction == "received"} <= {
            (Kind.MASKED_BITS, False),
            (Kind.WIN_SHARE, False),
            (Kind.SEED, True),
            (Kind.BIT_CORRELATION, True),
        }
    sent = [entry for entry in results[SERVER][1].traffic() if entry.direction == "sent"]
    seeds = sum(entry.bytes for entry in sent if entry.kind is Kind.SEED)
    assert seeds == holders * (HEADER_BYTES + 32)
    assert sum(entry.bytes for entry in sent) - seeds == server_bytes


# Views


def signs(planes):
    """Planes [..., words] → their bits as ±1, one row a plane."""
    octets = np.ascontiguousarray(planes.reshape(-1, planes.shape[-1]).numpy()).view(np.uint8)
    return 1.0 - 2.0 * np.unpackbits(octets, axis=1)


def own_keystream(names, party, seed, words):
    """Every mask that a holder expands from its seed in the maxima of ``view_of``."""
    plan = [*comparison_levels(names, torch.float32), *win_levels(names)]
    for (step, round_), (index, level) in product([(0, 0), (0, 1), (1, 0)], enumerate(plan)):
        for group in level.groups:
            if party in group:
                last = party == group[-1]
                masks = bits.masks_of_level(
                    seed, level, group, words, step, round_ * len(plan) + index, with_share=not last
                )
                yield from (planes for planes in masks if planes is not None)


def worst_deviation(unknown, known):
    """How far rows that should be independent, uniform bits are from that, in standard deviations.

    Takes their balance, their correlation with each other, and that with the rows of ``known``, which may be anything.
    """
    among = unknown @ unknown.T
    np.fill_diagonal(among, 0)
    return max(np.abs(part).max() for part in (unknown.sum(axis=1), among, unknown @ known.T)) / unknown.shape[1] ** 0.5


LIMIT = 6.5
"""Millions of correlations are looked at; the largest of so many is about 5.4."""


def from_outside(message, plan, member, coalition):
    """The parts of a message that a coalition did not know before: nothing that is of its members alone."""
    if message.sender in coalition or message.receiver != member or message.tag.kind is Kind.SEED:
        return
    if message.tag.kind is not Kind.BIT_CORRELATION:
        yield message.tensor
        return
    groups = [group for group in plan[message.tag.round % len(plan)].groups if group[-1] == member]
    for group, correction in zip(groups, message.tensor, strict=True):
        if not set(group) <= set(coalition):
            yield correction


def coalitions_deviation(values, coalition):
    """Of all that a coalition of holders gets from outside it in three maxima of the same values: one step with two
    rounds and another step, as masks may repeat neither by step nor by round."""
    names, words = NAMES[: len(values)], words_for(values[0].numel())
    plan = [*comparison_levels(names, torch.float32), *win_levels(names)]
    results = maxima([values] * 3)
    got, own = {}, [signs(to_planes(order_codes(part).reshape(-1))) for part in values]
    for member in coalition:
        for message in results[member][1].transcript():
            tag = message.tag
            if tag.kind is Kind.SEED:
                own += map(signs, own_keystream(names, member, message.tensor.numpy().tobytes(), words))
            to_all = tag.kind is Kind.MASKED_BITS and len(plan[tag.round % len(plan)].groups[0]) == len(names)
            parts = [signs(part) for part in from_outside(message, plan, member, coalition)]
            if parts:  # a message to all counts once
                got[message.sender, "all" if to_all else member, tag] = np.concatenate(parts)
    return worst_deviation(np.concatenate(list(got.values())), np.concatenate(own))


def view_values(holders):
    return some_values(holders, (32, 32), seed=3)


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("holders", "coalition"), [(2, "A"), (2, "B"), (3, "B"), (3, "AB"), (3, "AC"), (3, "BC"), (4, "BCD")]
)
def test_a_coalitions_view_is_noise(holders, coalition):
    assert coalitions_deviation(view_values(holders), coalition) < LIMIT


def test_the_shares_of_a_win_give_the_win_and_nothing_before_the_last():
    values = view_values(3)
    view = maxima([values])["A"][1].transcript()
    shares = [signs(m.tensor) for m in view if m.tag.kind is Kind.WIN_SHARE and m.receiver == "A"]
    wins = np.where(plain_max(values)[1][0].reshape(1, -1), -1.0, 1.0)
    assert len(shares) == 2
    assert worst_deviation(np.concatenate([*shares, shares[0] * shares[1]]), wins) < LIMIT


def same_for_all(part):
    """Expands as if the purpose had no such part: (step, round, group)."""

    def expand_alike(seed, purpose, shape):
        parts = purpose.split("/")
        return expand(seed, "/".join(parts[:part] + parts[part + 1 :]), shape)

    return expand_alike


@pytest.mark.parametrize(
    ("mutant", "coalition"),
    [
        (lambda seed, purpose, shape: torch.zeros(shape, dtype=torch.int64), "A"),  # no masks at all
        (same_for_all(1), "A"),  # the same in every step
        (same_for_all(2), "A"),  # the same in every exchange
        (same_for_all(3), "AC"),  # the same for every group
    ],
)
def test_missing_or_repeated_masks_would_show_in_the_view(mutant, coalition, monkeypatch):
    # Dealer and holders err alike, so that the results are right.
    monkeypatch.setattr(bits, "expand", mutant)
    assert_equals_twin([view_values(3)])
    assert coalitions_deviation(view_values(3), coalition) > 2 * LIMIT


def test_shares_that_are_not_fresh_would_show_in_the_view(monkeypatch):
    masks = bits.masks_of_level

    def stale(*args, with_share):
        mask, share = masks(*args, with_share=with_share)
        return mask, None if share is None else torch.zeros_like(share)

    monkeypatch.setattr(bits, "masks_of_level", stale)
    assert_equals_twin([view_values(3)])
    assert coalitions_deviation(view_values(3), "C") > 2 * LIMIT


def servers_deviation(values):
    """Of what two of three holders send the server, in three maxima of the same values."""
    results = maxima([values] * 3)
    got = [m for m in results[SERVER][1].transcript() if m.receiver == SERVER]
    assert {message.tag.kind for message in got} == {Kind.MASKED}
    assert len(got) == 3 * 3
    codes = [signs(to_planes(packed(order_codes(part).reshape(-1)))) for part in values]
    for left_out in "ABC":
        rows = [signs(to_planes(message.tensor)) for message in got if message.sender != left_out]
        yield worst_deviation(np.concatenate(rows), np.concatenate(codes))


def test_what_the_server_gets_is_noise_but_for_the_sum():
    assert max(servers_deviation(view_values(3))) < LIMIT


def test_contributions_without_masks_would_show_in_the_servers_view(monkeypatch):
    monkeypatch.setattr(PairwiseMasks, "mask", lambda self, purpose, step, shape: torch.zeros(shape, dtype=torch.int64))
    assert_equals_twin([view_values(3)])
    assert min(servers_deviation(view_values(3))) > 2 * LIMIT


@pytest.mark.parametrize("round_", [-1, compare.ROUNDS])
def test_a_round_whose_tags_could_be_anothers_is_refused(round_):
    server = MaxServer(MemoryHub(["A", "B", SERVER], 1).link(SERVER), ["A", "B"], fixed_secrets(), torch.float32)
    with refused(ConfigError, key="round", value=round_):
        server.deal((1, 1), 0, round_)


@pytest.mark.parametrize(
    ("holders", "dtype"), [(["A"], torch.float32), (["A", "A"], torch.float32), (["A", "B"], torch.float16)]
)
def test_impossible_maxima_are_refused(holders, dtype):
    with refused(ConfigError, key="dtype" if len(set(holders)) == 2 else "holders"):
        MaxServer(MemoryHub([SERVER], 1).link(SERVER), holders, fixed_secrets(), dtype)


@pytest.mark.parametrize("entries", [0, 1, 64, 65, 16_384, 40_000])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_plane_has_one_bit_of_every_entry(entries: int, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    integers = torch.randint(limits.min, limits.max, (entries,), dtype=dtype)
    found = torch.stack([from_plane(plane, entries) for plane in to_planes(integers)])
    assert torch.equal(found, torch.stack([(integers >> place & 1).bool() for place in range(limits.bits)]))
