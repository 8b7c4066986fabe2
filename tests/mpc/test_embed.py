import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests import nightly
from tests.errors import refused as told_refused
from tests.mpc.sessions import embed_session, streams
from veilgraph.core.errors import RangeOverflow
from veilgraph.core.types import SERVER, Kind
from veilgraph.mpc.mask import plain_sum, ring_sum
from veilgraph.mpc.ring import encode, rounded
from veilgraph.paradigms.vertical.network import (
    SUM_BITS,
    Collaborative,
    InitialSettings,
    check_range,
    init_std,
    init_weight,
)
from veilgraph.paradigms.vertical.twin import PlainEmbedding

NAMES = ["A", "B", "C", "D", "E"]
FORMS = ["dense", "binary", "sparse"]
numbers = st.integers(1, 6)


def features_of(form, nodes, columns, generator):
    """Real, 0/1, or sparse CSR features; the ring rounds them."""
    if form == "binary":
        return (torch.rand(nodes, columns, generator=generator) < 0.4).to(torch.float64)
    matrix = torch.randn(nodes, columns, dtype=torch.float64, generator=generator)
    if form == "dense":
        return matrix
    return torch.where(torch.rand(nodes, columns, generator=generator) < 0.15, matrix, 0.0).to_sparse_csr()


def matrices_of(forms, nodes, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: features_of(form, nodes, width, generator)
        for name, form, width in zip(NAMES, forms, columns, strict=False)
    }


def pull(party, step, opened):
    """A bounded gradient that differs by holder and step and depends on h^0."""
    return torch.tanh(opened - (ord(party) - 66) * 0.5 - 0.1 * step) / opened.shape[0]


def closeness(one, other):
    return float((one - other).abs().max())


def with_twin(settings, matrices, dim, steps, bits):
    """The protocol beside its plaintext twin, which is given the protocol's own gradients."""
    twin = PlainEmbedding(settings, matrices, streams(list(matrices)), dim, torch.float64, feature_bits=bits)
    results = embed_session(settings, matrices, dim=dim, steps=steps, bits=bits, gradient=pull)
    plain = []
    for step in range(steps):
        plain.append(twin.embed()["A"])
        twin.learn({name: pull(name, step, results[name].opened[step]) for name in matrices})
    plain.append(twin.embed()["A"])
    return twin, results, plain


def rounding_bounds(matrices, steps, feature_bits, gradient_bits):
    """How far the protocol may be from its twin in h^0 and in W: what ``gradient_bits`` cannot hold.

    In each step every holder rounds what x^T is multiplied with, its momentum times the learning rate, by up to half a
    unit. The momentum itself is not rounded, decay only shrinks W, and the twin is given the protocol's gradients. So
    the errors add up in W, and h^0 is x times them. Below the last term are W's first rounding, to ``feature_bits``
    more, and that of float64.
    """
    x = rounded(torch.cat([matrix.to_dense() for matrix in matrices.values()], dim=1), feature_bits)
    error = steps * len(matrices) * 2.0 ** -(gradient_bits + 1)
    return error * float((x @ x.t()).abs().sum(dim=1).max()) + 1e-10, error * float(x.abs().sum(dim=0).max()) + 1e-10


@nightly
@settings(max_examples=10)
@given(
    forms=st.sampled_from([2, 3, 5]).flatmap(lambda n: st.lists(st.sampled_from(FORMS), min_size=n, max_size=n)),
    nodes=numbers,
    columns=st.lists(numbers, min_size=5, max_size=5),
    dim=st.integers(1, 4),
    momentum=st.sampled_from([0.0, 0.9]),
    decay=st.sampled_from([0.0, 0.01, 0.5]),
    seed=st.integers(0, 2**31),
)
@example(forms=["dense"] * 5, nodes=2, columns=[1, 1, 1, 2, 4], dim=3, momentum=0.9, decay=0.0, seed=237)
def test_collaborative_follows_its_twin_for_twenty_steps(forms, nodes, columns, dim, momentum, decay, seed):
    matrices = matrices_of(forms, nodes, columns, seed)
    chosen = InitialSettings(learning_rate=0.1, momentum=momentum, weight_decay=decay, gradient_bits=32)
    twin, results, plain = with_twin(chosen, matrices, dim, 20, 10)
    embedding_bound, weight_bound = rounding_bounds(matrices, 20, 10, 32)
    for result in results.values():
        assert max(closeness(one, other) for one, other in zip(result.opened, plain, strict=True)) <= embedding_bound
        assert torch.equal(result.opened[-1], results["A"].opened[-1])
    for owner, weight in twin.weights().items():
        assert closeness(reconstructed(results, owner, 10 + 32), weight) <= weight_bound


