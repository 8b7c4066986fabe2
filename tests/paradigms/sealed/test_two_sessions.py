"""Two sessions of one run: they compute different things at the same place, and have no draw in common."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.private import voting
from tests.paradigms.sealed.programs import outcomes, saved, small_graphs, small_job
from tests.paradigms.sealed.two_sessions import (
    ALL,
    cut_and_resumed,
    draws_of_the_place,
    nodes_with_equal_low_bits,
    repeated_messages,
)
from tests.roles.federation import Settings, merge
from veilgraph.audit.sealing import compare_sessions
from veilgraph.core.randomness import Keystream
from veilgraph.core.types import SERVER, Link
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.linked import DealerMachine
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.runtime.launch.jobs import predict, train

FEW, MANY, NODES = 8, 34, 40
"""Training rows: fewer than all columns, so that rows are propagated; more of them, so that columns are."""
JUDGED: Settings = {"train": {"select_by": "accuracy", "epochs": 4, "evaluate_every": 1}}


def job_of(network: str, *changes: Settings, holders: int = 2) -> SealedJob:
    return small_job(holders, {"model": {"network": network}}, JUDGED, *changes)


def recorded(
    folder: Path, holders: int, network: str = "linear", trust: str = "dealer"
) -> tuple[Path, list[PartyGraph]]:
    """A run that was cut, resumed and asked for a prediction, in which score 3 is computed in two ways."""
    graphs = small_graphs(holders, nodes=NODES, training=MANY)
    job = saved(folder / "data", job_of(network, {"trust": trust}, holders=holders), graphs)
    run = cut_and_resumed(job, folder / "run")
    predict(run)
    return run, graphs


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("holders", "network", "trust"), [(2, "mlp", "dealer"), (3, "linear", "dealer"), (3, "linear", "majority")]
)
def test_two_sessions_open_nothing_with_the_same_low_bits(
    holders: int, network: str, trust: str, tmp_path: Path
) -> None:
    run, _ = recorded(tmp_path, holders, network, trust)
    for party in "ABC"[:holders]:
        assert nodes_with_equal_low_bits(run, party) == set()
        assert repeated_messages(run, party) == 0


@nightly
def test_draws_that_hang_on_the_place_are_seen_in_two_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack on two recorded views of one holder: two predictions of the same weights have the same low bits."""
    draws_of_the_place(monkeypatch)
    run, _ = recorded(tmp_path, 3)
    assert nodes_with_equal_low_bits(run, "B") == {ALL}


