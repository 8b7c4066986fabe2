from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.runs import job_in
from veilgraph.run.jobs import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    train(job_in(folder / "data"), folder / "run", record_views=True)
    return folder / "run"
