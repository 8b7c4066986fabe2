"""A party file guessed from tables: it is valid, it says what was guessed, and no more than a sample is read."""

import gzip
import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner
from veilgraph_wizard.choices import Choices
from veilgraph_wizard.draft import draft
from veilgraph_wizard.guess import guess
from veilgraph_wizard.sampling import sample

from tests import nightly
from tests.errors import refused
from tests.tables.writing import write
from veilgraph.cli.app import app
from veilgraph.core.errors import DataError
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.party_settings import parse_party_text, read_party_settings
from veilgraph.tables.column_settings import (
    BooleanFeatures,
    CategoricalFeatures,
    DateFeatures,
    IdSettings,
    NumericFeatures,
)
from veilgraph.tables.describe import describe_party
from veilgraph.tables.source import SAMPLE_BYTES

N = 60


def drafted(folder, *names, party="bank"):
    return draft(guess([sample(folder / name) for name in names]), party, folder)


def settings_of(folder, *names):
    return parse_party_text(drafted(folder, *names).text)


@pytest.fixture
def tables(tmp_path):
    """As an organisation exports them, each in its own way."""
    seeded = random.Random(0)
    rows = ["Kundennummer;Straße;Alter;Umsatz;aktiv;seit;segment;leer"]
    rows += [
        f"K-{each:02};Allee {each};{'NA' if each % 7 == 0 else each + 18};{each},5;{'ja' if each % 2 else 'nein'};"
        f"{each % 28 + 1:02}.02.2020;{['privat', 'firma: groß'][each % 2]};"
        for each in range(N)
    ]
    (tmp_path / "kunden.csv").write_bytes("\n".join(rows).encode("cp1252"))
    labels = [f"k-{each:02},{'yes' if each % 5 == 0 else 'no'},2024-0{each % 9 + 1}-01" for each in range(0, N, 2)]
    (tmp_path / "labels.csv").write_text("\n".join(["customer_id,fraud,confirmed_at", *labels]))
    usage = [f"K-{each:02} \t{each % 50}\t{'t' if each % 2 else 'f'}" for each in range(0, N, 3)]
    (tmp_path / "usage.csv.gz").write_bytes(gzip.compress("\n".join(["client_id\tcalls\tvip", *usage]).encode()))
    payments = {
        "payer": [f"K-{seeded.randrange(N):02}" for _ in range(99)],
        "payee": [f"K-{seeded.randrange(N):02}" for _ in range(99)],
        "amount": [seeded.random() * 100 for _ in range(99)],
        "date": ["2024-03-01"] * 99,
        "kind": ["card", "cash", "no"] * 33,
    }
    write(tmp_path / "transfers.parquet", payments)
    return tmp_path


PUBLIC = """
party: bank
nodes:
  file: nodes.csv
  id: id
  features:
    - {columns: segment, categories: [firm, shop, ward], missing: error, other: zero}
"""

ALL = ("kunden.csv", "labels.csv", "usage.csv.gz", "transfers.parquet")


def test_what_is_guessed_passes_the_check_of_all_rows(tables):
    found = drafted(tables, *ALL)
    settings = parse_party_text(found.text)
    assert (settings.nodes.id, settings.nodes.encoding, settings.nodes.decimal) == ("Kundennummer", "cp1252", ",")
    assert settings.nodes.missing_values == ("NA",)
    assert (settings.ids.strip, settings.ids.lower) == (True, True)
    assert settings.nodes.label is not None
    assert (str(settings.nodes.label.file), settings.nodes.label.id) == ("labels.csv", "customer_id")
    assert settings.nodes.label.classes == ("no", "yes")
    assert [(str(each.file), each.id, each.prefix) for each in settings.nodes.join] == [
        ("usage.csv.gz", "client_id", "usage.")
    ]
    kinds = {feature.columns[0]: type(feature) for feature in settings.nodes.features}
    assert kinds == {
        "Alter": NumericFeatures,
        "Umsatz": NumericFeatures,
        "aktiv": CategoricalFeatures,
        "seit": DateFeatures,
        "segment": CategoricalFeatures,
        "usage.calls": NumericFeatures,
        "usage.vip": BooleanFeatures,
    }
    (edges,) = settings.edges
    assert (edges.source, edges.target, edges.normalize) == ("payer", "payee", "mean")
    assert edges.weight is not None
    assert (edges.weight.column, edges.weight.scale) == ("amount", "log")
    assert edges.relation is not None
    assert edges.relation.weights == {"card": 1, "cash": 1, "no": 1}
    described = describe_party(settings, tables)
    assert described.nodes == N
    assert [each.unknown for each in described.files[1:3]] == [0, 0]
    assert described.classes == {"no": 24, "yes": 6}


