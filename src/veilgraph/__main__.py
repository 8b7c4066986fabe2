"""Runs the command line: ``python -m veilgraph``."""

from veilgraph.cli import main

main()
