"""Somebody who would deal in a job and may not: the server that only relays, a holder, an administrator; and kits that
were changed so that they believe it.

Beside each attack it is made where its protection is taken away, and succeeds.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.errors import refused

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.message import Message
from nvflare.private.fed.server.fed_server import FederatedServer

from tests.deploy.course import JOB, JOB_ID, Course, logged
from veilgraph.core.errors import ConfigError, DataError, PeerFailed, ProtocolError, RunError
from veilgraph.core.types import SERVER
from veilgraph.deploy import engine, roles
from veilgraph.deploy import join as joining
from veilgraph.deploy.demo import LocalNetwork
from veilgraph.deploy.failures import LOST, Failure, error_of, errors_of, sites_of
from veilgraph.deploy.guard import commands, ended, hooks, orphans, program, seldom
from veilgraph.deploy.guard.heard import forget, heard_s
from veilgraph.deploy.guard.policy import OURS, RELAY_RULES, RULES, CellName, allowed
from veilgraph.deploy.join import join
from veilgraph.deploy.kit import ITS_LOG_SAYS, Kit
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.roles import ROLES, Roles, read_roles, write_roles
from veilgraph.deploy.session import not_connected
from veilgraph.deploy.submission import TASK, encode_request
from veilgraph.deploy.submit import write_submission
from veilgraph.link import identity as identities
from veilgraph.link.channel import Channel, ChannelContext
from veilgraph.link.identity import read_key
from veilgraph.protocol.job_file import parse_job

HOLDERS, DEALER, RELAY, ADMINISTRATOR = ("bank", "shop"), "croupier", "localhost", "ops@example.org"
WITHOUT: Mapping[str, object] = {
    "name": "fraud", "server": {"host": RELAY}, "holders": HOLDERS, "administrators": [ADMINISTRATOR]
}  # fmt: skip
SESSION = ChannelContext("a job", (*HOLDERS, SERVER))


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Kit]:
    out = tmp_path_factory.mktemp("project") / "out"
    made = provision(ProjectSettings.model_validate({**WITHOUT, "dealer": DEALER}), out)
    return {name: Kit.open(path) for name, path in made.items()}


def meets(kits: Mapping[str, Kit], claimed: str, signer: str, own: str = "bank", kit: Kit | None = None) -> bool:
    """Whether a holder takes whom ``signer``'s kit makes a hello for as ``claimed``."""
    session = ChannelContext("a job", (*SESSION.parties, claimed))
    ours = Channel((kit or kits[own]).identity(), own, claimed, session)
    theirs = Channel(kits[signer].identity(), claimed, own, session)
    try:
        ours.hear(theirs.hello)
    except ProtocolError:
        return False
    return ours.agreed


def test_every_kit_knows_who_deals(kits: Mapping[str, Kit]) -> None:
    said = Roles(project="fraud", server=RELAY, dealer=DEALER, holders=HOLDERS)
    assert {name: (kit.kind, kit.party) for name, kit in kits.items()} == {
        SERVER: ("server", None),
        "bank": ("holder", "bank"),
        "shop": ("holder", "shop"),
        DEALER: ("dealer", SERVER),
        ADMINISTRATOR: ("administrator", None),
    }
    for kit in kits.values():
        assert kit.roles == said
        assert kit.certified_names() == {SERVER: DEALER}, "what records are checked by"
    assert str(said) == "croupier deals, localhost relays and takes no part in jobs"
    assert str(said.model_copy(update={"dealer": None})) == "localhost deals and relays"


