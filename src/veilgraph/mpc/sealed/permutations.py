"""Permutations of rows: the three steps of a hop, random ones, and what remains of a step beside a random one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

_BLOCK: Final = 1 << 15
"""Rows in hand at a time: numpy widens the int32 places that it takes rows by."""
_Places: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Steps:
    """Indices of the three steps, [n], [n] and [N]: entry s of the result is entry ``spread[s]`` of what went in.

    They are int32 where places fit: a party has those of every holder's edges, all session long.
    """

    spread: Tensor
    turn: Tensor
    pick: Tensor


def int32_if_small(places: Tensor, slots: int) -> Tensor:
    """Return places among so many slots as int32 where they fit."""
    return places.to(torch.int32) if slots < 1 << 31 else places


def weights_of(steps: Steps, edges: Tensor, weights: Tensor, one: int) -> Tensor:
    """Return each slot's weight in the order of targets: int64 [n], ``one`` at the heads and 0 in padding."""
    by_target = np.argsort(edges[1].numpy(), kind="stable")
    found = torch.zeros(steps.turn.numel(), dtype=torch.int64)
    found[steps.pick] = one
    found[edges[1][by_target] + torch.arange(edges.shape[1])] = weights[by_target]
    return found


def steps_of(edges: Tensor, nodes: int, padded: int) -> Steps:
    """Compute the steps of edges, int64 [2, E] sources and targets in any order; N nodes, Ē ≥ E padded edges."""
    (sources, targets), count = edges.numpy(), edges.shape[1]
    all_slots: _Places = int32_if_small(torch.arange(nodes + padded), nodes + padded).numpy()
    all_nodes, kind = all_slots[:nodes], all_slots.dtype
    degrees = np.bincount(sources, minlength=nodes)
    heads = all_nodes + (degrees.cumsum() - degrees).astype(kind)
    is_head = np.zeros(len(all_slots), bool)
    is_head[heads] = True
    spread = np.empty_like(all_slots)
    spread[heads] = all_nodes
    spread[~is_head] = all_slots[nodes:]
    del is_head
    edge_slots = np.empty(count, kind)
    edge_slots[np.argsort(sources, kind="stable")] = np.repeat(all_nodes + 1, degrees) + np.arange(count, dtype=kind)
    degrees = np.bincount(targets, minlength=nodes)
    pick = all_nodes + degrees.cumsum().astype(kind)
    turn = all_slots.copy()
    turn[pick] = heads
    turn[np.repeat(all_nodes, degrees) + np.arange(count, dtype=kind)] = edge_slots[np.argsort(targets, kind="stable")]
    return Steps(*map(torch.from_numpy, (spread, turn, pick)))


def orders(slots: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Forms of the uniform int64 tensors, [slots] each, that ``shuffled`` makes the three permutations of."""
    return [((slots,), torch.int64)] * 3


def shuffled(numbers: Tensor) -> Tensor:
    """The permutation that sorts uniform numbers of 64 bits: int64 [size], uniform up to a chance below size²/2^65.

    Equal numbers keep their order, so that all parties find the same one.
    """
    found: Tensor = torch.from_numpy(np.argsort(numbers.numpy()))  # in a third of the memory of a stable sort
    are_equal = (numbers[found[part.start : part.stop + 1]].diff() == 0 for part in _blocks(len(found)))
    return torch.argsort(numbers, stable=True) if any(bool(each.any()) for each in are_equal) else found


def inverse(permutation: Tensor) -> Tensor:
    """The permutation that undoes another."""
    undone = torch.empty_like(permutation)
    for part in _blocks(len(permutation)):
        undone[permutation[part]] = torch.arange(part.start, part.stop, dtype=permutation.dtype)
    return undone


def rest_after(step: Tensor, random: Tensor) -> Tensor:
    """Return the index to take rows by after a random permutation, so that both together are ``step``."""
    return take_rows(inverse(random), step)


def rest_before(step: Tensor, random: Tensor) -> Tensor:
    """Return the index to take rows by before a random permutation, so that both together are ``step``."""
    return take_rows(step, inverse(random))


def take_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Return rows by their number: ``rows[index]``. numpy's gather is twice as fast as torch's here."""
    values, places = rows.numpy(), index.numpy()
    if places.dtype == np.int64:
        return torch.from_numpy(np.take(values, places, 0))
    found = np.empty((len(places), *values.shape[1:]), values.dtype)
    for part in _blocks(len(places)):
        found[part] = np.take(values, places[part], 0)
    return torch.from_numpy(found)


def add_rows(total: Tensor, rows: Tensor, index: Tensor) -> None:
    """Add rows by their number to ``total``, in place: ``total += rows[index]``, with a block of them in hand."""
    for part in _blocks(len(index)):
        total[part] += take_rows(rows, index[part])


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK))


def differences(rows: Tensor) -> Tensor:
    """Every row minus the one before it."""
    out = rows.clone()
    out[1:] -= rows[:-1]
    return out
