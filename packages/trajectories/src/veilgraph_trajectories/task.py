"""Trajectories: where objects that several cameras see will be (Feddy, Jiang et al., arXiv 2009.07351).

A holder's rows are (object, frame, x, y), its four columns in this order. Edges follow from positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Final, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import override
from veilgraph_averaging.network import Averaged, NetworkSettings, Own
from veilgraph_averaging.tasks import Judging, Subject, Task, TaskSettings

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import Share
from veilgraph.protocol.figures import Figure, Measures, Scores
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Predicted
from veilgraph_trajectories.network import MovingGNN
from veilgraph_trajectories.windows import Windows, side_by_side, windows

COLUMNS: Final = ("object", "frame", "x", "y")
_SPLITS: Final = ("train", "val", "test")
_TRAIN: Final = 0
_LARGEST: Final = 2**24
"""Above it float32 has gaps between whole numbers."""


class TrajectoriesTaskSettings(TaskSettings):
    """What is seen, what is predicted, and of which frames."""

    radius: float = Field(4.0, gt=0)
    """metres within which objects are joined by an edge"""
    observe: int = Field(8, ge=2, le=1000)
    """frames seen before the predicted ones"""
    predict: int = Field(12, ge=1, le=1000)
    """frames predicted, one by one"""
    batch: float = Field(0.25, gt=0, le=1)
    """share of training windows in a local epoch, drawn anew"""
    split: tuple[Share, Share] = (0.5, 0.2)
    """shares of a holder's frames, in time order, for training and validation; the rest tests"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(self.split) > 1 + 1e-9:
            raise ValueError(f"split={list(self.split)} has a sum above 1; lower one of them")
        return self

    @property
    def length(self) -> int:
        """T, frames of a window."""
        return self.observe + self.predict

    @override
    def check(self, model: NetworkSettings, train: TrainSettings) -> None:
        super().check(model, train)
        usual = NetworkSettings()
        for key in ("activation", "dropout", "local"):
            if (value := getattr(model, key)) != getattr(usual, key):
                raise ValueError(
                    f"model.{key}={value} with averaging.task.name={self.name}: its network is recurrent and has no "
                    f"such part; leave model.{key} out"
                )

    @override
    def describe(self) -> list[str]:
        return [
            f"Rows are objects in frames. A recurrent network sees {self.observe} frames, in which objects nearer "
            f"than {self.radius:g} m to each other are joined, and predicts the next {self.predict}."
        ]

    @override
    def check_graph(self, graph: PartyGraph) -> None:
        columns, named = graph.features, ", ".join(COLUMNS)
        if columns.shape[1] != len(COLUMNS):
            raise DataError(
                f"party {graph.party!r}: features: {columns.shape[1]} columns, and task trajectories takes "
                f"{len(COLUMNS)}: {named}; give these, in this order",
                key="features",
            )
        for key, given_too in {"edges": graph.num_edges > 0, "labels": graph.labels is not None}.items():
            if given_too:
                raise DataError(
                    f"party {graph.party!r}: {key}: task trajectories joins objects by their distance and predicts "
                    "positions, and takes none; leave them out",
                    key=key,
                )
        numbers = columns.to_dense()[:, :2]
        if bool((numbers != numbers.round()).any()) or bool((numbers.abs() > _LARGEST).any()):
            raise DataError(
                f"party {graph.party!r}: features: object and frame must be whole numbers of at most {_LARGEST}, and "
                f"columns are taken to be {named}; give them in this order, as they are (data.feature_scaling=none)",
                key="features",
            )
        if len(torch.unique(numbers, dim=0)) < len(numbers):
            raise DataError(
                f"party {graph.party!r}: features: an object is twice in a frame; give it one row in each frame",
                key="features",
            )


class MovingNetwork(MovingGNN, Averaged):
    """The network of ``MovingGNN`` with weights that are averaged."""


@dataclass(frozen=True, eq=False)
class Seen(Own):
    """What a holder's camera has seen.

    Attributes:
        all: windows that begin ``predict`` frames after each other, M tracks: every frame is predicted at most once.
        part: Tensor[M] int64, place in the split; −1 where a window has frames of two parts.
        training: the windows to train on, M' tracks.
        number: Tensor[M'] int64, which of these windows a track is in, from 0.
    """

    all: Windows
    part: Tensor
    training: Windows
    number: Tensor

    @property
    def count(self) -> int:
        """W, windows to train on."""
        return int(self.number[-1]) + 1 if len(self.number) else 0


