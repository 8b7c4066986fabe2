"""What is given from Python is taken, or refused with one error that names the argument, its type and the way out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import veilgraph_embeddings
import veilgraph_tuning
from torch_geometric.data import Data, HeteroData

import veilgraph as vg
from tests import nightly
from tests.errors import ANY, refused
from veilgraph.core.arguments import WRONG_TYPE
from veilgraph.core.errors import ConfigError, DataError, RunError, VeilgraphError
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch import jobs as typed_jobs

JOB: Any = {"model": {"dim": 4}, "train": {"epochs": 1}}
HORIZONTAL: Any = {"paradigm": "horizontal", "train": {"epochs": 1}}
TABLE = pd.DataFrame({"id": ["a", "b", "c"], "x": [1.0, 2.0, 3.0], "y": [0, 1, None], "t": ["u", "v", "w"]})
LINKS = pd.DataFrame({"source": ["a", "b"], "target": ["b", "c"]})
any_: Any = vg
apart: Any = veilgraph_embeddings
tuned: Any = veilgraph_tuning.tune
jobs: Any = typed_jobs
"""The interface, and what is below it, of which no types are asked."""


def graph(**changes: Any) -> Data:
    data = Data(x=torch.rand(6, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    return data.update({key: value for key, value in changes.items() if value is not None})


def labelled(**changes: Any) -> Data:
    masks = {name: torch.arange(6) % 3 == place for place, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    return graph(**{"y": torch.arange(6) // 3, **masks, **changes})


def without_x() -> Data:
    return Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=6)


def hetero() -> HeteroData:
    data = HeteroData()
    data["person"].x, data["shop"].x = torch.rand(3, 1), torch.rand(2, 1)
    return data


def party(**changes: Any) -> PartyGraph:
    return PartyGraph(**{"party": "B", "features": torch.rand(6, 1), "edge_index": torch.zeros(2, 0).long(), **changes})


def fit(parties: Any = None, job: Any = JOB, **options: Any) -> Callable[[Path], object]:
    return lambda folder: any_.fit(job, parties, **{"out": folder / "run", **options})


def both(other: Any) -> Any:
    return {"A": labelled(), "B": other}


TWO: Any = {"A": labelled(), "B": graph()}

Case = tuple[str, Callable[[Path], object], type[VeilgraphError], Any, object]
TYPES: list[Case] = [
    # job
    ("job is an int", fit(job=5), ConfigError, "job", "int"),
    ("job is a list", fit(job=[JOB]), ConfigError, "job", "list"),
    ("job is the class", fit(job=JobSettings), ConfigError, "job", "the class veilgraph.JobSettings"),
    ("job of embeddings is an int", lambda folder: apart.embed(5), ConfigError, "job", "int"),
    ("job of embeddings is a job", lambda folder: apart.embed(vg.Job()), ConfigError, "job", "veilgraph.VerticalJob"),
    ("job to tune is an int", lambda folder: tuned(5, folder / "run"), ConfigError, "job", "int"),
    ("lower: a dict", lambda folder: jobs.train(JOB, folder / "run"), ConfigError, "settings", "dict"),
    # paths
    ("out is an int", fit(out=5), ConfigError, "out", "int"),
    ("out is bytes", fit(out=b"run"), ConfigError, "out", "bytes"),
    ("out of embeddings is an int", lambda folder: apart.embed({}, out=5), ConfigError, "out", "int"),
    ("out to tune is an int", lambda folder: tuned(JOB, 5), ConfigError, "out", "int"),
    ("lower: out is an int", lambda folder: jobs.train(vg.Job(), 5), ConfigError, "out", "int"),
    ("lower: path is an int", lambda folder: jobs.resume(5), ConfigError, "path", "int"),
    ("run is an int", lambda folder: any_.load_run(5), ConfigError, "path", "int"),
    ("job file is a dict", lambda folder: any_.read_job({}), ConfigError, "path", "dict"),
    ("begin_with is an int", fit(begin_with=5), ConfigError, "begin_with", "int"),
    # parties
    ("parties is an int", fit(5), ConfigError, "parties", "int"),
    ("parties is one graph", fit(graph()), ConfigError, "parties", "torch_geometric.Data"),
    ("parties is a generator", fit(each for each in (graph(), graph())), ConfigError, "parties", "generator"),
    ("parties is a DataFrame", fit(TABLE), ConfigError, "parties", "pandas.DataFrame"),
    ("a holder's name is an int", fit({1: graph(), 2: graph()}), ConfigError, "parties", "int"),
    ("a holder brings None", fit(both(None)), ConfigError, "parties", "None"),
    ("a holder brings a DataFrame", fit(both(TABLE)), ConfigError, "parties", "pandas.DataFrame"),
    ("a holder brings an array", fit(both(np.zeros((6, 2)))), ConfigError, "parties", "numpy.ndarray"),
    ("a holder brings the class", fit(both(Data)), ConfigError, "parties", "the class torch_geometric.Data"),
    # options
    ("ids is a list", fit(TWO, HORIZONTAL, ids=[1, 2]), ConfigError, "ids", "list"),
    ("custom is a module's name", fit(custom="Local"), ConfigError, "custom", "str"),
    ("processes is a number", fit(processes=2), ConfigError, "processes", "int"),
    ("private_seeds is a number", fit(private_seeds=7), ConfigError, "private_seeds", "int"),
    ("profile is None", fit(profile=None), ConfigError, "profile", "None"),
    ("view_passes is a word", fit(view_passes="all"), ConfigError, "view_passes", "str"),
    ("machines is a number", fit(machines=2), ConfigError, "machines", "int"),
    ("machines of a word", fit(machines={"A": "two"}), ConfigError, "machines", "str"),
    ("progress is a word", fit(progress="bar"), ConfigError, "progress", "str"),
    ("on_epoch is a list", fit(on_epoch=[]), ConfigError, "on_epoch", "list"),
    ("trials is a word", lambda folder: tuned(JOB, folder, trials="9"), ConfigError, "trials", "str"),
    ("seeds is None", lambda folder: tuned(JOB, folder, seeds=None), ConfigError, "seeds", "None"),
    ("vary is a list", lambda folder: tuned(JOB, folder, vary=["model.dim"]), ConfigError, "vary", "list"),
    ("a choice is an int", lambda f: tuned(JOB, f, vary={"model.dim": 8}), ConfigError, "vary.model.dim", "int"),
    ("resume: restart is None", lambda folder: jobs.resume(folder, restart=None), ConfigError, "restart", "None"),
    ("predict: nodes is an int", lambda folder: jobs.predict(folder, 5), ConfigError, "nodes", "int"),
    ("predict: ids is one id", lambda folder: jobs.predict(folder, ids="C1"), ConfigError, "ids", "str"),
    ("predict: nodes is a table", lambda folder: jobs.predict(folder, TABLE), ConfigError, "nodes", "pandas.DataFrame"),
    # tables
    ("Tables of a dict", lambda folder: any_.Tables({"id": [1]}), ConfigError, "nodes", "dict"),
    ("edges are an array", lambda folder: any_.Tables(TABLE, np.zeros((2, 2))), ConfigError, "edges", "numpy.ndarray"),
    ("id is a number", lambda folder: any_.Tables(TABLE, id=0), ConfigError, "id", "int"),
    ("features is one name", lambda folder: any_.Tables(TABLE, features="x"), ConfigError, "features", "str"),
    ("a feature is a number", lambda folder: any_.Tables(TABLE, features=[1]), ConfigError, "features", "int"),
    ("split is a tuple", lambda f: any_.Tables(TABLE, label="t", split=(1, 0, 0)), ConfigError, "split", "tuple"),
    ("directed is a word", lambda folder: any_.Tables(TABLE, LINKS, directed="no"), ConfigError, "directed", "str"),
    ("limits is a list", lambda folder: any_.Tables(TABLE, limits=[]), ConfigError, "limits", "list"),
    # simulation
    ("holders is a word", lambda f: any_.simulate.vertically(labelled(), "AB"), ConfigError, "holders", "str"),
    ("holders is a share", lambda f: any_.simulate.horizontally(labelled(), 2.5), ConfigError, "holders", "float"),
]

VALUES: list[Case] = [
    ("job is no file", fit(job="karate"), ConfigError, "job", "karate"),
    ("job is a directory", any_.fit, ConfigError, "job", ANY),
    ("job has a key that is none", fit(job={1: 2}), ConfigError, ANY, ANY),
    ("job's data is a word", fit(job={"data": "synthetic"}), ConfigError, "data", "synthetic"),
    ("job's data is a word, beside parties", fit(TWO, {"data": "x"}), ConfigError, "data", "x"),
    ("job is no paradigm's", fit(job=JobSettings()), ConfigError, "job", "vertical"),
    ("out is empty", fit(out=""), ConfigError, "out", ""),
    ("out is a file", lambda folder: any_.fit(JOB, out=__file__), ConfigError, "out", __file__),
    ("out has a run", lambda folder: any_.fit(JOB, out=Path(__file__).parent), RunError, ANY, ANY),
    ("a run that is not there", lambda folder: any_.load_run(str(folder / "none")), RunError, ANY, ANY),
    ("no holders", fit({}), DataError, "holders", ANY),
    ("one holder", fit([labelled()]), DataError, "holders", ANY),
    ("two of a name", fit([party(party="A"), party(party="A")]), DataError, "holders", ANY),
    ("a holder is the server", fit({"A": labelled(), "server": graph()}), ConfigError, "parties", "server"),
    ("a holder's name is a path", fit({"A": labelled(), "../B": graph()}), ConfigError, "parties", "../B"),
    ("a table alone", fit({"A": "a.csv", "B": "b.csv"}), ConfigError, "parties", "a.csv"),
    ("graphs that are not there", fit({"A": "a.safetensors", "B": "b.safetensors"}), DataError, "a.safetensors", ANY),
    ("party files that are not there", fit({"A": "a.yaml", "B": "b.yaml"}), ConfigError, ANY, ANY),
    ("tables beside graphs", fit(both(vg.Tables(TABLE, features=["x"]))), ConfigError, "parties", ["B", "A"]),
    ("a holder brings HeteroData", fit(both(hetero())), DataError, "data", ANY),
    ("Data without x", fit(both(without_x())), DataError, "data.x", ANY),
    ("Data without edges", fit(both(Data(x=torch.rand(6, 1)))), DataError, "data.edge_index", ANY),
    ("x is an array", fit(both(graph(x=np.ones((6, 1))))), DataError, "data.x", ANY),
    ("edges are an array", fit(both(graph(edge_index=np.zeros((2, 1))))), DataError, "data.edge_index", ANY),
    ("a mask is a list", fit({"A": labelled(val_mask=[True]), "B": graph()}), DataError, "data.val_mask", ANY),
    ("classes are text", fit({"A": labelled(y=["a"] * 6), "B": graph()}), DataError, "data.y", ANY),
    ("labels are a list", fit([party(party="A"), party(labels=[0] * 6)]), DataError, "labels", ANY),
    ("classes are counted in floats", fit([party(party="A"), party(num_classes=2.0)]), DataError, "num_classes", ANY),
    ("the job names another data set", fit(TWO, {"data": {"dataset": "cora"}}), ConfigError, "data.dataset", "cora"),
    (
        "the job names another, parsed",
        fit(TWO, vg.Job(data={"dataset": "synthetic"})),
        ConfigError,
        "data.dataset",
        ANY,
    ),
    ("a shipped job names a data set", fit(TWO, "cora"), ConfigError, "data.dataset", "cora"),
    ("the job names graphs", fit(TWO, {"data": {"graphs": {"A": "a", "B": "b"}}}), ConfigError, "data.graphs", ANY),
    ("the job divides a data set", fit(TWO, vg.Job(data={"split": [0.5, 0.2, 0.3]})), ConfigError, "data.split", ANY),
    ("the job has three holders", fit(TWO, {"data": {"holders": 3}}), ConfigError, "data.holders", 3),
    ("the job names others", fit(TWO, {"data": {"holders": ["A", "C"]}}), ConfigError, "data.holders", ["A", "C"]),
    ("too few names", fit([graph()] * 3, {"data": {"holders": ["A", "C"]}}), ConfigError, "data.holders", ANY),
    ("label_holder is nobody", fit(TWO, {"data": {"label_holder": "C"}}), ConfigError, ANY, ANY),
    ("ids of nobody", fit(TWO, HORIZONTAL, ids={"C": range(6)}), ConfigError, "ids", ANY),
    ("ids are a number", fit(TWO, HORIZONTAL, ids={"A": 5, "B": range(6)}), DataError, "ids", ANY),
    ("ids are text", fit(TWO, HORIZONTAL, ids={"A": "abcdef", "B": range(6)}), DataError, "ids", ANY),
    ("ids in a vertical job", fit(TWO, ids={"A": range(6), "B": range(6)}), ConfigError, "ids", ANY),
    ("id is no column", lambda folder: any_.Tables(TABLE, id="customer"), ConfigError, "id", "customer"),
    ("label is no column", lambda folder: any_.Tables(TABLE, label="fraud"), ConfigError, "label", "fraud"),
    ("a feature is no column", lambda folder: any_.Tables(TABLE, features=["z"]), ConfigError, "features", "z"),
    ("weight is no column", lambda folder: any_.Tables(TABLE, LINKS, weight="kg"), ConfigError, "weight", "kg"),
    ("one class", lambda f: any_.Tables(TABLE.assign(y=1), label="y"), DataError, "label", "y"),
    ("a column of two types", lambda f: any_.Tables(TABLE.assign(x=["1", 2, 3])), DataError, "nodes", ANY),
    ("a column without a name", lambda f: any_.Tables(TABLE.rename(columns={"x": 0})), DataError, "nodes", ANY),
    (
        "graph to embed is a table",
        lambda f: apart.embed({"hide": "z"}, TABLE),
        ConfigError,
        "graph",
        "pandas.DataFrame",
    ),
    ("graph to divide is a table", lambda f: any_.simulate.vertically(TABLE), DataError, "data", ANY),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("call", "error", "key", "kind"), [case[1:] for case in TYPES], ids=[case[0] for case in TYPES]
)
def test_another_type_is_named(
    tmp_path: Path, call: Callable[[Path], object], error: type[VeilgraphError], key: str, kind: str
) -> None:
    with refused(error, code=WRONG_TYPE, key=key, value=kind) as caught:
        call(tmp_path)
    assert f"{key}: " in str(caught.value)
    assert kind in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("call", "error", "key", "value"), [case[1:] for case in VALUES], ids=[c[0] for c in VALUES])
def test_another_value_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, error: type[VeilgraphError], key: Any, value: object
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(
        error, code=error.code if key is ANY else None, key=None if key is ANY else key, value=value
    ) as caught:
        call(tmp_path)
    assert caught.value.key
    assert not (tmp_path / "run").exists()


@nightly
def test_every_text_and_path_is_a_path(tmp_path: Path) -> None:
    save_party(party(), tmp_path / "b.safetensors")
    (tmp_path / "job.yaml").write_text("{model: {dim: 4}, train: {epochs: 1, patience: null}}", encoding="utf-8")
    for number, kind in enumerate((Path, np.str_)):
        out = kind(tmp_path / f"run-{number}")
        run = any_.fit(kind(tmp_path / "job.yaml"), both(kind(tmp_path / "b.safetensors")), out)
        assert any_.load_run(kind(out)).metrics == run.metrics == jobs.resume(kind(out)).summary
        assert torch.equal(jobs.predict(kind(out), [1]).classes, run.predictions.classes[[1]])
        again = jobs.train(vg.read_job(kind(tmp_path / "job.yaml")), kind(f"{out}-again"), parties=both(party()))
        assert again.path == Path(f"{out}-again")