def reconstructed(results, owner, weight_bits):
    """W of one block from all holders' shares: what no party can do."""
    embeddings = [result.embedding for result in results.values()]
    assert all(isinstance(embedding, Collaborative) for embedding in embeddings)
    total = ring_sum([embedding.shares[owner] for embedding in embeddings])
    scales = {float(embedding.tensors()["scale"]) for embedding in embeddings}
    assert len(scales) == 1
    return torch.ldexp(total.to(torch.float64), torch.tensor(-weight_bits)) * scales.pop()


@pytest.mark.cases(3)
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_what_the_ring_can_hold_is_computed_exactly(count, momentum):
    """Features in eighths, gradients in sixteenths: every h^0 is the one of exact rational arithmetic."""
    names, nodes, dim, steps = NAMES[:count], 6, 2, 5
    generator = torch.Generator().manual_seed(count)
    matrices = {name: torch.randint(-40, 40, (nodes, 3), generator=generator) / 8 for name in names}
    gradients = {
        (name, step): torch.randint(-99, 99, (nodes, dim), generator=generator).to(torch.float64) / 16
        for name in names
        for step in range(steps)
    }
    chosen = InitialSettings(learning_rate=0.25, momentum=momentum)
    results = embed_session(
        chosen, matrices, dim=dim, steps=steps, bits=3, gradient=lambda name, step, _: gradients[name, step]
    )
    std = init_std(chosen, 3 * count, dim) / count**0.5
    weight, momentum_of = {}, {}
    for owner in names:
        drawn = [init_weight(streams(names)[name], owner, 3, dim, std) for name in names]
        units = [torch.ldexp(part, torch.tensor(31)).round().tolist() for part in drawn]
        weight[owner] = [[sum(Fraction(int(u[f][k]), 2**31) for u in units) for k in range(dim)] for f in range(3)]
        momentum_of[owner] = [[Fraction(0)] * dim for _ in range(3)]
    exact = {name: [[Fraction(value) for value in row] for row in matrices[name].tolist()] for name in names}
    for step in range(steps + 1):
        h0 = [
            [float(sum(exact[o][n][f] * weight[o][f][k] for o in names for f in range(3))) for k in range(dim)]
            for n in range(nodes)
        ]
        for name in names:
            assert results[name].opened[step].tolist() == h0
        if step < steps:
            total = plain_sum([gradients[name, step] for name in names]).tolist()
            for owner in names:
                for f in range(3):
                    for k in range(dim):
                        step_of = sum(exact[owner][n][f] * Fraction(total[n][k]) for n in range(nodes))
                        momentum_of[owner][f][k] = momentum_of[owner][f][k] * Fraction(momentum) + step_of
                        weight[owner][f][k] -= Fraction(1, 4) * momentum_of[owner][f][k]


# Each holder's own weights


def descend(embedding):
    with torch.no_grad():
        for parameter in embedding.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.1)


