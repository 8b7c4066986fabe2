"""The command line: arguments in, tables and one-line errors out.

Commands import what they need when they run, so that ``--help`` and usage errors are quick.
"""

from __future__ import annotations

import os

from veilgraph.cli import audit as audit
from veilgraph.cli import certificates as certificates
from veilgraph.cli import consent as consent
from veilgraph.cli import machine as machine
from veilgraph.cli import network as network
from veilgraph.cli import privacy as privacy
from veilgraph.cli import training as training
from veilgraph.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the command ``veilgraph``."""
    os.umask(0o077)  # of what other libraries write; our own files are private whatever it is
    app()
