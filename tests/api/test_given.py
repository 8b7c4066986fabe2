"""The forms in which jobs and holders' data may come, and what follows from them."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data

import veilgraph as vg
from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.store.run_directory import RunDirectory

JOB: dict[str, Any] = {"model": {"dim": 4}, "train": {"epochs": 2, "patience": None}}
HORIZONTAL: dict[str, Any] = {"paradigm": "horizontal", "train": {"epochs": 2, "patience": None}}
NODES = 48


@pytest.fixture(scope="module")
def graphs() -> list[PartyGraph]:
    return vg.simulate.vertically(vg.datasets.load("synthetic", seed=3), ["bank", "shop"], label_holder="shop", seed=1)


def data_of(graph: PartyGraph, **others: Any) -> Data:
    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    return Data(x=graph.features, edge_index=graph.edge_index, y=graph.labels, **masks, **others)


def losses(run: vg.Run) -> list[float]:
    return [float(record["loss"]) for record in run.epochs]


def frames(rng: np.random.Generator) -> dict[str, Any]:
    """Customers of a bank and a shop: most of both, in another order, some of one alone."""
    ids = [f"c{number}" for number in range(NODES)]
    risky = rng.integers(0, 2, NODES)
    bank = pd.DataFrame({"customer": ids, "income": risky + rng.normal(size=NODES), "fraud": risky.astype(float)})
    bank.loc[0, "fraud"] = None
    others = [*rng.permutation(ids[8:]), "x1", "x2"]
    shop = pd.DataFrame({"id": others, "spent": rng.normal(size=len(others)), "city": rng.choice(["Ulm", "Bonn"], 42)})
    paid = pd.DataFrame({"payer": rng.choice(ids, 90), "payee": rng.choice(ids, 90), "amount": rng.random(90)})
    return {"bank": bank, "shop": shop, "paid": paid}


def tables(found: dict[str, Any], **of_bank: Any) -> dict[str, vg.Tables]:
    columns = {"id": "customer", "source": "payer", "target": "payee", "weight": "amount", "label": "fraud"}
    cities: dict[str, object] = {"columns": "city", "categories": ["Bonn", "Ulm"]}
    bank = vg.Tables(found["bank"], found["paid"], **{**columns, **of_bank})
    return {"shop": vg.Tables(found["shop"], features=["spent", cities]), "bank": bank}


def held(run: vg.Run) -> dict[str, Any]:
    """What every holder's graph says of each id, in whatever order an alignment put the rows."""
    found = {}
    for name in run.job.data.names:
        store = RunDirectory.open(run.path).party(name)
        graph, ids = load_party(store.graph_path), store.ids() or []
        parts = [
            graph.features.to_dense(),
            *(each for each in (graph.labels, graph.train_mask, graph.val_mask) if each is not None),
        ]
        rows = torch.cat([each.reshape(len(ids), -1).double() for each in parts], dim=1).tolist()
        weights = [1.0] * graph.num_edges if graph.edge_weight is None else graph.edge_weight.tolist()
        ends = [(ids[source], ids[target]) for source, target in graph.edge_index.T.tolist()]
        found[name] = dict(zip(ids, rows, strict=True)), sorted(zip(ends, weights, strict=True)), graph.common
    return found


# Jobs


