"""A job of ``veilgraph embed``: which graph, what embeddings keep and hide, how, and how that is attacked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.settings import Settings, config_errors, named_in
from veilgraph.core.validation import NAME_PATTERN
from veilgraph.core.yaml_file import read_yaml, yaml_bytes
from veilgraph.graph.settings import DATASETS, DESCRIBED, PARTY_FILE_SUFFIXES, Described
from veilgraph_embeddings.attackers import FAMILIES
from veilgraph_embeddings.method import AnyMethodSettings, MethodSettings
from veilgraph_embeddings.methods.apge import ApgeSettings

LABEL: Final = "label"
"""What a job calls the labels that come with a graph."""


class EmbedDataSettings(Settings):
    """Which graph; from Python none of them, with ``graph=``."""

    dataset: Annotated[str, named_in(DATASETS)] | None = None
    """a public or made graph, undivided"""
    block_model: Described = None
    """size and shape, for dataset block-model"""
    payments: Described = None
    """size and shape, for dataset payments"""
    root: Path | None = None
    """folder of the data set's files"""
    graph: Path | None = None
    """a saved graph (.safetensors)"""
    party: Path | None = None
    """a party file (.yaml)"""
    edges_public: bool = False
    """recipients of the embeddings have the edges too, and attacks use them"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in ("dataset", "graph", "party") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{', '.join(given)}: the data come from one of these; leave the others out")
        for dataset, described in DESCRIBED.items():
            if getattr(self, described, None) is not None and self.dataset != dataset:
                raise ValueError(f"{described} describes dataset={dataset!r}, and it is {self.dataset!r}; leave it out")
        if self.party is not None and self.party.suffix not in PARTY_FILE_SUFFIXES:
            raise ValueError(f"party: {self.party} is no party file (.yaml); a saved graph is given as graph")
        if self.graph is not None and self.graph.suffix in PARTY_FILE_SUFFIXES:
            raise ValueError(f"graph: {self.graph} is no saved graph (.safetensors); a party file is given as party")
        return self


class AttributeSettings(Settings):
    """One attribute of the nodes; its name alone will do."""

    column: str | int
    """label: the graph's labels; else a column of the party's table, a feature's number or, from Python, a tensor's
    name in Data
    """
    cut: tuple[float, ...] = ()
    """rising numbers that divide a column into classes; none: every value is a class"""

    @field_validator("cut")
    @classmethod
    def _rising(cls, cut: tuple[float, ...]) -> tuple[float, ...]:
        if any(high <= low for low, high in pairwise(cut)):
            raise ValueError("numbers that divide a column must rise; put them in order, each once")
        return cut


def _named(said: object) -> object:
    return {"column": said} if isinstance(said, str | int) and not isinstance(said, bool) else said


AnyAttribute = Annotated[AttributeSettings, BeforeValidator(_named)]


class EvaluationSettings(Settings):
    """What the report is held against."""

    known: float = Field(0.5, gt=0, lt=1)
    """share of nodes whose private attribute the attacker knows"""
    unseen: float = Field(0.2, gt=0, lt=1)
    """share of nodes whose useful attribute is held out for evaluation"""
    links: float = Field(0.1, ge=0, lt=1)
    """share of edges held out for evaluation"""
    families: tuple[str, ...] = tuple(FAMILIES)
    """attacking models, each trained afresh"""

    @field_validator("families")
    @classmethod
    def _known(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in families if name not in FAMILIES]
        if unknown or not families:
            raise ValueError(f"choose one or more of {', '.join(FAMILIES)}")
        return tuple(dict.fromkeys(families))


class EmbedJob(Settings):
    """One job: embeddings of one graph, by one method."""

    name: str = Field("embeddings", pattern=NAME_PATTERN)
    """of the output folder"""
    seed: int = Field(0, ge=0, lt=2**63)
    """of weights, projections and the report's draws, not of protective noise"""
    data: EmbedDataSettings = EmbedDataSettings()
    keep: AnyAttribute = AttributeSettings(column=LABEL)
    """the useful attribute"""
    hide: AnyAttribute
    """the private attribute, which is no feature"""
    method: AnyMethodSettings = ApgeSettings()
    """how embeddings are made"""
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keep.column == self.hide.column:
            raise ValueError(
                f"keep and hide are both {self.hide.column!r}, which cannot be kept and hidden; change one"
            )
        return self

    def hash(self) -> str:
        """SHA-256 of all settings, hex: what its ledger is bound to."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    def replaced(self, method: MethodSettings) -> EmbedJob:
        """The same job with another method."""
        return self.model_copy(update={"method": method})


def parse_embed_job(data: object, source: str = "job") -> EmbedJob:
    """Validates settings that came from YAML or a dictionary.

    Raises:
        ConfigError: names the first broken key, its value and the rule.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{source}: a job is a mapping of settings, not {type(data).__name__}; see docs/guides/embeddings.md"
        )
    with config_errors(source):
        return EmbedJob.model_validate(dict(data))


def read_embed_job(path: Path) -> EmbedJob:
    """Reads and validates a job file; paths in it are relative to where the command runs, as in other jobs.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks a rule.
    """
    data = read_yaml(path, "job file")
    return parse_embed_job({} if data is None else data, str(path))


def write_embed_job(job: EmbedJob, path: Path) -> None:
    """Writes the job with every default spelled out."""
    write_whole(path, yaml_bytes(job.model_dump(mode="json")))
