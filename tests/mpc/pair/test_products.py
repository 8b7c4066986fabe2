"""Shares of products against numpy's products modulo 2^64, and messages as counted beforehand."""

import time
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch

pytest.importorskip("numba", reason="the kernels are compiled by numba: veilgraph[nobody]")

from tests.mpc.pair.parties import both
from veilgraph.core.errors import RangeOverflow
from veilgraph.core.randomness import Keystream
from veilgraph.core.secrets import system_secrets
from veilgraph.link.view import RecordedLink
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc.pair import blocks, products
from veilgraph.mpc.pair.lattice import Keys, Responder, key_messages
from veilgraph.mpc.pair.products import hop, hop_messages, matmul, matmul_messages, plan_hop, plan_matmul

LEAST = -(2**63)


def draw(*shape, bits=64, seed=0):
    rng = np.random.default_rng(seed)
    least, most = (LEAST, 2**63) if bits == 64 else (1 - 2**bits, 2**bits)
    return torch.from_numpy(rng.integers(least, most, shape, dtype=np.int64))


class Counted:
    """Both parties' messages, in order: bytes of data by name of the sender."""

    def __init__(self):
        self.sent, self.texts = [], []

    def wrap(self, link):
        return RecordedLink(link, keep=self.keep) if link.party == "A" else link

    def keep(self, message):
        size = message.tensor.numel() * message.tensor.element_size()
        self.sent.append((size, 0) if message.sender == "A" else (0, size))
        self.texts.append(message.tensor)


def with_keys(product, peer, secrets=system_secrets, **arguments):
    """A product by keys of its own."""
    return product(Keys(peer, secrets), **arguments)


def told(plan, messages):
    """The messages of a product, before them the key of who sends first."""
    pairs = [(size, 0) for size in key_messages(plan.scheme)]
    return [pair if messages[0][0] else pair[::-1] for pair in pairs] + messages


def multiply(left, right, bits, counted=None):
    """Shares of left @ right; A has the left matrix."""
    sizes = (*left.shape, right.shape[1])
    return both(
        lambda peer: matmul(Keys(peer, system_secrets), left, None, sizes, bits),
        lambda peer: matmul(Keys(peer, system_secrets), None, right, sizes, bits),
        counted.wrap if counted else lambda link: link,
    )


def spread(graph, mask, ring, counted=None):
    """Shares of graph @ mask; A has the graph."""
    sizes = (*graph.shape, mask.shape[1])
    return both(
        lambda peer: hop(Keys(peer, system_secrets), graph, None, sizes, ring),
        lambda peer: hop(Keys(peer, system_secrets), None, mask, sizes, ring),
        counted.wrap if counted else lambda link: link,
    )


def test_shares_of_products_are_uniform_whatever_the_inputs():
    sizes = 64, 32, 64
    for left, right in ((torch.zeros(64, 32), torch.zeros(32, 64)), (torch.full((64, 32), -1), torch.ones(32, 64))):

        def share(peer, own, other):
            return matmul(Keys(peer, system_secrets), own, other, sizes)

        first, second = left.to(torch.int64), right.to(torch.int64)
        shares = both(partial(share, own=first, other=None), partial(share, own=None, other=second))
        for found in shares:
            octets = found.contiguous().view(torch.uint8).reshape(-1, 8)
            for place in range(8):
                counts = torch.bincount(octets[:, place].to(torch.int64), minlength=256)
                assert abs(float(((counts - 16.0) ** 2 / 16).sum()) - 255) < 6 * (2 * 255) ** 0.5


def test_the_parts_agree_on_what_is_encrypted():
    # both ways of the choice, and blocks that are not square, are among the cases below
    assert not plan_matmul((140, 1434, 32), 64)[0]
    assert plan_matmul((140, 2708, 716), 17)[0]


SHAPES = [(1, 1, 1), (7, 9, 5), (1, 8193, 1), (2, 300, 70), (70, 300, 2), (65, 1, 130), (3, 8191, 2), (40, 200, 30)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [64, 17, 1])
def test_matrix_products(shape, bits):
    n, k, m = shape
    left, right = draw(n, k, seed=1), draw(k, m, bits=bits, seed=2)
    counted = Counted()
    one, other = multiply(left, right, bits, counted)
    assert torch.equal(one + other, left @ right)
    assert one.shape == (n, m)
    assert one.dtype == torch.int64
    assert counted.sent == told(plan_matmul(shape, bits)[1], matmul_messages(shape, bits))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("sizes", [(40, 300, 7), (7, 300, 40)])
