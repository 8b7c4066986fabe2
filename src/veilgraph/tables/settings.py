"""What a party file says of tables: which columns are features, labels and splits, and which edges there are.

Paths are relative to the file's folder, which whoever reads the tables passes on as ``base``. docs/guides/tables.md
explains every key.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, Tag, field_validator, model_validator

from veilgraph.core.settings import PartyName, Settings
from veilgraph.core.types import SERVER, PartyId
from veilgraph.tables.column_settings import (
    Duplicates,
    Features,
    FormatSettings,
    IdSettings,
    Moment,
    TableFile,
    TablePath,
    Text,
    TimeFormat,
    check_distinct,
    stem,
    whole_names,
)


class WeightSettings(Settings):
    """A column of numbers of edges, and what becomes of it."""

    column: Text
    """of finite numbers; weights, and what scale: log takes, are at least 0"""
    scale: Literal["none", "log"] = "none"
    """log: log(1 + number)"""


def _wrap_column(value: object) -> object:
    """Turn a column's bare name into ``{"column": name}``; return anything else as it is."""
    return {"column": value} if isinstance(value, str | int) and not isinstance(value, bool) else value


def _weight_to_setting(weight: WeightSettings | None) -> object:
    """Serialise a weight without scaling as its column's name alone, in digests too."""
    return weight.column if weight is not None and weight == WeightSettings(column=weight.column) else weight


class TimeFilter(Settings):
    """A window of time; edges outside it are left out."""

    column: Text
    """of dates or times"""
    after: Moment | None = None
    """first moment within; null: no first"""
    before: Moment | None = None
    """first moment beyond; null: no last"""
    format: TimeFormat | None = None
    """of text, such as %d.%m.%Y; null: ISO"""
    missing: Literal["error", "drop"] = "error"
    """an edge without a time is an error, or dropped"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.after is None and self.before is None:
            raise ValueError("needs after or before, between which an edge is kept; give one")
        if self.after is not None and self.before is not None and self.after >= self.before:
            raise ValueError(f"after={self.after} must be earlier than before={self.before}; mend one")
        return self


class DecaySettings(Settings):
    """An edge's weight is halved with every so many days of its age."""

    column: Text
    """of dates or times"""
    half_life_days: float = Field(gt=0)
    """age that halves a weight"""
    at: Moment
    """moment of age 0, of no later edge"""
    format: TimeFormat | None = None
    """of text, such as %d.%m.%Y; null: ISO"""


NO_EDGE_FEATURES: Final = (
    "features of edges are for paradigm horizontal with model.message: full; choose that, or leave them out"
)
Hops = Annotated[int, Field(ge=0, le=32)]
"""As many as a local model has at most."""


