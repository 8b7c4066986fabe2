"""Attacks over the real engine: real kits, real sites, mutual TLS, and participants that do what FLARE lets them.

Every attack here succeeds where ``test_without_the_guard`` says so: against the same sites without what stands in
front of FLARE. With it each is refused, the attacked site's log names the certificate that made the attempt, and a job
that runs meanwhile ends as it would have ended, bit for bit.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")
pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")

from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from tests import nightly
from tests.attacks.known import KNOWN
from tests.attacks.sites import ADMINISTRATOR, HOLDERS, Attacked, Attacker, attacked, job
from tests.deploy.processes import processes_of
from tests.deploy.same_here import assert_same_here
from veilgraph.core.types import SERVER
from veilgraph.deploy.authority import Authority, revoke
from veilgraph.deploy.certificates import request_certificate, sign_certificate
from veilgraph.deploy.guard.policy import COMMANDS, OURS, RULES, SITE_TOPICS, CellName, allowed
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.revocation import LIST_FILE, install_list
from veilgraph.deploy.session import admin_session
from veilgraph.deploy.submit import submit

SHELL = {"topic": "sys.shell", "body": "cat startup/client.key", "headers": {}}
SECRET = "PRIVATE KEY"
NO_JOB = "00000000-0000-4000-8000-000000000000"
ANSWER_S = 1.0
FUZZ_CASES = int(os.environ.get("VEILGRAPH_FUZZ_CASES", "50"))
FUZZ_KINDS = ("headers", "channels", "payloads", "streams", "answers", "frames")
FUZZ_ROOM = 128 << 20
"""Bytes by which a process may grow, however many come."""
TOPICS = sorted({topic for each in ClientRequestProcessors.request_processors for topic in each.get_topics()})
"""All commands that FLARE has for a site."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked(tmp_path_factory.mktemp("attacked")) as found:
        yield found


@pytest.fixture(scope="module")
def thief(site: Attacked) -> Attacker:
    """Holder C, with its own kit and its own credentials, under a name that its certificate stands for."""
    return site.attacker("C", f"C.{uuid.uuid4()}")


def refusals(site: Attacked, party: str) -> list[str]:
    return [line for line in site.log(party).splitlines() if "refused" in line]


def await_refusal(site: Attacked, party: str, *words: str, again: Callable[[], object] | None = None) -> None:
    """The log of an attacked site tells of an attempt, within seconds; on a machine that does much else, a minute.

    Where a source has used up its lines, the newest attempt of ten seconds is told alone: ``again`` makes it anew,
    since an attacker's engine sends messages of its own in between.
    """
    deadline = time.monotonic() + 60
    while not any(all(word in line for word in words) for line in refusals(site, party)):
        assert time.monotonic() < deadline, (words, refusals(site, party))
        if again is not None:
            again()
        time.sleep(0.05 if again is None else 0.5)


def listening(processes: Sequence[int]) -> set[int]:
    """TCP ports on which the processes listen, on any interface."""
    sockets = {
        str(link.readlink())
        for pid in processes
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if link.is_symlink() and os.path.lexists(link)
    }
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            part = line.split()
            if part[3] == "0A" and f"socket:[{part[9]}]" in sockets:
                ports.add(int(part[1].rpartition(":")[2], 16))
    return ports


# Without the guard


