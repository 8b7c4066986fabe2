"""What a party file says of tables of edges: ends, relations, weights and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from veilgraph.core.settings import Settings
from veilgraph.tables.feature_settings import Text
from veilgraph.tables.file_settings import Moment, TableFile, TimeFormat, stem


class WeightSettings(Settings):
    """A column of numbers of edges, and what becomes of it."""

    column: Text = Field(description="of finite numbers; a weight, and what scale: log takes, is at least 0")
    scale: Literal["none", "log"] = Field("none", description="log: log(1 + number); none: as it is")


def _as_weight(value: object) -> object:
    return {"column": value} if isinstance(value, str | int) and not isinstance(value, bool) else value


def _as_written(weight: WeightSettings | None) -> object:
    """A column as it is goes by its name alone, in digests too."""
    return weight.column if weight is not None and weight == WeightSettings(column=weight.column) else weight


class TimeFilter(Settings):
    """A window of time; edges outside it are left out."""

    column: Text = Field(description="of dates or times")
    after: Moment | None = Field(None, description="the first moment that is within; null: no first")
    before: Moment | None = Field(None, description="the first moment that is no more; null: no last")
    format: TimeFormat | None = Field(None, description="of text, as in %d.%m.%Y; null: ISO")
    missing: Literal["error", "drop"] = Field("error", description="an edge without a time stops or is left out")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.after is None and self.before is None:
            raise ValueError("needs after or before, between which an edge is kept; give one")
        if self.after is not None and self.before is not None and self.after >= self.before:
            raise ValueError(f"after={self.after} must be earlier than before={self.before}; mend one")
        return self


class DecaySettings(Settings):
    """An edge's weight is halved with every so many days of its age."""

    column: Text = Field(description="of dates or times")
    half_life_days: float = Field(gt=0, description="age at which half of the weight is left")
    at: Moment = Field(description="when age is 0; no edge may be later")
    format: TimeFormat | None = Field(None, description="of text, as in %d.%m.%Y; null: ISO")


NO_EDGE_FEATURES: Final = (
    "features of edges are for paradigm horizontal with model.message: full; choose that, or leave them out"
)
Hops = Annotated[int, Field(ge=0, le=32)]
"""As many as a local model has at most."""


class RelationSettings(Settings):
    """Which kinds of edges to keep, and what each multiplies the weight by."""

    column: Text = Field(description="of the edge table")
    weights: Annotated[
        dict[Text, Annotated[float, Field(ge=0)]], Field(min_length=1, description="relation → what it multiplies by")
    ]
    other: Literal["error", "drop"] = Field("error", description="a relation that is not listed stops or is left out")
    hops: dict[Text, Hops] = Field({}, description="relation → as edges[].hops; none: as far as the local model looks")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.hops:
            if name not in self.weights:
                raise ValueError(f"hops names {name!r}, which is not one of the relations of weights; mend it")
        return self


