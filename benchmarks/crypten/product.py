"""One step of products with static features under CrypTen; run by the Python of CrypTen's own environment.

``python -m benchmarks.crypten.product values.npz --repeats K`` prints one line of JSON,
``benchmarks.product_check.PeerFigures``; ``values.npz`` is as its ``load`` says.

Two holders and the trusted third party (CrypTen's provider TTP) are a process each, linked by gloo over localhost. The
features, Xᵀ and W are shared before any clock starts, and shares of g made without a message. One step:

    ahead     both holders and the third party make the triples of both products
    online    X·W, h⁰ is opened to both holders, Xᵀ·g; the result stays shared

Values are fixed-point numbers of 64 bits, 16 of them after the point; a product is truncated by each holder alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from benchmarks.product_check import PeerFigures, check, load

HOLDERS = 2
_NO_EXPORT = ("from_onnx", "from_pytorch", "from_tensorflow", "TF_AND_TF2ONNX")


def hold(report: Connection, rank: int, meeting: str, path: Path, repeats: int) -> None:
    """One holder; it reports seconds ahead, seconds online, and bytes of every step, then the last step's results.

    Args:
        report: to the process that measures.
        rank: of this holder.
        meeting: URL of a file where the processes find each other.
        path: of the values.
        repeats: steps.
    """
    import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    crypten = _join(rank, meeting)
    provider = crypten.mpc.get_default_provider()
    wire = crypten.communicator.get()
    values = {name: torch.from_numpy(array) for name, array in load(path).items()}
    x = crypten.cat([crypten.cryptensor(values[f"x{holder}"], src=holder) for holder in range(HOLDERS)], dim=1)
    transposed = x.t()
    transposed.share = transposed.share.contiguous()
    w = crypten.cryptensor(values["w"], src=0)
    g = sum(crypten.cryptensor(values[f"g{holder}"], src=holder) for holder in range(HOLDERS))
    for step in range(repeats):
        provider.trace(step == 0)
        wire.barrier()
        wire.reset_communication_stats()
        started = time.perf_counter()
        if step:
            provider.fill_cache()
        wire.barrier()
        ready, bytes_ahead = time.perf_counter(), wire.get_communication_stats()["bytes"]
        h0 = x.matmul(w)
        h0.get_plain_text()
        update = transposed.matmul(g)
        wire.barrier()
        done, in_all = time.perf_counter(), wire.get_communication_stats()["bytes"]
        report.send((ready - started, done - ready, bytes_ahead, (in_all - bytes_ahead) // 2))
    # Decoded here: get_plain_text is off by 1 at numbers such as −131071 / 2^16.
    results = [(tensor.reveal().double() / tensor.encoder.scale).numpy() for tensor in (h0, update)]
    if rank == 0:
        report.send(results)
    crypten.uninit()


def serve(meeting: str) -> None:
    """The trusted third party, until the holders are done."""
    _join(HOLDERS, meeting).mpc.provider.TTPServer()


def measure(path: Path, repeats: int) -> PeerFigures:
    """Starts the three and checks the last step's results.

    Args:
        path: of the values.
        repeats: steps after a first one.

    Raises:
        RuntimeError: if results are wrong.
        EOFError: if a holder died; its own error is on stderr.
    """
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        processes, reports = [context.Process(target=serve, args=(meeting,), daemon=True)], []
        for rank in range(HOLDERS):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=hold, args=(theirs, rank, meeting, path, 1 + repeats), daemon=True))
            reports.append(ours)
        for process in processes:
            process.start()
        for report in reports:
            report.recv()  # the first step, which shows what triples are wanted
        steps = [[report.recv() for report in reports] for _ in range(repeats)]
        error = check(load(path), *reports[0].recv())
        for process in processes:
            process.join()
    ahead, online = ([max(holder[part] for holder in step) for step in steps] for part in range(2))
    return PeerFigures(
        statistics.median(map(sum, zip(ahead, online, strict=True))),
        statistics.median(online),
        int(steps[-1][1][3]),
        int(steps[-1][0][2] - steps[-1][1][2]),
        error,
    )


def _join(rank: int, meeting: str) -> ModuleType:
    """CrypTen, connected to the others unless this is the third party, which connects itself."""
    # Its converter needs an onnx and parts of PyTorch that are no more; a product needs no converter.
    converter = ModuleType("crypten.nn.onnx_converter")
    converter.__dict__.update(dict.fromkeys(_NO_EXPORT))
    sys.modules[converter.__name__] = converter
    crypten = import_module("crypten")
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(HOLDERS),
        "RENDEZVOUS": meeting,
        "DISTRIBUTED_BACKEND": "gloo",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    crypten.cfg.mpc.provider = "TTP"
    crypten.cfg.communicator.verbose = True  # counts bytes
    if rank < HOLDERS:
        crypten.init()
    return crypten


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("values", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(json.dumps(asdict(measure(arguments.values, arguments.repeats))))


if __name__ == "__main__":
    _main()