def test_what_is_to_be_decided_is_said_and_marked(tables):
    found = drafted(tables, *ALL)
    for word in ("encoding of kunden.csv", "ids:", "nodes.id", "nodes.label", "nodes.split"):
        assert any(decision.startswith(word) for decision in found.decisions), word
    assert found.text.count("decide:") >= len(found.decisions) - 1
    assert '# "Straße": left out, because too many rows have a text of their own' in found.text
    assert "# leer: left out, because no row has a value" in found.text


def test_a_draft_tells_of_one_nodes_category_and_says_so(tmp_path):
    # Others are told how many columns there are, which no ε is about: a party file of what there can be says nothing.
    drafts = {}
    for last in ("firm", "ward"):
        segments = ["firm", "shop"] * (N // 2 - 1) + ["shop", last]
        write(tmp_path / "nodes.csv", {"id": [f"C{each}" for each in range(N)], "segment": segments})
        drafts[last] = drafted(tmp_path, "nodes.csv").text
        assert "write what there can be" in drafts[last]
        drafts[last] = [describe_party(parse_party_text(text), tmp_path).num_features
                        for text in (drafts[last], PUBLIC)]  # fmt: skip
    assert drafts == {"firm": [2, 3], "ward": [3, 3]}


def test_one_file_and_nothing_else(tmp_path):
    write(tmp_path / "nodes.csv", {"x": [0.5, 1.5, 0.5], "id": ["[u]", "*?", "b: c"], "no": ["p", "q", "p"]})
    found = drafted(tmp_path, "nodes.csv")
    settings = parse_party_text(found.text)
    assert (settings.nodes.id, settings.nodes.label, settings.edges) == ("id", None, ())
    assert [feature.columns for feature in settings.nodes.features] == [("x",), ("no",)]
    assert describe_party(settings, tmp_path).nodes == 3


def test_a_column_without_a_name_is_no_feature(tmp_path):
    """As pandas writes row numbers, and others a delimiter at the end of each row."""
    (tmp_path / "nodes.csv").write_text(",id,x,\n0,u,0.5,\n1,v,1.5,\n")
    settings = settings_of(tmp_path, "nodes.csv")
    assert settings.nodes.id == "id"
    assert [feature.columns for feature in settings.nodes.features] == [("x",)]
    assert describe_party(settings, tmp_path).nodes == 2
    write(tmp_path / "nodes.parquet", {"id": ["u", "v"], "x": [0.5, 1.5], "__index_level_0__": [7, 3]})
    assert [feature.columns for feature in settings_of(tmp_path, "nodes.parquet").nodes.features] == [("x",)]


NUMBERS: dict[str, list[Any]] = {
    "KundenNr": ["000123", "045582", *(f"{each:06}" for each in range(500, 540))],
    "x": [each % 7 / 2 for each in range(42)],
}


def test_ids_of_digits_are_found_by_the_name_or_by_the_option(tmp_path):
    write(tmp_path / "nodes.csv", NUMBERS)
    assert settings_of(tmp_path, "nodes.csv").nodes.id == "KundenNr"
    write(tmp_path / "nodes.csv", {"customer": NUMBERS["KundenNr"], "x": NUMBERS["x"]})
    assert settings_of(tmp_path, "nodes.csv").nodes.id == "customer"
    write(tmp_path / "nodes.csv", {"Wer": NUMBERS["KundenNr"], "x": NUMBERS["x"]})
    assert "differs in every row (or is it 'Wer'?)" in refused_with(tmp_path, "nodes.csv")
    assert guess([sample(tmp_path / "nodes.csv")], Choices(id="Wer")).nodes[0].id.name == "Wer"


def test_white_space_makes_no_further_category(tmp_path):
    countries = ["DE", " DE", "FR ", "FR", "GB"] * 8
    write(tmp_path / "nodes.csv", {"id": [f"n{each}" for each in range(40)], "country": countries})
    (country,) = settings_of(tmp_path, "nodes.csv").nodes.features
    assert isinstance(country, CategoricalFeatures)
    assert country.categories == ("DE", "FR", "GB")


def test_an_id_in_two_rows_is_said(tmp_path):
    write(tmp_path / "nodes.csv", {name: [*values, values[0]] for name, values in NUMBERS.items()})
    assert "'000123' is in 2 rows; --duplicates first or last takes it" in refused_with(tmp_path, "nodes.csv")
    half = {name: [*values, *values[:21]] for name, values in NUMBERS.items()}
    write(tmp_path / "half.csv", half)
    assert "takes it" not in refused_with(tmp_path, "half.csv")
    with refused(DataError, key="--id", value="KundenNr"):
        guess([sample(tmp_path / "half.csv")], Choices(id="KundenNr"))
    write(tmp_path / "nodes.csv", {name: [*values, None] for name, values in NUMBERS.items()})
    assert "in 'KundenNr' a row has no value there" in refused_with(tmp_path, "nodes.csv")


def test_a_node_table_that_is_taken_for_edges_is_named_with_its_columns(tmp_path):
    write(tmp_path / "nodes.csv", {"KundenNr": NUMBERS["KundenNr"], "a": NUMBERS["x"], "b": NUMBERS["x"]})
    assert "nodes.csv by 'a' and 'b'" in refused_with(tmp_path, "nodes.csv")


def test_a_table_of_ids_and_labels_beside_edges_has_no_features(tmp_path):
    ids = NUMBERS["KundenNr"]
    write(tmp_path / "nodes.csv", {"KundenNr": ids, "fraud": [("no", "yes")[each % 2] for each in range(42)]})
    write(tmp_path / "edges.csv", {"von": ids[:-1], "nach": ids[1:]})
    assert settings_of(tmp_path, "nodes.csv", "edges.csv").nodes.features == ()
    assert "or one of edges" in refused_with(tmp_path, "nodes.csv")


def test_a_few_repeated_ids_are_drafted_with_what_settles_them(tmp_path):
    write(tmp_path / "nodes.csv", {name: [*values, values[0]] for name, values in NUMBERS.items()})
    chosen = Choices(id="KundenNr")
    written = draft(guess([sample(tmp_path / "nodes.csv")], chosen), "bank", tmp_path, chosen)
    assert "  duplicates: first  # decide" in written.text
    assert any(each.startswith("nodes.duplicates:") and "(--duplicates)" in each for each in written.decisions)
    decided = replace(chosen, duplicates="last")
    settled = draft(guess([sample(tmp_path / "nodes.csv")], decided), "bank", tmp_path, decided)
    assert parse_party_text(settled.text).nodes.duplicates == "last"
    assert not any("duplicates" in each for each in settled.decisions)
    for way in ("first", "last"):
        unnamed = Choices(duplicates=way)
        text = draft(guess([sample(tmp_path / "nodes.csv")], unnamed), "bank", tmp_path, unnamed).text
        assert (found := parse_party_text(text).nodes).id == "KundenNr"
        assert found.duplicates == way
    with pytest.raises(DataError, match="--duplicates first or last takes it"):
        guess([sample(tmp_path / "nodes.csv")], Choices(duplicates="refuse"))


def test_ids_that_repeat_once_they_are_written_alike_are_drafted_with_what_settles_them(tmp_path):
    ids = [f"K{each:02}" for each in range(40)]
    write(tmp_path / "nodes.csv", {"KundenNr": [*ids, "k00 "], "age": [*range(40), 7]})
    write(
        tmp_path / "edges.csv", {"von": [each.lower() for each in ids[:-1]], "nach": [each.lower() for each in ids[1:]]}
    )
    files = [sample(tmp_path / name) for name in ("nodes.csv", "edges.csv")]
    for chosen, repeats in ((Choices(), True), (Choices(ids=()), False), (Choices(ids=("lower",)), True)):
        text = draft(guess(files, chosen), "bank", tmp_path, chosen).text
        assert ("duplicates: first" in text) == repeats


def test_no_time_split_is_proposed_by_a_day_of_birth(tmp_path):
    days = [f"2024-{each % 9 + 1:02}-{each % 28 + 1:02}" for each in range(40)]
    for name, proposed in {"date_of_birth": False, "dob": False, "Geburtsdatum": False, "opened_at": True}.items():
        rows = {"KundenNr": [f"K{each:02}" for each in range(40)], name: days, "fraud": ["no", "yes"] * 20}
        write(tmp_path / f"{name}.csv", rows)
        decisions = drafted(tmp_path, f"{name}.csv").decisions
        (said,) = [each for each in decisions if each.startswith("nodes.split")]
        assert (f"--split {name}:2024" in said) == proposed


def test_whether_edges_lead_one_way_is_to_decide(tmp_path):
    write(tmp_path / "nodes.csv", NUMBERS)
    ids = NUMBERS["KundenNr"]
    write(tmp_path / "edges.csv", {"von": ids[:-1], "nach": ids[1:]})
    files = [sample(tmp_path / name) for name in ("nodes.csv", "edges.csv")]
    for chosen, directed, asked in ((None, False, 1), (False, False, 0), (True, True, 0)):
        choices = Choices(directed=chosen)
        found = draft(guess(files, choices), "bank", tmp_path, choices)
        assert parse_party_text(found.text).edges[0].directed == directed
        assert sum("--directed" in each for each in found.decisions) == asked


def test_ends_of_edges_are_named_by_an_option(tmp_path):
    write(tmp_path / "nodes.csv", NUMBERS)
    write(tmp_path / "gifts.csv", {"recipient": ["000123"], "buyer": ["045582"], "value": [2.5]})
    samples = [sample(tmp_path / name) for name in ("nodes.csv", "gifts.csv")]
    with pytest.raises(DataError) as error:
        guess(samples)
    assert "--ends" in str(error.value)
    (edges,) = guess(samples, Choices.read(ends=("buyer:recipient",))).edges
    assert (edges.source.name, edges.target.name) == ("buyer", "recipient")
    assert edges.weight is not None
    assert edges.weight.name == "value"


def test_a_header_that_has_a_column_twice_is_read_as_tables_are(tmp_path):
    (tmp_path / "n.csv").write_text("id,x,x\nu,1,2.5\nv,2,3.5\nw,2,1.5\n")
    columns = [feature.columns for feature in settings_of(tmp_path, "n.csv").nodes.features]
    assert columns == [("x",), ("x.1",)]
    pa.parquet.write_table(pa.table([["u"], [1.0], [2.0]], ["id", "x", "x"]), tmp_path / "n.parquet")
    assert "several columns are called 'x'" in refused_with(tmp_path, "n.parquet")


def refused_with(folder, name):
    with pytest.raises(DataError) as error:
        drafted(folder, name)
    return str(error.value)


def test_names_and_values_are_written_as_yaml_has_them(tmp_path):
    odd = ["a, b", "c}", "# d", '"e"', "'f'", "~", "on", "007", "g:h", "i\\j", "[k]", "*", "- l"]
    columns = {f"{name} x": [0.5 + each for each in range(2 * len(odd))] for name in (*odd, "null")} | {
        "null": [each / 2 for each in range(2 * len(odd))]
    }
    write(tmp_path / "a b'c.csv", {"id": [f"n{each}" for each in range(2 * len(odd))], "kind": odd * 2} | columns)
    settings = settings_of(tmp_path, "a b'c.csv")
    assert str(settings.nodes.file) == "a b'c.csv"
    kind, *numbers = settings.nodes.features
    assert isinstance(kind, CategoricalFeatures)
    assert sorted(kind.categories) == sorted(odd)
    assert [feature.columns[0] for feature in numbers] == list(columns)
    assert describe_party(settings, tmp_path).num_features == len(odd) * 2 + 2


def test_a_column_of_splits_and_a_label_in_the_node_table(tmp_path):
    write(
        tmp_path / "nodes.parquet",
        {
            "id": [1, 2, 3, 4],
            "x": [0.5, None, 0.5, 1.0],
            "label": [True, False, True, False],
            "split": ["train", "val", "test", "train"],
        },
    )
    settings = settings_of(tmp_path, "nodes.parquet")
    assert settings.nodes.split_column == "split"
    assert settings.nodes.label is not None
    assert settings.nodes.label.classes == ("false", "true")
    assert describe_party(settings, tmp_path).splits == {"train": 2, "val": 1, "test": 1}


def test_rows_that_all_weigh_the_same_are_not_divided_by_their_mean(tmp_path):
    """It would change nothing, and jobs whose ε is of one edge refuse weights that hang on all."""
    write(tmp_path / "nodes.csv", {"id": ["a", "b", "c"], "x": [1.5, 2, 3]})
    write(tmp_path / "links.csv", {"source": ["a", "b"], "target": ["b", "c"]})
    (edges,) = parse_party_text(drafted(tmp_path, "nodes.csv", "links.csv").text).edges
    assert (edges.weight, edges.relation, edges.normalize) == (None, None, None)


@nightly
def test_nothing_behind_the_sample_is_read(tmp_path):
    rows = b"".join(b"u%d,%d\n" % (each, each % 9) for each in range(50_000))
    assert len(rows) > SAMPLE_BYTES
    (tmp_path / "n.csv").write_bytes(b"id,x\n" + rows + b'\xe9,"')
    assert settings_of(tmp_path, "n.csv").nodes.id == "id"
    table = pa.table({"id": [f"u{each}" for each in range(4000)], "x": [each % 7 / 2 for each in range(4000)]})
    pa.parquet.write_table(table, tmp_path / "n.parquet", row_group_size=2000, compression="none")
    with pa.parquet.ParquetFile(tmp_path / "n.parquet") as file:
        second = file.metadata.row_group(1).column(0)
    content = bytearray((tmp_path / "n.parquet").read_bytes())
    start = min(each for each in (second.dictionary_page_offset, second.data_page_offset) if each)
    content[start : start + 40] = b"\xff" * 40
    (tmp_path / "n.parquet").write_bytes(content)
    assert settings_of(tmp_path, "n.parquet").nodes.id == "id"
    with refused(DataError, key=tmp_path / "n.parquet"):
        describe_party(settings_of(tmp_path, "n.parquet"), tmp_path)


def test_ids_are_not_written_alike_where_two_nodes_would_become_one(tmp_path):
    write(tmp_path / "n.csv", {"id": ["A", "a", "b"], "x": [0.5, 1.5, 1]})
    write(tmp_path / "e.csv", {"source": ["A ", "a"], "target": ["b", "b "]})
    assert settings_of(tmp_path, "n.csv", "e.csv").ids == IdSettings()
    write(tmp_path / "n.csv", {"id": ["A", "c", "b"], "x": [0.5, 1.5, 1]})
    assert settings_of(tmp_path, "n.csv", "e.csv").ids == IdSettings(strip=True, lower=True)
    write(tmp_path / "e.csv", {"source": ["A", "c"], "target": ["b", "?"]})
    assert settings_of(tmp_path, "n.csv", "e.csv").ids == IdSettings()


def test_a_format_in_doubt_is_to_be_decided(tmp_path):
    write(tmp_path / "n.csv", {"id": ["u", "v"], "d": ["01/02/2024", "03/04/2024"]})
    found = drafted(tmp_path, "n.csv")
    assert any("%d/%m/%Y or %m/%d/%Y" in decision for decision in found.decisions)
    write(tmp_path / "n.csv", {"id": ["u", "v"], "d": ["01/02/2024", "03/14/2024"]})
    (feature,) = settings_of(tmp_path, "n.csv").nodes.features
    assert isinstance(feature, DateFeatures)
    assert feature.date.format == "%m/%d/%Y"


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"id": ["u", "u"], "x": [1, 2]}, "n.csv"),
        ({"source": ["u"], "target": ["v"]}, "n.csv"),
        ({"payer": [f"N-{each}" for each in range(N)], "payee": ["S"] * N}, "n.csv"),
        ("Export of May\n\nid,x\nu,1\nv,2\n", "n.csv"),
        ({"id": ["u", "v"]}, "n.csv"),
        ({"id": pa.array([], pa.string()), "x": pa.array([], pa.string())}, "n.csv"),
        (None, "n.csv"),
        ({"id": ["u"]}, "n.txt"),
    ],
)
def test_what_nothing_can_be_guessed_of_is_refused(tmp_path, columns, name):
    if isinstance(columns, str):
        (tmp_path / name).write_text(columns)
    elif columns is not None:
        write(tmp_path / name, columns)
    with refused(DataError, key=tmp_path / name):
        drafted(tmp_path, name)


