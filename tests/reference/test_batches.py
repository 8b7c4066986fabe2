"""A job in batches is its plaintext twin, weight by weight; one batch of all nodes is the job without batches."""

import re
from pathlib import Path

import pytest
import torch

from tests import nightly
from tests.errors import refused
from tests.paradigms.runs import joint_model
from tests.reference.twins import assert_run_is_twin
from tests.roles.federation import DIM, NODES, Settings, merge, small_job, small_parties, with_own_nodes
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER
from veilgraph.link.view import read_view
from veilgraph.mpc.product import row_blocks
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory

SIZE = NODES // 3 + 1
DROPOUT: Settings = {
    "precision": "float64",
    "model": {
        "initial": {"dropout": 0.2, "activation": "tanh"},
        "local": {"dropout": 0.3, "fanout": 2},
        "head": {"dropout": 0.25},
    },
    "train": {"batch_size": SIZE, "select_by": "last"},
}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="collaborative, mean"),
        pytest.param({"train": {"refresh_every": 2}}, id="renewed within the epoch"),
        pytest.param(
            {"model": {"initial": {"method": "secure-sum"}, "combine": {"strategy": "degree-weighted"}}},
            id="secure sum, degree-weighted",
        ),
        pytest.param(
            {
                "model": {
                    "initial": {"method": "individual"},
                    "combine": {"strategy": "concat"},
                    "local": {"model": "gcn"},
                }
            },
            id="individual, concat, gcn",
        ),
        pytest.param({"model": {"combine": {"strategy": "regression"}, "local": {"model": "sage-lstm"}}}, id="lstm"),
    ],
)
@pytest.mark.parametrize("own", [pytest.param(False, marks=nightly), True], ids=["common nodes", "own nodes"])
def test_every_weight_equals_the_twins(tmp_path: Path, changes: Settings, own: bool) -> None:
    graphs = with_own_nodes(small_parties(3), (5, 0, 4)) if own else small_parties(3)
    settings = small_job(3, DROPOUT, changes)
    assert_run_is_twin(train(settings, tmp_path / "run", parties=graphs), settings, graphs)


def test_one_batch_of_all_nodes_and_neighbours_is_the_job_without_batches(tmp_path: Path) -> None:
    still: Settings = {"precision": "float64", "model": {"server": {"dropout": 0.0}}}
    one, whole = small_job(2, still, {"train": {"batch_size": NODES}}), small_job(2, still)
    first, second = (train(each, tmp_path / name, parties=small_parties()) for each, name in ((one, "1"), (whole, "2")))
    torch.testing.assert_close(first.predictions.probabilities, second.predictions.probabilities, atol=1e-7, rtol=0)


def test_what_leaves_a_holder_tells_nothing_of_its_neighbourhoods(tmp_path: Path) -> None:
    """The shapes, tags and receivers of all messages are the same whatever edges a holder has."""
    shapes = []
    for seed in (0, 1):
        graphs = small_parties(seed=seed)
        settings = small_job(2, DROPOUT, {"train": {"epochs": 2}})
        train(settings, tmp_path / str(seed), parties=graphs, record_views=True)
        (view,) = RunDirectory.open(tmp_path / str(seed)).party("B").views()
        shapes.append(sorted((seen.receiver, str(seen.tag), tuple(seen.shape)) for seen in read_view(view)))
    assert shapes[0] == shapes[1]
    published = [shape for receiver, tag, shape in shapes[0] if receiver == SERVER and "masked" in tag]
    assert (SIZE, DIM) in published


@pytest.mark.parametrize("size", [pytest.param(None, marks=nightly), SIZE], ids=["all at once", "in batches"])
def test_rows_multiplied_in_blocks_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    settings = small_job(2, {"precision": "float64", "train": {"epochs": 2, "batch_size": size}})
    train(settings, tmp_path / "one", parties=small_parties())
    monkeypatch.setattr("veilgraph.mpc.product.row_blocks", lambda n, f, d, _: row_blocks(n, f, d, 8 * DIM * 7))
    train(settings, tmp_path / "many", parties=small_parties())
    one, many = joint_model(tmp_path / "one"), joint_model(tmp_path / "many")
    assert all(torch.equal(one[name], many[name]) for name in one)
    predict(tmp_path / "many")


IN_BATCHES: Settings = {"data": {"dataset": "synthetic"}, "train": {"batch_size": 8}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": {"rounds": 2}},
            "model.rounds=2 with train.batch_size: a second round would ask for the neighbours",
        ),
        ({"model": {"head": {"logit_hops": 1}}}, "model.head.logit_hops=1 with train.batch_size: they reach beyond"),
        (
            {"paradigm": "horizontal"},
            "with paradigm=horizontal: only paradigm=vertical trains on some nodes at a time",
        ),
        (
            {"model": {"local": {"fanout": 3}}, "train": {"batch_size": None}},
            "model.local.fanout=3 with train.batch_size=null: it bounds the neighbourhoods of batches",
        ),
    ],
)
def test_what_batches_do_not_go_with_is_refused(changes: Settings, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse_job(merge(IN_BATCHES, changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused(ConfigError, key="device", value="cuda"):
        train(small_job(2, {"device": "cuda"}), tmp_path / "run", parties=small_parties())
    found, plain = (
        train(small_job(2, {"device": device}), tmp_path / device, parties=small_parties())
        for device in ("auto", "cpu")
    )
    assert torch.equal(found.predictions.probabilities, plain.predictions.probabilities)
