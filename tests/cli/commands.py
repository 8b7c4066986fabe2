"""Calls of the command line in this process."""

import re
from functools import cache
from pathlib import Path
from unittest import mock

from typer import main
from typer.testing import CliRunner, Result

from veilgraph.cli import app

_made_once = cache(main.get_group)
"""All commands of the program, which typer makes anew at every call: that takes longer than most of them do."""
FRAME = re.compile(r"[╭╮╰╯│─\s]+")


def veilgraph(*arguments: str | Path) -> Result:
    """What ``veilgraph`` with these arguments does; anything but an orderly exit is raised."""
    with mock.patch.object(main, "get_group", _made_once):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def one_error(result: Result) -> str:
    """The message of a command that failed as it should: exit code 1 and one line on standard error."""
    assert result.exit_code == 1, result.output
    line, rest = result.stderr.split("\n", maxsplit=1)
    assert rest == ""
    assert result.stdout == ""
    assert line.startswith("veilgraph: error: ")
    return line.removeprefix("veilgraph: error: ")


def usage_error(result: Result) -> str:
    """The message of a command that was called wrongly: exit code 2; frames and line breaks are taken out."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return FRAME.sub(" ", result.stderr)
