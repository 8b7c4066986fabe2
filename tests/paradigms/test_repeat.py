"""The same job on the same tables, aligned anew, gives the same predictions by id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from torch import Tensor

from tests import nightly
from tests.paradigms.averaging.jobs import job as averaging_job
from tests.paradigms.exported import export, over
from tests.paradigms.horizontal import MEAN, SECURE
from tests.paradigms.horizontal import job as horizontal_job
from tests.paradigms.organisations import exported, job
from tests.paradigms.sealed.programs import small_graphs, small_job
from tests.roles.federation import Settings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.revealed import causes
from veilgraph.run.jobs import predict, train
from veilgraph.run.predictions import Predictions
from veilgraph.samples.organisations import export_organisations

pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")

DROPPING: Settings = {
    "dim": 4,
    "local": {"model": "sage-mean", "dropout": 0.5},
    "initial": {"dropout": 0.3},
    "server": {"dropout": 0.4},
    "head": {"dropout": 0.4},
}
VERTICAL: Mapping[str, Settings] = {
    "dropout everywhere": {"model": DROPPING},
    "secure sum": {"model": DROPPING | {"initial": {"method": "secure-sum"}}},
    "individual": {"model": DROPPING | {"initial": {"method": "individual"}}},
    "sampled": {"model": DROPPING | {"local": {"model": "sage-mean", "fanout": 2}}, "train": {"batch_size": 50}},
    "drawn order": {"model": {"dim": 4, "local": {"model": "sage-lstm"}}, "train": {"epochs": 1}},
}
SEALED: Mapping[str, Settings] = {"mlp": {"model": {"network": "mlp"}, "train": {"batch_size": 4}}, "gcn": {"model": {"network": "gcn", "hops": 1}}}
AVERAGING = {"classes": {}, "personal": {"averaging": {"personal": ["input"]}}}


def by_id(found: Predictions) -> dict[str, Tensor]:
    assert found.ids is not None
    return dict(zip(found.ids, found.probabilities, strict=True))


def twice(settings: JobSettings, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    one, other = (by_id(train(settings, folder / name).predictions) for name in ("one", "other"))
    assert one.keys() == other.keys()
    return one, other


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("changes", VERTICAL.values(), ids=VERTICAL.keys())
def test_vertical(changes: Settings, tmp_path: Path) -> None:
    parties = exported(tmp_path)
    for path in parties.values():
        content = yaml.safe_load(path.read_text())
        content["limits"] = {"leakage": list(causes(job(parties, **changes)))}
        path.write_text(yaml.safe_dump(content))
    assert distance(*twice(job(parties, **changes), tmp_path)) == 0


@pytest.mark.parametrize("changes", [{}, SECURE, MEAN], ids=["max", "secure max", "mean"])
def test_horizontal(changes: Settings, tmp_path: Path) -> None:
    settings = horizontal_job(2, changes)
    settings = over(export(tmp_path, settings), settings, label_holder="A")
    assert distance(*twice(settings, tmp_path)) == 0

@pytest.mark.parametrize("changes", AVERAGING.values(), ids=AVERAGING.keys())
def test_averaging(changes: Settings, tmp_path: Path) -> None:
    settings = averaging_job(changes)
    settings = over(export(tmp_path, settings), settings, label_holder="A")
    one, other = twice(settings, tmp_path)
    print("AVG", distance(one, other))
    assert distance(one, other) == 0

@pytest.mark.parametrize("changes", SEALED.values(), ids=SEALED.keys())
def test_sealed(changes: Settings, tmp_path: Path) -> None:
    settings = small_job(2, {"output": "probabilities", "model": {"max_degree": 30, "edge_slots": 155}}, changes)
    export_organisations(small_graphs(), tmp_path / "tables", overlap=0.9, seed=1, job=settings)
    for party in "AB":
        path = tmp_path / "tables" / party / "party.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"limits": {"leakage": list(causes(settings))}}))
    one, other = twice(read_job(tmp_path / "tables" / "job.yaml"), tmp_path)
    print("SEALED", distance(one, other))
    assert 0 <= distance(one, other) < 1e-3
