import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mpc.sessions import agreed_masks, fixed_secrets, simulate
from veilgraph.core.randomness import expand
from veilgraph.core.types import SERVER, Kind
from veilgraph.link.view import Message, RecordedLink
from veilgraph.mpc import ring
from veilgraph.mpc.mask import ring_sum
from veilgraph.mpc.product import (
    AHEAD,
    Dealer,
    Direction,
    SecureProduct,
    operand_mask_name,
    result_mask_name,
    static_mask_name,
)
from veilgraph.mpc.ring import FLOAT64, limb_operand, matmul, transposed_matmul

MIN, MAX = -(2**63), 2**63 - 1


def uniform(generator, *shape):
    return torch.randint(MIN, MAX, shape, generator=generator)


def product_session(matrices, weights, gradients, dim, steps=1, keep_bytes=1 << 30, block_bytes=1 << 20):
    """Every holder multiplies forward and backward ``steps`` times; gives its shares and its view."""
    names = list(matrices)
    features = {name: matrix.shape[1] for name, matrix in matrices.items()}
    nodes, masks = next(iter(matrices.values())).shape[0], agreed_masks(names)

    def holder(plain_link):
        messages: list[Message] = []  # as a view keeps them, which does not copy
        link = RecordedLink(plain_link, keep_transcript=True, keep=messages.append)
        matrix = matrices[link.party]
        product = SecureProduct(link, masks[link.party], matrix, torch.clone, features, dim, block_bytes)
        results = []
        for step in range(steps):
            forward, more = torch.empty(nodes, dim, dtype=torch.int64), step < steps - 1
            for rows, share in product.forward(step, weights[link.party], learns=more):
                forward[rows] = share
            results.append((forward, product.backward(step, gradients[link.party].__getitem__, learns=more)))
        product.close()
        for message, as_it_came in zip(messages, link.transcript(), strict=True):
            assert torch.equal(message.tensor, as_it_came.tensor), message.tag
        return results, link.transcript()

    def server(link):
        dealer = Dealer(link, features, nodes, dim, fixed_secrets("dealer"), keep_bytes, block_bytes)
        dealer.send_seeds()
        for step in range(steps):
            dealer.deal(Direction.FORWARD, step)
            dealer.deal(Direction.BACKWARD, step)

    results = simulate({**dict.fromkeys(names, holder), SERVER: server})
    return {name: results[name] for name in names}


@settings(max_examples=8)
@given(
    holders=st.sampled_from([2, 3, 5]),
    nodes=st.integers(1, 12),
    columns=st.lists(st.integers(1, 6), min_size=5, max_size=5),
    dim=st.integers(1, 4),
    density=st.sampled_from([0.0, 0.1, 1.0]),
    keep_bytes=st.sampled_from([0, 1 << 20]),
    block_bytes=st.sampled_from([1, 100, 1 << 20]),
    seed=st.integers(0, 2**31),
)
def test_the_shares_add_up_to_the_product_for_any_ring_elements(
    holders, nodes, columns, dim, density, keep_bytes, block_bytes, seed
):
    generator = torch.Generator().manual_seed(seed)
    names = ["A", "B", "C", "D", "E"][:holders]
    features = dict(zip(names, columns, strict=False))
    matrices = {}
    for name in names:
        filled = torch.rand(nodes, features[name], generator=generator) < density
        matrices[name] = torch.where(filled, uniform(generator, nodes, features[name]), 0)
    weights = {name: {owner: uniform(generator, features[owner], dim) for owner in names} for name in names}
    gradients = {name: uniform(generator, nodes, dim) for name in names}
    results = product_session(matrices, weights, gradients, dim, 2, keep_bytes, block_bytes)
    blocks = {owner: ring_sum([weights[name][owner] for name in names]) for owner in names}
    forward = ring_sum([matmul(matrices[owner], blocks[owner]) for owner in names])
    gradient = ring_sum(list(gradients.values()))
    for step in range(2):
        assert torch.equal(ring_sum([results[name][0][step][0] for name in names]), forward)
        for owner in names:
            backward = ring_sum([results[name][0][step][1][owner] for name in names])
            assert torch.equal(backward, transposed_matmul(matrices[owner], gradient))


def a_session(holders=3, steps=2):
    generator = torch.Generator().manual_seed(1)
    names = ["A", "B", "C", "D", "E"][:holders]
    features = {name: 3 + index for index, name in enumerate(names)}
    matrices = {name: uniform(generator, 40, features[name]) for name in names}
    weights = {name: {owner: uniform(generator, features[owner], 2) for owner in names} for name in names}
    gradients = {name: uniform(generator, 40, 2) for name in names}
    return matrices, product_session(matrices, weights, gradients, 2, steps)


@pytest.mark.parametrize("holders", [2, 3, 5])
def test_messages_are_those_of_the_protocol_and_no_more(holders):
    matrices, results = a_session(holders)
    others = holders - 1
    for name, (_, view) in results.items():
        sent = [message for message in view if message.sender == name]
        received = [message for message in view if message.receiver == name]
        assert [m.tag.kind for m in sent].count(Kind.STATIC_DIFFERENCE) == others
        assert [m.tag.kind for m in sent].count(Kind.MASKED_OPERAND) == 2 * 2 * others
        assert len(sent) == 5 * others
        assert [m.tag.kind for m in received].count(Kind.SEED) == 1
        assert [m.tag.kind for m in received].count(Kind.CORRELATION) == 4
        assert len(received) == len(sent) + 5
        for message in sent:
            shape = tuple(message.tensor.shape)
            if message.tag.kind is Kind.STATIC_DIFFERENCE:
                assert shape == matrices[name].shape
            elif message.tag.round == Direction.FORWARD:
                assert shape == (matrices[message.receiver].shape[1], 2)
            else:
                assert shape == (40, 2)


