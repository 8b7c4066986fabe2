"""What is decided of a party file is written as decided, and no longer asked."""

import random

import pytest
from veilgraph_wizard.draft import draft
from veilgraph_wizard.guess import guess
from veilgraph_wizard.sampling import ROWS, sample

from tests import nightly
from tests.cli.commands import one_error, veilgraph
from tests.messy.export import export
from tests.tables.writing import with_classes, write
from veilgraph.protocol.party_settings import parse_party_text, read_party_settings
from veilgraph.tables.column_settings import DateFeatures, NumericFeatures
from veilgraph.tables.describe import describe_party
from veilgraph.tables.settings import SplitFractions, SplitTimes

SEALED = ["predicted-classes", "predicted-margins", "sealed-scores"]
"""What a sealed job that `init` writes tells."""


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    return export(tmp_path_factory.mktemp("messy") / "exports", customers=300)


def init(files, out, *options):
    result = veilgraph("data", "init", *files, "--out", out, *options)
    assert result.exit_code == 0, result.output
    return result.stdout, read_party_settings(out)


BANK = (
    *("--party", "bank", "--id", "Kunde_ID", "--ids", "strip,lower", "--label", "fraud", "--encoding", "cp1252"),
    *("--split", "confirmed_at:2024-04-15:2024-05-20", "--as-of", "2024-04-15", "--missing", "unbekannt"),
    *("--directed", "no"),
)


def test_with_every_decision_made_nothing_is_left_to_decide(messy, tmp_path):
    said, settings = init(messy["bank"], tmp_path / "bank.yaml", *BANK)
    assert "to decide" not in said
    assert "decide:" not in (tmp_path / "bank.yaml").read_text()
    nodes = settings.nodes
    assert (nodes.id, nodes.encoding, nodes.decimal) == ("Kunde_ID", "cp1252", ",")
    assert set(nodes.missing_values) == {"-", "NA", "unbekannt"}
    assert (settings.ids.strip, settings.ids.lower) == (True, True)
    assert isinstance(nodes.split, SplitTimes)
    assert (nodes.split.by, str(nodes.split.train_before)[:10]) == ("confirmed_at", "2024-04-15")
    income = next(each for each in nodes.features if each.columns == ("Einkommen",))
    assert isinstance(income, NumericFeatures)
    born = next(each for each in nodes.features if isinstance(each, DateFeatures))
    assert str(born.date.days_since)[:10] == "2024-04-15"
    (transfers,) = settings.edges
    assert transfers.filter is not None
    assert (transfers.filter.column, str(transfers.filter.before)[:10]) == ("booked_at", "2024-04-15")
    assert not transfers.directed
    assert transfers.relation is not None
    assert set(transfers.relation.weights) == {"Überweisung", "Lastschrift"}
    described = describe_party(settings, tmp_path)
    assert described.classes is not None
    assert described.splits is not None
    assert min(described.classes.values()) > 0
    assert min(described.splits.values()) > 0


@nightly
def test_every_decision_names_the_option_that_makes_it(messy, tmp_path):
    said, settings = init(messy["bank"], tmp_path / "bank.yaml")
    for option in (
        "--id)",
        "--ids)",
        "--label,",
        "--split confirmed_at:2024-",
        "--as-of)",
        "--encoding)",
        "--missing)",
    ):
        assert option in said, option
    assert isinstance(settings.nodes.split, SplitFractions)
    suggested = next(word for word in said.split() if word.startswith("confirmed_at:")).rstrip(")")
    _, dated = init(messy["bank"], tmp_path / "dated.yaml", "--split", suggested)
    splits = describe_party(dated, tmp_path).splits
    assert splits is not None
    assert splits["train"] / sum(splits.values()) == pytest.approx(0.6, abs=0.02)
    assert splits["val"] / sum(splits.values()) == pytest.approx(0.2, abs=0.02)


