"""A game over two jobs for every unit of ε: whoever sees both tells which of two histories a unit has.

In one world the unit is the same in both jobs, in the other it has changed between them. Whoever plays knows all else,
and both values of the unit; what it can tell is at most what the ledger for life says, at one snapshot and at two. The
control is a release that follows a change by itself, as releases did: then the second job names the unit.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests import nightly
from tests.attacks.histories import UNITS, learners, lifetime_in, outcomes, seen, summing
from tests.chance import fixed_chance
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job import JobSettings
from veilgraph.samples.shipped import with_overrides

TRIALS, EPSILON, DELTA, SURE = 12, 0.5, 1e-5, 0.95
QUIET = 100.0
"""ε with which whoever plays finds out in which direction a unit moves a release."""
Play = Callable[[Tensor, Tensor], bool]


def ring(settings: JobSettings) -> PartyGraph:
    """Twelve nodes of two neighbours each, and others without any."""
    graph, nodes = learners(settings), torch.arange(12)
    pairs = torch.stack([nodes, (nodes + 1) % 12])
    return replace(graph, edge_index=torch.cat([pairs, pairs.flip(0)], 1), edge_weight=None)


def changed(graph: PartyGraph, unit: str) -> PartyGraph:
    """What one unit of the graph has become: an edge less, or a node without its edges."""
    at_0, at_1 = ((graph.edge_index == node).any(dim=0) for node in (0, 1))
    return graph.with_edges(~(at_0 & at_1) if unit == "edge" else ~at_0)


def following(settings: JobSettings, graph: PartyGraph, first: Tensor, folder: Path) -> Tensor:
    """A second release whose rows are the first's, but where the data have changed: those are drawn anew."""
    anew, *_ = seen(settings, graph, folder, "apart")
    second = first.clone()
    second[:2] = anew[:2]
    return second


def play(settings: JobSettings, unit: str, folder: Path, later: str, *, follows: bool = False) -> tuple[float, float]:
    """The largest ε that any of the tests proves, and what the ledger for life counts."""
    graph = ring(settings)
    worlds = (graph, changed(graph, unit))
    quiet = with_overrides(settings, {"privacy.epsilon_total": QUIET})
    directions = [seen(quiet, each, folder / f"quiet-{number}", "job")[0] for number, each in enumerate(worlds)]
    toward, middle = directions[1] - directions[0], (directions[1] + directions[0]) / 2
    tests: tuple[Play, ...] = (
        lambda first, second: bool((first != second).any()),
        lambda first, second: bool((first != second).any(dim=1).all()),
        lambda _, second: float(((second - middle) * toward).sum()) > 0,
        lambda first, second: float(((second - first) * toward).sum()) > 0,
    )
    said = [[0, 0] for _ in tests]
    for world, second_graph in enumerate(worlds):
        for trial in range(TRIALS):
            place = folder / f"{world}-{trial}"
            first, *_ = seen(settings, graph, place, "first")
            if follows and world:
                second = following(settings, second_graph, first, place / "anew")
            else:
                second, *_ = seen(with_overrides(settings, {later: "later"}), second_graph, place, "later")
            for count, test in zip(said, tests, strict=True):
                count[world] += test(first, second)
    bounds = [
        epsilon_lower_bound(there, here, TRIALS, DELTA, SURE) for pair in said for there, here in (pair, pair[::-1])
    ]
    return max(bounds), lifetime_in(folder / "0-0").total()


def job(unit: str) -> JobSettings:
    bound = {"degree_bound": 2} if unit == "node-edges" else {}
    return summing(unit, epsilon_total=EPSILON, **bound)


@pytest.mark.cases(2)
@pytest.mark.parametrize("later", ["name", pytest.param("snapshot", marks=nightly)])
@pytest.mark.parametrize("unit", UNITS)
def test_two_jobs_tell_no_more_of_a_units_history_than_was_paid_for(tmp_path: Path, unit: str, later: str) -> None:
    settings = job(unit)
    with fixed_chance("two jobs", unit, later):
        proven, paid = play(settings, unit, tmp_path, later)
    assert proven <= paid
    assert paid == pytest.approx(EPSILON, rel=1e-3) if later == "name" else EPSILON < paid <= 2 * EPSILON + 1e-6


@pytest.mark.cases(1)
@pytest.mark.parametrize("unit", UNITS)
def test_releases_that_follow_a_change_name_the_unit(tmp_path: Path, unit: str) -> None:
    """The control: the same game and the same tests, at the same price."""
    settings = job(unit)
    with fixed_chance("followed", unit):
        proven, paid = play(settings, unit, tmp_path, "name", follows=True)
    assert proven > 1.2 * paid


@nightly
def test_a_label_that_is_drawn_anew_where_it_changed_is_named(tmp_path: Path) -> None:
    """The control of ``test_histories.test_the_game_of_two_label_histories_is_within_what_was_paid``."""
    same, changes = (outcomes(("", ""), each, tmp_path / f"{each}") for each in ((0, 0), (0, 1)))
    told = epsilon_lower_bound(same[0, 0], changes[0, 0], 20_000, 1e-9, 1 - 1e-6)
    assert told <= 1
    anew = outcomes(("january", "february"), (0, 1), tmp_path / "anew")
    differ = anew[0, 1] + anew[1, 0]  # which a label that has not changed never does, if it is sent again
    assert epsilon_lower_bound(differ, same[0, 1] + same[1, 0], 20_000, 1e-9, 1 - 1e-6) > 2
