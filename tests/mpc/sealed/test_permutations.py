"""Permutations of rows, of more rows than are in hand at a time."""

import pytest
import torch
from torch import Tensor

from veilgraph.mpc.sealed.permutations import add_rows, inverse, rest_after, rest_before, shuffled, steps_of, take_rows

SIZE = 100_000


def drawn(kind: torch.dtype) -> Tensor:
    return torch.randperm(SIZE, generator=torch.Generator().manual_seed(5)).to(kind)


@pytest.mark.parametrize("ranks", [range(0), range(1 << 15, SIZE, 1 << 15), range(1, SIZE, 2), range(7, 8)])
@pytest.mark.parametrize("seed", range(4))
def test_equal_numbers_keep_their_order(ranks: range, seed: int) -> None:
    """Else two machines that sort in other ways would find two permutations, and sums over edges be wrong."""
    numbers = torch.randperm(SIZE, generator=torch.Generator().manual_seed(seed)) - SIZE // 2
    for rank in ranks[:50]:  # equal to the next smaller one, also of the block before
        numbers[numbers == rank - SIZE // 2] -= 1
    assert torch.equal(shuffled(numbers), torch.argsort(numbers, stable=True))


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_places_are_those_of_whole_tensors(kind: torch.dtype) -> None:
    random, step = drawn(kind), drawn(kind).flip(0)
    rows = torch.arange(2 * SIZE).reshape(SIZE, 2)
    assert torch.equal(take_rows(rows, random), rows[random.long()])
    assert inverse(random).dtype == kind
    assert torch.equal(inverse(random)[random.long()].long(), torch.arange(SIZE))
    assert torch.equal(take_rows(take_rows(rows, random), rest_after(step, random)), rows[step.long()])
    assert torch.equal(take_rows(take_rows(rows, rest_before(step, random)), random), rows[step.long()])
    total = torch.ones_like(rows)
    add_rows(total, rows, random)
    assert torch.equal(total, 1 + rows[random.long()])


@pytest.mark.parametrize(("nodes", "count", "padded"), [(1, 0, 1), (1, 3, 3), (40, 0, 5), (40, 200, 256)])
def test_steps_use_every_slot_once(nodes: int, count: int, padded: int) -> None:
    """Else what is told relative to a random order would not be uniform, though sums might be right."""
    edges = torch.randint(nodes, (2, count), generator=torch.Generator().manual_seed(count))
    steps, slots = steps_of(edges, nodes, padded), torch.arange(nodes + padded)
    assert torch.equal(steps.spread.long().sort().values, slots)
    assert torch.equal(steps.turn.long().sort().values, slots)
    assert steps.pick.unique().numel() == nodes
