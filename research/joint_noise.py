"""What noise that holders make together is worth: docs/privacy.md, "Noise made jointly".

``python -m research.joint_noise --seeds 3`` prints both tables; ``--set digits --publishing 4`` another's
accuracy alone. Every cell is a whole federated run over masks, with a
label holder beside the P that publish. The error is of what the server opens: against the same run without noise, over
the deviation that one holder's ε needs. With ``--schedule every-step`` the label holder is one of the P.
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

from veilgraph.audit.attack import load_view
from veilgraph.core.tensor_file import load_tensors
from veilgraph.core.types import SERVER, Kind
from veilgraph.mpc.mask import open_sum
from veilgraph.paradigms.vertical.settings import plan, vertical
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import TrainResult, train
from veilgraph.runtime.store.run_directory import RunDirectory

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
            "privacy": {"unit": "row", **noise, **joint},
        }
    )


def every_step(
    dataset: str, holders: int, seed: int, colluding: int | None, epochs: int, **noise: float
) -> JobSettings:
    """So many publish in every step, the label holder among them: few columns, and averages over its own edges."""
    joint = {} if colluding is None else {"joint_noise": {"colluding": colluding}}
    return parse_job(
        {
            "seed": seed,
            "data": {"dataset": dataset, "holders": holders, "split": [0.6, 0.1, 0.3]},
            "model": {
                "dim": 8,
                "initial": {"method": "individual"},
                "local": {"model": "appnp", "hops": 2, "normalize": True},
                "server": {"layers": 0},
                "head": {"logit_hops": 2},
            },
            "train": {"epochs": epochs, "select_by": "last", "patience": None, "learning_rate": 0.02},
            "privacy": {"unit": "row", "schedule": "every-step", "gradient_clip": 0.002, **noise, **joint},
        }
    )


def opened(settings: JobSettings) -> Tensor:
    """The first sum of a run that the server opens."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(settings, Path(folder) / "run", record_views=True)
        view = load_view(RunDirectory.open(run.path), SERVER)
        pieces = [view.received(Kind.MASKED, name)[0].tensor() for name in settings.duties.publishing]
    bits = vertical(settings).model.combine.bits
    return open_sum(pieces, bits, torch.float64, "the first sum", "") * vertical(settings).sent_divisor


def step_error(dataset: str, holders: int, colluding: int | None) -> float:
    """As ``error``, of the first step's sum, in units of the deviation that one holder's ε needs."""
    clean = opened(every_step(dataset, holders, 0, None, 1, noise_multiplier=0))
    noisy = opened(every_step(dataset, holders, 0, colluding, 1, noise_multiplier=1.0))
    return float((noisy - clean).square().mean().sqrt())


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


def steps(given: argparse.Namespace) -> None:
    """Prints the tables of ``every-step``, in which the label holder is one that may take its own off: t ≥ 1."""
    for holders in (4, 8) if given.set == "cora" else ():
        for colluding in (None, 1):
            sys.stdout.write(f"P = {holders}, t = {colluding}: error {step_error(given.set, holders, colluding):.4f}\n")
            sys.stdout.flush()
    for holders in map(int, given.publishing.split(",")):
        for epsilon in map(float, given.epsilons.split(",")):
            for colluding in (None, 1):
                jobs = [
                    every_step(given.set, holders, seed, colluding, 40, epsilon_total=epsilon)
                    for seed in range(FIRST_SEED, FIRST_SEED + given.seeds)
                ]
                with tempfile.TemporaryDirectory() as folder:
                    runs = [train(each, Path(folder) / f"{number}") for number, each in enumerate(jobs)]
                figures = shown([float(run.summary["test_accuracy"]) for run in runs])
                sys.stdout.write(f"P = {holders}, ε = {epsilon:g}, t = {colluding}: {figures}\n")
                sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", default="cora")
    parser.add_argument("--epsilons", default="4,8,16,32")
    parser.add_argument("--publishing", default="4,8")
    parser.add_argument("--schedule", choices=("once", "every-step"), default="once")
    given = parser.parse_args(arguments)
    if given.schedule == "every-step":
        steps(given)
        return
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
