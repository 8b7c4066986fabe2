"""Machines that fail, and strangers: what ends a job, what does not, and who can reach a party's machines."""

import json
import re
import socket
import stat
import threading
import time
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.distributed import FileStore, TCPStore
from veilgraph_machines import machine as machine_module
from veilgraph_machines import multi_machine, rendezvous
from veilgraph_machines.local import distribute
from veilgraph_machines.machine import LOOPBACK
from veilgraph_machines.passes import serve
from veilgraph_machines.rendezvous import address_towards, lead, listening_store, private_address, reached_store

from packages.machines.tests.several import Following, check, graph_of, part_of, result_of
from tests import nightly
from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout, PeerFailed
from veilgraph.protocol.party_settings import parse_party_settings

GRAPH = {"columns": torch.arange(4242, 4842)}
LOOPBACK_HEX, ANOTHER_HEX = "0100007F", "0200007F"
ANOTHER_LOOPBACK = "127.0.0.2"
PARTY = {"party": "A", "nodes": {"file": "n.csv", "id": "id", "features": [{"columns": "x"}]}}


def takes_graph(group):
    return group.receive_named(0)


@pytest.fixture
def store(tmp_path):
    """Makes one end of a store in a file."""
    return partial(FileStore, str(tmp_path / "store"))


@pytest.fixture
def meeting():
    """A leader's store on this machine's loopback, and its port."""
    made = listening_store(LOOPBACK, 0)
    return made, made.port


def gives_graph(store, count=2, timeout_s=20.0):
    """What the leader does: whoever is in the group has the graph's block afterwards."""
    with closing(lead(store, count, LOOPBACK, timeout_s=timeout_s, idle_s=20.0)) as group:
        for machine in range(1, count):
            group.send_named(machine, GRAPH)


class Leading(threading.Thread):
    """The leader, in a thread; what it failed with."""

    def __init__(self, store, count=2):
        super().__init__(daemon=True)
        self.of, self.error = (store, count), None
        self.start()

    def run(self):
        try:
            gives_graph(*self.of)
        except (ConfigError, LinkError) as error:
            self.error = error

    def outcome(self):
        self.join(30)
        assert not self.is_alive()
        return self.error


@pytest.mark.parametrize("host", ["8.8.8.8", "0.0.0.0", "172.32.0.1", "100.64.0.9", "240.0.0.1", "255.255.255.255"])
def test_an_address_that_others_reach_is_refused_in_the_party_file_and_as_what_a_name_stands_for(host, monkeypatch):
    with refused(ConfigError, key="machines.address", value=f"{host}:29500"):
        parse_party_settings({**PARTY, "machines": {"count": 2, "address": f"{host}:29500"}})
    named = parse_party_settings({**PARTY, "machines": {"count": 2, "address": "one.example:29500"}}).machines
    assert named is not None
    monkeypatch.setattr(socket, "gethostbyname", {"one.example": host}.get)
    with refused(ConfigError, key="machines.address", value="one.example"):
        private_address(named.host, "machines.address")


@pytest.mark.parametrize("host", ["10.0.0.5", "192.168.7.7", "172.31.0.1", "169.254.1.1", "127.0.0.1"])
def test_a_private_address_is_taken(host):
    parse_party_settings({**PARTY, "machines": {"count": 2, "address": f"{host}:29500"}})
    assert private_address(host, "machines.address") == host


def test_a_further_machine_on_a_public_address_does_not_listen_there(monkeypatch):
    class Routed(socket.socket):
        def getsockname(self):
            return "8.8.8.8", 9

    assert address_towards(LOOPBACK, 9) == LOOPBACK
    monkeypatch.setattr(socket, "socket", Routed)
    with refused(ConfigError, key="machines.address", value=LOOPBACK):
        address_towards(LOOPBACK, 9)


@pytest.mark.parametrize("host", ["nobody.invalid", 64 * "a"])
def test_a_name_that_nobody_has_is_refused(host):
    with refused(ConfigError, key="machines.address", value=host):
        private_address(host, "machines.address")


