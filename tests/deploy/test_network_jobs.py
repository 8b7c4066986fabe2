"""Jobs of every kind over the real engine, in ``make nightly``: as in ``test_network``, a consortium for all."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from typer.testing import CliRunner

from tests import nightly
from tests.deploy.consortium import HOLDERS, JOB, Consortium, await_quiet, job, job_processes
from tests.deploy.same_here import model_of, run_here
from tests.errors import refused
from veilgraph.cli import app
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import SERVER
from veilgraph.deploy.checking import check_sites
from veilgraph.deploy.control import logs, status, stop
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.progress import SiteJob, SiteJobs, epsilon_of, traffic_of
from veilgraph.deploy.submit import refresh
from veilgraph.graph.settings import DataSettings, PartitionSettings
from veilgraph.link.identity import load_roots
from veilgraph.protocol.consent import Journal, all_waiting, count
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import load_result, predict, resume
from veilgraph.runtime.session.answering import ask_session
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.records import certified_names, verify
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory
from veilgraph.samples.organisations import export_parts

pytestmark = nightly

DEALER: Final = "D"
"""The server only relays."""

SEALED: Final = job(
    "hidden",
    paradigm="sealed",
    model={},
    data={"holders": list(HOLDERS), "label_holder": "A"},  # a run in one process would scale columns once more
    train={"epochs": 20, "checkpoint_every": 10, "select_by": "last"},
)


ONLINE: Final[dict[str, Any]] = {
    "paradigm": "sealed",
    "model": {"blocks": ["own"]},
    "train": {"epochs": 20, "checkpoint_every": 10, "select_by": "last"},
    "named_nodes": 4,
    "online": True,
}


def test_a_sealed_job_shows_the_label_holder_its_classes_and_the_relay_nothing(
    consortium: Consortium, tmp_path: Path
) -> None:
    """From tables, aligned by the dealer, that must not read a message between holders, over a relay without a part."""
    with consortium.changed("limits: {leakage: [predicted-classes]}"):
        said = consortium.submit(SEALED)
    assert "D deals, localhost relays and takes no part in jobs" in said[0]
    assert not Kit.open(consortium.network.kits[SERVER]).runs.exists(), "the relay has no part of any job above"
    runs = {party: consortium.run(party, "hidden") for party in (*HOLDERS, SERVER)}
    assert {party for party, run in runs.items() if list(run.path.rglob("predictions.*"))} == {"A"}
    for party, run in runs.items():
        assert certified_names(run.party_path(party)) == {SERVER: DEALER}
    found = predict(runs["A"].path)
    here = predict(run_here(consortium.network, SEALED, HOLDERS, tmp_path).path)
    assert (found.classes == here.classes).double().mean() > 0.97, "but for rounding at the edge of a class"
    assert load_result(runs["A"].path).summary["test_accuracy"] > 0.8


def test_every_holder_is_audited_by_the_others_at_their_sites(consortium: Consortium) -> None:
    """None of them had leave before; then views are kept from the training on."""
    site = Kit.open(consortium.network.kits[DEALER]).path / "local" / "veilgraph.json"
    consortium.submit(job("audited"))
    with refused(ConfigError, party="A", key="limits.allow_audit", value=False):
        consortium.submit(job("audited"), "audit")
    with consortium.changed("limits: {allow_audit: true}", site=site):
        site.write_text(json.dumps(json.loads(site.read_text()) | {"allows_audit": True}), encoding="utf-8")
        for work in ("train", "audit"):
            consortium.submit(job("audited-too"), work)
    for party in HOLDERS:
        path = consortium.run(party, "audited-too").path
        shown = CliRunner().invoke(app, ["audit", str(path), "--details"], catch_exceptions=False)
        assert shown.exit_code == 0
        assert f"on {party}'s" in shown.stdout
        assert "link-combination" in shown.stdout
    assert not (consortium.run(SERVER, "audited-too").path / "audit.json").exists()


PRIVATE: Final = {
    "paradigm": "node-dp",
    "data": {"holders": list(HOLDERS), "label_holder": "A"},
    "model": {"dim": 8},
    "release": {"features": {"epsilon": 3, "low": -50, "high": 50}},
    "privacy": {"unit": "edge", "epsilon_total": 3, "predictions": 1},
    "train": {"epochs": 4, "patience": None},
}
LEAKS: Final = "limits: {leakage: [perturbed-features]}"


@dataclass(frozen=True)
class Trained:
    """What there was at a site once a job had been trained.

    Attributes:
        job: as its own kit knows it.
        traffic, epsilon: likewise.
        rows: of its part's traffic.
        ledger: lines of its ledger; none where it has none.
    """

    job: SiteJob
    traffic: dict[str, int] | None
    epsilon: float | None
    rows: list[dict[str, Any]]
    ledger: list[dict[str, Any]]

    @property
    def releases(self) -> int:
        return sum(line["count"] for line in self.ledger[1:])


@pytest.fixture(scope="module")
def private(consortium: Consortium) -> Mapping[str, Trained]:
    """A private job: holder, or the dealer, → what it then had."""
    settings = job("private", **PRIVATE)
    with consortium.changed(LEAKS):
        consortium.submit(settings)
    await_quiet(consortium)
    return {party: trained(consortium, party, settings.name) for party in (*HOLDERS, DEALER)}


def trained(consortium: Consortium, site: str, name: str) -> Trained:
    kit = Kit.open(consortium.network.kits[site])
    store = consortium.run(SERVER if site == DEALER else site, name).party(site.replace(DEALER, SERVER))
    (found, *_) = [each for each in SiteJobs(kit).now() if each.name == name]
    ledger = store.path / "ledger.jsonl"
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    rows = json.loads((store.path / "traffic.json").read_text())
    return Trained(found, traffic_of(kit, found), epsilon_of(kit, found), rows, list(map(json.loads, lines)))


def test_a_private_job_spends_at_every_holders_own_site(consortium: Consortium, private: Mapping[str, Trained]) -> None:
    assert [private[party].releases for party in HOLDERS] == [1, 1, 1]
    assert private[DEALER].ledger == []
    roots = load_roots(consortium.network.runs("A").parent / "startup" / "rootCA.pem")
    for party in (*HOLDERS, SERVER):
        found = verify(consortium.run(party, "private"), roots)
        assert all(record.signed for record in found)
        assert {one.party for one in found[0].witnesses} == {*HOLDERS, SERVER} - {party}


def test_a_private_job_is_in_every_holders_ledger_for_life_and_the_others_heard_how_far_it_is(
    consortium: Consortium, private: Mapping[str, Trained]
) -> None:
    """A learns alone: it states its ledger before, so that nobody waits, and the others hear of its sums next time."""
    stands = lifetimes_of(consortium)
    for party in HOLDERS:
        lines = lifetime_file(consortium, party).read_text().splitlines()
        assert sum(json.loads(line)["count"] for line in lines[1:]) == private[party].releases
    name, count_now = stands["A"]
    check_heard(consortium, {**stands, "A": (name, count_now - 1)})


def lifetime_file(consortium: Consortium, party: str) -> Path:
    party_file = Kit.open(consortium.network.kits[party]).site.party_file
    assert party_file is not None
    return party_file.parent / "ledger" / "lifetime.jsonl"


def lifetimes_of(consortium: Consortium) -> dict[str, tuple[str, int]]:
    """Holder → id and lines of its ledger for life."""
    read = {party: lifetime_file(consortium, party).read_text().splitlines() for party in HOLDERS}
    return {party: (json.loads(lines[0])["id"], len(lines)) for party, lines in read.items()}


def check_heard(consortium: Consortium, stands: Mapping[str, tuple[str, int]]) -> None:
    """Every other holder, and the dealer, has heard that a holder's ledger is so far."""
    for site in (*HOLDERS, DEALER):
        heard = Kit.open(consortium.network.kits[site]).marks / "heard"
        told = {path.stem: json.loads(path.read_text()) for path in heard.glob("*.json")}
        found = {party: (stand["ledger"], stand["lines"]) for party, stand in told.items()}
        assert found == {party: stand for party, stand in stands.items() if party != site}


