"""What a job with ``averaging.symbols`` says, and what goes with it."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from veilgraph.core.settings import Settings
from veilgraph.protocol.job import JobSettings, TrainSettings, require

LEAST_EPSILON: Final = 0.5
"""Below it a symbol is noise: at 0.5 symbols added 0.1 points at most (docs/explanation/union.md)."""
_TRAIN: Final = TrainSettings(epochs=1, select_by="last", patience=None)


class SymbolSettings(Settings):
    """Each node releases one symbol, its label under randomised response, to the banks at its edges across.

    ``label_privacy.epsilon`` is its ε. Nothing else leaves a holder, and no weights are averaged.
    """

    answers: Literal["trained", "all"] = "trained"
    """whose nodes release one. trained: training nodes, and others learn which these are; all: of two classes, every
    node, so that ε covers being trained on as well
    """
    untrained: int = Field(0, ge=0, le=1)
    """with answers: all, the class, counted from 0, that nodes which are not trained on perturb: the frequent one"""
    allow_weak: bool = False
    """true: train even where public sizes say that symbols will add nothing"""


def check_symbols(job: JobSettings, own: Any) -> None:  # noqa: ANN401 - ``averaging``, of which this is a part
    """Refuse with ``ValueError`` what does not go with ``own.symbols``, or would be ignored beside it."""
    private = job.label_privacy
    why = "a node's label would be in both, and their ε are not counted together"
    require("averaging.symbols", ("averaging.privacy", own.privacy and "given", None, why))
    if private is None:
        raise ValueError(
            "averaging.symbols without label_privacy.epsilon: a symbol is a label under randomised response, and that "
            "is its ε; give label_privacy: {epsilon: 2}"
        )
    if private.epsilon < LEAST_EPSILON:
        raise ValueError(
            f"label_privacy.epsilon={private.epsilon:g} with averaging.symbols must be at least {LEAST_EPSILON:g}: "
            "below it symbols are noise; raise it, or leave symbols out"
        )
    if own.symbols.answers == "trained" and own.symbols.untrained:
        raise ValueError(
            f"averaging.symbols.untrained={own.symbols.untrained} with answers=trained: other nodes release nothing; "
            "leave it out, or set answers to all"
        )
    require(
        "averaging.symbols",
        ("averaging.task.name", own.task.name, "classes", "a symbol is the class of a node"),
        ("data.feature_scaling", job.data.feature_scaling, ["length", "row", "none"],
            "each holder standardises its own columns, and none are summed with others'"),
    )  # fmt: skip
    needs = {"model": type(job).model_fields["model"].default, "train": _TRAIN}
    unlike: list[tuple[str, object, object]] = [
        *((name, getattr(job, name), needed) for name, needed in needs.items()),
        *((f"averaging.{name}", value, field.default) for name, field, value in _others(own)),
    ]
    for name, given, needed in unlike:
        if given != needed:
            way_out = "set train to {epochs: 1, select_by: last, patience: null}" if name == "train" else "leave it out"
            raise ValueError(
                f"{name} with averaging.symbols: no weights are averaged, so what it says would be ignored; {way_out}, "
                "or leave averaging.symbols out"
            )


def _others(own: Any) -> list[tuple[str, Any, Any]]:  # noqa: ANN401 - as above
    return [
        (name, field, getattr(own, name))
        for name, field in type(own).model_fields.items()
        if name not in ("symbols", "task", "privacy")
    ]
