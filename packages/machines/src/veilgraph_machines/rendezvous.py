"""How a party's machines find each other: in a store of ``torch.distributed`` that the leader makes.

Neither the store nor gloo knows passwords or encrypts. So the machines of an address must have a network of their own,
and no process listens on another address than that. Processes of one machine meet in a folder of their account.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from threading import Thread
from typing import Any, Final

from pydantic_core import from_json
from torch.distributed import Store, TCPStore

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout
from veilgraph.core.files import os_errors_as
from veilgraph.protocol.party_settings import NOT_PRIVATE, is_private
from veilgraph_machines.group import LEADER, MachineGroup, reason

_POLL_S: Final = 0.05
_RETRY_S: Final = 0.5
_GREETING_S: Final = timedelta(seconds=10)

_LEADER_KEY: Final = "leader"
_MEMBERS_KEY: Final = "members"


def private_address(host: str, what: str) -> str:
    """Return the IPv4 address of ``host``, a name or an address; raise ``ConfigError`` where it is not private."""
    way_out = "give a name or IPv4 address that exists"
    with os_errors_as(ConfigError, f"{what}={host}: cannot be resolved", way_out, UnicodeError):
        address = socket.gethostbyname(host)
    if not is_private(address):
        raise ConfigError(f"{what}={host}: {address} is no private address: {NOT_PRIVATE}")
    return address


def listening_store(host: str, port: int) -> TCPStore:
    """Make the leader's store, which listens on one address alone.

    Args:
        host: private IPv4 address of this machine.
        port: 0 for a free one.

    Raises:
        ConfigError: the address is not this machine's, or is taken.
    """
    with os_errors_as(
        ConfigError,
        f"machines.address={host}:{port}: cannot listen there",
        "give an address of the machine that joins the job, and a free port",
    ):
        listener = socket.create_server((host, port))
    port = listener.getsockname()[1]
    of = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
    return TCPStore(host, port, timeout=_GREETING_S, **of)


def reached_store(host: str, port: int) -> TCPStore:
    """Connect to the leader's store; waits without end until somebody listens there.

    Raises:
        LinkError: who listens there is no such store, or says nothing for ten seconds.
    """
    while True:
        with suppress(OSError), socket.create_connection((host, port), _GREETING_S.total_seconds()):
            break
        time.sleep(_RETRY_S)
    found = Future[TCPStore]()

    def greet() -> None:
        try:
            found.set_result(TCPStore(host, port, timeout=_GREETING_S))
        except RuntimeError as error:
            found.set_exception(error)

    Thread(target=greet, daemon=True).start()  # TCPStore waits for a greeting without end, whatever its timeout
    try:
        return found.result(_GREETING_S.total_seconds())
    except (RuntimeError, TimeoutError) as error:
        said = f"no word in {_GREETING_S.seconds} s" if isinstance(error, TimeoutError) else reason(error)
        raise LinkError(
            f"{host}:{port}: who listens there is not the party's own process ({said}); name its address and a port "
            "of its own (machines.address)",
            code="machine-gone",
        ) from error


def address_towards(host: str, port: int) -> str:
    """This machine's private address on the way to another; raises ``ConfigError`` where it is not private."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        own = probe.getsockname()[0]
    return private_address(own, f"machines.address={host}: this machine's own address on the way there")


def lead(
    store: Store,
    count: int,
    host: str,
    *,
    timeout_s: float,
    idle_s: float,
    check: Callable[[], None] = lambda: None,
) -> MachineGroup:
    """Wait for the others and form the group with them.

    Args:
        store: new.
        count: M, with the leader.
        host: address of this machine on which it listens for the others.
        timeout_s: longest wait for them to come, and for one another at work.
        idle_s: longest wait of the others for work.
        check: called now and then while they come; raises where they will not.

    Raises:
        ConfigError: a machine has another release or another number of machines.
        LinkTimeout: one did not come in time.
        LinkError: one is gone again.
    """
    facts = _facts(count)
    store.set(_LEADER_KEY, json.dumps({**facts, "timeout_s": timeout_s, "idle_s": idle_s}))
    deadline = time.monotonic() + timeout_s
    while missing := [rank for rank in range(1, count) if not store.check([_machine_key(rank)])]:
        check()
        if time.monotonic() > deadline:
            raise LinkTimeout(
                f"machine {', '.join(map(str, missing))} of this party did not come in {timeout_s:g} s; start there: "
                f"veilgraph net machine --party PARTY.yaml --rank {missing[0]}",
                code="machine-missing",
                value=missing,
            )
        time.sleep(_POLL_S)
    members = {}
    for rank in range(1, count):
        said = _read(store, _machine_key(rank))
        _check_alike(said, facts, f"machine {rank}")
        members[str(rank)] = said.get("nonce")
    store.set(_MEMBERS_KEY, json.dumps(members))
    return MachineGroup(store, LEADER, count, host, timeout_s, idle_s)


def follow(store: Store, rank: int, count: int, host: str) -> MachineGroup:
    """Join the group of a leader as machine ``rank`` of ``count``, listening for the others on ``host``.

    Raises:
        LinkError: the leader is gone again, its job has begun without this machine, or another one has the rank.
        ConfigError: the leader has another release or another number of machines.
    """
    facts, nonce = _facts(count), secrets.token_hex()
    try:
        leader = _read(store, _LEADER_KEY)
        store.set(_machine_key(rank), json.dumps({**facts, "nonce": nonce}))
        _check_alike(leader, facts, "the party's own process")
        store.set_timeout(timedelta(seconds=leader["timeout_s"]))
        members = _read(store, _MEMBERS_KEY)
    except RuntimeError as error:
        raise LinkError(
            f"the party's own process is gone, or did not begin in time ({reason(error)})", code="machine-gone"
        ) from error
    if members.get(str(rank)) != nonce:
        raise LinkError(
            f"rank={rank}: another machine has this rank in the job that runs now; give every machine of the party a "
            "rank of its own, and let one that comes too late wait for the next job",
            code="rank-taken",
        )
    return MachineGroup(store, rank, count, host, leader["timeout_s"], leader["idle_s"])


def _facts(count: int) -> dict[str, Any]:
    return {"release": release_here(), "count": count}


def _machine_key(rank: int) -> str:
    return f"machine/{rank}"


def _read(store: Store, key: str) -> dict[str, Any]:
    """Read a JSON object from the store, waiting for it."""
    try:
        found = from_json(store.get(key))
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _check_alike(theirs: dict[str, Any], ours: dict[str, Any], whose: str) -> None:
    """Raise ``ConfigError`` where another machine says other facts of the party than this one."""
    for name, value in ours.items():
        if theirs.get(name) != value:
            raise ConfigError(
                f"machines: {whose} has {name} {theirs.get(name)}, and this machine {value}; install the same release "
                "on all machines of the party, and give all of them the same party file",
                key="machines",
            )


def release_here() -> str:
    """What must be the same on all machines of a party."""
    return f"veilgraph {version('veilgraph')} with torch {version('torch')}"
