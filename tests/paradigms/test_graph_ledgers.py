"""Ledgers for life of holders that bring graphs, or tables from Python: where they are, who pays, what they refuse."""

import json
import logging
import shutil
from collections.abc import Callable, Hashable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import veilgraph as vg
from tests import about, nightly
from tests.cli.commands import veilgraph as command
from tests.errors import refused
from tests.faults.runs import table_job
from tests.paradigms.graph_ledgers import (
    IDS,
    JOB,
    NODES,
    QUICK,
    QUIET,
    anew,
    customers,
    folder_of,
    frames,
    graphs,
    job,
    ledger,
    limited,
    other,
    saved,
)
from tests.paradigms.private import LABEL_HOLDER, OTHER, paid, released
from tests.paradigms.runs import saved_job
from veilgraph.core.errors import BudgetSpent, ConfigError, DataError, RunError
from veilgraph.graph.party import load_party, load_party_ids, save_party
from veilgraph.privacy.ledger_files import FILE
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings
from veilgraph.protocol.messages import all_revelations
from veilgraph.report.page import page_html
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store import lifetime as lifetimes
from veilgraph.runtime.store.lifetime import default_ledger_of, tighter_budget
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

FEATURES = f"features/{OTHER}"
"""That were released."""

# Saved graphs


def test_a_saved_graph_pays_for_life_from_a_ledger_beside_it(tmp_path: Path) -> None:
    settings = job(tmp_path / "data")
    limited(folder_of(tmp_path / "data"), max_epsilon=1.0)
    first = train(settings, tmp_path / "first")
    second = train(with_overrides(settings, {"name": "second", "seed": 77}), tmp_path / "second")
    predict(second.path)
    assert torch.equal(released(first.path, FEATURES), released(second.path, FEATURES))
    of = ledger(folder_of(tmp_path / "data"))
    assert of.total() == pytest.approx(1.0, rel=1e-8)
    with refused(BudgetSpent, code="budget-spent"):
        train(other(settings), tmp_path / "third")
    assert paid(tmp_path / "third", OTHER).total() == 0
    assert of.total() == pytest.approx(1.0, rel=1e-8)
    assert (
        not folder_of(tmp_path / "data", LABEL_HOLDER).joinpath(FILE).exists()
        or ledger(folder_of(tmp_path / "data", LABEL_HOLDER), LABEL_HOLDER).total() == 0
    )
    assert first.summary["privacy"][OTHER]["lasting"] is True


def test_another_name_in_the_job_is_the_same_ledger(tmp_path: Path) -> None:
    """And so are a link to the file, and its path given from Python."""
    settings = job(tmp_path / "data")
    limited(folder_of(tmp_path / "data"), max_epsilon=1.0)
    train(settings, tmp_path / "first")
    files = settings.data.graphs or {}
    elsewhere = tmp_path / "elsewhere.safetensors"
    elsewhere.symlink_to(files[OTHER])
    brought = {"one": files[LABEL_HOLDER], "two": elsewhere}
    with refused(BudgetSpent, code="budget-spent"):
        vg.fit(anew(5), brought, tmp_path / "second")


def test_two_holders_do_not_pay_from_one_ledger(tmp_path: Path) -> None:
    for name, graph in graphs().items():
        save_party(replace(graph, party="same"), tmp_path / f"{name}.safetensors")
    brought = {name: tmp_path / f"{name}.safetensors" for name in "AB"}
    with refused(ConfigError, code="one-ledger", key="ledgers"):
        vg.fit(JOB, brought, tmp_path / "run")
    vg.fit(JOB, brought, tmp_path / "run", ledgers={"B": tmp_path / "ledger of B"})
    vg.fit(QUIET, brought, tmp_path / "open")


def test_a_name_that_is_no_folder_stays_in_the_folder(tmp_path: Path) -> None:
    save_party(replace(graphs()["B"], party="../../B"), tmp_path / "B.safetensors")
    place = default_ledger_of(tmp_path / "B.safetensors")
    assert place.folder.parent == tmp_path / "ledger"
    assert place.party == "../../B"


