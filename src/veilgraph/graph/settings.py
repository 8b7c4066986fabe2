"""Which graph, and how it is divided among the holders: the ``data`` part of a job."""

from __future__ import annotations

import re
from collections.abc import Sized
from functools import cache
from itertools import chain, islice, product
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, WithJsonSchema, model_validator

from veilgraph.core.settings import PartyName, Registry, Settings, named_in
from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.validation import NAME_PATTERN

MAX_HOLDERS: Final = 256
"""Of one job on one machine."""


@cache
def holder_names(count: int) -> tuple[PartyId, ...]:
    """A to Z, then AA, AB, …: the first ``count`` of these, of which there are as many as ``MAX_HOLDERS`` at least."""
    double = ("".join(letters) for letters in product(ascii_uppercase, repeat=2))
    return tuple(islice(chain(ascii_uppercase, double), count))


DATASETS: Final[Registry[Any]] = Registry(
    "veilgraph.datasets",
    {"digits": "veilgraph.graph.builtin:DIGITS", "synthetic": "veilgraph.graph.builtin:SYNTHETIC"},
    kind="veilgraph.graph.dataset:DataSet",
)
"""The data sets by the name that a job uses."""
OF_WORDS: Final = frozenset({"cora", "citeseer", "pubmed", "acm", "facebook", "github", "lastfm"})
"""Data sets whose columns are words: many, of one unit, and few of them at a node."""
DESCRIBED: Final = {"block-model": "block_model", "payments": "payments"}
"""Data sets of ours that are made, and the key of ``data`` that says how."""
DESCRIPTIONS: Final = (*DESCRIBED.values(), "made")
"""Keys of ``data`` that say how a data set is made."""
PARTY_FILE_SUFFIXES: Final = (".yaml", ".yml")
Proportion = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class PartitionSettings(Settings):
    """How a data set is divided among holders with the same columns (paradigms horizontal and averaging)."""

    by: Literal["edges", "labels", "nodes"] = "edges"
    """edges: at random; labels, nodes: nodes by class or at random, with the edges inside one holder"""
    overlap: float = Field(0.0, ge=0, le=1)
    """by edges: share that a second holder has too"""
    mixed: float = Field(0.5, ge=0, le=1)
    """by labels: share q of a holder's nodes dealt to others"""
    knows: Literal["own", "all"] = "own"
    """own: nodes dealt to a holder or touched by its edges; all: every node and label"""

    @model_validator(mode="after")
    def _check_partition(self) -> Self:
        if self.by != "edges" and self.overlap:
            raise ValueError(
                f"overlap={self.overlap} is for by='edges', and nodes are dealt by={self.by!r}; leave it out"
            )
        if self.by != "labels" and self.mixed != type(self).model_fields["mixed"].default:
            raise ValueError(f"mixed={self.mixed} is for by='labels', and this is by={self.by!r}; leave it out")
        if self.by == "nodes" and self.knows != "own":
            raise ValueError(f"knows={self.knows!r} is for by='edges' and by='labels'; with by='nodes' leave it out")
        return self


DEFAULT_DATASET: Final = "digits"


def _checked_holders(value: object) -> object:
    if isinstance(value, list | tuple):
        for name in value:
            if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(f"{name!r} is no name; give the holders' names")
            if value.count(name) > 1:
                raise ValueError(f"{name!r} is named twice; names are unique")
        return tuple(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= MAX_HOLDERS:
        raise ValueError(f"give a number from 2 to {MAX_HOLDERS}, or the names of holders that bring their own")
    return value


def _read_made(said: object, info: ValidationInfo) -> Settings | None:
    """Validate ``data.made`` by the settings of another package's data set; refuse it for one without settings."""
    dataset = info.data.get("dataset")
    ours = (*DATASETS.own, *DESCRIBED)
    kind = DATASETS[dataset].settings if isinstance(dataset, str) and dataset not in ours else None
    if kind is not None:
        described: Settings = kind.model_validate({} if said is None else said)
        return described
    if said is not None:
        raise ValueError(
            f"it describes a dataset that another package makes, and dataset is {dataset!r}; leave it out, or name one"
        )
    return None


def _read_described(said: object, info: ValidationInfo) -> Settings | None:
    """Validate a key of ``DESCRIBED`` by the settings of its data set, whichever data set the job names."""
    if said is None or isinstance(said, Settings):
        return said
    dataset = next(name for name, key in DESCRIBED.items() if key == info.field_name)
    described: Settings = DATASETS.find("data.dataset", dataset).settings.model_validate(said)
    return described


_SHAPE: Final = WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "null"}]})
Made = Annotated[SerializeAsAny[Settings] | None, BeforeValidator(_read_made), _SHAPE]
Described = Annotated[SerializeAsAny[Settings] | None, BeforeValidator(_read_described), _SHAPE]


