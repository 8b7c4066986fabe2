"""Bad input is one clear error of the right type that names the argument and the way out, promptly."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.paradigms.runs import saved_job
from tests.roles.federation import NODES, OwnModel, Settings, small_data, small_job, small_parties
from veilgraph.core.errors import ConfigError, DataError, ProtocolError, RangeOverflow, RunError, VeilgraphError
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.runtime.launch.jobs import RunOptions, predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def refused(error: type[VeilgraphError], *words: str, out: Path | None = None, within_s: float = 15) -> Iterator[None]:
    """The block raises exactly ``error`` with one line that holds all ``words``, and leaves nothing at ``out``."""
    started = time.perf_counter()
    with pytest.raises(VeilgraphError) as caught:
        yield
    assert time.perf_counter() - started < within_s
    assert type(caught.value) is error, f"{type(caught.value).__name__}: {caught.value}"
    message = str(caught.value)
    assert "\n" not in message.strip(), message
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    if out is not None:
        assert not out.exists(), "a run directory was begun"


# The job


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["learning_rate", "weight_decay"])
def test_a_rate_that_is_no_number(key: str, value: float) -> None:
    with refused(ConfigError, key):
        small_job(2, {"train": {key: value}})


def test_an_empty_job_file_is_the_default_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("")
    assert read_job(tmp_path / "job.yaml") == VerticalJob()


@pytest.mark.parametrize("name", ["../../outside", "a/b", "..", ".", "A\nB", "x" * 300, "-A", "é", ""])
def test_a_holders_name_that_is_no_folder_name(tmp_path: Path, name: str) -> None:
    parties = small_parties(2)
    out = tmp_path / "deep" / "run"
    settings = small_job(2, {"train": {"epochs": 1}})
    with pytest.raises(ConfigError) as caught:
        train(settings, out, parties=[parties[0], replace(parties[1], party=name)])
    assert caught.value.key == "parties"
    assert not out.exists()


# The data


def bad_features(value: float) -> Callable[[PartyGraph], PartyGraph]:
    def change(graph: PartyGraph) -> PartyGraph:
        features = graph.features.clone()
        features[7, 1] = value
        return replace(graph, features=features)

    return change


def other(**changes: Any) -> Callable[[PartyGraph], PartyGraph]:
    return lambda graph: replace(graph, **changes)


BAD_PARTS: list[tuple[str, Callable[[PartyGraph], PartyGraph], tuple[str, ...]]] = [
    ("nan features", bad_features(float("nan")), ("'A'", "features", "nan", "row 7", "impute")),
    ("edge to nowhere", other(edge_index=torch.tensor([[0, NODES], [1, 2]])), ("edge_index", "edge 1", "0..59")),
    ("nothing to train on", other(train_mask=torch.zeros(NODES, dtype=torch.bool)), ("train_mask", "0 labelled")),
    ("no labels", other(labels=None, train_mask=None, val_mask=None, test_mask=None), ("labels",)),
    ("the server's name", other(party=SERVER), ("server",)),
]
"""Of each place where rules are checked one; ``tests/graph/test_party.py`` has all of them."""


@pytest.mark.parametrize(("change", "words"), [part[1:] for part in BAD_PARTS], ids=[part[0] for part in BAD_PARTS])
def test_bad_data(tmp_path: Path, change: Callable[[PartyGraph], PartyGraph], words: tuple[str, ...]) -> None:
    parties = small_parties(2)
    bad = change(parties[0])
    settings = small_job(2, {"data": {"label_holder": "A"}} if bad.party == "A" else {})
    error = ConfigError if bad.party == SERVER else DataError
    with refused(error, *words, out=tmp_path / "run"):
        train(settings, tmp_path / "run", parties=[bad, parties[1]])


@pytest.mark.parametrize("scaling", ["row", pytest.param("standard")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scaling_does_not_hide_what_is_not_finite(tmp_path: Path, scaling: str, value: float) -> None:
    parties = small_parties(2)
    bad = bad_features(value)(parties[1])
    settings = small_job(2, {"data": {"feature_scaling": scaling}, "train": {"epochs": 1}})
    with refused(DataError, "'B'", "features", "row 7", out=tmp_path / "run"):
        train(settings, tmp_path / "run", parties=[parties[0], bad])


def test_misaligned_holders(tmp_path: Path) -> None:
    parties = small_parties(2)
    shorter = PartyGraph("B", parties[1].features[:-2], parties[1].edge_index[:, :0])
    with refused(DataError, "A has 60", "B has 58", "align", out=tmp_path / "run"):
        train(small_job(2), tmp_path / "run", parties=[parties[0], shorter])


def test_a_label_holder_who_is_not_there(tmp_path: Path) -> None:
    parties = [replace(graph, party=name) for graph, name in zip(small_parties(2), ["bank", "shop"], strict=True)]
    settings = small_job(2, {"data": {"label_holder": "A"}})
    with refused(DataError, "label_holder='A'", "bank, shop", out=tmp_path / "run"):
        train(settings, tmp_path / "run", parties=parties)


def test_three_parties_and_nothing_said_of_holders(tmp_path: Path) -> None:
    """``data.holders`` has the default 2 and must not contradict the parties when the run's job is read back."""
    given = saved_job(tmp_path / "data", holders=3).model_dump(mode="json")
    del given["data"]["holders"]
    settings = parse_job(given)
    assert train(settings, tmp_path / "run").summary["nodes"] == NODES


