"""What came of a release, as a party keeps it and the learner reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import DataError, ProtocolError
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph

LABELS: Final = "labels"  # name of private labels among what came
_NONE, _TRAIN, _VAL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Releases:
    """The releases that a party works with.

    Attributes:
        number: of the release, the same at all holders.
        is_new: whether it was made in this session.
        tensors: at a holder that learns, what came, as it crossed the wire: private ``labels``, and
        ``features/<holder>``.
        columns: holder that releases → its d.
        classes: c, of private labels.
    """

    number: int
    is_new: bool
    tensors: Mapping[str, Tensor]
    columns: Mapping[PartyId, int]
    classes: int

    def labels(self, nodes: int) -> ReleasedLabels | None:
        """The labels that were released; None where the learner has its own.

        Raises ``ProtocolError`` where they are of other data, ``KeyError`` where they are missing.
        """
        return ReleasedLabels.unpacked(self.tensors[LABELS], nodes, self.classes) if self.classes else None


@dataclass(frozen=True, eq=False)
class ReleasedLabels:
    """Another holder's labels as the learner gets them, −1 where none was released, and masks: Tensor[C] each."""

    values: Tensor
    train: Tensor
    val: Tensor
    classes: int

    def of(self, graph: PartyGraph) -> PartyGraph:
        """Return the graph with these labels and masks, and no test mask."""
        return replace(
            graph,
            labels=self.values,
            train_mask=self.train,
            val_mask=self.val,
            test_mask=None,
            num_classes=self.classes,
        )

    def packed(self) -> Tensor:
        """Encode for the wire: Tensor[C, 2], 1 + label (0: none) and split; uint8 if classes fit, else int64."""
        split = self.train * _TRAIN + self.val * _VAL
        return torch.stack([self.values + 1, split], dim=1).to(_wire_type(self.classes))

    @classmethod
    def unpacked(cls, values: Tensor, nodes: int, classes: int) -> ReleasedLabels:
        """Decode what ``packed`` encoded for ``nodes`` C; ``ProtocolError`` for anything else."""
        if values.dtype != _wire_type(classes) or tuple(values.shape) != (nodes, 2) or not _are_labels(values, classes):
            raise ProtocolError(
                f"released labels are no labels of {nodes} nodes and {classes} classes, for training and validation; "
                "install the same release of veilgraph at every party",
                code="released-labels",
            )
        labels, split = values.to(torch.int64).unbind(dim=1)
        return cls(labels - 1, split == _TRAIN, split == _VAL, classes)


def released_labels(common: PartyGraph) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return labels, train and validation masks, and which labels to release: Tensor[C] each; ``DataError`` without."""
    labels, train, val = common.labels, common.train_mask, common.val_mask
    if labels is None or train is None or val is None:
        raise DataError(
            f"party {common.party!r}: labels: they or masks are missing, and release.labels names it; give them"
        )
    return labels, train, val, (train | val) & (labels >= 0)


def _are_labels(values: Tensor, classes: int) -> bool:
    """Whether each node has both a valid label and a split, or neither, and both splits have nodes."""
    labels, split = values.unbind(dim=1)
    known = (labels > 0) & (labels <= classes) & ((split == _TRAIN) | (split == _VAL))
    nothing = (labels == 0) & (split == _NONE)
    return bool((known | nothing).all()) and bool((split == _TRAIN).any()) and bool((split == _VAL).any())


def _wire_type(classes: int) -> torch.dtype:
    return torch.uint8 if classes < torch.iinfo(torch.uint8).max else torch.int64
