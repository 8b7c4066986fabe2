"""Random splits of a graph's labelled nodes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS
from veilgraph.graph.party import PartyGraph
from veilgraph.tables.settings import SplitFractions
from veilgraph.tables.split import draw_splits


def masks_by_fractions(labels: Tensor, fractions: SplitFractions, name: str) -> dict[str, Tensor]:
    """Training, validation and test masks, drawn by ``draw_splits``: of each class the same fractions, or by node.

    Args:
        labels: Tensor[N] int64, negative where unlabelled.
        fractions: of the labelled nodes, and the seed.
        name: keeps draws for different data apart.

    Returns:
        ``train_mask``, ``val_mask`` and ``test_mask``, Tensor[N] bool each.
    """
    splits = torch.from_numpy(draw_splits(labels.to(torch.int32).numpy(), fractions, name))
    return {mask: splits == index for index, mask in enumerate(MASKS)}


def split_randomly(graph: PartyGraph, fractions: SplitFractions) -> PartyGraph:
    """The graph with masks drawn anew.

    Args:
        graph: with labels.
        fractions: 0.5, 0.25 and 0.25 are LPGNN's.

    Raises:
        DataError: there are no labels, or a fraction is too small for a node.
    """
    if graph.labels is None:
        raise DataError(f"party {graph.party!r}: labels: there are none, whose nodes a split divides; give some")
    found = replace(graph, **masks_by_fractions(graph.labels, fractions, graph.party))  # type: ignore[arg-type]
    found.check_split()
    return found
