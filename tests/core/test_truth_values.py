"""A truth value is no number and no word: ``epsilon_total: yes`` would be an ε of 1."""

from typing import Any

import pytest

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job_file import parse_job


@pytest.mark.parametrize(
    ("job", "key"),
    [
        ({"privacy": {"epsilon_total": True, "unit": "edge", "aggregation": {}}}, "epsilon_total"),
        ({"label_privacy": {"epsilon": True}}, "epsilon"),
        ({"seed": True}, "seed"),
        ({"train": {"patience": False}}, "patience"),
        ({"data": {"dataset": False}}, "dataset"),
        ({"paradigm": "averaging", "averaging": {"threshold": True}}, "threshold"),
    ],
)
def test_where_none_is_meant_it_is_refused(job: dict[str, Any], key: str) -> None:
    with refused(ConfigError, key=key):
        parse_job(job)


def test_where_one_is_meant_it_is_taken() -> None:
    job = parse_job({"data": {"split": [0.5, 0.2, 0.3], "stratify": False}, "model": {"local": {"normalize": False}}})
    assert job.data.stratify is False
