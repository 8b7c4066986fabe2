"""What every job has, whatever its paradigm: frozen, validated once, unknown keys refused.

``protocol.job_file.read_job`` turns a YAML file into the settings of its paradigm, a subclass of ``JobSettings``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ModelWrapValidatorHandler, model_validator
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.settings import Registry, Settings, named_in
from veilgraph.core.types import MASKS, PartyId
from veilgraph.core.validation import NAME_PATTERN
from veilgraph.core.yaml_file import yaml_bytes
from veilgraph.graph.settings import DataSettings, PartitionSettings
from veilgraph.privacy.plan import TrainingPlan
from veilgraph.privacy.settings import LabelPrivacySettings, PrivacySettings
from veilgraph.protocol import preset
from veilgraph.protocol.facets import Duties, InputRules, NoiseFacts, Outcome, Passes
from veilgraph.protocol.figures import CLASS_MEASURES, Measures
from veilgraph.protocol.preset import AUTO, Choice, JobContent, Preset, resolved

ATTACKS: Final[Registry[Any]] = Registry(
    "veilgraph.attacks",
    {
        "link-similarity": "veilgraph.audit.edges:similarity",
        "link-supervised": "veilgraph.audit.edges:supervised",
        "link-propagation": "veilgraph.audit.edges:propagated",
        "link-influence": "veilgraph.audit.edges:influenced",
        "link-combination": "veilgraph.audit.edges:combined",
        "attribute": "veilgraph.audit.features:attribute",
        "attribute-release": "veilgraph.audit.features:from_release",
        "reconstruction": "veilgraph.audit.reconstruction:reconstruction",
        "feature-similarity": "veilgraph.audit.reconstruction:similarity",
        "known-weights": "veilgraph.audit.reconstruction:recovered",
        "equation-solving": "veilgraph.audit.features:solved",
        "generative-regression": "veilgraph.audit.features:generated",
        "label-gradient": "veilgraph.audit.labels:from_gradients",
        "label-completion": "veilgraph.audit.labels:completed",
        "label-blind": "veilgraph.audit.labels:blind",
        "label-symbol": "veilgraph.audit.labels:from_symbols",
        "membership-gradient": "veilgraph.audit.members:from_gradients",
        "membership-symbol": "veilgraph.audit.members:from_symbols",
        "membership-confidence": "veilgraph.audit.members:from_confidence",
        "membership-shadow": "veilgraph.audit.members:from_shadows",
        "membership-lira": "veilgraph.audit.members:from_likelihoods",
        "membership-lira-online": "veilgraph.audit.members:from_both_likelihoods",
    },
    kind="veilgraph.audit.attack:Attack",
)
"""Attacks on what a party is meant to have, whose figures a job may limit, by the names that findings and the command
line use. ``uniformity`` is of what must say nothing, ``epsilon`` of canaries, and ``CHECKS`` are of what a run claims.
"""

AttackName = Annotated[str, named_in(ATTACKS)]

Check = Literal["noise-level", "sampling-rate", "paid", "low-bits", "split", "row-order", "orders", "one-byte"]
"""Tests of what a run claims, which fail without a limit."""

CHECKS: Final[tuple[Check, ...]] = get_args(Check)
UNLIMITED: Final = ("uniformity", "epsilon", *CHECKS)
"""The names of all that is not of ``ATTACKS``."""
LimitedFigure = Literal["auc", "tpr_at_1_percent", "tpr_at_0_1_percent"]
Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class AttackLimit(Settings):
    """How much one attack may find. The upper end of a figure's 95 % interval is held to it."""

    auc: Annotated[float, Field(ge=0.5, le=1, allow_inf_nan=False)] | None = None
    """0.5 is chance"""
    tpr_at_1_percent: Rate | None = None
    """share that is found at 1 % false alarms; 0.01 is chance"""
    tpr_at_0_1_percent: Rate | None = None
    """the same at 0.1 %"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse a limit without a figure."""
        if not self.figures():
            raise ValueError("a limit is of auc, tpr_at_1_percent or tpr_at_0_1_percent; give one, or no limit")
        return self

    def figures(self) -> dict[LimitedFigure, float]:
        """Figure → the highest that passes, of those that are limited."""
        return {name: highest for name in LIMITED_FIGURES if (highest := getattr(self, name)) is not None}