def test_who_multiplies_can_be_said(side, sizes):
    left, right, counted = draw(*sizes[:2], seed=1), draw(*sizes[1:], seed=2), Counted()
    one, other = both(
        lambda peer: matmul(Keys(peer, system_secrets), left, None, sizes, multiplies=side),
        lambda peer: matmul(Keys(peer, system_secrets), None, right, sizes, multiplies=side),
        counted.wrap,
    )
    assert torch.equal(one + other, left @ right)
    assert (counted.sent[0][0] == 0) == (side == "left")  # who has the left matrix does not begin
    assert counted.sent[2:] == matmul_messages(sizes, 64, side)


def test_transposed_and_cut_matrices_are_multiplied():
    left, right = draw(300, 20, seed=1).T[::3], draw(9, 600, seed=2).T[::2]
    assert not left.is_contiguous()
    assert not right.is_contiguous()
    one, other = multiply(left, right, 64)
    assert torch.equal(one + other, left @ right)
    graph, mask = graph_of(40, 30, 90).T, draw(50, 40, seed=3).T[:, ::2]
    one, other = spread(graph, mask, 64)
    assert torch.equal(one + other, torch.from_numpy(graph @ mask.numpy()))


EXTREMES = [(LEAST, LEAST, 64), (2**63 - 1, LEAST, 64), (-1, -1, 64), (0, 5, 64)]
EXTREMES += [(LEAST, 2**17 - 1, 17), (LEAST, 1 - 2**17, 17), (-1, 1, 1)]


@pytest.mark.parametrize(("left", "right", "bits"), EXTREMES)
@pytest.mark.parametrize("shape", [(3, 500, 2), (2, 500, 40), (40, 500, 2)])
def test_matrix_products_of_the_largest_numbers(left, right, bits, shape):
    n, k, m = shape
    one, other = multiply(torch.full((n, k), left), torch.full((k, m), right), bits)
    assert torch.equal(one + other, torch.full((n, k), left) @ torch.full((k, m), right))


@pytest.mark.parametrize("density", [0, 0.01, 1])
def test_sparse_and_dense_matrices_are_multiplied_alike_and_send_as_much(density, monkeypatch):
    sizes, bits = (6, 500, 60), 17
    left, right = draw(6, 500), draw(500, 60, bits=bits)
    right[torch.rand(500, 60, generator=torch.Generator().manual_seed(0)) >= density] = 0
    for forced in (True, False):
        monkeypatch.setattr(blocks.Plan, "is_sparse", lambda plan, entries, forced=forced: plan.shifts or forced)
        counted = Counted()
        one, other = multiply(left, right, bits, counted)
        assert torch.equal(one + other, left @ right)
        assert counted.sent == told(plan_matmul(sizes, bits)[1], matmul_messages(sizes, bits))


def test_the_way_to_multiply_depends_on_the_entries():
    plan = plan_matmul((140, 2708, 716), 17)[1]
    assert plan.is_sparse(25_000)
    assert not plan.is_sparse(2708 * 716)


def refused(part):
    """What A's part gives; B waits for a message that does not come."""
    return both(part, lambda peer: peer.hear((1,), torch.int64))


def test_matrices_that_do_not_fit_are_refused():
    left, right = torch.ones(2, 3, dtype=torch.int64), torch.ones(3, 2, dtype=torch.int64)
    for one, other in ((None, None), (left, right), (right, None), (None, left)):
        with pytest.raises(ValueError, match=r"gives one of|`sizes` says"):
            refused(partial(with_keys, matmul, left=one, right=other, sizes=(2, 3, 2), bits=64))
    with pytest.raises(ValueError, match="at least one"):
        refused(partial(with_keys, matmul, left=left[:0], right=None, sizes=(0, 3, 2), bits=64))
    for value in (2**17, -(2**17), LEAST):
        right[1, 1] = value
        with pytest.raises(RangeOverflow, match=r"not below 2\^17"):
            refused(partial(with_keys, matmul, left=None, right=right, sizes=(2, 3, 2), bits=17))
    graph, mask = sp.csr_matrix((4, 3), dtype=np.int64), torch.ones(3, 2, dtype=torch.int32)
    wrong = [(None, None), (graph, mask), (graph.T, None), (None, mask.T), (graph.astype(float), None)]
    for one, other in [*wrong, (None, mask.to(torch.int64))]:
        with pytest.raises(ValueError, match=r"gives one of|`sizes` says|integers|takes torch.int32"):
            refused(partial(with_keys, hop, adjacency=one, mask=other, sizes=(4, 3, 2), ring=32))


