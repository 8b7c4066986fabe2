"""Every message that a party sends is explained, and the explanations say all that a job reveals."""

import json
from collections import defaultdict
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests import nightly
from tests.paradigms.averaging.jobs import job as averaging_job
from tests.paradigms.averaging.private_jobs import job as private_averaging
from tests.paradigms.averaging.symbol_jobs import ALL, symbol_job
from tests.paradigms.sealed.private import voting
from tests.paradigms.sealed.programs import small_job as sealed_job
from tests.paradigms.sealed.records import record_job
from tests.paradigms.union.banks import small_job as union_job
from tests.privacy.jobs import job
from tests.roles.local_parties import PRIVATE_LABELS, local_job
from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import TrafficEntry
from veilgraph.privacy.publisher import Spent
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import (
    Disclosure,
    MessageSpec,
    disclosures,
    rows_of,
)
from veilgraph.protocol.paradigm import PARADIGMS

TABLE: tuple[MessageSpec[Any], ...] = tuple(dict.fromkeys(row for each in PARADIGMS.values() for row in each.rows))
"""Of all paradigms, what several share once."""

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "default": (2, {}),
    "three holders": (3, {}),
    "individual, concat": (2, {"initial": {"method": "individual"}, "combine": {"strategy": "concat"}}),
    "secure-sum": (2, {"initial": {"method": "secure-sum"}, "head": {"logit_hops": 1}}),
    "secure-sum of three, rounds": (
        3,
        {"initial": {"method": "secure-sum"}, "rounds": 2, "combine": {"strategy": "degree-weighted"}},
    ),
    "everything in the clear": (
        2,
        {"rounds": 2, "combine": {"strategy": "degree-weighted", "masked": False}, "server": {"layers": 0}},
    ),
}


def entry(party: PartyId, peer: PartyId, kind: Kind, direction: Any = "sent") -> TrafficEntry:
    return TrafficEntry(party, peer, direction, kind, 2, 100)


def one(settings: JobSettings, party: PartyId, peer: PartyId, kind: Kind) -> Disclosure:
    (found,) = disclosures(settings, [entry(party, peer, kind)])
    return found


# The table


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_row(kind: Kind) -> None:
    assert any(row.kind is kind for row in TABLE)


@nightly
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.kind.name} {row.what}")
def test_rows_are_whole_and_say_where_nothing_protects(row: Any) -> None:
    assert row.what
    assert row.why.endswith(".")
    assert row.protection in ("none", "mask", "share", "noise", "blinding") or not row.reveals
    assert ("in the clear" in row.what) <= (row.protection == "none" or row.kind is Kind.PERTURBED_LABELS)
    assert row.is_bounded == ("noisy" in row.what or row.protection == "noise")
    assert not (row.is_bounded and "Not protected" in row.why)


@pytest.mark.parametrize("name", PARADIGMS)
def test_every_message_has_a_form(name: str) -> None:
    rows = PARADIGMS[name].rows
    formed = {(row.kind, row.ends.sender, row.ends.receiver) for row in rows if row.forms}
    assert {(row.kind, row.ends.sender, row.ends.receiver) for row in rows} == formed


# Whole jobs


def horizontal(
    holders: int = 2,
    *,
    epsilon: float | None = None,
    task: dict[str, Any] | None = None,
    weights: str = "none",
    **settings: Any,
) -> JobSettings:
    by_node = {} if epsilon is None else {"split": [0.5, 0.25, 0.25], "stratify": False}
    return parse_job(
        {
            "paradigm": "horizontal",
            "horizontal": {"task": task or {}},
            "data": {"dataset": "synthetic", "holders": holders, **by_node},
            "model": {"dim": 4, **settings},
            "train": {"epochs": 2, "patience": None, "class_weights": weights},
            "label_privacy": None if epsilon is None else {"epsilon": epsilon},
        }
    )


HORIZONTAL: dict[str, JobSettings] = {
    "max": horizontal(),
    "max, balanced": horizontal(weights="balanced"),
    "max of three, balanced": horizontal(3, weights="balanced"),
    "min of three, one layer": horizontal(3, aggregate="min", layers=1, update="gated"),
    "raw features": horizontal(2, message="none", update="concat"),
    "secure-max": horizontal(3, combine="secure-max"),
    "secure-max of raw features": horizontal(2, combine="secure-max", message="none", layers=1),
    "mean": horizontal(3, aggregate="mean", edges="deduplicate"),
    "sum": horizontal(2, aggregate="sum", edges="disjoint", update="difference"),
    "values": horizontal(task={"name": "values"}),
    "values within bounds, sum": horizontal(
        2, task={"name": "values", "low": -99.0, "high": 999.0}, aggregate="sum", edges="disjoint"
    ),
    "values of three, secure-max": horizontal(3, task={"name": "values"}, combine="secure-max"),
    "max, labels perturbed": horizontal(epsilon=2.0),
    "secure-max, labels perturbed": horizontal(3, epsilon=2.0, combine="secure-max"),
    "mean, labels perturbed": horizontal(3, epsilon=2.0, aggregate="mean", edges="deduplicate"),
}


LOCAL: dict[str, JobSettings] = {
    "features": local_job(3),
    "features and labels": local_job(3, PRIVATE_LABELS),
    "the last holder learns": local_job(2, {"data": {"label_holder": "B"}}),
}


BALANCED: dict[str, Any] = {"train": {"class_weights": "balanced"}}


