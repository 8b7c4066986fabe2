"""What a party file says of tables: which columns are features, labels and splits, and which edges there are.

Paths are relative to the file's folder, which whoever reads the tables passes on as ``base``. docs/tables.md explains
every key.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from veilgraph.core.settings import PartyName, Settings
from veilgraph.core.types import SERVER, PartyId
from veilgraph.tables.edge_settings import EdgeSettings, check_reaches
from veilgraph.tables.feature_settings import Features, Text, check_distinct
from veilgraph.tables.file_settings import (
    Duplicates,
    FormatSettings,
    IdSettings,
    Moment,
    TableFile,
    TablePath,
    TimeFormat,
)

_WILDCARDS = frozenset("*?[")
Fraction = Annotated[float, Field(ge=0, le=1)]


class LabelSettings(FormatSettings):
    """The label holder's classes; a node without a value is unlabelled."""

    column: Text = Field(description="of the node table, or of file")
    classes: Annotated[tuple[Text, ...], Field(min_length=2, description="its values, in the order of the classes")]
    file: TablePath | None = Field(
        None, description="labels in a file of their own; an id that is not there is unlabelled; null: the node table"
    )
    id: Text | None = Field(None, description="column of ids of that file; null: as nodes.id")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.file is not None:
            self.check_format(self.file)
            return self
        fields = LabelSettings.model_fields
        keys = ("id", *sorted(FormatSettings.model_fields))
        given = next((key for key in keys if getattr(self, key) != fields[key].get_default()), None)
        if given is not None:
            raise ValueError(f"{given}={getattr(self, given)!r} is of a file of labels; give file, or leave it out")
        return self

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return check_distinct(values)


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
        """What training, validation and test are called."""
        return (self.train, self.val, self.test)


class SplitFractions(Settings):
    """Random fractions of the labelled nodes; what they leave is in no split."""

    train: Fraction
    val: Fraction
    test: Fraction
    seed: int = Field(0, ge=0, lt=2**63)
    stratify: bool = Field(
        True,
        description="the same fractions of every class; false: each node is drawn by its id alone, in a job by a "
        "secret of the run, as it must be where labels are released (release.labels): a split by classes tells them",
    )

    key: Text | None = Field(
        None,
        min_length=16,
        description="with stratify: false: a secret text that all holders agree on, by which a node that several have "
        "is in the same split at each; null: a secret of the run, another one at each",
    )

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

    by: Text = Field(description="column of dates or times; a node without one is in no split")
    train_before: Moment = Field(description="earlier nodes are training nodes")
    val_before: Moment = Field(description="earlier ones of the others are validation nodes, the rest test nodes")
    format: TimeFormat | None = Field(None, description="of text, as in %d.%m.%Y; null: ISO")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.train_before >= self.val_before:
            raise ValueError(
                f"train_before={self.train_before} must be earlier than val_before={self.val_before}; mend one"
            )
        return self


def _split_kind(value: object) -> str:
    if isinstance(value, dict):
        return next((f"({key})" for key in ("column", "by") if key in value), "(fractions)")
    if isinstance(value, SplitColumn):
        return "(column)"
    return "(by)" if isinstance(value, SplitTimes) else "(fractions)"


Split = Annotated[
    Annotated[SplitColumn, Tag("(column)")]
    | Annotated[SplitTimes, Tag("(by)")]
    | Annotated[SplitFractions, Tag("(fractions)")],
    Discriminator(_split_kind),
]


class JoinedSettings(TableFile):
    """A further table of the same nodes, at most one row per node."""

    id: Text | None = Field(None, description="its column of ids; null: as nodes.id")
    prefix: str = Field("", description="put before the names of its columns, as in usage.")


class NodeSettings(TableFile):
    """The node table: one row per node."""

    id: Text = Field(description="the column by which holders' nodes are matched")
    duplicates: Duplicates = Field(
        "refuse",
        description="of several rows of one id in a file of nodes or labels, which counts; refuse: there may be none",
    )
    join: tuple[JoinedSettings, ...] = Field(
        (), description="further tables with columns of the same nodes; an id that is not in file is left out"
    )
    features: Annotated[
        tuple[Features, ...], Field(min_length=1, description="columns, and how they become numbers (tables.md)")
    ]
    columns_from_edges: tuple[Text, ...] = Field(
        (),
        description="columns that are made of edges, as a number of payments, or patterns of their names: they show "
        "edges at any ε, and a job whose ε protects edges is refused while one is among features",
    )
    label: LabelSettings | None = Field(None, description="at the label holder only")
    target: Text | None = Field(
        None,
        description="in place of label: a column of numbers to predict; a node without one is not trained on",
    )
    graph: Text | None = Field(
        None,
        description="where the table has many graphs: a column of whole numbers, the graph that each node is of",
    )
    split: Split | None = Field(None, description="with label or target only")

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


class TableSettings(Settings):
    """One organisation's own tables."""

    party: PartyName = Field(description="this organisation's name, as in the job and in its kit")
    nodes: NodeSettings
    edges: tuple[EdgeSettings, ...] = ()
    ids: IdSettings = Field(
        IdSettings(), description="how ids are written alike; all holders must, who want to find nodes in common"
    )

    @field_validator("party")
    @classmethod
    def _check_party(cls, name: PartyId) -> PartyId:
        if name == SERVER:
            raise ValueError("a holder may not be called that: it is the server's name; rename it")
        return name

    @field_validator("edges")
    @classmethod
    def _check_edges(cls, edges: tuple[EdgeSettings, ...]) -> tuple[EdgeSettings, ...]:
        check_reaches(edges)
        for each in edges[1:]:
            if each.features != edges[0].features:
                raise ValueError(
                    "features of edges differ between tables, and every edge of a graph has the same; say the same "
                    "columns, in the same order, of every table"
                )
        return edges

    def hashed(self) -> str:
        """How the tables are read, for a digest; of what a setting adds nothing where it is not given."""
        said = {"ids"} if self.ids != IdSettings() else set()
        nodes, each = self.nodes, set[str]()
        files = (nodes, *nodes.join, *([] if nodes.label is None else [nodes.label]), *self.edges)
        if not any(file.numbers for file in files):
            each |= {"numbers"}
        of_edges = each | (set() if any(edge.shared for edge in self.edges) else {"shared", "at_most"})
        unread: dict[str, Any] = {
            "columns_from_edges": True,
            **({"duplicates": True} if nodes.duplicates == "refuse" else {}),
            "join": {"__all__": each},
            **({"split": {"key"}} if getattr(nodes.split, "key", None) is None else {}),
            "label": each,
            **dict.fromkeys(each, True),
        }
        edges: dict[str, Any] = {"__all__": of_edges}
        return self.model_dump_json(include={"nodes", "edges", *said}, exclude={"nodes": unread, "edges": edges})

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read: the node table, edges, further tables of nodes, labels."""
        nodes, label = self.nodes, self.nodes.label
        own = () if label is None or label.file is None else (label.file,)
        return (nodes.file, *(edges.file for edges in self.edges), *(each.file for each in nodes.join), *own)


def is_pattern(column: str) -> bool:
    """Whether the name of feature columns holds a wildcard: ``*``, ``?`` or ``[…]``."""
    return not _WILDCARDS.isdisjoint(column)
