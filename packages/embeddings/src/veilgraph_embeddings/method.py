"""A way to embed, and where each is found by name.

A package adds its own by an entry point of the group ``veilgraph.embeddings``: a subclass of ``Method``, with settings
of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Registry, Settings, named_in
from veilgraph.privacy.ledger import LedgerSummary
from veilgraph_embeddings.release import Door
from veilgraph_embeddings.world import World

METHODS: Final[Registry[type[Method[Any]]]] = Registry(
    "veilgraph.embeddings",
    {
        "plain": "veilgraph_embeddings.methods.plain:Plain",
        "apge": "veilgraph_embeddings.methods.apge:Apge",
        "noise": "veilgraph_embeddings.methods.noise:Noise",
    },
    "veilgraph_embeddings.method:Method",
)
"""The methods by the name that a job uses."""


class MethodSettings(Settings):
    """What every method has."""

    name: Annotated[str, named_in(METHODS)] = "apge"
    """plain: graph autoencoder; apge: trained to hide; noise: differentially private"""
    dim: int = Field(32, ge=1, le=4096)
    """width of embeddings"""

    @property
    def kind(self) -> type[Method[Any]]:
        """The method that they name."""
        return METHODS[self.name]


@dataclass(frozen=True, eq=False)
class Embedded:
    """What a method made.

    Attributes:
        rows: Tensor[N, d] float32, in the order of the world's.
        weights: of the encoder, by name: what embeds later nodes. Not for publication.
        facts: that a report tells, as plain values.
        paid: what the release cost, where it has a price.
    """

    rows: Tensor
    weights: Mapping[str, Tensor]
    facts: Mapping[str, object] = field(default_factory=dict)
    paid: tuple[LedgerSummary, ...] = ()


@dataclass(frozen=True)
class Tools:
    """What a method is given beside the data.

    Attributes:
        streams: of all that is learnt.
        door: through which noised rows leave, and all that they cost is paid.
        told: called after each epoch with the parts of the loss.
    """

    streams: LearningStreams
    door: Door
    told: Callable[[int, dict[str, float]], None]


S = TypeVar("S", bound=MethodSettings)


class Method(ABC, Generic[S]):
    """Makes embeddings.

    Attributes:
        settings: of its jobs: the keys of ``method``.
        words: what it does, as a report says it; what it promises, or that it promises nothing, included.
        is_private: whether its embeddings are noised and paid for (``Tools.door``), so that features must be of each
            node alone.
    """

    settings: ClassVar[type[MethodSettings]] = MethodSettings
    words: ClassVar[str]
    is_private: ClassVar[bool] = False

    @staticmethod
    def epochs(settings: S) -> int:
        """Of training, for a progress bar; 0 where there is none."""
        return 0

    @staticmethod
    @abstractmethod
    def embed(world: World, settings: S, tools: Tools) -> Embedded:
        """Makes the embeddings.

        Args:
            world: what may be used: without the edges and values that the report is held against.
            settings: the job's ``method``.
            tools: randomness, the door, progress.

        Raises:
            VeilgraphError: the data or the budget do not allow it; nothing is then to be published.
        """


def _read(said: object) -> object:
    said = {"name": said} if isinstance(said, str) else said
    if not isinstance(said, Mapping):
        return said
    name = said.get("name", MethodSettings().name)
    known = isinstance(name, str) and name in METHODS
    return (METHODS[str(name)].settings if known else MethodSettings).model_validate({**said, "name": name})


AnyMethodSettings = Annotated[SerializeAsAny[MethodSettings], BeforeValidator(_read)]
"""A field of settings that is of whichever method it names; the name alone will do."""
