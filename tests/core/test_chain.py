"""Chained lines, and the heads that stand for them."""

from itertools import product
from pathlib import Path

import pytest

from tests.errors import refused
from veilgraph.core.chain import Heads, check_chain, digest, whole_lines
from veilgraph.core.errors import RunError

FIRST = b'{"a": 1}\n'
DEEP = b"[" * 10_000 + b"]" * 10_000
LINES = [FIRST, b'{"previous": "%s", "a": 2}\n' % digest(FIRST).encode()]


def test_a_torn_line_is_no_line_and_a_missing_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert whole_lines(path) == []
    path.write_bytes(b"".join(LINES) + b'{"previous": "')
    assert whole_lines(path) == LINES
    check_chain(path, LINES)


FORGED = [b"", b"[]", b"{", b'{"a": 2}', b'{"previous": 1}', b'{"previous": ""}', b"\xff", DEEP]


@pytest.mark.parametrize("line", FORGED)
def test_a_line_that_does_not_name_the_one_before_is_named(line: bytes) -> None:
    with refused(RunError, key="x.jsonl", value=3):
        check_chain(Path("x.jsonl"), [*LINES, line])


def test_a_head_depends_on_all_that_it_stands_for() -> None:
    """On the salt, on what the file is, on how many lines, and on every one of them; and on none after them."""
    salts, abouts = (bytes(32), bytes([*bytes(31), 1])), (("run", "A", "x"), ("run", "B", "x"), ("run", "A", "y"))
    files = (LINES, [LINES[1], LINES[0]], [LINES[0], b"{}\n"])
    found = {Heads(salt, about, lines).head(2) for salt, about, lines in product(salts, abouts, files)}
    assert len(found) == len(salts) * len(abouts) * len(files)
    one = Heads(salts[0], abouts[0], LINES)
    assert len({one.head(0), one.head(1), one.head(2)}) == 3
    assert one.head(3) is None
    assert one.head(2) == Heads(salts[0], abouts[0], [*LINES, b"{}\n"]).head(2)
