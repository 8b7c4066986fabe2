"""Columns as people write them: what `data init` reads is what the tables are read as, and what is left out is said."""

import json
import random
import re
from datetime import date, timedelta

import pytest
from veilgraph_wizard.sampling import SampledColumn

from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from tests.tables.writing import party, write
from veilgraph.core.errors import DataError
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.tables.nodes import read_nodes

N = 120


def init(folder, columns, *more):
    """The first draft of a table of nodes: what was said, and the settings."""
    count = len(next(iter(columns.values())))
    write(folder / "n.csv", {"id": [f"n{each}" for each in range(count)], **columns})
    result = veilgraph("data", "init", folder / "n.csv", "--out", folder / "p.yaml", "--replace", *more)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split()), read_party_settings(folder / "p.yaml")


def values_of(folder, columns):
    """Column → its numbers, as the draft has them read."""
    _, settings = init(folder, columns)
    table = read_nodes(settings, folder)
    return {column.name: list(values) for column, values in zip(table.columns, table.values, strict=True)}


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["1,059.31", "12.5", "-1,234,567"], [1059.31, 12.5, -1234567]),
        (["1.690,80", "12,5", "-1.234.567"], [1690.8, 12.5, -1234567]),
        (["1 690,80", "12,5", "3"], [1690.8, 12.5, 3]),
        (["1\u202f690,80", "1\u00a0000", "3"], [1690.8, 1000, 3]),
        (["1'690.80", "1\u2019000", "3"], [1690.8, 1000, 3]),
        (["47.3%", "5 %", "0.1%"], [47.3, 5, 0.1]),
        (["€ 12", "-€ 3", "€1,000.50"], [12, -3, 1000.5]),
        (["12 €", "\u22123 €", "1.000,50 €"], [12, -3, 1000.5]),
        (["EUR 12", "EUR 3", "EUR 5"], [12, 3, 5]),
        (["12 kg", "3 kg", "5.5 kg"], [12, 3, 5.5]),
        (["1,059", "900", "12,000"], [1059, 900, 12000]),
        (["1.500", "2.5", "3"], [1.5, 2.5, 3]),
        (["0,123", "-0,456", "1,789"], [0.123, -0.456, 1.789]),
        (
            ["1,059.31", "1.690,80", "12,5", "-3.25", "1.234.567", "1,234,567.5", "900"],
            [1059.31, 1690.8, 12.5, -3.25, 1234567, 1234567.5, 900],
        ),
        (["€ 1,059.31", "1.690,80 €", "€ 0,125", "0.250", "1234,567 €"], [1059.31, 1690.8, 0.125, 0.25, 1234.567]),
    ],
)
def test_numbers_as_people_write_them(tmp_path, texts, numbers):
    assert values_of(tmp_path, {"x": texts})["x"] == pytest.approx(numbers)


@pytest.mark.parametrize(("texts", "asked"), [(["-0.037", "1.250"], ""), (["-9.037", "1.250"], "is '-9.037' -9.037?")])
def test_what_three_digits_behind_a_mark_are_is_asked_but_behind_a_zero(tmp_path, texts, asked):
    said, _ = init(tmp_path, {"x": texts})
    assert ("mend numbers" in said) == bool(asked)
    assert asked in said


@pytest.mark.parametrize("value", ["1,059", "1.690", "-12,000"])
def test_where_numbers_have_either_point_one_that_fits_two_ways_is_refused(tmp_path, value):
    """Read as one of the two it would be wrong by a factor of a thousand, without a word."""
    texts = ["1,059.31", "1.690,80", "12,5"]
    assert SampledColumn("x", (*texts, value)).written in ("text", "category")
    init(tmp_path, {"x": texts})
    write(tmp_path / "n.csv", {"id": ["a", "b"], "x": [texts[0], value]})
    error = one_error(veilgraph("data", "check", tmp_path / "p.yaml"))
    assert "column 'x', row 2" in error
    assert "may be thousands or a fraction" in error


@pytest.mark.parametrize("value", ["1.5.3", "12 $", "twelve", "1,05.31", "1,059 .31"])
def test_what_does_not_fit_further_down_is_one_clear_error(tmp_path, value):
    _, _ = init(tmp_path, {"x": ["€ 1,059.31", "€ 3", "€ 4"]})
    write(tmp_path / "n.csv", {"id": ["a", "b"], "x": ["€ 1,059.31", value]})
    error = one_error(veilgraph("data", "check", tmp_path / "p.yaml"))
    assert "column 'x', row 2" in error
    assert "is not a number" in error


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y"], "28 as %Y-%m-%d, 19 as %d/%m/%Y, 19 as %m/%d/%Y, 18 as %d/%m/%Y or"),
        (["%Y-%m-%d", "%d.%m.%Y", "ca. %j"], "28 as %Y-%m-%d, 28 as %d.%m.%Y, 28 in no known way ('ca. 008')"),
        (["%d.%m.%y"], "its dates have years of two digits: write four"),
    ],
)
def test_dates_in_doubt_are_left_out_with_what_was_found(tmp_path, texts, why):
    days = [date(2020, 1, 1) + timedelta(each) for each in range(7, 35)]
    columns = {"when": [day.strftime(text) for text in texts for day in days], "x": [*range(28 * len(texts))]}
    said, _ = init(tmp_path, columns)
    assert "1 of 2 columns used; left out: when, because its dates" in said
    assert why in said