def test_a_graph_s_ledger_that_was_copied_or_put_back_is_refused(tmp_path: Path) -> None:
    settings, folder, older = job(tmp_path / "data"), folder_of(tmp_path / "data"), tmp_path / "older"
    train(settings, tmp_path / "first")
    shutil.copytree(folder, older)
    train(other(settings), tmp_path / "second")
    *lines, last = (older / FILE).read_text().splitlines()
    forged = "\n".join([*lines, json.dumps(json.loads(last) | {"nonce": "ab" * 16})]) + "\n"
    for what in ("older", "gone", "another"):
        shutil.rmtree(folder)
        if what != "gone":
            shutil.copytree(older, folder)
        if what == "another":
            (folder / FILE).write_text(forged)
        with refused(RunError, key=folder / FILE):
            train(other(settings, 2), tmp_path / f"third {what}")
        with refused(RunError, key=folder / FILE):
            predict(tmp_path / "first")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    settings = job(tmp_path / "data")
    (tmp_path / "data" / "ledger").write_text("in the way")
    with refused(RunError, key=Path(FILE)):
        train(settings, tmp_path / "run")
    assert not [path for path in (tmp_path / "run").rglob("ledger.jsonl") if paid(tmp_path / "run", path.parent.name)]


# Who pays


@nightly
def test_nodes_with_ids_pay_for_themselves_and_are_the_same_in_any_order(tmp_path: Path) -> None:
    folder = tmp_path / "ledger of B"
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(5)).tolist()
    for number, (ids, places) in enumerate([(IDS, None), ([IDS[place] for place in order], order)]):
        files = saved(tmp_path / f"data{number}", ids, places)
        vg.fit(JOB, files, tmp_path / f"run{number}", ledgers={"B": folder})
    of = ledger(folder)
    assert of.nodes == NODES
    assert of.total() == pytest.approx(1.0, rel=1e-8), "the same customers' rows were sent again"
    files = saved(tmp_path / "others", [f"d{number}" for number in range(NODES)])
    vg.fit(JOB, files, tmp_path / "others run", ledgers={"B": folder})
    assert of.total() == pytest.approx(1.0, rel=1e-8), "other customers pay for themselves"
    assert ledger(folder).nodes == 2 * NODES


def test_without_ids_everybody_pays_for_whatever_is_released(tmp_path: Path) -> None:
    """Each node may be anybody, so all releases of the ledger add up."""
    folder = tmp_path / "ledger of B"
    for number in range(3):
        files, new = saved(tmp_path / f"data{number}", None, None), {**JOB, "snapshot": f"{number}"}
        run = vg.fit(new, files, tmp_path / f"run{number}", ledgers={"B": folder})
        assert run.path.exists()
    assert ledger(folder).total() == pytest.approx(3.0, rel=1e-9)
    files = saved(tmp_path / "with ids", IDS)
    vg.fit(JOB, files, tmp_path / "ids run", ledgers={"B": folder})
    assert ledger(folder).total() == pytest.approx(4.0, rel=1e-9), "whoever has an id paid all"
    assert lifetimes.limits_in(folder) is None


def test_a_changed_value_of_one_node_without_an_id_is_no_other_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = job(tmp_path / "data")
    before = released(train(settings, tmp_path / "run").path, FEATURES)
    path = (settings.data.graphs or {})[OTHER]
    graph = load_party(path)
    features = graph.features.to_dense().clone()
    features[0] += 1
    save_party(replace(graph, features=features), path)
    assert torch.equal(released(train(settings, tmp_path / "again").path, FEATURES), before)
    assert "without ids they may be other nodes" in caplog.text
    after = released(train(with_overrides(settings, {"snapshot": "new"}), tmp_path / "new").path, FEATURES)
    assert (before != after).all(dim=1).all()
    assert len(ledger(folder_of(tmp_path / "data")).lines.entries) == 2


def test_other_releases_of_saved_graphs_are_kept_for_life_too(tmp_path: Path) -> None:
    settings = saved_job(tmp_path / "data", QUICK, {"label_privacy": {"epsilon": 1.0}, "train": {"select_by": "loss"}})
    folder = folder_of(tmp_path / "data", LABEL_HOLDER)
    limited(folder, **about.LABELS, max_epsilon=1.0)
    train(settings, tmp_path / "first")
    again = with_overrides(settings, {"name": "again", "seed": 5})
    train(again, tmp_path / "second")
    of = ledger(folder, LABEL_HOLDER)
    assert of.total() == pytest.approx(1.0, rel=1e-6)
    assert of.nodes == 0
    path = (settings.data.graphs or {})[LABEL_HOLDER]
    graph = load_party(path)
    assert graph.labels is not None
    labels = graph.labels.clone()
    labels[graph.train_mask] = (labels[graph.train_mask] + 1) % 3
    save_party(replace(graph, labels=labels), path)
    train(again, tmp_path / "third")
    assert of.total() == pytest.approx(1.0, rel=1e-6)
    with refused(ConfigError, code="refused"):
        train(with_overrides(again, {"snapshot": "february"}), tmp_path / "fourth")
    assert of.total() == pytest.approx(1.0, rel=1e-6)