class RelationSettings(Settings):
    """Which kinds of edges to keep, and what each multiplies the weight by."""

    column: Text
    """of the edge table"""
    weights: Annotated[
        dict[Text, Annotated[float, Field(ge=0)]], Field(min_length=1, description="relation → what it multiplies by")
    ]
    other: Literal["error", "drop"] = "error"
    """an unlisted relation is an error, or dropped"""
    hops: dict[Text, Hops] = Field({})
    """relation → as edges[].hops; none: as far as the model looks"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.hops:
            if name not in self.weights:
                raise ValueError(f"hops names {name!r}, which is not one of the relations of weights; mend it")
        return self


class EdgeSettings(TableFile):
    """One table of edges: one row per edge."""

    source: Text
    """column of ids"""
    target: Text | None = None
    """column of ids; or give shared"""
    source_holder: Text | None = None
    """column that names the source node's holder, such as a bank; null: this one. For union jobs; others drop edges to
    other holders' nodes
    """
    target_holder: Text | None = None
    """likewise for target"""
    shared: Text | None = None
    """in place of target: column of what nodes share, such as a device; equal values are joined"""
    at_most: int = Field(50, ge=2, le=1000)
    """a value of more nodes joins none"""
    weight: Annotated[
        WeightSettings | None,
        BeforeValidator(_wrap_column, json_schema_input_type=WeightSettings | Text | None),
        PlainSerializer(_weight_to_setting),
    ] = None
    """column of finite numbers from 0, or {column, scale}; null: all weigh 1"""
    features: tuple[
        Annotated[WeightSettings, BeforeValidator(_wrap_column, json_schema_input_type=WeightSettings | Text)], ...
    ] = ()
    """columns of numbers, or {column, scale}, for horizontal jobs with message: full"""
    relation: RelationSettings | None = None
    """null: all edges alike"""
    directed: bool = False
    """false: a row is an edge both ways, a self-loop once"""
    unknown: Literal["error", "drop"] = "error"
    """an id outside the node table is an error, or dropped"""
    filter: TimeFilter | None = None
    """edges to keep, by time; null: all"""
    decay: DecaySettings | None = None
    """weights fall with age; null: never"""
    normalize: Literal["mean"] | Annotated[float, Field(gt=0)] | None = None
    """divisor of weights: the mean of their relation in this table, or a number; null: none"""
    factor: float = Field(1.0, ge=0)
    """multiplies every weight, at last"""
    name: Text | None = None
    """of the relation, the same one in all tables with this name; null: the file's name without ending. Not beside
    relation
    """
    hops: Hops | None = None
    """model.local.model relational: hops from a node within which edges count; null: as far as the model looks. Beside
    relation: relation.hops
    """

    @model_validator(mode="after")
    def _check_relation(self) -> Self:
        for key in ("name", "hops"):
            if self.relation is not None and (value := getattr(self, key)) is not None:
                way_out = "relation.weights names them" if key == "name" else "say it under relation.hops"
                raise ValueError(f"{key}={value!r} and relation: the table has several relations; {way_out}")
        return self

    @model_validator(mode="after")
    def _check_ends(self) -> Self:
        if (self.target is None) == (self.shared is None):
            raise ValueError(
                "an edge has target, a second column of ids, or shared, a column of values; give one of them"
            )
        for key in (
            *("weight", "features", "relation", "decay", "normalize", "directed"),
            *("source_holder", "target_holder"),
        ):
            if self.shared is not None and getattr(self, key):
                raise ValueError(
                    f"{key} needs rows that are one edge each, and shared makes edges of two rows; leave {key} out"
                )
        return self

    @property
    def reaches(self) -> dict[str, int | None]:
        """Name of each of its relations → their hops, in the order of ``EdgeTable.relations``."""
        if self.relation is None:
            return {self.name or stem(self.file): self.hops}
        return {name: self.relation.hops.get(name) for name in self.relation.weights}


def check_reaches(edges: Sequence[EdgeSettings]) -> dict[str, int | None]:
    """Return each relation of a party file → its hops; ``ValueError``: two tables give one relation different hops."""
    found: dict[str, int | None] = {}
    for each in edges:
        for name, hops in each.reaches.items():
            if found.setdefault(name, hops) != hops:
                said = " and ".join("none" if value is None else str(value) for value in (found[name], hops))
                raise ValueError(
                    f"edges: relation {name!r} is in several tables, with {said} as its hops; say the same, or give "
                    "one of them another name"
                )
    return found


def says_hops(edges: Sequence[EdgeSettings]) -> str | None:
    """Return why a job that ignores relations refuses these tables, if one sets hops; names no relation. Else None."""
    for place, each in enumerate(edges):
        if any(hops is not None for hops in each.reaches.values()):
            key = "hops" if each.relation is None else "relation.hops"
            return f"edges.{place}.{key} is for jobs with model.local.model relational; leave it out, or choose that"
    return None


def says_weights(edges: Sequence[EdgeSettings]) -> str | None:
    """Return the first key that makes an edge's weight other than 1, as ``edges.0.weight``; None where all weigh 1."""
    for place, each in enumerate(edges):
        weighs = {
            "weight": each.weight is not None,
            "decay": each.decay is not None,
            "normalize": isinstance(each.normalize, float) and each.normalize != 1,
            "factor": each.factor != 1,
            "relation.weights": each.relation is not None and set(each.relation.weights.values()) != {1},
        }
        if found := next((key for key, does in weighs.items() if does), None):
            return f"edges.{place}.{found}"
    return None


def beyond_own_edge(edges: Sequence[EdgeSettings]) -> list[str]:
    """Why an edge's weight would depend on other edges: one reason for every table, without names of files or columns.

    Only where there is none is one edge's ε about what that edge does. One row of shared values is an edge to everybody
    who has the value, and one more may take the edges of all of them away.
    """
    return [
        f"edges.{place}.normalize=mean is computed from all edges; set normalize to a number, or leave it out"
        for place, each in enumerate(edges)
        if each.normalize == "mean"
    ] + shared_values(edges)


