"""A complete run keeps the final checkpoint alone, without what only training needs; a kill before costs nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import nightly
from tests.paradigms.averaging.jobs import job as averaging_job
from tests.paradigms.cutting import CutError
from tests.paradigms.horizontal import job as horizontal_job
from tests.paradigms.local import saved as local_job
from tests.paradigms.runs import saved_job
from tests.paradigms.sealed.programs import small_graphs
from tests.paradigms.sealed.programs import small_job as sealed_job
from veilgraph.core.tensor_file import load_tensors
from veilgraph.core.types import SERVER
from veilgraph.graph.party import save_party
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import TrainResult, predict, resume, train
from veilgraph.runtime.store.checkpoints import Checkpoints
from veilgraph.runtime.store.run_directory import RunDirectory

SHORT: dict[str, Any] = {"train": {"epochs": 5, "checkpoint_every": 2}}
STOPPED: dict[str, Any] = {"train": {"epochs": 80, "patience": 2, "checkpoint_every": 3, "learning_rate": 0.3}}


def sealed(folder: Path, holders: int) -> JobSettings:
    folder.mkdir()
    paths = {}
    for graph in small_graphs(holders, nodes=16, columns=3, training=6, seed=1):
        save_party(graph, folder / f"{graph.party}.safetensors")
        paths[graph.party] = str(folder / f"{graph.party}.safetensors")
    content = sealed_job(holders, SHORT, {"model": {"blocks": ["pooled.1"]}}).model_dump(
        mode="json", exclude_unset=True
    )
    scaling = {key: value for key, value in content["data"].items() if key == "feature_scaling"}
    return parse_job({**content, "data": {**scaling, "graphs": paths}})


JOBS: dict[str, Callable[[Path], JobSettings]] = {
    "vertical": lambda folder: saved_job(folder, SHORT),
    "vertical, stopped early": lambda folder: saved_job(folder, STOPPED),
    "horizontal": lambda folder: horizontal_job(3, SHORT),
    "averaging": lambda folder: averaging_job(SHORT),
    "sealed, two": lambda folder: sealed(folder, 2),
    "sealed, three": lambda folder: sealed(folder, 3),
    "node-dp": lambda folder: local_job(folder, SHORT),
}


def kept(run: Path) -> dict[str, dict[str, list[str]]]:
    """Party → checkpoint → names of what is in it."""
    names = (*RunDirectory.open(run).settings.data.names, SERVER)
    found: dict[str, dict[str, list[str]]] = {}
    for party in names:
        folder = run / "parties" / party / "checkpoints"
        found[party] = {
            str(path.relative_to(folder)): sorted(load_tensors(path)[0])
            for path in sorted(folder.rglob("*.safetensors"))
        }
    return found


def assert_erased(run: TrainResult) -> None:
    """Nothing but best weights of the last epoch, at whoever trains."""
    last = f"epoch-{run.metrics[-1]['epoch']:06d}.safetensors"
    for party, files in kept(run.path).items():
        learns_alone = RunDirectory.open(run.path).settings.passes.learns_alone
        assert list(files) == ([] if learns_alone and party != "A" else [last]), party
        assert all(name.startswith("best/") for names in files.values() for name in names), party


@contextmanager
def killed(moment: str, party: str) -> Iterator[None]:
    """A party is killed just before it does something with its checkpoints, once."""
    original, done = getattr(Checkpoints, moment), list[str]()

    def cut(self: Checkpoints, *rest: Any) -> None:
        if self.path(0).parts[-3] == party and not done:
            done.append(party)
            raise CutError
        original(self, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, moment, cut)
        yield


@pytest.mark.parametrize(
    ("name", "party", "moment"),
    [
        pytest.param("vertical", "B", "finish", marks=nightly),
        ("vertical", SERVER, "end"),
        pytest.param("horizontal", "A", "end", marks=nightly),
        ("averaging", "B", "finish"),
        ("sealed, two", SERVER, "finish"),
        pytest.param("node-dp", "A", "finish", marks=nightly),
        pytest.param("vertical, stopped early", "A", "finish", marks=nightly),
        pytest.param("horizontal", "B", "finish", marks=nightly),
        pytest.param("sealed, three", "A", "end", marks=nightly),
    ],
)
def test_a_kill_between_the_end_and_the_erasure_needs_no_leave_and_changes_nothing(
    name: str, party: str, moment: str, tmp_path: Path
) -> None:
    settings = JOBS[name](tmp_path / "data")
    whole = train(settings, tmp_path / "whole")
    assert_erased(whole)
    before, tolerance = kept(whole.path), 0.02 if "sealed" in name else 0.0
    again = predict(whole.path)
    assert torch.allclose(again.probabilities, whole.predictions.probabilities, atol=tolerance)
    assert resume(whole.path).summary == whole.summary  # as it is
    assert kept(whole.path) == before
    with killed(moment, party), pytest.raises(CutError):
        train(settings, tmp_path / "run")
    resumed = resume(tmp_path / "run")
    assert_erased(resumed)
    assert len(resumed.metrics) == len(whole.metrics)
    assert torch.allclose(resumed.predictions.probabilities, whole.predictions.probabilities, atol=tolerance)
