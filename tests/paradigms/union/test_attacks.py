"""Attacks by a party of a union: lies, repeated requests, inference (the table in docs/explanation/union.md)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import refused
from tests.paradigms.union.banks import (
    ALMOST,
    JOINT,
    NET,
    Banks,
    banks,
    job_of,
    predicted,
    trained,
    with_network,
)
from veilgraph.core.errors import RangeOverflow
from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.plan import OwnData
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.union.inputs import NOWHERE, Places
from veilgraph.paradigms.union.settings import UnionJob
from veilgraph.paradigms.union.twin import begin_program, joint_context

ROUNDING = 1e-3
"""Of margins of a step: what two predictions of the same books may differ by."""


def margins(job: UnionJob, found: Banks, weights: Mapping[str, Tensor], party: PartyId) -> Tensor:
    """What a bank learns of its own nodes in a prediction with these weights: [n]."""
    context = joint_context(job, *found)
    program = SealedProgram(PlainMachine(list(context.data)), context)
    program.enter(trains=False)
    program.restore(weights, training=False)
    told = program.predict()
    assert told is not None
    return told[context.sizes.blocks[party].rows, 0]


def weights_of(job: UnionJob, found: Banks) -> Mapping[str, Tensor]:
    program = begin_program(job, *found)
    for number in range(job.train.epochs):
        program.step(number)
    return program.shares()


def paying(accounts: int) -> Banks:
    """Two banks, where the first account of A pays so many of B's, and has no other payment."""
    (a, b), ids = banks(2)
    others = torch.arange(a.common, a.num_nodes)
    own = a.edge_index[:, (a.edge_index != 0).all(0)]
    paid = torch.stack([torch.zeros(accounts, dtype=torch.int64), others[:accounts]])
    names = {text: row for row, text in enumerate(ids["B"][: b.common])}
    at = torch.tensor([names[ids["A"][row].removeprefix("B/")] for row in paid[1].tolist()])
    first = ids["B"].index(f"A/{ids['A'][0]}")
    kept = b.edge_index[:, (b.edge_index != first).all(0)]
    gets = torch.stack([torch.full((accounts,), first), at])
    edges = {"A": torch.cat([own, paid], 1), "B": torch.cat([kept, gets], 1)}
    return [replace(graph, edge_index=edges[graph.party]) for graph in (a, b)], ids


@pytest.mark.parametrize("counterparties", [1, 5])
def test_a_prediction_tells_what_changed_at_a_counterparty_however_many_there_are(counterparties: int) -> None:
    """A minimum of counterparties would make what is told smaller, and would not hide it."""
    found = paying(counterparties)
    job = job_of(found, JOINT, {"model": {"network": "linear"}})
    weights = weights_of(job, found)
    (a, b), ids = found
    one = ids["A"][a.edge_index[1, (a.edge_index[0] == 0).nonzero()[0, 0]]].removeprefix("B/")
    columns = b.features.clone()
    columns[ids["B"].index(one)] += 2.0
    changed: Banks = [a, replace(b, features=columns)], ids
    moved = margins(job, changed, weights, "A")[0] - margins(job, found, weights, "A")[0]
    assert abs(moved) > 30 * ROUNDING
    assert torch.equal(margins(job, found, weights, "A"), margins(job, found, weights, "A"))


def test_two_predictions_tell_a_third_bank_that_a_payment_between_two_others_is_gone() -> None:
    found = banks()
    job = job_of(found, JOINT, {"model": {"network": "linear", "blocks": ["own", "pooled.2"]}})
    weights = weights_of(job, found)
    (a, b, c), ids = found
    source, target = b.edge_index[:, (b.edge_index[1] >= b.common).nonzero()[0, 0]].tolist()
    gone = f"B/{ids['B'][source]}", ids["B"][target]
    left = []
    for graph in (b, c):
        names = [text if "/" in text else f"{graph.party}/{text}" for text in ids[graph.party]]
        place = [names.index(each) if each in names else -1 for each in gone]
        left.append(graph.with_edges((graph.edge_index != torch.tensor(place)[:, None]).any(0)))
    assert any(graph.num_edges < whole.num_edges for graph, whole in zip(left, (b, c), strict=True))
    moved = margins(job, ([a, *left], ids), weights, "A") - margins(job, found, weights, "A")
    assert moved.abs().max() > 5 * ROUNDING


