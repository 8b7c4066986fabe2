"""A local part on several machines, compared with the same on one."""

import subprocess
import sys

import torch
from torch import nn
from veilgraph_machines.blocks import balanced
from veilgraph_machines.local import distribute
from veilgraph_machines.rendezvous import open_door
from veilgraph_machines.secret import new_secret

from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.local.build import build_local, local_settings
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency

DIM = 6


WORKER = """
import sys
from veilgraph.core.errors import LinkError
from veilgraph_machines.rendezvous import follow
from veilgraph_machines.worker import serve
group = follow("127.0.0.1", int(sys.argv[2]), int(sys.argv[1]), bytes.fromhex(sys.argv[3]))
try:
    while True:
        serve(group)
except LinkError:
    group.close()
"""


class Machines:
    """The other two of a group of three."""

    def __init__(self):
        secret = new_secret()
        self.door = open_door("127.0.0.1", 0, secret)
        port, key = str(self.door.port), secret.hex()
        self.others = [
            subprocess.Popen([sys.executable, "-W", "ignore", "-c", WORKER, str(rank), port, key]) for rank in (1, 2)
        ]

    def end(self):
        for process in self.others:
            process.kill()
            process.wait()


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


def models(kind, dtype, rounds=2):
    """A job's model.local and the local models of both rounds."""
    local = local_settings({"model": kind, "hops": 2, "dropout": 0.3})
    streams = LearningStreams(1, "A")
    return local, nn.ModuleList(
        build_local(local, DIM, 2, last_round=round_ == rounds, streams=streams, round=round_, dtype=dtype)
        for round_ in range(1, rounds + 1)
    )


def check(group, kind, dtype, partition=balanced):
    """All that a job uses of a local model, against the same model on one machine."""
    adjacency, tolerance = graph_of(dtype), 1e-12 if dtype == torch.float64 else 1e-6
    _, alone = models(kind, dtype)
    settings, several = models(kind, dtype)
    machines = distribute(several, adjacency, settings, DIM, 2, group, partition)
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
