"""How far off predicted paths are: each camera alone, all under masks, all in one place, and without learning.

``python -m research.feddy [--seeds S] [--scenes corridor,crossing,plaza] [--out FILE]`` prints the tables of
docs/guides/trajectories.md. FILE has a line of JSON for each seed, and seeds that it has are not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.autograd import backward
from veilgraph_averaging.network import Averaged
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_trajectories.task import Seen, Trajectories

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER
from veilgraph.graph.dataset import load_parts
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.role import build_optimizer

EVERY: Final = 2
"""Rounds from one evaluation to the next."""
NAMES: Final = ("constant position", "constant velocity", "mean velocity", "each alone", "federated", "pooled")
FIGURES: Final = ("ade", "fde")
SCENES: Final = ("corridor", "crossing", "plaza")
Found = dict[str, dict[str, list[float]]]
"""Name of ``NAMES`` or ``<camera> alone`` → figure → of each camera's test windows, then of all cameras'."""


def feddy_job(seed: int, cameras: int = 6, scenes: Sequence[str] = SCENES) -> AveragingJob:
    """The job whose twin is trained: three recordings of 24 s of each camera are for training."""
    world = {"cameras": cameras, "recordings": 8, "objects": 12, "scenes": list(scenes)}
    task = {"name": "trajectories", "split": [0.375, 0.25], "batch": 0.5}
    return averaging(
        parse_job(
            {
                "name": "feddy",
                "paradigm": "averaging",
                "preset": "paper",
                "seed": seed,
                "data": {"dataset": "trajectories", "holders": cameras, "made": world},
                "averaging": {"task": task, "local_epochs": 20},
                "model": {"dim": 32},
                "train": {"learning_rate": 0.005, "weight_decay": 0.0, "epochs": 16, "patience": None},
            }
        )
    )


@dataclass(frozen=True, eq=False)
class Cameras:
    """A seed's cameras, ready to be learnt from.

    Attributes:
        job: of all.
        twin: of the federated job, before its first round.
        owns: what each camera has seen.
        all: that side by side.
    """

    job: AveragingJob
    twin: PlainAveraging
    owns: list[Seen]
    all: Seen

    @classmethod
    def of(cls, job: AveragingJob) -> Cameras:
        """Records and cuts."""
        graphs = [part.graph for part in load_parts(job.data, job.seed)]
        twin = PlainAveraging(job, graphs)
        assert isinstance(twin.task, Trajectories)
        owns = [twin.task.own(graph, LearningStreams(job.seed, graph.party)) for graph in graphs]
        return cls(job, twin, owns, twin.task.join(owns))

    def figures(self, network: Averaged, own: Seen, output: Tensor | None = None) -> Mapping[str, float | None]:
        """Of one camera's windows, or of all; of the network's predictions where no others are given."""
        task = self.twin.task
        with torch.no_grad():
            predicted = task.judging.output(network, own) if output is None else output
            return task.judging.scores(network, task.judging.tally(network, own, predicted)).values

    def on_tests(self, network: Averaged, guess: Callable[[Seen], Tensor] | None = None) -> dict[str, list[float]]:
        """Test figures of each camera and of all; of guesses in place of the network's predictions."""
        found = [self.figures(network, own, guess and guess(own)) for own in (*self.owns, self.all)]
        return {name: [each[f"test_{name}"] or float("nan") for each in found] for name in FIGURES}


def best(step: Callable[[int], object], network: Averaged, value: Callable[[], float | None], rounds: int) -> None:
    """Trains, and leaves the network with the weights of the evaluation with the least value."""
    least, kept = value() or math.inf, network.vector()
    for number in range(1, rounds + 1):
        step(number)
        if number % EVERY == 0 and (found := value() or math.inf) < least:
            least, kept = found, network.vector()
    network.take(kept)


def in_one_place(cameras: Cameras, own: Seen) -> Averaged:
    """The job's network, trained on some cameras' windows alone as long as a federated one, judged by them alone."""
    job, task = cameras.job, cameras.twin.task
    streams = LearningStreams(job.seed, SERVER)
    network = task.network(streams)
    optimizer = build_optimizer(list(network.parameters()), {}, job)

    def step(number: int) -> None:
        for epoch in range(job.averaging.local_epochs):
            optimizer.zero_grad()
            backward(task.loss(network, own, streams.generator("dropout", number, epoch)))
            optimizer.step()

    best(step, network, lambda: cameras.figures(network, own)["val_ade"], job.train.epochs)
    return network