@pytest.mark.cases(3)
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("claimed", "signer"),
    [(SERVER, SERVER), (SERVER, "shop"), (SERVER, ADMINISTRATOR), ("shop", DEALER), (DEALER, DEALER), ("shop", SERVER)],
)
def test_nobody_but_the_dealer_deals_and_the_dealer_is_no_holder(
    kits: Mapping[str, Kit], claimed: str, signer: str, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert meets(kits, SERVER, DEALER)
    if not checked:
        monkeypatch.setattr(identities, "fault_of_role", lambda *_: None)
    assert meets(kits, claimed, signer) != checked


def changed(kit: Kit, folder: Path, change: Callable[[Path], None]) -> Kit:
    """A copy of a kit whose roles were changed."""
    shutil.copytree(kit.path, folder)
    change(folder / "startup")
    return Kit(folder, kit.kind, kit.name)


@pytest.mark.parametrize("checked", [True, False])
def test_a_kit_that_was_changed_to_believe_the_relay_is_refused(
    kits: Mapping[str, Kit], tmp_path: Path, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_dealer(startup: Path) -> None:
        content = json.loads((startup / ROLES).read_text())
        content["said"] = content["said"].replace(f'"{DEALER}"', "null")
        (startup / ROLES).write_text(json.dumps(content))

    kit = changed(kits["bank"], tmp_path / "kit", no_dealer)
    if checked:
        with refused(DataError, code="roles"):
            kit.identity()
        with refused(DataError, code="roles"):
            Kit.open(kit.path)
    else:
        monkeypatch.setattr(roles, "check_signature", lambda *_: None)
        assert meets(kits, SERVER, SERVER, kit=kit)


def _signed_by_the_relay(kits: Mapping[str, Kit], startup: Path) -> None:
    key = kits[SERVER].path / "startup" / "server.key"
    write_roles(startup, kits["bank"].roles.model_copy(update={"dealer": None}), read_key(key, None))


@pytest.mark.parametrize("content", ["relay's", "{}", '{"said": "{}", "signature": "zz"}', "", None])
def test_roles_that_the_root_did_not_sign(kits: Mapping[str, Kit], tmp_path: Path, content: str | None) -> None:
    def change(startup: Path) -> None:
        if content == "relay's":
            _signed_by_the_relay(kits, startup)
        elif content is None:
            (startup / ROLES).unlink()
        else:
            (startup / ROLES).write_text(content)

    kit = changed(kits["bank"], tmp_path / "kit", change)
    with refused((DataError, ConfigError), key=Path(ROLES)):
        Kit.open(kit.path)


def test_roles_of_another_release_are_refused(kits: Mapping[str, Kit], tmp_path: Path) -> None:
    key = read_key(kits["bank"].path.parent.parent / "authority" / "rootCA.key", None)
    startup = tmp_path / "startup"
    shutil.copytree(kits["bank"].path / "startup", startup)
    write_roles(startup, kits["bank"].roles, key)
    assert read_roles(startup) == kits["bank"].roles
    write_roles(startup, kits["bank"].roles.model_copy(update={"roles": 2}), key)
    with refused(DataError, key=Path(ROLES), code="roles"):
        read_roles(startup)


@pytest.mark.parametrize("stranger", [DEALER, RELAY, "thief"])
def test_a_job_in_which_somebody_without_data_is_a_holder_is_refused(kits: Mapping[str, Kit], stranger: str) -> None:
    job = parse_job({"data": {"holders": ["bank", stranger], "label_holder": "bank"}})
    for kit in kits.values():
        with refused(ConfigError, key="data.holders", party=stranger):
            sites_of(job, kit.roles)
    assert sites_of(parse_job(JOB), kits["bank"].roles) == (*HOLDERS, DEALER)


def test_a_job_is_deployed_at_the_dealers_site_and_needs_it(kits: Mapping[str, Kit], tmp_path: Path) -> None:
    job = parse_job(JOB)
    submission = write_submission(tmp_path, job, "train", resume=False, sites=sites_of(job, kits["bank"].roles))
    meta = json.loads((submission / "meta.json").read_text())
    assert meta["deploy_map"] == {"veilgraph": [SERVER, *HOLDERS, DEALER]}
    assert meta["mandatory_clients"] == [*HOLDERS, DEALER]
    assert meta["min_clients"] == 3
    error = not_connected(["croupier", "shop"], kits["bank"].roles)
    assert error.code == "not-connected"
    assert "shop; start there: veilgraph net join KIT --party party.yaml" in str(error)
    assert "croupier, which deals; start there: veilgraph net join KIT" in str(error)


def test_the_dealers_machine_has_the_policy_of_a_holders(kits: Mapping[str, Kit], tmp_path: Path) -> None:
    policies = []
    for name in ("bank", DEALER):
        shutil.copytree(kits[name].path, tmp_path / name)
        kit = Kit.open(tmp_path / name)
        kit.prepare(None, kit.runs, restarts=True)
        assert kit.restarts()
        policies.append([(kit.path / "local" / file).read_text() for file in ("resources.json", "authorization.json")])
    assert policies[0] == policies[1]


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        (SERVER, {"restarts": True}, "--restart"),
        (SERVER, {"allows_audit": True}, "--allow-audit"),
        ("bank", {}, "--party"),
        (DEALER, {}, "--party"),
    ],
)
def test_leave_is_the_dealers_who_has_no_party_file(
    kits: Mapping[str, Kit],
    tmp_path: Path,
    name: str,
    options: Mapping[str, Any],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "site_process", lambda kit: pytest.fail(f"{kit.name} joined"))
    file = tmp_path / "party.yaml" if name == DEALER else None
    with refused(ConfigError, key=key) as caught:
        join(kits[name], file, None, report=lambda line: None, **options)
    assert name != SERVER or "croupier deals: join there with it" in str(caught.value)


