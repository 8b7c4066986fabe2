"""Small graphs for tests of networks' parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from veilgraph.graph.rules import Relation
from veilgraph.nn.propagate import Adjacency

NODES = 12
ISOLATED = 2
"""Of them, the last, in ``random_graph``."""


def random_graph(
    dtype: torch.dtype = torch.float64,
    *,
    seed: int = 0,
    weighted: bool = False,
    relations: tuple[Relation, ...] = (),
) -> Adjacency:
    """Thirty directed edges among the first ten of twelve nodes, some of them twice, some from a node to itself."""
    generator = seeded(seed)
    edge_index = torch.randint(0, NODES - ISOLATED, (2, 30), generator=generator)
    weight = torch.rand(30, generator=generator, dtype=dtype) + 0.1 if weighted else None
    return of_relations(edge_index, weight, NODES, dtype, relations)


def of_relations(
    edge_index: Tensor, weight: Tensor | None, nodes: int, dtype: torch.dtype, relations: tuple[Relation, ...]
) -> Adjacency:
    """Edges that are of some relations in turn, in the order given; all alike where there are none."""
    turns = torch.arange(edge_index.shape[1]) % len(relations) if relations else None
    return Adjacency.of_edges(edge_index, weight, nodes, dtype, relations=relations, edge_relation=turns)


def without_edges(nodes: int = NODES, *, relations: tuple[Relation, ...] = ()) -> Adjacency:
    """Isolated nodes, in float64."""
    return of_relations(torch.empty(2, 0, dtype=torch.int64), None, nodes, torch.float64, relations)


def path(nodes: int, missing: int | None = None) -> Adjacency:
    """A path in both directions, in float64, less the edges between ``missing`` and the node after it."""
    ahead = torch.tensor([[node, node + 1] for node in range(nodes - 1) if node != missing]).T
    return Adjacency.of_edges(torch.cat([ahead, ahead.flip(0)], dim=1), None, nodes, torch.float64)


def random_rows(dim: int, nodes: int = NODES, seed: int = 1) -> Tensor:
    """Normal float64 [nodes, dim]."""
    return torch.randn(nodes, dim, dtype=torch.float64, generator=seeded(seed))


def check_part(
    parts: Mapping[str, Any], name: str, read: Callable[[dict[str, object]], Any], said: Mapping[str, object]
) -> None:
    """What holds of every part that a job names: its settings are read by it alone, and its words are of one line.

    ``read`` makes its settings of what a job says; ``said`` is that.
    """
    kind, settings = parts[name], read(dict(said))
    assert settings.kind is kind
    assert isinstance(settings, kind.settings)
    assert read(settings.model_dump(mode="json")) == settings
    assert kind.words == kind.words.strip(" .")
    assert "\n" not in kind.words
    assert is_refused(read, {**said, "no_such_setting": 1}), "a setting that does not exist was accepted"


def is_refused(read: Callable[[dict[str, object]], object], said: dict[str, object]) -> bool:
    """Whether settings are refused."""
    try:
        read(said)
    except ValidationError:
        return True
    return False


def seeded(seed: int) -> torch.Generator:
    """A source of draws."""
    return torch.Generator().manual_seed(seed)
