"""Permutations of rows: the three steps of a hop, random ones, and what remains of a step beside a random one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """Indices of the three steps, [n], [n] and [N]: entry s of the result is entry ``spread[s]`` of what went in."""

    spread: Tensor
    turn: Tensor
    pick: Tensor

    def compact(self) -> Steps:
        """The same steps as int32 where places fit: a party has those of every holder's edges, all session long."""
        return Steps(*(int32_if_small(step, self.turn.numel()) for step in (self.spread, self.turn, self.pick)))


def int32_if_small(places: Tensor, slots: int) -> Tensor:
    """Return places among so many slots as int32 where they fit."""
    return places.to(torch.int32) if slots < 1 << 31 else places


def weights_of(steps: Steps, edges: Tensor, weights: Tensor, one: int) -> Tensor:
    """Return each slot's weight in the order of targets: int64 [n], ``one`` at the heads and 0 in padding."""
    by_target = torch.argsort(edges[1], stable=True)
    found = torch.zeros(steps.turn.numel(), dtype=torch.int64)
    found[steps.pick] = one
    found[edges[1][by_target] + torch.arange(edges.shape[1])] = weights[by_target]
    return found


def steps_of(edges: Tensor, nodes: int, padded: int) -> Steps:
    """Compute the steps of edges, int64 [2, E] sources and targets in any order; N nodes, Ē ≥ E padded edges."""
    count, slots = edges.shape[1], nodes + padded
    all_nodes = torch.arange(nodes)
    by_source = torch.argsort(edges[0], stable=True)
    sources = edges[0][by_source]
    heads = all_nodes + torch.searchsorted(sources, all_nodes)
    edge_slots = torch.empty(count, dtype=torch.int64)
    edge_slots[by_source] = sources + 1 + torch.arange(count)
    spread = torch.empty(slots, dtype=torch.int64)
    is_head = torch.zeros(slots, dtype=torch.bool)
    is_head[heads] = True
    spread[heads] = all_nodes
    spread[~is_head] = torch.arange(nodes, slots)
    by_target = torch.argsort(edges[1], stable=True)
    targets = edges[1][by_target]
    pick = all_nodes + torch.searchsorted(targets, all_nodes, right=True)
    turn = torch.empty(slots, dtype=torch.int64)
    turn[pick] = heads
    turn[targets + torch.arange(count)] = edge_slots[by_target]
    turn[nodes + count :] = torch.arange(nodes + count, slots)
    return Steps(spread, turn, pick)


def orders(slots: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Forms of the uniform int64 tensors, [slots] each, that ``shuffled`` makes the three permutations of."""
    return [((slots,), torch.int64)] * 3


def shuffled(numbers: Tensor) -> Tensor:
    """The permutation that sorts uniform numbers of 64 bits: int64 [size], uniform up to a chance below size²/2^65."""
    return torch.argsort(numbers, stable=True)


def inverse(permutation: Tensor) -> Tensor:
    """The permutation that undoes another."""
    undone = torch.empty_like(permutation)
    undone[permutation] = torch.arange(permutation.numel())
    return undone


def rest_after(step: Tensor, random: Tensor) -> Tensor:
    """Return the index to take rows by after a random permutation, so that both together are ``step``."""
    return inverse(random)[step]


def rest_before(step: Tensor, random: Tensor) -> Tensor:
    """Return the index to take rows by before a random permutation, so that both together are ``step``."""
    return step[inverse(random)]


def take_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Return rows by their number: ``rows[index]``. numpy's gather is twice as fast as torch's here."""
    return torch.from_numpy(np.take(rows.numpy(), index.numpy(), 0))


def differences(rows: Tensor) -> Tensor:
    """Every row minus the one before it."""
    out = rows.clone()
    out[1:] -= rows[:-1]
    return out
