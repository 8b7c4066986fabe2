"""Strangers among the machines of one party: they get in nowhere, read nothing, and the group goes on without them."""

import logging
import socket
import ssl
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import torch
from veilgraph_machines import rendezvous
from veilgraph_machines.channel import greet
from veilgraph_machines.listener import Door
from veilgraph_machines.rendezvous import follow, lead, open_door
from veilgraph_machines.secret import new_secret, read_secret, tls_context, write_secret
from veilgraph_machines.worker import serve

from packages.machines.tests.several import check
from tests.cli.commands import one_error, veilgraph
from tests.paradigms.cutting import wait_for
from veilgraph.core.errors import ConfigError, LinkError

HOST = "127.0.0.1"
GRAPH = {"columns": torch.arange(4242, 4842)}
LINES = bytes(GRAPH["columns"].numpy().tobytes())


@pytest.fixture
def secret():
    return new_secret()


class Following(threading.Thread):
    """A machine of the party, in a thread; its group, what it was given, or what it failed with."""

    def __init__(self, port, rank, secret, work):
        super().__init__(daemon=True)
        self.of, self.work = (HOST, port, rank, secret), work
        self.got = self.error = None
        self.start()

    def run(self):
        try:
            with closing(follow(*self.of)) as group:
                self.got = self.work(group)
        except (LinkError, ConfigError) as error:
            self.error = error

    def outcome(self):
        self.join(30)
        assert not self.is_alive()
        return self.got


def takes_graph(group):
    return group.receive_named()


def gives_graph(door, count=2, over=None):
    """What the leader does: whoever is in the group has the graph's block afterwards. It waits until it is ``over``."""

    def check():
        if over is not None and over.is_set():
            raise LinkError("it is over")

    with closing(lead(door, count, timeout_s=20.0, idle_s=20.0, check=check)) as group:
        for machine in range(1, count):
            group.send_named(machine, GRAPH)


@contextmanager
def connected(port):
    with socket.create_connection((HOST, port), timeout=10) as stranger:
        yield stranger


def handshake(port, context):
    """Connects as a machine would; what the leader says over it, in the clear."""
    with connected(port) as plain, context.wrap_socket(plain) as stranger:
        return read_all(stranger)


def read_all(stranger):
    """Everything that comes until the other end closes, or refuses."""
    heard = b""
    with suppress(OSError):
        while more := stranger.recv(1 << 16):
            heard += more
    return heard


