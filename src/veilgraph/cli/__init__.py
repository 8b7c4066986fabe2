"""The command line: arguments in, tables and one-line errors out.

What commands need is imported when they use it (``core.deferred``), so that ``--help`` and usage errors are quick.
"""

from __future__ import annotations

import os
import signal

from veilgraph.cli import data as data  # isort: skip - the order in which help lists the commands
from veilgraph.cli import train as train  # isort: skip
from veilgraph.cli import predict as predict  # isort: skip
from veilgraph.cli import report as report  # isort: skip
from veilgraph.cli import check as check  # isort: skip
from veilgraph.cli import network as network  # isort: skip
from veilgraph.cli import certificates as certificates  # isort: skip
from veilgraph.cli.app import add_installed, app
from veilgraph.core.threads import run_and_leave

add_installed()

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the command ``veilgraph``; ends the process."""
    os.umask(0o077)  # of what other libraries write; our own files are private whatever it is
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: temporary files, with rows in them, go
    run_and_leave(app)
