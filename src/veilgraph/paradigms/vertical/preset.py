"""What ``preset: auto`` chooses in a vertical job; docs/presets.md has the figures that it was chosen by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from veilgraph.graph.settings import OF_WORDS
from veilgraph.nn.local.build import FirstSettings
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.protocol.preset import Choice, Said

_UNITS: Final = "columns have units of their own, and the ring bounds what embeddings may be"
_WORDS: Final = "rows of words differ in length alone"
_PASSES: Final = "it does not saturate"
_OF_NODES: Final = ("node", "node-edges")
_OWN_HOPS: Final = 8
_EPOCHS: Final = "early stopping ends most trainings before"
_COLUMNS: Final = "no column is relied on by itself"

_DENSE: Final = (
    Choice("data.feature_scaling", "standard", _UNITS),
    Choice("model.initial.activation", "relu", _PASSES),
    Choice("model.initial.dropout", 0.3, _COLUMNS),
    Choice("model.local.model", "sage-vpa", "more neighbours that agree say more"),
    Choice("model.local.activation", "relu", _PASSES),
    Choice("model.local.normalize", False, "how large an embedding is tells something"),
    Choice("model.server.activation", "relu", _PASSES),
    Choice("train.weight_decay", 1e-2, "few nodes have labels"),
    Choice("train.select_by", "auc", "accuracy says little of rare classes"),
    Choice("train.class_weights", "balanced", "a rare class counts as much as another"),
    Choice("train.epochs", 120, _EPOCHS),
    Choice("train.evaluate_every", 2, "an evaluation is as much traffic as half a step"),
    Choice("train.patience", 15, "evaluations are every second epoch"),
)
"""A few columns of any kind, most of them there at a node."""
_SPARSE: Final = (
    Choice("data.feature_scaling", "row", _WORDS),
    Choice("model.initial.learning_rate", 10.0, "rows of x sum to 1, so gradients are small"),
    Choice("model.initial.weight_decay", 1e-3, _COLUMNS),
    Choice("model.initial.activation", "relu", _PASSES),
    Choice("model.initial.dropout", 0.7, _COLUMNS),
    Choice("model.local.hops", 3, "neighbours write of the same"),
    Choice("model.local.start", "average", "few nodes have labels, and averaging needs none"),
    Choice("model.local.learning_rate", 3e-4, "the hops leave averaging slowly"),
    Choice("model.server.activation", "tanh", "sigmoid saturates"),
    Choice("train.evaluate_every", 2, "an evaluation is as much traffic as half a step"),
    Choice("train.patience", 15, "evaluations are every second epoch"),
)
"""Words: many columns, few of them there at a node."""


_RELEASED: Final = (
    Choice("model.initial.method", "individual", "each holder projects its own features", needed=True),
    Choice("model.local.model", "appnp", "what is released was trained on nothing", needed=True),
    Choice("model.initial.activation", "relu", _PASSES),
    Choice("model.initial.dropout", 0.5, _COLUMNS),
    Choice("model.local.activation", "none", _PASSES),
    Choice("model.server.layers", 0, "the label holder learns by itself"),
    Choice("train.learning_rate", 0.03, "nothing is sent in a step"),
    Choice("train.weight_decay", 5e-3, "few nodes have labels"),
    Choice("train.epochs", 300, _EPOCHS),
    Choice("train.evaluate_every", 2, "an evaluation takes as long as a step"),
)
"""One noisy release, from which the label holder learns by itself."""
_RELEASED_DENSE: Final = (
    Choice("train.select_by", "auc", "accuracy says little of rare classes"),
    Choice("train.class_weights", "balanced", "a rare class counts as much as another"),
)


def choices(said: Said) -> Iterator[Choice]:
    """What fits what the job says; nothing where every step is noised, or features are before anybody sees them."""
    if said.get("model.initial.method") == "perturbed":
        return
    if said.get("privacy") is not None:
        if said.get("privacy.schedule", "once") == "once":
            together = _counted(said)
            yield from (choice for choice in _of_release(said) if choice.key not in together)
        return
    usual = "row" if said.get("data.dataset") in OF_WORDS else "standard"
    apart = _apart(said)
    for choice in _SPARSE if said.get("data.feature_scaling", usual) == "row" else _DENSE:
        if choice.key not in apart:
            yield choice


def _of_release(said: Said) -> Iterator[Choice]:
    """With one release. Statistics of a whole column would carry one node to every row where ε is of a node."""
    is_of_words = said.get("data.dataset") in OF_WORDS or said.get("data.feature_scaling") == "row"
    of_nodes = said.get("privacy.unit", "row") in _OF_NODES
    if is_of_words or not of_nodes:
        yield Choice("data.feature_scaling", "row" if is_of_words else "standard", _WORDS if is_of_words else _UNITS)
    yield from _RELEASED
    if said.get("privacy.aggregation") is not None:  # else they are hops of what is released, each of which costs ε
        yield Choice("model.local.hops", _OWN_HOPS, "the label holder's own links cost no ε")
        yield Choice("model.local.teleport", 0.05, "far neighbours say much where few nodes have labels")
    if not is_of_words:
        yield from _RELEASED_DENSE


def _counted(said: Said) -> tuple[str, ...]:
    """Keys that the job says one of, and each of which counts by the other."""
    both = ("train.evaluate_every", "train.patience")
    return both if any(key in said for key in both) else ()


def _apart(said: Said) -> frozenset[str]:
    """Keys that mean nothing beside what the job says, or another thing than was chosen for."""
    found = set[str]()
    if said.get("model.initial.method", "collaborative") != "collaborative":  # Adam learns W
        found.update(f"model.initial.{key}" for key in ("learning_rate", "weight_decay"))
    local = said.get("model.local.model", FirstSettings().model)
    if local not in LOCAL_MODELS or "start" not in LOCAL_MODELS[local].settings.model_fields:
        found.update(("model.local.start", "model.local.learning_rate"))
    found.update(_counted(said))
    if said.get("label_privacy") is not None:  # the classes' shares are private; and decay outweighs so weak a loss
        found.update(("train.class_weights", "train.weight_decay"))
    return frozenset(found)
