"""Somebody who would deal in a job and may not: the server that only relays, a holder, an administrator; and kits that
were changed so that they believe it.

Beside each attack it is made where its protection is taken away, and succeeds.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.small_project import bank_and_shop
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, PeerFailed, ProtocolError, RunError
from veilgraph.core.types import SERVER
from veilgraph.deploy import join as joining
from veilgraph.deploy import part, roles
from veilgraph.deploy.demo import LocalNetwork
from veilgraph.deploy.failures import LOST, Failure, error_of, errors_of, sites_of
from veilgraph.deploy.join import join
from veilgraph.deploy.kit import ITS_LOG_SAYS, Kit
from veilgraph.deploy.progress import Outcome
from veilgraph.deploy.request import Request
from veilgraph.deploy.roles import ROLES, Roles, read_roles, write_roles
from veilgraph.link import identity as identities
from veilgraph.link.channel import Channel, ChannelContext
from veilgraph.link.identity import read_key
from veilgraph.link.nats_client import token
from veilgraph.protocol.job_file import parse_job

HOLDERS, DEALER, RELAY, ADMINISTRATOR = ("bank", "shop"), "croupier", "localhost", "ops@example.org"
SESSION = ChannelContext("a job", (*HOLDERS, SERVER))
JOB: Mapping[str, Any] = {"data": {"holders": list(HOLDERS), "label_holder": "bank"}}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Kit]:
    return bank_and_shop(tmp_path_factory.mktemp("project") / "out", dealer=DEALER)


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
    alone = said.model_copy(update={"dealer": None})
    assert str(alone) == "localhost deals and relays"
    holders = {"holders": ["A", "B", "C"], "label_holder": "A"}
    pair = {"holders": ["A", "B"], "label_holder": "A"}
    for job, one, other in (
        ({"paradigm": "sealed", "data": holders}, str(said), str(alone)),
        (
            {"paradigm": "sealed", "data": holders, "trust": "majority"},
            "C deals, croupier is party server, localhost relays and takes no part in jobs",
            "C deals, localhost relays and is party server",
        ),
        (
            {"paradigm": "sealed", "data": pair, "trust": "nobody"},
            "croupier is party server, localhost relays and takes no part in jobs",
            "localhost relays and is party server",
        ),
        (
            {"paradigm": "vertical", "data": pair},
            "croupier is party server, localhost relays and takes no part in jobs",
            "localhost relays and is party server",
        ),
    ):
        settings = parse_job(job)
        assert (said.in_job(settings), alone.in_job(settings)) == (one, other)


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
        monkeypatch.setattr(identities, "fault_of_role", lambda *_, **__: None)
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
    monkeypatch.setattr(joining, "await_earlier_processes", lambda kit, *_: pytest.fail(f"{kit.name} joined"))
    file = tmp_path / "party.yaml" if name == DEALER else None
    with refused(ConfigError, key=key) as caught:
        join(kits[name], file, None, report=lambda line: None, **options)
    assert name != SERVER or "croupier deals: join there with it" in str(caught.value)


def test_runs_of_party_server_are_the_dealers(kits: Mapping[str, Kit]) -> None:
    network = LocalNetwork({name: kit.path for name, kit in kits.items()}, kits[ADMINISTRATOR], {})
    assert network.runs(SERVER) == kits[DEALER].path / "runs"
    assert network.runs("bank") == kits["bank"].path / "runs"


# The broker


def test_the_broker_admits_the_dealer_and_not_who_only_relays(kits: Mapping[str, Kit], tmp_path: Path) -> None:
    configured = kits[SERVER].broker_configuration(datetime.now(UTC))
    for name in (*HOLDERS, DEALER, ADMINISTRATOR):
        assert f'"vg.{token(name)}.>"' in configured or f"vg.{token(name)}." in configured, name
    assert f"vg.{token(RELAY)}." not in configured
    dealing = bank_and_shop(tmp_path / "out")
    control = dealing[SERVER].broker_configuration(datetime.now(UTC))
    assert f"vg.{token(RELAY)}." in control, "where the server deals, it is a party"


# What a site's process does in a job


def stopped_at_the_link(kit: Kit, job: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A site's part up to its link: the party, and the names of its peers; or that it takes no part."""
    met: list[object] = []

    def link(party: str, brokers: object, names: Mapping[str, str], *rest: object, **named: object) -> None:
        met.extend((party, dict(names)))
        raise RunError("far enough")

    monkeypatch.setattr(part, "NatsLink", link)
    asked: dict[str, Any] = {"project": "fraud", "sites": [kit.name], "expires": 0, "job": dict(job)}
    folder = kit.path / "asked"
    folder.mkdir(exist_ok=True)
    identity = Kit.open(kit.path.parent / ADMINISTRATOR).identity()
    (folder / "request").write_bytes(Request(**asked, ask="run", work="train").signed(identity))
    monkeypatch.setattr("sys.argv", ["part", str(kit.path), str(folder)])
    for name in ("end_with_parent", "keep_freed_memory", "share_cores"):
        monkeypatch.setattr(part, name, lambda *_: None)
    part.main()
    outcome = Outcome.read(folder)
    assert outcome is not None
    assert outcome.failure is not None
    return met or [outcome.failure.kind]


def test_a_site_does_its_own_part_and_looks_for_party_server_at_the_dealers(
    kits: Mapping[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stopped_at_the_link(kits["bank"], JOB, monkeypatch) == ["bank", {"shop": "shop", SERVER: DEALER}]
    assert stopped_at_the_link(kits[DEALER], JOB, monkeypatch) == [SERVER, {"bank": "bank", "shop": "shop"}]
    for stranger in (DEALER, RELAY):
        job = {"data": {"holders": ["bank", stranger], "label_holder": "bank"}}
        for name in ("bank", DEALER):
            assert stopped_at_the_link(kits[name], job, monkeypatch) == ["ConfigError"]


def test_a_relay_that_would_take_part_is_told_that_it_may_not(
    kits: Mapping[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond what its peers refuse: an honest server's process, given a part by mistake."""
    assert stopped_at_the_link(kits[SERVER], JOB, monkeypatch) == ["ConfigError"]


# How a job ended


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