def test_a_job_is_a_dict_settings_a_path_or_a_shipped_name(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("{model: {dim: 4}, train: {epochs: 2, patience: null}}", encoding="utf-8")
    path = tmp_path / "job.yaml"
    assert vg.read_job(path) == vg.read_job(str(path)) == vg.Job(**JOB)
    assert vg.read_job("cora-sealed").name == "cora-sealed"
    assert vg.read_job("cora-sealed").paradigm == "sealed"


# Holders' graphs


@nightly
def test_graphs_come_in_many_forms(graphs: list[PartyGraph], tmp_path: Path) -> None:
    paths = {graph.party: tmp_path / f"{graph.party}.safetensors" for graph in graphs}
    for graph in graphs:
        save_party(graph, paths[graph.party])
    bank, shop = graphs
    given: dict[str, Any] = {
        "list": graphs,
        "named": {"bank": bank, "shop": shop},
        "data": {"bank": data_of(bank), "shop": data_of(shop)},
        "paths": paths,
        "mixed": {"bank": str(paths["bank"]), "shop": data_of(shop)},
    }
    runs = {name: vg.fit(JOB, parties, tmp_path / name) for name, parties in given.items()}
    assert {run.job.data.names for run in runs.values()} == {("bank", "shop")}
    assert {run.job.data.label_party for run in runs.values()} == {"shop"}
    assert {run.job.data.dataset for run in runs.values()} == {None}
    assert len({tuple(losses(run)) for run in runs.values()}) == 1
    below = jobs.train(vg.Job(**JOB), str(tmp_path / "below"), parties=given["mixed"])
    assert [record["loss"] for record in below.metrics] == losses(runs["list"])


def test_horizontal_data_bring_their_ids_as_a_list_too(tmp_path: Path) -> None:
    parts = vg.simulate.horizontally(vg.datasets.load("synthetic", seed=3), 2, seed=2)
    named = {part.graph.party: data_of(part.graph, n_id=part.ids) for part in parts}
    paths = {part.graph.party: tmp_path / f"{part.graph.party}.safetensors" for part in parts}
    for part in parts:
        save_party(part.graph, paths[part.graph.party], part.ids.tolist())
    given: dict[str, Any] = {"parts": parts, "named": named, "list": list(named.values()), "paths": paths}
    runs = [vg.fit(HORIZONTAL, parties, tmp_path / name) for name, parties in given.items()]
    labels_at_both = vg.fit({**HORIZONTAL, "data": {"label_holder": "B"}}, parts, tmp_path / "of B")
    assert labels_at_both.job.data.label_party == "B"
    assert len({tuple(losses(run)) for run in runs}) == 1
    assert {tuple(RunDirectory.open(run.path).party("B").ids() or ()) for run in runs} == {
        tuple(map(str, parts[1].ids.tolist()))
    }


def test_parts_with_nodes_of_their_own_are_refused_where_rows_are_the_same_nodes(tmp_path: Path) -> None:
    parts = vg.simulate.horizontally(vg.datasets.load("synthetic"), 2, knows="all", seed=2)
    assert len({part.graph.num_nodes for part in parts}) == 1
    with refused(ConfigError, code="own-nodes", key="parties", party="A"):
        vg.fit(JOB, parts, tmp_path / "run")


# Labels


@pytest.mark.parametrize("paradigm", ["vertical", "sealed"])
def test_labels_are_at_one_holder(graphs: list[PartyGraph], tmp_path: Path, paradigm: str) -> None:
    job: dict[str, Any] = {"paradigm": paradigm}
    bank, shop = map(data_of, graphs)
    twice, never = shop.clone(), bank.clone()
    with refused(DataError, code="labels-at-several", key="labels", value=["bank", "shop"]):
        vg.fit(job, {"bank": twice, "shop": shop}, tmp_path / "run")
    with refused(DataError, code="labels-nowhere", key="labels"):
        vg.fit(job, {"bank": bank, "shop": never}, tmp_path / "run")
    with refused(DataError, code="labels-elsewhere", key="labels", value="shop", party="bank"):
        vg.fit({**job, "data": {"label_holder": "bank"}}, {"bank": bank, "shop": shop}, tmp_path / "run")
    named = {**job, "data": {"label_holder": "shop"}}
    with refused(DataError, code="labels-at-several", key="labels"):
        vg.fit(named, {"bank": twice, "shop": shop}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_labels_at_two_are_refused_of_party_files_that_a_job_names(tmp_path: Path) -> None:
    found, paths = frames(np.random.default_rng(1))["bank"].fillna(0), {}
    found.to_csv(tmp_path / "nodes.csv", index=False)
    for name in ("bank", "shop"):
        paths[name] = tmp_path / f"{name}.yaml"
        paths[name].write_text(
            f"""{{party: {name}, nodes: {{file: nodes.csv, id: customer, features: [{{columns: income}}],
            label: {{column: fraud, classes: ["0.0", "1.0"]}}, split: {{train: 0.6, val: 0.2, test: 0.2}}}}}}""",
            encoding="utf-8",
        )
    for given in ({"data": {"parties": paths}}, {"data": {"parties": paths, "label_holder": "shop"}}):
        with refused(DataError, code="labels-at-several", key="labels", value=["bank", "shop"]):
            vg.fit({**JOB, **given}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_graph_that_breaks_a_rule_is_refused(graphs: list[PartyGraph], tmp_path: Path) -> None:
    bank, shop = graphs
    bad = replace(bank, features=torch.full_like(bank.features.to_dense(), torch.nan))
    for parties in ([bad, shop], {"bank": bad, "shop": shop}):
        with refused(DataError, key="features", party="bank"):
            vg.fit(JOB, parties, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Tables


def test_tables_in_memory_are_what_files_of_them_are(tmp_path: Path) -> None:
    found = frames(np.random.default_rng(1))
    run = vg.fit(JOB, tables(found), tmp_path / "run")
    assert (run.job.data.names, run.job.data.label_party) == (("shop", "bank"), "bank")
    files = tmp_path / "files"
    files.mkdir()
    for name, table in found.items():
        whole = table.astype({"fraud": "Int64"}) if name == "bank" else table
        whole.to_csv(files / f"{name}.csv", index=False)
    (files / "bank.yaml").write_text(
        """{party: bank, nodes: {file: bank.csv, id: customer, features: [{columns: income}],
        label: {column: fraud, classes: ["0", "1"]}, split: {train: 0.6, val: 0.2, test: 0.2}},
        edges: [{file: paid.csv, source: payer, target: payee, weight: amount}]}""",
        encoding="utf-8",
    )
    (files / "shop.yaml").write_text(
        "{party: shop, nodes: {file: shop.csv, id: id, features: [{columns: spent}, {columns: city, "
        "categories: [Bonn, Ulm]}]}}",
        encoding="utf-8",
    )
    named = {"shop": files / "shop.yaml", "bank": str(files / "bank.yaml")}
    of_files = vg.fit(JOB, named, tmp_path / "of-files")
    assert of_files.job.data.label_party == "bank"
    mixed = vg.fit(JOB, {"shop": tables(found)["shop"], "bank": named["bank"]}, tmp_path / "mixed")
    by_arrow = {name: pa.Table.from_pandas(table, preserve_index=False) for name, table in found.items()}
    arrow = vg.fit(JOB, tables(by_arrow), tmp_path / "arrow")
    assert held(run) == held(of_files) == held(mixed) == held(arrow)
    for each in (run, of_files, mixed):
        assert sorted(each.predictions.ids or ()) == sorted(f"c{number}" for number in range(8, NODES))
        assert each.predictions.class_names == ("0", "1")


def test_a_run_keeps_tables_in_their_holders_part_and_predicts_from_them(tmp_path: Path) -> None:
    run = vg.fit(JOB, tables(frames(np.random.default_rng(1))), tmp_path / "run")
    assert vg.load_run(tmp_path / "run").predict(ids=["c9"]).ids == ("c9",)
    folder = run.path / "parties" / "bank" / "tables"
    assert sorted(path.name for path in folder.iterdir()) == ["edges.parquet", "nodes.parquet", "party.yaml"]
    assert not (run.path / "parties" / "shop" / "tables" / "edges.parquet").exists()


def test_a_faulty_row_is_named_as_the_holder_knows_it_and_nothing_is_left(tmp_path: Path) -> None:
    found = frames(np.random.default_rng(1))
    found["paid"].loc[3, "amount"] = -1.0
    (tmp_path / "link").symlink_to(tmp_path)
    for out in (tmp_path / "run", tmp_path / "link" / "run"):
        with refused(DataError, key="amount", party="bank") as told:
            vg.fit(JOB, tables(found), out)
        assert str(told.value).startswith("party 'bank': edges: column 'amount', row 4: -1.0 is negative")
        assert not out.exists()


@pytest.mark.cases(1)
@pytest.mark.parametrize("paradigm", ["horizontal", "averaging"])
def test_tables_of_the_same_columns(tmp_path: Path, paradigm: str) -> None:
    rng = np.random.default_rng(2)
    given = {}
    for name in ("north", "south"):
        label = rng.integers(0, 2, 30)
        nodes = pd.DataFrame(
            {"id": [f"{name}{row}" for row in range(30)], "x": label + rng.normal(size=30), "y": label}
        )
        ends = rng.choice(nodes["id"], (2, 60))
        given[name] = vg.Tables(nodes, pd.DataFrame({"source": ends[0], "target": ends[1]}), label="y")
    run = vg.fit({**HORIZONTAL, "paradigm": paradigm}, given, tmp_path / "run")
    assert [sum(row[1] >= 0 for row in rows.values()) for rows, *_ in held(run).values()] == [30, 30]
    assert run.predict(ids=["north3"]).ids == ("north3",)


def test_tables_are_held_to_the_rules_of_files(tmp_path: Path) -> None:
    found = frames(np.random.default_rng(1))
    broken = {**found, "paid": found["paid"].assign(payee=["nobody", *found["paid"]["payee"][1:]])}
    with refused(DataError, key="payee"):
        vg.fit(JOB, tables(broken), tmp_path / "unknown")
    assert not (tmp_path / "unknown").exists()  # it was read before the alignment
    dropped = vg.fit(JOB, tables(broken, unknown="drop"), tmp_path / "dropped")
    assert dropped.metrics["nodes"] == NODES - 8
    foreign = {**found, "paid": found["paid"].assign(payee="nobody")}
    with refused(DataError, key=Path("edges.parquet")):
        vg.fit(JOB, tables(foreign, unknown="drop"), tmp_path / "foreign")
    with refused(DataError, code="labels-nowhere", key="labels"):
        vg.fit(JOB, {**tables(found), "bank": tables(found, label=None)["bank"]}, tmp_path / "word")
    with refused(ConfigError, key="ids"):
        vg.fit(HORIZONTAL, tables(found), tmp_path / "word", ids={"bank": [1], "shop": [2]})
    gap = {**found, "bank": found["bank"].assign(income=np.nan)}
    with refused(DataError, key="income"):
        vg.fit(JOB, tables(gap), tmp_path / "gap")
    with refused(ConfigError, key="edges.0.unknown", value="ignore"):
        vg.fit(JOB, tables(found, unknown="ignore"), tmp_path / "word")
    assert not (tmp_path / "word").exists()


def test_tables_accept_what_a_job_reveals_unless_they_have_limits(tmp_path: Path) -> None:
    found = frames(np.random.default_rng(1))
    job = {**JOB, "model": {"dim": 4, "rounds": 2}, "timeout_s": 20}
    run = vg.fit(job, tables(found), tmp_path / "run")
    assert run.predict(ids=["c9"]).ids == ("c9",)
    with refused(ConfigError, code="refused"):
        vg.fit(job, tables(found, limits={"max_rounds": 1}), tmp_path / "rounds")
    with refused(ConfigError, code="refused"):
        vg.fit(JOB, tables(found, limits={"min_common_nodes": 1_000}), tmp_path / "few")
    with refused(ConfigError, key="limits.rounds"):
        vg.fit(JOB, tables(found, limits={"rounds": 1}), tmp_path / "rounds")
    assert not (tmp_path / "rounds").exists()


# While it trains


def test_each_epoch_is_told_once_in_the_calling_thread(graphs: list[PartyGraph], tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    threads = set()

    def tell(record: dict[str, Any]) -> None:
        told.append(dict(record))
        threads.add(threading.get_ident())
        record.clear()

    run = vg.fit(JOB, graphs, tmp_path / "run", on_epoch=tell)
    assert told == run.epochs
    assert [record["epoch"] for record in told] == [1, 2]
    assert threads == {threading.get_ident()}


def test_what_a_callback_raises_ends_a_training_that_can_be_resumed(graphs: list[PartyGraph], tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        raise Enough

    with pytest.raises(Enough):
        vg.fit({**JOB, "train": {"epochs": 8, "patience": None}}, graphs, tmp_path / "run", on_epoch=stop)
    run = vg.load_run(tmp_path / "run")
    assert run.resume().metrics["best_epoch"] >= 1