def graph_of(n, k, entries, seed=0, weight=3):
    rng = np.random.default_rng(seed)
    places = rng.integers(0, n, entries), rng.integers(0, k, entries)
    return sp.coo_matrix((rng.integers(-weight, weight + 1, entries), places), shape=(n, k)).tocsr()


HOPS = [(1, 1, 1, 1), (20, 20, 3, 60), (50, 30, 140, 200), (30, 50, 5, 100), (300, 280, 16, 900), (9, 9, 4097, 30)]
HOPS += [(40, 40, 4096, 0), (12, 700, 1, 500), (130, 120, 2100, 400), (9, 9, 8300, 30)]


@pytest.mark.parametrize("case", HOPS)
@pytest.mark.parametrize("ring", [32, 64])
def test_hops(case, ring):
    n, k, m, entries = case
    graph, mask = graph_of(n, k, entries), draw(k, m).to(torch.int32 if ring == 32 else torch.int64)
    counted = Counted()
    one, other = spread(graph, mask, ring, counted)
    want = torch.from_numpy(graph @ mask.numpy().astype(np.int64)).to(mask.dtype)
    assert one.dtype == mask.dtype
    assert torch.equal(one + other, want)
    assert counted.sent == told(plan_hop((n, k, m), ring), hop_messages((n, k, m), ring))


def test_plans_of_hops_differ_in_kind():
    plans = [plan_hop(case[:3], 32) for case in HOPS]
    assert {plan.kept < plan.scheme.degree for plan in plans} == {True, False}
    assert {plan.grid[0] > 1 for plan in plans} == {True, False}
    assert {plan.block[1] > 1 and plan.block[2] > 1 and plan.grid[1] > 1 for plan in plans} == {True, False}


@pytest.mark.parametrize("ring", [32, 64])
@pytest.mark.parametrize("value", [-1, 0, "least", "most"])
def test_hops_of_the_heaviest_rows_and_the_largest_masks(ring, value):
    graph = np.zeros((6, 5), np.int64)
    graph[0] = [2**16, 0, 0, 0, 0]
    graph[1] = [0, -(2**16), 0, 0, 0]
    graph[2] = [2**14, -(2**14), 2**14, 2**14 - 1, 1]
    limits = torch.iinfo(torch.int32 if ring == 32 else torch.int64)
    number = {"least": limits.min, "most": limits.max}.get(value, value)
    mask = torch.full((5, 3), number, dtype=torch.int32 if ring == 32 else torch.int64)
    one, other = spread(sp.csr_matrix(graph), mask, ring)
    want = torch.from_numpy(graph @ mask.numpy().astype(np.int64)).to(mask.dtype)
    assert torch.equal(one + other, want)
    for heavier in (2, 2**63 - 1):  # 2^16 + 1 in all, and sums that wrap around in 64 bits
        graph[2, 4] = heavier
        with pytest.raises(RangeOverflow, match="row of `adjacency` sums up to"):
            spread(sp.csr_matrix(graph), mask, ring)


def test_what_a_hop_sends_does_not_depend_on_the_edges():
    sizes, mask = (30, 30, 5), draw(30, 5)
    found = []
    for entries in (0, 1, 500):
        counted = Counted()
        spread(graph_of(30, 30, entries), mask, 64, counted)
        found.append(counted.sent)
    assert found[0] == found[1] == found[2] == told(plan_hop(sizes, 64), hop_messages(sizes, 64))


def test_masks_side_by_side_cost_less():
    alone, together = (sum(map(sum, hop_messages((2708, 2708, 140 * count), 32))) for count in (1, 16))
    assert together < 16 * alone / 3


def uniform(values):
    """Chi-square of the bytes of numbers: within six deviations of what uniform ones have."""
    octets = values.contiguous().view(torch.uint8).reshape(-1, values.element_size())
    for place in range(values.element_size()):
        counts = torch.bincount(octets[:, place].to(torch.int64), minlength=256)
        expected = octets.shape[0] / 256
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        if abs(chi_square - 255) > 6 * (2 * 255) ** 0.5:
            return False
    return True


def test_shares_are_uniform_whatever_the_inputs():
    assert not uniform(torch.arange(5120))
    zeros = torch.zeros(70, 90, dtype=torch.int64)
    mask = torch.zeros(90, 60, dtype=torch.int32)
    results = [
        multiply(zeros, torch.zeros(90, 60, dtype=torch.int64), 64),
        multiply(zeros, torch.ones(90, 60, dtype=torch.int64), 17),
        spread(sp.csr_matrix((90, 90), dtype=np.int64), mask, 32),
    ]
    for one, other in results:
        assert not (one + other).any()
        assert uniform(one)
        assert uniform(other)