def listening():
    """Addresses on which this process listens, as /proc/net writes them."""
    ours = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            ours.add(str(descriptor.readlink()))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {fields[1] for fields in lines if fields[3] == "0A" and f"socket:[{fields[9]}]" in ours}


def hosts(addresses):
    return {address.split(":")[0] for address in addresses}


def test_a_group_listens_on_its_private_address_alone(meeting):
    made, port = meeting
    others = [Following(lambda: reached_store(LOOPBACK, port), rank, 3, serve) for rank in (2, 1)]
    with closing(lead(made, 3, ANOTHER_LOOPBACK, timeout_s=20, idle_s=20)) as group:
        assert hosts(listening()) == {LOOPBACK_HEX, ANOTHER_HEX}, "the store and two machines; the leader"
        check(group, "sage-mean", torch.float64)
    assert [other.outcome() for other in others] == [None, None]
    assert [other.error for other in others] == [None, None]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((ANOTHER_LOOPBACK, port), timeout=5)


def test_a_store_as_the_library_makes_it_listens_on_every_address():
    """The positive control of the test above."""
    made = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    assert hosts(listening()) - {LOOPBACK_HEX}
    socket.create_connection((ANOTHER_LOOPBACK, made.port), timeout=5).close()


def test_whoever_reaches_the_address_takes_a_machines_place(meeting):
    """Why the address has to be private: nothing else keeps a stranger out."""
    made, port = meeting
    leading = Leading(made)
    stranger = Following(lambda: TCPStore(LOOPBACK, port), 1, 2, takes_graph)
    assert torch.equal(stranger.outcome()["columns"], GRAPH["columns"])
    assert leading.outcome() is None


class Process(Following):
    """In place of a process of this machine: a thread, and the mode of the folder where it meets the leader."""

    def __init__(self, path, rank, count, _):
        self.mode = stat.S_IMODE(Path(path).parent.stat().st_mode)
        super().__init__(lambda: FileStore(path), rank, count, serve)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        super().outcome()

    def outcome(self, limit_s=30.0):
        return super().outcome() if limit_s else None


def test_processes_of_one_machine_meet_where_no_other_account_can_look(monkeypatch):
    started = []

    def start(*of):
        started.append(Process(*of))
        return started[-1]

    monkeypatch.setattr(multi_machine, "MachineProcess", start)
    part = part_of("gcn", torch.float64, graph_of(torch.float64))
    alone = part_of("gcn", torch.float64, part.adjacency).local[0]
    with multi_machine.MACHINES.spread(part, 2, "A", 20.0):
        found = result_of(part.local[0], part.adjacency, same=True, drops=True)
    expected = result_of(alone, part.adjacency, same=True, drops=True)
    torch.testing.assert_close(found, expected)
    assert [process.mode for process in started] == [0o700]
    assert [process.error for process in started] == [None], "they were told that the job is done"


class Dying(Process):
    """One that ends before it has come."""

    def __init__(self, *_):
        pass

    def __exit__(self, *_):
        pass

    def outcome(self, limit_s=None):
        return PeerFailed("machine 1's process was killed by signal 9")


def test_a_process_that_dies_before_it_comes_ends_the_job_with_what_it_said(monkeypatch):
    monkeypatch.setattr(multi_machine, "MachineProcess", Dying)
    part = part_of("gcn", torch.float64, graph_of(torch.float64))
    started = time.monotonic()
    with refused(LinkError, code="link") as refusal, multi_machine.MACHINES.spread(part, 2, "A", 60.0):
        pass
    assert str(refusal.value) == "A: machine 1's process was killed by signal 9"
    assert time.monotonic() - started < 20


def test_a_process_that_dies_at_work_ends_the_job_with_what_it_said(monkeypatch):
    """The leader notices that a connection broke; the process says why."""

    class Later(Process):
        def outcome(self, limit_s=None):
            return PeerFailed("machine 1's process was killed by signal 9") if not self.is_alive() else None

    monkeypatch.setattr(multi_machine, "MachineProcess", Later)
    monkeypatch.setattr("packages.machines.tests.test_attacks.serve", takes_graph)
    part = part_of("gcn", torch.float64, graph_of(torch.float64))
    with refused(LinkError, code="link") as refusal, multi_machine.MACHINES.spread(part, 2, "A", 20.0):
        result_of(part.local[0], part.adjacency, same=True, drops=False)
    assert str(refusal.value) == "A: machine 1's process was killed by signal 9"


