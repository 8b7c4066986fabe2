"""Customers leave and come while a model is in use: whoever is still common is predicted."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.paradigms.sealed.programs import small_graphs, small_job
from veilgraph.core.types import PartyId
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.protocol.messages import causes
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.predictions import Predictions
from veilgraph.samples.organisations import export_organisations

pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")

Rows = list[list[str]]


class Tables:
    """A run whose holders all had the same customers in training."""

    def __init__(self, folder: Path, job: Any) -> None:
        self._folder, self.run = folder / "tables", folder / "run"
        export_organisations(small_graphs(), self._folder, overlap=1.0, seed=1, job=job)
        for party in "AB":
            path = self._folder / party / "party.yaml"
            content = yaml.safe_load(path.read_text())
            content["limits"] = {"leakage": list(causes(job))}
            content["edges"][0]["unknown"] = "drop"
            path.write_text(yaml.safe_dump(content))
        train(read_job(self._folder / "job.yaml"), self.run)
        self._kept = {path: path.read_bytes() for path in self._folder.rglob("*.csv")}

    def predict(self, *changes: tuple[PartyId, str, Callable[[Rows], object]]) -> Predictions:
        """Predict from the tables of the training once some of them are changed."""
        for path, content in self._kept.items():
            path.write_bytes(content)
        for party, table, change in changes:
            path = self._folder / party / f"{table}.csv"
            with path.open(newline="") as file:
                head, *rows = csv.reader(file)
            change(rows)
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([head, *rows])
        return predict(self.run)


VERTICAL = {
    "paradigm": "vertical",
    "data": {"graphs": {"A": "a", "B": "b"}, "label_holder": "A"},
    "train": {"epochs": 3},
}
JOBS = {"vertical": parse_job(VERTICAL), "sealed": small_job(2, {"output": "margins"})}


@pytest.fixture(scope="module", params=JOBS)
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp(request.param), JOBS[request.param])


def of(predicted: Predictions) -> dict[str, torch.Tensor]:
    assert predicted.ids is not None
    return dict(zip(predicted.ids, predicted.probabilities, strict=True))


@pytest.mark.cases(2)
@pytest.mark.parametrize("party", ["A", "B"])
def test_one_customer_leaves_one_holder(tables: Tables, party: PartyId) -> None:
    before = of(tables.predict())
    gone = next(iter(before))

    def leave(rows: Rows) -> None:
        rows[:] = [row for row in rows if row[0] != gone]

    after = of(tables.predict((party, "nodes", leave)))
    assert after.keys() == before.keys() - {gone}
    assert of(tables.predict()).keys() == before.keys()  # and is back


@pytest.mark.cases(1)
def test_one_customer_comes_to_one_holder_and_nobody_else_is_predicted_differently(tables: Tables) -> None:
    before = of(tables.predict())
    after = of(tables.predict(("B", "nodes", lambda rows: rows.append(["new", *rows[0][1:]]))))
    assert after.keys() == before.keys()
    assert all(torch.allclose(after[name], before[name], atol=1e-3) for name in before)