def test_a_site_knows_by_its_own_kit_what_a_job_sent_and_spent(private: Mapping[str, Trained]) -> None:
    """Nobody is asked."""
    for party, found in private.items():
        assert found.job.state == "done"
        assert found.traffic is not None
        assert found.traffic["sent"] == sum(row["bytes"] for row in found.rows if row["direction"] == "sent") > 0
        assert found.epsilon == (None if party == DEALER else pytest.approx(float(found.ledger[-1]["total"])))


def test_a_prediction_of_changed_edges_spends_nothing_and_another_snapshot_does(
    consortium: Consortium, private: Mapping[str, Trained]
) -> None:
    """A draw that followed a change would name whoever changed, so a snapshot's sums stay as they were drawn."""
    edges = consortium.party_file("A").parent / "edges.csv"
    with consortium.changed(LEAKS, edges=edges):
        edges.write_text("".join(edges.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
        consortium.submit(job("private", **PRIVATE), "predict")
        await_quiet(consortium)
        said = logs(Kit.open(consortium.network.kits["A"]), None)
        assert "the data have changed since they were released" in said
        assert [trained(consortium, party, "private").releases for party in HOLDERS] == [1, 1, 1]
        before = lifetimes_of(consortium)
        check_heard(consortium, before)
        consortium.submit(job("private-later", **PRIVATE, snapshot="later"))
        await_quiet(consortium)
    after = lifetimes_of(consortium)
    assert {party: after[party][1] - before[party][1] for party in HOLDERS} == {"A": 1, "B": 1, "C": 1}


def test_a_job_waits_until_a_person_at_the_site_approves(consortium: Consortium) -> None:
    """Who deals knows what it waits for."""
    kit = consortium.network.kits["C"]
    counted = count(Journal(kit / "consent").entries(), "job")
    with (
        consortium.changed({"C": "consent: {approval: ask, jobs: 99, resumes: 0}"}),
        ThreadPoolExecutor(1) as pool,
    ):
        said = pool.submit(consortium.submit, job("asked"), "align")
        deadline = time.monotonic() + 90
        while not (found := all_waiting(kit / "consent")):
            assert time.monotonic() < deadline
            assert not said.done(), said.exception()
            time.sleep(0.1)
        while not (newest := status(consortium.network.administrator).jobs[0].says):
            assert time.monotonic() < deadline
        for told in (newest, logs(Kit.open(consortium.network.kits[DEALER]), None)):
            assert "C waits for a person there to approve the job" in told
        command = f"veilgraph net consent approve {found[0].request.job}"
        assert f"waits for approval: {command}" in logs(Kit.open(kit), None)
        assert not (consortium.network.runs("A") / "asked").exists()
        words = ["net", "consent", "approve", found[0].request.job[:8], "--kit", str(kit)]
        approved = CliRunner().invoke(app, words)
        assert approved.exit_code == 0, approved.output
        assert "reveals initial-embeddings" in approved.stdout
        assert "D deals, localhost relays and takes no part in jobs" in approved.stdout
        said.result(90)
    assert consortium.run("C", "asked").party("C").ids()
    assert count(Journal(kit / "consent").entries(), "job") == counted + 1


def test_every_site_says_beforehand_whether_it_would_take_part(consortium: Consortium) -> None:
    """Limits, a person, a table with a fault, and the dealer; then nobody has anything of it but a line in a log."""
    nodes = consortium.party_file("C").parent / "nodes.csv"
    last = nodes.read_text(encoding="utf-8").splitlines()[-1]
    settings = job("asked-beforehand")
    lines = {"A": "limits: {leakage: [training-rows]}", "B": "consent: {approval: ask}"}
    with consortium.changed(lines, nodes=nodes):
        nodes.write_text(nodes.read_text(encoding="utf-8") + last + "\n", encoding="utf-8")
        found = check_sites(consortium.network.administrator, settings)
    assert [(each.site, each.state) for each in found] == [
        ("A", "refuses"), ("B", "waits for approval"), ("C", "refuses"), (DEALER, "accepts"),
    ]  # fmt: skip
    assert "limits.leakage=[training-rows]" in found[0].says
    named = last.split(",")[0].strip('"')
    assert named in logs(Kit.open(consortium.network.kits["C"]), None)
    assert named not in found[2].says + logs(consortium.network.administrator, None, everything=True)
    assert not any((consortium.network.runs(party) / settings.name).exists() for party in (*HOLDERS, SERVER))


def test_a_horizontal_job_from_tables_is_the_run_in_one_process(consortium: Consortium, tmp_path: Path) -> None:
    """Every organisation has the scores, and its own nodes' predictions."""
    data = {"holders": list(HOLDERS), "feature_scaling": "standard"}
    changes = {"paradigm": "horizontal", "data": data, "train": JOB["train"], "timeout_s": 120}
    settings = parse_job({"name": "rows", **changes})
    divided = DataSettings(dataset="synthetic", holders=3, partition=PartitionSettings(overlap=0.2))
    files = export_parts(divided, tmp_path / "parts", 0, job=settings)
    with consortium.changed(""):
        for party, file in files.items():
            text = file.read_text(encoding="utf-8")
            for table in ("nodes.csv", "edges.csv"):
                text = text.replace(table, str(file.parent / table))
            consortium.party_file(party).write_text(text + "\nseed: job\n", encoding="utf-8")
        consortium.submit(settings)
    here = RunDirectory.create(
        tmp_path / "here",
        settings.model_copy(
            update={"data": settings.data.model_copy(update={"parties": files, "holders": len(files)})}
        ),
    )
    for party in (*HOLDERS, SERVER):
        here.party(party).save_seed(consortium.run(party, "rows").party(party).seed())
    whole = resume(here.path)
    ours = model_of(lambda party: consortium.run(party, "rows"), (*HOLDERS, SERVER))
    theirs = model_of(lambda party: here, (*HOLDERS, SERVER))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    for party in HOLDERS:
        found = load_result(consortium.run(party, "rows").path)
        assert found.summary["test_accuracy"] == whole.summary["test_accuracy"]
        assert found.predictions.ids == tuple(here.party(party).ids() or ())
        assert predict(found.path, ids=found.predictions.ids[:1]).ids == found.predictions.ids[:1]


def test_single_nodes_are_opened_again_after_a_holder_was_killed(consortium: Consortium) -> None:
    """By sessions that are submitted one after the other; counts and what was opened stay."""
    settings = job("online", **{**ONLINE, "data": {**JOB["data"], "holders": ["A", "B"]}})
    with consortium.changed("limits: {leakage: [named-classes, answer-times]}"):
        consortium.submit(settings)
        consortium.submit(settings, "predict")
        folder = consortium.run("A", "online").party_path("A")
        prepared = load_predictions(PartyStore(folder)).prepared

        def opened(*nodes: int) -> torch.Tensor:
            """Once a session is there."""
            deadline = time.monotonic() + 60
            while True:
                with suppress(RunError):
                    return asyncio.run(ask_session(folder, prepared, nodes))
                assert time.monotonic() < deadline
                time.sleep(0.2)

        consortium.submit(settings, "answer", wait=False)
        before = opened(1, 2)
        (process,) = job_processes(consortium, "B")
        os.kill(process, signal.SIGKILL)
        code = "link-timeout"
        while code == "link-timeout":  # until A knows
            with pytest.raises(RunError) as caught:
                asyncio.run(ask_session(folder, prepared, [3]))
            code = caught.value.code
        assert code in ("ended", "no-session")
        await_quiet(consortium)
        with refused(RunError, code="no-session"):
            asyncio.run(ask_session(folder, prepared, [3]))
        consortium.submit(settings, "answer", wait=False)
        assert torch.equal(opened(1, 2), before)
        assert opened(3, 4).shape == (2, before.shape[1])
        with refused(RunError, code="used-up"):
            asyncio.run(ask_session(folder, prepared, [5]))
        refresh(consortium.network.administrator, settings, wait=False, report=print)
        newer = load_predictions(PartyStore(folder)).prepared
        assert newer != prepared
        code, deadline = "no-session", time.monotonic() + 60
        while code == "no-session":
            assert time.monotonic() < deadline
            with pytest.raises(RunError) as caught:
                asyncio.run(ask_session(folder, newer, [1]))
            code = caught.value.code
        assert code == "used-up", "counts stay"
        stop(consortium.network.administrator, None)
        await_quiet(consortium)