# From Python


def test_what_comes_from_memory_has_its_run_s_ledger_and_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "veilgraph"):
        run = vg.fit(JOB, graphs(), tmp_path / "run")
    assert [record.message for record in caplog.records if record.message.startswith("B: ")]
    assert not [record.message for record in caplog.records if record.message.startswith("A")], "it releases nothing"
    assert run.metrics["privacy"]["B"]["lasting"] is False
    page = page_html(RunDirectory.open(run.path))
    assert "In the ledger of this run alone: B." in page
    assert "ledger for life: veilgraph budget" not in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_ledger_that_is_named_bounds_what_comes_from_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "bank"
    first = vg.fit(
        JOB, graphs(), tmp_path / "first", ledgers={"B": {"folder": folder, **about.NODES, "max_epsilon": 1.0}}
    )
    assert not caplog.records
    assert first.metrics["privacy"]["B"]["lasting"] is True
    page = page_html(RunDirectory.open(first.path))
    assert "In the ledger of this run alone" not in page
    assert "What all runs took of B is in each one" in page
    again = vg.fit({**JOB, "seed": 8}, graphs(), tmp_path / "second", ledgers={"B": str(folder)})
    assert torch.equal(released(first.path, FEATURES), released(again.path, FEATURES))
    with refused(BudgetSpent, code="budget-spent"):
        vg.fit(anew(7), graphs(), tmp_path / "third", ledgers={"B": folder})
    first.predict()
    assert ledger(folder).total() == pytest.approx(1.0, rel=1e-8)
    with refused(ConfigError, code="refused", party="B"):
        vg.fit(
            QUIET,
            graphs(),
            tmp_path / "x",
            ledgers={"B": folder},
        )
    with refused(ConfigError, key="ledgers.B"):
        vg.fit(JOB, graphs(), tmp_path / "x", ledgers={"B": {"folder": folder, **about.NODES, "max_epsilon": 2.0}})
    with refused(RunError, key=folder / FILE):
        vg.fit(JOB, {"bank": graphs()["A"], "shop": graphs()["B"]}, tmp_path / "x", ledgers={"shop": folder})


def test_ids_from_python_tell_nodes_apart(tmp_path: Path) -> None:
    ledgers: dict[str, Any] = {"B": tmp_path / "b"}
    vg.fit(JOB, graphs(), tmp_path / "run", ids={"B": range(NODES)}, ledgers=ledgers)
    assert ledger(tmp_path / "b").nodes == NODES
    with refused(ConfigError, key="ids", value="A"):
        vg.fit(JOB, graphs(), tmp_path / "x", ids={"A": range(NODES)}, ledgers=ledgers)
    with refused(ConfigError, key="ids"):
        vg.fit(JOB, graphs(), tmp_path / "x", ids={"B": range(NODES)})
    with refused(DataError, party="B"):
        vg.fit(JOB, graphs(), tmp_path / "x", ids={"B": [1] * NODES}, ledgers=ledgers)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("written", [float, np.float32, Decimal, lambda node: b"%d" % node, lambda _: None])
def test_what_would_be_another_id_than_the_number_it_came_of_is_no_id(
    tmp_path: Path, written: Callable[[int], Hashable]
) -> None:
    """A gap makes pandas' 7 a 7.0, and as text that has a budget of its own."""
    graph = graphs()[OTHER]
    save_party(graph, tmp_path / "whole.safetensors", np.arange(NODES))
    assert load_party_ids(tmp_path / "whole.safetensors") == [str(node) for node in range(NODES)]
    with refused(DataError, key="ids", party=OTHER):
        save_party(graph, tmp_path / "other.safetensors", [*range(NODES - 1), written(NODES)])


