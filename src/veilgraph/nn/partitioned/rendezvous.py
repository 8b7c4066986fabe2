"""How a party's machines find each other: the leader opens a store at its address, the others come to it."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout
from veilgraph.nn.partitioned.group import LEADER, MachineGroup, first_line

_POLL_S: Final = 0.05
_SIOCGIFADDR: Final = 0x8915


def open_store(host: str, port: int) -> tuple[TCPStore, int]:
    """The leader's rendezvous, on the interface of ``host`` alone.

    Args:
        host: name or IPv4 address of this machine, where the others reach it.
        port: 0 for a free one.

    Returns:
        It, and its port. It ends with the object.

    Raises:
        ConfigError: the address is not this machine's, or is taken.
    """
    try:
        address = socket.gethostbyname(host)
        listener = socket.create_server((address, port))
    except OSError as error:
        raise ConfigError(
            f"machines.address={host}:{port}: cannot listen there ({error}); give an address of the machine that joins "
            "the job, and a free port"
        ) from error
    _use_interface(address)
    port = listener.getsockname()[1]
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, port


def lead(
    store: TCPStore,
    count: int,
    *,
    timeout_s: float,
    idle_s: float,
    check: Callable[[], None] = lambda: None,
) -> MachineGroup:
    """Waits for the others and forms the group.

    Args:
        store: as ``open_store`` gives it.
        count: M, with the leader.
        timeout_s: longest wait for them to come, and for one another at work.
        idle_s: longest wait of the others for work.
        check: called now and then while they come; raises where they will not.

    Raises:
        LinkTimeout: one did not come in time.
    """
    facts = {"release": _release(), "count": str(count), "timeout_s": str(timeout_s), "idle_s": str(idle_s)}
    for name, value in facts.items():
        store.set(name, value)
    deadline = time.monotonic() + timeout_s
    while missing := [rank for rank in range(1, count) if not store.check([f"machine {rank}"])]:
        check()
        if time.monotonic() > deadline:
            raise LinkTimeout(
                f"machine {', '.join(map(str, missing))} of this party did not come in {timeout_s:g} s; start there: "
                f"veilgraph machine --party PARTY.yaml --rank {missing[0]}"
            )
        time.sleep(_POLL_S)
    return MachineGroup(store, LEADER, count, timeout_s, idle_s)


def follow(host: str, port: int, rank: int) -> MachineGroup:
    """Joins the group of a leader whose rendezvous is open, as machine ``rank``.

    Raises:
        LinkError: the leader cannot be reached.
        ConfigError: it has another release of veilgraph, or no place for this rank.
    """
    try:
        with socket.create_connection((host, port)) as probe:
            _use_interface(probe.getsockname()[0])
        store = TCPStore(host, port, is_master=False, wait_for_workers=False)
        release, count, timeout_s, idle_s = (
            store.get(name).decode() for name in ("release", "count", "timeout_s", "idle_s")
        )
    except (OSError, RuntimeError) as error:
        raise LinkError(f"{host}:{port}: the party's own process cannot be reached ({first_line(error)})") from error
    if release != _release():
        raise ConfigError(
            f"{_release()} here, and {release} where the party joins; install the same on all its machines"
        )
    if not 0 < rank < int(count):
        raise ConfigError(f"rank={rank}: the party has {count} machines, so it is from 1 to {int(count) - 1}")
    if store.add(f"machine {rank}", 1) > 1:
        raise LinkError(f"rank={rank}: another machine has taken it; give every machine of the party a rank of its own")
    return MachineGroup(store, rank, int(count), float(timeout_s), float(idle_s))


def _release() -> str:
    return f"veilgraph {version('veilgraph')} with torch {version('torch')}"


def _use_interface(address: str) -> None:
    """Has gloo connect through the interface that has an IPv4 address, unless GLOO_SOCKET_IFNAME names one.

    Of itself it takes the address that the host's name resolves to, on many systems one that others cannot reach.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                return
