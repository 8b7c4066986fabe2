from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.core.types import SERVER, Kind
from veilgraph.link.view import TrafficEntry
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import DisclosureRecord, disclosure_lines, disclosures
from veilgraph.report.disclosures import disclosure_table
from veilgraph.report.run_data import read_disclosures

JOB = parse_job({})
TIME = datetime(2024, 5, 1, tzinfo=UTC)


def lines(work: Any, *sent: tuple[str, Kind, int]) -> str:
    entries = [TrafficEntry("B", peer, "sent", kind, 2, size) for peer, kind, size in sent]
    return disclosure_lines(JOB, work, disclosures(JOB, entries), TIME)


def cells(records: list[DisclosureRecord]) -> list[tuple[str, ...]]:
    table = disclosure_table(records)
    return list(zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True))


def test_sessions_are_added_up_and_pieces_of_work_are_not(tmp_path: Path) -> None:
    path = tmp_path / "disclosures.jsonl"
    training = lines("train", (SERVER, Kind.MASKED, 1500), ("A", Kind.KEY, 92))
    path.write_text(training + training + lines("predict", (SERVER, Kind.MASKED, 700)))
    assert cells(read_disclosures(path)) == [
        ("train", "B", SERVER, "masked embeddings", "mask", "4", "3.0 kB"),
        ("train", "B", "A", "a fresh public key", "random", "4", "184 B"),
        ("predict", "B", SERVER, "masked embeddings", "mask", "2", "700 B"),
    ]


def test_what_nothing_protects_stands_out_and_the_table_fits_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "disclosures.jsonl"
    entries = [TrafficEntry("A", SERVER, "sent", Kind.GRADIENT, 1, 9), TrafficEntry("A", "B", "sent", Kind.KEY, 1, 9)]
    path.write_text(disclosure_lines(JOB, "train", disclosures(JOB, entries), TIME))
    table = disclosure_table(read_disclosures(path))
    assert [row.style for row in table.rows] == ["bold", None]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    assert "No differential privacy" in captured.get().replace("\n", " ")
    assert all(len(line) <= 80 for line in captured.get().splitlines())


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda line: line[:40], "the line: Invalid JSON"),
        (lambda line: "{}", "party: Field required"),
        (lambda line: line.replace('"mask"', '"magic"'), "protection: Input should be"),
        (lambda line: line.replace('"messages":2', '"messages":-2'), "messages: Input should be greater"),
        (lambda line: line.replace('total":null', 'total":-1.5'), "epsilon_total: Input should be greater"),
        (lambda line: line.replace("2024-05-01T00:00:00Z", "2024-05-01T00:00:00"), "time: Input should have timezone"),
        (lambda line: line.replace('"work"', '"job_of_work"'), "work: Field required"),
    ],
)
def test_a_malformed_line_is_named(damage: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "disclosures.jsonl"
    whole = lines("train", (SERVER, Kind.MASKED, 1))
    path.write_text(f"{whole}{damage(whole.strip())}\n{whole}")
    with refused(RunError, key=path, value=2):
        read_disclosures(path)