JUNK = {
    "nothing": b"",
    "a web browser": b"GET / HTTP/1.1\r\nHost: leader\r\n\r\n",
    "a record without end": b"\x16\x03\x01\xff\xff" + b"\x01" * 4096,
    "noise": bytes(index * index % 251 for index in range(8192)),
}


def disturb(port):
    """Says nonsense to a port, and leaves connections there that say nothing."""
    for content in JUNK.values():
        with socket.create_connection((LOOPBACK, port), timeout=10) as stranger, suppress(OSError):
            stranger.sendall(content)
            stranger.shutdown(socket.SHUT_WR)
    return [socket.create_connection((LOOPBACK, port), timeout=10) for _ in range(100)]


def test_raw_bytes_and_silence_keep_nobody_out_and_end_no_job(meeting):
    made, port = meeting
    silent = disturb(port)
    machine = Following(lambda: reached_store(LOOPBACK, port), 1, 2, serve)
    with closing(lead(made, 2, LOOPBACK, timeout_s=20, idle_s=20)) as group:
        for address in listening():
            silent += disturb(int(address.split(":")[1], 16))
        check(group, "gcn", torch.float64)
    assert machine.outcome() is None
    assert machine.error is None
    for stranger in silent:
        stranger.close()


def test_a_machine_of_another_release_ends_the_job_and_itself_and_says_why(store, monkeypatch):
    def release():
        return "veilgraph 0.0" if isinstance(threading.current_thread(), Following) else "veilgraph 9.9"

    monkeypatch.setattr(rendezvous, "release_here", release)
    leading, machine = Leading(store()), Following(store, 1, 2, takes_graph)
    assert machine.outcome() is None
    assert isinstance(machine.error, ConfigError)
    assert "has release veilgraph 9.9, and this machine veilgraph 0.0" in str(machine.error)
    error = leading.outcome()
    assert isinstance(error, ConfigError)
    assert "machine 1 has release veilgraph 0.0, and this machine veilgraph 9.9" in str(error)


def test_a_machine_of_another_party_file_ends_the_job_and_itself_and_says_why(store):
    leading, machine = Leading(store(), 2), Following(store, 1, 3, takes_graph)
    assert machine.outcome() is None
    assert "has count 2, and this machine 3" in str(machine.error)
    assert "machine 1 has count 3, and this machine 2" in str(leading.outcome())


def test_of_two_machines_of_one_rank_one_gets_in(store):
    leading = Leading(store(), 3)
    twins = [Following(store, 1, 3, takes_graph) for _ in range(2)]
    last = Following(store, 2, 3, takes_graph)
    assert last.outcome() is not None
    assert leading.outcome() is None
    assert [twin.outcome() is None for twin in twins].count(True) == 1
    (refusal,) = [twin.error for twin in twins if twin.error is not None]
    assert type(refusal) is LinkError
    assert "rank=1: another machine has this rank" in str(refusal)


def test_a_machine_that_comes_too_late_waits_for_the_next_job(store):
    leading, machine = Leading(store()), Following(store, 1, 2, takes_graph)
    assert machine.outcome() is not None
    assert leading.outcome() is None
    late = Following(store, 1, 2, takes_graph)
    assert late.outcome() is None
    assert type(late.error) is LinkError  # after which ``net machine`` waits for the next job


def test_a_leader_that_is_gone_lets_the_machine_wait_for_the_next_job(meeting):
    made, port = meeting
    machine = Following(lambda: reached_store(LOOPBACK, port), 1, 2, serve)
    with closing(lead(made, 2, LOOPBACK, timeout_s=20, idle_s=20)):
        pass
    started = time.monotonic()
    assert machine.outcome() is None
    assert isinstance(machine.error, LinkError)
    assert machine.error.code == "machine-gone"
    assert re.fullmatch(
        r"the party's own process is gone, or did not answer in time \([^/]* by peer[^/]*\); see what it said last",
        str(machine.error),
    )
    assert time.monotonic() - started < 10