@nightly
def test_without_the_guard(tmp_path: Path) -> None:
    """The positive control of all below: the same attempts on the same sites, as FLARE alone would have them."""
    with attacked(tmp_path, guarded=False) as open_site:
        name = f"C.{uuid.uuid4()}"
        thief = open_site.attacker("C", name)
        mine = open_site.token("C")

        # A holder reads another's key: the header that asks for authorization is left out.
        assert SECRET in thief("admin", "admin", "A", admin=SHELL, headers=mine, timeout_s=10)["body"]
        asked = SHELL | {"headers": {"require_authz": "true", "admin_command": "cat"}}
        assert SECRET not in thief("admin", "admin", "A", admin=asked, headers=mine, timeout_s=10)["body"]

        # So does whoever reaches the server as an administrator, and the server itself.
        run = open_site.kit("A") / NO_JOB
        run.mkdir()
        delete = {"topic": "train.delete_run", "headers": {"job_id": NO_JOB}}
        thief("admin", "admin", "A", admin=delete, headers=mine, timeout_s=10)
        assert not run.exists(), "another's folder was deleted"

        # The engine's own commands for the whole network.
        assert thief("_net_manager", "echo", "A", headers=mine, payload="00", timeout_s=10)["code"] == "ok"

        # Any process of the machine, without a certificate, over the loopback.
        processes = {pid for pid, command in processes_of(open_site.kit("A")).items() if "holder" in command}
        (port,) = listening(sorted(processes))
        stranger = subprocess.run(
            [sys.executable, "-m", "tests.attacks.stranger", str(port)],
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert SECRET in stranger.stdout


# Commands of the engine


@pytest.mark.parametrize(
    "origin", ["its own", "server", pytest.param("A", marks=nightly), pytest.param("an administrator", marks=nightly)]
)
def test_no_command_of_another_holder_is_done(site: Attacked, thief: Attacker, origin: str) -> None:
    """Every command that FLARE has, whatever its headers say, under any name."""
    marker = site.kit("A") / NO_JOB
    marker.mkdir(mode=0o700, exist_ok=True)
    before = set(processes_of(site.kit("A")))
    claimed = {"its own": {}, "server": {"cn__origin": "server"}, "A": {"cn__origin": "A"}}
    headers = site.token("C") | claimed.get(origin, {"cn__origin": f"_admin_{uuid.uuid4()}"})
    for topic in TOPICS:
        for asked in ({}, {"require_authz": "false"}, {"require_authz": "true", "admin_command": "x"}):
            command = {"topic": topic, "body": "cat startup/client.key", "headers": asked | {"job_id": NO_JOB}}
            for outer in ("admin", topic):
                thief("admin", outer, "A", admin=command, headers=headers)
    answer = thief("admin", "admin", "A", admin=SHELL, headers=headers, timeout_s=ANSWER_S)
    assert answer == {"code": "timeout", "body": "None"}
    assert marker.exists()
    assert set(processes_of(site.kit("A"))) == before
    claims = {"its own": "claims to be C.", "an administrator": "claims to be _admin_"}
    again = partial(thief, "admin", "admin", "A", admin=SHELL, headers=headers)
    await_refusal(site, "A", "admin/admin from C,", claims.get(origin, f"claims to be {origin},"), again=again)
    audited = (site.kit("A") / "audit.log").read_text() if (site.kit("A") / "audit.log").exists() else ""
    assert "sys.shell" not in audited
    assert "delete_run" not in audited


@pytest.mark.parametrize("who", ["an administrator", "a holder as one"])
@nightly
def test_an_administrators_way_leads_to_the_server_alone(site: Attacked, who: str) -> None:
    party = ADMINISTRATOR if who == "an administrator" else "C"
    attacker = site.attacker(party, f"_admin_{uuid.uuid4()}", site.admin_port)
    assert attacker("admin", "admin", "A", admin=SHELL, timeout_s=ANSWER_S)["code"] in ("timeout", "unauthenticated")
    await_refusal(site, SERVER, "admin/admin", f"from {party},")
    if who == "a holder as one":
        attacker("hci_channel", "command", "server", payload="00", headers=site.token("C"))
        await_refusal(site, SERVER, "hci_channel/command", "from C,")


REFUSED = (
    *("cat server/startup/server.key", "ls server", "grep server x y", "sys_info client A", "restart client A"),
    *("shutdown client A", "remove_client A", "delete_job x", "download_job x", "report_env client", "cells"),
    *("stop_cell A", "configure_site_log client DEBUG", "clone_job x", "app_command x y"),
)


def test_the_server_has_no_command_that_nobody_needs(site: Attacked) -> None:
    with admin_session(site.network.administrator, 30) as session:
        for command in REFUSED:
            assert "unknown command" in str(session.api.server_execute(command)).lower(), command


def test_what_the_server_keeps_is_what_control_uses(site: Attacked) -> None:
    with admin_session(site.network.administrator, 30) as session:
        listed = session.api.server_execute("_commands")
    names = {row[1] for part in listed.get("data", []) for row in part.get("rows", [])[1:]}
    assert names == {command for command in COMMANDS if not command.startswith("_")}
    assert names == {"check_status", "submit_job", "list_jobs", "get_job_meta", "get_job_log", "abort_job"}


# The registries


def test_everything_registered_is_known_and_attacked_while_a_job_runs(
    site: Attacked, thief: Attacker, tmp_path: Path
) -> None:
    """Every channel and topic in FLARE's own registries, at every kind of cell, under names of every role."""
    settings = job("attacked", train={"epochs": 30, "checkpoint_every": 10, "patience": None})
    failure: list[BaseException] = []

    def work() -> None:
        try:
            submit(
                site.network.administrator,
                settings,
                "train",
                resume=False,
                wait=True,
                report=lambda line: None,
                connect_s=90,
            )
        except BaseException as error:  # noqa: BLE001  (shown by the test)
            failure.append(error)

    submitting = threading.Thread(target=work)
    submitting.start()
    job_id = _job_of(site, submitting, failure)
    registered = {(channel, topic) for _, channel, topic in site.registered()}
    assert registered == {(channel, topic) for channel, topics in KNOWN.items() for topic in topics}

    cells = {"A", f"A.{job_id}", SERVER, f"{SERVER}.{job_id}"}
    origins = [None, *cells, f"B.{job_id}", f"_admin_{uuid.uuid4()}"]
    inside = site.insider(job_id)
    attempt = partial(inside, "admin", "from inside", "B", headers=site.token("C"))
    attempt()  # C's attempts on A are only counted by now
    await_refusal(site, "B", "admin/from inside from C,", again=attempt)
    for attacker in (inside, thief):
        for channel, topic in sorted(registered):
            for target in sorted(cells):
                for origin in origins:
                    if attacker is inside and origin is None and may_leave(job_id, channel, topic, target):
                        continue
                    headers: dict[str, Any] = site.token("C") | ({} if origin is None else {"cn__origin": origin})
                    attacker(channel, topic.replace("*", "abort"), target, headers=headers, payload="81a161a162")
        assert attacker is thief or submitting.is_alive(), failure or "the job was over before the attack was"
    submitting.join(180)
    assert not failure, failure
    assert not submitting.is_alive()
    assert_same_here(site.network, settings, HOLDERS, tmp_path)
    for party in ("A", SERVER):  # thousands of attempts silence none that comes after them
        thief("_net_manager", "stop_cell", party, headers=site.token("C"), payload="81a161a162")
        await_refusal(site, party, "_net_manager/stop_cell", "from C,")


def may_leave(job_id: str, channel: str, topic: str, target: str) -> bool:
    """Whether C's process of a job may do so in its own name: say goodbye, or that it is done. It ends its own part."""
    at, own = CellName.read(target), CellName.read(f"C.{job_id}")
    assert at is not None
    assert own is not None
    ways = (allowed(at, channel, topic.replace("*", "abort"), own, streamed=streamed) for streamed in (False, True))
    return channel != OURS and any(ways)


def _job_of(site: Attacked, submitting: threading.Thread, failure: Sequence[BaseException]) -> str:
    """The id of the job that runs, once A's process for it has come up."""
    deadline = time.monotonic() + 120
    while True:
        for cell, _, topic in site.registered():
            if topic == "frame" and cell.startswith("A."):
                return cell.removeprefix("A.")
        assert submitting.is_alive(), failure
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_every_rule_is_of_something_that_is_registered() -> None:
    for rule in RULES:
        topics = KNOWN.get(rule.channel, set())
        assert rule.topic in topics or "*" in topics or rule.topic == "refused", rule
        streamed = rule.channel in ("hci_channel", "aux_communication", "server_command")
        assert rule.streamed == (streamed and rule.at != "administrator"), rule
    assert set(SITE_TOPICS) < set(TOPICS)


# Doors


def test_no_site_listens_but_the_server_on_its_two_ports(site: Attacked) -> None:
    for party in (*HOLDERS, SERVER):
        processes = sorted(processes_of(site.kit(party)))
        assert processes
        ports = listening(processes)
        assert ports == ({site.port, site.admin_port} if party == SERVER else set())


def test_the_socket_of_a_site_is_for_its_account_alone(site: Attacked) -> None:
    (main,) = (pid for pid, command in processes_of(site.kit("A")).items() if command[4:5] == ["holder"])
    environment = dict(
        part.split("=", 1) for part in Path(f"/proc/{main}/environ").read_text().split("\0") if "=" in part
    )
    folder = Path(environment["VEILGRAPH_SOCKETS"])
    (address,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_ISSOCK(address.stat().st_mode)
    if os.geteuid() != 0:
        pytest.skip("only root can try as another account")
    folder.chmod(0o777)  # the folder's protection taken away: the system's word on whose process it is remains
    address.chmod(0o777)
    try:
        assert _connects(address, as_user=None)
        assert not _connects(address, as_user=65534)
        folder.chmod(0o700)
        assert not _connects(address, as_user=65534)
    finally:
        folder.chmod(0o700)


_CONNECT = """
import os, socket, sys
if sys.argv[2]:
    os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as end:
    end.settimeout(2)
    try:
        end.connect(sys.argv[1])
        print(end.recv(1) != b"")
    except TimeoutError:
        print(True)  # it listens to us: the other end speaks second
    except OSError:
        print(False)
"""


def _connects(address: Path, as_user: int | None) -> bool:
    user = "" if as_user is None else str(as_user)
    done = subprocess.run([sys.executable, "-c", _CONNECT, str(address), user], capture_output=True, check=True)
    return done.stdout.strip() == b"True"


@nightly
def test_kits_start_no_other_way(site: Attacked) -> None:
    for kit in site.network.kits.values():
        assert not list(kit.rglob("*.sh"))
    command = [sys.executable, "-m", "nvflare.private.fed.app.client.client_train", "-m", str(site.kit("B"))]
    command += ["-s", "fed_client.json", "--set", "secure_train=true", "uid=B", "org=B", "config_folder=config"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            pytest.fail(f"FLARE's own program ran unguarded: {said}")
    assert "No driver found" in said or "cannot create" in said, said


# Credentials


@pytest.mark.parametrize(
    "named", ["server", *(pytest.param(name, marks=nightly) for name in ("server_job", "A", ADMINISTRATOR))]
)
def test_credentials_in_anothers_name_are_refused(site: Attacked, thief: Attacker, named: str) -> None:
    headers = site.token("C") | {"client_name": named}
    thief("task", f"as {named}", SERVER, headers=headers, payload="00")
    await_refusal(site, SERVER, f"task/as {named} from C,", f"it shows credentials of {named}")


@pytest.mark.parametrize(
    "header", ["cn__conn_url", *(pytest.param(name, marks=nightly) for name in ("cn__secure", "cn__pass_through"))]
)
def test_headers_that_make_the_engine_do_more_are_refused(site: Attacked, thief: Attacker, header: str) -> None:
    """Such as connecting to an address of the sender's choice, which FLARE does even where that is switched off."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(1)
        url = f"tcp://127.0.0.1:{trap.getsockname()[1]}"
        for target in ("A", SERVER):
            thief("task", header, target, headers=site.token("C") | {header: url}, payload="00", past_the_cell=True)
            why = f"for {target}: {header.removeprefix('cn__')} is used by nobody"
            await_refusal(site, SERVER, f"task/{header} from C,", why)
        with pytest.raises(TimeoutError):
            trap.accept()


@nightly
def test_logs_stay_small(site: Attacked, thief: Attacker) -> None:
    before = len(site.log("A"))
    for _ in range(300):
        thief("admin", "flood", "A", admin=SHELL, headers=site.token("C"))
    await_refusal(site, "A", "admin/flood from C,")
    lines = [line for line in refusals(site, "A") if "admin/flood" in line]
    assert len(lines) <= 3
    assert len(site.log("A")) - before < 5000


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_hostile_frames_of_every_kind_change_nothing(site: Attacked) -> None:
    """Whatever a participant sends, nothing ends, hangs or grows: many of each kind, 100,000 in ``make nightly``."""
    before = {party: {pid: resident(pid) for pid in processes_of(site.kit(party))} for party in (*HOLDERS, SERVER)}
    started = time.monotonic()
    for number, kind in enumerate(FUZZ_KINDS):
        attacker = site.attacker("C", f"C.{uuid.uuid4()}")
        answer = attacker("", "", "", fuzz=kind, cases=FUZZ_CASES, seed=number, headers=site.token("C"))
        assert answer == {"sent": FUZZ_CASES}, (kind, answer)
    assert time.monotonic() - started < 120 + FUZZ_CASES * len(FUZZ_KINDS) / 50, "something hangs"
    for party, processes in before.items():
        assert set(processes_of(site.kit(party))) == set(processes), "a process of a site ended"
        for pid, size in processes.items():
            assert resident(pid) < size + FUZZ_ROOM, party
        assert len(site.log(party)) < 20 << 20


@nightly
def test_a_frame_that_is_too_large_ends_its_own_connection_alone(site: Attacked) -> None:
    """The memory for it is never set aside: the limit is that of gRPC, and what is beyond it nobody parses."""
    for topic, size in (("small", 1 << 20), ("large", 20 << 20)):
        attacker = site.attacker("C", f"C.{uuid.uuid4()}")
        attacker("task", topic, SERVER, headers=site.token("C"), zeros=size)
        if topic == "small":  # it comes, and the guard has its say
            await_refusal(site, SERVER, "task/small from C,")
    other = site.attacker("C", f"C.{uuid.uuid4()}")
    other("admin", "after a large one", "A", admin=SHELL, headers=site.token("C"))
    await_refusal(site, "A", "admin/after a large one from C,")
    assert not [line for line in refusals(site, SERVER) if "task/large" in line]


def test_a_revoked_certificate_is_cut_off_while_the_server_runs(site: Attacked, tmp_path: Path) -> None:
    """A thief's copy of an older certificate of C; C itself, with its own, goes on."""
    authority = site.out / "project" / "authority"
    stolen = tmp_path / "stolen"
    shutil.copytree(site.kit("C") / "startup", stolen / "startup")
    kit = Kit.open(stolen)
    request_certificate(kit, tmp_path / "C.csr")
    sign_certificate(tmp_path / "C.csr", authority, tmp_path / "C.crt", datetime.now(UTC))
    serial = x509.load_pem_x509_certificate((tmp_path / "C.crt").read_bytes()).serial_number
    (kit.path / "startup" / "client.crt").write_bytes((tmp_path / "C.crt").read_bytes())
    (kit.path / "startup" / "new.key").replace(kit.path / "startup" / "client.key")
    site.network.kits["thief"] = kit.path  # type: ignore[index]
    thief = site.attacker("thief", f"C.{uuid.uuid4()}")
    attempt = partial(thief, "admin", "before the list", "A", admin=SHELL, headers=site.token("C"))
    attempt()
    await_refusal(site, "A", "admin/before the list from C,", "nothing from", again=attempt)
    revoke(Authority(authority), "C", datetime.now(UTC), serials=[serial])
    install_list(site.kit(SERVER), authority / LIST_FILE)
    thief("admin", "after the list", "A", admin=SHELL, headers=site.token("C"))
    await_refusal(site, SERVER, "from C (certificate not accepted),", "was revoked on")


@nightly
def test_honest_work_goes_on_afterwards(site: Attacked, tmp_path: Path) -> None:
    settings = job("afterwards")
    site.submit(settings)
    assert_same_here(site.network, settings, HOLDERS, tmp_path)
    assert not re.search(r"Traceback", site.log("A"))
    assert Kit.open(site.kit("A")).name == "A"