@nightly
def test_other_organisations_of_the_export_are_understood(messy, tmp_path):
    _, shop = init(messy["shop"], tmp_path / "shop.yaml", "--party", "shop", "--ids", "strip,lower")
    _, telco = init(messy["telco"], tmp_path / "telco.yaml", "--party", "telco", "--ids", "strip,lower")
    assert shop.nodes.join[0].prefix == "usage."
    assert [each.source for each in telco.edges] == ["caller", "subscriber_a"]
    assert describe_party(shop, tmp_path).nodes > 200
    assert describe_party(telco, tmp_path).nodes > 200


def test_exact_ids_and_no_label_and_columns_left_out(messy, tmp_path):
    said, settings = init(messy["bank"], tmp_path / "b.yaml", "--ids", "exact", "--no-label", "--leave-out", "Segment")
    assert (settings.ids.strip, settings.ids.lower) == (False, False)
    assert settings.nodes.label is None
    assert settings.nodes.split is None
    assert "nodes.label" not in said
    assert ("Segment",) not in [each.columns for each in settings.nodes.features]


@pytest.mark.parametrize("key", ["00112233445566778899", "an odd: {key} of words"])
def test_a_split_by_a_key_is_of_each_id_and_a_short_key_is_refused(messy, tmp_path, key):
    (tmp_path / "split.key").write_text(f"{key}\n")
    chosen = ("--label", "fraud", "--split", f"random:{tmp_path / 'split.key'}")
    _, settings = init(messy["bank"], tmp_path / "b.yaml", *chosen)
    assert isinstance(settings.nodes.split, SplitFractions)
    assert (settings.nodes.split.key, settings.nodes.split.stratify) == (key, False)
    (tmp_path / "split.key").write_text(key[:15])
    error = one_error(veilgraph("data", "init", *messy["bank"], "--out", tmp_path / "no.yaml", *chosen))
    assert "a key is one line of 16 characters or more" in error
    assert key[:15] not in error


def test_a_split_by_a_column_of_the_node_table_is_no_feature(tmp_path):
    rows = {
        "id": [f"n{each}" for each in range(40)],
        "x": [each % 7 / 2 for each in range(40)],
        "fraud": ["yes", "no"] * 20,
    }
    write(tmp_path / "n.csv", rows | {"seen:at": [f"2024-0{each % 6 + 1}-01" for each in range(40)]})
    _, settings = init([tmp_path / "n.csv"], tmp_path / "p.yaml", "--split", "seen:at:2024-03-01:2024-05-01")
    assert [each.columns for each in settings.nodes.features] == [("x",)]
    assert describe_party(settings, tmp_path).splits == {"train": 14, "val": 14, "test": 12}


def test_a_number_that_is_missing_is_within_its_range(tmp_path):
    rows = {
        "id": [f"n{each}" for each in range(40)],
        "age": ["", "20"] * 20,
        "gain": ["", "2"] * 20,
        "x": ["", "1", "", "3"] * 10,
    }
    write(tmp_path / "n.csv", rows)
    ranges = ("--range", "age:18:120", "--range", "gain:-5:5")
    _, settings = init(
        [tmp_path / "n.csv"], tmp_path / "p.yaml", *ranges, "--protect", "node", "--epsilon", "2", "--no-label"
    )
    assert [(each.missing, each.scale and each.scale.low) for each in settings.nodes.features] == [
        *((18.0, 18.0), ("zero", -5.0), ("zero", None))
    ]
    assert describe_party(settings, tmp_path).nodes == 40
    _, usual = init([tmp_path / "n.csv"], tmp_path / "u.yaml", *ranges, "--no-label")
    assert [each.missing for each in usual.nodes.features] == ["mean"] * 3
    assert usual.limits.max_epsilon is None


