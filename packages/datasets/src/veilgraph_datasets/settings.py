"""The sizes and shapes of made data sets: ``data.block_model`` and ``data.payments`` of a job."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from veilgraph.core.settings import Settings
from veilgraph.graph.settings import MAX_HOLDERS

PatternKind = Literal["fan-in", "fan-out", "cycle", "scatter-gather", "bipartite", "stack"]
PATTERN_KINDS: Final[tuple[PatternKind, ...]] = get_args(PatternKind)
LARGEST_PATTERN: Final = 11
"""Members: a fan of 10."""
TRANSFERS_PER_MEMBER: Final = 2
"""Most that a pattern has, for each of its members: four that pay four, or three that pay three that pay three."""
CUSTOMERS_PER_BANK: Final = 50


class PaymentsSettings(Settings):
    """A world of payments; ``veilgraph_datasets.world`` makes it."""

    customers: int = Field(10_000, ge=200, le=10**8)
    """N, over all banks"""
    transfers: int = Field(100_000, ge=1, le=10**9)
    """T, with those of patterns"""
    banks: int = Field(3, ge=2, le=MAX_HOLDERS)
    """named A, B, …; the first is the largest"""
    overlap: float = Field(0.2, ge=0, le=1)
    """share of customers with accounts at two banks"""
    laundering: float = Field(0.04, gt=0, le=0.2)
    """share of customers in a pattern"""
    patterns: Annotated[tuple[PatternKind, ...], Field(min_length=1)] = PATTERN_KINDS
    """kinds of patterns, equally frequent to one"""
    lookalikes: int = Field(5, ge=0, le=20)
    """lawful customers per member with the same payments"""
    signal: float = Field(1.0, ge=0)
    """shift of members' columns at banks, shop and telecom, against noise of variance 1"""
    mules: float = Field(1.0, ge=0, le=1)
    """share of members whose columns shift"""
    communities: float = Field(0.0, ge=0, le=1)
    """share of dealings between persons inside a community of 30, all launderers or none"""
    fee: float = Field(0.02, ge=0, le=0.2)
    """largest share that a member keeps of what it passes on"""
    days: int = Field(90, ge=14, le=3650)
    """most days from first to last transfer"""
    reach: float = Field(0.8, gt=0, le=1)
    """share of customers that the shop knows; likewise the telecom"""

    @field_validator("patterns")
    @classmethod
    def _check_patterns(cls, kinds: tuple[PatternKind, ...]) -> tuple[PatternKind, ...]:
        if len(set(kinds)) < len(kinds):
            raise ValueError("a pattern is named twice; name each once")
        return kinds

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.customers < CUSTOMERS_PER_BANK * self.banks:
            raise ValueError(
                f"banks={self.banks} need at least {CUSTOMERS_PER_BANK} customers each, and customers="
                f"{self.customers}; take fewer banks or more customers"
            )
        members = self.laundering * self.customers
        if members < LARGEST_PATTERN * len(self.patterns):
            raise ValueError(
                f"laundering={self.laundering:g} of customers={self.customers} are {members:.0f}, and one of each of "
                f"{len(self.patterns)} patterns has up to {LARGEST_PATTERN * len(self.patterns)} members; take more "
                "customers, more laundering or fewer patterns"
            )
        if self.overlap < self.laundering:
            raise ValueError(
                f"overlap={self.overlap:g} is below laundering={self.laundering:g}, and the middle of a fan has "
                "accounts at two banks; raise overlap"
            )
        if self.transfers < self.fewest_transfers:
            raise ValueError(
                f"transfers={self.transfers} are too few for customers={self.customers}, laundering="
                f"{self.laundering:g} and lookalikes={self.lookalikes}; take at least {self.fewest_transfers}"
            )
        return self

    @property
    def fewest_transfers(self) -> int:
        """Two for each customer, and those of patterns and lookalikes."""
        unlawful = TRANSFERS_PER_MEMBER * self.laundering * (1 + 2 * self.lookalikes)
        return int(self.customers * (2 + unlawful)) + 1


class BlockModelSettings(Settings):
    """The size and shape of a synthetic graph; ``veilgraph_datasets.block_model`` makes it."""

    nodes: int = Field(10_000, ge=8, le=10**9)
    """N"""
    classes: int = Field(8, ge=2)
    """C blocks of N/C nodes each"""
    features: int = Field(64, ge=1)
    """F columns"""
    mean_degree: float = Field(10.0, gt=0)
    """of a node: N·mean_degree/2 edges"""
    homophily: float = Field(0.8, ge=0, le=1)
    """share of edges inside blocks"""
    degree_exponent: float | None = Field(2.5, ge=2.1)
    """γ of the expected degrees' density d^-γ; null: equal degrees"""
    signal: float = Field(1.0, ge=0)
    """length of a class's mean feature vector; noise has variance 1"""

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
