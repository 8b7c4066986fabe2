"""Predictions after tables changed go on from the alignment before, and what two of them show of a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.messy.holders import VERTICAL, Rows, rewrite
from tests.paradigms.sealed.programs import small_graphs, small_job
from veilgraph.audit.attack import load_view
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.collectives import tensor_text
from veilgraph.link.view import ViewEntry
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.messages import revelation_causes
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.predictions import Predictions
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_organisations

NODES = 60
BOUNDED = {"output": "margins", "model": {"max_degree": 30, "edge_slots": 400}}
JOBS = {"vertical": VERTICAL, "sealed": small_job(2, BOUNDED)}


class Tables:
    """A trained run of holders that have more nodes than are common, whose views are recorded."""

    def __init__(self, folder: Path, job: JobSettings, holders: int = 2) -> None:
        self.folder, self.run = folder / "tables", folder / "run"
        files = export_organisations(
            small_graphs(holders, nodes=NODES, training=20), self.folder, overlap=0.8, seed=1, job=job
        )
        for path in files.values():
            content = yaml.safe_load(path.read_text()) | {"limits": {"leakage": list(revelation_causes(job))}}
            content["edges"][0]["unknown"] = "drop"
            path.write_text(yaml.safe_dump(content))
        train(read_job(self.folder / "job.yaml"), self.run, record_views=True)

    def change(self, party: PartyId, table: str, change: Callable[[Rows], Rows]) -> None:
        rewrite(self.folder / party / f"{table}.csv", change)

    def seen(self, party: PartyId) -> list[ViewEntry]:
        """What a party saw in the newest session."""
        messages = load_view(RunDirectory.open(self.run), party).messages
        return [each for each in messages if each.session == messages[-1].session]

    def went_round(self) -> list[int]:
        """Lengths of the lists of points that B sent in the newest session: the holder with fewer ids has one."""
        kind = Kind.BLINDED_IDS
        return [each.shape[0] for each in self.seen("B") if each.tag.kind is kind and each.sender == "B"]

    def forget(self, party: PartyId) -> None:
        """Delete what a party kept of the alignment before."""
        (RunDirectory.open(self.run).party_path(party) / "aligned.safetensors").unlink()


@pytest.fixture(scope="module", params=JOBS)
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp(request.param), JOBS[request.param])


def of(predicted: Predictions) -> dict[str, torch.Tensor]:
    assert predicted.ids is not None
    return dict(zip(predicted.ids, predicted.probabilities, strict=True))


def alike(one: Predictions, other: Predictions) -> bool:
    first, second = of(one), of(other)
    return first.keys() == second.keys() and all(torch.allclose(first[name], second[name], atol=2e-3) for name in first)


def one_less(rows: Rows) -> Rows:
    return rows[1:]


def added(name: str) -> Callable[[Rows], Rows]:
    return lambda rows: [*rows, [name, *rows[0][1:]]]


def test_changes_are_predicted_as_by_an_alignment_in_full(tables: Tables) -> None:
    """Edges change, a customer comes to one holder and later to the other, and one that was common leaves."""
    run, common = tables.run, len(of(predict(tables.run)))

    def compared(nodes: int, ids: list[int]) -> None:
        first = predict(run)
        assert len(of(first)) == nodes
        assert tables.went_round() == ids
        tables.change("A", "edges", lambda rows: [*rows[1:], rows[0]])  # another file of the same edges
        tables.forget("B")
        assert alike(first, predict(run))
        assert sum(tables.went_round()) > NODES * 0.6, "a list in full"

    tables.change("A", "edges", one_less)
    compared(common, [])
    tables.change("A", "nodes", added("new"))
    alone = {party: len((tables.folder / party / "nodes.csv").read_text().splitlines()) - 1 - common for party in "AB"}
    compared(common, [min(alone.values())])
    tables.change("B", "nodes", added("new"))
    tables.change("B", "edges", lambda rows: [*rows, ["new", *rows[0][1:]]])
    compared(common + 1, [min(alone["A"], alone["B"] + 1)])
    gone = next(iter(of(predict(run)).keys() - {"new"}))
    tables.change("A", "nodes", lambda rows: [row for row in rows if row[0] != gone])
    compared(common, [])


def test_no_holder_counts_the_known_ids_that_another_has_lost(tables: Tables) -> None:
    """The attack: A has lost an id and subtracts B's new ids from all that B states. Less is left if B lost it too."""

    def stated() -> set[int]:
        texts = [
            tensor_text(each.tensor())
            for each in tables.seen("A")
            if each.tag.kind is Kind.HELLO and each.sender == "B"
        ]
        return {Hello.model_validate_json(text).ids for text in texts if '"ids":' in text} - {0}

    gone = next(iter(of(predict(tables.run))))
    found = []
    for name, loses in (("one", "A"), ("two", "B")):
        tables.change(loses, "nodes", lambda rows: [row for row in rows if row[0] != gone])
        tables.change("A", "nodes", added(name))
        predict(tables.run)
        found.append(stated())
    assert len(found[0]) == 1
    assert found[0] == found[1]


