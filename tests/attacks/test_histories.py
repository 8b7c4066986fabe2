"""Two jobs of one ledger for life, and a record that changed between them or did not.

The ledger's ε is about *histories*: all that one record ever was, against any others. So an observer of both jobs must
not tell from them whether a record changed. Releases that follow a change record by record name who changed with
certainty, at any ε; releases that follow it as a whole tell with certainty that somebody did.
"""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests.attacks.histories import EPSILON, UNITS, learned, learners, lifetime_in, outcomes, seen, summing
from tests.chance import fixed_chance
from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job_file import parse_job
from veilgraph.samples.shipped import with_overrides

CUSTOMERS, FRAUDS, TARGET = 1200, 240, 7


# Labels that go one way


@pytest.mark.parametrize("snapshots", [("", ""), ("january", "february")], ids=["one snapshot", "two"])
def test_new_frauds_are_not_named_by_labels_that_differ_between_two_jobs(
    tmp_path: Path, snapshots: tuple[str, str]
) -> None:
    """Drawn anew label by label, 123 of 240 new frauds and nobody else had another label than before."""
    lifetime, before = lifetime_in(tmp_path), torch.zeros(CUSTOMERS, dtype=torch.int64)
    after = before.clone()
    after[:FRAUDS] = 1
    with fixed_chance("frauds"):
        first, second = (learned(lifetime, each, name) for each, name in zip((before, after), snapshots, strict=True))
    differ = first != second
    if snapshots[0] == snapshots[1]:
        assert not differ.any()
        assert lifetime.total() == pytest.approx(EPSILON)
    else:
        named, others = float(differ[:FRAUDS].double().mean()), float(differ[FRAUDS:].double().mean())
        assert abs(named - others) < 0.1, "at this ε two draws of anybody differ half of the time"
        assert lifetime.total() == pytest.approx(2 * EPSILON)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("snapshots", "paid"), [(("", ""), 1), (("january", "february"), 2)])
def test_the_game_of_two_label_histories_is_within_what_was_paid(
    tmp_path: Path, snapshots: tuple[str, str], paid: int
) -> None:
    histories = ((0, 0), (0, 1), (1, 1))
    with fixed_chance("labels", snapshots):
        worlds = [outcomes(snapshots, each, tmp_path / f"{number}") for number, each in enumerate(histories)]
    bounds = [
        epsilon_lower_bound(one[seen], other[seen], 20_000, 1e-9, 1 - 1e-6)
        for one in worlds
        for other in worlds
        for seen in {*one, *other}
    ]
    assert 0.8 * paid < max(bounds) <= paid


# Sums over edges


def changed(graph: PartyGraph) -> PartyGraph:
    """A record has no edge any more."""
    return graph.with_edges((graph.edge_index != TARGET).all(dim=0))


@pytest.mark.parametrize("unit", UNITS)
def test_the_second_job_is_the_same_to_the_bit_whether_a_record_changed_or_not(
    tmp_path: Path, unit: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the release, nor who pays, nor what a refusal would hang on: so its ε is the first job's."""
    settings = summing(unit)
    graph = learners(settings)
    first, *_ = seen(settings, graph, tmp_path, "first")
    for number, each in enumerate((graph, changed(graph))):
        caplog.clear()
        released, room, lines = seen(with_overrides(settings, {"name": "later"}), each, tmp_path, f"later-{number}")
        assert torch.equal(released, first)
        assert (room, lines) == (None, 2)
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(told) == number, "its owner is told"


@pytest.mark.parametrize("unit", UNITS)
def test_another_snapshot_is_drawn_anew_for_all_and_paid_by_all_whether_a_record_changed_or_not(
    tmp_path: Path, unit: str
) -> None:
    settings = summing(unit)
    graph, released = learners(settings), list[Tensor]()
    for number, each in enumerate((graph, changed(graph))):
        folder = tmp_path / f"{number}"
        first, *_ = seen(settings, graph, folder, "first")
        second, room, lines = seen(with_overrides(settings, {"snapshot": "later"}), each, folder, "later")
        assert (first != second).any(dim=1).all()
        assert lines == 3
        assert room is not None
        ledger = lifetime_in(folder)
        with ledger.lines.held():
            assert len({entry.cohort for entry in ledger.lines.entries}) == 1, "the same nodes pay"
        released.append(second)
    assert math.isfinite(ledger.total())


@pytest.mark.parametrize(
    "change", [{"privacy.epsilon_total": 0.5}, {"privacy.degree_bound": 58}, {"privacy.sum_clip": 2.0}]
)
def test_sums_that_are_made_otherwise_are_another_release(tmp_path: Path, change: dict[str, Any]) -> None:
    settings = summing("node-edges")
    graph = learners(settings)
    first, *_ = seen(settings, graph, tmp_path, "first")
    second, _, lines = seen(with_overrides(settings, change), graph, tmp_path, "second")
    assert (first != second).any(dim=1).all()
    assert lines == 3


@pytest.mark.parametrize("unit", UNITS)
def test_who_enters_has_all_sums_drawn_anew_and_all_pay(tmp_path: Path, unit: str) -> None:
    """A new row tells of the data of all, as they are now."""
    settings = summing(unit)
    graph = learners(settings)
    first, *_ = seen(settings, graph, tmp_path, "first")
    second, *_ = seen(settings, changed(graph), tmp_path, "second", entering=[3])
    ledger = lifetime_in(tmp_path)
    with ledger.lines.held():
        paid = [len(ledger.lines.cohort(entry.cohort)) for entry in ledger.lines.entries]
    assert not set(map(tuple, first.tolist())) & set(map(tuple, second.tolist()))
    assert paid == [graph.num_nodes, graph.num_nodes]


def test_all_parties_agree_to_a_snapshot_with_the_job_and_it_is_refused_where_nothing_is_kept() -> None:
    settings = summing("edge")
    assert with_overrides(settings, {"snapshot": "february"}).hash() != settings.hash()
    votes = {"paradigm": "sealed", "model": {"network": "linear", "edge_slots": 64}}
    for job in ({}, {**votes, "privacy": {"unit": "edge", "epsilon_total": 1.0}, "train": {"select_by": "last"}}):
        parse_job(job)
        with refused(ConfigError, code="config", key="snapshot"):
            parse_job({"snapshot": "february", **job})
