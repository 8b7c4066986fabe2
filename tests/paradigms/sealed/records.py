"""Sealed jobs with noise on training records, and noise that parties and twin have alike."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.mpc.sealed.parties import run
from tests.paradigms.sealed.programs import TWIN, small_job
from tests.roles.federation import Settings
from veilgraph.core.randomness import Keystream
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.paradigms.sealed.plan import Context
from veilgraph.paradigms.sealed.program import Program
from veilgraph.paradigms.sealed.programs import program_of
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import twin_context

RECORDS = "veilgraph.paradigms.sealed.records.program"
UNTRAINED: Settings = {"model": {"network": None, "hidden": 16, "blocks": None}, "train": {"learning_rate": None}}


def record_job(holders: int = 2, *changes: Settings, **privacy: Any) -> SealedJob:
    """A job of ``small_job`` with noise on training records, or of ``unit`` node, ε = 4 where ``privacy`` is silent."""
    said = {"unit": "training-record", "epsilon_total": 4, **privacy}
    return small_job(
        holders,
        UNTRAINED,
        {"train": {"epochs": 1, "checkpoint_every": 1}, "output": "margins", "privacy": said},
        *changes,
    )


def two_classes(graphs: list[PartyGraph]) -> list[PartyGraph]:
    """Graphs of ``small_graphs`` with labels of two classes in place of three."""
    first, *others = graphs
    assert first.labels is not None
    return [replace(first, labels=first.labels.clamp_max(1), num_classes=2), *others]


def noise_of(*key: object) -> Callable[[PartyId], SecretSource]:
    """Every holder's source of noise, the same at each call with a key."""
    drawn: dict[PartyId, Keystream] = {}

    def source(party: PartyId) -> SecretSource:
        stream = drawn.setdefault(party, Keystream(bytes(range(32)), f"noise/{party}/{key}"))
        return lambda length: stream.take(length).numpy().tobytes()

    return source


def of_all(
    job: SealedJob, graphs: list[PartyGraph], links: dict[PartyId, RecordedLink] | None = None
) -> dict[PartyId, Any]:
    """Shares and scores of each party, the dealer and the twin, with the same noise."""
    context, data = twin_context(job, graphs)

    def one(machine: Machine) -> object:
        own = data if machine.party == TWIN else {name: part for name, part in data.items() if name == machine.party}
        return scored(program_of(machine, replace(context, data=own), noise_of()))

    return dict(run(one, len(graphs), links, keeps=links is not None, dealer=job.dealing_party))


def scored(program: Program) -> tuple[dict[str, Tensor], Tensor | None]:
    """Shares of the sums or bits, and what is opened."""
    program.enter(trains=True)
    program.begin()
    program.step(0)
    return program.shares(), program.predict()


def with_rows(context: Context, holder: PartyId, rows: Tensor) -> Context:
    """A twin's context, where a holder has other short rows."""
    own = replace(context.data[holder], columns={**context.data[holder].columns, "own": rows})
    return replace(context, data={**context.data, holder: own})


@contextmanager
def without_noise(matrix: Tensor | None = None) -> Iterator[None]:
    """Sums have no noise inside, and all holders whiten by ``matrix``, if it is given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            f"{RECORDS}.noise_of_sums", lambda noise, outputs, _: torch.zeros(noise.columns, outputs).double()
        )
        if matrix is not None:
            patch.setattr(f"{RECORDS}.whitening", lambda *_: matrix)
        yield