def test_nothing_repeats_when_the_same_is_computed_again():
    left, right = draw(3, 50), draw(50, 4)
    first, second = Counted(), Counted()
    shares = [multiply(left, right, 64, counted)[0] for counted in (first, second)]
    assert (shares[0] != shares[1]).all()
    for one, other in zip(first.texts, second.texts, strict=True):
        assert (one != other).float().mean() > 0.9


def test_all_randomness_is_of_the_source():
    class Secrets:
        def __init__(self, seed):
            self.stream = Keystream(bytes([seed]) * 32, "tests")

        def __call__(self, length):
            return bytes(self.stream.take(length).numpy())

    left, right, counts, shares = draw(3, 50), draw(50, 4), [], []
    for encrypting, answering in ((1, 2), (1, 2), (3, 2), (1, 3)):
        counts.append(Counted())
        secrets = (Secrets(encrypting), Secrets(answering))[:: 1 if plan_matmul((3, 50, 4), 64)[0] else -1]
        pair = both(
            partial(with_keys, matmul, secrets=secrets[0], left=left, right=None, sizes=(3, 50, 4), bits=64),
            partial(with_keys, matmul, secrets=secrets[1], left=None, right=right, sizes=(3, 50, 4), bits=64),
            counts[-1].wrap,
        )
        shares.append(pair[1] if plan_matmul((3, 50, 4), 64)[0] else pair[0])
    assert all(torch.equal(one, other) for one, other in zip(counts[0].texts, counts[1].texts, strict=True))
    assert torch.equal(shares[0], shares[2])  # the answering party's share is of its own randomness alone
    assert (shares[0] != shares[3]).all()


def test_costs_are_known_before():
    assert products.plan_matmul((2708, 1433, 64), 17)[1].cost() < 20
    assert sum(map(sum, hop_messages((2708, 2708, 140), 32))) < 60e6


class Clocked(Wrapper):
    """A link that notes the processor time of its party's thread when each message goes out."""

    def __init__(self, link):
        super().__init__(link)
        self.times = []

    def send(self, to, tag, tensor):
        self.times.append(time.thread_time())
        super().send(to, tag, tensor)


@pytest.mark.parametrize("product", ["hop", "matmul"])
def test_a_sparse_matrix_has_its_answers_sent_together_so_that_no_time_shows_whose_entries_they_are(product):
    """One by one, the time between two answers would show how many edges a few nodes have."""
    nodes, columns = 600, 40
    clocks: dict[str, Clocked] = {}
    matrix = torch.zeros(nodes, nodes, dtype=torch.int64)
    matrix[300:340, ::20] = 1
    mask, sizes = draw(nodes, columns, seed=1), (nodes, nodes, columns)
    multiplied = partial(hop, ring=64) if product == "hop" else matmul
    own = sp.csr_array(matrix.numpy()) if product == "hop" else matrix

    def answers(peer):
        began = time.thread_time()
        share = multiplied(Keys(peer, system_secrets), own, None, sizes)
        return share, time.thread_time() - began

    (first, seconds), (second, _) = both(
        answers,
        lambda peer: (multiplied(Keys(peer, system_secrets), None, mask, sizes), 0.0),
        lambda link: clocks.setdefault(link.party, Clocked(link)),
    )
    assert torch.equal(first + second, matrix @ mask)
    times = clocks["A"].times
    assert len(times) > 8, "A answers, in several messages"
    assert times[-1] - times[0] < 0.1 * seconds


def test_no_more_answers_are_held_than_memory_is_set_aside_for(monkeypatch):
    """Two at a time here: as soon as they are computed they go out."""
    held, most, answer = list[int](), list[int](), Responder.answer

    class Counting(Wrapper):
        def send(self, to, tag, tensor):
            most.append(sum(held))
            held.clear()
            super().send(to, tag, tensor)

    def counted(self, *arguments, **more):
        held.append(1)
        message = answer(self, *arguments, **more)
        monkeypatch.setattr(blocks, "HELD_BYTES", 2 * message.nbytes)
        return message

    monkeypatch.setattr(Responder, "answer", counted)
    graph, mask = sp.eye_array(600, dtype=np.int64).tocsr(), draw(600, 40)
    shares = both(
        lambda peer: hop(Keys(peer, system_secrets), graph, None, (600, 600, 40), 64),
        lambda peer: hop(Keys(peer, system_secrets), None, mask, (600, 600, 40), 64),
        lambda link: Counting(link) if link.party == "A" else link,
    )
    assert torch.equal(shares[0] + shares[1], mask)
    assert max(most) == 2