def test_runs_of_party_server_are_the_dealers(kits: Mapping[str, Kit]) -> None:
    network = LocalNetwork({name: kit.path for name, kit in kits.items()}, kits[ADMINISTRATOR], {})
    assert network.runs(SERVER) == kits[DEALER].path / "runs"
    assert network.runs("bank") == kits["bank"].path / "runs"


# The guard


@pytest.mark.parametrize("origin", ["server", "bank", "croupier"])
@pytest.mark.parametrize("at", ["server", "bank", "croupier"])
def test_no_message_of_a_job_is_for_a_server_that_only_relays(at: str, origin: str) -> None:
    me, sender = CellName.read(f"{at}.{JOB_ID}"), CellName.read(f"{origin}.{JOB_ID}")
    assert me is not None
    assert sender is not None
    for topic in ("hello", "frame"):
        own = at != origin
        assert allowed(me, OURS, topic, sender, streamed=False, rules=RULES) == own
        relays = "server" in (at, origin)
        assert allowed(me, OURS, topic, sender, streamed=False, rules=RELAY_RULES) == (own and not relays)
    assert {(rule.channel, *sorted((rule.at, rule.origin))) for rule in RULES - RELAY_RULES} == {
        (OURS, "holder job", "server job")
    }


@pytest.mark.parametrize("role", ["server", "holder", "server-job", "holder-job"])
@pytest.mark.parametrize("name", [SERVER, "bank", DEALER, None])
def test_every_process_is_guarded_by_the_rules_of_its_project(
    kits: Mapping[str, Kit], tmp_path: Path, role: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path if name is None else kits[name].path
    if name is None:  # a project whose server deals
        shutil.copytree(kits["bank"].path / "startup", tmp_path / "startup")
        key = read_key(kits["bank"].path.parent.parent / "authority" / "rootCA.key", None)
        write_roles(tmp_path / "startup", kits["bank"].roles.model_copy(update={"dealer": None}), key)
    given: list[object] = []
    heard: list[object] = []

    def install(revoked: object = None, rules: object = RULES, heard_of: object = None) -> None:
        given.append(rules)
        heard.append(heard_of)

    monkeypatch.setattr(hooks, "install", install)
    for module, attribute in ((commands, "limit_server"), (commands, "limit_site"), (os, "umask")):
        monkeypatch.setattr(module, attribute, lambda *_: None)
    monkeypatch.setattr(commands, "tell_ages", lambda: given.append("ages"))
    monkeypatch.setattr(ended, "keep_who_ended", given.append)
    monkeypatch.setattr(ended, "end_unfinished", lambda: given.append("ended"))
    monkeypatch.setattr(orphans, "end_with_parent", given.append)
    monkeypatch.setattr(seldom, "thin", lambda: given.append("seldom"))
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: given.append("FLARE"))
    monkeypatch.setattr(sys, "argv", ["program", role, "-m", str(path)])
    program.main()
    rules = RULES if name is None else RELAY_RULES
    grace_s = orphans.GRACE_S if role.endswith("-job") else 0.0
    assert given == [grace_s, "seldom", rules, *(["ages", path, "ended"] if role == "server" else []), "FLARE"]
    (note,) = heard
    if not role.endswith("-job"):
        assert callable(note)
        note("somebody")
    assert set(heard_s(path)) == (set() if role.endswith("-job") else {"somebody"})
    forget(path)


