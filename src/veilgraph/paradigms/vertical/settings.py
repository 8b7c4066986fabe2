"""A vertical job (VFGNN): holders of the same nodes. Every default here is the paper's where the paper names one.

docs/guides/presets.md has the figures by which the choices of ``preset: auto`` were found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import field_validator

from veilgraph.graph.settings import OF_WORDS
from veilgraph.nn.local.build import CustomLocal, FirstSettings
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.paradigms.vertical.network import ModelSettings
from veilgraph.protocol.facets import InputRules, Passes
from veilgraph.protocol.job import JobSettings, job_of, require
from veilgraph.protocol.preset import Choice, JobContent

_UNITS: Final = "columns have units of their own, and the ring bounds what embeddings may be"
_WORDS: Final = "rows of words differ in length alone"
_PASSES: Final = "it does not saturate"
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
    Choice("train.select_by", "auc", "a class may be rare, and accuracy says little of it then"),
    Choice("train.class_weights", "balanced", "a class may be rare, and counts as much as another then"),
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


def _unsuited_presets(said: JobContent) -> set[str]:
    """Keys of presets that do not suit a job with settings ``said``: no effect there, or chosen for other jobs."""
    found = set[str]()
    if said.get("model.initial.method", "collaborative") != "collaborative":  # Adam learns W
        found |= {"model.initial.learning_rate", "model.initial.weight_decay"}
    local = said.get("model.local.model", FirstSettings().model)
    if local not in LOCAL_MODELS or "start" not in LOCAL_MODELS[local].settings.model_fields:
        found |= {"model.local.start", "model.local.learning_rate"}
    if said.get("label_privacy") is not None:  # the classes' shares are private; and decay outweighs so weak a loss
        found |= {"train.class_weights", "train.weight_decay"}
    return found


class VerticalJob(JobSettings):
    """Holders have other columns, and edges of their own, of the same nodes."""

    paradigm: Literal["vertical"] = "vertical"
    model: ModelSettings = ModelSettings()
    """the network"""

    privacy: None = None
    """null: a vertical job has no noise on what holders publish"""

    @field_validator("privacy", mode="before")
    @classmethod
    def _without_privacy(cls, given: object) -> object:
        if given is not None:
            raise ValueError(
                "it is for paradigms sealed and node-dp: noise on every row that a vertical job publishes gained "
                "nothing over the label holder's own columns; take paradigm: sealed, whose votes have noise, or leave "
                "privacy out"
            )
        return given

    @classmethod
    def choices(cls, said: JobContent) -> Iterable[Choice]:
        """Preset choices that suit the job's data: few dense columns, or many sparse ones as of words."""
        both = ("train.evaluate_every", "train.patience")  # each counts by the other
        apart = set[str](both if any(key in said for key in both) else ())
        usual = "row" if said.name("data.dataset") in OF_WORDS else "standard"
        offered = _SPARSE if said.get("data.feature_scaling", usual) == "row" else _DENSE
        apart |= _unsuited_presets(said)
        yield from (choice for choice in offered if choice.key not in apart)

    def _check_unused(self) -> None:
        self._check_parts()
        self._check_batches()

    def _check_batches(self) -> None:
        model = self.model
        if self.train.batch_size is None:
            fanout = ("model.local.fanout", model.local.fanout, None, "it bounds the neighbourhoods of batches")
            require("train.batch_size=null", fanout)
            return
        require(
            "train.batch_size",
            ("model.rounds", model.rounds, 1, "a second round would ask for the neighbours, and so tell edges"),
            ("model.head.logit_hops", model.head.logit_hops, 0, "they reach beyond a batch"),
        )

    @property
    def passes(self) -> Passes:
        return Passes(
            targets=self.train.batch_size,
            exchanges=("model.rounds", self.model.rounds),
            is_masked=self.model.combine.is_masked,
        )

    @property
    def inputs(self) -> InputRules:
        return InputRules(
            is_relational=self.model.local.kind.is_relational, is_custom=issubclass(self.model.local.kind, CustomLocal)
        )

    @property
    def publishes_once(self) -> bool:
        """Whether training draws nothing at random, so that a step need not resend what the last evaluation sent."""
        model = self.model
        draws = model.initial.dropout or model.local.dropout or model.local.kind.draws
        return not draws and self.train.batch_size is None


def vertical(job: JobSettings) -> VerticalJob:
    """Return ``job`` typed as a vertical job; ``ConfigError`` where it is of another paradigm."""
    return job_of(VerticalJob, job)