def test_who_guesses_payments_learns_which_of_them_are_in_the_other_s_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bank that claims payments with every account that it thinks of does not learn which of these accounts exist."""
    of, known = Places.of, dict[PartyId, Tensor]()

    def recorded(places: Places, own: OwnData) -> OwnData:
        if places.nodes == 30 and not places.block.rows.start and len(places.rows) > 100:  # A's in the session
            known["A"] = places.rows
        return of(places, own)

    (a, b), ids = banks(2)
    there = {text.removeprefix("B/") for text in ids["A"][a.common :]}
    guessed = [*(text for text in ids["B"][: b.common] if text not in there), *(f"x{number}" for number in range(90))]
    first = a.num_nodes
    claimed = torch.stack([torch.zeros(len(guessed), dtype=torch.int64), torch.arange(first, first + len(guessed))])
    absent = {name: torch.zeros(len(guessed), dtype=values.dtype) for name, values in a.node_values.items()}
    longer = {name: torch.cat([values, absent[name]]) for name, values in a.node_values.items()}
    columns = torch.cat([a.features.to_dense(), torch.zeros(len(guessed), a.num_features)])
    wide = replace(a, features=columns, edge_index=torch.cat([a.edge_index, claimed], 1), **longer)  # type: ignore[arg-type]
    monkeypatch.setattr(Places, "of", recorded)
    found: Banks = [wide, b], {**ids, "A": [*ids["A"], *(f"B/{text}" for text in guessed)]}
    trained(job_of(found, JOINT), found, tmp_path / "run")
    assert (known["A"][:first] != NOWHERE).all()
    assert (known["A"][first:] == NOWHERE).all()
    assert len(guessed) > 90  # some of them B has


def test_a_network_that_guesses_ids_learns_which_of_them_a_bank_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, known = Places.of, dict[PartyId, Tensor]()

    def recorded(places: Places, own: OwnData) -> OwnData:
        if not places.nodes:
            known[NET] = places.rows
        return of(places, own)

    graphs, ids = with_network(banks())
    network, there = graphs[-1], set(ids[NET])
    every = [f"A/{text}" for text in ids["A"] if f"A/{text}" not in there]
    guessed = [*every, "A/4711", "A/0815"]
    columns = torch.zeros(network.num_nodes + len(guessed), 1)
    monkeypatch.setattr(Places, "of", recorded)
    found: Banks = [*graphs[:-1], replace(network, features=columns)], {**ids, NET: [*ids[NET], *guessed]}
    trained(job_of(found, JOINT), found, tmp_path / "run")
    told = known[NET][network.num_nodes :] != NOWHERE
    assert told.tolist() == [True] * len(every) + [False] * 2


class OfNoDegree(OwnData):
    """Of a bank that says that none of its nodes has an edge, so that what these get is not divided by any."""

    def degrees(self, nodes: int, ways: Any = (False,)) -> Tensor:
        return torch.zeros(nodes, dtype=torch.float64)


def _of_no_degree(own: OwnData) -> OwnData:
    return OfNoDegree(**{name: getattr(own, name) for name in own.__dataclass_fields__})


def _times(factor: float) -> Callable[[OwnData], OwnData]:
    return lambda own: replace(own, columns={block: factor * part for block, part in own.columns.items()})


LIES: Mapping[str, Callable[[OwnData], OwnData]] = {"degrees": _of_no_degree, "columns beyond the clip": _times(30.0)}


def lying(monkeypatch: pytest.MonkeyPatch, lie: Callable[[OwnData], OwnData]) -> None:
    """Let A put in something else, in a session and not at home."""
    of = Places.of

    def cheating(places: Places, own: OwnData) -> OwnData:
        found = of(places, own)
        return found if places.block.rows.start or len(places.rows) == places.nodes else lie(found)

    monkeypatch.setattr(Places, "of", cheating)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_a_bank_about_its_own_nodes_moves_others_predictions_and_is_not_found(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = banks()
    job = job_of(found, JOINT)
    honest = trained(job, found, tmp_path / "honest")
    lying(monkeypatch, LIES[lie])
    fooled = trained(job, found, tmp_path / "fooled")
    assert (predicted(fooled, "B") - predicted(honest, "B")).abs().max() > ALMOST


def test_columns_too_large_to_compute_with_end_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = banks()
    lying(monkeypatch, _times(1e5))
    with refused(RangeOverflow, code="left-range"):
        trained(job_of(found, JOINT), found, tmp_path / "run")