# What is said


def online_job(output: str) -> JobSettings:
    """Of two holders, B of which has the labels."""
    told = {"paradigm": "sealed", "data": {"holders": ["A", "B"], "label_holder": "B"}, "train": {"select_by": "last"}}
    return parse_job({**told, "named_nodes": 5, "online": True, "output": output})


SEALED: dict[str, JobSettings] = {
    "sealed, noise on edges": sealed_job(2, voting(epsilon_total=4.0)),
    "sealed, noise on records": record_job(3),
    "sealed, bits of nodes": record_job(3, unit="node"),
    "sealed, judged": sealed_job(2, {"train": {"select_by": "accuracy"}}),
    "sealed, checked, margins": sealed_job(2, {"output": "margins", "dealer_checks": 0.5}),
    "sealed, named and released": sealed_job(2, {"named_nodes": 5, "release": "holders"}),
    "union, judged": union_job(2, {"train": {"select_by": "auc"}, "output": "classes"}),
    "union, three, not judged": union_job(3),
    "union, edges across at one, judged": union_job(3, {"across": "C", "train": {"select_by": "auc"}}),
    "union, edges across at one": union_job(4, {"across": "D"}),
    "union, named": union_job(3, {"named_nodes": 5, "output": "classes"}),
    "union, named margins, edges across at one": union_job(3, {"named_nodes": 5, "across": "C"}),
    "sealed, dealt by a holder": sealed_job(3, {"trust": "majority", "train": {"select_by": "accuracy"}}),
    "union, dealt by a holder": union_job(3, {"trust": "majority"}),
    "union, dealt by nobody": union_job(2, {"trust": "nobody"}),
    "sealed, dealt by nobody": sealed_job(2, {"trust": "nobody", "train": {"select_by": "accuracy"}}),
    "sealed, named margins": sealed_job(2, {"named_nodes": 5, "output": "margins"}),
    "sealed, disputes": sealed_job(2, {"disputes": True}),
    **{f"sealed, online, {output}": online_job(output) for output in ("classes", "margins")},
}


AVERAGING: dict[str, JobSettings] = {
    "averaging, private": private_averaging(),
    "averaging of two, private": private_averaging({"data": {"holders": 2}}),
    "averaging of four, private": private_averaging({"data": {"holders": 4}}),
    "averaging": averaging_job(),
    "averaging, balanced": averaging_job(BALANCED),
    "averaging, graphs balanced": averaging_job({"averaging": {"task": {"name": "graphs"}}}, BALANCED),
    "averaging, values": averaging_job({"averaging": {"task": {"name": "values"}}}),
    "averaging, links": averaging_job({"averaging": {"task": {"name": "links"}}}),
    "averaging of two": averaging_job({"data": {"holders": 2}}),
    "symbols": symbol_job(),
    "symbols, all answer": symbol_job(ALL),
}

JOBS: dict[str, JobSettings] = {
    **{name: job(holders, **model) for name, (holders, model) in MODELS.items()},
    **HORIZONTAL,
    **LOCAL,
    **SEALED,
    **AVERAGING,
    "label holder B": parse_job({"data": {"label_holder": "B"}}),
    "labels perturbed": parse_job({"label_privacy": {"epsilon": 1.0}}),
}
RECORD = Path(__file__).with_name("disclosures.json")
"""What is said of a message → job → between whom. Without the file the test that reads it writes it anew."""


def said() -> dict[str, dict[str, str]]:
    """What every job says of every message that one party could send another, and of no others."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, settings in JOBS.items():
        holders = settings.data.names
        for sender, receiver in permutations(dict.fromkeys((*holders[:2], holders[-1], SERVER)), 2):
            for kind in Kind:
                with suppress(ProtocolError):
                    told = one(settings, sender, receiver, kind)
                    words = f"{told.kind}: {told.what} [{told.protection}] {', '.join(told.reveals)}".strip()
                    before = found[words].get(name, "")
                    found[words][name] = f"{before} {sender}>{receiver}".strip()
    return dict(found)


def test_who_is_told_what_in_which_job_is_as_recorded() -> None:
    """A message that a job does not send has no row, so that sending it would be refused."""
    found = said()
    if not RECORD.exists():
        RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        pytest.fail(f"{RECORD.name} is written anew: read what has changed")
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    for words in found | recorded:
        assert found.get(words) == recorded.get(words), words


def test_the_record_has_every_row() -> None:
    """So whichever row is deleted, or is no longer true of its job, it changes."""
    needed = {
        row
        for settings in JOBS.values()
        for sender, receiver in permutations((*settings.data.names, SERVER), 2)
        for row in rows_of(settings, sender, receiver)
    }
    assert [(row.kind, row.what) for row in TABLE if row not in needed] == []


# Local


def test_each_perturbed_message_says_what_it_cost_by_itself() -> None:
    settings = LOCAL["features and labels"]
    spent = Spent({"features": 1, "labels": 1}, 6.0, 12.0)
    for kind, epsilon in ((Kind.PERTURBED_FEATURES, 4.0), (Kind.PERTURBED_LABELS, 2.0)):
        (found,) = disclosures(settings, [entry("B", "A", kind)], spent)
        assert (found.epsilon_release, found.epsilon_total) == (epsilon, 12.0)
        assert found.protection == "noise"
        assert found.why.startswith("Local differential privacy, paid for in the sender's ledger")
