"""What a process does that leaves a party in the midst of torch's operators: run by name in ``tests.forks``."""

import atexit
import json
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

import torch
import typer

from veilgraph import cli
from veilgraph.cli.app import reported
from veilgraph.core import threads as leaving
from veilgraph.core.errors import DataError
from veilgraph.core.types import Link
from veilgraph.runtime.launch.processes import run_threads

REFUSED = 7


def _leaves(seconds: float) -> None:
    """A training whose party A fails at once, and whose party B computes for so long."""
    stop = time.monotonic() + seconds

    def refused(link: Link) -> NoReturn:
        raise DataError("a bad row")

    def busy(link: Link) -> None:
        matrix = torch.ones(300, 300)
        while time.monotonic() < stop:
            matrix @ matrix

    try:
        run_threads({"A": refused, "B": busy}, 10, lambda: None)
    except DataError as error:
        sys.stderr.write(f"{error}\n")
    sys.stdout.write("all of it")  # in the buffer
    atexit.register(sys.stdout.write, ", and the end")


def interpreter_ends() -> NoReturn:
    """As if nothing were done about it."""
    _leaves(3600)
    atexit.unregister(leaving._await)
    sys.exit(REFUSED)


def leaves() -> NoReturn:
    """Who leaves waits for nobody."""
    leaving.LEFT_WAIT_S = 3600  # type: ignore[misc]
    _leaves(3600)
    leaving.leave(REFUSED)


def leaves_well() -> NoReturn:
    _leaves(3600)
    leaving.leave(0)


def leaves_alone() -> NoReturn:
    """With no thread beside: by the interpreter's own end, which knows what is joined."""

    def late() -> None:
        time.sleep(0.5)
        sys.stdout.write("joined")

    threading.Thread(target=late).start()
    leaving.leave(REFUSED)


def leaves_into_nothing() -> NoReturn:
    """To a standard output that is full."""
    sys.stdout = open("/dev/full", "w")  # noqa: PTH123, SIM115
    _leaves(3600)
    leaving.leave(0)


def script_ends() -> None:
    """A user's own script: the party ends while its interpreter waits."""
    _leaves(0.5)
    sys.exit(REFUSED)


def script_does_not_wait_for_ever() -> None:
    """What was left never ends; a sleep bears to be cut off."""
    leaving.LEFT_WAIT_S = 0.1  # type: ignore[misc]
    thread = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
    thread.start()
    leaving.wait_at_exit([thread])
    sys.exit(REFUSED)


def command_refuses() -> None:
    """The command line, whose command ends as ``typer`` has it."""
    cli.app = lambda: (_leaves(3600), sys.exit(REFUSED))  # type: ignore[assignment, func-returns-value]
    cli.main()


def command_breaks() -> None:
    """The command line, with a fault of ours."""
    cli.app = lambda: (_leaves(3600), _broken())  # type: ignore[assignment, func-returns-value]
    cli.main()


def command_is_terminated() -> None:
    """The command line, which SIGTERM from outside ends while it has a temporary folder."""

    app = typer.Typer()

    @app.command()
    def computes() -> None:
        with reported(), tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(folder)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    cli.app = app
    cli.main()


def process_ends() -> None:
    """Two parties' processes, as the nursery ends them: ``main`` is their work. Says how they ended."""
    with tempfile.TemporaryFile() as ends, tempfile.TemporaryFile() as plan:
        births = {party: {"arguments": [party], "output": os.dup(2), "keeps": []} for party in ("refused", "broken")}
        content = {"module": __name__, "ends": os.dup(ends.fileno()), "workers": births, "forks": True}
        plan.write(json.dumps(content).encode())
        plan.seek(0)
        sys.argv[1:] = [str(os.dup(plan.fileno()))]
        nursery = os.fork()
        if nursery == 0:
            del sys.modules["veilgraph.runtime.launch.fork_server"]
            runpy.run_module("veilgraph.runtime.launch.fork_server", run_name="__main__")
        os.waitpid(nursery, 0)
        ends.seek(0)
        sys.stdout.write(" ".join(sorted(ends.read().decode().splitlines())))


def main(arguments: Sequence[str]) -> int:
    """A party's work in ``process_ends``."""
    _leaves(3600)
    return _broken() if arguments == ["broken"] else REFUSED


def _broken() -> int:
    raise ZeroDivisionError("a fault of ours")
