"""CSV tables whose rows do not have the header's columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilgraph.core.errors import DataError
from veilgraph.tables.source import stream


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"a,b\n1,2\n3\n", ("row 2 has 1 values and the header 2", "double quotes")),
        (b"a,b\n1,2\n3,4\n5,6,7\n", ("row 3 has 3 values and the header 2",)),
        (b"a,b\n1,2\n\xff\x80\n", ("row 2 has 1 values and the header 2",)),
        (b"a,b\n1,\xff\n", ("cannot be read as CSV",)),
    ],
)
def test_a_malformed_row_is_named(
    tmp_path: Path, text: bytes, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table.csv").write_bytes(text)
    with pytest.raises(DataError) as caught:
        list(stream(tmp_path / "table.csv", ["a", "b"]))
    assert all(word in str(caught.value) for word in ("table.csv", *words))
    assert capfd.readouterr().err == "", "not even from within Arrow"