class Trajectories(Task[TrajectoriesTaskSettings, Seen]):
    """Mean squared error of one step, from what was seen till then; judged by how far whole paths are off.

    A path is scored of objects that are there in all frames of a window.
    """

    settings: ClassVar[type[TaskSettings]] = TrajectoriesTaskSettings
    measures: ClassVar[Measures] = Measures(
        "mean squared error of one step in m²",
        (
            Figure("ade", "ADE", "average displacement error: metres off, mean over predicted frames", rises=False),
            Figure("fde", "FDE", "final displacement error: metres off in the last predicted frame", rises=False),
        ),
        of="paths",
    )
    subject: ClassVar[Subject] = Subject("where an object will be", "steps to train on")

    @property
    @override
    def judging(self) -> Judging[Seen]:
        return PathJudging(self.given)

    @override
    def own(self, graph: PartyGraph, streams: LearningStreams) -> Seen:
        given, dtype = self.given, self.public.dtype
        columns = graph.features.to_dense()
        objects, frame = columns[:, :2].long().T
        seen = windows(
            objects.numpy(),
            frame.numpy(),
            columns[:, 2:].numpy(),
            length=given.length,
            stride=given.predict,
            radius=given.radius,
            dtype=dtype,
        )
        base = Own.of(graph, dtype)
        part = _part(seen.start, frame, given)
        training = seen.take((part == _TRAIN) & self._has_steps(seen))
        number = torch.unique_consecutive(training.start, return_inverse=True)[1]
        return Seen(graph, base.features, base.adjacency, seen, part, training, number)

    def _has_steps(self, seen: Windows) -> Tensor:
        """Of each track whether there is anything to train on in its window; [M] bool."""
        starts, number = torch.unique_consecutive(seen.start, return_inverse=True)
        steps = torch.zeros(len(starts), dtype=torch.int64).index_add(
            0, number, _steps(seen, self.given.observe).sum(1)
        )
        return (steps > 0)[number]

    @override
    def network(self, streams: LearningStreams) -> Averaged:
        with streams.global_generator("moving"):
            found = MovingNetwork(self.public.model.dim, self.given.radius)
        return found.to(self.public.dtype)

    @override
    def join(self, owns: Sequence[Seen]) -> Seen:
        first, before = owns[0], accumulate((own.count for own in owns), initial=0)
        return Seen(
            first.graph,
            first.features,
            first.adjacency,
            side_by_side([own.all for own in owns]),
            torch.cat([own.part for own in owns]),
            side_by_side([own.training for own in owns]),
            torch.cat([own.number + earlier for own, earlier in zip(owns, before, strict=False)]),
        )

    @override
    def examples(self, own: Seen) -> int:
        return int(_steps(own.training, self.given.observe).sum())

    @override
    def loss(self, network: Averaged, own: Seen, generator: torch.Generator) -> Tensor:
        chosen = torch.zeros(own.count, dtype=torch.bool)
        chosen[torch.randperm(own.count, generator=generator)[: math.ceil(self.given.batch * own.count)]] = True
        seen = own.training.take(chosen[own.number])
        return _squares(network(seen), seen, self.given.observe)[_steps(seen, self.given.observe)].mean()


class PathJudging(Judging[Seen]):
    """Figures of how far whole paths are off."""

    def __init__(self, given: TrajectoriesTaskSettings) -> None:
        self.given = given

    @override
    def output(self, network: Averaged, own: Seen) -> Tensor:
        """Predicted positions, Tensor[M, predict, 2]."""
        assert isinstance(network, MovingGNN)
        return network.roll_out(own.all, self.given.observe)

    @property
    @override
    def tally_size(self) -> int:
        return 5 * len(_SPLITS)

    @override
    def tally(self, network: Averaged, own: Seen, output: Tensor) -> Tensor:
        """Of each split: summed squares and number of steps; metres off on average and at last, number of paths."""
        first, seen = self.given.observe, own.all
        squares, steps = _squares(network(seen), seen, self.given.observe).double(), _steps(seen, self.given.observe)
        off = (output - seen.positions[:, first:]).double().norm(dim=2)
        whole, found = seen.here.all(1), []
        for split in range(len(_SPLITS)):
            here = own.part == split
            paths, counted = off[here & whole], squares[here][steps[here]]
            found += [counted.sum(), counted.new_tensor(len(counted))]
            found += [paths.mean(1).sum(), paths[:, -1].sum(), paths.new_tensor(len(paths))]
        return torch.stack(found)

    @override
    def scores(self, network: Averaged, total: Tensor) -> Scores:
        values: dict[str, float | None] = {}
        losses = []
        for split, (squares, steps, average, final, paths) in zip(_SPLITS, total.view(-1, 5).tolist(), strict=True):
            losses.append(squares / steps if round(steps) else float("nan"))
            for name, value in (("ade", average), ("fde", final)):
                values[f"{split}_{name}"] = value / paths if round(paths) else None
        return Scores(Trajectories.measures, losses[0], losses[1], values)

    @override
    def predictions(self, network: Averaged, own: Seen, output: Tensor) -> Predicted:
        """A row of each object that is there in the last observed frame, for each frame that follows."""
        seen, given = own.all, self.given
        rows = seen.here[:, given.observe - 1].nonzero().squeeze(1)
        objects = seen.object[rows].repeat_interleave(given.predict)
        frames = (seen.start[rows, None] + torch.arange(given.observe, given.length)).reshape(-1)
        position = output[rows].reshape(-1, 2)
        return Predicted(
            torch.empty(len(frames), 0),
            columns=dict(zip(COLUMNS[2:], position.T, strict=True)),
            names=tuple(f"{each}\t{frame}" for each, frame in zip(objects.tolist(), frames.tolist(), strict=True)),
            keys=COLUMNS[:2],
        )


def _steps(seen: Windows, observe: int) -> Tensor:
    """Which steps count: after ``observe`` frames, from where an object is to where it is; [M, predict] bool."""
    return seen.here[:, observe:] & seen.here[:, observe - 1 : -1]


def _squares(following: Tensor, seen: Windows, observe: int) -> Tensor:
    """Squared metres of these steps, [M, predict], of ``MovingGNN``'s [M, T − 1, 2]."""
    return (following[:, observe - 1 :] - seen.positions[:, observe:]).square().sum(2)


def _part(start: Tensor, frame: Tensor, given: TrajectoriesTaskSettings) -> Tensor:
    """Of windows their place in the split, −1 where they are across; Tensor[M] int64."""
    if not len(frame):
        return torch.empty(0, dtype=torch.int64)
    first, span = frame.min(), frame.max() + 1 - frame.min()
    train, val = (first + round(share * int(span)) for share in (given.split[0], sum(given.split)))
    end = start + given.length
    part = torch.full_like(start, -1)
    part[end <= train] = 0
    part[(start >= train) & (end <= val)] = 1
    part[start >= val] = 2
    return part