def test_who_kept_another_alignment_has_all_aligned_in_full(tables: Tables) -> None:
    kept = RunDirectory.open(tables.run).party_path("B") / "aligned.safetensors"
    tables.change("A", "edges", one_less)
    predict(tables.run)
    older = kept.read_bytes()
    tables.change("A", "edges", one_less)
    before = predict(tables.run)
    assert tables.went_round() == []
    kept.write_bytes(older)
    tables.change("A", "edges", lambda rows: [*rows[1:], rows[0]])
    assert alike(before, predict(tables.run))
    assert tables.went_round() != []


def test_what_is_sent_tells_neither_which_rows_changed_nor_how_many(tables: Tables) -> None:
    def shapes(number: int) -> list[str]:
        tables.change("A", "edges", lambda rows: rows[number:])
        predict(tables.run)
        every = [each for party in ("A", "B", SERVER) for each in tables.seen(party) if each.tag.kind is not Kind.HELLO]
        return sorted(f"{each.sender} {each.receiver} {each.tag} {each.shape}" for each in every)

    assert shapes(1) == shapes(9)


def sums(tables: Tables) -> np.ndarray:
    """What the server opens of all rows in the newest session of a vertical job: float64 [C, d]."""
    messages = [each for each in tables.seen(SERVER) if each.tag.kind is Kind.MASKED and each.tag.round == 1]
    return np.asarray(sum(each.tensor() for each in messages).numpy() / 2.0**20)  # type: ignore[union-attr]


def unmatched(before: np.ndarray, after: np.ndarray, ids: Sequence[str]) -> set[str]:
    """The ids of rows of ``after`` that are near none of ``before``."""
    far = np.linalg.norm(after[:, None] - before[None], axis=2).min(axis=1)
    return {ids[row] for row in np.flatnonzero(far > np.abs(before).max() * 1e-4).tolist()}


def test_the_server_of_a_vertical_job_sees_by_values_which_rows_changed(tmp_path: Path) -> None:
    """The attack over two predictions, in whatever order their rows are: who changed, and around whom, has new sums."""
    tables = Tables(tmp_path, VERTICAL)
    tables.change("A", "edges", one_less)
    predict(tables.run)
    before, ends = sums(tables), set[str]()

    def without_one(rows: Rows) -> Rows:
        ends.update(rows[0][:2])
        return rows[1:]

    tables.change("A", "edges", without_one)
    ids = predict(tables.run).ids
    assert ids is not None
    found = unmatched(before, sums(tables), ids)
    assert ends & set(ids) <= found
    assert 0 < len(found) < len(ids) / 2


def test_the_server_of_a_sealed_job_is_sent_no_row(tmp_path: Path) -> None:
    tables = Tables(tmp_path, JOBS["sealed"])
    tables.change("A", "edges", one_less)
    predict(tables.run)
    received = {each.tag.kind for each in tables.seen(SERVER) if each.receiver == SERVER}
    assert received <= {Kind.HELLO, Kind.ID_TOKENS, Kind.READY, Kind.CONTROL}
