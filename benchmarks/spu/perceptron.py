"""The default network of sealed jobs under SPU, on two holders' data; run by the Python of SPU's own environment.

``python -m benchmarks.spu.perceptron values.npz --steps K`` prints one line of JSON, ``perceptron_check.Figures``;
``values.npz`` is as ``perceptron_check.load`` says.

Two holders are a process and an SPU node each, linked by SPU's brpc over localhost, with semi-honest two-party SEMI2K
as it comes (``TrustedFirstParty``): the correlated randomness is holder 0's, which could unmask all. Shared before any
clock starts: columns, dense adjacency matrices, one-hot training rows, labels and weights. Then, all in SPU:

    set up    D of the summed adjacency, [1 | P^K·X] of the training rows, by K products of [T, N] with [N, N]
    step      one of SGD with momentum on these rows, softmax as SPU has it
    predict   P^K·X·W₁ of all nodes, the hidden layer beside the linear one, and argmax; the classes are opened

Values are fixed-point numbers of 64 bits, 18 of them after the point. There are no hidden sparse matrices in SPU: edges
take a product with all N² places, which is what hides them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import jax  # type: ignore[import-not-found]
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
from spu import libspu  # type: ignore[import-not-found]
from spu.utils import frontend  # type: ignore[import-not-found]

from benchmarks.perceptron_check import Figures, Values, check, load
from benchmarks.spu import maximum
from benchmarks.spu.product import HOLDERS, Node

Named = dict[str, jnp.ndarray]
_WEIGHTS = ("w1", "w2", "v1", "v2")


def set_up(values: Named, options: Values) -> Named:
    """``a`` and ``r``: A + I and D^(−1/2); ``x``: all columns; ``rows``: [1 | P^K·X] of the training rows."""
    nodes = values["a0"].shape[0]
    adjacency = values["a0"] + values["a1"] + jnp.eye(nodes)
    root = jax.lax.rsqrt(jnp.sum(adjacency, axis=0))
    x = jnp.concatenate([values["x0"], values["x1"]], axis=1)
    start = moved = values["rows"]
    for _ in range(options.hops):
        moved = (1 - options.teleport) * (((moved * root) @ adjacency) * root) + options.teleport * start
    one = jnp.ones((start.shape[0], 1))
    return {"a": adjacency, "r": root, "x": x, "rows": jnp.concatenate([one, moved @ x], axis=1)}


def step(values: Named, options: Values) -> Named:
    """New weights and velocities."""
    rows, w1, w2 = values["rows"], values["w1"], values["w2"]
    raw, classes = rows @ w1, w2.shape[1]
    positive = raw[:, classes:] > 0
    hidden = jnp.where(positive, raw[:, classes:], 0.0)
    error = (jax.nn.softmax(raw[:, :classes] + hidden @ w2) - values["y"]) / rows.shape[0]
    both = jnp.concatenate([error, jnp.where(positive, error @ w2.T, 0.0)], axis=1)
    gradients = rows.T @ both, hidden.T @ error
    found: Named = {}
    for place, (weight, gradient) in enumerate(zip((w1, w2), gradients, strict=True), 1):
        speed = options.momentum * values[f"v{place}"] + gradient + options.weight_decay * weight
        found |= {f"v{place}": speed, f"w{place}": weight - options.learning_rate * speed}
    return found


def predict(values: Named, options: Values) -> Named:
    """The class of every node."""
    classes = values["w2"].shape[1]
    start = moved = values["x"] @ values["w1"][1:]
    root = values["r"][:, None]
    for _ in range(options.hops):
        moved = (1 - options.teleport) * (root * (values["a"] @ (root * moved))) + options.teleport * start
    made = moved + values["w1"][:1]
    hidden = jnp.maximum(made[:, classes:], 0.0)
    return {"classes": jnp.argmax(made[:, :classes] + hidden @ values["w2"], axis=1)}


def compiled(function: Callable[[Named, Values], Named], given: Named, options: Values) -> libspu.Executable:
    """A program of the secret variables that are given, which makes those that the function names."""
    names, outputs = list(given), list[str]()

    def called(*values: jnp.ndarray) -> tuple[jnp.ndarray, ...]:
        found = function(dict(zip(names, values, strict=True)), options)
        outputs[:] = list(found)
        return tuple(found.values())

    secret = [libspu.Visibility.VIS_SECRET] * len(names)
    return frontend.compile(frontend.Kind.JAX, called, list(given.values()), {}, names, secret, lambda _: outputs)[0]


def hold(server: Connection, rank: int, hosts: Sequence[str], path: Path, log: Path) -> None:
    """One holder: a run for every name of a program that the server gives; at the end its weights and classes."""
    options, values = load(path)
    node = Node(rank, hosts, log)
    for name, value in values.items():
        node.share(name, value, int(name[1]) if name in ("x1", "a1") else 0)
    shapes = values | {name: np.asarray(made) for name, made in set_up(values, options).items()}
    needs = {
        set_up: (values, ("x0", "x1", "a0", "a1", "rows")),
        step: (shapes, ("rows", "y", *_WEIGHTS)),
        predict: (shapes, ("a", "r", "x", "w1", "w2")),
    }
    programs = {
        function.__name__: compiled(function, {name: given[name] for name in names}, options)
        for function, (given, names) in needs.items()
    }
    server.send(True)
    found: Named = {}
    while asked := server.recv():
        node.run(programs[asked])
        if asked == "predict":
            found["classes"], _ = node.open("classes")
        server.send(True)
    found |= {name: node.open(name)[0] for name in ("w1", "w2")}
    server.send(found if rank == 0 else None)
    node.link.stop_link()


def measure(path: Path, steps: int) -> Figures:
    """Starts the holders, runs set-up, so many steps after a first one and the prediction, and checks the results.

    Raises:
        RuntimeError: if results are wrong.
        EOFError: if a holder died; its own error is on stderr.
    """
    context, hosts = get_context("spawn"), maximum.free_hosts(HOLDERS)
    asked = ["set_up", *["step"] * (1 + steps), "predict"]
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(HOLDERS)]
        holders, processes = [], []
        for rank in range(HOLDERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=hold, args=(theirs, rank, hosts, path, logs[rank]), daemon=True)
            process.start()
            theirs.close()
            holders.append(ours)
            processes.append(process)
        for holder in holders:
            holder.recv()
        seconds = []
        for program in asked:
            started = time.perf_counter()
            for holder in holders:
                holder.send(program)
            for holder in holders:
                holder.recv()
            seconds.append(time.perf_counter() - started)
        for holder in holders:
            holder.send("")
        found = holders[0].recv()
        for process in processes:
            process.join()
        texts = [log.read_text(encoding="utf-8") for log in logs]
    runs = [[maximum.runtime_bytes(text, count) for count in (1, 2, len(asked))] for text in texts]
    predicted, with_step, everything = max(runs, key=lambda counts: counts[2])
    each = with_step - predicted
    options, values = load(path)
    plain = values | {name: np.asarray(made) for name, made in set_up(values, options).items()}
    for _ in range(1 + steps):
        plain |= step(plain, options)
    plain |= predict(plain, options)
    return Figures(
        seconds[0],
        statistics.median(seconds[2:-1]),
        seconds[-1],
        everything - predicted - (1 + steps) * each,
        each,
        predicted,
        check(found, {name: np.asarray(value) for name, value in plain.items()}),
    )


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("values", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    print(json.dumps(asdict(measure(arguments.values, arguments.steps))))


if __name__ == "__main__":
    _main()