def going_on(frames: int, observe: int, predict: int) -> Callable[[Seen], Tensor]:
    """Guesses that objects go on as in the last so many frames before; 0: that they stay."""

    def guess(own: Seen) -> Tensor:
        last = own.all.positions[:, observe - 1]
        went = (last - own.all.positions[:, observe - 1 - frames]) / max(frames, 1)
        return last[:, None] + went[:, None] * torch.arange(1, predict + 1)[None, :, None]

    return guess


def one_seed(job: AveragingJob, say: Callable[[str], None]) -> Found:
    """All trainings of a seed."""
    cameras = Cameras.of(job)
    twin, given = cameras.twin, job.averaging.task
    observe, predict = (int(getattr(given, key)) for key in ("observe", "predict"))
    found: Found = {
        name: cameras.on_tests(twin.network, going_on(frames, observe, predict))
        for name, frames in zip(NAMES, (0, 1, observe - 1), strict=False)
    }
    best(twin.round, twin.network, lambda: cameras.figures(twin.network, cameras.all)["val_ade"], job.train.epochs)
    found["federated"] = cameras.on_tests(twin.network)
    say(f"federated {found['federated']}")
    found["pooled"] = cameras.on_tests(in_one_place(cameras, cameras.all))
    say(f"pooled {found['pooled']}")
    for own in cameras.owns:
        found[f"{own.graph.party} alone"] = cameras.on_tests(in_one_place(cameras, own))
        say(f"{own.graph.party} alone {found[f'{own.graph.party} alone']}")
    return found


def _mean(values: Sequence[float]) -> str:
    spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} ± {spread:.3f}"


def tables(seeds: Sequence[Found], scenes: Sequence[str]) -> str:
    """Of all cameras, and camera by camera, as Markdown; means over seeds ± sample standard deviations."""
    names = [name.removesuffix(" alone") for name in seeds[0] if name.endswith(" alone")]

    def alone(found: Found, figure: str, *, everywhere: bool) -> float:
        """Mean over the cameras' models, each on its own tests or on all."""
        return float(
            np.mean([found[f"{name} alone"][figure][-1 if everywhere else place] for place, name in enumerate(names)])
        )

    def all_of(name: str, figure: str) -> list[float]:
        if name == "each alone":
            return [alone(found, figure, everywhere=True) for found in seeds]
        return [found[name][figure][-1] for found in seeds]

    def each_of(name: str, figure: str) -> list[float]:
        if name == "each alone":
            return [alone(found, figure, everywhere=False) for found in seeds]
        return [float(np.mean(found[name][figure][:-1])) for found in seeds]

    lines = ["| | ADE, own tests | FDE, own tests | ADE, all tests | FDE, all tests |", "|---|---|---|---|---|"]
    for name in NAMES:
        cells = [_mean(of(name, figure)) for of in (each_of, all_of) for figure in FIGURES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| camera | constant velocity | alone | federated | pooled | federated better, of seeds |"]
    lines.append("|---" * 6 + "|")
    for place, name in enumerate(names):
        columns = ["constant velocity", f"{name} alone", "federated", "pooled"]
        cells = [_mean([found[each]["ade"][place] for found in seeds]) for each in columns]
        wins = sum(found["federated"]["ade"][place] < found[f"{name} alone"]["ade"][place] for found in seeds)
        lines.append(f"| {name}, {scenes[place % len(scenes)]} | {' | '.join(cells)} | {wins} of {len(seeds)} |")
    return "\n".join(lines)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.feddy", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cameras", type=int, default=6)
    parser.add_argument("--scenes", default=",".join(SCENES))
    parser.add_argument("--out", type=Path, default=Path(".feddy.jsonl"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    scenes = asked.scenes.split(",")
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    known: dict[int, Any] = {line["seed"]: line["found"] for line in map(json.loads, lines)}
    for seed in range(asked.seeds):
        if seed not in known:
            job = feddy_job(seed, asked.cameras, scenes)
            known[seed] = one_seed(job, _say)
            with asked.out.open("a") as file:
                file.write(json.dumps({"seed": seed, "found": known[seed]}) + "\n")
    sys.stdout.write(tables([known[seed] for seed in range(asked.seeds)], scenes) + "\n")


if __name__ == "__main__":
    _main()
