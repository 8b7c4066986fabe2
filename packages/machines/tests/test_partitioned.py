"""A local model over several machines against the same model on one; the machines are real processes."""

import time
from typing import Any, cast

import numpy as np
import pymetis
import pytest
import torch
from torch.distributed import FileStore
from veilgraph_machines.blocks import cut, metis
from veilgraph_machines.group import MachineGroup
from veilgraph_machines.local import distribute
from veilgraph_machines.machine import LOOPBACK
from veilgraph_machines.rendezvous import lead

from packages.machines.tests.several import Machines, check, graph_of, part_of, result_of
from tests.errors import refused
from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.nn.propagate import Adjacency

PARTITIONED = [name for name in LOCAL_MODELS.own if LOCAL_MODELS[name].is_partitioned]


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Started together, for imports take seconds."""
    started = Machines(tmp_path_factory.mktemp("meeting") / "store")
    yield started
    started.end()


def by_nodes(incoming, machines):
    """Blocks of as many nodes each, the last without edges."""
    return np.arange(incoming.shape[0]) * machines // incoming.shape[0]


def one_idle(incoming, machines):
    """Nodes turn by turn, the last machine without any."""
    return np.arange(incoming.shape[0]) % (machines - 1)


def test_three_machines_compute_what_one_does_until_one_is_lost(machines):
    with machines.leading() as group:
        for kind in PARTITIONED:
            check(group, kind, torch.float64, by_nodes)
            check(group, kind, torch.float64, one_idle)
            check(group, kind, torch.float64)
            check(group, kind, torch.float32)
        adjacency = graph_of(torch.float64)
        part = part_of("gcn", torch.float64, adjacency)
        distribute(part, group)
        result_of(part.local[0], adjacency, same=True, drops=False)
        machines.others[1].kill()
        started = time.monotonic()
        with refused(LinkError, code="machine-gone"):
            result_of(part.local[0], adjacency, same=True, drops=False)
    assert time.monotonic() - started < 20
    assert machines.others[0].wait(60) == 0


def test_a_machine_that_does_not_come_is_named(tmp_path):
    with refused(LinkTimeout, code="machine-missing", value=[1, 2]):
        lead(FileStore(str(tmp_path / "store")), 3, LOOPBACK, timeout_s=0.2, idle_s=1)


def test_what_looks_at_single_edges_runs_on_one_machine():
    part = part_of("sage-lstm", torch.float64, graph_of(torch.float64))
    with refused(ConfigError, key="model.local.model", value="sage-lstm"):
        distribute(part, cast(MachineGroup, None))


def rings(size, count, generator):
    """Rings of nodes in a random order; every fourth node has an edge in its own direction alone, and a self-loop."""
    order = torch.from_numpy(generator.permutation(size * count)).view(count, size)
    forth = torch.stack([order.flatten(), order.roll(1, 1).flatten()])
    back = forth.flip(0)[:, torch.arange(size * count) % 4 != 0]
    loops = order[:, ::4].flatten().repeat(2, 1)
    return Adjacency.of_edges(torch.cat([forth, back, loops], dim=1), None, size * count, torch.float32)


def test_metis_cuts_few_edges_and_gives_every_machine_as_much_and_the_same_every_time():
    adjacency = rings(100, 6, np.random.default_rng(1))
    edges = np.diff(adjacency.incoming.indptr)
    owner = metis(adjacency.incoming, 3)
    np.testing.assert_array_equal(owner, metis(adjacency.incoming, 3))
    loads = np.bincount(owner, edges + 1)
    assert loads.max() <= 1.05 * loads.mean()
    halo = sum(sum(block.receive_counts) for block in cut(adjacency, owner, 3))
    turns = sum(sum(block.receive_counts) for block in cut(adjacency, by_nodes(adjacency.incoming, 3), 3))
    assert halo <= 12  # of 600 nodes: two rings a machine, and few are cut
    assert turns > 300


def test_metis_is_shown_four_edges_into_a_node_both_ways_without_loops_and_the_load_of_all(monkeypatch):
    shown: dict[str, Any] = {}

    def part_graph(machines, adjacency, *, vweights):
        shown.update(pointers=adjacency.adj_starts, columns=adjacency.adjacent, weights=vweights)
        return pymetis.GraphPartition(0, [0] * len(vweights))

    monkeypatch.setattr(pymetis, "part_graph", part_graph)
    hub = torch.stack([torch.arange(40), torch.zeros(40, dtype=torch.int64)])  # 40 edges into node 0, one a loop
    ring = torch.stack([torch.arange(40), torch.arange(1, 41) % 40])
    metis(Adjacency.of_edges(torch.cat([hub, ring], dim=1), None, 40, torch.float32).incoming, 2)
    ends = np.repeat(np.arange(40), np.diff(shown["pointers"]))
    pairs = set(zip(ends.tolist(), shown["columns"].tolist(), strict=True))
    assert len(pairs) == len(ends)
    assert pairs == {(end, start) for start, end in pairs}
    assert all(start != end for start, end in pairs)
    assert {(k, (k + 1) % 40) for k in range(1, 39)} <= pairs
    assert 2 <= sum(start == 0 for start, _ in pairs) <= 5, "of 41 edges into the hub four, and its own to node 1"
    assert shown["weights"].tolist() == [42, *[2] * 39]


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_metis_divides_a_graph_without_edges_and_with_fewer_nodes_than_machines(nodes):
    none = torch.empty((2, 0), dtype=torch.int64)
    owner = metis(Adjacency.of_edges(none, None, nodes, torch.float32).incoming, 3)
    assert owner.shape == (nodes,)
    assert set(owner.tolist()) <= {0, 1, 2}
