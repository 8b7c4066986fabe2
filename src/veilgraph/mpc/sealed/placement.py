"""How hidden edges become three fixed permutations, so that sums over neighbours need no index that is secret.

A graph of N nodes and Ē padded edges has n = N + Ē slots: one of every node, its head, and one of every edge. What is
summed is x [N, d]:

    spread  row k of x minus row k − 1 goes to the head of k, where its out-edges' slots follow; a prefix sum then
            leaves x_k in all of them
    turn    slots are brought into the order of their targets, with the head of a node behind the edges into it
    pick    a prefix sum, its values at the heads, and their differences: x_v and the sum over the edges into v

Each step is a permutation that the owner knows. It is made of a random one that the owner and the dealer know and one
relative to it, uniform, which the owner tells the other holders once.

Weights w of edges are multiplied with what lies in the slots after the turn: own rows of the owner, and rows that
others sent under masks m, in an order R of the owner's and the dealer's. With w' = w in the order before R, the owner
tells the others E = w' − u once, for a u that the dealer knows: uniform to them. A holder sends t + m, its rows, and
E·m + m', under a second mask. From them the owner makes w'·(t + m) − (E·m + m') = w'·t + u·m − m', of which the dealer
knows u·m − m' and deals it away. The dealer never sees E, nor the owner m or m'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """Indices of the three steps: entry s of the result is entry ``spread[s]`` of what went in, and so on.

    Attributes:
        spread: [n], of N rows and n − N zeros behind them.
        turn: [n].
        pick: [N].
    """

    spread: Tensor
    turn: Tensor
    pick: Tensor


def weights_of(steps: Steps, edges: Tensor, weights: Tensor, one: int) -> Tensor:
    """What every slot counts, in the order of targets: int64 [n], with ``one`` at the heads and 0 in the blanks.

    Args:
        steps: of the edges.
        edges: as in ``steps_of``.
        weights: int64 [E].
        one: what a node itself counts.
    """
    by_target = torch.argsort(edges[1], stable=True)
    found = torch.zeros(steps.turn.numel(), dtype=torch.int64)
    found[steps.pick] = one
    found[edges[1][by_target] + torch.arange(edges.shape[1])] = weights[by_target]
    return found


def steps_of(edges: Tensor, nodes: int, padded: int) -> Steps:
    """The owner's.

    Args:
        edges: int64 [2, E], sources and targets, in any order.
        nodes: N.
        padded: Ē, at least E.
    """
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
    """Forms of the random numbers that the three random permutations are made of."""
    return [((slots,), torch.int64)] * 3


def shuffled(numbers: Tensor) -> Tensor:
    """The permutation that sorts uniform numbers of 64 bits: int64 [size].

    It is uniform but for two equal ones, of a chance below size²/2^65, which would keep their order.
    """
    return torch.argsort(numbers, stable=True)


def inverse(permutation: Tensor) -> Tensor:
    """The permutation that undoes another."""
    undone = torch.empty_like(permutation)
    undone[permutation] = torch.arange(permutation.numel())
    return undone


def before(step: Tensor, random: Tensor) -> Tensor:
    """What is to be done after a random permutation, so that both together are a step."""
    return inverse(random)[step]


def after(step: Tensor, random: Tensor) -> Tensor:
    """What is to be done before a random permutation, so that both together are a step."""
    return step[inverse(random)]


def taken(rows: Tensor, index: Tensor) -> Tensor:
    """Rows by their number. numpy's gather is twice as fast as torch's here."""
    return torch.from_numpy(np.take(rows.numpy(), index.numpy(), 0))


def differences(rows: Tensor) -> Tensor:
    """Every row minus the one before it."""
    out = rows.clone()
    out[1:] -= rows[:-1]
    return out


def running(rows: Tensor) -> Tensor:
    """Prefix sums of rows, in their ring."""
    return torch.cumsum(rows, 0, dtype=rows.dtype)
