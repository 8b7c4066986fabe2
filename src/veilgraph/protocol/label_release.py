"""Labels under randomised response, released a single time by the holder that has them to the one that learns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.local.publish_labels import learned_from

_NONE, _TRAIN, _VAL = 0, 1, 2
UNKNOWN: Final = -1


@dataclass(frozen=True, eq=False)
class ReleasedLabels:
    """What the learner has of another holder's labels. Test nodes' are not released.

    Attributes:
        values: Tensor[C] int64, −1 where none was released.
        train: Tensor[C] bool.
        val: Tensor[C] bool.
        classes: c.
    """

    values: Tensor
    train: Tensor
    val: Tensor
    classes: int

    def of(self, graph: PartyGraph) -> PartyGraph:
        """The graph with these labels and this split."""
        return replace(
            graph,
            labels=self.values,
            train_mask=self.train,
            val_mask=self.val,
            test_mask=None,
            num_classes=self.classes,
        )

    def packed(self) -> Tensor:
        """Tensor[C, 2]: 1 + label (0 for none), and the split; as it crosses the wire, in uint8 where classes fit."""
        split = self.train * _TRAIN + self.val * _VAL
        return torch.stack([self.values + 1, split], dim=1).to(_dtype(self.classes))

    @classmethod
    def unpacked(cls, values: Tensor, nodes: int, classes: int) -> ReleasedLabels:
        """Reads what ``packed`` wrote.

        Raises:
            ProtocolError: it is something else.
        """
        if values.dtype != _dtype(classes) or tuple(values.shape) != (nodes, 2) or not _are_labels(values, classes):
            raise ProtocolError(
                f"released labels are no labels of {nodes} nodes and {classes} classes, for training and validation; "
                "install the same release of veilgraph at every party",
                code="released-labels",
            )
        labels, split = values.to(torch.int64).unbind(dim=1)
        return cls(labels - 1, split == _TRAIN, split == _VAL, classes)


def with_perturbed(graph: PartyGraph, labels: Tensor) -> PartyGraph:
    """The graph with other labels at its training and validation nodes; the rest keep theirs.

    Args:
        graph: of common nodes alone, with labels.
        labels: Tensor[n] int64, in the order of ``learned_from``.
    """
    nodes = learned_from(graph.labels, graph.train_mask, graph.val_mask)
    known = torch.empty(0, dtype=torch.int64) if graph.labels is None else graph.labels.clone()
    known[nodes] = labels
    return replace(graph, labels=known)


def _are_labels(values: Tensor, classes: int) -> bool:
    """Classes that exist, just where a node is in a split, and both splits have nodes."""
    labels, split = values.unbind(dim=1)
    known = (labels > 0) & (labels <= classes) & ((split == _TRAIN) | (split == _VAL))
    nothing = (labels == 0) & (split == _NONE)
    return bool((known | nothing).all()) and bool((split == _TRAIN).any()) and bool((split == _VAL).any())


def _dtype(classes: int) -> torch.dtype:
    return torch.uint8 if classes < torch.iinfo(torch.uint8).max else torch.int64
