"""Tuning on what holders bring from Python: as ``fit`` takes it, in every trial the same, and no other later."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from veilgraph_tuning import Tuning, trying, tune
from veilgraph_tuning.fingerprint import fingerprint

import veilgraph as vg
from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import Relation
from veilgraph.protocol.plain_fitting import Inputs
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.inputs import gather_inputs

JOB: dict[str, Any] = {"preset": "paper", "model": {"dim": 4}, "train": {"epochs": 2, "patience": None}}
HORIZONTAL: dict[str, Any] = {"paradigm": "horizontal", "train": {"epochs": 2, "patience": None}}
VARY: dict[str, Any] = {"train.learning_rate": [0.02, 0.3]}  # neither is what the job has


@pytest.fixture(scope="module")
def graphs() -> list[PartyGraph]:
    return vg.simulate.vertically(
        vg.datasets.load("synthetic", seed=3), ["bank", "shop", "post"], label_holder="shop", seed=1
    )


def tables(seed: int = 0) -> dict[str, vg.Tables]:
    rng, ids = np.random.default_rng(seed), [f"c{number}" for number in range(60)]
    fraud = rng.integers(0, 2, 60)
    customers = pd.DataFrame({"customer": ids, "income": fraud + rng.normal(size=60), "fraud": fraud})
    paid = pd.DataFrame({"payer": rng.choice(ids, 90), "payee": rng.choice(ids, 90)})
    buyers = pd.DataFrame({"id": ids[10:], "spent": rng.normal(size=50)})
    bank = vg.Tables(customers, paid, id="customer", source="payer", target="payee", label="fraud")
    return {"shop": vg.Tables(buyers), "bank": bank}


def check_best(found: Tuning, parties: Any, folder: Path, **options: Any) -> None:
    """Its best job is what ``fit`` takes beside the same data, and reaches there what it reached here."""
    assert {trial.ending for trial in found.trials} == {"complete"}
    reached = found.ranked()[0].values[0]
    for name, job in (("object", found.best), ("file", found.path / "best.yaml")):
        run = vg.fit(job, parties, folder / name, **options)
        assert run.metrics[f"val_{found.figure}"] == reached


@nightly
@pytest.mark.parametrize(
    "form", ["dict", pytest.param("settings", marks=nightly), pytest.param("settings of two", marks=nightly)]
)
def test_graphs_are_trained_on_in_every_trial(graphs: list[PartyGraph], tmp_path: Path, form: str) -> None:
    job: Any = {"dict": JOB, "settings": vg.Job(**JOB), "settings of two": vg.Job(**JOB)}[form]
    given = graphs[:2] if form == "settings of two" else graphs
    found = tune(job, tmp_path / "out", parties=given, trials=3, vary=VARY)
    assert found.best.data.names == tuple(graph.party for graph in given)
    assert found.best.data.label_party == "shop"
    first = vg.fit(job, given, tmp_path / "first")
    assert found.trials[0].values == (first.metrics["val_accuracy"],)
    check_best(found, given, tmp_path)


def test_ids_that_can_be_gone_through_once_do_for_all_trials(tmp_path: Path) -> None:
    parts = vg.simulate.horizontally(vg.datasets.load("synthetic", seed=3), 2, seed=2)
    named: Any = {part.graph.party: part.graph for part in parts}
    ids: Callable[[], Any] = lambda: {part.graph.party: iter(part.ids.tolist()) for part in parts}  # noqa: E731
    found = tune(HORIZONTAL, tmp_path / "out", parties=named, ids=ids(), trials=2, vary=VARY)
    check_best(found, named, tmp_path, ids={name: list(each) for name, each in ids().items()})


@nightly
def test_tables_are_aligned_once_and_their_copy_is_in_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aligned = list[Path]()

    def align(job: Any, out: Path, **named: Any) -> object:
        aligned.append(out)
        return jobs.align(job, out, **named)

    monkeypatch.setattr(trying, "align", align)
    given = tables()
    found = tune(JOB, tmp_path / "out", parties=given, trials=2, vary=VARY)
    assert len(aligned) == 1
    again = tune(JOB, tmp_path / "out", parties=tables(), trials=3, vary=VARY)
    assert [each.values for each in again.trials[:2]] == [each.values for each in found.trials]
    assert len(aligned) == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"best.yaml", "trials.jsonl"}
    assert {trial.ending for trial in again.trials} == {"complete"}


@nightly
@pytest.mark.cases(1)
@pytest.mark.parametrize("change", ["features", "edge_index", "labels", "train_mask"])
def test_a_tuning_goes_on_with_the_same_data_alone(graphs: list[PartyGraph], tmp_path: Path, change: str) -> None:
    found = tune(JOB, tmp_path / "out", parties=graphs, trials=1, vary=VARY)
    bank, shop, post = graphs
    value = getattr(shop, change)
    other = {
        "features": lambda: value.to_dense() + 1,
        "edge_index": lambda: value.flip(1)[:, 1:],
        "labels": lambda: torch.where(value == 0, 1, value),
        "train_mask": lambda: value & (value.cumsum(0) > 1),
    }[change]()
    with refused(RunError, key=PurePath("trials.jsonl")):
        tune(JOB, tmp_path / "out", parties=[bank, replace(shop, **{change: other}), post], trials=2, vary=VARY)
    with refused(RunError, key=PurePath("trials.jsonl")) as without:
        tune(JOB, tmp_path / "out", trials=2, vary=VARY)
    assert "another data and job;" in str(without.value)
    assert tune(JOB, tmp_path / "out", parties=graphs, trials=2, vary=VARY).trials[:1] == found.trials


def test_fingerprints_are_of_what_is_brought(tmp_path: Path) -> None:
    settings = vg.Job(**JOB)
    found = [fingerprint(gather_inputs(settings, tables(seed), None, tmp_path / str(seed))) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    parts = vg.simulate.horizontally(vg.datasets.load("synthetic", seed=3), 2, seed=2)
    graphs: Any = {part.graph.party: part.graph for part in parts}
    ids: Any = {part.graph.party: part.ids.tolist() for part in parts}
    others = {name: [f"{each}*" for each in several] for name, several in ids.items()}
    job = vg.Job(**HORIZONTAL)
    assert fingerprint(gather_inputs(job, graphs, ids, tmp_path)) != fingerprint(
        gather_inputs(job, graphs, others, tmp_path)
    )


@pytest.mark.parametrize(
    "changed",
    [{"num_common": 9}, {"num_classes": 9}, {"party": "bank"}, {"val_mask": None}, {"relations": (Relation("a", 1),)}],
)
def test_fingerprints_are_of_all_that_a_graph_says(graphs: list[PartyGraph], changed: dict[str, Any]) -> None:
    job, shop = vg.Job(**JOB), graphs[1]
    assert fingerprint(Inputs(job, [replace(shop, **changed)])) != fingerprint(Inputs(job, [shop]))


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_csr])
def test_fingerprints_are_of_columns_without_a_value_too(graphs: list[PartyGraph], layout: torch.layout) -> None:
    job, shop, columns = vg.Job(**JOB), graphs[1], torch.ones(graphs[1].num_nodes, 2)
    more = torch.nn.functional.pad(columns, (0, 1))
    first, second = (
        Inputs(job, [replace(shop, features=each.to_sparse_csr() if layout == torch.sparse_csr else each)])
        for each in (columns, more)
    )
    assert fingerprint(first) != fingerprint(second)


def test_what_fit_refuses_is_refused_before_the_first_trial(graphs: list[PartyGraph], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with refused(ConfigError, code="other-data", key="data.dataset", value="synthetic"):
        tune({**JOB, "data": {"dataset": "synthetic"}}, out, parties=graphs, vary=VARY)
    with refused(ConfigError, code="other-holders", key="data.holders"):
        tune({**JOB, "data": {"holders": ["bank", "shop"]}}, out, parties=graphs, vary=VARY)
    with refused(ConfigError, key="parties", value="int"):
        any_: Any = tune
        any_(JOB, out, parties=5, vary=VARY)
    with refused(ConfigError, key="ids"):
        tune(JOB, out, ids={"bank": ["1"]}, vary=VARY)
    mixed: Any = {"bank": graphs[0], "shop": tables()["shop"]}
    with refused(ConfigError, code="tables-and-graphs", key="parties"):
        tune(JOB, out, parties=mixed, vary=VARY)
    assert not out.exists()


def test_what_no_trial_can_be_is_refused_before_the_first(tmp_path: Path) -> None:
    with refused(ConfigError, key="data.holders", value=["bank", "shop"]):
        tune({**JOB, "data": {"holders": ["bank", "shop"]}}, tmp_path / "out", vary=VARY)
    assert not (tmp_path / "out").exists()


def test_nobodys_own_graph_is_published_in_every_trial(graphs: list[PartyGraph], tmp_path: Path) -> None:
    job = {
        **JOB,
        "label_privacy": {"epsilon": 2.0},
        "train": {"epochs": 2, "patience": None},
    }
    for given in (job, vg.Job(**job)):
        with refused(ConfigError, key="tune"):
            tune(given, tmp_path / "out", parties=graphs, vary=VARY)
    assert not (tmp_path / "out").exists()


def test_tables_alone_are_aligned(graphs: list[PartyGraph], tmp_path: Path) -> None:
    with refused(ConfigError, key="data.parties"):
        jobs.align(vg.Job(**JOB), tmp_path / "out", parties=graphs)
    assert not (tmp_path / "out").exists()
