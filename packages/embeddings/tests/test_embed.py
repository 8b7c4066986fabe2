"""Embedding for publication: what is published, what is not, what is refused, what a cut leaves behind."""

import csv
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import veilgraph_embeddings
import yaml
from safetensors import safe_open
from torch_geometric.data import Data
from veilgraph_embeddings.report import page_of
from veilgraph_embeddings.settings import parse_embed_job
from veilgraph_embeddings.sources import world_of

from packages.embeddings.tests.worlds import QUICK, crossed, job, rows_by_id
from tests.cli.commands import one_error
from tests.cli.commands import veilgraph as command
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, RunError

NAMES = [f"p{place:03}" for place in np.random.default_rng(0).permutation(80)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    stages = []
    path = tmp_path_factory.mktemp("made") / "run"
    found = veilgraph_embeddings.embed(
        job(name="small", data={"edges_public": True}),
        crossed(80),
        path,
        ids=NAMES,
        progress=lambda *each: stages.append(each),
    )
    assert ("apge", 40, 40) in stages
    assert ("plain", 40, 40) in stages
    assert stages[-1] == ("attacks", 2, 2)
    return found


def test_what_may_leave_is_ids_and_rows_by_id_and_nothing_else(made: Any) -> None:
    publish = made.path / "publish"
    assert sorted(each.name for each in publish.iterdir()) == ["card.json", "embeddings.csv", "embeddings.safetensors"]
    with (publish / "embeddings.csv").open(newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["id", *(f"e{place}" for place in range(8))]
    assert [line[0] for line in lines] == made.ids == sorted(NAMES)
    assert np.array_equal(np.array([line[1:] for line in lines], np.float32), made.rows.numpy())
    with safe_open(publish / "embeddings.safetensors", framework="pt") as file:
        names = set(file.keys())
        metadata = file.metadata()
    assert "rows" in names
    assert len(names) == 3  # the ids as bytes and their places
    assert metadata == {"facts": "{}"}


def test_no_hidden_value_is_in_what_may_leave(made: Any) -> None:
    """No published number is a function of the private value alone, or of its decoder's input."""
    private = torch.empty(80)
    private[torch.tensor(np.argsort(np.argsort(NAMES)))] = crossed(80).private.float()
    for column in made.rows.T:
        assert abs(float(torch.corrcoef(torch.stack([column, private]))[0, 1])) < 0.9
        assert len(column.unique()) > 40
    text = (made.path / "publish" / "card.json").read_text(encoding="utf-8")
    card = json.loads(text)
    assert sorted(card) == ["columns_from_edges", "dim", "method", "nodes", "veilgraph", "words"]
    assert "0." not in text.replace(card["veilgraph"], "")  # no figure that was computed from private values


def test_files_are_for_this_account_alone(made: Any) -> None:
    for each in [made.path, *made.path.rglob("*")]:
        assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600), each


def test_the_report_has_before_and_after_and_says_that_it_proves_nothing(made: Any) -> None:
    report = made.report
    assert [each["family"] for each in report["after"]["hide"]] == ["logistic", "neighbours", "gnn", "edges-alone"]
    assert report["before"]["attack"]["family"] != "edges-alone"
    assert "proves nothing" in report["proof"]
    assert report["counts"]["nodes"] == 80
    page = made.page.read_text(encoding="utf-8")
    assert report["proof"] in page
    assert f"{report['after']['attack']['advantage']['value']:.3f}" in page
    assert "http" not in page.replace("http-equiv", "")
    assert repr(made).startswith("Embeddings(")


def test_the_page_escapes_what_comes_from_data(tmp_path: Path) -> None:
    found = veilgraph_embeddings.embed(job("noise"), crossed(60), tmp_path / "run").report
    found["hide"]["name"] = "<script>"
    assert "<script>" not in page_of(found)


def test_a_complete_one_is_opened_again_and_a_changed_or_cut_one_is_not(made: Any, tmp_path: Path) -> None:
    again = veilgraph_embeddings.Embeddings(made.path)
    assert torch.equal(again.rows, made.rows)
    assert again.job == made.job
    with refused(RunError, key=made.path):
        veilgraph_embeddings.embed(job(), crossed(80), made.path)
    copied = tmp_path / "copy"
    for each in sorted(made.path.rglob("*")):
        target = copied / each.relative_to(made.path)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if each.is_file():
            target.write_bytes(each.read_bytes())
            target.chmod(0o600)
    copied.chmod(0o700)
    (copied / "publish" / "embeddings.csv").write_text("id\n", encoding="utf-8")
    with refused(RunError, key=Path("publish/embeddings.csv")):
        veilgraph_embeddings.Embeddings(copied)
    (copied / "private" / "published.json").unlink()
    with refused(RunError, key=copied):
        veilgraph_embeddings.Embeddings(copied)


def test_a_cut_leaves_nothing_to_publish(tmp_path: Path) -> None:
    def cut(stage: str, step: int, steps: int) -> None:
        if stage == "attacks":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        veilgraph_embeddings.embed(job(), crossed(60), tmp_path / "run", progress=cut)
    assert not (tmp_path / "run" / "publish").exists()
    with refused(RunError, key=tmp_path / "run"):
        veilgraph_embeddings.Embeddings(tmp_path / "run")


def test_the_order_of_rows_is_not_published_and_each_stays_with_its_id(tmp_path: Path) -> None:
    asked, data = job(method={"name": "plain", "dim": 2, "epochs": 2}), crossed(60)
    found = [
        veilgraph_embeddings.embed(asked, data, tmp_path / str(first), ids=[abs(first - place) for place in range(60)])
        for first in (0, 59)
    ]
    assert found[0].ids == found[1].ids == sorted(map(str, range(60)))
    rows = [rows_by_id(each.ids, each.rows) for each in found]
    assert torch.equal(rows[0], rows[1].flip(0))


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"hidden": "x"}, "hidden", "x"),
        ({"method": {"name": "apge", "epsilon": 1.0}}, "method.epsilon", 1.0),
        ({"method": "none"}, "method.name", "none"),
        ({"method": "noise"}, "method.epsilon", veilgraph_embeddings),
        ({"hide": "label"}, "hide", veilgraph_embeddings),
        ({"hide": {"column": "x", "cut": [2, 1]}}, "hide.cut", [2, 1]),
        ({"evaluation": {"families": ["svm"]}}, "evaluation.families", ["svm"]),
        ({"evaluation": {"known": 1.0}}, "evaluation.known", 1.0),
        ({"data": {"dataset": "cora", "graph": "g.safetensors"}}, "data", veilgraph_embeddings),
        ({"data": {"party": "g.safetensors"}}, "data", veilgraph_embeddings),
        ({"data": {"dataset": "cora", "block_model": {}}}, "data", veilgraph_embeddings),
    ],
)
def test_settings_that_break_a_rule_are_refused(changes: dict[str, Any], key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_embed_job({"hide": "private", **changes})
    assert caught.value.key is not None
    assert key.split(".", maxsplit=1)[0] in str(caught.value.key) + str(caught.value)
    if value is not veilgraph_embeddings:
        assert caught.value.value == value


def test_data_that_cannot_be_told_apart_are_refused() -> None:
    def asked(graph: Data, **changes: Any) -> None:
        veilgraph_embeddings.embed(job(**changes), graph)

    data = crossed(60)
    with refused(DataError, key="data", value=10):
        asked(crossed(10))
    with refused(DataError, key="hide", value="gone"):
        asked(data, hide="gone")
    with refused(DataError, key="hide", value=8):
        asked(data, hide=8)
    with refused(DataError, key="keep", value="label"):
        asked(Data(x=data.x, edge_index=data.edge_index, private=data.private))
    one = data.clone()
    one.private = torch.zeros(60)
    with refused(DataError, key="hide", value="private"):
        asked(one)
    many = torch.arange(240)
    with refused(DataError, key="hide", value="private"):
        asked(Data(x=torch.randn(240, 2), edge_index=data.edge_index, y=many % 2, private=many))
    one.private = torch.where(torch.arange(60) < 5, data.private.double(), torch.nan)
    with refused(DataError, key="hide"):
        asked(one)
    with refused(ConfigError, key="data.dataset"):
        asked(data, data={"dataset": "cora"})
    with refused(ConfigError, key="data"):
        veilgraph_embeddings.embed(job())


def test_a_copy_of_what_is_hidden_is_refused_with_numbers_and_a_hint_is_told(tmp_path: Path) -> None:
    data = crossed(80)
    x = torch.cat([data.x, 3.0 - 2 * data.private[:, None]], dim=1)
    with refused(DataError, code="copy", key="hide", value="8"):
        veilgraph_embeddings.embed(job("noise"), Data(x=x, edge_index=data.edge_index, y=data.y, private=data.private))
    x[:8, 8] = 4 - x[:8, 8]
    data.x = x
    found = veilgraph_embeddings.embed(job("noise"), data, tmp_path / "run")
    tells = {each["column"]: each["tells"] for each in found.report["proxies"]}
    assert tells["8"] == pytest.approx(0.8)
    assert sorted(tells.values(), reverse=True) == list(tells.values())


TABLE = "id,age,colour,sex,group\n" + "".join(
    f"n{place},{place % 7},{'rg'[place % 3 % 2]},{'fm'[place % 2]},{'ab'[place // 30]}\n" for place in range(60)
)
PARTY: dict[str, Any] = {
    "party": "shop",
    "nodes": {
        "file": "nodes.csv",
        "id": "id",
        "features": [{"columns": "age"}, {"columns": "colour", "categories": ["r", "g"]}],
    },
    "edges": [{"file": "edges.csv", "source": "a", "target": "b"}],
}


@pytest.fixture
def party(tmp_path: Path) -> Path:
    (tmp_path / "nodes.csv").write_text(TABLE, encoding="utf-8")
    edges = "a,b\n" + "".join(f"n{place},n{(place * 7 + 3) % 60}\n" for place in range(60))
    (tmp_path / "edges.csv").write_text(edges, encoding="utf-8")
    (tmp_path / "party.yaml").write_text(yaml.safe_dump(PARTY), encoding="utf-8")
    return tmp_path / "party.yaml"


def tables(party: Path, **changes: Any) -> dict[str, Any]:
    settings = {"data": {"party": str(party)}, "keep": "group", "hide": "sex", "method": {"name": "apge", **QUICK}}
    return {**settings, "evaluation": {"families": ["logistic"]}, **changes}


def test_a_party_files_tables_and_the_command(party: Path) -> None:
    path = party.parent / "job.yaml"
    path.write_text(yaml.safe_dump(tables(party)), encoding="utf-8")
    out = party.parent / "run"
    result = command("embed", path, "--out", out, "--set", "method.epochs=3", "--set", "hide.column=sex")
    assert result.exit_code == 0, result.output
    assert "proves nothing" in " ".join(result.output.split())
    found = veilgraph_embeddings.Embeddings(out)
    assert found.ids == sorted(f"n{place}" for place in range(60))
    assert found.report["hide"] == {"name": "sex", "classes": ["f", "m"]}
    assert found.job.method.model_dump()["epochs"] == 3
    assert "exists" in one_error(command("embed", path, "--out", out))


def test_tables_that_would_give_the_answer_away_are_refused(party: Path) -> None:
    for column, changes in (
        ("age", {}),
        (
            "colour",
            {"nodes": {**PARTY["nodes"], "features": [{"columns": "a*"}, {"columns": "c*", "categories": "rg"}]}},
        ),
    ):
        if "nodes" in changes:
            changes["nodes"]["features"][1]["categories"] = ["r", "g"]
        party.write_text(yaml.safe_dump({**PARTY, **changes}), encoding="utf-8")
        with refused(DataError, key="hide", value=column):
            veilgraph_embeddings.embed(tables(party, hide=column))


def test_features_that_all_nodes_are_in_cannot_be_noised(party: Path) -> None:
    nodes = {**PARTY["nodes"], "features": [{"columns": "age", "missing": "mean"}]}
    party.write_text(yaml.safe_dump({**PARTY, "nodes": nodes}), encoding="utf-8")
    with refused(ConfigError, key="nodes.features", value="mean"):
        veilgraph_embeddings.embed(tables(party, method={"name": "noise", "epsilon": 4.0}))


def test_a_column_of_numbers_is_cut_into_classes(party: Path) -> None:
    nodes = {**PARTY["nodes"], "features": [{"columns": "colour", "categories": ["r", "g"]}]}
    party.write_text(yaml.safe_dump({**PARTY, "nodes": nodes}), encoding="utf-8")
    found = world_of(parse_embed_job(tables(party, hide={"column": "age", "cut": [2, 5]})))
    assert found.hide.classes == ("< 2", "2 to 5", "≥ 5")
    assert found.hide.codes[:7].tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert found.columns == ("colour=r", "colour=g")


def test_a_feature_of_a_graph_is_taken_out_of_what_is_embedded() -> None:
    data = crossed(60)
    data.x = data.x.to_sparse_csr()
    found = world_of(job(hide={"column": 3, "cut": [0.0]}), data)
    assert found.columns == ("0", "1", "2", "4", "5", "6", "7")
    assert torch.equal(found.features.to_dense(), crossed(60).x[:, [0, 1, 2, 4, 5, 6, 7]])
    assert torch.equal(found.hide.codes, (crossed(60).x[:, 3] >= 0).long())
