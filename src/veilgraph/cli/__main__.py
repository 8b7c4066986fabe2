"""Runs the command line: ``python -m veilgraph.cli``."""

from veilgraph.cli import main

main()
