"""Jobs that begin with the weights of an earlier run: holders join, and leave for good."""

from pathlib import Path

import pytest
import torch
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import averaging

import veilgraph as vg
from tests import nightly
from tests.errors import refused
from tests.paradigms.averaging.jobs import graphs, job
from tests.paradigms.cutting import CutError, cut_at
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

LAST: Settings = {"timeout_s": 150, "train": {"select_by": "last"}, "averaging": {"patience_s": 25}}
"""Patient: a busy machine is no holder that drops out."""


def some(*names: str) -> dict[str, PartyGraph]:
    every = {graph.party: graph for graph in graphs(job())}
    return {name: every[name] for name in names}


def fitted(path: Path, *names: str, **options: object) -> vg.Run:
    settings = job(LAST).model_dump(mode="json", exclude={"data"})
    return vg.fit(settings, some(*names), path, ids={n: range(some(n)[n].num_nodes) for n in names}, **options)  # type: ignore[arg-type]


def network_of(run: vg.Run) -> dict[str, torch.Tensor]:
    return load_tensors(RunDirectory.open(run.path).party(SERVER).model_path)[0]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> vg.Run:
    return fitted(tmp_path_factory.mktemp("earlier") / "run", *"ABC")


@nightly
@pytest.mark.parametrize("names", ["ABCD", "CD"])
def test_it_goes_on_with_other_holders_from_the_same_weights(names: str, tmp_path: Path, earlier: vg.Run) -> None:
    """One that joins, and two that leave: as the twin of those that are there."""
    run = fitted(tmp_path / "run", *names, begin_with=earlier)
    settings = averaging(run.job)
    twin = PlainAveraging(settings, list(some(*names).values()))
    twin.network.load_state_dict({name.removeprefix("network."): each for name, each in network_of(earlier).items()})
    for number in range(1, settings.train.epochs + 1):
        twin.round(number)
    expected = {f"network.{name}": tensor for name, tensor in twin.network.state_dict().items()}
    torch.testing.assert_close(network_of(run), expected, rtol=0, atol=1e-6)


def test_cut_off_it_goes_on_to_the_same_end(tmp_path: Path, earlier: vg.Run) -> None:
    whole = fitted(tmp_path / "whole", *"ABCD", begin_with=earlier.path)
    with cut_at(3), pytest.raises(CutError):
        fitted(tmp_path / "run", *"ABCD", begin_with=earlier.path)
    run = vg.load_run(tmp_path / "run").resume()
    torch.testing.assert_close(network_of(run), network_of(whole), rtol=0, atol=1e-6)


def test_what_a_job_cannot_begin_with(tmp_path: Path, earlier: vg.Run) -> None:
    vertical = vg.Job(data={"dataset": "synthetic"}, train={"epochs": 1, "patience": None})
    with refused(ConfigError, key="begin_with"):
        vg.fit(vertical, out=tmp_path / "run", begin_with=earlier)
    other = vg.fit(vertical, out=tmp_path / "vertical")
    with refused(ConfigError, key="begin_with"):
        fitted(tmp_path / "run", *"ABC", begin_with=other)
    (tmp_path / "empty").mkdir()
    with refused(RunError, key=tmp_path / "empty"):
        fitted(tmp_path / "run", *"ABC", begin_with=tmp_path / "empty")
    assert not (tmp_path / "run").exists()
    wider = job(LAST, {"model": {"dim": 5}}).model_dump(mode="json")
    with refused(RunError, key="begin_with"):
        vg.fit(wider, out=tmp_path / "run", begin_with=earlier)