def shared_values(edges: Sequence[EdgeSettings]) -> list[str]:
    """Return a reason for each table with ``shared``: one node's row can change edges between others."""
    return [
        f"edges.{place}.shared joins all who have a value, and one row more or less can change up to "
        f"{each.at_most * (each.at_most + 1) // 2} edges; leave the file out, or export pairs"
        for place, each in enumerate(edges)
        if each.shared is not None
    ]


Fraction = Annotated[float, Field(ge=0, le=1)]


class LabelSettings(FormatSettings):
    """The label holder's classes; a node without a value is unlabelled."""

    column: Text
    """of the node table, or file"""
    classes: Annotated[tuple[Text, ...], Field(min_length=2, description="its values, in the order of the classes")]
    file: TablePath | None = None
    """labels in a file of their own, where a missing id is unlabelled; null: the node table"""
    id: Text | None = None
    """that file's column of ids; null: as nodes.id"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.file is not None:
            self.check_format(self.file)
            return self
        fields = LabelSettings.model_fields
        keys = ("id", *sorted(FormatSettings.model_fields))
        given = next((key for key in keys if getattr(self, key) != fields[key].get_default()), None)
        if given is not None:
            raise ValueError(
                f"{given}={getattr(self, given)!r} describes a file of labels; give file, or leave {given} out"
            )
        return self

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return check_distinct(whole_names(values))


class SplitColumn(Settings):
    """A column says which split a labelled node belongs to; none where it has no value."""

    column: Text
    train: Text = "train"
    val: Text = "val"
    test: Text = "test"

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_distinct(self.names)
        return self

    @property
    def names(self) -> tuple[str, str, str]:
        """The column's values for training, validation and test, in this order."""
        return (self.train, self.val, self.test)


class SplitFractions(Settings):
    """Random fractions of the labelled nodes; what they leave is in no split."""

    train: Fraction
    val: Fraction
    test: Fraction
    seed: int = Field(0, ge=0, lt=2**63)
    stratify: bool = True
    """the same fractions of every class; false: each node is drawn by its id alone, in a job by a secret of the run, as
    it must be where labels are released (release.labels): a split by classes tells them
    """

    key: Text | None = Field(None, min_length=16)
    """with stratify: false: a secret text that all holders agree on, by which a node that several have is in the same
    split at each; null: a secret of the run, another one at each
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.key is not None and self.stratify:
            raise ValueError("key draws each node by its id alone, not by its class; set stratify to false")
        total = self.train + self.val + self.test
        if total > 1 + 1e-9:
            raise ValueError(f"train + val + test = {total:g} must be at most 1; lower one of them")
        return self


class SplitTimes(Settings):
    """A date says which split a labelled node belongs to: what is early is trained on, what is late tested on."""

    by: Text
    """column of dates or times; a node without one is in no split"""
    train_before: Moment
    """earlier nodes are training nodes"""
    val_before: Moment
    """earlier ones of the others are validation nodes, the rest test nodes"""
    format: TimeFormat | None = None
    """of text, as in %d.%m.%Y; null: ISO"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.train_before >= self.val_before:
            raise ValueError(
                f"train_before={self.train_before} must be earlier than val_before={self.val_before}; mend one"
            )
        return self


def _split_tag(value: object) -> str:
    if isinstance(value, dict):
        return next((f"({key})" for key in ("column", "by") if key in value), "(fractions)")
    if isinstance(value, SplitColumn):
        return "(column)"
    return "(by)" if isinstance(value, SplitTimes) else "(fractions)"


Split = Annotated[
    Annotated[SplitColumn, Tag("(column)")]
    | Annotated[SplitTimes, Tag("(by)")]
    | Annotated[SplitFractions, Tag("(fractions)")],
    Discriminator(_split_tag),
]


class JoinedSettings(TableFile):
    """A further table of the same nodes, at most one row per node."""

    id: Text | None = None
    """its column of ids; null: as nodes.id"""
    prefix: str = ""
    """of its columns' names, such as usage."""


