"""A first job of tables of words scales rows, one of other tables columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.cli.commands import veilgraph
from tests.tables.writing import write
from veilgraph.protocol.job_file import parse_job, read_job

NODES = 40


def party_file(folder: Path, name: str, numbers: np.ndarray, *, label: bool, named: str | None = None) -> Path:
    """Write a party file beside its table, whose columns are ``numbers`` [N, F]."""
    columns = [f"{name}{place}" for place in range(numbers.shape[1])]
    table = {"id": [f"n{node}" for node in range(NODES)], **dict(zip(columns, numbers.T.tolist(), strict=True))}
    nodes: dict[str, Any] = {"file": f"{name}.csv", "id": "id", "features": [{"columns": named or columns}]}
    if label:
        table["kind"] = ["a", "b", "c", "d"] * (NODES // 4)
        nodes["label"] = {"column": "kind", "classes": ["a", "b", "c", "d"]}
        nodes["split"] = {"train": 0.5, "val": 0.25, "test": 0.25}
    write(folder / f"{name}.csv", table)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"party": name, "nodes": nodes}))
    return path


def words(columns: int, share: float = 0.1) -> np.ndarray:
    """Counts of which so many are not 0, each column's largest at least 1."""
    generator = np.random.default_rng(columns)
    found = generator.integers(1, 4, (NODES, columns)) * (generator.random((NODES, columns)) < share / 2)
    found[generator.integers(NODES, size=columns), np.arange(columns)] = 2
    return found.astype(float)


def drafted(folder: Path, first: np.ndarray, second: np.ndarray, *options: str, named: str | None = None) -> str:
    """What ``init`` has ``feature_scaling`` be."""
    files = [party_file(folder, "a", first, label=True, named=named), party_file(folder, "b", second, label=False)]
    out = folder / "job.yaml"
    result = veilgraph("init", *files, "--out", out, "--replace", *options)
    assert result.exit_code == 0, result.output
    return read_job(out).data.feature_scaling


def with_column(numbers: np.ndarray, values: float) -> np.ndarray:
    return np.column_stack([numbers, np.full(NODES, values)])


def test_words_are_scaled_by_rows_and_get_their_presets(tmp_path: Path) -> None:
    assert drafted(tmp_path, words(60), words(50)) == "row"
    job = parse_job(yaml.safe_load((tmp_path / "job.yaml").read_text()) | {"preset": "auto"})
    assert job.model_dump()["model"]["initial"]["learning_rate"] == 10, "the choice for words"
    assert drafted(tmp_path, words(110), words(4), named="a*") == "row"
    assert drafted(tmp_path, words(60), words(4), named="a*") == "standard", "that many only seem to be named"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (words(50), words(49)),
        (words(60), words(50, share=0.9)),
        (words(60), words(50) * np.where(np.arange(50) % 2, 1, -1)),
        (words(60), with_column(words(50), 5000.0)),
        (words(60), np.zeros((NODES, 50))),
    ],
    ids=["few columns", "most are there", "below zero", "an amount among them", "nothing there"],
)
def test_other_tables_are_scaled_by_columns(tmp_path: Path, first: np.ndarray, second: np.ndarray) -> None:
    assert drafted(tmp_path, first, second) == "standard"


def test_sealed_jobs_find_words_by_themselves(tmp_path: Path) -> None:
    assert drafted(tmp_path, words(60), words(50), "--paradigm", "sealed") == "standard"


def test_a_table_that_cannot_be_read_is_none_of_words(tmp_path: Path) -> None:
    numbers = words(110)
    path = party_file(tmp_path, "a", numbers, label=True)
    other = party_file(tmp_path, "b", words(50), label=False)
    (tmp_path / "b.csv").unlink()
    assert veilgraph("init", path, other, "--out", tmp_path / "job.yaml").exit_code == 0
    assert read_job(tmp_path / "job.yaml").data.feature_scaling == "standard"
