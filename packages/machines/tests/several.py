"""A local part on several machines, compared with the same on one."""

import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import torch
from torch import nn
from torch.distributed import FileStore
from veilgraph_machines.blocks import metis
from veilgraph_machines.local import distribute
from veilgraph_machines.machine import LOOPBACK
from veilgraph_machines.rendezvous import follow, lead

from veilgraph.core.errors import ConfigError, LinkError
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.local.build import build_local, local_settings
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency
from veilgraph.protocol.role import LocalPart

DIM = 6
LONG_S = 60.0


WORKER = """
import sys
from torch.distributed import FileStore
from veilgraph.core.errors import LinkError
from veilgraph_machines.passes import serve
from veilgraph_machines.rendezvous import follow
group = follow(FileStore(sys.argv[2]), int(sys.argv[1]), 3, "127.0.0.1")
try:
    while True:
        serve(group)
except LinkError:
    group.close()
"""


class Machines:
    """The other two of a group of three, processes that meet at ``store``."""

    def __init__(self, store):
        self.store = str(store)
        self.others = [
            subprocess.Popen([sys.executable, "-W", "ignore", "-c", WORKER, str(rank), self.store]) for rank in (1, 2)
        ]

    @contextmanager
    def leading(self, timeout_s=LONG_S):
        with closing(lead(FileStore(self.store), 3, LOOPBACK, timeout_s=timeout_s, idle_s=LONG_S)) as group:
            yield group

    def end(self):
        for process in self.others:
            process.kill()
            process.wait()


class Following(threading.Thread):
    """A machine of the party, in a thread; what its work returned, or what it failed with."""

    def __init__(self, store, rank, count, work):
        super().__init__(daemon=True)
        self.store, self.rank, self.count, self.work = store, rank, count, work
        self.got = self.error = None
        self.start()

    def run(self):
        try:
            with closing(follow(self.store(), self.rank, self.count, LOOPBACK)) as group:
                self.got = self.work(group)
        except (LinkError, ConfigError) as error:
            self.error = error

    def outcome(self):
        self.join(30)
        assert not self.is_alive()
        return self.got


def graph_of(dtype, weighted=True):
    """Forty nodes with a tail of isolated ones, so long that a partition can have no edges; one has a self-loop."""
    generator = torch.Generator().manual_seed(3)
    edge_index = torch.cat([torch.randint(0, 28, (2, 90), generator=generator), torch.tensor([[4], [4]])], dim=1)
    weight = torch.rand(91, generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    return Adjacency.of_edges(edge_index, weight, 40, dtype)


def result_of(local, adjacency, *, same, drops):
    """t, all gradients, and what the generator gives next; h^0 is the round's input, or another."""
    generator = torch.Generator().manual_seed(11)
    shape = (adjacency.num_nodes, DIM)
    h = torch.randn(shape, generator=generator, dtype=adjacency.dtype, requires_grad=True)
    initial = h if same else torch.randn(shape, generator=generator, dtype=adjacency.dtype, requires_grad=True)
    t = local(h, initial, adjacency, generator if drops else None)
    (t * torch.linspace(-1, 1, DIM, dtype=t.dtype)).square().sum().backward()
    found = {"t": t.detach(), "h": h.grad, "next": torch.rand(3, generator=generator)}
    if initial.grad is not None:
        found["initial"] = initial.grad
    for name, parameter in local.named_parameters():
        found[name] = parameter.grad
        parameter.grad = None
    return found


def part_of(kind, dtype, adjacency, rounds=2):
    """A holder's part of a job: the local models of both rounds, over a graph."""
    settings = local_settings({"model": kind, "hops": 2, "dropout": 0.3})
    streams = LearningStreams(1, "A")
    models = nn.ModuleList(
        build_local(settings, DIM, 2, last_round=round_ == rounds, streams=streams, round=round_, dtype=dtype)
        for round_ in range(1, rounds + 1)
    )
    return LocalPart(models, adjacency, settings, DIM, 2)


def check(group, kind, dtype, partition=metis):
    """All that a job uses of a local model, against the same model on one machine."""
    adjacency, tolerance = graph_of(dtype), 1000 * torch.finfo(dtype).eps  # sums are of another order
    alone = part_of(kind, dtype, adjacency).local
    part = part_of(kind, dtype, adjacency)
    machines, several = distribute(part, group, partition), part.local
    assert list(several.state_dict()) == list(alone.state_dict())
    for round_ in (0, 1):
        same = round_ == 0
        for drops in (True, False):
            expected = result_of(alone[round_], adjacency, same=same, drops=drops)
            found = result_of(several[round_], adjacency, same=same, drops=drops)
            assert list(found) == list(expected)
            for name, value in expected.items():
                error = (found[name] - value).abs().max() / value.abs().max()
                assert error <= tolerance, f"{kind}, round {round_ + 1}: {name} is off by {error:.1e}"
    with torch.no_grad():
        h = torch.randn(adjacency.num_nodes, DIM, dtype=dtype, generator=torch.Generator().manual_seed(2))
        expected = alone[1](h, h, adjacency, None)
        torch.testing.assert_close(several[1](h, h, adjacency, None), expected)
        torch.testing.assert_close(several[1].in_blocks(h, Sampler(adjacency, 1, None)), expected)
    around = Sampler(adjacency, 2, None).around(torch.tensor([3, 0]), None)  # a step of a job in batches
    rows = h[around.nodes]
    torch.testing.assert_close(several[1](rows, rows, around, None), expected[[3, 0]])
    machines.close()