def test_a_year_of_two_digits_is_no_year_of_the_first_century(tmp_path):
    entry = {"columns": "when", "date": {"days_since": "2020-01-01", "format": "%d.%m.%Y"}}
    write(tmp_path / "nodes.csv", {"id": ["a", "b"], "when": ["31.01.2020", "31.01.20"]})
    with refused(DataError, key="when", value=2):  # its row
        read_nodes(party([entry]), tmp_path)


@pytest.mark.parametrize(
    ("texts", "days"),
    [
        (["2020-01-31", "31.01.2020", "2020-01-03 12:00:00"], [30, 30, 2.5]),
        (["2020-01-31", "01/22/2020", "01/03/2020"], [30, 21, 2]),
        (["2020-01-31", "22/01/2020", "03/01/2020"], [30, 21, 2]),
    ],
)
def test_dates_in_mixed_formats(tmp_path, texts, days):
    assert values_of(tmp_path, {"x": texts})["x"] == pytest.approx(days)


def test_of_thousands_of_levels_the_frequent_ones_are_categories_and_the_others_one(tmp_path):
    drawn = random.Random(0)
    shops = [f"s{drawn.randrange(5)}" if drawn.random() < 0.5 else f"t{drawn.randrange(5000)}" for _ in range(3000)]
    said, settings = init(tmp_path, {"shop": shops})
    (feature,) = settings.nodes.features
    assert feature.model_dump()["categories"] == ("s0", "s1", "s2", "s3", "s4")
    assert "1 of 1 columns used" in said
    values, rest = len({*shops}) - 5, sum(each.startswith("t") for each in shops)
    asked = r"shop: are 5 of its (\d+) values enough as categories\? The other (\d+) are in \d+ of 1000 rows"
    assert (found := re.search(asked, said)) is not None
    assert int(found[1]) == int(found[2]) + 5
    checked = " ".join(veilgraph("data", "check", tmp_path / "p.yaml").stdout.split())
    assert f"shop: {rest:,} of 3,000 nodes have one of {values:,} values besides its 5 categories" in checked
    said, _ = init(tmp_path, {"x": list(range(7)) * 100, "note": [f"t{drawn.randrange(5000)}" for _ in range(700)]})
    assert "1 of 2 columns used; left out: note, because too many rows have a text of their own" in said


def test_a_table_of_which_every_column_is_left_out_is_refused_with_the_reasons(tmp_path):
    write(tmp_path / "n.csv", {"id": [f"n{each}" for each in range(30)], "x": [0.5] * 30})
    words = ["data", "init", tmp_path / "n.csv", "--out", tmp_path / "p.yaml"]
    assert "0 of 1 columns used; left out: x, because all rows have the same value" in one_error(veilgraph(*words))
    assert not (tmp_path / "p.yaml").exists()


def test_constants_and_identifiers_are_left_out_and_amounts_are_not(tmp_path):
    drawn = random.Random(0)
    columns = {
        "branch": ["B1"] * N,
        "phone": [f"+49{drawn.randrange(10**9, 10**10)}" for _ in range(N)],
        "ref": [str(drawn.randrange(10**5, 10**6)) for _ in range(N)],
        "customer_no": [str(each * each) for each in range(N)],
        "iban": [f"{drawn.randrange(10**3, 10**5):012}" for _ in range(N)],
        "balance": [str(round(drawn.lognormvariate(10, 0.8))) for _ in range(N)],
        "income": [str(round(drawn.gauss(50_000, 9_000))) for _ in range(N)],
        "age": [str(drawn.randrange(18, 90)) for _ in range(N)],
        "empty": [None] * N,
        "vip": [1 if each % 3 else None for each in range(N)],
    }
    said, settings = init(tmp_path, columns)
    assert [each.columns[0] for each in settings.nodes.features] == ["balance", "income", "age", "vip"]
    assert (
        "4 of 10 columns used; left out: branch, because all rows have the same value; phone, ref, customer_no, iban, "
        "because nearly every row has a number of its own; empty, because no row has a value"
    ) in said
    checked = veilgraph("data", "check", tmp_path / "p.yaml")
    out = "4 of 10 columns used; left out: branch, phone, ref, customer_no, iban, empty, because nodes.features"
    assert out in " ".join(checked.output.split())
    found = json.loads(veilgraph("data", "check", tmp_path / "p.yaml", "--json").stdout)
    assert (found["used"], len(found["left_out"])) == (4, 6)


def test_days_and_months_that_swap_places_are_never_read_in_a_mixture():
    """No value here can be two days, and one further down can."""
    assert SampledColumn("when", ("31/01/2020", "01/30/2020")).mixed == ()
    assert SampledColumn("when", ("31/01/2020", "2020-01-30 07:00", "5 Mar 2020")).mixed == (
        "%Y-%m-%d %H:%M",
        "%d %b %Y",
        "%d/%m/%Y",
    )
