"""Every message that a party sends is explained, and the explanations say all that a job reveals."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.errors import refused
from tests.paradigms.averaging.jobs import job as averaging_job
from tests.paradigms.averaging.private_jobs import job as private_averaging
from tests.paradigms.horizontal import brought
from tests.paradigms.sealed.private import voting
from tests.paradigms.sealed.programs import small_job as sealed_job
from tests.privacy.jobs import job, make_graphs, private_job, run_job
from tests.roles.federation import federate, small_job, small_parties
from tests.roles.local_parties import PRIVATE_LABELS, local_job, local_parties
from tests.roles.said import SAID
from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.codec import encoded_size
from veilgraph.link.view import Message, TrafficEntry
from veilgraph.privacy.publisher import Spent
from veilgraph.protocol.disclosures import Disclosure, DisclosureRecord, disclosure_lines, disclosures, rows_of
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import revelations
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.protocol.rows import Row
from veilgraph.runtime.launch.jobs import train

TABLE: tuple[Row[Any], ...] = tuple(dict.fromkeys(row for each in PARADIGMS.values() for row in each.rows))
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


def traffic(party: PartyId, messages: list[Message]) -> list[TrafficEntry]:
    counts: dict[tuple[PartyId, Kind], list[int]] = defaultdict(list)
    for message in messages:
        if message.sender == party:
            counts[message.receiver, message.tag.kind].append(encoded_size(message.tensor))
    return [TrafficEntry(party, peer, "sent", kind, len(sizes), sum(sizes)) for (peer, kind), sizes in counts.items()]


# The table


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_row(kind: Kind) -> None:
    assert any(row.kind is kind for row in TABLE)


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


CLEAR_ROWS: dict[str, Any] = {
    "schedule": "once",
    "epsilon_total": 4.0,
    "unit": "edge",
    "aggregation": {"hops": 1, "dim": 4, "own_rows": "clear"},
}
PRIVATE: dict[str, JobSettings] = {
    "every step, noised": private_job(2, {"noise_multiplier": 1.0}, rounds=2, head={"logit_hops": 1}),
    "every step, not masked": private_job(
        3, {"noise_multiplier": 1.0}, rounds=2, combine={"masked": False}, server={"layers": 0}
    ),
    "every step, noise made jointly": private_job(
        3, {"noise_multiplier": 1.0, "joint_noise": {"colluding": 1}}, rounds=2, head={"logit_hops": 1}
    ),
    "once, masked": private_job(3, {"schedule": "once", "epsilon_total": 4.0}),
    "once, noise made jointly": private_job(
        4, {"schedule": "once", "epsilon_total": 4.0, "joint_noise": {"colluding": 1}}
    ),
    "once, of two": private_job(2, {"schedule": "once", "epsilon_total": 4.0}),
    "once, concat": private_job(3, {"schedule": "once", "noise_multiplier": 1.0}, combine={"strategy": "concat"}),
    "once, own rows, masked": private_job(3, CLEAR_ROWS),
    "once, own rows, of two": private_job(2, CLEAR_ROWS),
    "once, without noise": private_job(3, {"schedule": "once", "noise_multiplier": 0.0}),
}


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", [*MODELS, *PRIVATE])
def test_all_that_is_sent_in_a_training_has_a_row_and_all_revelations_come_of_it(name: str, tmp_path: Path) -> None:
    settings = PRIVATE[name] if name in PRIVATE else job(MODELS[name][0], **MODELS[name][1])
    recording = run_job(settings, make_graphs(settings, 1), tmp_path, secrets=1)
    found = [
        disclosure
        for party in (*settings.data.names, SERVER)
        for disclosure in disclosures(settings, traffic(party, recording.sent))
    ]
    assert sum(disclosure.messages for disclosure in found) == len(recording.sent)
    assert sum(disclosure.bytes for disclosure in found) == sum(encoded_size(m.tensor) for m in recording.sent)
    assert {revelation for disclosure in found for revelation in disclosure.reveals} == set(revelations(settings))


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


def summed(lines: list[DisclosureRecord]) -> dict[tuple[str, str, str], tuple[int, int]]:
    """A session has two blocks: what it sent, and then the hellos with which the others heard of that block."""
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for line in lines:
        messages, size = found.get((line.party, line.to, line.kind), (0, 0))
        found[line.party, line.to, line.kind] = (messages + line.messages, size + line.bytes)
    return found


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", HORIZONTAL)
def test_all_that_is_sent_in_a_horizontal_run_has_a_row_as_well(name: str, tmp_path: Path) -> None:
    settings = HORIZONTAL[name]
    run = train(settings, tmp_path / "run", **brought(settings))
    lines = [
        DisclosureRecord.model_validate_json(line)
        for party in (*settings.data.names, SERVER)
        for line in (run.path / "parties" / party / "disclosures.jsonl").read_text().splitlines()
    ]
    sent = [row for row in json.loads((run.path / "traffic.json").read_text()) if row["direction"] == "sent"]
    assert summed(lines) == {(row["party"], row["peer"], row["kind"]): (row["messages"], row["bytes"]) for row in sent}
    assert {revelation for line in lines for revelation in line.reveals} == set(revelations(settings))
    assert all(line.protection != "noise" for line in lines), "of edges a gradient tells, whatever labels it is of"


LOCAL: dict[str, JobSettings] = {
    "features": local_job(3),
    "features and labels": local_job(3, PRIVATE_LABELS),
    "the last holder learns": local_job(2, {"data": {"label_holder": "B"}}),
}


@pytest.mark.parametrize("name", LOCAL)
def test_all_that_is_sent_in_a_local_run_has_a_row_as_well(name: str, tmp_path: Path) -> None:
    settings = LOCAL[name]
    run = train(settings, tmp_path / "run", parties=local_parties(settings))
    lines = [
        DisclosureRecord.model_validate_json(line)
        for party in (*settings.data.names, SERVER)
        for line in (run.path / "parties" / party / "disclosures.jsonl").read_text().splitlines()
    ]
    sent = [row for row in json.loads((run.path / "traffic.json").read_text()) if row["direction"] == "sent"]
    assert summed(lines) == {(row["party"], row["peer"], row["kind"]): (row["messages"], row["bytes"]) for row in sent}
    assert {revelation for line in lines for revelation in line.reveals} == set(revelations(settings))
    for line in lines:
        released = line.kind != "hello"
        assert (line.protection == "noise", line.epsilon_total is not None) == (released, released)
        assert line.protection != "none"


SEALED: dict[str, JobSettings] = {
    "sealed, noise on edges": sealed_job(2, voting(epsilon_total=4.0)),
    "sealed, judged": sealed_job(2, {"train": {"select_by": "accuracy"}}),
    "sealed, checked, probabilities": sealed_job(2, {"output": "probabilities", "dealer_checks": 0.5}),
    "sealed, named and released": sealed_job(2, {"named_nodes": 5, "release": "holders"}),
    "sealed, named probabilities": sealed_job(2, {"named_nodes": 5, "output": "probabilities"}),
}


BALANCED: dict[str, Any] = {"train": {"class_weights": "balanced"}}
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
}


def test_a_prediction_has_a_row_for_everything() -> None:
    settings = small_job(2)
    federation = federate(settings, small_parties(2), steps=0)
    for party, transcript in federation.transcripts.items():
        sent = [message for message in transcript if message.sender == party]
        found = disclosures(settings, traffic(party, sent))
        assert sum(disclosure.messages for disclosure in found) == len(sent) > 0
        assert not any("training-rows" in disclosure.reveals for disclosure in found)


# What is said


def of_said(name: str) -> JobSettings:
    perturbed = {
        "perturbed": job(initial={"method": "perturbed", "release": {"epsilon": 1.0}}),
        "labels perturbed": parse_job({"label_privacy": {"epsilon": 1.0}}),
    }
    known = PRIVATE | HORIZONTAL | LOCAL | SEALED | AVERAGING | perturbed
    return known[name] if name in known else job(MODELS[name][0], **MODELS[name][1])


@pytest.mark.parametrize("name", SAID)
def test_these_words_are_said(name: str) -> None:
    settings = of_said(name)
    assert {message: one(settings, *message).what for message in SAID[name]} == SAID[name]


def test_the_words_above_need_every_row() -> None:
    """So whichever row is deleted, or is no longer true of its job, one of them changes."""
    needed = {
        row
        for name, messages in SAID.items()
        for sender, receiver, kind in messages
        for row in rows_of(of_said(name), sender, receiver)
        if row.kind is kind
    }
    assert [(row.kind, row.what) for row in TABLE if row not in needed] == []


def test_only_what_was_sent_is_disclosed() -> None:
    assert disclosures(job(), [entry("A", "B", Kind.SHARE, "received")]) == []


def test_a_disclosure_in_full() -> None:
    assert one(job(), "A", SERVER, Kind.GRADIENT) == Disclosure(
        party="A",
        to=SERVER,
        kind="gradient",
        messages=2,
        bytes=100,
        what="gradient of z_L in the clear",
        protection="none",
        why="Not protected: the receiver can infer training nodes and which of them share a class.",
        reveals=("training-rows",),
        epsilon_release=None,
        epsilon_total=None,
    )


@pytest.mark.parametrize(
    ("party", "peer", "kind", "model"),
    [
        ("B", SERVER, Kind.GRADIENT, {}),
        ("B", "A", Kind.CONTROL, {}),
        ("A", "B", Kind.MASKED, {}),
        ("A", "B", Kind.GRADIENT, {}),
        ("A", SERVER, Kind.EMBEDDING, {}),
        ("A", SERVER, Kind.MASKED, {"combine": {"masked": False}}),
        ("A", "B", Kind.SHARE, {"initial": {"method": "individual"}}),
        (SERVER, "B", Kind.COMBINED, {}),
        (SERVER, "B", Kind.MASKED, {}),
    ],
)
def test_what_the_job_does_not_send_has_no_row(party: str, peer: str, kind: Kind, model: dict[str, Any]) -> None:
    with refused(ProtocolError, code="undisclosed", value=peer, party=party):
        one(job(**model), party, peer, kind)


def test_masks_between_two_holders_are_no_protection() -> None:
    model = {"initial": {"method": "secure-sum"}}
    for kind in (Kind.MASKED, Kind.MASKED_GRADIENT):
        assert one(job(2, **model), "A", "B", kind).protection == "none"
        assert "single-initial-embeddings" in one(job(2, **model), "A", "B", kind).reveals
        assert one(job(3, **model), "A", "B", kind).protection == "mask"
        assert "single-initial-embeddings" not in one(job(3, **model), "A", "B", kind).reveals


def test_the_label_holder_is_the_one_that_the_job_names() -> None:
    settings = parse_job({"data": {"label_holder": "B"}})
    assert one(settings, "B", SERVER, Kind.GRADIENT).reveals == ("training-rows",)
    assert one(settings, SERVER, "A", Kind.GRADIENT).reveals == ("training-rows",)
    assert one(settings, SERVER, "B", Kind.GRADIENT).reveals == ()
    assert one(settings, SERVER, "B", Kind.COMBINED).reveals == ("output-embeddings",)


def test_one_kind_that_carries_several_things() -> None:
    settings = job(rounds=2, combine={"strategy": "degree-weighted"}, server={"layers": 0}, head={"logit_hops": 1})
    assert one(settings, "B", SERVER, Kind.MASKED).what == "masked embeddings; masked degrees"
    assert one(settings, SERVER, "A", Kind.COMBINED).reveals == (
        "output-embeddings",
        "combined-as-output",
        "combined-embeddings",
    )
    assert one(settings, SERVER, "B", Kind.COMBINED).reveals == ("combined-embeddings",)
    assert one(settings, "A", SERVER, Kind.GRADIENT).reveals == ("training-rows", "label-holder-edges")


@pytest.mark.parametrize(
    ("party", "peer", "kind"),
    [
        ("A", "B", Kind.BLINDED_IDS),
        ("B", SERVER, Kind.ID_TOKENS),
        (SERVER, "B", Kind.COMMON_IDS),
        ("A", "B", Kind.ROW_ORDER),
        ("A", "B", Kind.SEAL),
    ],
)
def test_alignment_and_sealing_are_explained_in_any_vertical_job(party: str, peer: str, kind: Kind) -> None:
    found = one(job(), party, peer, kind)
    assert found.protection == {Kind.COMMON_IDS: "none", Kind.SEAL: "public"}.get(kind, "blinding")


# Horizontal


def test_secure_max_hides_single_embeddings_and_nothing_else() -> None:
    clear = one(HORIZONTAL["max"], "A", SERVER, Kind.EMBEDDING)
    assert (clear.protection, clear.reveals) == ("none", ("embedding-maxima", "single-embeddings"))
    hidden = one(HORIZONTAL["secure-max"], "A", SERVER, Kind.MASKED)
    assert (hidden.protection, hidden.reveals) == ("mask", ("embedding-maxima",))
    assert set(revelations(HORIZONTAL["max"])) - set(revelations(HORIZONTAL["secure-max"])) == {
        "single-embeddings",
        "single-summands",  # the other job has three holders
    }
    with refused(ProtocolError, code="undisclosed", key="embedding", value="server", party="A"):
        one(HORIZONTAL["secure-max"], "A", SERVER, Kind.EMBEDDING)


def test_raw_features_are_named_where_no_weights_hide_them() -> None:
    for name, kind in (("raw features", Kind.EMBEDDING), ("secure-max of raw features", Kind.MASKED)):
        found = one(HORIZONTAL[name], "B", SERVER, kind)
        assert "raw features" in found.what
        assert found.reveals[-1] == "raw-features"


def test_a_fixed_first_layer_is_said_to_be_sent_once_and_to_get_no_gradient() -> None:
    for name, kind in (("raw features", Kind.EMBEDDING), ("secure-max of raw features", Kind.MASKED)):
        assert "once a session" in one(HORIZONTAL[name], "B", SERVER, kind).what
    for settings in (HORIZONTAL["max"], horizontal(2, message="none", update="gated")):
        assert "once a session" not in one(settings, "B", SERVER, Kind.EMBEDDING).what
        assert one(settings, SERVER, "B", Kind.GRADIENT).reveals == ("training-rows", "edge-gradients")
    assert one(HORIZONTAL["raw features"], SERVER, "B", Kind.GRADIENT).reveals == ("training-rows",)
    assert one(HORIZONTAL["raw features"], "B", SERVER, Kind.GRADIENT).reveals == ("training-rows", "edge-gradients")
    deeper = horizontal(2, message="none", layers=3)
    assert one(deeper, SERVER, "B", Kind.GRADIENT).reveals == ("training-rows", "edge-gradients")


def test_sums_of_two_holders_are_no_secret_between_them() -> None:
    for kind in (Kind.MASKED, Kind.MASKED_GRADIENT):
        assert one(horizontal(2), "A", "B", kind).protection == "none"
        assert "single-summands" in one(horizontal(2), "A", "B", kind).reveals
        assert one(horizontal(3), "A", "B", kind).protection == "mask"
        assert "single-summands" not in one(horizontal(3), "A", "B", kind).reveals


def test_lists_that_the_server_gets() -> None:
    assert one(HORIZONTAL["max"], "A", SERVER, Kind.NODE_LIST).reveals == ("node-lists",)
    found = one(HORIZONTAL["mean"], "A", SERVER, Kind.NODE_LIST)
    assert (found.protection, found.reveals) == ("blinding", ("node-lists", "edge-lists"))
    assert one(HORIZONTAL["mean"], SERVER, "B", Kind.NODE_PLACES).protection == "none"
    assert one(HORIZONTAL["secure-max"], SERVER, "B", Kind.NODE_PLACES).protection == "public"
    assert one(HORIZONTAL["mean"], "A", SERVER, Kind.EMBEDDING).reveals[-2:] == ("pooled-degrees", "single-degrees")


@pytest.mark.parametrize("name", ["max", "secure-max", "mean"])
def test_gradients_tell_holders_labels_and_with_more_layers_edges(name: str) -> None:
    for party, peer in (("B", SERVER), (SERVER, "B")):
        found = one(HORIZONTAL[name], party, peer, Kind.GRADIENT)
        assert (found.protection, found.reveals) == ("none", ("training-rows", "edge-gradients"))
    assert one(HORIZONTAL["min of three, one layer"], "B", SERVER, Kind.GRADIENT).reveals == ("training-rows",)
    assert ("zero where another's prevailed" in one(HORIZONTAL[name], SERVER, "B", Kind.GRADIENT).what) == (
        name == "max"
    )


@pytest.mark.parametrize(
    ("party", "peer", "kind", "name"),
    [
        ("A", "B", Kind.CONTROL, "max"),
        ("B", SERVER, Kind.CONTROL, "max"),
        ("A", SERVER, Kind.MASKED, "max"),
        ("A", "B", Kind.MASKED_BITS, "max"),
        (SERVER, "A", Kind.SEED, "max"),
        (SERVER, "A", Kind.NODE_PLACES, "max"),
        (SERVER, "A", Kind.COMMON_IDS, "max"),
        ("A", "B", Kind.SHARE, "max"),
        ("A", SERVER, Kind.NODE_KEY, "max"),
        ("A", "B", Kind.ROW_ORDER, "max"),
    ],
)
def test_what_a_horizontal_job_does_not_send(party: str, peer: str, kind: Kind, name: str) -> None:
    with refused(ProtocolError, code="undisclosed", value=peer, party=party):
        one(HORIZONTAL[name], party, peer, kind)


@pytest.mark.parametrize(("party", "peer"), [("A", SERVER), ("B", "A"), (SERVER, "B")])
def test_the_order_of_rows_goes_from_the_first_holder_to_holders_alone(party: str, peer: str) -> None:
    with refused(ProtocolError, code="undisclosed", value=peer, party=party):
        one(job(), party, peer, Kind.ROW_ORDER)


def test_a_vertical_job_sends_no_node_lists() -> None:
    for kind in (Kind.NODE_LIST, Kind.EMBEDDING):
        with refused(ProtocolError, code="undisclosed", value="server", party="A"):
            one(job(), "A", SERVER, kind)


# Differential privacy

SPENT = Spent({"embeddings": 3}, 0.5, 1.25)
ONCE: dict[str, Any] = {"schedule": "once", "epsilon_total": 4.0}


@pytest.mark.parametrize("masked", [True, False])
def test_what_is_noised_is_said_to_be_so_with_what_it_costs(masked: bool) -> None:
    settings = private_job(2, {"noise_multiplier": 1.0}, rounds=2, combine={"masked": masked}, head={"logit_hops": 1})
    kinds = [Kind.MASKED, Kind.MASKED_GRADIENT] if masked else [Kind.EMBEDDING]
    for party in ("A", "B"):
        for kind in (*kinds, Kind.GRADIENT):
            if masked and kind is Kind.GRADIENT and party == "B":
                continue
            (found,) = disclosures(settings, [entry(party, SERVER, kind)], SPENT)
            assert found.protection == ("mask" if kind in (Kind.MASKED, Kind.MASKED_GRADIENT) else "noise")
            assert (found.epsilon_release, found.epsilon_total) == (0.5, 1.25)
            assert "noisy" in found.what
            assert "in the clear" not in found.what
            assert found.why.startswith("Clipped, paid for")
    for party, kind in (("A", Kind.COMBINED), ("B", Kind.COMBINED), ("A", Kind.GRADIENT), ("B", Kind.GRADIENT)):
        (found,) = disclosures(settings, [entry(SERVER, party, kind)], SPENT)
        assert found.protection == "noise"
        assert found.epsilon_total is None, "what is computed from releases costs nothing"
        assert "Not protected" not in found.why
    for kind in (Kind.HELLO, Kind.KEY):
        (found,) = disclosures(settings, [entry("A", "B", kind)], SPENT)
        assert found.epsilon_total is None


def test_infinite_epsilon_is_said_as_no_protection() -> None:
    settings = private_job(2, {"noise_multiplier": 0.0}, combine={"masked": False})
    (found,) = disclosures(settings, [entry("B", SERVER, Kind.EMBEDDING)], Spent({}, math.inf, math.inf))
    assert (found.protection, found.epsilon_release, found.epsilon_total) == ("none", None, None)
    assert found.why.startswith("Not protected")


def test_h0_stays_without_noise() -> None:
    settings = private_job(2, {"noise_multiplier": 1.0}, initial={"method": "secure-sum"})
    (found,) = disclosures(settings, [entry("A", "B", Kind.MASKED)], SPENT)
    assert (found.protection, found.epsilon_total) == ("none", None)


def test_one_release_in_words() -> None:
    settings = private_job(2, ONCE)
    (found,) = disclosures(settings, [entry("B", SERVER, Kind.EMBEDDING)], SPENT)
    assert (found.what, found.protection, found.epsilon_total) == ("noisy embeddings", "noise", 1.25)
    found = one(private_job(3, ONCE), "B", SERVER, Kind.MASKED)
    assert (found.what, found.protection) == ("masked noisy embeddings", "mask")
    found = one(settings, SERVER, "A", Kind.COMBINED)
    assert (found.what, found.protection) == ("the combined release", "noise")
    assert one(private_job(3, ONCE), "C", "B", Kind.KEY).protection == "random"
    bare = one(private_job(2, {"schedule": "once", "noise_multiplier": 0.0}), SERVER, "A", Kind.COMBINED)
    assert bare.protection == "none"
    assert "without noise" in bare.what


@pytest.mark.parametrize(
    ("party", "peer", "kind", "holders"),
    [
        ("A", SERVER, Kind.EMBEDDING, 2),
        ("A", SERVER, Kind.MASKED, 3),
        ("A", SERVER, Kind.GRADIENT, 2),
        ("A", "B", Kind.CONTROL, 2),
        ("A", SERVER, Kind.CONTROL, 2),
        ("A", "B", Kind.KEY, 3),
        ("B", "A", Kind.KEY, 3),
        ("B", "A", Kind.KEY, 2),
        ("B", SERVER, Kind.MASKED, 2),
        (SERVER, "B", Kind.COMBINED, 2),
        (SERVER, "B", Kind.GRADIENT, 2),
        (SERVER, "A", Kind.GRADIENT, 2),
    ],
)
def test_one_release_is_all_that_is_sent(party: str, peer: str, kind: Kind, holders: int) -> None:
    with refused(ProtocolError, code="undisclosed", value=peer, party=party):
        one(private_job(holders, ONCE), party, peer, kind)


def test_nobody_hears_of_validation_scores_where_the_last_epoch_is_taken() -> None:
    with refused(ProtocolError, code="undisclosed", key="control", value="B", party="A"):
        one(private_job(2, {"noise_multiplier": 1.0}), "A", "B", Kind.CONTROL)


# Lines


def test_lines_are_read_back_as_written() -> None:
    settings = job()
    found = disclosures(settings, [entry("A", SERVER, Kind.MASKED), entry("A", "B", Kind.SHARE)])
    time = datetime(2024, 5, 1, 14, 30, 9, 999, tzinfo=timezone(timedelta(hours=2)))
    text = disclosure_lines(settings, "predict", found, time)
    assert text.endswith("\n")
    records = [DisclosureRecord.model_validate_json(line) for line in text.splitlines()]
    assert [
        Disclosure(**record.model_dump(exclude={"time", "work", "job", "whole", "previous"})) for record in records
    ] == found
    for record in records:
        assert (record.work, record.job) == ("predict", settings.hash())
        assert record.time == datetime(2024, 5, 1, 12, 30, 9, tzinfo=UTC)
    assert '"time":"2024-05-01T12:30:09Z"' in text
    assert '"epsilon_release":null,"epsilon_total":null' in text
    assert disclosure_lines(settings, "align", [], time) == ""


# Local


def test_each_perturbed_message_says_what_it_cost_by_itself() -> None:
    settings = LOCAL["features and labels"]
    spent = Spent({"features": 1, "labels": 1}, 6.0, 12.0)
    for kind, epsilon in ((Kind.PERTURBED_FEATURES, 4.0), (Kind.PERTURBED_LABELS, 2.0)):
        (found,) = disclosures(settings, [entry("B", "A", kind)], spent)
        assert (found.epsilon_release, found.epsilon_total) == (epsilon, 12.0)
        assert found.protection == "noise"
        assert found.why.startswith("Local differential privacy, paid for in the sender's ledger")


@pytest.mark.parametrize(
    ("party", "peer", "kind", "name"),
    [
        ("A", "B", Kind.PERTURBED_FEATURES, "features and labels"),
        ("B", "C", Kind.PERTURBED_FEATURES, "features and labels"),
        ("B", SERVER, Kind.PERTURBED_FEATURES, "features and labels"),
        ("B", "A", Kind.PERTURBED_LABELS, "features"),
        ("C", "A", Kind.PERTURBED_LABELS, "features and labels"),
        ("A", "B", Kind.PERTURBED_LABELS, "features and labels"),
        ("A", "B", Kind.PERTURBED_FEATURES, "features"),
        ("B", "A", Kind.PERTURBED_FEATURES, "the last holder learns"),
        ("A", "B", Kind.CONTROL, "features"),
        ("B", SERVER, Kind.EMBEDDING, "features"),
        ("B", SERVER, Kind.MASKED, "features"),
        ("A", SERVER, Kind.GRADIENT, "features"),
        (SERVER, "A", Kind.COMBINED, "features"),
        ("B", "C", Kind.KEY, "features"),
        ("B", "C", Kind.SHARE, "features"),
    ],
)
def test_what_a_local_job_does_not_send(party: str, peer: str, kind: Kind, name: str) -> None:
    with refused(ProtocolError, code="undisclosed", value=peer, party=party):
        one(LOCAL[name], party, peer, kind)


@pytest.mark.parametrize(
    ("party", "peer", "kind"),
    [
        ("A", "B", Kind.BLINDED_IDS),
        ("B", SERVER, Kind.ID_TOKENS),
        (SERVER, "B", Kind.COMMON_IDS),
        ("A", "B", Kind.ROW_ORDER),
    ],
)
def test_tables_are_aligned_for_a_local_job(party: str, peer: str, kind: Kind) -> None:
    assert one(LOCAL["features"], party, peer, kind) == one(job(), party, peer, kind)


def test_other_jobs_send_nothing_perturbed() -> None:
    for settings in (job(), horizontal(), private_job(2, ONCE)):
        for kind in (Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS):
            with refused(ProtocolError, code="undisclosed", value="A", party="B"):
                one(settings, "B", "A", kind)


@pytest.mark.parametrize(
    ("party", "peer", "name"),
    [
        ("B", "C", "once, own rows, masked"),
        ("A", "B", "once, own rows, masked"),
        ("B", SERVER, "once, own rows, masked"),
        ("B", "A", "once, masked"),
    ],
)
def test_columns_go_to_nobody_but_the_label_holder_and_only_where_a_job_says_so(
    party: str, peer: str, name: str
) -> None:
    with refused(ProtocolError, code="undisclosed", value=peer, party=party):
        one(PRIVATE[name], party, peer, Kind.COLUMNS)
