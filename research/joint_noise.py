"""What noise that holders make together is worth: docs/privacy.md, "Noise made jointly".

``python -m research.joint_noise --seeds 3`` prints both tables; ``--set digits --publishing 4`` another's
accuracy alone. Every cell is a whole federated run over masks, with a
label holder beside the P that publish. The error is of what the server opens: against the same run without noise, over
the deviation that one holder's ε needs.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.tensor_file import load_tensors
from veilgraph.paradigms.vertical.plan import plan
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.run.jobs import TrainResult, train

PUBLISHING: Final = (2, 4, 8)
COLLUDING: Final = (None, 1, 0)
FIRST_SEED: Final = 10


def job(dataset: str, holders: int, seed: int, colluding: int | None, epochs: int, **noise: float) -> JobSettings:
    """So many publish, beside a label holder; without ``colluding`` each adds all the noise."""
    joint = {} if colluding is None else {"joint_noise": {"colluding": colluding}}
    return parse_job(
        {
            "seed": seed,
            "data": {"dataset": dataset, "holders": holders + 1},
            "model": {"initial": {"method": "individual"}, "local": {"model": "appnp"}},
            "train": {"epochs": epochs},
            "privacy": {**noise, **joint},
        }
    )


def trained(settings: JobSettings) -> tuple[TrainResult, Tensor]:
    """A run, and what the label holder was given in it."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(settings, Path(folder) / "run")
        holder = settings.data.label_party
        return run, load_tensors(run.path / "parties" / holder / "release.safetensors")[0]["released"].double()


def error(dataset: str, holders: int, colluding: int | None) -> float:
    """Root mean square of the sum's error, over σC."""
    noise = {"noise_multiplier": 1.0}
    planned = plan(job(dataset, holders, 0, None, 1, **noise), "B")
    if planned is None:
        return math.nan
    _, clean = trained(job(dataset, holders, 0, None, 1, noise_multiplier=0))
    _, noisy = trained(job(dataset, holders, 0, colluding, 1, **noise))
    return float((noisy - clean).square().mean().sqrt()) * holders / math.sqrt(planned.mechanism("embeddings").variance)


def allowed(holders: int) -> Iterator[int | None]:
    """Numbers of colluding holders that at least two others are left beside."""
    return (colluding for colluding in COLLUDING if colluding is None or colluding <= holders - 2)


def shown(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def main(arguments: list[str]) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", default="cora")
    parser.add_argument("--epsilons", default="4,8,16,32")
    parser.add_argument("--publishing", default="4,8")
    given = parser.parse_args(arguments)
    for holders in PUBLISHING if given.set == "cora" else ():
        for colluding in allowed(holders):
            sys.stdout.write(f"P = {holders}, t = {colluding}: error {error(given.set, holders, colluding):.4f}\n")
            sys.stdout.flush()
    for holders in map(int, given.publishing.split(",")):
        for epsilon in map(float, given.epsilons.split(",")):
            for colluding in allowed(holders):
                summaries = [
                    trained(job(given.set, holders, seed, colluding, 200, epsilon_total=epsilon))[0].summary
                    for seed in range(FIRST_SEED, FIRST_SEED + given.seeds)
                ]
                joint = shown([float(each["test_accuracy"]) for each in summaries])
                alone = shown([float(each["without_releases"]["test_accuracy"]) for each in summaries])
                sys.stdout.write(f"P = {holders}, ε = {epsilon:g}, t = {colluding}: {joint}, without: {alone}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
