"""The job: frozen, validated once, unknown keys refused.

``read_job`` turns a YAML file into ``JobSettings``. Every default is the paper's where the paper names one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final, Literal, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from veilgraph.core.audit_settings import Limits
from veilgraph.core.data_settings import NAME_PATTERN, DataSettings, PartSettings
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.horizontal_settings import HorizontalSettings
from veilgraph.core.local_settings import LocalSettings
from veilgraph.core.model_settings import MAX_DETECTED_BITS, ModelSettings
from veilgraph.core.privacy_settings import PrivacySettings
from veilgraph.core.release_settings import FeatureReleaseSettings
from veilgraph.core.settings import Settings
from veilgraph.core.types import PartyId
from veilgraph.core.yaml_file import read_yaml


class TrainSettings(Settings):
    """Training: Adam with L2 everywhere but W of ``collaborative``."""

    epochs: int = Field(200, ge=1)
    learning_rate: float = Field(0.01, gt=0)
    weight_decay: float = Field(5e-4, ge=0)
    patience: int | None = Field(50, ge=1, description="evaluations without a better one before stopping; null: never")
    select_by: Literal["accuracy", "auc", "f1", "loss", "last"] = Field(
        "accuracy",
        description="what the best epoch has the best of on the validation nodes; ties: the lower loss; last: the last "
        "epoch is taken, and nobody is told how it did",
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="balanced: a training node of class c counts n/(C·n_c) in the loss, as if classes were even"
    )
    evaluate_every: int = Field(1, ge=1, description="epochs between evaluations at the label holder")
    checkpoint_every: int = Field(10, ge=1, description="epochs between checkpoints")
    batch_size: int | None = Field(
        None, ge=1, description="common nodes in a step; each holder draws their neighbourhoods by itself; null: all"
    )
    refresh_every: int | None = Field(
        None,
        ge=1,
        description="with batch_size: steps from one h^0 of all nodes and update of W to the next; null: an epoch",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
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


_NETWORKS: Final = {"vertical": "model", "horizontal": "horizontal", "local": "local"}
"""Paradigm → the part of a job that describes its network."""


class JobSettings(Settings):
    """One job, the same at every party."""

    name: str = Field("job", pattern=NAME_PATTERN)
    paradigm: Literal["vertical", "horizontal", "local"] = Field(
        "vertical",
        description="holders of the same nodes; of the same columns; or of nodes that perturb their features by "
        "themselves, for one holder that knows the graph",
    )
    seed: int = Field(0, ge=0, lt=2**63)
    precision: Literal["float32", "float64"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = Field(
        "cpu", description="where a party computes, paradigm vertical; auto: on its GPU if it has one"
    )
    timeout_s: float = Field(600.0, gt=0, description="longest wait for another party's message")
    data: DataSettings = DataSettings()
    model: ModelSettings = Field(ModelSettings(), description="the network of the vertical paradigm")
    horizontal: HorizontalSettings = Field(HorizontalSettings(), description="the network of the horizontal paradigm")
    local: LocalSettings = Field(LocalSettings(), description="the local paradigm: what is released, and the network")
    train: TrainSettings = TrainSettings()
    privacy: PrivacySettings | None = Field(None, description="null: no differential privacy")
    limits: Limits = Field(
        default={},
        description="attack → what veilgraph audit lets it find at most: an AUC, or {auc: , tpr_at_1_percent: , "
        "tpr_at_0_1_percent: }",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_paradigm()
        self._check_batches()
        if self.model.initial.release is not None:
            self._check_perturbed()
        if self.privacy is not None:
            (self._check_once if self.privacy.once else self._check_every_step)()
        return self

    def _check_paradigm(self) -> None:
        for paradigm, name in _NETWORKS.items():
            if paradigm != self.paradigm and getattr(self, name) != type(getattr(self, name))():
                raise ValueError(f"{name} is not the network of paradigm={self.paradigm!r}; leave it out")
        if self.paradigm != "horizontal" and self.data.parts != PartSettings():
            raise ValueError("data.parts divides a data set for paradigm='horizontal'; leave it out")
        if self.device != "cpu" and (self.paradigm != "vertical" or (self.privacy is not None and self.privacy.once)):
            raise ValueError(
                f"device={self.device!r} is for paradigm='vertical' without a single release; leave it out: the others "
                "compute on the CPU"
            )
        if self.paradigm != "vertical":
            if self.data.feature_proportions is not None or self.data.edge_proportions is not None:
                raise ValueError(
                    "data.feature_proportions and edge_proportions divide a data set for paradigm='vertical'; leave "
                    "them out, and see data.parts for paradigm='horizontal'"
                )
            if self.privacy is not None:
                raise ValueError("privacy is for paradigm='vertical'; leave it out")
        if self.paradigm == "horizontal":
            self._check_horizontal()
        if self.paradigm == "local":
            self._check_local()

    def _check_batches(self) -> None:
        if self.train.batch_size is None:
            if self.model.local.fanout is not None:
                raise ValueError(
                    f"model.local.fanout={self.model.local.fanout} bounds the neighbourhoods of batches; leave it out "
                    "or set train.batch_size"
                )
            return
        rules = (
            ("paradigm", self.paradigm, "vertical", "the others train on all nodes at once"),
            ("model.rounds", self.model.rounds, 1, "a second round would ask for the neighbours, and so tell edges"),
            ("model.head.logit_hops", self.model.head.logit_hops, 0, "they reach beyond a batch"),
            ("privacy", self.privacy, None, "its ledger counts releases of all rows"),
        )
        for name, value, needed, why in rules:
            if value != needed:
                raise ValueError(
                    f"train.batch_size needs {name}={'null' if needed is None else needed}: {why}; set it so or leave "
                    "batch_size out"
                )

    def _check_horizontal(self) -> None:
        if self.train.class_weights != "none" or self.train.select_by == "auc":
            raise ValueError(
                "train.class_weights=balanced and train.select_by=auc do not follow from sums over the holders, and "
                "these are all that they open; choose none, and accuracy, f1 or loss"
            )

    def _check_local(self) -> None:
        labels = self.local.labels
        if self.local.features is None:
            raise ValueError(
                "paradigm='local' needs local.features, which says how nodes release theirs; give at least its epsilon"
            )
        if self.data.feature_scaling != "none":
            raise ValueError(
                f"data.feature_scaling={self.data.feature_scaling!r} computes with values that nodes keep to "
                "themselves; set it to none, and local.features.low and high to the range of the values as they are"
            )
        if labels is None:
            return
        if labels.holder not in self.releasing:
            raise ValueError(
                f"local.labels.holder={labels.holder!r} is not one of the holders that release, "
                f"{', '.join(self.releasing)}; name one of them"
            )
        if self.train.class_weights != "none":
            raise ValueError(
                "train.class_weights=balanced needs the true labels' shares, and with local.labels they are private; "
                "set it to none"
            )

    def _check_perturbed(self) -> None:
        if self.privacy is not None:
            raise ValueError(
                "privacy noises what a holder publishes and model.initial.method=perturbed its features, and their ε "
                "are not counted together; leave one of them out"
            )
        if self.data.feature_scaling == "standard":
            raise ValueError(
                "data.feature_scaling='standard' computes with all nodes' values, and with "
                "model.initial.method=perturbed each node perturbs its own alone; choose none or row"
            )

    def _check_every_step(self) -> None:
        if self.model.combine.strategy == "degree-weighted":
            raise ValueError(
                "privacy publishes noisy rows and model.combine.strategy='degree-weighted' exact degrees; choose mean, "
                "concat or regression"
            )
        if self.train.select_by != "last":
            raise ValueError(
                f"train.select_by={self.train.select_by!r} tells all parties which epochs fit the validation labels "
                "better, without noise; with privacy set select_by to last and patience to null"
            )

    def _check_once(self) -> None:
        rules = (
            ("model.rounds", self.model.rounds, 1, "a single release is a single round"),
            ("model.initial.method", self.model.initial.method, "individual", "each holder projects its own features"),
            ("model.local.model", self.model.local.model, "appnp", "the released propagation has no trained weights"),
        )
        for name, value, needed, why in rules:
            if value != needed:
                raise ValueError(f"privacy.schedule=once needs {name}={needed}, not {value}: {why}")
        if self.model.combine.strategy not in ("mean", "concat"):
            raise ValueError(
                f"privacy.schedule=once needs model.combine.strategy mean or concat, not "
                f"{self.model.combine.strategy}: what a holder releases has no trained weights and no exact degrees"
            )
        if self.model.combine.masked and len(self.publishing) == 1:
            raise ValueError(
                "model.combine.masked=true hides one of several embeddings, and with privacy.schedule=once and 2 "
                "holders there is one alone; leave masked out"
            )
        if self.privacy is not None and self.privacy.unit == "node" and self.data.feature_scaling == "standard":
            raise ValueError(
                "privacy.unit=node needs features that are not scaled by statistics of a whole column, as "
                "data.feature_scaling=standard does: they carry one node to every row; set it to none or row (tables: "
                "declare ranges with nodes.features, scale), or choose unit row or edge"
            )

    @property
    def publishing(self) -> tuple[PartyId, ...]:
        """The holders that publish embeddings: all; with ``privacy.schedule: once`` all but the label holder."""
        once = self.privacy is not None and self.privacy.once
        return tuple(name for name in self.data.names if not (once and name == self.data.label_party))

    @property
    def releasing(self) -> tuple[PartyId, ...]:
        """The holders whose nodes release perturbed features; in paradigm local all but the one that learns."""
        if self.paradigm == "local":
            return tuple(name for name in self.data.names if name != self.data.label_party)
        return self.data.names if self.feature_release is not None else ()

    @property
    def per_node(self) -> tuple[PartyId, ...]:
        """The holders whose ε is of one node's features: these must be made of that node's own values alone."""
        of_nodes = self.privacy is not None and self.privacy.unit == "node"
        return self.publishing if of_nodes else self.releasing

    @property
    def learning(self) -> tuple[PartyId, ...]:
        """The holders that are given what others release; in paradigm local the label holder alone."""
        if self.paradigm == "local":
            return (self.data.label_party,)
        return self.releasing

    @property
    def feature_bits(self) -> int | None:
        """Fractional bits of features in the ring, where they do not depend on them; None where each holder states how
        many its features need, which tells something of every value.
        """
        stated = self.model.initial.feature_bits
        return MAX_DETECTED_BITS if stated is None and self.privacy is not None else stated

    @property
    def feature_release(self) -> FeatureReleaseSettings | None:
        """How nodes perturb their features; None in a job where they do not."""
        return self.local.features if self.paradigm == "local" else self.model.initial.release

    @property
    def passes_cost(self) -> bool:
        """Whether every forward pass is a release that a privacy budget pays for."""
        return self.privacy is not None and not self.privacy.once

    @property
    def is_masked(self) -> bool:
        """Whether single embeddings are hidden from the server, for which there must be more than one."""
        return self.model.combine.is_masked and len(self.publishing) > 1

    def hash(self) -> str:
        """SHA-256 (hex) of the settings: equal at parties that run the same job, wherever each keeps its files."""
        content = self.model_dump(mode="json")
        content["data"].pop("root")
        content["data"]["parties"] = list(self.data.names)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def parse_job(data: object, source: str = "job") -> JobSettings:
    """Validates settings that came from YAML or a dictionary.

    Raises:
        ConfigError: names the first broken key, its value and the rule.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: a job is a mapping of settings, not {type(data).__name__}; see the README's job")
    try:
        return JobSettings.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_problem(error)}") from error


def read_job(path: Path) -> JobSettings:
    """Reads and validates a job file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks a rule.
    """
    data = read_yaml(path, "job file")
    return parse_job({} if data is None else data, str(path))


def write_job(settings: JobSettings, path: Path) -> None:
    """Writes the job as YAML, all defaults spelled out."""
    content = settings.model_dump(mode="json")
    content["data"]["holders"] = len(settings.data.names)
    write_whole(path, yaml.safe_dump(content, sort_keys=False).encode())


def first_problem(error: ValidationError) -> str:
    """The first broken key of settings, its value and the rule, on one line."""
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"]) or "job"
    if problem["type"] == "extra_forbidden":
        return f"{key} is not a setting (value {problem['input']!r}); remove it or mend its name"
    message = problem["msg"].removeprefix("Value error, ")
    if isinstance(problem["input"], dict | BaseModel):
        return f"{key}: {message}"
    return f"{key}={problem['input']!r}: {message}"