class EdgeSettings(TableFile):
    """One table of edges: one row per edge."""

    source: Text = Field(description="column of ids")
    target: Text | None = Field(None, description="column of ids; or shared, in its place")
    shared: Text | None = Field(
        None,
        description="in place of target: a column of what nodes share, as a device; whoever has the same is joined",
    )
    at_most: int = Field(50, ge=2, le=1000, description="a shared value of more nodes joins none")
    weight: Annotated[
        WeightSettings | None,
        BeforeValidator(_as_weight, json_schema_input_type=WeightSettings | Text | None),
        PlainSerializer(_as_written),
    ] = Field(None, description="column of finite numbers of at least 0, or {column, scale}; null: every edge weighs 1")
    features: tuple[
        Annotated[WeightSettings, BeforeValidator(_as_weight, json_schema_input_type=WeightSettings | Text)], ...
    ] = Field((), description="columns of numbers, or {column, scale}, for horizontal jobs with message: full")
    relation: RelationSettings | None = Field(None, description="null: all edges alike")
    directed: bool = Field(False, description="false: a row is an edge in both directions, a self-loop once")
    unknown: Literal["error", "drop"] = Field("error", description="an id that is not in the node table")
    filter: TimeFilter | None = Field(None, description="which edges there are, by their time; null: all")
    decay: DecaySettings | None = Field(None, description="what age takes of an edge's weight; null: nothing")
    normalize: Literal["mean"] | Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="what weights are divided by: the mean of those of their relation in this table, which is then 1, "
        "or a number; null: by nothing",
    )
    factor: float = Field(1.0, ge=0, description="what every weight of this table is multiplied by at last")
    name: Text | None = Field(
        None,
        description="of the relation that its edges are, of one name in several tables: one; null: the file's without "
        "its ending. Not beside relation, which names them",
    )
    hops: Hops | None = Field(
        None,
        description="with model.local.model relational: edges count within so many hops of a node; null: as far as the "
        "model looks. Beside relation: relation.hops",
    )

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
        for key in ("weight", "features", "relation", "decay", "normalize", "directed"):
            if self.shared is not None and getattr(self, key):
                raise ValueError(f"{key} is of rows that are an edge each, and shared joins two rows; leave {key} out")
        return self

    @property
    def reaches(self) -> dict[str, int | None]:
        """Name of each of its relations → their hops, in the order of ``EdgeTable.relations``."""
        if self.relation is None:
            return {self.name or stem(self.file): self.hops}
        return {name: self.relation.hops.get(name) for name in self.relation.weights}


def check_reaches(edges: Sequence[EdgeSettings]) -> dict[str, int | None]:
    """Every relation of a party file → its hops, in the order in which they are named first.

    Raises:
        ValueError: two tables say different hops of one relation.
    """
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
    """Why a job whose local model tells no relations apart is not for a party file that says hops of some.

    Returns:
        The reason with its way out and no name of a relation; None where it says none.
    """
    for place, each in enumerate(edges):
        if any(hops is not None for hops in each.reaches.values()):
            key = "hops" if each.relation is None else "relation.hops"
            return f"edges.{place}.{key} is for jobs with model.local.model relational; leave it out, or choose that"
    return None


def says_weights(edges: Sequence[EdgeSettings]) -> str | None:
    """The place of the first key that has edges of a party file weigh more or less than 1; None where there is none."""
    for place, each in enumerate(edges):
        numbers = {"normalize": each.normalize, "factor": each.factor}
        found = [key for key in ("weight", "decay") if getattr(each, key) is not None]
        found += [key for key, number in numbers.items() if isinstance(number, float) and number != 1]
        if each.relation is not None and any(weight != 1 for weight in each.relation.weights.values()):
            found.append("relation.weights")
        if found:
            return f"edges.{place}.{found[0]}"
    return None


def beyond_own_edge(edges: Sequence[EdgeSettings]) -> list[str]:
    """Why an edge's weight would depend on other edges; nothing where its own row alone makes it.

    Only then is one edge's ε about what that edge does, and not about what it does to the weights of all others. One
    row of shared values is an edge to everybody who has the value, and one more may take the edges of all of them away.

    Returns:
        One reason for every table of which this is so, with its way out and no name of a file or column.
    """
    return [
        f"edges.{place}.normalize=mean is computed from all edges; set normalize to a number, or leave it out"
        for place, each in enumerate(edges)
        if each.normalize == "mean"
    ] + shared_values(edges)


def shared_values(edges: Sequence[EdgeSettings]) -> list[str]:
    """Why one row of a node would change edges of others, where nodes are joined by what they share."""
    return [
        f"edges.{place}.shared joins all who have a value, and one row more or less can change up to "
        f"{each.at_most * (each.at_most + 1) // 2} edges; leave the file out, or export pairs"
        for place, each in enumerate(edges)
        if each.shared is not None
    ]
