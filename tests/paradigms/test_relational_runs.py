"""Jobs with relations from beginning to end: HeteroData through ``vg.fit``, tables through the command line."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import veilgraph as vg
from tests import nightly
from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from tests.tables.writing import write
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job_file import parse_job

NODES, EACH = 200, 8
LOCAL = {"model": "relational", "hops": 1}


def job(**changes: Any) -> dict[str, Any]:
    train = {"epochs": 60, "patience": None, "learning_rate": 0.02}
    return {"model": {"dim": 8, "local": LOCAL}, "train": train, **changes}


def short(**local: Any) -> dict[str, Any]:
    return job(train={"epochs": 2, "patience": None}, model={"dim": 4, "local": {**LOCAL, **local}})


def joined(labels: Tensor, generator: torch.Generator, *, alike: bool) -> Tensor:
    """Edges from every node to ``EACH`` others, all of its class or all of the other, and back."""
    source = torch.arange(NODES).repeat_interleave(EACH)
    target = 2 * torch.randint(NODES // 2, (NODES * EACH,), generator=generator)
    target += labels[source] if alike else 1 - labels[source]
    edges = torch.stack([source, target])
    return torch.cat([edges, edges.flip(0)], dim=1)


def friends_and_foes(seed: int = 0) -> HeteroData:
    """Two classes whose features lean apart a little; friends are of one class, foes of both."""
    generator, labels = torch.Generator().manual_seed(seed), torch.arange(NODES) % 2
    data = HeteroData()
    data["customer"].x = torch.randn(NODES, 8, generator=generator)
    data["customer"].x[:, 0] += labels - 0.5
    data["customer"].y = labels
    order = torch.randperm(NODES, generator=generator)
    for name, rows in zip(("train_mask", "val_mask", "test_mask"), order.split([40, 40, 120]), strict=True):
        data["customer"][name] = torch.zeros(NODES, dtype=torch.bool).index_fill(0, rows, True)
    for name, alike in (("friend", True), ("foe", False)):
        data["customer", name, "customer"].edge_index = joined(labels, generator, alike=alike)
    return data


def shop() -> Data:
    features = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(9))
    return Data(x=features, edge_index=torch.zeros(2, 0, dtype=torch.int64))


def parties(**hops: int) -> dict[str, HeteroData | Data]:
    data = friends_and_foes()
    for name, each in hops.items():
        data["customer", name, "customer"].hops = each
    return {"bank": data, "shop": shop()}


@nightly
def test_relations_that_point_opposite_ways_are_learnt_apart_and_lost_together(tmp_path: Path) -> None:
    """A node's neighbours all together are of both classes alike, whatever its own."""
    apart = vg.fit(job(), parties(), out=tmp_path / "apart")
    merged = {"model": {"dim": 8, "local": {**LOCAL, "model": "sage-mean"}}}
    together = vg.fit(job(**merged), parties(), out=tmp_path / "together")
    assert apart.metrics["test_accuracy"] > 0.9
    assert together.metrics["test_accuracy"] < 0.75


def test_heterodata_trains_predicts_resumes_and_is_audited(tmp_path: Path) -> None:
    data = parties(foe=1)
    run = vg.fit(short(), data, out=tmp_path / "run", record_views=True)
    saved = vg.load_run(tmp_path / "run")
    assert torch.equal(saved.predict().probabilities, run.predict().probabilities)
    graphs = {"bank": PartyGraph.from_data("bank", data["bank"]), "shop": PartyGraph.from_data("shop", data["shop"])}
    again = vg.fit(short(), graphs, out=tmp_path / "again")
    assert torch.equal(again.predict().probabilities, run.predict().probabilities)
    done = veilgraph("audit", tmp_path / "run", "--attack", "link-similarity", "--adversary", "server")
    assert done.exit_code == 0, done.output


def test_names_of_relations_are_in_their_holders_part_of_the_run_alone(tmp_path: Path) -> None:
    """As they lie in its graph and its weights; nowhere in what the others have, or in the run's own files."""
    data = parties()
    bank = data["bank"]
    assert isinstance(bank, HeteroData)
    bank["customer", "zzfriendzz", "customer"].edge_index = torch.tensor([[0], [1]])
    vg.fit(short(), data, out=tmp_path / "run", record_views=True)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    named = {path.relative_to(tmp_path / "run").parts[:2] for path in files if b"zzfriendzz" in path.read_bytes()}
    assert named == {("parties", "bank")}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(short(model="sage-mean"), id="another local model"),
        pytest.param({"paradigm": "sealed", "train": {"epochs": 1, "patience": None}}, id="sealed"),
    ],
)
def test_hops_of_a_relation_are_refused_where_no_model_knows_them(tmp_path: Path, settings: dict[str, Any]) -> None:
    with refused(ConfigError, key="parties", value=1, party="bank", code="hops"):
        vg.fit(settings, parties(foe=1), out=tmp_path / "run")