# Numbers that do not fit


def test_features_too_large_for_the_ring(tmp_path: Path) -> None:
    parties = small_parties(2)
    huge = replace(parties[1], features=parties[1].features * 1e7)
    with refused(RangeOverflow, "B's features", "feature_scaling"):
        train(small_job(2), tmp_path / "run", parties=[parties[0], huge])


def test_features_too_large_for_a_masked_sum(tmp_path: Path) -> None:
    parties = small_parties(2)
    huge = replace(parties[1], features=parties[1].features * 1e12)
    settings = small_job(2, {"model": {"initial": {"method": "secure-sum"}}})
    with refused(RangeOverflow, "B's features", "its part of h^0", "feature_scaling"):
        train(settings, tmp_path / "run", parties=[parties[0], huge])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"initial": {"learning_rate": 1e7}}, ("h^0", "gradient_bits")),
        ({"initial": {"learning_rate": 1e14}}, ("gradient of h^0", "learning_rate")),
        ({"initial": {"method": "individual"}, "local": {"normalize": False, "activation": "none"}}, ("embeddings",)),
        ({"initial": {"method": "secure-sum"}}, ("h0",)),
    ],
)
def test_weights_that_run_away(tmp_path: Path, change: Settings, words: tuple[str, ...]) -> None:
    """The party whose numbers overflow says so, the others stop, and what was written so far can be read."""
    model = {"server": {"activation": "none"}, **change}
    settings = small_job(2, {"model": model, "train": {"learning_rate": 1e6, "epochs": 50}})
    before = set(threading.enumerate())  # another test may have left a silent party behind
    with refused(RangeOverflow, *words, within_s=60):
        train(settings, tmp_path / "run", parties=small_parties(2))
    run = RunDirectory.open(tmp_path / "run")
    assert run.summary is None
    assert len(run.metrics()) < 50
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert [name for name in left if "offline" in name or "dealer" in name] == []


def test_a_loss_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    model = {"initial": {"method": "individual"}, "combine": {"strategy": "concat"}, "server": {"activation": "none"}}
    settings = small_job(2, {"model": model, "train": {"learning_rate": 1e30, "epochs": 5}})
    with refused(ProtocolError, "learning_rate"):
        train(settings, tmp_path / "run", parties=small_parties(2))


# The run


def test_an_output_that_exists(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep me")
    with refused(RunError, "run", "choose another out="):
        train(small_job(2), tmp_path / "run", parties=small_parties(2))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with refused(RunError, "choose another out="):
            train(small_job(2), out, parties=small_parties(2))


def test_an_empty_output_directory_is_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    settings = small_job(2, {"train": {"epochs": 1}})
    assert train(settings, tmp_path / "run", parties=small_parties(2)).summary["best_epoch"] == 1


def test_an_own_model_and_its_setting_go_together(tmp_path: Path) -> None:
    own = small_job(2, {"model": {"local": {"model": "custom"}}})
    out = tmp_path / "run"
    parties = small_parties(2)
    with refused(ConfigError, "custom", "model.local.model", out=out):
        train(own, out, parties=parties)
    with refused(ConfigError, "custom", "model.local.model", out=out):
        train(small_job(2), out, parties=parties, options=RunOptions(custom=OwnModel))
    with refused(ConfigError, "custom", "processes=False", out=out):
        train(own, out, parties=parties, options=RunOptions(custom=OwnModel, processes=True))


def test_an_own_model_of_another_width(tmp_path: Path) -> None:
    class Wider(OwnModel):
        def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
            return torch.cat([x, x], dim=1)

    own = small_job(2, {"model": {"local": {"model": "custom"}}})
    with refused(ConfigError, "Wider", "[60, 16]", "dim=8"):
        train(own, tmp_path / "run", parties=small_parties(2), options=RunOptions(custom=Wider))


def test_no_run_to_resume_or_predict_with(tmp_path: Path) -> None:
    for act in (resume, predict):
        with refused(RunError, "job.yaml", "directory of a run"):
            act(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_the_wrong_number_of_columns_for_the_holders(tmp_path: Path) -> None:
    settings = small_job(13)
    with refused(DataError, "columns", "holders", out=tmp_path / "run"):
        small_parties(13, data=small_data())
    with refused(DataError, "holders=13", "digits", out=tmp_path / "run"):
        train(settings.model_copy(update={"data": settings.data.model_copy(update={"dataset": "digits"})}), tmp_path)
