"""What a combine strategy is, and where each is found by name (VFGNN 3.4, eqs. 5-7).

A strategy has a holder's part and a server's part. Where it is linear the server needs nothing but the sum of the
holders' contributions, so it works as well when every single one is masked.

A package adds its own by an entry point of the group ``veilgraph.combines``: a subclass of ``Combine``.
``veilgraph.testing.combine`` has the tests that it must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator
from torch import Tensor, nn

from veilgraph.core.registry import Registry
from veilgraph.core.settings import Settings, named_in
from veilgraph.nn.propagate import Adjacency

COMBINES: Final[Registry[type[Combine[Any]]]] = Registry(
    "veilgraph.combines",
    {
        "mean": "veilgraph.nn.combine.mean:Mean",
        "concat": "veilgraph.nn.combine.concat:Concat",
        "regression": "veilgraph.nn.combine.regression:Regression",
        "degree-weighted": "veilgraph.nn.combine.degree_weighted:DegreeWeighted",
    },
    "veilgraph.nn.combine.strategy:Combine",
)


class CombineSettings(Settings):
    """How the server combines the local embeddings. A strategy with settings of its own has a subclass."""

    strategy: Annotated[str, named_in(COMBINES)] = Field("mean", description="how the holders' embeddings become one")
    masked: bool | None = Field(
        None, description="hide single embeddings from the server; default: wherever the strategy is linear"
    )
    bits: int = Field(32, ge=8, le=44, description="fractional bits of a masked embedding in the ring")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.masked and not self.linear:
            raise ValueError(
                f"strategy {self.strategy!r} cannot be masked: the server needs each embedding by itself; "
                "set masked to false, or choose mean, regression or degree-weighted"
            )
        return self

    @property
    def kind(self) -> type[Combine[Any]]:
        """The strategy that they name."""
        return COMBINES[self.strategy]

    @property
    def linear(self) -> bool:
        """Whether the server needs no more than the sum of what the holders prepare."""
        return self.kind.linear

    @property
    def is_masked(self) -> bool:
        """``masked`` with its default filled in."""
        return self.linear if self.masked is None else self.masked


S = TypeVar("S", bound=CombineSettings)


class Combine(ABC, Generic[S]):
    """One strategy.

    Args:
        given: ``model.combine`` of the job.

    Attributes:
        settings: of its jobs: the keys of ``model.combine``.
        words: what the server does with what the holders publish, as in "the server takes the mean of …".
        needs_weight: whether the server needs, once, the sum over holders of ``holder_weight``.
        linear: whether the server needs no more than the sum of the contributions.
    """

    settings: ClassVar[type[CombineSettings]] = CombineSettings
    words: ClassVar[str]
    needs_weight: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def __init__(self, given: S) -> None:
        self.given = given

    @abstractmethod
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        """The module that turns a holder's t into its contribution, row by row, with the forward of ``parts.Scale``.

        Args:
            dim: d.
            holders: P.
            adjacency: the holder's own; also gives the dtype.
        """

    def divisor(self, holders: int) -> int | None:
        """What the contribution is t divided by; None where it has weights, be they trained or of the holder's edges.

        A single release (``privacy.schedule: once``) is of a strategy that has one: how much noise then reaches the
        label holder is known to all.
        """
        return None

    def holder_weight(self, holders: int, adjacency: Adjacency) -> Tensor | None:
        """The holder's weight of each node, Tensor[N, 1] float64, or None where ``needs_weight`` is false.

        A job reveals it as degrees: nothing but the degree may be in it.
        """
        return None

    def output_dim(self, dim: int, holders: int) -> int:
        """Width of the combined embedding."""
        return dim

    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None = None) -> Tensor:
        """The combined embedding, Tensor[N, output_dim].

        Args:
            pieces: the contributions in the holders' order; of a linear strategy their sum will do.
            weight_total: Tensor[N, 1], sum of the holders' weights, where ``needs_weight``.
        """
        total = pieces[0]
        for piece in pieces[1:]:
            total = total + piece
        return total


def combine_settings(said: Mapping[str, object]) -> CombineSettings:
    """What a job says under ``model.combine``, held to the strategy that it names.

    Raises:
        ValidationError: there is no such strategy, or it has no such setting.
    """
    name = said.get("strategy", CombineSettings().strategy)
    known = isinstance(name, str) and name in COMBINES
    return (COMBINES[str(name)].settings if known else CombineSettings).model_validate(said)


def _read(said: object) -> object:
    return combine_settings(said) if isinstance(said, Mapping) else said


AnyCombineSettings = Annotated[SerializeAsAny[CombineSettings], BeforeValidator(_read)]
"""A field of settings that is of whichever strategy it names."""


def build_combine(settings: CombineSettings) -> Combine[Any]:
    """The strategy that the settings name."""
    return settings.kind(settings)
