"""Customers leave and come while a model is in use: whoever is still common is predicted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.messy.holders import VERTICAL, Rows, rewrite, tables_of
from tests.paradigms.sealed.programs import small_job
from veilgraph.core.types import PartyId
from veilgraph.protocol.job_file import read_job
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.predictions import Predictions


class Tables:
    """A run whose holders all had the same customers in training."""

    def __init__(self, folder: Path, job: Any) -> None:
        self._folder, self.run = folder / "tables", folder / "run"
        train(read_job(tables_of(self._folder, job)), self.run)
        self._kept = {path: path.read_bytes() for path in self._folder.rglob("*.csv")}

    def predict(self, *changes: tuple[PartyId, str, Callable[[Rows], Rows]]) -> Predictions:
        """Predict from the tables of the training once some of them are changed."""
        for path, content in self._kept.items():
            path.write_bytes(content)
        for party, table, change in changes:
            rewrite(self._folder / party / f"{table}.csv", change)
        return predict(self.run)


JOBS = {"vertical": VERTICAL, "sealed": small_job(2, {"output": "margins"})}


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
    after = of(tables.predict((party, "nodes", lambda rows: [row for row in rows if row[0] != gone])))
    assert after.keys() == before.keys() - {gone}
    assert of(tables.predict()).keys() == before.keys()  # and is back


@pytest.mark.cases(1)
def test_one_customer_comes_to_one_holder_and_nobody_else_is_predicted_differently(tables: Tables) -> None:
    before = of(tables.predict())
    after = of(tables.predict(("B", "nodes", lambda rows: [*rows, ["new", *rows[0][1:]]])))
    assert after.keys() == before.keys()
    assert all(torch.allclose(after[name], before[name], atol=1e-3) for name in before)
