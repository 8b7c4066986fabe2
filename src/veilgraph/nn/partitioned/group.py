"""A party's machines as a process group of ``torch.distributed`` over gloo: what they send each other.

Nothing of it is encrypted or authenticated: it is for a network that the party has to itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from veilgraph.core.errors import LinkError

LEADER: Final = 0
"""Rank of the party's own process, the only one that talks to other parties."""

_COMMAND_WORDS: Final = 8


class MachineGroup:
    """One machine's end of the group. The default process group of torch: at most one in a process.

    Args:
        store: of the rendezvous, with all machines there.
        rank: of this machine.
        count: M, of machines.
        timeout_s: longest wait for one another at work.
        idle_s: longest wait of the other machines for work.

    Raises:
        LinkError: the machines cannot reach each other.
    """

    def __init__(self, store: Store, rank: int, count: int, timeout_s: float, idle_s: float) -> None:
        self.rank, self.count = rank, count
        with self._reported():
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=timeout_s)
            )
            self._idle = dist.new_group(timeout=timedelta(seconds=idle_s))

    def command(self, *words: int) -> list[int]:
        """What the leader says, up to eight integers; the others give none and wait. Zeros follow."""
        message = torch.zeros(_COMMAND_WORDS, dtype=torch.int64)
        message[: len(words)] = torch.tensor(words, dtype=torch.int64)
        with self._reported():
            dist.broadcast(message, LEADER, group=self._idle)
        return [int(word) for word in message]

    def broadcast(self, x: Tensor) -> None:
        """Overwrites every machine's ``x`` with the leader's."""
        with self._reported():
            dist.broadcast(x, LEADER)

    def total(self, x: Tensor) -> None:
        """Overwrites the leader's ``x`` with the sum of all."""
        with self._reported():
            dist.reduce(x, LEADER)

    def exchange(self, out: Tensor, x: Tensor, out_counts: Sequence[int], counts: Sequence[int]) -> None:
        """Sends each machine its rows of ``x`` and receives into ``out``, both machine after machine."""
        with self._reported():
            dist.all_to_all_single(out, x, list(out_counts), list(counts))

    def deal(self, x: Tensor, bounds: np.ndarray) -> Tensor:
        """At the leader: sends every other machine its rows and returns the leader's, a view of x, Tensor[N, d]."""
        x = x.contiguous()
        with self._reported():
            works = [dist.isend(rows, machine) for machine, rows in self._others(x, bounds)]
            for work in works:
                _wait(work)
        return x[: bounds[1]]

    def collect(self, own: Tensor, bounds: np.ndarray) -> Tensor:
        """At the leader: all rows, its own and what the others ``hand_in``: Tensor[n, d] to Tensor[N, d]."""
        result = own.new_empty(int(bounds[-1]), *own.shape[1:])
        result[: bounds[1]] = own
        with self._reported():
            works = [dist.irecv(rows, machine) for machine, rows in self._others(result, bounds)]
            for work in works:
                _wait(work)
        return result

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """At another machine: what the leader deals it."""
        rows = torch.empty(tuple(shape), dtype=dtype)
        if len(rows):
            with self._reported():
                dist.recv(rows, LEADER)
        return rows

    def hand_in(self, rows: Tensor) -> None:
        """At another machine: gives the leader what it collects."""
        if len(rows):
            with self._reported():
                dist.send(rows.contiguous(), LEADER)

    def send_named(self, machine: int, tensors: Mapping[str, Tensor]) -> None:
        """At the leader: gives a machine tensors by name, in the safetensors format."""
        content = torch.frombuffer(bytearray(save(dict(tensors))), dtype=torch.uint8)
        with self._reported():
            dist.send(torch.tensor([len(content)]), machine)
            dist.send(content, machine)

    def receive_named(self) -> dict[str, Tensor]:
        """At another machine: takes what the leader gives by name."""
        size = torch.zeros(1, dtype=torch.int64)
        with self._reported():
            dist.recv(size, LEADER)
            content = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(content, LEADER)
        return load(content.numpy().tobytes())

    def close(self) -> None:
        """Drops the connections."""
        dist.destroy_process_group()
        del self._idle

    def _others(self, x: Tensor, bounds: np.ndarray) -> Iterator[tuple[int, Tensor]]:
        for machine in range(1, self.count):
            rows = x[bounds[machine] : bounds[machine + 1]]
            if len(rows):
                yield machine, rows

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            whom = "another machine of this party" if self.rank == LEADER else "the party's own process"
            raise LinkError(
                f"{whom} is gone, or did not answer in time ({first_line(error)}); see what it said last"
            ) from error.with_traceback(None)  # its frames would keep the connections


def first_line(error: BaseException) -> str:
    """What went wrong, without where in gloo's own source and its advice."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*\] ", "", line).partition(". ")[0]


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