def _number_as_auc(value: object) -> object:
    return {"auc": value} if isinstance(value, int | float | str) and not isinstance(value, bool) else value


LIMITED_FIGURES: Final[tuple[LimitedFigure, ...]] = get_args(LimitedFigure)
Limits = Mapping[
    AttackName, Annotated[AttackLimit, BeforeValidator(_number_as_auc, json_schema_input_type=AttackLimit | float)]
]
"""Attack → its limit; a number alone is the highest AUC that passes."""


def _check_printable(text: str) -> str:
    if any(not (character.isprintable() or character == "\n") for character in text):
        raise ValueError("has control characters, which change what a terminal shows; take them out")
    if not text.strip():
        raise ValueError("is empty; say something or leave it out")
    return text


Words = Annotated[str, Field(max_length=2000), AfterValidator(_check_printable)]


class RecordSettings(Settings):
    """Free text of a job, which no party computes with and every party agrees to."""

    purpose: Words | None = None
    """what model and predictions are for, and not for"""
    retention: Words | None = None
    """how long runs, models and predictions are kept; who deletes them"""
    roles: Words | None = None
    """controller, processor or contact of each party"""

    @model_validator(mode="after")
    def _check_texts(self) -> Self:
        if not any(self.told()):
            raise ValueError("record says nothing; give purpose, retention or roles, or leave record out")
        return self

    def told(self) -> Iterator[tuple[str, str]]:
        """Yield (name, text) of the fields that are given."""
        yield from ((name, text) for name, text in self if text is not None)


