"""The job: frozen, validated once, unknown keys refused.

``read_job`` turns a YAML file into ``JobSettings``. Every default is the paper's where the paper names one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, PartyId

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
PartyName = Annotated[PartyId, Field(pattern=NAME_PATTERN)]
PARTY_FILE_SUFFIXES = (".yaml", ".yml")
Proportion = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(_Settings):
    """Which graph, and how it is divided among the holders.

    Either a public data set that is split vertically for simulation (``dataset``), or one saved party graph per
    holder (``parties``).
    """

    dataset: Literal["digits", "synthetic", "cora", "citeseer", "pubmed", "acm", "amazon", "ogbn-arxiv"] = "digits"
    root: Path | None = Field(None, description="folder that holds the data set's files")
    holders: int = Field(2, ge=2, le=26, description="how many data holders")
    feature_proportions: tuple[Proportion, ...] | None = Field(None, description="share of the columns per holder")
    edge_proportions: tuple[Proportion, ...] | None = Field(None, description="share of the edges per holder")
    feature_scaling: Literal["none", "row", "standard"] = Field(
        "none",
        description="done by each holder on its own columns: rows to sum 1 (for holders with about as many columns "
        "each), or columns to mean 0, variance 1",
    )
    parties: dict[PartyName, Path | None] | None = Field(
        None,
        description="holder name → its saved graph (.safetensors) or its party file (.yaml); a list of names where "
        "every holder joins with a party file of its own",
    )
    label_holder: PartyId | None = Field(None, description="default: the first holder")

    @model_validator(mode="before")
    @classmethod
    def _count_parties(cls, data: object) -> object:
        """Whoever names the parties need not count them."""
        if isinstance(data, dict) and data.get("parties") is not None and "holders" not in data:
            return {**data, "holders": max(2, len(data["parties"]))} if isinstance(data["parties"], Sized) else data
        return data

    @field_validator("parties", mode="before")
    @classmethod
    def _names_only(cls, value: object) -> object:
        """A list of names stands for parties that each keep their file to themselves."""
        if isinstance(value, list | tuple):
            for name in value:
                if not isinstance(name, str):
                    raise ValueError(f"{name!r} is no name; give the holders' names")
                if value.count(name) > 1:
                    raise ValueError(f"{name!r} is named twice; names are unique")
            return dict.fromkeys(value)
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("feature_proportions", "edge_proportions"):
            value = getattr(self, name)
            if value is not None and len(value) != self.holders:
                raise ValueError(f"{name} has {len(value)} numbers for holders={self.holders}; give one per holder")
        if self.parties is not None:
            self._check_parties(self.parties)
        if SERVER in self.names:
            raise ValueError(f"a holder may not be called {SERVER!r}: that is the server's name; rename it")
        if self.label_holder is not None and self.label_holder not in self.names:
            raise ValueError(f"label_holder={self.label_holder!r} is not one of the holders {', '.join(self.names)}")
        return self

    def _check_parties(self, parties: Mapping[PartyId, Path | None]) -> None:
        if len(parties) < 2:
            raise ValueError(f"parties names {len(parties)} holder; a federation needs at least 2")
        if self.holders != len(parties):
            raise ValueError(f"holders={self.holders} but parties names {len(parties)}; leave holders out")
        if self.feature_proportions is not None or self.edge_proportions is not None:
            raise ValueError("proportions divide a data set, and parties are given already divided; leave one out")
        kinds = {None if path is None else path.suffix in PARTY_FILE_SUFFIXES for path in parties.values()}
        if len(kinds) > 1:
            raise ValueError("parties mixes saved graphs, party files and names alone; give the same for every holder")

    @property
    def names(self) -> tuple[PartyId, ...]:
        """The data holders' names in the job's order."""
        if self.parties is not None:
            return tuple(self.parties)
        return tuple(chr(ord("A") + index) for index in range(self.holders))

    @property
    def from_tables(self) -> bool:
        """Whether the holders bring tables, whose rows must be aligned first, and not graphs."""
        return self.parties is not None and all(
            path is None or path.suffix in PARTY_FILE_SUFFIXES for path in self.parties.values()
        )

    @property
    def label_party(self) -> PartyId:
        """Name of the holder that has the labels."""
        return self.label_holder or self.names[0]


class InitialSettings(_Settings):
    """Initial embeddings h^0 (docs/protocol.md)."""

    method: Literal["collaborative", "individual", "secure-sum"] = "collaborative"
    learning_rate: float = Field(0.1, gt=0, description="SGD on the secret-shared W; collaborative only")
    momentum: float = Field(0.9, ge=0, lt=1, description="collaborative only")
    weight_decay: float = Field(
        0.0, ge=0, le=0.5, description="W ← (1 − learning_rate·weight_decay)·W each step; collaborative only"
    )
    init_std: float | None = Field(None, gt=0, description="of W's normal initialisation; default √(2/(F + d))")
    activation: Literal["none", "tanh", "relu", "sigmoid"] = Field("none", description="at each holder, on h^0")
    dropout: Probability = Field(0.0, description="at each holder, on h^0")
    feature_bits: int | None = Field(
        None, ge=0, le=24, description="fractional bits of x in the ring; default: as many as x needs, at most 12"
    )
    gradient_bits: int = Field(28, ge=8, le=40, description="fractional bits of the scaled gradient in the ring")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"learning_rate·weight_decay = {self.learning_rate * self.weight_decay:g} must stay below 1: each step "
                "multiplies W by one minus it; lower one of them"
            )
        return self


class LocalSettings(_Settings):
    """Local embeddings: K hops over the holder's own edges (VFGNN 3.3)."""

    model: Literal["sage-mean", "sage-lstm", "sage-pool", "gcn", "gat", "gin", "appnp", "custom"] = "sage-mean"
    hops: int = Field(2, ge=0, le=32, description="K, per exchange round; 0 leaves the edges unused")
    activation: Literal["none", "tanh", "relu", "sigmoid"] = "tanh"
    normalize: bool = Field(True, description="rows of the last round's output to length 1 (Algorithm 2, line 10)")
    dropout: Probability = Field(0.0, description="before every hop")
    teleport: float = Field(0.1, ge=0, le=1, description="appnp's α")
    heads: int = Field(4, ge=1, description="gat's attention heads; must divide dim")
    start: Literal["glorot", "average"] = Field(
        "glorot", description="first weights: random, or [I/2, I/2], the mean of a node and its neighbours (sage-mean)"
    )
    learning_rate: float | None = Field(None, gt=0, description="Adam's, for the hops; default: train.learning_rate")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start == "average" and self.model != "sage-mean":
            raise ValueError(
                f"start='average' is for model='sage-mean', not {self.model!r}: only there it is the mean of a node "
                "and its neighbours; leave start out or choose sage-mean"
            )
        return self