@pytest.mark.parametrize("trust", ["dealer", "majority"])
def test_sessions_held_against_each_other_show_a_dealer_that_draws_again(
    trust: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three holders all open, or the two that a third deals for."""
    init = DealerMachine.__init__

    def again(self: DealerMachine, link: Link, holders: Sequence[str], _: object) -> None:
        numbers = iter(range(99))
        init(self, link, holders, lambda size: bytes([next(numbers)]) * size)

    monkeypatch.setattr(DealerMachine, "__init__", again)
    job = job_of("linear", {"trust": trust}, holders=3)
    job = saved(tmp_path / "data", job, small_graphs(3, nodes=NODES, training=MANY))
    run = train(job, tmp_path / "run", record_views=True).path
    for _ in range(2):
        predict(run)
    _, found = compare_sessions([run])
    assert any("opened with the same low bits" in each.what for each in found), found


# What is computed at a place


class Recording(PlainMachine):
    """A twin that keeps, for every place, what is opened, in its order."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.places: dict[str, list[tuple[object, Tensor]]] = {}
        self.at("")

    def at(self, place: str) -> None:
        self._here = self.places.setdefault(place, [])

    def open(self, summands: Any, shift: int = 0, ring: Any = 64, *, bits: int | None = None) -> Any:
        found = super().open(summands, shift, ring, bits=bits)
        assert found.public is not None
        self._here.append(((tuple(found.shape), shift, ring, bits), found.public))
        return found


def computed(job: SealedJob, training: int) -> tuple[Recording, Recording]:
    """A training of four steps, each judged if any is; and the one that resumes it after two."""
    graphs = small_graphs(nodes=NODES, training=training)
    machines, kept = [], dict[str, Tensor]()
    for start in (0, 2):
        context, data = twin_context(job, graphs)
        machine = Recording(list(data))
        program = SealedProgram(machine, context)
        program.enter(trains=True)
        if start:
            program.restore(kept, training=True)
        else:
            program.begin()
        for step in range(start, 4):
            if step == 2 and not start:
                kept = program.shares()
            program.step(step)
            if job.passes.evaluates:
                program.score(step + 1)
        program.predict()
        machines.append(machine)
    return machines[0], machines[1]


def differing(whole: Recording, resumed: Recording) -> set[str]:
    """The kinds of places that both have, and at which they open different forms or values."""
    return {
        place.split(" ", maxsplit=1)[0]
        for place, before in whole.places.items()
        if place in resumed.places and place not in ("", "enter") and not alike(before, resumed.places[place])
    }


def alike(one: list[tuple[object, Tensor]], other: list[tuple[object, Tensor]]) -> bool:
    """Up to rounding; a count of right nodes, which is one number, hangs on equal logits and is not compared."""
    return len(one) == len(other) and all(
        form == of and (value.numel() == 1 or torch.allclose(value, again, atol=2e-3))
        for (form, value), (of, again) in zip(one, other, strict=True)
    )


NETWORKS: Mapping[str, Settings] = {
    "linear": {"model": {"network": "linear"}},
    "mlp": {},
    "far": {"model": {"blocks": ["own", "pooled.4"]}, "train": {"evaluate_every": 4}},
    "standard": merge(STANDARD, {"train": {"learning_rate": 0.125}}),
}


@pytest.mark.cases(6)
@pytest.mark.parametrize("select_by", ["last", "accuracy", "auc"])
@pytest.mark.parametrize("training", [FEW, MANY])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_same_place_is_not_the_same_computation_in_every_session(
    network: str, training: int, select_by: str
) -> None:
    """So no draw may follow from a place: a session that resumes computes anew what the first one had cached."""
    whole, resumed = computed(small_job(2, JUDGED, NETWORKS[network], {"train": {"select_by": select_by}}), training)
    # What hops need, and columns where these were propagated; products of rows where these are few.
    again = {"step"} if network == "far" and training == FEW else set()
    assert differing(whole, resumed) == {"predict"} | again


# What is drawn


class Draws:
    """The keys from which a session's parties draw."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.keys = set[tuple[bytes, str]]()
        init, draws = Keystream.__init__, self

        def kept(self: Keystream, key: bytes, purpose: str, *skipped: int) -> None:
            draws.keys.add((bytes(key), purpose))
            init(self, key, purpose, *skipped)

        patch.setattr(Keystream, "__init__", kept)

    def of(self, session: Any) -> Iterator[Any]:
        self.keys = set()
        yield session()
        yield self.keys


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("holders", "changes"),
    [
        (2, {"model": {"network": "linear"}}),
        (3, merge(STANDARD, {"train": {"learning_rate": 0.125}})),
        (2, voting(epsilon_total=0.5)),
        (3, merge(voting(epsilon_total=0.5), {"trust": "majority"})),
    ],
    ids=["two", "three", "votes", "dealt by a holder"],
)
def test_two_sessions_draw_from_different_keys(
    holders: int, changes: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(holders, changes, {"train": {"epochs": 4}})
    graphs, draws = small_graphs(holders, nodes=NODES, training=MANY), Draws(monkeypatch)

    def begun(program: SealedProgram) -> Mapping[str, Tensor]:
        program.enter(trains=True)
        program.begin()
        for step in range(3):
            program.step(step)
        program.predict()
        return program.shares()

    first, keys = draws.of(lambda: outcomes(job, graphs, begun))

    def resumed(program: SealedProgram) -> None:
        party = program._machine.party
        program.enter(trains=True)
        shares = dict(first[party])
        program.restore({} if party == SERVER else shares if party else integers(first, holders), training=True)
        program.step(3)
        program.predict()

    _, others = draws.of(lambda: outcomes(job, graphs, resumed))
    assert len(keys) > holders
    assert not keys & others


def integers(shares: Mapping[str, Any], holders: int) -> dict[str, Tensor]:
    """For the twin: what the holders' shares add up to, and the trials, which all of them know."""
    parts = [shares[name] for name in "ABC"[:holders]]
    summed = {name: torch.stack([part[name].long() for part in parts]).sum(0) for name in parts[0]}
    return summed | {name: each for name, each in parts[0].items() if name.endswith(".trial")}