class TrainSettings(Settings):
    """Training: Adam with L2 everywhere but W of ``collaborative``."""

    epochs: int = Field(200, ge=1)
    """most passes over training nodes"""
    learning_rate: float = Field(0.01, gt=0)
    """Adam's, except for W of collaborative"""
    weight_decay: float = Field(5e-4, ge=0)
    """L2, of the same weights"""
    patience: int | None = Field(50, ge=1)
    """evaluations without a better one before training stops; null: never stops early"""
    select_by: str = Field("accuracy", pattern="^[a-z][a-z0-9_]*$")
    """figure that chooses the best epoch on validation nodes: accuracy, auc, f1, loss or another of the task (ties:
    lower loss); last: the last epoch, whose figures stay unknown
    """
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: a node of class c counts n/(C·n_c) in the loss"""
    evaluate_every: int = Field(1, ge=1)
    """epochs between evaluations at the label holder"""
    checkpoint_every: int = Field(10, ge=1)
    """epochs between checkpoints"""
    batch_size: int | None = Field(None, ge=1)
    """common nodes in a step; each holder draws their neighbourhoods; null: all"""
    refresh_every: int | None = Field(None, ge=1)
    """with batch_size: steps between renewals of h^0 and W; null: an epoch"""

    @model_validator(mode="after")
    def _check_training(self) -> Self:
        """Refuse ``refresh_every`` without batches, and ``patience`` where no epoch is judged."""
        if self.refresh_every is not None and self.batch_size is None:
            raise ValueError(
                f"refresh_every={self.refresh_every} counts batches, and without batch_size every step renews h^0; "
                "leave it out or set batch_size"
            )
        if self.select_by == "last" and self.patience is not None:
            raise ValueError(
                f"select_by='last' judges no epoch and patience={self.patience} waits for a better one; set patience "
                "to null"
            )
        return self


class JobSettings(Settings):
    """One job, the same at every party; each paradigm has a subclass of its own."""

    name: str = Field("job", pattern=NAME_PATTERN)
    """of the run's directory across organisations"""
    paradigm: str = "vertical"
    preset: Preset = AUTO
    """source of keys left out. auto: docs/guides/presets.md, and veilgraph check shows its choices; paper: this page.
    Stored jobs have all keys
    """
    seed: int = Field(0, ge=0, lt=2**63)
    """of partitions and splits; on one machine, without private seeds, also of weights and dropout"""
    precision: Literal["float32", "float64"] = "float32"
    """of weights and embeddings"""
    timeout_s: float = Field(600.0, gt=0)
    """longest wait for a message"""
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings()
    audit_limits: Limits = Field(default={})
    """attack → the most that veilgraph audit may find: an AUC, or {auc: , tpr_at_1_percent: , tpr_at_0_1_percent: }
    """

    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """where vertical jobs compute; auto: on a GPU, if any"""
    record: RecordSettings | None = None
    """facts about the job for people; all parties agree to them"""
    privacy: PrivacySettings | None = None
    """noise on edges of sealed jobs and of the learner in node-dp; null: none"""

    label_privacy: LabelPrivacySettings | None = None
    """trains on labels under randomised response, in vertical, horizontal, and averaging without averaging.privacy;
    null: on true labels
    """

    snapshot: str | None = Field(None, pattern=NAME_PATTERN)
    """of noisy releases (label_privacy, node-dp): jobs with the same name send the same bytes again at no cost; a new
    name releases and counts all records anew
    """

    @model_validator(mode="wrap")
    @classmethod
    def _choose(cls, content: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401 - of anywhere
        """Validate a job with the settings that its preset chooses for what it leaves out."""
        if not isinstance(content, Mapping):
            return handler(content)
        content = {"preset": preset.DEFAULT, **content}
        return resolved(content, offered(cls, content), handler)

    @classmethod
    def choices(cls, said: JobContent) -> Iterable[Choice]:
        """What ``preset: auto`` chooses in a paradigm: nothing that reveals more than the default does."""
        return ()

    @model_validator(mode="after")
    def _check_common(self) -> Self:
        """Hold a job to the rules between settings that are the same in every paradigm."""
        if self.train.select_by not in self.measures.selectable:
            raise ValueError(
                f"train.select_by={self.train.select_by!r} is no figure of this job; choose one of "
                f"{', '.join(self.measures.selectable)}"
            )
        is_kept = self.label_privacy is not None or self.noise.feature_release is not None
        if self.snapshot is not None and not is_kept:
            raise ValueError(
                f"snapshot={self.snapshot!r}: this job releases nothing that later jobs reuse; leave it out, or choose "
                "label_privacy or paradigm node-dp"
            )
        if self.label_privacy is not None and self.train.class_weights != "none":
            raise ValueError(
                "train.class_weights=balanced needs the true labels' shares, and with label_privacy nothing that "
                "leaves the label holder may depend on them; set it to none"
            )
        self._check_unused()
        return self

    def _check_unused(self) -> None:
        """Refuse settings for other paradigms; a subclass that uses some overrides the check of these."""
        data, divides = (
            self.data,
            "they divide a data set for paradigm=vertical; for horizontal there is data.partition",
        )
        require(
            f"paradigm={self.paradigm}",
            ("device", self.device, "cpu", "only paradigm=vertical computes elsewhere"),
            ("data.feature_proportions", data.feature_proportions, None, divides),
            ("data.edge_proportions", data.edge_proportions, None, divides),
            ("train.batch_size", self.passes.targets, None, "only paradigm=vertical trains on some nodes at a time"),
        )
        self._check_privacy()
        if self.label_privacy is not None:
            self._check_label_privacy(f"label_privacy.epsilon={self.label_privacy.epsilon:g}")
        self._check_parts()

    def _check_privacy(self) -> None:
        """Refuse ``privacy``, unless a paradigm overrides this."""
        why = "it is for paradigms sealed and node-dp, and averaging has averaging.privacy"
        require(f"paradigm={self.paradigm}", ("privacy", self.privacy and "given", None, why))

    def _check_label_privacy(self, said: str) -> None:
        """Refuse ``label_privacy``, which ``said`` names, unless a paradigm overrides this."""
        raise ValueError(
            f"{said} is for paradigm='vertical', 'horizontal' or 'averaging', and this is {self.paradigm!r}; leave it "
            "out (node-dp has release.labels)"
        )

    def _check_division(self, said: str) -> None:
        if self.data.partition.by == "labels":
            raise ValueError(
                f"{said} with data.partition.by=labels: which holder has a node tells its label; choose another "
                "division"
            )

    def _check_parts(self) -> None:
        """Refuse ``data.partition``, unless a paradigm overrides this."""
        if self.data.partition != PartitionSettings():
            raise ValueError("data.partition divides a data set for paradigm='horizontal'; leave it out")

    @property
    def measures(self) -> Measures:
        """The figures by which its model is judged, that of ``train.select_by`` first."""
        return CLASS_MEASURES.led_by(self.train.select_by)

    @property
    def is_aligned(self) -> bool:
        """Whether row v is the same node at every holder."""
        return True

    @property
    def training_plan(self) -> TrainingPlan | None:
        """The plan of a private training by noisy gradients; None in a job without one."""
        return None

    @property
    def duties(self) -> Duties:
        """Which holders do what."""
        return Duties(publishing=self.data.names, scoring=(self.data.label_party,))

    @property
    def passes(self) -> Passes:
        """How a training step runs."""
        return Passes(targets=self.train.batch_size)

    @property
    def inputs(self) -> InputRules:
        """What the holders' data may have."""
        return InputRules()

    @property
    def noise(self) -> NoiseFacts:
        """What leaves a holder with noise beside what ``privacy`` says, and how."""
        return NoiseFacts()

    @property
    def outcome(self) -> Outcome:
        """What is predicted, and of which data."""
        return Outcome()

    def hash(self) -> str:
        """SHA-256 (hex) of the settings: equal at parties that run the same job, wherever each keeps its files."""
        return self._hash

    @cached_property
    def _hash(self) -> str:
        content = self.model_dump(mode="json", exclude={"preset"})  # what the preset chose is in the rest
        data = content["data"]
        del data["root"], data["graphs"], data["parties"]
        data["holders"] = list(self.data.names)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @override
    def __copy__(self) -> Self:
        copied = super().__copy__()
        copied.__dict__.pop("_hash", None)  # ``model_copy`` changes fields of the copy, and so its hash
        return copied

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        copied = super().__deepcopy__(memo)
        copied.__dict__.pop("_hash", None)
        return copied


def offered(kind: type[JobSettings], content: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Return what the preset of a job (``content``, not validated yet) offers to choose; nothing unless it is auto."""
    return tuple(kind.choices(JobContent(content))) if content.get("preset", preset.DEFAULT) == AUTO else ()


def adds_noise(job: JobSettings) -> bool:
    """Whether anything leaves a holder with noise, or as if it had some."""
    facts = job.noise
    noise = (job.privacy, facts.feature_release, facts.label_release, job.label_privacy, job.training_plan)
    return any(settings is not None for settings in noise)


def perturbing(job: JobSettings) -> tuple[PartyId, ...]:
    """The holders that learn from perturbed labels, where they have any."""
    return () if job.label_privacy is None else job.duties.scoring


def perturbed_splits(job: JobSettings) -> tuple[str, ...]:
    """Return the masks whose labels are perturbed: the job's own; or train, val and, if several holders score, test."""
    if (stated := job.noise.label_splits) is not None:
        return stated
    return MASKS if len(job.duties.scoring) > 1 else MASKS[:2]


def require(cause: str, *rules: tuple[str, object, object, str]) -> None:
    """Refuse settings that do not go with another one, ``cause``.

    A rule is (setting, its value, the value that it needs or a list of these, why). Raises ``ValueError``.
    """
    words: dict[object, str] = {None: "null", (): "[]"}
    for name, value, needed, why in rules:
        allowed: list[object] = needed if isinstance(needed, list) else [needed]
        if value not in allowed:
            set_it = " or ".join(words.get(each, str(each)) for each in allowed)
            way_out = f"leave {name} out" if needed is None else f"set {name} to {set_it}"
            raise ValueError(f"{name}={value!r} with {cause}: {why}; {way_out}, or do without {cause}")


J = TypeVar("J", bound=JobSettings)


def job_of(kind: type[J], job: JobSettings) -> J:
    """Return ``job`` typed as ``kind``; raises ``ConfigError`` if it is of another paradigm."""
    if not isinstance(job, kind):
        wanted = kind.model_fields["paradigm"].default
        raise ConfigError(f"paradigm={job.paradigm}: this is about jobs of paradigm {wanted}; give one of these")
    return job


def write_job(settings: JobSettings, path: Path) -> None:
    """Writes the job as YAML, all defaults spelled out."""
    write_whole(path, yaml_bytes(settings.model_dump(mode="json")))
