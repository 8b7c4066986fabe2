"""What the package does where a distribution of this repository that adds a paradigm is not installed."""

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
from veilgraph_datasets.payments_tables import export_payments
from veilgraph_datasets.settings import PaymentsSettings

from tests.errors import refused
from veilgraph.core import settings
from veilgraph.core.errors import ConfigError
from veilgraph.privacy.event import from_json, to_json
from veilgraph.protocol.evidence import SOURCES
from veilgraph.protocol.job_file import JOBS, parse_job
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.samples.organisations import job_of

APART = ("veilgraph_averaging", "veilgraph_node_dp")
RELEASE = {
    "kind": "sampled",
    "noise_multiplier": 1.0,
    "sampling_rate": 0.5,
    "terms": 2,
    "neighbours": "zero-out",
    "unit": "node-edges",
}
HORIZONTAL = {"paradigm": "horizontal", "data": {"parties": {"A": "a.yaml", "B": "b.yaml"}}}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(group: str) -> tuple[EntryPoint, ...]:
        return tuple(each for each in entry_points(group=group) if not each.value.startswith(APART))

    monkeypatch.setattr(settings, "installed", left)


def test_both_are_installed_here() -> None:
    assert {"averaging", "node-dp"} < JOBS.keys() & PARADIGMS.keys() & SOURCES.keys()
    assert to_json(from_json(RELEASE)) == RELEASE
    job = parse_job(HORIZONTAL)
    assert PARADIGMS["horizontal"].baselines.beside(job) == {"paradigm": "averaging"}


@pytest.mark.usefixtures("bare")
def test_without_them_their_jobs_are_refused_and_all_others_go_on(tmp_path: Path) -> None:
    for name in ("averaging", "node-dp"):
        with refused(ConfigError, key="paradigm", value=name):
            parse_job({"paradigm": name})
    with pytest.raises(ConfigError, match="the packages, that wrote it"):
        from_json(RELEASE)  # a ledger of private training cannot be accounted for
    assert PARADIGMS["horizontal"].baselines.beside(parse_job(HORIZONTAL)) is None
    assert job_of("cora", "horizontal").name == "cora-horizontal"
    assert job_of("cora").name == "cora"
    export_payments(PaymentsSettings(customers=2000), tmp_path / "world", 0)
    made = {path.stem for path in (tmp_path / "world").glob("*.yaml")}
    assert made == {"union", "network", "horizontal", "vertical", "sealed"}