def test_a_place_in_data_s_n_id_is_no_name_in_a_vertical_job(tmp_path: Path) -> None:
    from torch_geometric.data import Data  # noqa: PLC0415 - seconds to import

    brought = {}
    for name, graph in graphs().items():
        masks = {key: getattr(graph, key) for key in ("train_mask", "val_mask", "test_mask")}
        brought[name] = Data(
            x=graph.features.to_dense(), edge_index=graph.edge_index, y=graph.labels, n_id=torch.arange(NODES), **masks
        )
    labels = {**QUIET, "label_privacy": {"epsilon": 1.0}, "train": {"epochs": 1, "patience": None}}
    vg.fit(labels, brought, tmp_path / "run", ledgers={"A": tmp_path / "a"})
    assert ledger(tmp_path / "a", "A").nodes == 0
    assert ledger(tmp_path / "a", "A").total() == pytest.approx(1.0, rel=1e-8)


def test_data_frames_pay_for_life_where_a_ledger_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = vg.fit(JOB, frames(), tmp_path / "alone")
    assert alone.metrics["privacy"]["shop"]["lasting"] is False
    assert [record for record in caplog.records if record.message.startswith("shop: ")]
    vg.fit(anew(7), frames(), tmp_path / "alone too")
    caplog.clear()
    folder = tmp_path / "shop"
    first = vg.fit(JOB, frames(), tmp_path / "first", ledgers={"shop": folder})
    assert first.metrics["privacy"]["shop"]["lasting"] is True
    assert not caplog.records
    assert ledger(folder, "shop").nodes == NODES
    with refused(BudgetSpent, code="budget-spent"):
        vg.fit(anew(7), frames(), tmp_path / "second", ledgers={"shop": folder})
    with refused(ConfigError, key="ledgers.shop"):
        vg.fit(JOB, frames(), tmp_path / "x", ledgers={"shop": {"folder": folder, **about.NODES, "max_epsilon": 3.0}})


def test_limits_in_a_ledger_s_folder_hold_beside_those_of_a_party_s_tables(tmp_path: Path) -> None:
    limited(tmp_path / "shop", max_epsilon=0.5)
    with refused(BudgetSpent, code="budget-spent"):
        vg.fit(JOB, frames(), tmp_path / "run", ledgers={"shop": tmp_path / "shop"})
    limited(tmp_path / "other", max_epsilon=1.0, **about.EDGES)
    tables = frames()
    tables["shop"] = vg.Tables(
        pd.DataFrame({"id": IDS, "x": np.arange(NODES) / NODES}), limits={**about.NODES, "max_epsilon": 1.0}
    )
    with refused(ConfigError, key="limits.epsilon_unit", value="node"):
        vg.fit(JOB, tables, tmp_path / "units", ledgers={"shop": tmp_path / "other"})


def test_the_stricter_of_two_limits_holds() -> None:
    folder = LimitSettings(max_epsilon=1.0, max_delta=1e-6, **about.NODES)
    assert tighter_budget(Budget(3.0, 1e-5), folder) == Budget(1.0, 1e-6, "node", "replacement")
    mine = Budget(0.5, 1e-7, "edge", "replacement")
    assert tighter_budget(mine, LimitSettings(max_epsilon=1.0, **about.EDGES)) == mine
    assert tighter_budget(mine, None) is mine


@pytest.mark.parametrize(
    ("ledgers", "key"),
    [
        (["b"], "ledgers"),
        ({"B": 3}, "ledgers"),
        ({"C": "b"}, "ledgers"),
        ({"B": {}}, "ledgers.B"),
        ({"B": {"folder": "b", "max_epsilon": -1}}, "max_epsilon"),
        ({"B": {"folder": "b", "leakage": []}}, "ledgers.B"),
        ({"B": ""}, "ledgers.B"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledgers: Any, key: str) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(ConfigError, key=key):
        vg.fit(JOB, graphs(), tmp_path / "run", ledgers=ledgers)
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_is_named_once_and_of_private_data(tmp_path: Path) -> None:
    parties = table_job(tmp_path / "data").data.parties or {}
    data = {"parties": {name: str(path) for name, path in parties.items()}, "label_holder": LABEL_HOLDER}
    settings = parse_job({**JOB, "data": data})
    with refused(ConfigError, key="ledgers", party=OTHER):
        vg.fit(settings, out=tmp_path / "run", ledgers={OTHER: tmp_path / "b"})
    with refused(ConfigError, key="ledgers", party=OTHER):
        vg.fit(JOB, dict(parties), tmp_path / "run", ledgers={OTHER: "b"})
    with refused(ConfigError, key="ledgers", value=["A"]):
        vg.fit({**JOB, "data": {"dataset": "synthetic"}}, out=tmp_path / "run", ledgers={"A": tmp_path / "b"})


def test_a_data_set_pays_from_its_run_s_ledger_and_the_terminal_says_so(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**JOB, "data": {"dataset": "synthetic"}}))
    for said in (command("train", path, "--out", tmp_path / "run"), command("report", tmp_path / "run")):
        assert "In the ledger of this run alone: B." in " ".join(said.stdout.split())


