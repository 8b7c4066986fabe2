"""Predictions of a run: at the label holder only, as a table for people and a file for programs."""

from __future__ import annotations

import csv
import io
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.paradigms.run_directory import PartyStore, load_tensors, save_tensors, write_whole

_FILE: Final = "predictions.safetensors"


@dataclass(frozen=True)
class Predictions:
    """Predictions for some nodes.

    Attributes:
        nodes: Tensor[n] int64.
        classes: Tensor[n] int64.
        probabilities: Tensor[n, C], rows sum to 1.
    """

    nodes: Tensor
    classes: Tensor
    probabilities: Tensor

    @classmethod
    def from_probabilities(cls, probabilities: Tensor) -> Predictions:
        """Every node's most probable class; probabilities are Tensor[N, C]."""
        return cls(torch.arange(len(probabilities)), probabilities.argmax(dim=1), probabilities)

    def of(self, nodes: Sequence[int]) -> Predictions:
        """Those of some nodes, in the order given."""
        chosen = torch.tensor(nodes, dtype=torch.int64)
        return Predictions(chosen, self.classes[chosen], self.probabilities[chosen])

    def csv(self) -> str:
        """``node,class,p0,p1,…``: one line per node."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["node", "class", *(f"p{index}" for index in range(self.probabilities.shape[1]))])
        columns = self.nodes.tolist(), self.classes.tolist(), self.probabilities.tolist()
        for node, predicted, chances in zip(*columns, strict=True):
            writer.writerow([node, predicted, *(f"{chance:.6f}" for chance in chances)])
        return text.getvalue()


def save_predictions(store: PartyStore, probabilities: Tensor) -> None:
    """Writes the label holder's predictions, Tensor[N, C], as CSV and as safetensors."""
    save_tensors(store.path / _FILE, {"probabilities": probabilities}, {})
    write_whole(store.path / "predictions.csv", Predictions.from_probabilities(probabilities).csv().encode())


def load_predictions(store: PartyStore) -> Predictions:
    """Reads what ``save_predictions`` wrote.

    Raises:
        RunError: it is missing or damaged.
    """
    return Predictions.from_probabilities(load_tensors(store.path / _FILE)[0]["probabilities"])


def checked_nodes(nodes: Sequence[int], count: int) -> list[int]:
    """The nodes as numbers.

    Raises:
        ConfigError: one is no whole number from 0 to ``count`` − 1.
    """
    checked = []
    for node in nodes:
        try:
            number = operator.index(node)
        except TypeError:
            number = -1
        if not 0 <= number < count:
            raise ConfigError(f"nodes: {node!r} is not a node; give whole numbers from 0 to {count - 1}")
        checked.append(number)
    return checked