class DataSettings(Settings):
    """Which graph, and how it is partitioned among the holders; or what each holder brings.

    One of four: ``dataset``, a public data set that is partitioned for simulation; ``graphs``, each holder's saved
    graph; ``parties``, each holder's party file, which describes its tables; or in ``holders`` the names of those that
    each bring a party file of their own, across organisations.
    """

    dataset: Annotated[str, named_in(DATASETS)] | None = None
    """a public data set; digits, where holders bring nothing"""
    block_model: Described = None
    """size and shape, for dataset block-model"""
    payments: Described = None
    """size and shape, for dataset payments"""
    made: Made = Field(None, validate_default=True)
    """size and shape, for another package's made dataset"""
    root: Path | None = None
    """folder of the data set's files"""
    holders: Annotated[int | tuple[PartyId, ...], BeforeValidator(_checked_holders)] = 2
    """number of holders, named A, B, …; across organisations their names"""
    graphs: dict[PartyName, Path] | None = None
    """holder → its saved graph (.safetensors)"""
    parties: dict[PartyName, Path] | None = None
    """holder → its party file (.yaml)"""
    label_holder: PartyId | None = None
    """null: the first holder; horizontal jobs: the evaluator, whose scores a run shows"""
    feature_proportions: tuple[Proportion, ...] | None = None
    """of columns per holder"""
    edge_proportions: tuple[Proportion, ...] | None = None
    """of edges per holder"""
    partition: PartitionSettings = PartitionSettings()
    """paradigms horizontal and averaging: how a data set is partitioned"""
    feature_scaling: Literal["none", "row", "length", "standard"] = "none"
    """by each holder on its columns; row: rows to sum 1 (for about equal numbers of columns); length: rows to length 1;
    standard: mean 0, variance 1 (horizontal: over all holders' rows)
    """
    split: tuple[Share, Share, Share] | None = None
    """shares of labelled nodes for training, validation and testing, drawn by seed; null: the data set's"""
    stratify: bool = True
    """split every class by the shares; false: draw nodes whatever their labels, as release.labels needs"""

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, data: object) -> object:
        """Write out what follows from other keys (holders, dataset, its description), so that defaults may change."""
        if not isinstance(data, dict):
            return data
        found = dict(data)
        brought = found.get("graphs") if found.get("graphs") is not None else found.get("parties")
        if brought is not None:
            if "holders" not in found and isinstance(brought, Sized):
                found["holders"] = max(2, len(brought))
        elif isinstance(found.get("holders", 2), int) and found.get("dataset") is None:
            found["dataset"] = DEFAULT_DATASET
        for dataset, described in DESCRIBED.items():
            if found.get("dataset") == dataset and found.get(described) is None:
                found[described] = {}
        return found

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        self._check_one_source()  # first: proportions are not counted where holders bring their own data
        for name in ("feature_proportions", "edge_proportions"):
            value = getattr(self, name)
            if value is not None and len(value) != self.holders:
                raise ValueError(f"{name} has {len(value)} numbers for holders={self.holders}; give one per holder")
        if self.split is not None and (sum(self.split) > 1 + 1e-9 or self.dataset is None):
            raise ValueError(
                f"split={list(self.split)} must be shares of a data set's nodes, with a sum of at most 1; holders with "
                "data of their own bring their own split. Mend it, or leave it out"
            )
        if not self.stratify and self.split is None:
            raise ValueError("stratify=false needs split, which is null; give shares, or leave stratify out")
        for dataset, described in DESCRIBED.items():
            if getattr(self, described) is not None and self.dataset != dataset:
                raise ValueError(
                    f"{described} describes the graph of dataset={dataset!r}, and dataset is {self.dataset!r}; leave "
                    f"{described} out"
                )
        if SERVER in self.names:
            raise ValueError(f"a holder may not be called {SERVER!r}: that is the server's name; rename it")
        if self.label_holder is not None and self.label_holder not in self.names:
            raise ValueError(
                f"label_holder={self.label_holder!r} is not one of the holders {', '.join(self.names)}; name one of "
                "them, or in holders those that bring their own"
            )
        return self

    def _check_one_source(self) -> None:
        named = self.holders if isinstance(self.holders, tuple) else None
        sources = {"graphs": self.graphs, "parties": self.parties, "holders": named, "dataset": self.dataset}
        given = {key: each for key, each in sources.items() if each is not None}
        if given.keys() <= {"dataset"}:
            return
        if len(given) > 1:
            raise ValueError(f"{', '.join(given)}: the data come from one of these; leave the others out")
        ((key, names),) = given.items()
        if len(names) < 2:
            raise ValueError(f"{key} names {len(names)} holder; a federation needs at least 2")
        if isinstance(self.holders, int) and self.holders != len(names):
            raise ValueError(f"holders={self.holders} but {key} names {len(names)}; leave holders out")
        if self.feature_proportions is not None or self.edge_proportions is not None:
            raise ValueError(f"proportions divide a data set, and {key} are given already divided; leave one out")
        if self.partition != PartitionSettings():
            raise ValueError(f"partition divides a data set, and {key} are given already divided; leave one out")
        for path in (self.parties or {}).values():
            if path.suffix not in PARTY_FILE_SUFFIXES:
                raise ValueError(f"parties: {path} is no party file (.yaml); saved graphs are given as graphs")
        for path in (self.graphs or {}).values():
            if path.suffix in PARTY_FILE_SUFFIXES:
                raise ValueError(f"graphs: {path} is no saved graph (.safetensors); party files are given as parties")

    @property
    def names(self) -> tuple[PartyId, ...]:
        """The data holders' names in the job's order."""
        if isinstance(self.holders, tuple):
            return self.holders
        return tuple(self.graphs or self.parties or holder_names(self.holders))

    @property
    def from_tables(self) -> bool:
        """Whether the holders bring tables, from which graphs are made first, and not graphs."""
        return self.parties is not None or self.is_apart

    @property
    def is_apart(self) -> bool:
        """Whether each party keeps its part of a run to itself, as across organisations."""
        return isinstance(self.holders, tuple)

    @property
    def label_party(self) -> PartyId:
        """Name of the label holder; by default the first holder."""
        return self.label_holder or self.names[0]