def test_a_horizontal_job_takes_heterodata_with_its_ids_as_one_graph(tmp_path: Path) -> None:
    first, second = friends_and_foes(0), friends_and_foes(1)
    first["customer"].n_id, second["customer"].n_id = torch.arange(NODES), torch.arange(NODES) + NODES // 2
    settings = {"paradigm": "horizontal", "train": {"epochs": 1, "patience": None}}
    run = vg.fit(settings, {"bank": first, "shop": second}, out=tmp_path / "run")
    assert run.predict(ids=["7", str(NODES + 1)]).ids == ("7", str(NODES + 1))


RELATIONAL: dict[str, Any] = {"local": {"model": "relational"}}


def test_where_it_is_not_supported_the_job_is_refused() -> None:
    with refused(ConfigError, key="local.model", value="relational"):
        parse_job({"data": {"dataset": "synthetic"}, "paradigm": "averaging", "model": RELATIONAL})


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Friends and foes as two files of a bank, and a shop without edges."""
    data = friends_and_foes()
    customers, split = data["customer"], ["test"] * NODES
    for name in ("train", "val"):
        for row in customers[f"{name}_mask"].nonzero().flatten().tolist():
            split[row] = name
    ids = [f"c{row}" for row in range(NODES)]
    columns = {f"x{place}": column.tolist() for place, column in enumerate(customers.x.T)}
    classes = ["yes" if label else "no" for label in customers.y.tolist()]
    write(tmp_path / "bank.parquet", {"id": ids, **columns, "y": classes, "split": split})
    for name in ("friend", "foe"):
        ends = data["customer", name, "customer"].edge_index[:, : NODES * EACH].tolist()
        write(
            tmp_path / f"{name}.parquet",
            {end: [ids[row] for row in rows] for end, rows in zip("ab", ends, strict=True)},
        )
    write(tmp_path / "shop.parquet", {"id": ids, "z": shop().x[:, 0].tolist()})
    bank_nodes: dict[str, Any] = {"file": "bank.parquet", "id": "id", "features": [{"columns": "x*"}]}
    bank_nodes |= {"label": {"column": "y", "classes": ["no", "yes"]}, "split": {"column": "split"}}
    edges = [{"file": f"{name}.parquet", "source": "a", "target": "b"} for name in ("friend", "foe")]
    say(tmp_path, "bank", {"nodes": bank_nodes, "edges": edges})
    say(tmp_path, "shop", {"nodes": {"file": "shop.parquet", "id": "id", "features": [{"columns": "z"}]}})
    settings = job(
        data={"parties": {name: str(tmp_path / f"{name}.yaml") for name in ("bank", "shop")}, "label_holder": "bank"}
    )
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path


def say(folder: Path, party: str, content: dict[str, Any]) -> None:
    (folder / f"{party}.yaml").write_text(yaml.safe_dump({"party": party, **content}))


def changed(folder: Path, place: int, **said: Any) -> None:
    """The bank says more of one of its tables of edges."""
    content = yaml.safe_load((folder / "bank.yaml").read_text())
    content["edges"][place].update(said)
    say(folder, "bank", content)


def test_two_tables_of_edges_train_and_predict_and_other_relations_are_no_longer_the_models(tables: Path) -> None:
    checked = veilgraph("data", "check", tables / "bank.yaml")
    assert checked.exit_code == 0, checked.output
    assert "friend" in checked.output
    done = veilgraph("train", tables / "job.yaml", "--out", tables / "run")
    assert done.exit_code == 0, done.output
    run = vg.load_run(tables / "run")
    assert run.metrics["test_accuracy"] > 0.9
    predicted = run.predict(ids=["c3", "c4"]).probabilities
    changed(tables, 1, factor=2)  # another table, whose relation is what it was
    torch.testing.assert_close(run.predict(ids=["c3", "c4"]).probabilities, predicted)
    changed(tables, 1, name="enemy")
    with refused(RunError, party="bank", code="relations"):
        run.predict()
    changed(tables, 1, name="foe", hops=0)
    with refused(RunError, party="bank", code="relations"):
        run.predict()


def test_hops_of_a_table_are_refused_where_no_model_knows_them_without_its_name(tables: Path) -> None:
    changed(tables, 1, hops=1)
    content = yaml.safe_load((tables / "job.yaml").read_text())
    content["model"]["local"]["model"] = "gcn"
    (tables / "job.yaml").write_text(yaml.safe_dump(content))
    said = one_error(veilgraph("train", tables / "job.yaml", "--out", tables / "run"))
    assert "edges.1.hops" in said
    assert "foe" not in said