def test_a_machine_waits_for_work_longer_than_for_others_at_work(store):
    machine = Following(store, 1, 2, serve)
    part = part_of("gcn", torch.float64, graph_of(torch.float64))
    with closing(lead(store(), 2, LOOPBACK, timeout_s=1, idle_s=20)) as group:
        several = distribute(part, group)
        machine.join(1.5)
        result_of(part.local[0], part.adjacency, same=True, drops=False)
        several.close()
    assert machine.outcome() is None
    assert machine.error is None


def test_a_machine_attends_job_after_job_until_it_would_be_refused_again(monkeypatch):
    outcomes = [None, LinkError("the job ended"), ConfigError("another release")]

    class Attending:
        def __init__(self, *of):
            assert of == ("10.0.0.5:29500", 1, 2)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def outcome(self):
            return outcomes.pop(0)

    monkeypatch.setattr(machine_module, "MachineProcess", Attending)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    party = parse_party_settings({**PARTY, "machines": {"count": 2, "address": "10.0.0.5:29500"}})
    said: list[str] = []
    with pytest.raises(ConfigError, match="another release"):
        machine_module.attend(party, 1, said.append)
    assert said[1:] == ["machine 1: the job is done", "machine 1: the job ended"]
    assert len(pauses) == 1
    assert outcomes == []


@nightly
@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["the web", "nothing"])
def test_who_listens_at_the_address_and_is_no_store_lets_the_machine_wait(says):
    before = set(threading.enumerate())
    with socket.create_server((LOOPBACK, 0)) as listener, ExitStack() as silent:

        def serves():
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    if says:
                        connection.sendall(says)
                        connection.close()
                    else:
                        silent.enter_context(connection)

        threading.Thread(target=serves, daemon=True).start()
        with refused(LinkError, code="machine-gone"):
            reached_store(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)
    for thread in set(threading.enumerate()) - before:
        thread.join(30)  # one that is in the library when the interpreter ends would abort the process
        assert not thread.is_alive()


def test_a_machine_that_hangs_ends_the_job_in_time(store):
    over = threading.Event()

    def hangs(group):
        group.receive_named(0)
        over.wait(60)

    machine = Following(store, 1, 2, hangs)
    part = part_of("gcn", torch.float64, graph_of(torch.float64))
    started = time.monotonic()
    with closing(lead(store(), 2, LOOPBACK, timeout_s=2, idle_s=20)) as group:
        distribute(part, group)
        with refused(LinkError, code="machine-gone"):
            result_of(part.local[0], part.adjacency, same=True, drops=False)
    assert time.monotonic() - started < 20
    over.set()
    assert machine.outcome() is None


def test_a_machine_that_is_gone_before_it_is_in_the_group_ends_the_job_in_time(store):
    machine = {"release": rendezvous.release_here(), "count": 2, "nonce": "0"}
    store().set("machine/1", json.dumps(machine))
    with refused(LinkError, code="machine-gone"):
        lead(store(), 2, LOOPBACK, timeout_s=1, idle_s=1)


def test_a_party_file_without_machines_and_an_address_that_is_taken_are_refused(tmp_path):
    file = tmp_path / "party.yaml"
    file.write_text("party: A\nnodes: {file: n.csv, id: id, features: [{columns: x}]}\n")
    assert "has no machines" in one_error(veilgraph("net", "machine", "--party", file, "--rank", "1"))
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with refused(ConfigError, key="machines.address", value=f"{LOOPBACK}:{port}"):
            listening_store(LOOPBACK, port)
    with refused(LinkTimeout, code="machine-missing", value=[1]):
        lead(listening_store(LOOPBACK, port), 2, LOOPBACK, timeout_s=0.2, idle_s=1)