class CombineSettings(_Settings):
    """How the server combines the local embeddings (VFGNN 3.4)."""

    strategy: Literal["mean", "concat", "regression", "degree-weighted"] = "mean"
    masked: bool | None = Field(
        None, description="hide single embeddings from the server; default: wherever the strategy is linear"
    )
    bits: int = Field(32, ge=8, le=44, description="fractional bits of a masked embedding in the ring")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.masked and not self.linear:
            raise ValueError(
                "strategy 'concat' cannot be masked: the server needs each embedding by itself; "
                "set masked to false, or choose mean, regression or degree-weighted"
            )
        return self

    @property
    def linear(self) -> bool:
        """Whether the server needs no more than the sum of what the holders prepare."""
        return self.strategy != "concat"

    @property
    def is_masked(self) -> bool:
        """``masked`` with its default filled in."""
        return self.linear if self.masked is None else self.masked


class ServerSettings(_Settings):
    """The server's deep layers; the paper's network is (d, d, |C|) (VFGNN 4.1)."""

    layers: int = Field(1, ge=0, le=8, description="hidden layers of width dim at the server")
    activation: Literal["none", "tanh", "relu", "sigmoid"] = "sigmoid"
    dropout: Probability = 0.5


class HeadSettings(_Settings):
    """The label holder's output layer."""

    logit_hops: int = Field(0, ge=0, le=32, description="extra propagation of the logits over its own edges")
    logit_teleport: float = Field(0.1, ge=0, le=1)
    dropout: Probability = 0.0


class ModelSettings(_Settings):
    """The split network."""

    dim: int = Field(64, ge=1, le=4096, description="d, the width of every embedding")
    rounds: int = Field(1, ge=1, le=64, description="R; with R > 1 holders see combined embeddings of earlier rounds")
    initial: InitialSettings = InitialSettings()
    local: LocalSettings = LocalSettings()
    combine: CombineSettings = CombineSettings()
    server: ServerSettings = ServerSettings()
    head: HeadSettings = HeadSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rounds > 1 and self.combine.strategy == "concat":
            raise ValueError(
                "rounds > 1 sends the combined embedding back as the next input of width dim, and concat makes it "
                "wider; set rounds to 1 or choose mean, regression or degree-weighted"
            )
        if self.local.model == "gat" and self.dim % self.local.heads:
            raise ValueError(f"local.heads={self.local.heads} does not divide dim={self.dim}; change one of them")
        return self


class TrainSettings(_Settings):
    """Training: Adam with L2 everywhere but W of ``collaborative``."""

    epochs: int = Field(200, ge=1)
    learning_rate: float = Field(0.01, gt=0)
    weight_decay: float = Field(5e-4, ge=0)
    patience: int | None = Field(50, ge=1, description="evaluations without a better one before stopping; null: never")
    select_by: Literal["accuracy", "auc", "f1", "loss"] = Field(
        "accuracy", description="what the best epoch has the best of on the validation nodes; ties: the lower loss"
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="balanced: a training node of class c counts n/(C·n_c) in the loss, as if classes were even"
    )
    evaluate_every: int = Field(1, ge=1, description="epochs between evaluations at the label holder")
    checkpoint_every: int = Field(10, ge=1, description="epochs between checkpoints")


class JobSettings(_Settings):
    """One job, the same at every party."""

    name: str = Field("job", pattern=NAME_PATTERN)
    paradigm: Literal["vertical"] = "vertical"
    seed: int = Field(0, ge=0, lt=2**63)
    precision: Literal["float32", "float64"] = "float32"
    timeout_s: float = Field(600.0, gt=0, description="longest wait for another party's message")
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()

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
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give the path of a job file") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    return parse_job({} if data is None else data, str(path))


def write_job(settings: JobSettings, path: Path) -> None:
    """Writes the job as YAML, all defaults spelled out."""
    content = settings.model_dump(mode="json")
    content["data"]["holders"] = len(settings.data.names)
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


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
