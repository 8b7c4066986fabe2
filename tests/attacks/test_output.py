"""Escape sequences, markup and formulae from tables: in no terminal, log, page or spreadsheet."""

import ast
import csv
import io
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml
from rich.table import Table
from rich.text import Text

import veilgraph as package
from tests.cli.commands import veilgraph
from veilgraph.cli import output
from veilgraph.core.errors import DataError, error_of_json
from veilgraph.core.text import printable, printable_lines, text_of_cell
from veilgraph.report.tables import environment
from veilgraph.runtime.store.predictions import Predictions

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt.exe"
"""Sets the title, clears the screen, colours, and turns the direction of what follows."""
CONTROLS = set("\x1b\x07\x9b\u202e")


def check(text: str) -> None:
    assert not CONTROLS & set(text)
    assert "owned" in text, "it is shown, and not left out"


def table_with(folder: Path, **changed: str) -> Path:
    """A party file whose tables have hostile text in one place."""
    what = {"column": "x", "category": "a", "label": "no", "relation": "card", "id": "C2"} | changed
    folder.mkdir()
    nodes = [["id", what["column"], "segment", "class", "split"]]
    for number in range(12):
        name = what["id"] if number == 1 else f"C{number + 1}"
        split = ("train", "val", "test")[number % 3]
        category, label = (what["category"], what["label"]) if number % 2 else ("b", "yes")
        nodes.append([name, str(number), category, label, split])
    edges = [["from", "to", "kind"], ["C3", "C4", what["relation"]], ["C5", "C6", "other"]]
    for name, rows in (("nodes.csv", nodes), ("edges.csv", edges)):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    party = {
        "party": "A",
        "nodes": {
            "file": "nodes.csv",
            "id": "id",
            "features": [{"columns": [what["column"]]}, {"columns": "segment", "categories": [what["category"], "b"]}],
            "label": {"column": "class", "classes": ["yes", what["label"]]},
            "split": {"column": "split", "train": "train", "val": "val", "test": "test"},
        },
        "edges": [
            {
                "file": "edges.csv",
                "source": "from",
                "target": "to",
                "relation": {"column": "kind", "weights": {what["relation"]: 1.0, "other": 1.0}},
            }
        ],
    }
    (folder / "party.yaml").write_text(yaml.safe_dump(party))
    return folder / "party.yaml"


MARKUP = "[/b][link=http://e.org]x :smile:"


@pytest.mark.parametrize("hostile", [ESCAPE, MARKUP], ids=["escape sequence", "markup"])
@pytest.mark.parametrize("where", ["column", "category", "label", "relation"])
def test_data_check_shows_text_of_a_table_and_does_nothing_of_it(tmp_path: Path, where: str, hostile: str) -> None:
    result = veilgraph("data", "check", table_with(tmp_path / "data", **{where: hostile}))
    assert result.exit_code == 0, result.output
    assert not CONTROLS & set(result.output)
    assert hostile == ESCAPE or "[/b]" in result.output


def test_an_error_that_quotes_a_table_is_printable(tmp_path: Path) -> None:
    path = table_with(tmp_path / "data", id=ESCAPE)
    with (path.parent / "nodes.csv").open("a", newline="") as file:
        csv.writer(file).writerow([ESCAPE, "1", "a", "no", "train"])  # the same id twice
    result = veilgraph("data", "check", path)
    assert result.exit_code == 1
    check(result.output)


def predictions(ids: Sequence[str], names: tuple[str, ...] = ("no", "yes")) -> Predictions:
    probabilities = torch.tensor([[0.25, 0.75]] * len(ids))
    made = "2026-01-01T00:00:00+00:00"
    return Predictions(torch.arange(len(ids)), probabilities.argmax(1), probabilities, tuple(ids), names, "v", made)


def test_predictions_run_nothing_in_a_spreadsheet_and_ids_are_read_back(tmp_path: Path) -> None:
    ids = ["=HYPERLINK(1)", "+49", "-5", "@x", "\tx", "a;=1", "C1", "'=2"]
    found = predictions(ids, ("=no", "yes"))
    rows = list(csv.reader(io.StringIO(found.csv())))
    cells = [row[0] for row in rows[1:]]
    assert cells[:2] == ["'=HYPERLINK(1)", "'+49"]
    assert [text_of_cell(cell) for cell in cells] == ids
    assert cells[6] == "C1"
    assert rows[0] == ["id", "class", "p_'=no", "p_yes"]
    assert all(row[2:] == ["0.250000", "0.750000"] for row in rows[1:]), "numbers are as they were"


def test_what_every_command_prints_is_printable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = Table(ESCAPE, title=ESCAPE, caption=ESCAPE)
    table.add_row(f"[red]{ESCAPE}[/]")
    table.add_row(Text(ESCAPE))
    with monkeypatch.context() as patch:
        terminal = io.StringIO()
        patch.setattr(sys, "stdout", terminal)
        output.results().print(table)
        shown = terminal.getvalue()
    assert "[red]" in shown
    assert "\x1b[1m" in shown, "colours of our own stay"
    assert not {"\x07", "\x9b", "\u202e"} & set(shown)
    assert "\x1b]0" not in shown
    assert "\x1b[2J" not in shown
    output.echo(f"{ESCAPE}\nsecond line")
    output.say(f"{ESCAPE}\nforged line")
    output.messages().print(ESCAPE)
    streams = capsys.readouterr()
    check(streams.out)
    assert streams.out.count("\n") == 2
    check(streams.err.splitlines()[0])
    assert "\x1b[2J" not in streams.err


def test_logs_have_one_printable_line_a_record(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("veilgraph")
    with caplog.at_level(logging.INFO, "veilgraph"):
        log.info("read %s", f"{ESCAPE}\n2026-01-01 forged line")
        try:
            raise ValueError(ESCAPE)
        except ValueError:
            log.exception("failed")
    check(caplog.messages[0])
    assert "\n" not in caplog.messages[0]
    check(caplog.text)


def test_an_error_s_json_is_read_with_its_escapes() -> None:
    error = DataError(f"nodes.csv: id={ESCAPE!s} is there twice", party=None)
    check(str(error))
    line = printable(error.to_json())
    assert json.loads(line)
    assert str(error_of_json(line)) == str(error)


def test_pages_show_no_character_that_hides() -> None:
    page = environment().from_string("<p>{{ name }}</p>").render(name=f"<b>{ESCAPE}")
    check(page)
    assert page.startswith("<p>&lt;b&gt;")


def test_text_that_is_printable_stays() -> None:
    for text in ("Zürich – ε = 1", "日本", "C-12", ""):
        assert printable(text) == printable_lines(text) == text
    assert printable_lines("a\tb\nc\r") == "a\tb\nc\\r"


def test_no_command_writes_around_the_one_way_out() -> None:
    """A new command that prints by itself is found here."""
    for path in (Path(package.__file__).parent).rglob("*.py"):
        if path.parts[-2:] in (("cli", "output.py"), ("cli", "logging.py")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in ("print", "typer.echo", "typer.secho", "click.echo", "Console", "rich.print"), (
                    f"{path}:{node.lineno}"
                )
