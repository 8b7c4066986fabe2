"""Joint inferences made anew in one process are those that the parties make."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import nightly
from tests.audit.runs import job_in
from tests.roles.federation import OwnModel
from veilgraph.audit.attack import AuditContext
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import Finding
from veilgraph.core.errors import DataError
from veilgraph.graph.party import load_party, save_party
from veilgraph.runtime.launch.jobs import RunOptions, predict, train
from veilgraph.runtime.store.run_directory import RunDirectory


def trained_twin(run: Path) -> Any:
    case = AuditContext(RunDirectory.open(run), seed=0, shadows=2)
    return case.source.twin(case)


def trained(folder: Path, method: str, **changes: object) -> Path:
    model = {"dim": 8, "initial": {"method": method}, "local": {"hops": 1}}
    train(job_in(folder / "data", 0, model=model, **changes), folder / "run", record_views=True)
    return folder / "run"


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", ["collaborative", pytest.param("secure-sum", marks=nightly), "individual"])
def test_what_changed_features_are_predicted_and_what_that_tells_of_edges(method: str, tmp_path: Path) -> None:
    run = trained(tmp_path, method)
    twin = trained_twin(run)
    initial, weight = twin.embedding.embed(), twin.embedding.weights()["B"]
    changed = shutil.copytree(run, tmp_path / "changed")
    path = RunDirectory.open(changed).party("B").graph_path
    graph = load_party(path)
    features = graph.features.to_dense()
    for party in initial if method != "individual" else ["B"]:
        initial[party] = initial[party].clone()
        initial[party][7] += (features[7].to(weight.dtype) @ weight.detach()).to(initial[party].dtype)
    features[7] *= 2
    save_party(replace(graph, features=features), path)
    asked, before = predict(changed).uncalibrated, predict(run).uncalibrated
    torch.testing.assert_close(twin.infer().softmax(dim=1), before, atol=1e-4, rtol=0)
    torch.testing.assert_close(twin.infer_from(initial).softmax(dim=1), asked, atol=1e-4, rtol=0)
    assert float((asked - before).abs().max()) > 1e-3

    found = audit(run, AuditPlan(("A", "B"), ("link-influence",))).findings
    assert [(each.adversary, each.target) for each in found] == [("A", "B"), ("B", "A")]
    assert all(tells(each) == (method != "individual") for each in found)


def tells(found: Finding) -> bool:
    assert found.verdict is not None
    assert found.gain is not None
    assert found.verdict.found == (found.gain.low > 0.2)
    return found.verdict.found


def test_a_network_of_the_users_own_is_not_made_again(tmp_path: Path) -> None:
    model = {"dim": 8, "local": {"model": "custom"}}
    settings = job_in(tmp_path / "data", 0, model=model, train={"epochs": 1, "patience": None})
    train(settings, tmp_path / "run", options=RunOptions(custom=OwnModel))
    with pytest.raises(DataError, match="this job has another"):
        trained_twin(tmp_path / "run")
