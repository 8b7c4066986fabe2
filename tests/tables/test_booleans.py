"""Columns of truth values."""

import numpy as np
import pyarrow as pa
import pytest

from tests.errors import refused
from tests.tables.writing import party, write
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.tables.columns import column_hashes
from veilgraph.tables.encode import FeatureEncoding, encode, fit_encoding
from veilgraph.tables.nodes import read_nodes
from veilgraph.tables.source import TRUTHS

ACTIVE = {"columns": "b", "boolean": True}


def test_every_word_in_any_case(tmp_path):
    words = [word for words in TRUTHS for word in words]
    both = [*words, *(word.upper() for word in words)]
    write(tmp_path / "nodes.csv", {"id": list(range(20)), "b": both})
    assert read_nodes(party([ACTIVE]), tmp_path).values[0].tolist() == ([1] * 5 + [0] * 5) * 2


@pytest.mark.parametrize("values", [[True, False, None], [1, 0, None], ["Yes ", " f", ""]])
def test_parquets_types(tmp_path, values):
    write(tmp_path / "n.parquet", {"id": ["u", "v", "w"], "b": values})
    table = read_nodes(party([ACTIVE | {"missing": "mean"}], nodes="n.parquet"), tmp_path)
    np.testing.assert_array_equal(table.values[0], [1, 0, np.nan])
    encoding = fit_encoding(table, "none")
    assert encode(table, encoding).tolist() == [[1], [0], [0.5]]
    assert FeatureEncoding.from_json(encoding.to_json()) == encoding


def test_truth_values_are_other_columns_than_numbers(tmp_path):
    write(tmp_path / "nodes.csv", {"id": ["u"], "b": ["1"]})
    plain, boolean = (read_nodes(party([feature]), tmp_path).columns for feature in ("b", ACTIVE))
    assert column_hashes(plain, None, None) != column_hashes(boolean, None, None)


@pytest.mark.parametrize(
    ("values", "row"), [(["yes", "maybe"], 2), (["2", "1"], 1), (["yes", None], 2), (pa.array([0.0, 1.0]), None)]
)
def test_refusals(tmp_path, values, row):
    write(tmp_path / "n.parquet", {"id": ["u", "v"], "b": values})
    with refused(DataError, key="b", value=row):
        read_nodes(party([ACTIVE], nodes="n.parquet"), tmp_path)


@pytest.mark.parametrize(
    "entry", [{"boolean": False}, {"scale": {"low": 0, "high": 1}}, {"boolean": "maybe"}, {"categories": ["a"]}]
)
def test_settings_that_are_refused(entry):
    with pytest.raises(ConfigError, match="boolean"):
        party([ACTIVE | entry])