# What a site's process does in a job


def part_of(context: SimpleNamespace, job: Mapping[str, object]) -> Failure:
    """How the site's part of a job fails."""
    reply = engine.PartyExecutor(encode_request(job, "train", resume=False)).execute(TASK, None, context, Signal())
    return Failure.read(reply.get_header(engine.FAILURE))


def stopped_at_the_link(kit: Kit, job: Mapping[str, object], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A site's part up to its link: the party, and where it looks for its peers; or its error."""
    met: list[object] = []

    def link(party: str, cell: object, addresses: Mapping[str, str], *rest: object, **named: object) -> None:
        met.extend((party, dict(addresses)))
        raise RunError("far enough")

    context = SimpleNamespace(
        get_workspace=lambda: SimpleNamespace(get_root_dir=lambda: str(kit.path)),
        get_prop=lambda _: JOB_ID,
        get_engine=lambda: SimpleNamespace(get_cell=lambda: SimpleNamespace(core_cell=None)),
    )
    monkeypatch.setattr(engine, "installed", lambda: True)
    monkeypatch.setattr(engine, "FlareLink", link)
    failure = part_of(context, job)
    return met or [failure.kind]


def test_a_site_does_its_own_part_and_looks_for_party_server_at_the_dealers(
    kits: Mapping[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, shop, deals = (f"{name}.{JOB_ID}" for name in (*HOLDERS, DEALER))
    assert stopped_at_the_link(kits["bank"], JOB, monkeypatch) == ["bank", {"shop": shop, SERVER: deals}]
    assert stopped_at_the_link(kits[DEALER], JOB, monkeypatch) == [SERVER, {"bank": bank, "shop": shop}]
    for stranger in (DEALER, RELAY):
        job = {"data": {"holders": ["bank", stranger], "label_holder": "bank"}}
        for name in ("bank", DEALER):
            assert stopped_at_the_link(kits[name], job, monkeypatch) == ["ConfigError"]


# What the server's process does in a job


def test_a_server_that_only_relays_does_no_part_of_a_job(
    kits: Mapping[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(kits[SERVER], monkeypatch)
    course.run(("bank", None), ("shop", None), (DEALER, None))
    assert course.targets == [*HOLDERS, DEALER]
    assert course.panics == []


def test_a_dealer_whose_process_ended_without_a_word_is_named(
    kits: Mapping[str, Kit], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine stops the job at once: nobody can say any more whom it lost."""
    kit = kits[SERVER].path
    monkeypatch.setattr(FederatedServer, "process_job_failure", lambda *_: Message({}, b"done"))
    ended.keep_who_ended(kit)
    (kit / JOB_ID).mkdir()

    def report(origin: str, job: object, code: object) -> None:
        request = Message({"cn__origin": origin}, {"job_id": job, "code": code})
        assert FederatedServer.process_job_failure(None, request).payload == b"done"

    try:
        report("bank", JOB_ID, 0)  # as it should be
        report("bank", "..", 101)
        report("../bank", JOB_ID, 101)
        assert not list(kit.parent.rglob("ended-first"))
        report(DEALER, JOB_ID, 101)
        report("bank", JOB_ID, 101)  # what follows
        assert ended.ended_first(kit, JOB_ID) == DEALER
        course = Course(kits[SERVER], monkeypatch)
        course.run(aborted=True)
        (error,) = logged(caplog)
        assert (type(error), error.code, error.party) == (PeerFailed, LOST, DEALER)
        assert "croupier, which deals" in str(error)
    finally:
        shutil.rmtree(kit / JOB_ID)


def test_a_relay_that_would_take_part_is_told_that_it_may_not(
    kits: Mapping[str, Kit], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond what its peers refuse: an honest server's process, given a part by mistake."""
    course = Course(kits[SERVER], monkeypatch)
    assert part_of(course.context, JOB).kind == "ConfigError"
    assert "takes no part in jobs" in str(logged(caplog)[0])


def test_what_the_dealer_says_of_its_end_is_what_the_server_says(
    kits: Mapping[str, Kit], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    course = Course(kits[SERVER], monkeypatch)
    error = ConfigError("bank refuses the job: limits.max_rounds=1: the job has 2; change one of them", code="refused")
    course.run(("bank", Failure.of(error, "bank")), (DEALER, Failure.of(error, SERVER)))
    said = logged(caplog)
    assert [str(each) for each in said] == ["bank failed; its own log says why", str(error)]
    assert said[1].key == "limits.max_rounds"
    assert course.panics


ROLES_HERE = Roles(project="fraud", server=RELAY, dealer=DEALER, holders=(*HOLDERS, "telecom"))
SITES = (*ROLES_HERE.holders, DEALER)
LOST_SERVER = Failure.of(PeerFailed("bank lost", party=SERVER), "bank")
LOST_SHOP = Failure.of(PeerFailed("telecom lost", party="shop"), "telecom")


def test_who_was_lost_is_whom_others_miss_and_who_is_silent() -> None:
    (error,) = errors_of({"bank": LOST_SERVER}, SITES, ROLES_HERE)
    assert (type(error), error.code, error.party) == (PeerFailed, LOST, DEALER)
    assert "bank lost croupier, which deals" in str(error)
    # The shop missed the dealer and ended; that others then miss the shop says nothing.
    (error,) = errors_of({"shop": LOST_SERVER, "telecom": LOST_SHOP}, SITES, ROLES_HERE)
    assert error.party == DEALER
    (error,) = errors_of({"telecom": LOST_SHOP}, SITES, ROLES_HERE)
    assert (error.code, error.party) == (LOST, "shop")
    # A cause goes before consequences.
    ended = Failure.of(DataError("nodes.csv: line 3"), "shop")
    (error,) = errors_of({"bank": LOST_SERVER, "shop": ended}, SITES, ROLES_HERE)
    assert (type(error), error.code, error.party) == (DataError, ITS_LOG_SAYS, "shop")


def test_a_party_says_no_more_than_the_kind_of_its_error_whatever_it_writes() -> None:
    error = RunError("runs/fraud: secret of the bank")
    for party in ("bank", SERVER):
        assert "secret" not in Failure.of(error, party).model_dump_json()
    agreed = ConfigError("bank refuses the job: limits.max_rounds=1", code="refused")
    boast = Failure(kind="ConfigError", error=agreed.to_json())
    assert "max_rounds" not in str(error_of("bank", boast, ROLES_HERE)), "only of who deals it is believed"
    assert str(error_of(DEALER, Failure.of(agreed, SERVER), ROLES_HERE)) == str(agreed)
    for text in (None, 7, "", "{}", "[1]", '{"kind": 1}', '{"error": "' + "x" * 9000 + '"}'):
        assert str(error_of("shop", Failure.read(text), ROLES_HERE)) == "shop failed; its own log says why"
