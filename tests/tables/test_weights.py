"""Weights of edges: columns, times, and relations that weigh alike."""

import math

import numpy as np
import pytest

from tests.errors import refused
from tests.tables.reading import IDS, RELATION, read
from tests.tables.writing import build, party, write
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.tables.describe import describe_party
from veilgraph.tables.edges import read_edges

ENDS = {"a": ["u", "v", "u"], "b": ["v", "007", "007"]}
DATES = {"date": ["2024-06-30", "2024-05-31", "2024-06-15T12:00"]}
DECAY = {"column": "date", "half_life_days": 30, "at": "2024-06-30"}


def weights(*arguments, **settings):
    found = read(*arguments, **settings).weight
    return None if found is None else found.tolist()


def test_a_logarithm_and_none(tmp_path):
    columns = ENDS | {"amount": ["0", "55", "1e6"]}
    wanted = [math.log1p(amount) for amount in (0, 55, 1e6)]
    assert weights(tmp_path, columns, weight={"column": "amount", "scale": "log"}) == pytest.approx(wanted)
    for plain in ("amount", {"column": "amount"}, {"column": "amount", "scale": "none"}):
        assert weights(tmp_path, columns, weight=plain) == [0, 55, 1e6]


def test_decay_halves_by_age(tmp_path):
    halves = [1, 0.5, 2 ** (-14.5 / 30)]
    assert weights(tmp_path, ENDS | DATES, decay=DECAY) == pytest.approx(halves)
    columns = ENDS | DATES | {"amount": ["10", "20", "30"]}
    wanted = [amount * half for amount, half in zip((10, 20, 30), halves, strict=True)]
    assert weights(tmp_path, columns, decay=DECAY, weight="amount") == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("window", "kept"),
    [
        ({"after": "2024-06-15T12:00"}, [0, 2]),
        ({"after": "2024-06-15T12:01"}, [0]),
        ({"before": "2024-06-30"}, [1, 2]),
        ({"before": "2024-06-30T00:01"}, [0, 1, 2]),
        ({"after": "2024-06-01", "before": "2024-06-16"}, [2]),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_window_of_time(tmp_path, window, kept, suffix):
    columns = ENDS | DATES | {"amount": ["1", "2", "3"]}
    table = read(tmp_path, columns, filter={"column": "date"} | window, weight="amount", file=f"e.{suffix}")
    assert table.weight is not None
    assert table.weight.tolist() == [[1, 2, 3][row] for row in kept]
    assert (table.outside, table.rows.tolist(), table.other) == (3 - len(kept), [len(kept)], 0)


def test_what_is_outside_the_window_is_not_looked_at(tmp_path):
    columns = {
        "a": ["u", "?", "u"],
        "b": ["v", "v", "v"],
        "kind": ["card", "never heard of", "cash"],
        "amount": ["1", "lots", "3"],
        "date": ["2024-06-30", "2025-01-01", None],
    }
    window = {"column": "date", "before": "2024-07-01", "missing": "drop"}
    table = read(tmp_path, columns, filter=window, weight="amount", relation=RELATION, decay=DECAY)
    assert (table.source.tolist(), table.outside, table.rows.tolist()) == ([0], 2, [1, 0])


def test_each_relation_weighs_one_on_average_and_then_its_factor(tmp_path):
    columns = {
        "a": ["u"] * 6,
        "b": ["v"] * 6,
        "kind": ["card", "cash", "card", "cash", "cash", "card"],
        "amount": ["10", "1", "30", "2", "3", "20"],
    }
    table = read(tmp_path, columns, weight="amount", relation=RELATION, normalize="mean", factor=4)
    assert table.weight is not None
    assert table.weight.tolist() == pytest.approx([1, 4, 3, 8, 12, 2])
    for place, factor in enumerate((0.5, 2.0)):
        assert table.weight[table.relation == place].mean() == pytest.approx(4 * factor)
    again = read(tmp_path, columns, weight="amount", relation=RELATION, normalize=10)
    assert again.weight is not None
    assert again.weight.tolist() == pytest.approx([0.5, 0.2, 1.5, 0.4, 0.6, 1])


def test_two_tables_weigh_alike(tmp_path):
    """Amounts drown what is counted by ones, unless both are normalised."""
    write(tmp_path / "nodes.csv", {"id": ["u", "v", "w"], "x": [1, 2, 3]})
    write(tmp_path / "transfers.csv", {"a": ["u", "v"], "b": ["v", "w"], "amount": [50, 60]})
    write(tmp_path / "devices.csv", {"a": ["u"], "b": ["w"]})
    transfers = {"file": "transfers.csv", "weight": "amount", "directed": True}
    devices = {"file": "devices.csv", "directed": True}
    plain = build(party(edges=[transfers, devices]), tmp_path).graph.edge_weight
    assert plain is not None
    assert plain.tolist() == [50, 60, 1]
    alike = party(edges=[transfers | {"normalize": "mean"}, devices | {"normalize": "mean", "factor": 0.5}])
    found = build(alike, tmp_path).graph.edge_weight
    assert found is not None
    assert found.tolist() == pytest.approx([50 / 55, 60 / 55, 0.5])
    described = describe_party(alike, tmp_path)
    assert [each.relations[0].mean_weight for each in described.edges] == pytest.approx([1, 0.5])


def test_one_edge_changes_the_others_weights_by_a_mean_and_not_by_a_number(tmp_path):
    """What an edge tells through all other edges' weights is nothing that an ε of one edge would cover."""

    def others(amount, **settings):
        columns = ENDS | {"amount": ["1", "2", amount]}
        return weights(tmp_path, columns, weight="amount", **settings)[:2]

    assert others("3", normalize="mean") != others("300", normalize="mean")
    assert others("3", normalize=2) == others("300", normalize=2) == [0.5, 1]
    log = {"column": "amount", "scale": "log"}
    own = [
        read(tmp_path, ENDS | DATES | {"amount": ["1", "2", last]}, decay=DECAY, factor=3, **{"weight": log})
        for last in ("3", "300")
    ]
    assert own[0].weight is not None
    assert own[1].weight is not None
    np.testing.assert_array_equal(own[0].weight[:2], own[1].weight[:2])


@pytest.mark.parametrize(
    ("changes", "settings", "key", "row"),
    [
        (
            {"date": ["2024-06-30", None, "2024-06-30"]},
            {"filter": {"column": "date", "after": "2024-01-01"}},
            "date",
            2,
        ),
        ({"date": ["2024-06-30", None, "2024-06-30"]}, {"decay": DECAY}, "date", 2),
        ({"date": ["2024-06-30", "2024-06-30T00:00:01", "2024-06-30"]}, {"decay": DECAY}, "date", 2),
        ({"date": ["2024-06-30", "yesterday", "2024-06-30"]}, {"decay": DECAY}, "date", 2),
        (
            {"date": ["2024-06-30", "30.06.2024", "2024-06-30"]},
            {"filter": {"column": "date", "after": "2024-01-01"}},
            "date",
            2,
        ),
        ({"amount": ["1", "-1", "2"]}, {"weight": {"column": "amount", "scale": "log"}}, "amount", 2),
        ({"amount": ["0", "0", "0"]}, {"weight": "amount", "normalize": "mean"}, "normalize", "mean"),
        ({}, {"filter": {"column": "when", "after": "2024-01-01"}}, "when", None),
    ],
)
def test_refusals(tmp_path, changes, settings, key, row):
    write(tmp_path / "edges.csv", ENDS | changes)
    with refused(DataError, key=key, value=row):
        read_edges(party(edges=[settings]).edges[0], tmp_path, IDS)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"weight": {"column": "amount", "scale": "sqrt"}}, "scale"),
        ({"weight": {"scale": "log"}}, "column"),
        ({"filter": {"column": "date"}}, "filter"),
        ({"filter": {"column": "date", "after": "2024-01-01", "before": "2024-01-01"}}, "after"),
        ({"filter": {"column": "date", "after": "May"}}, "after"),
        ({"decay": DECAY | {"half_life_days": 0}}, "half_life_days"),
        ({"decay": {"column": "date", "half_life_days": 3}}, "decay.at"),
        ({"normalize": "median"}, "normalize"),
        ({"normalize": 0}, "normalize"),
        ({"factor": -1}, "factor"),
    ],
)
def test_settings_that_are_refused(settings, key):
    with pytest.raises(ConfigError) as caught:
        party(edges=[settings])
    assert key in str(caught.value)
