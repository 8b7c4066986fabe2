"""The maximum of the holders' values and who attained it, under SPU; run by the Python of SPU's own environment.

``python benchmarks/spu/maximum.py values.npz --protocol SEMI2K --repeats K`` prints one line of JSON: ``seconds``, the
median over K maxima after one that compiles, and ``sent_bytes``, of the holder that sends most. ``values.npz`` has one
float32 matrix for each holder, all of one shape, with −inf for what it does not know.

Every holder is a process and an SPU node, linked by SPU's brpc over localhost; this process is the server and no node.
One maximum, all of it timed and counted:

    share     every holder makes shares of its values and sends each other holder one
    run       all holders: P − 1 comparisons in turn, the fewest that do, each of the maximum so far with the next value
    open      every holder sends its share of the maximum to the server, and of who won to the holder concerned

So the server learns the maximum and each holder where it won, as in veilgraph, with these differences:

- Values are fixed-point numbers of 64 bits, 18 of them after the point; −inf is −2^44, the smallest that SPU encodes.
- Where all have −inf the first holder is told that it won, from which it follows that nobody knows the node.
- SEMI2K as it comes (``TrustedFirstParty``): the correlated randomness is the first holder's, which could unmask all.
  ABY3, for three holders: any two of them together know everything.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
from spu import Io, Runtime, libspu  # type: ignore[import-not-found]
from spu.utils import frontend  # type: ignore[import-not-found]

LOWEST = -(2.0**44)
TOLERANCE = 2.0**-17
"""Two units of the last place of SPU's fixed point."""
TIMEOUT_MS = 600_000
_SENT = re.compile(r"Link details: total send bytes (\d+)")


def runtime_bytes(log: str, runs: int = 1) -> int:
    """Bytes that a node sent in the last of its runs, from the log that SPU's profiler writes.

    Args:
        log: its text.
        runs: how many of the last.

    Raises:
        RuntimeError: if the log names fewer.
    """
    sent = _SENT.findall(log)
    if len(sent) < runs:
        raise RuntimeError("SPU's log has no link details; is enable_pphlo_profile on, and is this the pinned version?")
    return sum(map(int, sent[-runs:]))


def maximum_and_wins(*values: jnp.ndarray) -> tuple[jnp.ndarray, ...]:
    """Runs under SPU: the maximum, then of each holder the mask of where it attains it, the first of several."""
    best, wins = values[0], [jnp.ones(values[0].shape, bool)]
    for value in values[1:]:
        higher = best < value
        wins = [*(won & ~higher for won in wins), higher]
        best = jnp.where(higher, value, best)
    return best, *wins


def hold(server: Connection, rank: int, hosts: Sequence[str], protocol: str, own: np.ndarray, log: Path) -> None:
    """One holder: a maximum for every word of the server, until that ends.

    Args:
        server: gives the word; gets this holder's share of the maximum, then the bytes it sent, then its wins.
        rank: of this holder.
        hosts: ``address:port`` of every holder.
        protocol: SPU's name of it.
        own: float32 [N, D], without −inf.
        log: file for what SPU's profiler says.
    """
    options = libspu.logging.LogOptions()
    options.enable_console_logger, options.system_log_path = False, str(log)
    libspu.logging.setup_logging(options)
    config = node_config(protocol)
    link = link_holders(hosts, rank)
    io, runtime = Io(len(hosts), config), Runtime(link, config)
    others = [other for other in range(len(hosts)) if other != rank]
    inputs = [f"value{holder}" for holder in range(len(hosts))]
    wins = [f"won{holder}" for holder in range(len(hosts))]
    program, _ = frontend.compile(
        frontend.Kind.JAX,
        maximum_and_wins,
        [own] * len(hosts),
        {},
        inputs,
        [libspu.Visibility.VIS_SECRET] * len(hosts),
        lambda outputs: ["maximum", *wins],
    )
    while server.recv():
        shares = io.make_shares(own, libspu.Visibility.VIS_SECRET)
        sent = sum(send_share(link, other, shares[other]) for other in others)
        runtime.set_var(inputs[rank], shares[rank])
        for other in others:
            runtime.set_var(inputs[other], receive_share(link, other))
        runtime.run(program)
        maximum = runtime.get_var("maximum")
        server.send(share_parts(maximum))
        sent += sum(map(len, share_parts(maximum)))
        sent += sum(send_share(link, other, runtime.get_var(wins[other])) for other in others)
        won = {other: receive_share(link, other) for other in others} | {rank: runtime.get_var(wins[rank])}
        mine = io.reconstruct([won[holder] for holder in range(len(hosts))])
        server.send(sent)
        server.send(mine.astype(bool))
    link.stop_link()


