"""A party's machines as a gloo process group of ``torch.distributed``, which moves tensors alone and runs no pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed import ProcessGroupGloo, Store

from veilgraph.core.errors import LinkError

LEADER: Final = 0
"""Rank of the party's own process, the only one that talks to other parties."""

_COMMAND_WORDS: Final = 8
_TAG: Final = 0


class MachineGroup:
    """One machine's end of the group. All of them call methods that fit each other in the same order.

    A method raises ``LinkError`` where another machine is gone, or does not do its part in time.

    Args:
        store: where the machines find each other.
        rank: of this machine.
        count: M, of all machines.
        host: address of this machine, the only one on which it listens for the others.
        timeout_s: longest time of an exchange, with the wait for the others.
        idle_s: longest wait of the other machines for work.
    """

    def __init__(self, store: Store, rank: int, count: int, host: str, timeout_s: float, idle_s: float) -> None:
        self.rank, self.count = rank, count
        self._timeout = timedelta(seconds=timeout_s)
        self._idle = self._timeout if rank == LEADER else timedelta(seconds=idle_s)
        options: Any = ProcessGroupGloo._Options()
        with self._reported():
            options._timeout = self._timeout
            options._devices = [ProcessGroupGloo.create_device(hostname=host)]
            self._gloo: Any = ProcessGroupGloo(store, rank, count, options)  # its collectives are not in torch's stubs

    def command(self, *words: int) -> list[int]:
        """What the leader says, up to eight integers; the others give none and wait. Zeros follow."""
        message = torch.zeros(_COMMAND_WORDS, dtype=torch.int64)
        message[: len(words)] = torch.tensor(words, dtype=torch.int64)
        with self._reported():
            self._gloo.broadcast(message, LEADER, timeout=self._idle).wait()
        return [int(word) for word in message]

    def broadcast(self, x: Tensor) -> None:
        """Overwrite every machine's ``x`` with the leader's."""
        with self._reported():
            self._gloo.broadcast(x, LEADER, timeout=self._timeout).wait()

    def total(self, x: Tensor) -> Tensor:
        """Overwrite the leader's ``x`` with the sum of all and return it; the others' is spoilt."""
        with self._reported():
            self._gloo.reduce(x, LEADER, timeout=self._timeout).wait()
        return x

    def exchange(self, out: Tensor, x: Tensor, out_counts: Sequence[int], counts: Sequence[int]) -> None:
        """Send each machine its rows of ``x`` and receive into ``out``, both machine after machine."""
        with self._reported():
            x = x.contiguous()
            self._gloo.alltoall_base(out, x, list(out_counts), list(counts), timeout=self._timeout).wait()

    def send(self, machine: int, x: Tensor) -> None:
        """Give a machine a tensor, which it receives in one of the same shape and dtype."""
        with self._reported():
            self._gloo.send([x.contiguous()], machine, _TAG).wait()

    def receive(self, machine: int, out: Tensor) -> Tensor:
        """Fill a contiguous tensor with what a machine sends, and return it."""
        with self._reported():
            self._gloo.recv([out], machine, _TAG).wait()
        return out

    def send_named(self, machine: int, tensors: Mapping[str, Tensor]) -> None:
        """Give a machine tensors by name, in the safetensors format."""
        content = torch.frombuffer(bytearray(save(dict(tensors))), dtype=torch.uint8)
        self.send(machine, torch.tensor([len(content)]))
        self.send(machine, content)

    def receive_named(self, machine: int) -> dict[str, Tensor]:
        """Take what a machine gives by name."""
        size = int(self.receive(machine, torch.empty(1, dtype=torch.int64)))
        return load(self.receive(machine, torch.empty(size, dtype=torch.uint8)).numpy().tobytes())

    def close(self) -> None:
        """Drop the connections."""
        self._gloo = None

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            whom = "another machine of this party" if self.rank == LEADER else "the party's own process"
            raise LinkError(
                f"{whom} is gone, or did not answer in time ({reason(error)}); see what it said last",
                code="machine-gone",
            ) from error


def reason(error: RuntimeError) -> str:
    """What ``torch.distributed`` says, without its source line and its advice."""
    return str(error).strip().partition("\n")[0].rpartition("] ")[2].partition(". This ")[0]
