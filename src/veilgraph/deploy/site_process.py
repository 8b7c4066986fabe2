"""The engine's process of a site: ``net join`` begins it when that of the last start has ended, with all its jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from veilgraph.core.errors import RunError
from veilgraph.core.files import appended_file, locked, private_folder
from veilgraph.core.text import Event
from veilgraph.deploy.guard.heard import forget
from veilgraph.deploy.guard.orphans import begun_here
from veilgraph.deploy.guard.policy import FOLDER_PREFIX, FOLDER_VARIABLE, PROGRAM
from veilgraph.deploy.key_file import PASSPHRASE_VARIABLE
from veilgraph.deploy.kit import SETTINGS_FILES, Kit
from veilgraph.deploy.progress import site_processes

_POLL_S: Final = 0.2
_GRACE_S: Final = 15.0
LAST_S: Final = 60.0
"""Longest wait for the processes of the last start: three times what they are given (``orphans.GRACE_S``)."""

Report = Callable[[str], None]


def last_ended(kit: Kit, stopped: threading.Event, look: Callable[[], None], report: Report) -> bool:
    """Waits until no process of the site's last start is there; False where the site was told to stop meanwhile.

    Raises:
        RunError: one does not end.
    """
    deadline = time.monotonic() + LAST_S
    told = False
    while not stopped.is_set():
        with suppress(RunError), _alive(kit):
            return True
        if not told:
            told = True
            report(Event("waiting", f"{kit.name}: processes of the site's last start are ending; waiting for them"))
        if time.monotonic() > deadline:
            there = ", ".join(str(process.pid) for process in site_processes(kit))
            raise RunError(
                f"{kit.name}: processes of the site's last start have not ended in {LAST_S:g} s ({there}); end them "
                "with: kill -9, and join again",
                code="last-start",
                party=kit.name,
            )
        look()
        stopped.wait(_POLL_S)
    return False


def _alive(kit: Kit) -> AbstractContextManager[int]:
    """What every process of a site's start holds for as long as it lives, by inheriting it."""
    return locked(kit.path / "local", f"{kit.path}: processes of the site's last start are there")


@contextmanager
def site_process(kit: Kit) -> Iterator[subprocess.Popen[bytes]]:
    """The site's program, in a session of its own; it and its jobs end with this process, and one with the other.

    Raises:
        RunError: processes of the last start are there.
    """
    variables = ["secure_train=true", f"org={kit.name}", "config_folder=config"]
    role = program_of(kit)
    if role != "server":
        variables.append(f"uid={kit.name}")
    command = [sys.executable, "-u", "-m", PROGRAM, role, "-m", str(kit.path), "-s", SETTINGS_FILES[kit.kind]]
    command += ["--set", *variables]
    private_folder(kit.path / "transfer")
    forget(kit.path)
    with appended_file(site_log(kit)) as log, TemporaryDirectory(prefix=FOLDER_PREFIX) as sockets:
        with _alive(kit) as alive:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=kit.path,
                env={name: value for name, value in os.environ.items() if name != PASSPHRASE_VARIABLE}
                | {FOLDER_VARIABLE: sockets, **begun_here()},
                start_new_session=True,
                umask=0o077,  # of what FLARE writes into the kit
                pass_fds=[alive],
            )
        try:
            yield process
        finally:
            _end(process)


def program_of(kit: Kit) -> str:
    """The role of the site's program in the engine, to which a dealer apart is a client as holders are."""
    return "server" if kit.kind == "server" else "holder"


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_GRACE_S if number == signal.SIGTERM else None)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def site_log(kit: Kit) -> Path:
    """What the processes of a site say, those of its jobs too."""
    return kit.path / "site.log"
