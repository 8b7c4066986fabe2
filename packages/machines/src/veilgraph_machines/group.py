"""A party's machines: what they send each other, over connections that are authenticated and encrypted."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from veilgraph.core.errors import LinkError
from veilgraph_machines.channel import move

LEADER: Final = 0
"""Rank of the party's own process, the only one that talks to other parties."""

_COMMAND_WORDS: Final = 8

_Rows = Sequence[tuple[int, Tensor]]
"""A machine's rank and what it is given, or gives."""


class MachineGroup:
    """One machine's end of the group. All of them call methods that fit each other in the same order.

    Args:
        connections: with every other machine, by rank.
        rank: of this machine.
        timeout_s: longest wait for one another at work.
        idle_s: longest wait of the other machines for work.
    """

    def __init__(self, connections: Mapping[int, ssl.SSLSocket], rank: int, timeout_s: float, idle_s: float) -> None:
        self.rank, self.count = rank, len(connections) + 1
        self._connections, self._timeout_s, self._idle_s = dict(connections), timeout_s, idle_s

    def command(self, *words: int) -> list[int]:
        """What the leader says, up to eight integers; the others give none and wait. Zeros follow."""
        message = torch.zeros(_COMMAND_WORDS, dtype=torch.int64)
        message[: len(words)] = torch.tensor(words, dtype=torch.int64)
        self._broadcast(message, self._idle_s)
        return [int(word) for word in message]

    def broadcast(self, x: Tensor) -> None:
        """Overwrites every machine's ``x`` with the leader's."""
        self._broadcast(x, self._timeout_s)

    def total(self, x: Tensor) -> None:
        """Overwrites the leader's ``x`` with the sum of all, added in the order of ranks."""
        if self.rank != LEADER:
            self._move([(LEADER, x)], [])
            return
        parts = [(machine, torch.empty_like(x)) for machine in range(1, self.count)]
        self._move([], parts)
        for _, part in parts:
            x += part

    def exchange(self, out: Tensor, x: Tensor, out_counts: Sequence[int], counts: Sequence[int]) -> None:
        """Sends each other machine its rows of ``x`` and receives into ``out``, both machine after machine."""
        theirs, ours = list(_parts(out, out_counts)), list(_parts(x.contiguous(), counts))
        self._move(self._others(ours), self._others(theirs))

    def deal(self, x: Tensor, bounds: np.ndarray) -> Tensor:
        """At the leader: sends every other machine its rows and returns the leader's, a view of x, Tensor[N, d]."""
        own, *theirs = _parts(x.contiguous(), np.diff(bounds).tolist())
        self._move(list(enumerate(theirs, 1)), [])
        return own

    def collect(self, own: Tensor, bounds: np.ndarray) -> Tensor:
        """At the leader: all rows, its own and what the others ``hand_in``: Tensor[n, d] to Tensor[N, d]."""
        result = own.new_empty(int(bounds[-1]), *own.shape[1:])
        first, *theirs = _parts(result, np.diff(bounds).tolist())
        first.copy_(own)
        self._move([], list(enumerate(theirs, 1)))
        return result

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """At another machine: what the leader deals it."""
        rows = torch.empty(tuple(shape), dtype=dtype)
        self._move([], [(LEADER, rows)])
        return rows

    def hand_in(self, rows: Tensor) -> None:
        """At another machine: gives the leader what it collects."""
        self._move([(LEADER, rows)], [])

    def send_named(self, machine: int, tensors: Mapping[str, Tensor]) -> None:
        """At the leader: gives a machine tensors by name, in the safetensors format."""
        content = torch.frombuffer(bytearray(save(dict(tensors))), dtype=torch.uint8)
        self._move([(machine, torch.tensor([len(content)]))], [])
        self._move([(machine, content)], [])

    def receive_named(self) -> dict[str, Tensor]:
        """At another machine: takes what the leader gives by name."""
        size = self.take([1], torch.int64)
        return load(self.take([int(size)], torch.uint8).numpy().tobytes())

    def close(self) -> None:
        """Drops the connections."""
        for connection in self._connections.values():
            connection.close()

    def _broadcast(self, x: Tensor, timeout_s: float) -> None:
        if self.rank == LEADER:
            self._move([(machine, x) for machine in range(1, self.count)], [], timeout_s)
        else:
            self._move([], [(LEADER, x)], timeout_s)

    def _others(self, rows: Sequence[Tensor]) -> _Rows:
        return [(machine, part) for machine, part in enumerate(rows) if machine != self.rank]

    def _move(self, outgoing: _Rows, incoming: _Rows, timeout_s: float | None = None) -> None:
        """Sends and receives at the same time.

        Raises:
            LinkError: another machine is gone, or fell silent.
        """
        with self._reported():
            move(
                [(self._connections[machine], _view(rows.contiguous())) for machine, rows in outgoing],
                [(self._connections[machine], _view(rows)) for machine, rows in incoming],
                self._timeout_s if timeout_s is None else timeout_s,
            )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            whom = "another machine of this party" if self.rank == LEADER else "the party's own process"
            raise LinkError(
                f"{whom} is gone, or did not answer in time ({error}); see what it said last", code="machine-gone"
            ) from error


def _parts(x: Tensor, counts: Sequence[int]) -> Iterator[Tensor]:
    """Rows of x, machine after machine: views."""
    return (x[low:high] for low, high in pairwise(accumulate(counts, initial=0)))


def _view(rows: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    view: memoryview = rows.detach().view(-1).view(torch.uint8).numpy().data
    return view
