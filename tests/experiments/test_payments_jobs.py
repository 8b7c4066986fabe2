"""The study of jobs on payments: each way's scores are of the customers that it says, and alarms are counted right."""

import numpy as np
import pytest
from veilgraph_datasets.world import PaymentsWorld

from packages.datasets.tests.payments import small_world
from research import payments_jobs
from research.payments import ALARMS, ALL, TEST
from tests import nightly
from veilgraph.paradigms.horizontal.twin import parts_of
from veilgraph.protocol.paradigm import paradigm_of


@pytest.fixture(scope="module")
def world() -> PaymentsWorld:
    return small_world(3, customers=1500, transfers=15_000, banks=3, laundering=0.2)


def test_rows_of_jobs_are_these_customers(world: PaymentsWorld) -> None:
    """Their labels are the truth's, and nobody else's."""
    (labelled, *_) = paradigm_of(job := payments_jobs.job("vertical", world)).data.load(job).graphs
    assert labelled.labels is not None
    assert labelled.labels.bool().tolist() == world.launders[payments_jobs.common(world)].tolist()
    for paradigm in ("horizontal", "averaging"):
        inputs = paradigm_of(job := payments_jobs.job(paradigm, world)).data.load(job)
        names = np.array(sorted({name for each in inputs.ids.values() for name in each})).astype(np.int64)
        for bank, part in enumerate(parts_of(inputs.graphs, inputs.ids)):
            customers = names[part.ids.numpy()]
            assert part.graph.labels is not None
            own = (part.graph.labels >= 0).numpy()
            assert part.graph.labels[own].bool().tolist() == world.launders[customers[own]].tolist()
            assert (world.customers.first[customers[own]] == bank).all()


def test_who_knows_the_truth_finds_all_that_alarms_leave_room_for(
    world: PaymentsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = np.arange(len(world.launders))
    for sign, auc in ((1, 1.0), (-1, 0.0)):
        likely = sign * world.launders.astype(np.float64)

        def knowing(_: PaymentsWorld, said: payments_jobs.Scores = likely) -> payments_jobs.Scored:
            return ((bank, everybody, said) for bank in range(3))

        monkeypatch.setitem(payments_jobs.WAYS, "averaging", knowing)
        found = payments_jobs.found("averaging", world)
        assert found.auc == auc
        tested = [world.split[world.customers.first == bank] == TEST for bank in range(3)]
        alarms = sum(round(ALARMS * each.sum()) for each in tested)
        members = (world.launders & (world.split == TEST)).sum()
        assert found.recall[ALL] == pytest.approx(min(1, alarms / members) if sign > 0 else 0, abs=0.03)


@nightly
def test_every_way_finds_something(world: PaymentsWorld) -> None:
    for way in payments_jobs.WAYS:
        assert payments_jobs.found(way, world).auc > 0.6, way
