"""What leaves a holder of an averaging job, and what its party file says of that."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import chisquare

from tests.paradigms.averaging.jobs import NAMES, graphs, job
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import ViewEntry, read_view
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.messages import rows_of
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory

NO_DATA = frozenset({Kind.HELLO, Kind.KEY, Kind.MASK_SHARE, Kind.CONTROL})
"""Kinds that nothing of a holder's graph goes into but how many columns and classes it has."""


def sent(run: Path) -> dict[str, list[ViewEntry]]:
    """What each holder sent to others."""
    directory = RunDirectory.open(run)
    found: dict[str, list[ViewEntry]] = {}
    for name in NAMES:
        seen = [each for path in directory.party(name).views() for each in read_view(path)]
        found[name] = [each for each in seen if each.sender == name != each.receiver]
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[ViewEntry]]]:
    """What holders sent in a job, and in another of graphs with other features, labels and edges of the same number."""
    folder = tmp_path_factory.mktemp("runs")
    settings = job({"train": {"select_by": "last"}, "model": {"dim": 32}})
    ids = {graph.party: [str(row) for row in range(graph.num_nodes)] for graph in graphs(settings)}
    made = []
    for number, given in enumerate((graphs(settings), [other(graph) for graph in graphs(settings)])):
        path = folder / str(number)
        train(settings, path, parties=given, ids=ids, record_views=True, view_passes=0)
        made.append(sent(path))
    return made


def other(graph: PartyGraph) -> PartyGraph:
    assert graph.labels is not None
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(3))
    return replace(graph, features=-3 * graph.features, labels=graph.labels.flip(0), edge_index=order[graph.edge_index])


def test_holders_send_nothing_but_keys_shares_and_what_is_masked(runs: list[dict[str, list[ViewEntry]]]) -> None:
    for messages in runs[0].values():
        assert {each.tag.kind for each in messages} == NO_DATA | {Kind.MASKED}
        assert {each.tag.kind for each in messages if each.receiver != SERVER} == {Kind.HELLO, Kind.KEY}
        masked = torch.cat([each.tensor() for each in messages if each.tag.kind == Kind.MASKED])
        counted = torch.bincount(masked.view(torch.uint8).long(), minlength=256)
        assert len(masked) > 2000
        assert float(chisquare(counted.numpy()).pvalue) > 1e-6


def test_two_jobs_with_other_graphs_look_alike(runs: list[dict[str, list[ViewEntry]]]) -> None:
    """Sequence, kinds, receivers and shapes of all messages; only in hellos, whose nonces are random, lengths agree."""
    for name in NAMES:
        one, two = ([(each.receiver, each.tag, each.shape) for each in run[name]] for run in runs)
        without = [[entry for entry in entries if entry[1].kind != Kind.HELLO] for entries in (one, two)]
        assert without[0] == without[1]
        masked = [
            {int(element) for each in run[name] if each.tag.kind == Kind.MASKED for element in each.tensor()}
            for run in runs
        ]
        assert not masked[0] & masked[1]


def test_a_party_accepts_averaging_by_name_alone() -> None:
    settings = job({"averaging": {"threshold": 3}})
    needed = {"averaged-weights", "score-tallies"}
    assert refusal(LimitSettings(), settings, "A") is not None
    assert refusal(LimitSettings(leakage=tuple(needed)), settings, "A") is None
    for name in needed:
        assert refusal(LimitSettings(leakage=tuple(needed - {name})), settings, "A") is not None
    for two in (job({"data": {"holders": 2}}), job({"data": {"holders": 3}, "averaging": {"threshold": 2}})):
        assert refusal(LimitSettings(leakage=tuple(needed)), two, "A") is not None
        assert refusal(LimitSettings(leakage=(*needed, "single-updates")), two, "A") is None
    for ends, kind in ((("A", SERVER), Kind.MASKED), ((SERVER, "A"), Kind.AVERAGED)):
        rows = [row for row in rows_of(settings, *ends) if row.kind == kind]
        assert {told.name for row in rows for told in row.reveals} == needed
