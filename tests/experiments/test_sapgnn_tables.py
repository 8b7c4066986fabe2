from dataclasses import replace

from research.paper_tables import TABLES, reproduce
from research.sapgnn_tables import SAPGNN_TABLES

TINY = {"data.dataset": "synthetic", "model.dim": 8, "model.server.dropout": 0.5, "train.epochs": 4}


def quiet(what, done, total):
    pass


def tiny(monkeypatch, name, chosen=lambda entry: True):
    """The table with Cora's places on the synthetic graph."""
    plan = TABLES[name]
    entries = tuple(
        replace(entry, dataset="synthetic", overrides={**entry.overrides, **TINY})
        for entry in plan.entries
        if entry.dataset == "cora" and chosen(entry)
    )
    monkeypatch.setitem(TABLES, name, replace(plan, entries=entries))


def row(text, start):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [word.strip() for word in line.strip("|").split("|")]


def test_accuracy_and_f1_stand_beside_the_papers_and_do_not_depend_on_the_holders(tmp_path, monkeypatch):
    tiny(monkeypatch, "sapgnn-table4")
    text = reproduce("sapgnn-table4", seeds=1, datasets=None, out=tmp_path, progress=quiet, engine="plaintext")
    accuracy, f1 = text.split("macro F1 |")
    assert (
        "| data set, model: accuracy | engine | P = 1 | paper | P = 2 | paper | P = 3 | paper | P = 4 | paper |" in text
    )
    for half, paper in ((accuracy, "0.785"), (f1, "0.774")):
        ours = row(half, "cora, SAPGNN")
        assert ours[2::2] == [ours[2]] * 4
        assert ours[3::2] == [paper] * 4
        assert row(half, "cora, SP")[2] == ours[2]
        assert row(half, "cora, PPGNN")[2:4] == ["–", "–"]
    assert row(accuracy, "cora, SP")[3::2] == ["0.785", "0.752", "0.727", "0.706"]
    for model in ("PPGNN", "PPGNN end to end"):
        assert row(f1, f"cora, {model}")[5::2] == ["0.765", "0.759", "0.751"]
    assert accuracy != f1
    assert "- Test accuracy and macro F1 at the epoch" in text
    assert "- 13 trainings, " in text


def test_every_place_divides_as_the_paper_says():
    table, figure = (SAPGNN_TABLES[name].entries for name in ("sapgnn-table4", "sapgnn-figure4"))
    assert len(table) == 3 * (4 + 3 + 3 + 4)
    assert len(figure) == 3 * 3 * 3 * 3
    for entry in table:
        parts = entry.settings.data.partition
        assert (parts.by, parts.knows) == ("edges", "all")
        holders = int(entry.column[-1])
        assert entry.kind == "pooled" if holders == 1 else entry.settings.data.holders == holders
    for entry in figure:
        data = entry.settings.data
        assert data.partition.by == "labels"
        assert f"q = {100 * data.partition.mixed:.0f} %" in entry.row
        assert entry.column == f"P = {data.holders}"
        assert data.partition.knows == {"ppgnn": "all", "ppgnn-two-stages": "all", "federated": "own"}[entry.kind]