def without_certificate(_):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def with_another_secret(rank):
    context = tls_context(new_secret(), rank, ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def leading(door, count=2):
    thread = threading.Thread(target=gives_graph, args=(door, count), daemon=True)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("context", [without_certificate, with_another_secret])
def test_a_stranger_who_comes_first_is_told_nothing_and_the_machine_gets_its_place(context, secret, caplog):
    door = open_door(HOST, 0, secret)
    with caplog.at_level(logging.WARNING, "veilgraph"), leading(door):
        assert handshake(door.port, context(1)) == b""
        honest = Following(door.port, 1, secret, takes_graph)
        assert torch.equal(honest.outcome()["columns"], GRAPH["columns"])
    assert f"refused a connection from {HOST} to this party's machines: " in caplog.text


def test_the_same_stranger_is_given_the_graph_where_certificates_are_not_checked(secret, monkeypatch):
    """The positive control of the test above."""

    def unchecked(of, rank, purpose):
        context = tls_context(of, rank, purpose)
        context.verify_mode = ssl.CERT_NONE
        return context

    monkeypatch.setattr(rendezvous, "tls_context", unchecked)
    monkeypatch.setattr("veilgraph_machines.listener.tls_context", unchecked)
    monkeypatch.setattr("veilgraph_machines.channel.rank_of", lambda connection: int(connection.server_side))
    door = open_door(HOST, 0, secret)
    with leading(door):
        stranger = Following(door.port, 1, new_secret(), takes_graph)
        assert torch.equal(stranger.outcome()["columns"], GRAPH["columns"])


JUNK = {
    "nothing": b"",
    "a store's requests": b"\x00" + bytes(range(64)),
    "a web browser": b"GET / HTTP/1.1\r\nHost: leader\r\n\r\n",
    "a record without end": b"\x16\x03\x01\xff\xff" + b"\x01" * 4096,
    "noise": bytes(index * index % 251 for index in range(8192)),
}


def test_raw_bytes_and_silence_keep_nobody_out(secret):
    door = open_door(HOST, 0, secret)
    silent = [socket.create_connection((HOST, door.port), timeout=10) for _ in range(100)]
    with leading(door):
        for content in JUNK.values():
            with connected(door.port) as stranger:
                stranger.sendall(content)
                with suppress(OSError):
                    stranger.shutdown(socket.SHUT_WR)
                assert LINES not in read_all(stranger)
        honest = Following(door.port, 1, secret, takes_graph)
        assert torch.equal(honest.outcome()["columns"], GRAPH["columns"])
    for stranger in silent:
        stranger.close()


class Between(threading.Thread):
    """Forwards one connection and keeps what went each way; ``alter`` may change what the leader says."""

    def __init__(self, to_port, alter=lambda _, content: content):
        super().__init__(daemon=True)
        self.listener = socket.create_server((HOST, 0))
        self.port, self.to_port, self.alter = self.listener.getsockname()[1], to_port, alter
        self.said, self.answered = b"", b""
        self.start()

    def run(self):
        machine, _ = self.listener.accept()
        with machine, self.listener, socket.create_connection((HOST, self.to_port)) as leader:
            back = threading.Thread(target=self.forward_back, args=(leader, machine), daemon=True)
            back.start()
            with suppress(OSError):
                while content := machine.recv(1 << 16):
                    self.said += content
                    leader.sendall(content)
                leader.shutdown(socket.SHUT_WR)
            back.join(10)

    def forward_back(self, leader, machine):
        with suppress(OSError):
            while content := leader.recv(1 << 16):
                self.answered += content
                machine.sendall(self.alter(len(self.answered), content))
            machine.shutdown(socket.SHUT_WR)


def test_who_listens_on_the_line_reads_nothing_and_can_replay_nothing(secret):
    door = open_door(HOST, 0, secret)
    between = Between(door.port)
    with leading(door):
        honest = Following(between.port, 1, secret, takes_graph)
        assert torch.equal(honest.outcome()["columns"], GRAPH["columns"])
    between.join(10)
    assert len(between.answered) > len(LINES)
    assert not any(LINES[place : place + 32] in between.answered for place in range(0, len(LINES), 32))
    again = open_door(HOST, 0, secret)
    with leading(again):
        with connected(again.port) as stranger:
            with suppress(OSError):  # the door may have refused it before all is said
                stranger.sendall(between.said)
                stranger.shutdown(socket.SHUT_WR)
            assert LINES not in read_all(stranger)
        honest = Following(again.port, 1, secret, takes_graph)
        assert torch.equal(honest.outcome()["columns"], GRAPH["columns"])


def test_a_byte_that_is_changed_on_the_way_ends_the_group_and_is_never_taken(secret):
    def changed(place, content):
        return content if place < 3000 else content[:-1] + bytes([content[-1] ^ 1])

    door = open_door(HOST, 0, secret)
    between = Between(door.port, changed)

    def leads():
        with suppress(LinkError):
            gives_graph(door)

    leader = threading.Thread(target=leads, daemon=True)
    leader.start()
    honest = Following(between.port, 1, secret, takes_graph)
    assert honest.outcome() is None
    assert isinstance(honest.error, LinkError)
    leader.join(30)


def test_a_machine_tells_a_leader_in_the_clear_nothing(secret):
    heard = []
    listener = socket.create_server((HOST, 0))

    def lie():
        connection, _ = listener.accept()
        with connection, listener:
            heard.append(connection.recv(1 << 16))
            connection.sendall(b"\x00" * 512)

    liar = threading.Thread(target=lie, daemon=True)
    liar.start()
    machine = Following(listener.getsockname()[1], 1, secret, takes_graph)
    assert machine.outcome() is None
    assert type(machine.error) is LinkError  # after which ``veilgraph net machine`` waits for the next job
    assert all(b"veilgraph" not in said for said in heard)
    liar.join(10)


@contextmanager
def misleading(door):
    """A leader whose machines do not come, until the block is over."""
    over = threading.Event()

    def lie():
        with pytest.raises(LinkError):
            gives_graph(door, over=over)

    liar = threading.Thread(target=lie, daemon=True)
    liar.start()
    yield
    over.set()
    liar.join(20)


def test_a_machine_does_not_follow_a_leader_of_another_secret_or_release(secret, monkeypatch):
    with misleading(door := open_door(HOST, 0, new_secret())):
        machine = Following(door.port, 1, secret, takes_graph)
        assert machine.outcome() is None
        assert type(machine.error) is LinkError
        assert "does not have this party's secret" in str(machine.error)

    def release():
        return "veilgraph 0.0" if isinstance(threading.current_thread(), Following) else "veilgraph 9.9"

    monkeypatch.setattr(rendezvous, "release_here", release)
    with misleading(door := open_door(HOST, 0, secret)):
        machine = Following(door.port, 1, secret, takes_graph)
        assert machine.outcome() is None
        assert "veilgraph 0.0 here, and veilgraph 9.9 where the party joins" in str(machine.error)


def test_a_machine_that_is_led_to_another_than_it_asked_for_notices(secret):
    """Who forwards connections can seat no machine at the wrong place, nor before a mirror."""
    mirror = Door(HOST, 0, secret, 1)

    def greeting(connection):
        return (yield from greet(connection)), {}

    def reflect():
        while not (come := mirror.admit(greeting, 0.1)):
            pass
        come[0][0].close()

    reflects = threading.Thread(target=reflect, daemon=True)
    reflects.start()
    machine = Following(mirror.port, 1, secret, takes_graph)
    assert machine.outcome() is None
    assert "machine 1 answers in the place of machine 0" in str(machine.error)
    reflects.join(20)
    mirror.close()


def listening():
    """Addresses on which this process listens."""
    ours = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            ours.add(str(descriptor.readlink()))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {fields[1] for fields in lines if fields[3] == "0A" and f"socket:[{fields[9]}]" in ours}


def test_a_group_of_three_computes_what_one_does_and_listens_nowhere(secret):
    before = listening()
    door = open_door(HOST, 0, secret)
    assert len(listening() - before) == 1
    others = [Following(door.port, rank, secret, serve) for rank in (2, 1)]
    with closing(lead(door, 3, timeout_s=20, idle_s=20)) as group:
        check(group, "sage-mean", torch.float64)
        assert listening() <= before
    assert [other.outcome() for other in others] == [None, None]
    assert [other.error for other in others] == [None, None]


def test_two_machines_of_one_rank_and_one_beyond_the_last_do_not_both_get_in(secret):
    door = open_door(HOST, 0, secret)
    with leading(door, 3):
        twins = [Following(door.port, 1, secret, takes_graph) for _ in range(2)]
        for rank in (3, 0):
            beyond = Following(door.port, rank, secret, takes_graph)
            assert beyond.outcome() is None
            assert f"rank={rank}: the party has 3 machines, so it is from 1 to 2" in str(beyond.error)
        wait_for(
            lambda: not all(twin.is_alive() for twin in twins), 30, "one of two machines of one rank to be refused"
        )
        last = Following(door.port, 2, secret, takes_graph)
        assert [twin.outcome() is None for twin in twins].count(True) == 1
        assert [type(twin.error) for twin in twins].count(LinkError) == 1
        assert last.outcome() is not None


def test_a_secret_that_others_can_read_or_that_can_be_guessed_is_refused(tmp_path):
    path = tmp_path / "machines.secret"
    write_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(read_secret(path)) == 32
    with pytest.raises(ConfigError, match="the file exists"):
        write_secret(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"machines.secret=.*others on this machine can read.*mode 640.*chmod 600"):
        read_secret(path)
    path.chmod(0o600)
    for text in ("hunter2", "ab" * 31, "ab" * 33, "ä" * 64, ""):
        path.write_text(text)
        with pytest.raises(ConfigError, match="is no line of 64 hexadecimal digits"):
            read_secret(path)
    with pytest.raises(ConfigError, match=r"cannot be read.*machine-secret"):
        read_secret(tmp_path / "none")


def test_a_party_file_without_a_secret_is_refused(tmp_path):
    file = tmp_path / "party.yaml"
    party = "party: A\nnodes: {file: n.csv, id: id, features: [{columns: x}]}\n"
    file.write_text(party + 'machines: {count: 2, address: "10.0.0.5:29500"}\n')
    assert "machines.secret" in one_error(veilgraph("net", "machine", "--party", file, "--rank", "1"))
    file.write_text(party)
    assert "has no machines" in one_error(veilgraph("net", "machine-secret", file))