@pytest.mark.parametrize("damage", ["text", "ids"])
def test_a_place_that_is_damaged_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    files = saved(tmp_path / "data", IDS)
    run = vg.fit(JOB, files, tmp_path / "run").path
    store = run / "parties" / OTHER
    if damage == "text":
        (store / "ledger_place.json").write_text("{")
    else:
        (store / "ledger_ids.safetensors").unlink()
    with refused(RunError, key=store / "ledger_place.json"):
        predict(run)


def test_the_budget_of_a_graph_is_shown(tmp_path: Path) -> None:
    settings, folder = job(tmp_path / "data"), folder_of(tmp_path / "data")
    limited(folder, max_epsilon=3.0)
    train(settings, tmp_path / "run")
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    found = json.loads(command("budget", path, "--ledger", folder, "--json").stdout)["lifetime"]
    assert found["total"] == pytest.approx(1.0, rel=1e-8)
    assert found["budget"] == 3.0
    assert [each["nodes"] for each in found["released"]] == [None]
    assert found["after"]["jobs"] > 0
    assert "all" in command("budget", "--ledger", folder).stdout
    assert command("budget", "--ledger", tmp_path).exit_code != 0
    assert command("budget", "--ledger", folder, "--party", path).exit_code != 0


def test_nothing_of_a_graph_s_ids_is_in_its_ledger(tmp_path: Path) -> None:
    files = saved(tmp_path / "data", [f"customer-{number}" for number in range(NODES)])
    vg.fit(JOB, files, tmp_path / "run")
    found = [each for each in folder_of(tmp_path / "data").rglob("*") if each.is_file()]
    assert found
    assert not any(b"customer-" in each.read_bytes() for each in found)


# Who is whom


def shop_file(folder: Path, spelled: Callable[[str], str], **settings: Any) -> Path:
    """The shop's table with ids in some spelling, and its party file."""
    folder.mkdir(parents=True)
    _, shop, _ = customers()
    shop.assign(id=[spelled(each) for each in IDS]).to_csv(folder / "shop.csv", index=False)
    nodes = {"file": "shop.csv", "id": "id", "features": [{"columns": ["spent", "age"]}]}
    limits = {**about.NODES, "max_epsilon": 4.0, "leakage": list(all_revelations())}
    said = {"party": "shop", "nodes": nodes, "ledger": str(folder.parent / "ledger"), "limits": limits, **settings}
    (folder / "shop.yaml").write_text(yaml.safe_dump(said))
    return folder / "shop.yaml"


def test_ids_that_the_tables_write_alike_are_one_customer_and_other_spellings_are_others(tmp_path: Path) -> None:
    """The ledger knows nodes by the ids that they are aligned by."""

    def shout(text: str) -> str:
        return f" {text.upper()}  "

    def run(name: str, spelled: Callable[[str], str], bank: Callable[[str], str], **settings: Any) -> Lifetime:
        of = vg.Tables(customers()[0].assign(id=[bank(each) for each in IDS]), label="fraud")
        brought = {"bank": of, "shop": shop_file(tmp_path / name, spelled, **settings)}
        vg.fit(JOB, brought, tmp_path / f"run of {name}")
        return ledger(tmp_path / "ledger", "shop")

    assert run("first", str, str).nodes == NODES
    assert run("alike", shout, str, ids={"strip": True, "lower": True}).nodes == NODES
    assert run("again", str, str, ids={"strip": True, "lower": True}).total() == pytest.approx(1.0, rel=1e-6)
    assert run("others", shout, shout).nodes == 2 * NODES
