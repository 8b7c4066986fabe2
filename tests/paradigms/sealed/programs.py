"""Random small federations, and sealed programs run on them by all parties in threads and by the twin."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.mpc.sealed.parties import run
from tests.roles.federation import Settings, merge
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.features import scale_features
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.sealed.machine import Machine, PlainMachine
from veilgraph.paradigms.sealed.boosting import Examples
from veilgraph.paradigms.sealed.plan import Trial
from veilgraph.paradigms.sealed.program import TRIAL, SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.steps import WEIGHT_BITS
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

TWIN = ""


def small_graphs(
    holders: int = 2,
    *,
    nodes: int = 30,
    columns: int = 5,
    training: int = 8,
    directed: bool = False,
    weighted: bool = False,
    seed: int = 1,
) -> list[PartyGraph]:
    """Holders A, B, … of the same nodes, the first with labels of three classes, some nodes without edges."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(nodes) % 3
    train = torch.arange(nodes) < training
    graphs = []
    for holder in range(holders):
        width = columns + holder
        centres = torch.randn(3, width, generator=generator)
        features = centres[labels] + 0.5 * torch.randn(nodes, width, generator=generator)
        ends = torch.randint(nodes - 2, (2, 2 * nodes), generator=generator)
        edges = ends if directed else torch.cat([ends, ends.flip(0)], 1)
        weights = torch.rand(2 * nodes, generator=generator) if weighted else None
        if weights is not None and not directed:
            weights = torch.cat([weights, weights])
        graphs.append(PartyGraph("ABCDEF"[holder], features, edges, weights))
    val = ~train & (torch.arange(nodes) % 2 == 0)
    graphs[0] = replace(
        graphs[0], labels=labels, num_classes=3, train_mask=train, val_mask=val, test_mask=~train & ~val
    )
    return graphs


def small_job(holders: int = 2, *changes: Settings) -> SealedJob:
    base: Settings = {
        "paradigm": "sealed",
        "seed": 5,
        "timeout_s": 20,
        "data": {"dataset": "synthetic", "holders": holders, "feature_scaling": "none"},
        "model": {"network": "mlp", "hidden": 6, "blocks": ["pooled.2"]},
        "train": {
            "epochs": 3,
            "checkpoint_every": 2,
            "learning_rate": 0.75,
            "select_by": "last",
            "class_weights": "none",
        },
    }
    return sealed(parse_job(merge(base, *changes)))


def by_trust(job: SealedJob) -> list[SealedJob]:
    """The job as it is, and of three holders or more also dealt by one of them."""
    if len(job.data.names) < 3:
        return [job]
    return [job.model_copy(update={"trust": trust}) for trust in ("dealer", "majority")]


@contextmanager
def trying(*trials: Trial) -> Iterator[None]:
    """Whatever job tries these inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("veilgraph.paradigms.sealed.inputs.trials_of", lambda *_: trials)
        yield


def numbers(program: SealedProgram) -> list[Tensor]:
    """The twin's weights as they are."""
    return [weight.public.clone() for weight in program.weights if weight.public is not None]


def outcomes(
    job: SealedJob,
    graphs: list[PartyGraph],
    program: Callable[[SealedProgram], object],
    links: dict[PartyId, RecordedLink] | None = None,
    *,
    trains: bool = True,
    asked: Tensor | None = None,
    keeps: bool = False,
    noise: SecretSource = os.urandom,
) -> dict[PartyId, Any]:
    """What a program gives each party, the dealer, and the twin under ``TWIN``.

    Args:
        job: of them.
        graphs: of the holders.
        program: that all run.
        links: gets every party's.
        trains: whether training rows are put in.
        asked: nodes that are predicted; None: all.
        keeps: whether the links keep transcripts.
        noise: the twin's source of it.
    """
    context, data = twin_context(job, graphs, trains=trains, asked=asked)

    def one(machine: Machine) -> object:
        own = data if machine.party == TWIN else {name: part for name, part in data.items() if name == machine.party}
        return program(SealedProgram(machine, replace(context, data=own)))

    return dict(run(one, len(graphs), links, keeps=keeps, noise=noise, dealer=job.dealing_party))


def trained(program: SealedProgram, steps: int) -> tuple[Mapping[str, Tensor], Tensor | None]:
    """Shares of what is trained, and the prediction."""
    program.enter(trains=True)
    program.begin()
    for number in range(steps):
        program.step(number)
    return program.shares(), program.predict()


Trained = Mapping[PartyId, tuple[Mapping[str, Tensor], Tensor | None]]


def summed(found: Trained, bits: int) -> dict[str, Tensor]:
    """The trained weights that the holders' shares add up to, as numbers."""
    holders = [party for party in found if party not in (SERVER, TWIN)]
    return {name: sum_of([found[holder][0][name] for holder in holders]) * 2.0**-bits for name in of_twin(found, bits)}


def of_twin(found: Trained, bits: int) -> dict[str, Tensor]:
    """Those of the twin, as numbers."""
    weights = {name: share for name, share in found[TWIN][0].items() if name.startswith("weight")}
    return {name: share * 2.0**-bits for name, share in weights.items() if name[-1].isdigit()}


def predicting_twin(
    job: SealedJob,
    graphs: Sequence[PartyGraph],
    weights: Mapping[str, Tensor],
    asked: Tensor | None = None,
    examples: Examples | None = None,
) -> SealedProgram:
    """Before a prediction with what was trained.

    Args:
        job: as in ``twin_context``.
        graphs: as they are now.
        weights: what the holders' shares add up to, int64, by name.
        asked: [R] nodes that are predicted; None: all.
        examples: what the label holder's trees were fitted to in the training.
    """
    context, data = twin_context(job, graphs, trains=False, asked=asked, examples=examples)
    program = SealedProgram(PlainMachine(list(data)), context)
    program.enter(trains=False)
    program.restore(weights, training=False)
    return program


def sum_of(shares: list[Tensor]) -> Tensor:
    """In Z_2^64, as numbers."""
    return torch.stack(shares).sum(0).to(torch.float64)


def weights(run: Path) -> dict[str, Tensor]:
    """What the holders' shares add up to, int64."""
    directory = RunDirectory.open(run)
    parts = [load_tensors(directory.party(name).model_path)[0] for name in directory.settings.data.names]
    names = [name for name in parts[0] if name.startswith("weight")]
    found = {name: sum((part[name] for part in parts[1:]), start=parts[0][name]) for name in names}
    return found | {TRIAL: parts[0][TRIAL]}


def layers(run: Path) -> list[Tensor]:
    """The weights of a run's layers, as numbers."""
    return [weight * 2.0**-WEIGHT_BITS for name, weight in sorted(weights(run).items()) if name[-1].isdigit()]


def scaled(job: SealedJob, graphs: list[PartyGraph]) -> list[PartyGraph]:
    """What a run makes of its holders' graphs before anything else."""
    return [scale_features(graph, job.data.feature_scaling) for graph in graphs]


def saved(folder: Path, job: SealedJob, graphs: list[PartyGraph]) -> SealedJob:
    """The job with its parties' graphs on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {graph.party: folder / f"{graph.party}.safetensors" for graph in graphs}
    for graph in graphs:
        save_party(graph, paths[graph.party])
    return job.model_copy(update={"data": type(job.data)(graphs=paths, feature_scaling=job.data.feature_scaling)})