@pytest.mark.parametrize(("unit", "each"), [("label", True), ("node-edges", True), ("node", False)])
def test_who_is_trained_on_is_drawn_node_by_node_where_labels_are_protected(tmp_path, unit, each):
    write(
        tmp_path / "n.csv",
        {"id": [f"n{i}" for i in range(40)], "x": [each % 7 / 2 for each in range(40)], "fraud": ["yes", "no"] * 20},
    )
    options = ("--label", "fraud", "--split", "random", "--protect", unit, "--epsilon", "1")
    said, settings = init([tmp_path / "n.csv"], tmp_path / "p.yaml", *options)
    assert ("to decide: nodes.label: which classes" in said) == each
    if each:
        assert settings.nodes.label is None
        with_classes(tmp_path / "p.yaml", "yes, no")
        settings = read_party_settings(tmp_path / "p.yaml")
    assert {*settings.nodes.label.classes} == {"yes", "no"}
    assert isinstance(settings.nodes.split, SplitFractions)
    assert settings.nodes.split.stratify != each


@pytest.mark.parametrize(("unit", "written"), [("label", False), ("node-edges", False), ("node", True), ("edge", True)])
@pytest.mark.parametrize("apart", [False, True], ids=["in the node table", "in a file of their own"])
def test_no_class_that_one_label_has_is_written_where_it_is_protected(tmp_path, unit, written, apart):
    """HELLO states how many classes there are: one of a single node alone would tell of its label."""
    nodes = {"id": [f"n{i}" for i in range(40)], "x": [each % 7 / 2 for each in range(40)]}
    labels = {"id": nodes["id"], "label": ["rare", *["usual", "other"] * 19, "usual"]}
    write(tmp_path / "n.csv", nodes if apart else nodes | labels)
    write(tmp_path / "l.csv", labels)
    files = [tmp_path / "n.csv", *([tmp_path / "l.csv"] if apart else [])]
    options = ("--label", "label", "--split", "random", "--protect", unit, "--epsilon", "1")
    _, settings = init(files, tmp_path / "p.yaml", *options)
    assert ("rare" in (tmp_path / "p.yaml").read_text(encoding="utf-8")) == written
    if not written:
        with_classes(tmp_path / "p.yaml", "usual, other, rare, never")
        settings = read_party_settings(tmp_path / "p.yaml")
    found = describe_party(settings, tmp_path).classes
    assert found is not None
    assert found["rare"] == 1
    assert ("never" in found) != written


def test_accepted_paradigms_are_limits_of_the_file(messy, tmp_path):
    _, usual = init(messy["shop"], tmp_path / "usual.yaml")
    _, both = init(messy["shop"], tmp_path / "both.yaml", "--accept", "vertical", "--accept", "sealed")
    assert set(both.limits.leakage) == {*usual.limits.leakage, *SEALED}
    _, wide = init(messy["shop"], tmp_path / "wide.yaml", "--accept", "horizontal")
    assert wide.limits.max_rounds == 2
    error = one_error(veilgraph("data", "init", *messy["shop"], "--out", tmp_path / "no.yaml", "--accept", "wide"))
    assert "--accept" in error
    assert not (tmp_path / "no.yaml").exists()