def measure(values: Sequence[np.ndarray], protocol: str, repeats: int) -> dict[str, float | int]:
    """The server: starts the holders, times and checks one maximum after another.

    Args:
        values: float32 [N, D] of every holder, −inf where it does not know.
        protocol: SPU's name of it.
        repeats: maxima after the first.

    Returns:
        ``seconds`` and ``sent_bytes``.

    Raises:
        RuntimeError: if a result is not the maximum or a holder was told wrong wins.
        EOFError: if a holder died; its own error is on stderr.
    """
    finite = [np.maximum(own, np.float32(LOWEST)) for own in values]
    context, hosts, io = get_context("spawn"), free_hosts(len(values)), Io(len(values), node_config(protocol))
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(len(values))]
        holders, processes = [], []
        for rank, own in enumerate(finite):
            ours, theirs = context.Pipe()
            process = context.Process(target=hold, args=(theirs, rank, hosts, protocol, own, logs[rank]), daemon=True)
            process.start()
            theirs.close()
            holders.append(ours)
            processes.append(process)
        seconds = []
        for _ in range(1 + repeats):
            start = time.perf_counter()
            for holder in holders:
                holder.send(True)
            maximum = io.reconstruct([to_share(holder.recv()) for holder in holders])
            opened = [holder.recv() for holder in holders]
            seconds.append(time.perf_counter() - start)
            check(finite, maximum, [holder.recv() for holder in holders])
        for holder in holders:
            holder.send(False)
        for process in processes:  # once all were told: a link closes when its peers do
            process.join()
        inside = [runtime_bytes(log.read_text(encoding="utf-8")) for log in logs]
    return {
        "seconds": statistics.median(seconds[1:]),
        "sent_bytes": max(run + other for run, other in zip(inside, opened, strict=True)),
    }


def check(values: Sequence[np.ndarray], maximum: np.ndarray, wins: Sequence[np.ndarray]) -> None:
    """Compares with the plain maximum, to the precision of the fixed point.

    Raises:
        RuntimeError: naming what is wrong.
    """
    wanted = np.max(values, axis=0)
    if not np.allclose(maximum, wanted, rtol=0, atol=TOLERANCE):
        raise RuntimeError(f"the maximum is off by {np.abs(maximum - wanted).max()}")
    if not np.array_equal(np.sum(wins, axis=0), np.ones_like(wanted)):
        raise RuntimeError("not every entry has one winner")
    attained = sum(np.where(won, own, 0) for won, own in zip(wins, values, strict=True))
    if not np.allclose(attained, wanted, rtol=0, atol=TOLERANCE):
        raise RuntimeError("a holder was told that it won where it did not")


def node_config(protocol: str) -> libspu.RuntimeConfig:
    """64 bits, 18 after the point; the profiler, which counts bytes, is on."""
    kind = libspu.ProtocolKind.__members__[protocol]
    config = libspu.RuntimeConfig(protocol=kind, field=libspu.FieldType.FM64, fxp_fraction_bits=18)
    config.enable_pphlo_profile = True
    return config


def link_holders(hosts: Sequence[str], rank: int) -> libspu.link.Context:
    """This holder's end of SPU's brpc."""
    description = libspu.link.Desc()
    description.recv_timeout_ms = TIMEOUT_MS
    for number, host in enumerate(hosts):
        description.add_party(f"holder{number}", host)
    return libspu.link.create_brpc(description, rank)


def free_hosts(count: int) -> list[str]:
    """``address:port`` of as many free ports of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    hosts = [f"127.0.0.1:{server.getsockname()[1]}" for server in sockets]
    for server in sockets:
        server.close()
    return hosts


def share_parts(share: libspu.Share) -> list[bytes]:
    """A share as bytes, which pipes and links can carry."""
    return [share.meta, *share.share_chunks]


def to_share(parts: Sequence[bytes]) -> libspu.Share:
    """The share of these ``share_parts``."""
    share = libspu.Share()
    share.meta, *chunks = parts
    share.share_chunks = chunks
    return share


def send_share(link: libspu.link.Context, rank: int, share: libspu.Share) -> int:
    """Sends a share outside of a run; the bytes of it."""
    parts = share_parts(share)
    link.send(rank, str(len(parts)))
    for part in parts:
        link.send(rank, part)
    return sum(map(len, parts))


def receive_share(link: libspu.link.Context, rank: int) -> libspu.Share:
    """Gets what ``send_share`` sent."""
    return to_share([link.recv(rank) for _ in range(int(link.recv(rank)))])


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("values", type=Path)
    parser.add_argument("--protocol", default="SEMI2K")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with np.load(arguments.values) as arrays:
        values = list(arrays.values())
    print(json.dumps(measure(values, arguments.protocol, arguments.repeats)))


if __name__ == "__main__":
    _main()