def test_rows_in_blocks_have_masks_of_their_own():
    generator = torch.Generator().manual_seed(1)
    names, features = ["A", "B"], {"A": 3, "B": 3}
    # The same rows in every block: equal masks would give equal messages.
    matrices = {name: uniform(generator, 2, 3).repeat(4, 1) for name in names}
    weights = {name: {owner: uniform(generator, 3, 3) for owner in features} for name in names}
    gradients = {name: uniform(generator, 2, 3).repeat(4, 1) for name in names}
    results = product_session(matrices, weights, gradients, 3, steps=2, block_bytes=8 * 3 * 2)
    for name, (_, view) in results.items():
        ready = [m.tag for m in view if m.tag.kind is Kind.READY]
        assert [(tag.step, tag.round) for tag in ready] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        uniforms = [m for m in view if m.sender == name and m.tag.kind in (Kind.STATIC_DIFFERENCE, Kind.MASKED_OPERAND)]
        assert len(uniforms) == 4 + 2 * 2 * 4
        assert len({tuple(m.tensor.flatten().tolist()) for m in uniforms}) == len(uniforms)


def test_the_dealer_waits_for_those_that_use_what_it_deals():
    features, blocks, masks = {"A": 1, "B": 1}, 9, agreed_masks(["A", "B"])
    dealt, at_pause = [], []

    class Watched(RecordedLink):
        def send(self, to, tag, tensor):
            if tag.kind is Kind.CORRELATION and to == "A":
                dealt.append(tag.round)
            super().send(to, tag, tensor)

    def holder(link):
        matrix = torch.ones(blocks, 1, dtype=torch.int64)
        product = SecureProduct(link, masks[link.party], matrix, torch.clone, features, 1, block_bytes=8)
        shares = {owner: torch.ones(1, 1, dtype=torch.int64) for owner in features}
        for rows, _ in product.forward(0, shares):
            if rows.start == 2 and link.party == "A":
                deadline = time.monotonic() + 10
                while len(dealt) < 3 + AHEAD and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(0.2)  # in which it could deal more
                at_pause.append(len(dealt))
        product.close()

    def server(link):
        dealer = Dealer(Watched(link), features, blocks, 1, fixed_secrets("dealer"), block_bytes=8)
        dealer.send_seeds()
        dealer.deal(Direction.FORWARD, 0)

    simulate({"A": holder, "B": holder, SERVER: server})
    assert at_pause == [3 + AHEAD]
    assert len(dealt) == blocks


def test_the_dealers_halves_are_those_of_the_formula_and_are_all_it_sends():
    seeds = iter([bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32])
    features, nodes, dim = {"A": 3, "B": 4, "C": 2}, 5, 2
    known = dict(zip(features, [bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32], strict=True))

    def server(plain_link):
        link = RecordedLink(plain_link, keep_transcript=True)
        dealer = Dealer(link, features, nodes, dim, lambda length: next(seeds)[:length])
        dealer.send_seeds()
        dealer.deal(Direction.FORWARD, 4)
        dealer.deal(Direction.BACKWARD, 4)
        return link.transcript()

    view = simulate({SERVER: server, **{name: lambda link: None for name in features}})[SERVER]
    assert [message.tag.kind for message in view] == [Kind.SEED] * 3 + [Kind.CORRELATION] * 6
    for message in view[:3]:
        assert bytes(message.tensor.tolist()) == known[message.receiver]
    for message in view[3:]:
        owner, direction = message.receiver, Direction(message.tag.round)
        columns = features[owner]
        mask = expand(known[owner], static_mask_name(), (nodes, columns))
        if direction is Direction.BACKWARD:
            mask = mask.t()
        others = [name for name in features if name != owner]
        operands = [expand(known[o], operand_mask_name(owner, direction, 4), (mask.shape[1], dim)) for o in others]
        results = [expand(known[o], result_mask_name(owner, direction, 4), (mask.shape[0], dim)) for o in others]
        expected = (mask.unsqueeze(2) * ring_sum(operands).unsqueeze(0)).sum(dim=1) - ring_sum(results)
        assert torch.equal(message.tensor, expected)


# Shares


def test_products_by_limbs_as_on_a_gpu_change_nothing(monkeypatch):
    """The operands that a GPU would have, on the CPU: the same messages and shares, to the bit."""
    matrices, plain = a_session()
    monkeypatch.setattr(ring, "dense_operand", lambda matrix, device, **_: limb_operand(matrix, device, FLOAT64))
    _, limbs = a_session()
    for name, (results, view) in plain.items():
        for one, other in zip(results, limbs[name][0], strict=True):
            assert torch.equal(one[0], other[0])
            assert all(torch.equal(one[1][owner], other[1][owner]) for owner in matrices)
        sent = [sorted(str(m.tag) + str(m.tensor.tolist()) for m in seen) for seen in (view, limbs[name][1])]
        assert sent[0] == sent[1]


def test_mask_names_never_meet():
    names = {static_mask_name()}
    for owner in ("A", "*", "U", "A/FORWARD"):
        for direction in Direction:
            for step in (0, 1, 11):
                names |= {operand_mask_name(owner, direction, step), result_mask_name(owner, direction, step)}
    per_owner = 4 * 2 * 3 + 4 * 3  # Z everywhere, V forward
    assert len(names) == 1 + per_owner + 3  # and one backward V for all owners
