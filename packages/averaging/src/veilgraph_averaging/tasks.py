"""The seam of tasks: what holders learn together, and where each is found by name.

A package adds its own by an entry point of the group ``veilgraph.tasks``: a subclass of ``Task``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

import torch
from pydantic import SerializeAsAny
from torch import Tensor

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Registry, Settings, named_in, read_by, settings_in
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.features import compact
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import POOLED
from veilgraph.nn.calibration import Calibration
from veilgraph.nn.local.build import CustomModel
from veilgraph.protocol.figures import Measures, Scores
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Predicted
from veilgraph_averaging.network import Averaged, AveragedNetwork, NetworkSettings, Own

TASKS: Final[Registry[type[Task[Any, Any]]]] = Registry(
    "veilgraph.tasks",
    {
        "classes": "veilgraph_averaging.node_tasks:Classes",
        "links": "veilgraph_averaging.links:Links",
        "graphs": "veilgraph_averaging.node_tasks:Graphs",
        "values": "veilgraph_averaging.node_tasks:Values",
    },
    "veilgraph_averaging.tasks:Task",
)


class TaskSettings(Settings):
    """What is learnt. A task with settings of its own has a subclass."""

    name: Annotated[str, named_in(TASKS)] = "classes"
    """classes: a class per node; values: a number per node; links: which nodes are joined; graphs: a class per graph
    """

    @property
    def kind(self) -> type[Task[Any, Any]]:
        """The class of the task that ``name`` names."""
        return TASKS[self.name]

    @property
    def sums_before(self) -> tuple[int, ...]:
        """Sizes of sums over the holders that these settings cause before the first round, one after another."""
        return ()

    def check(self, model: NetworkSettings, train: TrainSettings) -> None:
        """Refuses with ``ValueError`` what of a job does not go with the task, or would be ignored."""
        if train.class_weights != "none" and not self.kind.subject.has_classes:
            raise ValueError(
                f"train.class_weights={train.class_weights} with averaging.task.name={self.name}: it weighs classes, "
                "and the task has none; choose none"
            )

    def check_graph(self, graph: PartyGraph) -> None:
        """Refuses with ``DataError``, before anything is sent, a graph that lacks what the task needs."""

    def describe(self) -> list[str]:
        """Return sentences on what is learnt, for a job's description; [] where the rest of it says that."""
        return []


AnyTaskSettings = Annotated[SerializeAsAny[TaskSettings], read_by(settings_in(TASKS, TaskSettings, "name"))]
"""A field of settings that is of whichever task it names."""


@dataclass(frozen=True)
class Public:
    """What all know before round 1; ``transition``: Tensor[C, C] float64, P(label learnt from = j | true label = i)."""

    task: TaskSettings
    model: NetworkSettings
    train: TrainSettings
    features: int  # F, of every holder
    stated: int  # what holders agree on of what each states by ``Subject.stated``
    dtype: torch.dtype
    custom: CustomModel | None = None  # for ``model.local.model: custom``
    transition: Tensor | None = None


S = TypeVar("S", bound=TaskSettings)
O = TypeVar("O", bound=Own)  # noqa: E741 - of a holder's own


@dataclass(frozen=True)
class Subject:
    """What a task predicts, and what holders state of their data for it."""

    words: str  # what is predicted, as in "a model that predicts …"
    examples: str = "training nodes"  # what is trained on, in the plural: it weighs a holder
    has_classes: ClassVar[bool] = False  # whether classes are predicted, which may weigh alike or be balanced

    def stated(self, graph: PartyGraph) -> int:
        """Return the number from 0 to 4096 that a holder states to all parties about its data, as of classes."""
        return 0

    def agreed(self, stated: Mapping[PartyId, int]) -> int:
        """Combine all holders' statements into one number; ``DataError``: nobody has what is needed, or they differ."""
        return 0

    def trains_on(self, graph: PartyGraph) -> bool:
        """Whether a holder's graph alone has what the task needs for training."""
        return True


@dataclass(frozen=True)
class InitialSums(Generic[O]):
    """Sums over the holders before the first round, one after another; the results are kept as ``network.facts``.

    ``part``: of a holder's data, and Tensor[K] float64, results so far: what it adds to the next, below 2^40.
    """

    sizes: tuple[int, ...] = ()
    part: Callable[[O, Tensor], Tensor] = lambda _, known: known.new_empty(0)


