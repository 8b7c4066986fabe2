"""Ids that differ in how they are written: folded alike where they can be, and else each holder is told."""

import pandas as pd
import pyarrow as pa
import pytest
import yaml

import veilgraph as vg
from tests.cli.commands import veilgraph
from tests.tables.writing import party, write
from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import IdSettings
from veilgraph.tables.columns import all_match_rates, match_rate
from veilgraph.tables.nodes import read_nodes


def ids_of(folder, ids, **spelling):
    write(folder / "nodes.csv", {"id": ids, "x": [1.5] * len(ids)})
    table: pa.StringArray = read_nodes(party(ids=spelling), folder).ids
    return table.to_pylist()


def test_ids_that_look_the_same_are_the_same_where_case_does_not_count(tmp_path):
    one = ["Straße 1", "İzmir", "CAFE\u0301", "ΣΊΣΥΦΟΣ", "MÜLLER "]
    other = ["STRASSE 1", "i\u0307zmir", "café", "σίσυφος", "müller"]
    found = [ids_of(tmp_path, each, strip=True, lower=True) for each in (one, other)]
    assert found[0] == found[1] == ["strasse 1", "i\u0307zmir", "café", "σίσυφοσ", "müller"]


@pytest.mark.parametrize(
    ("ids", "hint"),
    [
        (["7", "12", "300"], "these have no leading zeros"),
        (["007", "012", "300"], "these have leading zeros"),
        (["KD-1", "KD-2", "KD-30"], "these all begin with 'KD-'"),
        (["a1", "b2 ", "c3"], "spaces at an end"),
        (["A1", "b2", "c3"], "some have capitals"),
        (["ä1", "b2", "c3"], "letters beyond ASCII"),
    ],
)
def test_few_common_ids_are_a_warning_with_what_may_differ(ids, hint):
    said, is_warning = match_rate(1, ids, IdSettings())
    assert is_warning
    assert said.startswith("1 of 3 own ids (33%) are common to all holders")
    assert hint in said
    others = {"no leading", "have leading", "all begin", "spaces", "capitals", "beyond ASCII"}
    assert sum(each in said for each in others) == (2 if hint.startswith("these all") else 1)


def numbered(form: str, first: int = 0) -> list[str]:
    return [form.format(each) for each in range(first, first + 60)]


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (
            numbered("{:03}"),
            numbered("{}"),
            "without leading zeros (ids: {unpadded: true} at all holders), 60 would be",
        ),
        (numbered("C{}"), numbered("c{}"), "without case"),
        (numbered("{} x"), numbered("{}x"), "without spaces"),
        (numbered("KD-{}"), numbered("{}"), "without what is before the digits, 60"),
        (numbered("KD-{:05}"), numbered("{}"), "before the digits, and leading zeros"),
        (numbered("\uff21{}"), numbered("A{}"), "in one Unicode form"),
        (numbered("a{}"), numbered("a{}", 100), "do not explain it"),
        (numbered("a{}"), [f"b{each % 2}{each}" for each in range(200, 260)], "do not explain it"),
        ([f"{kind}{each}" for each in range(30) for kind in "xy"], numbered("{}"), "do not explain it"),
    ],
)
def test_what_keeps_ids_apart_is_found_where_all_tables_are_here(one, other, why):
    said, warning = all_match_rates({"A": one, "B": other})
    assert said.startswith("ids that are common to all holders: A ")
    assert why in warning


def test_the_rates_are_told_before_anything_is_trained(tmp_path):
    """One holder's spreadsheet has taken the zeros away: half of the customers would be lost without a word."""
    ids = [f"{each:02}" for each in range(20)]
    for name, own in (("bank", ids), ("shop", [each.lstrip("0") or "0" for each in ids])):
        (tmp_path / name).mkdir()
        labels = {"y": ["no", "yes"] * 10} if name == "bank" else {}
        write(tmp_path / name / "nodes.csv", {"id": own, "x": [each % 7 + 0.5 for each in range(20)], **labels})
        nodes: dict[str, object] = {"file": "nodes.csv", "id": "id", "features": [{"columns": "x"}]}
        if labels:
            nodes["label"] = {"column": "y", "classes": ["no", "yes"]}
            nodes["split"] = {"train": 0.5, "val": 0.25, "test": 0.25}
        (tmp_path / name / "party.yaml").write_text(yaml.safe_dump({"party": name, "nodes": nodes}))
    files = [tmp_path / name / "party.yaml" for name in ("bank", "shop")]
    drafted = veilgraph("init", *files, "--out", tmp_path / "job.yaml", "--paradigm", "vertical")
    rate = "bank 10 of 20 (50%), shop 10 of 20 (50%)"
    assert drafted.exit_code == 0, drafted.output
    checked = veilgraph("check", tmp_path / "job.yaml", "--set", "train.epochs=1")
    compared = veilgraph("compare", tmp_path / "job.yaml", "--set", "train.epochs=1", "--out", tmp_path / "compared")
    trained = veilgraph("train", tmp_path / "job.yaml", "--set", "train.epochs=1", "--out", tmp_path / "run")
    for result in (drafted, checked, compared, trained):
        said = " ".join(result.output.split())
        assert rate in said
        assert "written without leading zeros (ids: {unpadded: true} at all holders), 20 would be" in said
    for file in files:
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"ids": {"unpadded": True}}))
    mended = veilgraph("check", tmp_path / "job.yaml", "--set", "train.epochs=1")
    assert "bank 20 of 20 (100%), shop 20 of 20 (100%)" in " ".join(mended.output.split())
    write(tmp_path / "shop" / "nodes.csv", {"id": [f"KD-{each}" for each in ids], "x": [1.5] * 20})
    (tmp_path / "job.yaml").rename(tmp_path / "earlier.yaml")
    for words in (("init", *files), *((each, tmp_path / "earlier.yaml") for each in ("check", "train", "compare"))):
        refused = veilgraph(*words, *(() if words[0] == "check" else ("--out", tmp_path / "none")))
        assert refused.exit_code == 1
        said = " ".join(refused.stderr.split())
        assert "no id is common to all holders (bank 'id' in nodes.csv, shop 'id' in nodes.csv): written" in said
        assert "without what is before the digits" in said
        assert "--id COLUMN" in said
    frames = {file.parent.name: pd.read_csv(file.parent / "nodes.csv", dtype={"id": str}) for file in files}
    tables = {name: vg.Tables(each, id="id", label="y" if name == "bank" else None) for name, each in frames.items()}
    for parties in (None, tables):
        with pytest.raises(DataError) as caught:
            vg.fit(tmp_path / "earlier.yaml" if parties is None else {}, parties=parties, out=tmp_path / "none")
        assert caught.value.code == "no-common-id"
        assert not (tmp_path / "none").exists()


def test_a_few_ids_that_zeros_keep_apart_are_told_of_too():
    """Of 60 ids 6 have a zero in front: nine tenths match, and nobody would look for the rest."""
    ids = [f"{each:03}" for each in range(94, 154)]
    said, warning = all_match_rates({"A": ids, "B": [each.lstrip("0") for each in ids]})
    assert "A 54 of 60 (90%)" in said
    assert "60 would be" in warning
    assert all_match_rates({"A": ids, "B": ids[3:]})[1] == ""