@pytest.mark.cases(8)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--id", "nobody"), "--id nobody"),
        (("--id", "Segment"), "--id Segment"),
        (("--ids", "upper"), "--ids upper"),
        (("--ids", ""), "--ids"),
        (("--label", "nothing"), "--label nothing"),
        (("--label", "Anschrift"), "--label Anschrift"),
        (("--label", "fraud", "--no-label"), "--label fraud"),
        (("--split", "random", "--no-label"), "--split random"),
        (("--split", "random:none.key"), "--split random:none.key"),
        (("--split", "confirmed_at"), "--split confirmed_at"),
        (("--split", "confirmed_at:2024-05-01:soon"), "'soon'"),
        (("--split", "confirmed_at:2024-05-01:2024-05-01"), "--split confirmed_at:2024-05-01:2024-05-01"),
        (("--split", "geboren:2024-04-01:2024-05-01"), "--split geboren"),
        (("--as-of", "01.05.2024"), "--as-of 01.05.2024"),
        (("--encoding", "cp99999"), "--encoding cp99999"),
        (("--encoding", "base64"), "--encoding base64"),
        (("--leave-out", "Nix"), "--leave-out Nix"),
        (("--ends", "Nix:Kunde_ID"), "--ends Nix:Kunde_ID"),
        (("--ends", "Kunde_ID"), "--ends Kunde_ID"),
        (("--range", "Segment:0:1"), "--range Segment"),
        (("--range", "Einkommen:1:1"), "--range Einkommen:1:1"),
        (("--range", "Einkommen:0:inf"), "--range Einkommen:0:inf"),
        (("--range", "Einkommen:5"), "--range Einkommen:5"),
    ],
)
def test_bad_decisions_are_refused_and_nothing_is_written(messy, tmp_path, options, words):
    assert words in one_error(veilgraph("data", "init", *messy["bank"], "--out", tmp_path / "p.yaml", *options))
    assert not list(tmp_path.iterdir())


def test_a_draft_is_replaced_only_where_that_is_asked_for(messy, tmp_path):
    out = tmp_path / "shop.yaml"
    init(messy["shop"], out)
    assert "--replace" in one_error(veilgraph("data", "init", *messy["shop"], "--out", out, "--ids", "lower"))
    assert not read_party_settings(out).ids.lower
    assert "--ids" in one_error(veilgraph("data", "init", *messy["shop"], "--out", out, "--replace", "--ids", "up"))
    _, settings = init(messy["shop"], out, "--replace", "--ids", "lower")
    assert settings.ids.lower


def test_texts_that_recur_among_numbers_or_dates_are_no_values(tmp_path):
    seeded = random.Random(0)
    numbers = ["1.08" if each % 3 else f"{seeded.random():.9f}" for each in range(200)]
    numbers[::10] = [seeded.choice(["k.A.", "?"]) for _ in range(20)]
    days = ["offen" if each % 20 == 0 else f"2024-01-{each % 28 + 1:02}" for each in range(200)]
    streets = ["Platz" if each % 20 == 0 else f"Weg {each}" for each in range(200)]
    once = ["only once"] + [f"{each}.5" for each in range(199)]
    columns = {"id": [f"n{each}" for each in range(200)], "x": numbers, "d": days, "s": streets, "once": once}
    write(tmp_path / "n.csv", columns)
    found = sample(tmp_path / "n.csv")
    assert found.markers == ("?", "k.A.", "offen")
    assert found.doubtful == ("k.A.", "offen")
    assert {each.name: each.kind for each in found.columns} == {
        "id": "text", "x": "number", "d": "date", "s": "text", "once": "text",
    }  # fmt: skip
    drafted = draft(guess([found]), "bank", tmp_path)
    assert any("--missing" in each for each in drafted.decisions)
    assert describe_party(parse_party_text(drafted.text), tmp_path).num_features == 2


@pytest.mark.parametrize("name", ["e.csv", "e.parquet"])
def test_a_relation_that_comes_late_in_a_sorted_file_is_seen(tmp_path, name):
    kinds = ["card"] * (2 * ROWS) + ["cash"] * ROWS
    write(tmp_path / name, {"source": ["u"] * len(kinds), "target": ["v"] * len(kinds), "kind": kinds})
    found = sample(tmp_path / name)
    assert found.columns[2].distinct == ("card", "cash")
    assert len(found.columns[2].values) == ROWS