class Judging(ABC, Generic[O]):
    """How models of a task are judged, and what holders have of them."""

    tally_bits: int = 20  # fractional bits of a tally that is added up: of b bits, sums stay below 2^(61 − b)

    @abstractmethod
    def output(self, network: Averaged, own: O) -> Tensor:
        """Apply the network to a holder's data without dropout; the task says what rows and columns are."""

    @property
    @abstractmethod
    def tally_size(self) -> int:
        """Length of ``tally``'s vector; it follows from public facts alone."""

    @abstractmethod
    def tally(self, network: Averaged, own: O, output: Tensor) -> Tensor:
        """Return a holder's summand for ``scores``: Tensor[tally_size] float64, whose sums fit ``tally_bits``."""

    @abstractmethod
    def scores(self, network: Averaged, total: Tensor) -> Scores:
        """Compute scores from a sum of tallies, Tensor[tally_size] float64; undefined figures are None."""

    def scores_here(self, network: Averaged, own: O, output: Tensor, *, everything: bool) -> Scores:
        """Compute scores where all data are in one place; ``everything``: also figures that an epoch does not need."""
        return self.scores(network, self.tally(network, own, output))

    def calibration(self, network: Averaged, own: O, probabilities: Tensor) -> Calibration | None:
        """Fit a calibration of a holder's probabilities on its own validation examples; None without classes."""
        return None

    @abstractmethod
    def predictions(self, network: Averaged, own: O, output: Tensor) -> Predicted:
        """Return a holder's predictions from ``output``: a row for each node, or for each thing that is predicted."""


class Task(ABC, Generic[S, O]):
    """What a job is to learn: from a holder's graph to its loss, and how its models are judged.

    Nothing here draws but from the streams and generators that it is given, and nothing is kept from call to call.
    """

    settings: ClassVar[type[TaskSettings]] = TaskSettings  # of its jobs: the keys of ``averaging.task``
    measures: ClassVar[Measures]  # what its models are judged by; the loss is that of ``loss``
    subject: ClassVar[Subject]  # what is predicted, and what holders state for it

    def __init__(self, public: Public) -> None:
        self.public = public
        given = public.task
        assert isinstance(given, self.settings)  # the registry's class reads them
        self.given: S = given  # type: ignore[assignment]

    @property
    @abstractmethod
    def judging(self) -> Judging[O]:
        """The object that judges the task's models."""

    @property
    def sums_before(self) -> InitialSums[O]:
        """The sums over holders that this job needs before round 1; none by default."""
        return InitialSums()

    @abstractmethod
    def own(self, graph: PartyGraph, streams: LearningStreams) -> O:
        """Prepare a holder's data for the task, the same all through a run; ``DataError`` as ``check_graph``."""

    @abstractmethod
    def join(self, owns: Sequence[O]) -> O:
        """Join all holders' prepared data, for pooled training (an upper bound; not allowed in practice)."""

    @abstractmethod
    def network(self, streams: LearningStreams) -> Averaged:
        """Make the network that every party has before the first weights are sent; ``streams`` draw its weights."""

    @abstractmethod
    def examples(self, own: O) -> int:
        """Return how many training examples a holder has, which weigh its part of a mean."""

    @abstractmethod
    def loss(self, network: Averaged, own: O, generator: torch.Generator) -> Tensor:
        """Return the mean loss, Tensor[], over a holder's training examples, at least one; ``generator``: dropout."""


def graph_network(public: Public, width: int, streams: LearningStreams) -> AveragedNetwork:
    """Make the network of the job's ``model``, with ``width`` output columns."""
    return AveragedNetwork(public.model, public.features, width, streams, public.dtype, public.custom)


def side_by_side(graphs: Sequence[PartyGraph]) -> PartyGraph:
    """Concatenate graphs with the same columns and no node in common into one: rows, edges, labels and masks."""
    sizes = [graph.num_nodes for graph in graphs]
    starts = accumulate(sizes, initial=0)
    return PartyGraph(
        party=POOLED,
        features=compact(torch.cat([graph.features.to_dense() for graph in graphs])),
        edge_index=torch.cat([graph.edge_index + start for graph, start in zip(graphs, starts, strict=False)], dim=1),
        edge_weight=_concatenate(graphs, "edge_weight", 1.0, [graph.num_edges for graph in graphs]),
        labels=_concatenate(graphs, "labels", -1, sizes),
        num_classes=next((graph.num_classes for graph in graphs if graph.labels is not None), None),
        targets=_concatenate(graphs, "targets", torch.nan, sizes),
        membership=_join_memberships(graphs),
        **{name: _concatenate(graphs, name, fill=False, sizes=sizes) for name in MASKS},  # type: ignore[arg-type]
    )


def _concatenate(graphs: Sequence[PartyGraph], name: str, fill: float, sizes: Sequence[int]) -> Tensor | None:
    """Concatenate an attribute of all graphs, ``fill`` where one lacks it (``sizes`` long); None where all lack it."""
    values: list[Tensor | None] = [getattr(graph, name) for graph in graphs]
    if all(value is None for value in values):
        return None
    pairs = zip(values, sizes, strict=True)
    return torch.cat([torch.full((size,), fill) if value is None else value for value, size in pairs])


def _join_memberships(graphs: Sequence[PartyGraph]) -> Tensor | None:
    """Concatenate ``membership``, numbered on from holder to holder; a holder without it has one graph."""
    if all(graph.membership is None for graph in graphs):
        return None
    parts, first = [], 0
    for graph in graphs:
        own = torch.zeros(graph.num_nodes, dtype=torch.int64) if graph.membership is None else graph.membership
        parts.append(own + first)
        first += int(own.max()) + 1
    return torch.cat(parts)
