"""What one camera's change of weights, seen in the clear, tells that the sum over the cameras does not.

``python -m research.feddy_members [--seeds S] [--rounds R]`` prints the table of docs/guides/trajectories.md. The
attacker has the weights at the beginning of a round, what the round adds to them, and windows of a camera of which half
were trained on: is a change along −∇loss(window) larger for these? Both halves are of the same camera, each from
recordings of its own. By the camera's own change it answers as it could without masks, by the mean of all as the server
can.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.autograd import grad
from torch.nn import functional
from torch.nn.utils import parameters_to_vector
from veilgraph_averaging.network import Averaged
from veilgraph_averaging.training import EXTRA, summand
from veilgraph_trajectories.network import MovingGNN
from veilgraph_trajectories.task import Seen

from research.feddy import Cameras, feddy_job
from veilgraph.core.randomness import LearningStreams

_TRAIN: Final = 0
_OTHERS: Final = 2
"""Place in the split of windows that nobody trained on."""
SEEN: Final = ("its own change", "the mean of all")


def descents(cameras: Cameras, network: Averaged, own: Seen, part: int) -> list[Tensor]:
    """−∇loss of each window of a part of the split that has steps to learn from: Tensors[W]."""
    assert isinstance(network, MovingGNN)
    observe = cameras.twin.task.given.observe
    found: list[Tensor] = []
    for start in sorted(set(own.all.start[own.part == part].tolist())):
        window = own.all.take(own.all.start == start)
        steps = window.here[:, observe:] & window.here[:, observe - 1 : -1]
        if not bool(steps.any()):
            continue
        squares = (network(window)[:, observe - 1 :] - window.positions[:, observe:]).square().sum(2)
        slopes = grad(squares[steps].mean(), list(network.parameters()))
        found.append(-parameters_to_vector(slopes))
    return found


def advantages(cameras: Cameras, number: int) -> dict[str, list[float]]:
    """Of each camera the AUC of members against others in a round, by what is seen; the twin is left where it is."""
    job, twin = cameras.job, cameras.twin
    start, changes = twin.network.vector(), []
    for own in cameras.owns:
        twin.network.take(start)
        streams = LearningStreams(job.seed, own.graph.party)

        def dropout(epoch: int, streams: LearningStreams = streams) -> torch.Generator:
            return streams.generator("dropout", number, epoch)

        added = summand(job, twin.task, twin.network, own, dropout)
        changes.append(added[:-EXTRA] / added[-1])
    twin.network.take(start)
    weights = [twin.task.examples(own) for own in cameras.owns]
    mean = torch.stack([weight * change for weight, change in zip(weights, changes, strict=True)]).sum(0) / sum(weights)
    found: dict[str, list[float]] = {name: [] for name in SEEN}
    for own, change in zip(cameras.owns, changes, strict=True):
        members, others = (descents(cameras, twin.network, own, part) for part in (_TRAIN, _OTHERS))
        truth = [1] * len(members) + [0] * len(others)
        for name, seen in zip(SEEN, (change, mean), strict=True):
            alike = [float(functional.cosine_similarity(each, seen, dim=0)) for each in (*members, *others)]
            found[name].append(float(roc_auc_score(truth, alike)))
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.feddy_members", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 3, 6])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[int, dict[str, list[float]]] = {number: {name: [] for name in SEEN} for number in asked.rounds}
    for seed in range(asked.seeds):
        cameras = Cameras.of(feddy_job(seed))
        for number in range(1, max(asked.rounds) + 1):
            if number in found:
                for name, values in advantages(cameras, number).items():
                    found[number][name] += values
            cameras.twin.round(number)
    lines = [f"| round | by {SEEN[0]} | by {SEEN[1]} |", "|---|---|---|"]
    for number, each in found.items():
        cells = [f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" for values in each.values()]
        lines.append(f"| {number} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    _main()
