"""A local model over several machines against the same model on one; the machines are real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from tests.nn.graphs import random_adjacency, weighted_adjacency
from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.local import build_local
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.partitioned.blocks import Block, balanced, cut
from veilgraph.nn.partitioned.group import MachineGroup
from veilgraph.nn.partitioned.local import distribute
from veilgraph.nn.partitioned.passes import PARTITIONED
from veilgraph.nn.partitioned.rendezvous import lead, open_door
from veilgraph.nn.partitioned.secret import new_secret
from veilgraph.nn.settings import LocalSettings, ModelSettings

DIM = 6
LONG_S = 60.0
WORKER = """
import sys
from veilgraph.core.errors import LinkError
from veilgraph.nn.partitioned.rendezvous import follow
from veilgraph.nn.partitioned.worker import serve
group = follow("127.0.0.1", int(sys.argv[2]), int(sys.argv[1]), bytes.fromhex(sys.argv[3]))
try:
    while True:
        serve(group)
except LinkError:
    group.close()
"""


class Machines:
    """The other machine of a group of two, and the other two of one of three."""

    def __init__(self):
        secret = new_secret()
        self.pair, self.three = (open_door("127.0.0.1", 0, secret) for _ in range(2))
        self.of_pair, *self.of_three = (
            subprocess.Popen([sys.executable, "-W", "ignore", "-c", WORKER, str(rank), str(door.port), secret.hex()])
            for rank, door in ((1, self.pair), (1, self.three), (2, self.three))
        )

    def end(self):
        for process in (self.of_pair, *self.of_three):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def machines():
    """Started together, for imports take seconds."""
    started = Machines()
    yield started
    started.end()


@contextmanager
def leading(door, count):
    group = lead(door, count, timeout_s=LONG_S, idle_s=LONG_S)
    try:
        yield group
    finally:
        group.close()


def graph_of(dtype, weighted=True):
    """Forty nodes with a tail of isolated ones, so long that a partition can have no edges; one has a self-loop."""
    generator = torch.Generator().manual_seed(3)
    edge_index = torch.cat([torch.randint(0, 28, (2, 90), generator=generator), torch.tensor([[4], [4]])], dim=1)
    weight = torch.rand(91, generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    return weighted_adjacency(edge_index, weight, 40, dtype)


def by_nodes(edges, machines):
    """Blocks of as many nodes each, the last without edges."""
    return np.linspace(0, len(edges), machines + 1).astype(np.int64)


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
    """A job's model and its local models of both rounds."""
    local = LocalSettings(model=kind, hops=2, dropout=0.3)
    settings = ModelSettings(dim=DIM, rounds=rounds, local=local)
    streams = LearningStreams(1, "A")
    return settings, nn.ModuleList(
        build_local(local, DIM, 2, last_round=round_ == rounds, streams=streams, round=round_, dtype=dtype)
        for round_ in range(1, rounds + 1)
    )


def check(group, kind, dtype, partition=balanced):
    """All that a job uses of a local model, against the same model on one machine."""
    adjacency, tolerance = graph_of(dtype), 1e-12 if dtype == torch.float64 else 1e-6
    _, alone = models(kind, dtype)
    settings, several = models(kind, dtype)
    machines = distribute(several, adjacency, settings, 2, group, partition)
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


def test_two_machines_compute_what_one_does(machines):
    with leading(machines.pair, 2) as group:
        for kind in PARTITIONED:
            check(group, kind, torch.float64)
            check(group, kind, torch.float32, by_nodes)


def test_three_machines_compute_what_one_does_until_one_is_lost(machines):
    with leading(machines.three, 3) as group:
        for kind in PARTITIONED:
            check(group, kind, torch.float64, by_nodes)
        adjacency = graph_of(torch.float64)
        settings, local = models("gcn", torch.float64)
        distribute(local, adjacency, settings, 2, group)
        result_of(local[0], adjacency, same=True, drops=False)
        machines.of_three[1].kill()
        started = time.monotonic()
        with pytest.raises(LinkError, match="another machine of this party is gone"):
            result_of(local[0], adjacency, same=True, drops=False)
    assert time.monotonic() - started < 20
    assert machines.of_three[0].wait(10) == 0


def test_a_machine_that_does_not_come_is_named():
    door = open_door("127.0.0.1", 0, new_secret())
    with pytest.raises(
        LinkTimeout, match=r"machine 1, 2 of this party did not come in 0.2 s; start there: veilgraph m"
    ):
        lead(door, 3, timeout_s=0.2, idle_s=1)


def test_what_looks_at_single_edges_runs_on_one_machine():
    settings, local = models("sage-lstm", torch.float64)
    with pytest.raises(ConfigError, match=r"'sage-lstm' does not run on several machines.*sage-mean, sage-pool, gcn"):
        distribute(local, graph_of(torch.float64), settings, 2, cast(MachineGroup, None))


def test_blocks_are_balanced_and_rows_of_the_whole():
    adjacency = random_adjacency(nodes=50, edges=400, weighted=True)
    edges = np.diff(adjacency.incoming.indptr)
    bounds = balanced(edges.astype(np.int64), 4)
    assert bounds[0] == 0
    assert bounds[-1] == 50
    cost = [int((edges[low:high] + 1).sum()) for low, high in pairwise(bounds)]
    assert max(cost) - min(cost) <= 2 * (edges.max() + 1)
    whole = adjacency.incoming.toarray()
    for machine, block in enumerate(cut(adjacency, bounds)):
        low, high = bounds[machine : machine + 2]
        again = Block.of_tensors(block.tensors())
        rows = whole[low:high]
        assert np.array_equal(again.incoming.toarray()[:, : high - low], rows[:, low:high])
        outside = np.flatnonzero(rows.any(axis=0) & ~np.isin(np.arange(50), np.arange(low, high)))
        assert np.array_equal(again.incoming.toarray()[:, high - low :], rows[:, outside])
        assert sum(again.receive_counts) == len(outside)
        assert again.send_counts[machine] == again.receive_counts[machine] == 0
