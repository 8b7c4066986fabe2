"""A local model over several machines against the same model on one; the machines are real processes."""

import time
from contextlib import contextmanager
from typing import cast

import numpy as np
import pytest
import torch
from veilgraph_machines.group import MachineGroup
from veilgraph_machines.local import distribute
from veilgraph_machines.rendezvous import lead, open_door
from veilgraph_machines.secret import new_secret

from packages.machines.tests.several import DIM, Machines, check, graph_of, models, result_of
from tests.errors import refused
from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout
from veilgraph.nn.local.model import LOCAL_MODELS

PARTITIONED = [name for name in LOCAL_MODELS.own if LOCAL_MODELS[name].is_partitioned]
LONG_S = 60.0


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


def by_nodes(edges, machines):
    """Blocks of as many nodes each, the last without edges."""
    return np.linspace(0, len(edges), machines + 1).astype(np.int64)


def test_three_machines_compute_what_one_does_until_one_is_lost(machines):
    with leading(machines.door, 3) as group:
        for kind in PARTITIONED:
            check(group, kind, torch.float64, by_nodes)
            check(group, kind, torch.float32)
        adjacency = graph_of(torch.float64)
        settings, local = models("gcn", torch.float64)
        distribute(local, adjacency, settings, DIM, 2, group)
        result_of(local[0], adjacency, same=True, drops=False)
        machines.others[1].kill()
        started = time.monotonic()
        with refused(LinkError, code="machine-gone"):
            result_of(local[0], adjacency, same=True, drops=False)
    assert time.monotonic() - started < 20
    assert machines.others[0].wait(60) == 0


def test_a_machine_that_does_not_come_is_named():
    door = open_door("127.0.0.1", 0, new_secret())
    with refused(LinkTimeout, code="machine-missing", value=[1, 2]):
        lead(door, 3, timeout_s=0.2, idle_s=1)


def test_what_looks_at_single_edges_runs_on_one_machine():
    settings, local = models("sage-lstm", torch.float64)
    with refused(ConfigError, key="model.local.model", value="sage-lstm"):
        distribute(local, graph_of(torch.float64), settings, DIM, 2, cast(MachineGroup, None))
