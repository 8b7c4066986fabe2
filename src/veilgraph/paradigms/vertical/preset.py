"""What ``preset: auto`` chooses in a vertical job; docs/presets.md has the figures that it was chosen by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from veilgraph.graph.settings import DEFAULT_DATASET, OF_WORDS
from veilgraph.protocol.preset import Choice, Said

_UNITS: Final = "columns have units of their own, and the ring bounds what embeddings may be"
_PASSES: Final = "no activation saturates"
_LENGTH: Final = "how large an embedding is tells something"
_EVEN: Final = "a class counts alike, however rare"
_RANKED: Final = "of rare classes accuracy says little"
_TIME: Final = "early stopping ends most trainings before"

_TABLES: Final = (
    Choice("data.feature_scaling", "standard", _UNITS),
    Choice("model.initial.activation", "relu", _PASSES),
    Choice("model.local.activation", "relu", _PASSES),
    Choice("model.local.normalize", False, _LENGTH),
    Choice("model.server.activation", "relu", _PASSES),
    Choice("model.server.layers", 2, "what holders bring together is not a sum of what each brings"),
    Choice("train.select_by", "loss", _RANKED),
    Choice("train.class_weights", "balanced", _EVEN),
    Choice("train.epochs", 150, _TIME),
    Choice("train.patience", 30, _TIME),
)


def choices(said: Said) -> Iterator[Choice]:
    """None where something is noised: what noise asks for is another matter, and is not known here."""
    if said.get("privacy") is not None or said.get("model.initial.method") == "perturbed":
        return
    dataset = said.get("data.dataset") or DEFAULT_DATASET
    if not said.brings and dataset in OF_WORDS:
        return
    yield from _TABLES
