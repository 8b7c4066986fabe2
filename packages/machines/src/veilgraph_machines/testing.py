"""What a local model promises on several machines, beside ``veilgraph_testing.local_model``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import FileStore
from torch.testing import assert_close
from veilgraph_testing.graphs import random_rows, seeded
from veilgraph_testing.local_model import DIM, LocalModelConformance

from veilgraph.nn.local.model import LOCAL_MODELS, HopModel
from veilgraph.nn.propagate import Adjacency
from veilgraph.protocol.role import LocalPart
from veilgraph_machines.group import MachineGroup
from veilgraph_machines.local import distribute
from veilgraph_machines.machine import LOOPBACK
from veilgraph_machines.passes import serve
from veilgraph_machines.rendezvous import follow, lead

_LONG_S = 60.0


def check_machines(suite: LocalModelConformance) -> None:
    """Check that two machines compute what one does: results and gradients, of evaluation and of training.

    Args:
        suite: of a local model that ``is_partitioned``.
    """
    assert issubclass(LOCAL_MODELS[suite.name], HopModel)
    graphs = suite.graph(), suite.graph(weighted=True)
    with _two_machines(len(graphs)) as group:
        for graph in graphs:
            alone, several = (nn.ModuleList([suite.build(dropout=0.3, last_round=True)]) for _ in range(2))
            machines = distribute(LocalPart(several, graph, suite.settings(dropout=0.3), DIM, 2), group)
            assert list(several.state_dict()) == list(alone.state_dict())
            for generator in (lambda: None, lambda: seeded(5)):
                assert_close(_pass(several[0], graph, generator()), _pass(alone[0], graph, generator()))
            machines.close()


def _pass(model: nn.Module, graph: Adjacency, generator: torch.Generator | None) -> dict[str, Tensor]:
    """A pass from h and another h^0, and all gradients."""
    h, initial = (random_rows(DIM, seed=seed).requires_grad_() for seed in (1, 2))
    out = model(h, initial, graph, generator)
    named = {"h": h, "initial": initial, **dict(model.named_parameters())}
    found = torch.autograd.grad(out.cos().sum(), list(named.values()), allow_unused=True, materialize_grads=True)
    return {"t": out.detach(), **dict(zip(named, found, strict=True))}


@contextmanager
def _two_machines(jobs: int) -> Iterator[MachineGroup]:
    """A party's own process, and a thread as its other machine, for so many jobs one after another."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as threads:
        path = str(Path(folder) / "store")

        def other() -> None:
            with closing(follow(FileStore(path), 1, 2, LOOPBACK)) as group:
                for _ in range(jobs):
                    serve(group)

        following = threads.submit(other)
        with closing(lead(FileStore(path), 2, LOOPBACK, timeout_s=_LONG_S, idle_s=_LONG_S)) as group:
            yield group
            following.result(_LONG_S)