class NodeSettings(TableFile):
    """The node table: one row per node."""

    id: Text
    """column that matches holders' nodes"""
    duplicates: Duplicates = "refuse"
    """which row of an id counts in files of nodes or labels; refuse: none may repeat"""
    join: tuple[JoinedSettings, ...] = ()
    """further tables with columns of the same nodes; an id that is not in file is left out"""
    features: tuple[Features, ...]
    """columns, and how they become numbers (tables.md); []: a column of zeros"""
    columns_from_edges: tuple[Text, ...] = ()
    """columns, or patterns of names, made of edges, such as a number of payments. They show edges at any ε: with one
    among features, jobs whose ε protects edges are refused
    """
    label: LabelSettings | None = None
    """at the label holder only"""
    target: Text | None = None
    """in place of label: column of numbers to predict; nodes without one do not train"""
    graph: Text | None = None
    """for many graphs in a table: integer column, each node's graph"""
    split: Split | None = None
    """with label or target only"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.label is not None and self.target is not None:
            raise ValueError("label and target are both what is predicted; remove one")
        given = "label" if self.target is None else "target"
        if (self.label is not None or self.target is not None) and self.split is None:
            raise ValueError(f"{given} needs split, which says what to train and test on; give split")
        if self.split is not None and self.label is None and self.target is None:
            raise ValueError("split needs label: only labelled nodes are trained and tested on; remove split")
        for column in (column for feature in self.features for column in feature.columns):
            if column in self.reserved:
                raise ValueError(
                    f"column {column!r} is a feature and also the id, label, target, graph or split, which would give "
                    "the answer away; take it out of features"
                )
        return self

    @property
    def reserved(self) -> tuple[str, ...]:
        """Columns that are never features: id, label, target, graph and split."""
        named = (None if self.label is None else self.label.column, self.target, self.graph)
        return (self.id, *(name for name in (*named, self.split_column) if name is not None))

    @property
    def features_from_edges(self) -> tuple[str, ...]:
        """Columns or patterns among the features that ``columns_from_edges`` names."""
        columns = (column for feature in self.features for column in feature.columns)
        return tuple(
            column
            for column in columns
            if any(fnmatchcase(column, made) or fnmatchcase(made, column) for made in self.columns_from_edges)
        )

    @property
    def split_column(self) -> str | None:
        """The column that says which split a node is in, by name or by date; None where none does."""
        if isinstance(self.split, SplitColumn):
            return self.split.column
        return self.split.by if isinstance(self.split, SplitTimes) else None


NO_NODES: Final = NodeSettings(file=Path("none.csv"), id="none", features=())
"""In place of a node table, of an organisation that has none."""


class TableSettings(Settings):
    """One organisation's own tables."""

    party: PartyName
    """this organisation's name in jobs and its kit"""
    nodes: NodeSettings = NO_NODES
    """left out: it has none, and edges between those of others, as a payment network"""
    edges: tuple[EdgeSettings, ...] = ()
    ids: IdSettings = IdSettings()
    """how ids are written alike; all holders must, who want to find nodes in common"""

    @field_validator("party")
    @classmethod
    def _check_party(cls, name: PartyId) -> PartyId:
        if name == SERVER:
            raise ValueError("that is the server's name; give the holder another")
        return name

    @field_validator("edges")
    @classmethod
    def _check_edges(cls, edges: tuple[EdgeSettings, ...]) -> tuple[EdgeSettings, ...]:
        check_reaches(edges)
        for each in edges[1:]:
            if each.features != edges[0].features:
                raise ValueError(
                    "edges.features differ between tables, and every edge of a graph has the same features; name the "
                    "same columns, in the same order, for every table"
                )
        return edges

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        whose = (each.source_holder is not None and each.target_holder is not None for each in self.edges)
        if not self.has_nodes and not (self.edges and all(whose)):
            raise ValueError(
                "nodes=null: a holder has a node table; give it. One that has edges alone gives, for each file, "
                "source_holder and target_holder: the columns that name the holders of both ends"
            )
        return self

    @property
    def has_nodes(self) -> bool:
        """Whether it has a node table."""
        return self.nodes != NO_NODES

    def hashed(self) -> str:
        """Return the settings by which tables are read as JSON, for a digest; ``columns_from_edges`` is left out."""
        return self.model_dump_json(include={"nodes", "edges", "ids"}, exclude={"nodes": {"columns_from_edges"}})

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read: the node table, edges, further tables of nodes, labels."""
        nodes, label = self.nodes, self.nodes.label
        own = () if label is None or label.file is None else (label.file,)
        return (
            *((nodes.file,) if self.has_nodes else ()),
            *(edges.file for edges in self.edges),
            *(each.file for each in nodes.join),
            *own,
        )


def is_pattern(column: str) -> bool:
    """Whether the name of feature columns holds a wildcard: ``*``, ``?`` or ``[…]``."""
    return any(mark in column for mark in "*?[")