def test_columns_that_say_whose_nodes_ends_are_make_a_union(tmp_path):
    accounts = {"account": [f"N-{each}" for each in range(N)], "age": list(range(N)), "fraud": ["no", "yes"] * (N // 2)}
    write(tmp_path / "accounts.csv", accounts)
    paid = {
        "payer": [f"N-{each}" for each in range(N)],
        "payer_bank": ["north"] * N,
        "payee": [f"S-{each}" for each in range(N)],
        "payee_bank": ["south", "west"] * (N // 2),
        "amount": [float(each) for each in range(N)],
    }
    write(tmp_path / "payments.csv", paid)
    found = drafted(tmp_path, "accounts.csv", "payments.csv", party="north")
    (edges,) = parse_party_text(found.text).edges
    assert (edges.source_holder, edges.target_holder) == ("payer_bank", "payee_bank")
    assert edges.directed
    assert edges.weight is not None
    assert (edges.weight.column, edges.weight.scale) == ("amount", "none")
    assert any("north, south, west" in each for each in found.decisions)
    out = tmp_path / "accepted.yaml"
    for accepted, scale in ((("horizontal",), "log"), (("averaging",), "log"), (("averaging", "union"), "none")):
        options = [each for name in accepted for each in ("--accept", name)]
        tables = [str(tmp_path / name) for name in ("accounts.csv", "payments.csv")]
        given = ["data", "init", *tables, "--party", "north", "--out", str(out), "--replace", *options]
        assert CliRunner().invoke(app, given).exit_code == 0
        (edges,) = read_party_settings(out).edges
        assert edges.weight is not None
        assert (edges.weight.scale, edges.normalize == "mean") == (scale, scale == "log")
    for word, known in (("marketplace", True), ("country", False)):
        write(tmp_path / "network.csv", {name.replace("bank", word): column for name, column in paid.items()})
        if known:
            (edges,) = settings_of(tmp_path, "network.csv").edges
            assert (edges.source_holder, edges.target_holder) == ("payer_marketplace", "payee_marketplace")
        else:
            with refused(DataError, key=tmp_path / "network.csv"):
                drafted(tmp_path, "network.csv")
    files = [tmp_path / f"{name}.yaml" for name in ("north", "south")]
    for file in files:
        file.write_text(drafted(tmp_path, "accounts.csv", "payments.csv", party=file.stem).text)
    out = tmp_path / "job.yaml"
    said = CliRunner().invoke(app, ["init", *map(str, files), "--out", str(out)])
    assert said.exit_code == 0, said.output
    assert read_job(out).paradigm == "union"
    (line,) = [each for each in out.read_text().splitlines() if each.startswith("output: margins")]
    assert "each holder learns of its own nodes" in line
    said = CliRunner().invoke(
        app, ["init", *map(str, files), "--out", str(out), "--replace", "--paradigm", "horizontal"]
    )
    assert read_job(out).paradigm == "horizontal"
