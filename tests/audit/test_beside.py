"""``veilgraph audit RUN --beside OTHER``: sessions held against each other, with leaks planted and without."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from veilgraph_averaging.settings import AveragingJob

from tests import nightly
from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from tests.paradigms.averaging.jobs import dropping_out, sums_of
from tests.paradigms.averaging.jobs import job as averaging_job
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.perturbed import PRIVATE, brought
from tests.paradigms.perturbed import holders as own_nodes
from tests.paradigms.runs import saved_job
from tests.roles.federation import Settings, small_job, small_parties
from veilgraph.audit.sealing import compare_sessions
from veilgraph.core.errors import ConfigError, ProtocolError, RunError
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import predict, resume, train

SHORT: Settings = {"train": {"epochs": 2, "checkpoint_every": 1}}
PRODUCTS: Settings = {"model": {"initial": {"method": "collaborative", "dropout": 0.0}}}


def recorded(settings: JobSettings, out: Path) -> Path:
    return train(settings, out, record_views=True, view_passes=0).path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of one job over the same data."""
    folder = tmp_path_factory.mktemp("pair")
    settings = saved_job(folder / "data", SHORT, PRODUCTS)
    return recorded(settings, folder / "one"), recorded(settings, folder / "other")


def test_two_clean_runs_have_nothing_in_common(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = pair
    result = veilgraph("audit", one, "--beside", other)
    assert result.exit_code == 0, result.output
    assert "2 sessions held against each other: no repetitions" in result.stdout
    copy = shutil.copytree(one, tmp_path / "copy")
    predict(copy)
    sessions, found = compare_sessions([one, copy])
    assert [each.name for each in sessions] == ["one, session 0 (train)", "copy, session 1 (predict)"]  # and no more
    assert found == []


def test_a_round_made_again_with_other_survivors_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one run beside itself: its sessions are compared."""
    monkeypatch.setattr(AveragingJob, "records_survivors", False)
    settings = averaging_job({"train": {"epochs": 3, "checkpoint_every": 3}, "model": {"dropout": 0.0}})
    run = tmp_path / "run"
    with dropping_out({"B": {sums_of(2)[0]: 1}}), cut_at(2), pytest.raises((CutError, ProtocolError)):
        recorded(settings, run)
    resume(run)
    sessions, found = compare_sessions([run, run])
    assert len(sessions) == 2
    assert any(each.what == "MASKED: two sums differ by the values of B" for each in found)
    result = veilgraph("audit", run, "--beside", run, "--json")
    assert result.exit_code == 3, result.output
    assert json.loads(result.stdout)["found"] == list(map(str, found))


def test_a_resumed_run_beside_itself_is_clean(tmp_path: Path) -> None:
    settings = saved_job(tmp_path / "data", SHORT)
    with cut_at(2), pytest.raises(CutError):
        recorded(settings, tmp_path / "run")
    resume(tmp_path / "run")
    sessions, found = compare_sessions([tmp_path / "run", tmp_path / "run"])
    assert (len(sessions), found) == (2, [])


@nightly
def test_embeddings_beside_private_labels_are_in_the_clear_and_no_releases(tmp_path: Path) -> None:
    """One more edge changes the embeddings of its ends alone, and no noise was promised for them."""
    graphs = own_nodes(48, 2)
    job = {"paradigm": "horizontal", "preset": "paper", "model": {"dim": 3}, **PRIVATE, **SHORT}
    settings = parse_job({**job, **brought(tmp_path / "data", graphs)})
    one = recorded(settings, tmp_path / "one")
    edges = torch.cat([graphs[1].edge_index, torch.tensor([[0, 1], [1, 0]])], dim=1)
    brought(tmp_path / "data", [graphs[0], replace(graphs[1], edge_index=edges)])
    assert compare_sessions([one, recorded(settings, tmp_path / "other")])[1] == []


def test_what_cannot_be_compared_is_one_clear_error(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = pair
    three = recorded(small_job(3, SHORT, {"data": {"dataset": "synthetic"}}), tmp_path / "three")
    bare = train(small_job(2, SHORT), tmp_path / "bare", parties=small_parties(2)).path
    with refused(ConfigError, key="--beside"):
        compare_sessions([one, three])
    with refused(ConfigError, key="--beside"):
        compare_sessions([one, one])
    with refused(RunError, key=bare):
        compare_sessions([one, bare])
    for options in (["--seed", "1"], ["--attack", "uniformity"], ["--limit", "link-similarity=0.9"], ["--details"]):
        assert "mounts no attack; leave the other options out" in one_error(
            veilgraph("audit", one, "--beside", other, *options)
        )
