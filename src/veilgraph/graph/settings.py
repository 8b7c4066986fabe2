"""Which graph, and how it is divided among the holders: the ``data`` part of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from veilgraph.core.registry import Registry
from veilgraph.core.settings import PartyName, Settings, named_in
from veilgraph.core.types import SERVER, PartyId

if TYPE_CHECKING:
    from veilgraph.graph.dataset import DataSet

DATASETS: Final[Registry[DataSet]] = Registry(
    "veilgraph.datasets",
    {
        "digits": "veilgraph.graph.embedded:DIGITS",
        "synthetic": "veilgraph.graph.embedded:SYNTHETIC",
        "block-model": "veilgraph.graph.block_model:BLOCK_MODEL",
        "cora": "veilgraph.graph.public.planetoid:CORA",
        "citeseer": "veilgraph.graph.public.planetoid:CITESEER",
        "pubmed": "veilgraph.graph.public.planetoid:PUBMED",
        "acm": "veilgraph.graph.public.acm:ACM",
        "amazon": "veilgraph.graph.public.amazon:AMAZON",
        "facebook": "veilgraph.graph.public.musae:FACEBOOK",
        "github": "veilgraph.graph.public.musae:GITHUB",
        "ogbn-arxiv": "veilgraph.graph.public.arxiv:ARXIV",
    },
    kind="veilgraph.graph.dataset:DataSet",
)
"""The data sets by the name that a job uses."""
PARTY_FILE_SUFFIXES = (".yaml", ".yml")
Proportion = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class PartSettings(Settings):
    """How a data set is divided among holders with the same columns (paradigm horizontal)."""

    by: Literal["edges", "labels"] = Field(
        "edges", description="edges: dealt at random; labels: nodes by class, and the edges between nodes of one holder"
    )
    overlap: float = Field(0.0, ge=0, le=1, description="by edges: share of them that a second holder has too")
    mixed: float = Field(
        0.5, ge=0, le=1, description="by labels: share q of each holder's nodes that is dealt to the others"
    )
    knows: Literal["own", "all"] = Field(
        "own", description="own: nodes dealt to a holder or touched by its edges; all: every node with its label"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.by == "labels" and self.overlap:
            raise ValueError(f"overlap={self.overlap} is for by='edges', and nodes are dealt by='labels'; leave it out")
        if self.by == "edges" and self.mixed != type(self).model_fields["mixed"].default:
            raise ValueError(f"mixed={self.mixed} is for by='labels', and edges are dealt by='edges'; leave it out")
        return self


class BlockModelSettings(Settings):
    """The size and shape of a synthetic graph; see ``veilgraph.graph.block_model``."""

    nodes: int = Field(10_000, ge=8, le=10**9, description="N")
    classes: int = Field(8, ge=2, description="C blocks of N/C nodes each")
    features: int = Field(64, ge=1, description="F columns")
    mean_degree: float = Field(10.0, gt=0, description="neighbours of a node on average: N·mean_degree/2 edges")
    homophily: float = Field(0.8, ge=0, le=1, description="share of the edges that are inside a block")
    degree_exponent: float | None = Field(
        2.5, ge=2.1, description="γ of the expected degrees' density, d^-γ; null: all nodes expect the same degree"
    )
    signal: float = Field(
        1.0, ge=0, description="length of a class's mean feature vector; the noise has variance 1 in every column"
    )

    @property
    def density(self) -> float:
        """Share of the pairs of nodes that have an edge, inside blocks or between them, whichever is denser."""
        inside, between = self.homophily * self.classes, (1 - self.homophily) * self.classes / (self.classes - 1)
        return self.mean_degree * max(inside, between) / self.nodes

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 4 * self.classes > self.nodes:
            raise ValueError(
                f"classes={self.classes} leaves a block under 4 of the nodes={self.nodes}; take fewer classes or more "
                "nodes"
            )
        if self.density > 1 / 4:
            raise ValueError(
                f"mean_degree={self.mean_degree:g} with nodes={self.nodes}, classes={self.classes} and homophily="
                f"{self.homophily:g} asks for {self.density:.0%} of the pairs inside blocks, or between them, and at "
                f"most 25% may have an edge; take at most {self.mean_degree / (4 * self.density):.4g}, or more nodes"
            )
        return self


class DataSettings(Settings):
    """Which graph, and how it is divided among the holders.

    Either a public data set that is divided for simulation (``dataset``), or what each holder has (``parties``): a
    saved graph or tables.
    """

    dataset: Annotated[str, named_in(DATASETS)] = "digits"
    block_model: BlockModelSettings | None = Field(
        None, description="dataset block-model: the graph's size and shape; null: its defaults, and null for the others"
    )
    root: Path | None = Field(None, description="folder that holds the data set's files")
    holders: int = Field(2, ge=2, le=26, description="how many data holders")
    feature_proportions: tuple[Proportion, ...] | None = Field(None, description="share of the columns per holder")
    edge_proportions: tuple[Proportion, ...] | None = Field(None, description="share of the edges per holder")
    feature_scaling: Literal["none", "row", "standard"] = Field(
        "none",
        description="done by each holder on its own columns: rows to sum 1 (for holders with about as many columns "
        "each), or columns to mean 0, variance 1 (in paradigm horizontal of all holders' rows together)",
    )
    parties: dict[PartyName, Path | None] | None = Field(
        None,
        description="holder name → its saved graph (.safetensors) or its party file (.yaml); a list of names where "
        "every holder joins with a party file of its own",
    )
    label_holder: PartyId | None = Field(
        None, description="default: the first holder; in paradigm horizontal the one that reports"
    )
    split: tuple[Share, Share, Share] | None = Field(
        None,
        description="shares of the labelled nodes for training, validation and testing, drawn by the job's seed; null: "
        "the data set's own split",
    )
    stratify: bool = Field(
        True,
        description="split takes its shares of every class; false: each node is drawn by itself, whatever its label, "
        "as it must be with local.labels",
    )
    parts: PartSettings = Field(PartSettings(), description="paradigm horizontal: how a data set is divided")

    @model_validator(mode="before")
    @classmethod
    def _count_parties(cls, data: object) -> object:
        """Whoever names the parties need not count them."""
        if isinstance(data, dict) and data.get("parties") is not None and "holders" not in data:
            return {**data, "holders": max(2, len(data["parties"]))} if isinstance(data["parties"], Sized) else data
        return data

    @model_validator(mode="before")
    @classmethod
    def _spell_out_the_block_model(cls, data: object) -> object:
        """A block model's defaults are part of the job, so that it stays the same graph."""
        if isinstance(data, dict) and data.get("dataset") == "block-model" and data.get("parties") is None:
            return data if data.get("block_model") is not None else {**data, "block_model": {}}
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
        if self.split is not None and (sum(self.split) > 1 + 1e-9 or self.parties is not None):
            raise ValueError(
                f"split={list(self.split)} divides a data set's nodes: shares with a sum of at most 1, and no parties, "
                "which bring their own split; mend it, or leave it out"
            )
        if not self.stratify and self.split is None:
            raise ValueError("stratify=false is about split, and split is null; give shares, or leave stratify out")
        if self.block_model is not None and (self.dataset != "block-model" or self.parties is not None):
            instead = f"dataset is {self.dataset!r}; leave block_model out"
            if self.parties is not None:
                instead = "parties bring their own graphs; leave block_model and dataset out"
            raise ValueError(f"block_model describes the graph of dataset='block-model', and {instead}")
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
        if self.parts != PartSettings():
            raise ValueError("parts divides a data set, and parties are given already divided; leave one out")
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
        """Whether the holders bring tables, from which graphs are made first, and not graphs."""
        return self.parties is not None and all(
            path is None or path.suffix in PARTY_FILE_SUFFIXES for path in self.parties.values()
        )

    @property
    def is_apart(self) -> bool:
        """Whether each party keeps its part of a run to itself, as across organisations."""
        return self.parties is not None and None in self.parties.values()

    @property
    def label_party(self) -> PartyId:
        """Name of the holder that has the labels."""
        return self.label_holder or self.names[0]
