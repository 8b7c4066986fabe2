"""What one organisation says of its own tables: ``party.yaml``, which never leaves it.

``read_party_settings`` turns the file into ``PartySettings``. Paths in it are relative to the file's folder, which
whoever reads the tables passes on as ``base``. docs/tables.md explains every key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from veilgraph.core.config import first_problem
from veilgraph.core.consent import ConsentSettings
from veilgraph.core.data_settings import PartyName
from veilgraph.core.errors import ConfigError
from veilgraph.core.feature_settings import Features, Text, check_distinct
from veilgraph.core.limits import LimitSettings
from veilgraph.core.settings import Settings
from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.yaml_file import read_yaml

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_WILDCARDS = frozenset("*?[")


def _check_suffix(path: Path) -> Path:
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"a table is a file ending in {', '.join(SUFFIXES)}; convert it")
    return path


TablePath = Annotated[Path, Field(description="relative to the party file's folder")]
Fraction = Annotated[float, Field(ge=0, le=1)]


class LabelSettings(Settings):
    """The label holder's classes; a node without a value is unlabelled."""

    column: Text
    classes: Annotated[tuple[Text, ...], Field(min_length=2)]

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
        check_distinct((self.train, self.val, self.test))
        return self


class SplitFractions(Settings):
    """Random fractions of the labelled nodes; what they leave is in no split."""

    train: Fraction
    val: Fraction
    test: Fraction
    seed: int = Field(0, ge=0, lt=2**63)
    stratify: bool = Field(
        True,
        description="the same fractions of every class; false: each node is drawn by its id alone, in a job by a "
        "secret of the run, as it must be where labels are released (local.labels): a split by classes tells them",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        total = self.train + self.val + self.test
        if total > 1 + 1e-9:
            raise ValueError(f"train + val + test = {total:g} must be at most 1; lower one of them")
        return self


def _split_kind(value: object) -> str:
    by_column = "column" in value if isinstance(value, dict) else isinstance(value, SplitColumn)
    return "(column)" if by_column else "(fractions)"


Split = Annotated[
    Annotated[SplitColumn, Tag("(column)")] | Annotated[SplitFractions, Tag("(fractions)")],
    Discriminator(_split_kind),
]


class NodeSettings(Settings):
    """The node table: one row per node."""

    file: TablePath
    id: Text
    features: Annotated[tuple[Features, ...], Field(min_length=1)]
    label: LabelSettings | None = Field(None, description="at the label holder only")
    split: Split | None = Field(None, description="with label only")

    @field_validator("file")
    @classmethod
    def _check_file(cls, path: Path) -> Path:
        return _check_suffix(path)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.label is not None and self.split is None:
            raise ValueError("label needs split, which says what to train and test on; give split")
        if self.split is not None and self.label is None:
            raise ValueError("split needs label: only labelled nodes are trained and tested on; remove split")
        for column in (column for feature in self.features for column in feature.columns):
            if column in self.reserved:
                raise ValueError(
                    f"column {column!r} is a feature and also the id, label or split, which would give the answer "
                    "away; take it out of features"
                )
        return self

    @property
    def reserved(self) -> tuple[str, ...]:
        """Columns that are never features: id, label and split."""
        label = () if self.label is None else (self.label.column,)
        split = (self.split.column,) if isinstance(self.split, SplitColumn) else ()
        return (self.id, *label, *split)


class RelationSettings(Settings):
    """Which kinds of edges to keep, and what each multiplies the weight by."""

    column: Text
    weights: Annotated[dict[Text, Annotated[float, Field(ge=0)]], Field(min_length=1)]
    other: Literal["error", "drop"] = Field("error", description="a relation that is not listed stops or is left out")


class EdgeSettings(Settings):
    """One table of edges: one row per edge."""

    file: TablePath
    source: Text
    target: Text
    weight: Text | None = Field(None, description="column of finite numbers of at least 0")
    relation: RelationSettings | None = None
    directed: bool = Field(False, description="false: a row is an edge in both directions, a self-loop once")
    unknown: Literal["error", "drop"] = Field("error", description="an id that is not in the node table")

    @field_validator("file")
    @classmethod
    def _check_file(cls, path: Path) -> Path:
        return _check_suffix(path)


class MachineSettings(Settings):
    """Several machines of the party that share its local model, across organisations (docs/deployment.md)."""

    count: int = Field(ge=2, description="how many, with the one that joins")
    address: str = Field(description="host:port of the one that joins, free there and reached by the others")
    secret: Path = Field(
        description="file of the secret that they share, readable by their account alone, relative to the party file"
    )
    idle_s: float = Field(3600.0, gt=0, description="longest wait of the others for work within a job")

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        host, _, port = address.rpartition(":")
        if not host or ":" in host or not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise ValueError("an address is a name or IPv4 address and a port, as in 10.0.0.5:29500")
        return address

    def within(self, folder: Path) -> MachineSettings:
        """The same, of a party file in ``folder``."""
        return self.model_copy(update={"secret": folder / self.secret})

    @property
    def host(self) -> str:
        """Name or IPv4 address."""
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """Of the rendezvous."""
        return int(self.address.rpartition(":")[2])


class PartySettings(Settings):
    """One organisation's own settings; private to it."""

    party: PartyName
    seed: Literal["private", "job"] = Field(
        "private", description="whether its initial weights and dropout come from a secret seed or the job's"
    )
    nodes: NodeSettings
    edges: tuple[EdgeSettings, ...] = ()
    limits: LimitSettings = LimitSettings()
    consent: ConsentSettings = Field(
        ConsentSettings(), description="how often it takes part across organisations; on one machine nothing is counted"
    )
    machines: MachineSettings | None = Field(None, description="several machines of its own; null: the one that joins")

    @field_validator("party")
    @classmethod
    def _check_party(cls, name: PartyId) -> PartyId:
        if name == SERVER:
            raise ValueError("a holder may not be called that: it is the server's name; rename it")
        return name


def is_pattern(column: str) -> bool:
    """Whether the name of feature columns holds a wildcard: ``*``, ``?`` or ``[…]``."""
    return not _WILDCARDS.isdisjoint(column)


def parse_party_settings(data: object, source: str = "party") -> PartySettings:
    """Validates party settings that came from YAML or a dictionary.

    Raises:
        ConfigError: names the first broken key, its value and the rule.
    """
    if not isinstance(data, dict):
        raise ConfigError(
            f"{source}: a party file is a mapping of settings, not {type(data).__name__}; see docs/tables.md"
        )
    try:
        return PartySettings.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_problem(error)}") from error


def read_party_settings(path: Path) -> PartySettings:
    """Reads and validates a party file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks a rule.
    """
    data = read_yaml(path, "party file", _TextLoader)
    return parse_party_settings({} if data is None else data, str(path))


class _TextLoader(yaml.SafeLoader):
    """Leaves every scalar but null as its text, so that the class ``no`` is not false, nor the category ``007`` 7.

    The settings turn text into numbers and truth values where they ask for them.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own declaration
        first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