@pytest.mark.parametrize(
    ("unit", "categories", "relations"),
    [
        ("node", False, True),
        ("training-record", False, True),
        ("node-edges", False, False),
        ("edge", True, False),
        ("label", True, True),
    ],
)
def test_nothing_that_one_node_or_edge_has_is_written_where_it_is_protected(tmp_path, unit, categories, relations):
    """A category or relation of one node or edge alone would tell of it, in every job's number of columns."""
    write(
        tmp_path / "n.csv",
        {
            "id": [f"n{i}" for i in range(40)],
            "x": [each % 7 / 2 for each in range(40)],
            "kind": ["odd", *["usual"] * 39],
        },
    )
    pairs = {"source": [f"n{i}" for i in range(30)], "target": [f"n{i + 1}" for i in range(30)]}
    write(tmp_path / "e.csv", {**pairs, "channel": ["rare", *["common"] * 29]})
    files = [tmp_path / "n.csv", tmp_path / "e.csv"]
    _, settings = init(files, tmp_path / "p.yaml", "--no-label", "--protect", unit, "--epsilon", "1")
    text = (tmp_path / "p.yaml").read_text(encoding="utf-8")
    assert ("odd" in text) == categories
    assert ("rare" in text) == relations
    assert settings.limits.epsilon_unit == unit
    assert settings.limits.epsilon_neighbours == ("replacement" if unit in ("edge", "label") else "zero-out")


def test_most_neighbours_in_a_draft_are_of_no_tables(tmp_path):
    """The largest degree of the tables would tell of a node; whoever knows what they mean decides."""
    limits = []
    for hub in (1, 30):
        write(tmp_path / "n.csv", {"id": [f"n{i}" for i in range(40)], "x": [each % 7 / 2 for each in range(40)]})
        write(tmp_path / "e.csv", {"source": ["n0"] * hub, "target": [f"n{i + 1}" for i in range(hub)]})
        files = [tmp_path / "n.csv", tmp_path / "e.csv"]
        for unit in ("edge", "node-edges", "node", "label"):
            said, settings = init(
                files, tmp_path / "p.yaml", "--no-label", "--protect", unit, "--epsilon", "1", "--replace"
            )
            protects = unit in ("edge", "node-edges")
            assert ("to decide: limits.most_neighbours" in said) == protects
            assert (settings.limits.most_neighbours is not None) == protects
            limits.append((unit, settings.limits.most_neighbours))
        chosen, settings = init(
            files, tmp_path / "p.yaml", "--no-label", "--protect", "edge", "--epsilon", "1", "--replace",
            "--most-neighbours", "50",
        )  # fmt: skip
        assert settings.limits.most_neighbours == 50
        assert "limits.most_neighbours" not in chosen
    assert limits[:4] == limits[4:]
    error = veilgraph("data", "init", *files, "--protect", "node", "--epsilon", "1", "--most-neighbours", "9")
    assert error.exit_code == 2
    assert "--most-neighbours" in error.stderr


@pytest.mark.parametrize("rare", ["fraud", "ok"])
def test_the_rarer_of_two_classes_comes_last_as_average_precision_is_of_it(tmp_path, rare):
    common = "ok" if rare == "fraud" else "fraud"
    ids, ages = [f"c{n}" for n in range(60)], [20 + n for n in range(60)]
    write(tmp_path / "n.csv", {"customer_id": ids, "age": ages, "found": [rare, common, f"{common} "] * 20})
    out = tmp_path / "p.yaml"
    _, settings = init([tmp_path / "n.csv"], out, "--label", "found")
    assert settings.nodes.label.classes == (common, rare)
    assert "# the second is looked for" in out.read_text()


def test_classes_of_whole_numbers_are_drafted_without_a_point(tmp_path):
    ids, found = [f"c{n}" for n in range(60)], ["1.0", "0.0", "0", None] * 15
    write(tmp_path / "n.csv", {"customer_id": ids, "age": [20 + n for n in range(60)], "found": found})
    _, settings = init([tmp_path / "n.csv"], tmp_path / "p.yaml", "--label", "found")
    assert settings.nodes.label.classes == ("0", "1")
    assert '["0", "1"]' in (tmp_path / "p.yaml").read_text(encoding="utf-8")
    assert describe_party(settings, tmp_path).classes == {"0": 30, "1": 15}