@settings(max_examples=15)
@given(
    method=st.sampled_from(["individual", "secure-sum"]),
    forms=st.sampled_from([2, 3, 5]).flatmap(lambda n: st.lists(st.sampled_from(FORMS), min_size=n, max_size=n)),
    nodes=numbers,
    columns=st.lists(numbers, min_size=5, max_size=5),
    dim=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_own_weights_follow_their_twin(method, forms, nodes, columns, dim, seed):
    matrices = matrices_of(forms, nodes, columns, seed)
    chosen = InitialSettings(method=method)
    results = embed_session(chosen, matrices, dim=dim, steps=8, bits=12, gradient=pull, after_learn=descend)
    twin = PlainEmbedding(chosen, matrices, streams(list(matrices)), dim, torch.float64)
    for step in range(9):
        plain = twin.embed()
        for name in matrices:
            difference = closeness(results[name].opened[step], plain[name])
            assert difference <= (0.0 if method == "individual" else 1e-9)
        if step < 8:
            twin.learn({name: pull(name, step, plain[name]) for name in matrices})
            descend(twin)
    for name, weight in twin.weights().items():
        assert closeness(results[name].embedding.tensors()["weight"].detach(), weight) <= 1e-9


# What is refused


def refused(chosen, matrices, gradient=pull, steps=1, bits=12):
    with pytest.raises(RangeOverflow) as caught:
        embed_session(chosen, matrices, dim=2, steps=steps, bits=bits, gradient=gradient)
    return str(caught.value)


@pytest.mark.parametrize("sparse", [False, True])
def test_features_too_large_for_the_ring_are_refused_at_set_up(sparse):
    matrices = matrices_of(["dense", "dense"], 5, [3, 4], 1)
    matrices["B"] = matrices["B"] * 1e4
    if sparse:
        matrices["B"] = matrices["B"].to_sparse_csr()
    message = refused(InitialSettings(), matrices)
    assert message.startswith("B's features are too large for the ring")
    assert "|h^0| < 2^9 with feature_bits=12 and gradient_bits=28" in message
    assert "model.initial.gradient_bits" in message
    assert "data.feature_scaling" in message
    roomier = InitialSettings(gradient_bits=8)
    embed_session(roomier, matrices, dim=2, steps=1, bits=4, gradient=pull)


def test_a_part_too_large_for_a_masked_sum_is_refused_at_set_up():
    matrices = matrices_of(["dense", "dense"], 5, [3, 4], 1)
    chosen = InitialSettings(method="secure-sum")
    embed_session(chosen, matrices | {"B": matrices["B"] * 1e3}, dim=2, steps=1, bits=12, gradient=pull)
    message = refused(chosen, matrices | {"B": matrices["B"] * 1e8})
    assert message.startswith("B's features are too large for the ring: its part of h^0")
    assert "2^20 with model.initial.method=secure-sum" in message


@pytest.mark.parametrize(("holders", "room"), [(2, 20), (3, 19), (4, 19), (5, 18)])
def test_the_bound_of_a_masked_sum_is_what_the_masks_leave(holders, room):
    """Eight deviations of the longest row, against the headroom that ``PairwiseMasks.hide`` leaves."""
    sums = InitialSettings(method="secure-sum")
    short, long = (torch.tensor([[3.0, 4.0]]).double() / 5 * 2.0**room / 8 * size for size in (1 - 1e-9, 1 + 1e-9))
    for layout in (Tensor.to_dense, Tensor.to_sparse_csr):
        check_range("A", layout(short), sums, 1.0, holders=holders, feature_bits=0)
        with told_refused(RangeOverflow, key="model.initial.method", value="secure-sum", party="A"):
            check_range("A", layout(long), sums, 1.0, holders=holders, feature_bits=0)
    headroom = (holders - 1).bit_length()
    encode(torch.tensor([2.0**room * (1 - 1e-9)], dtype=torch.float64), SUM_BITS, "x", "", headroom)
    with told_refused(RangeOverflow, key="x"):
        encode(torch.tensor([2.0**room], dtype=torch.float64), SUM_BITS, "x", "", headroom)


@pytest.mark.parametrize("size", [1e12, math.nan, math.inf])
def test_a_gradient_too_large_for_the_ring_is_refused(size):
    message = refused(
        InitialSettings(), matrices_of(["dense", "dense"], 5, [3, 4], 1), lambda *_: torch.full((5, 2), size)
    )
    assert message.startswith("the scaled gradient of h^0 does not fit the ring: with 28 fractional bits")
    assert "lower model.initial.gradient_bits or model.initial.learning_rate" in message


def test_an_embedding_that_grew_into_the_guard_bits_is_refused():
    matrices = {name: torch.ones(5, 1) for name in "AB"}
    chosen = InitialSettings(learning_rate=1.0, momentum=0.0)
    message = refused(chosen, matrices, lambda *_: torch.full((5, 2), 60.0), steps=3)
    assert message.startswith("h^0 does not fit the ring: with 52 fractional bits")
    assert "lower model.initial.gradient_bits or model.initial.feature_bits" in message


@pytest.mark.parametrize("size", [float("nan"), 2.0**22])
def test_a_masked_sum_too_large_for_the_ring_is_refused(size):
    matrices = matrices_of(["dense", "dense"], 5, [3, 4], 1)
    message = refused(InitialSettings(method="secure-sum"), matrices, lambda *_: torch.full((5, 2), size))
    assert "h0 gradient does not fit the ring" in message
    assert "data.feature_scaling" in message


# What is opened


KINDS = {
    "individual": {Kind.KEY},
    "secure-sum": {Kind.KEY, Kind.MASKED, Kind.MASKED_GRADIENT},
    "collaborative": {Kind.KEY, Kind.SEED, Kind.STATIC_DIFFERENCE, Kind.MASKED_OPERAND, Kind.CORRELATION, Kind.SHARE},
}


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("method", ["individual", "secure-sum", "collaborative"])
def test_a_holder_receives_no_other_kind_of_message(method, count):
    matrices = matrices_of(["dense"] * count, 9, [3, 4, 2, 3, 2], 1)
    results = embed_session(InitialSettings(method=method), matrices, dim=2, steps=3, bits=12, gradient=pull)
    for name, result in results.items():
        received = [message for message in result.view if message.receiver == name]
        assert {message.tag.kind for message in received} == KINDS[method]
        dealt = {message.tag.kind for message in received if message.sender == SERVER}
        assert dealt == KINDS[method] & {Kind.SEED, Kind.CORRELATION}
        assert all(message.receiver != SERVER for message in result.view)


def test_only_h0_is_ever_opened():
    matrices = matrices_of(["dense"] * 3, 9, [3, 4, 2], 1)
    results = embed_session(InitialSettings(), matrices, dim=2, steps=3, bits=12, gradient=pull)
    for name, result in results.items():
        shares = [m for m in result.view if m.tag.kind is Kind.SHARE and m.receiver == name]
        assert sorted((m.sender, m.tag.step, tuple(m.tensor.shape)) for m in shares) == [
            (other, step, (9, 2)) for other in matrices if other != name for step in range(4)
        ]
