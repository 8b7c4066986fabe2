"""Canaries among labels: what gradients prove of a label's ε is below the ledger's, and above one that is false.

Coins and perturbed labels are from fixed secrets, so that nothing here depends on chance.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.roles.federation import small_parties
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.canaries import LabelCanaries
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.session import publishers as ledgers
from veilgraph.runtime.store.run_directory import RunDirectory

EPSILON, COUNT = 2.0, 300


def job(count: int = COUNT, epochs: int = 4) -> JobSettings:
    return parse_job(
        {
            "seed": 1,
            "data": {"dataset": "digits", "holders": 2, "split": [0.6, 0.2, 0.2], "stratify": False},
            "model": {"dim": 16, "initial": {"method": "individual"}, "combine": {"masked": False}},
            "train": {"epochs": epochs, "patience": None, "class_weights": "none", "checkpoint_every": 2},
            "label_privacy": {"epsilon": EPSILON, **({"canaries": count} if count else {})},
        }
    )


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "system_secrets", fixed_secrets("label canaries"))


def audited(settings: JobSettings, folder: Path) -> AuditResult:
    train(settings, folder / "run", record_views=True)
    return audit(folder / "run", AuditPlan(attacks=("epsilon",)))


def test_gradients_prove_less_than_the_ledger_says_and_not_nothing(tmp_path: Path) -> None:
    found = {each.adversary: each for each in audited(job(), tmp_path).findings}
    assert set(found) == {SERVER, "B"}
    for each in found.values():
        assert each.target == "A"
        assert each.limit == EPSILON
        assert each.value is not None
        assert each.value.low <= EPSILON
    best = found[SERVER].value
    assert best is not None
    assert best.low > 0.3 * EPSILON, "of one run; most prove more than half of it"


@pytest.mark.cases(1)
@pytest.mark.parametrize("leak", ["labels are not perturbed", "perturbed at twice the ε, and paid for once"])
def test_a_door_that_does_not_what_it_says_fails_the_audit(
    leak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LabelResponse.release

    def loud(response: LabelResponse, labels: torch.Tensor, source: Any) -> torch.Tensor:
        return labels.clone() if "not" in leak else whole(LabelResponse(3 * EPSILON, response.classes), labels, source)

    monkeypatch.setattr(LabelResponse, "release", loud)
    result = audited(job(), tmp_path)
    (server,) = [each for each in result.findings if each.adversary == SERVER]
    assert server.value is not None
    assert server.value.low > EPSILON
    assert server in result.failed


def test_without_canaries_it_says_so(tmp_path: Path) -> None:
    result = audited(job(0), tmp_path)
    assert not result.findings
    assert any("label_privacy.canaries" in each.why for each in result.skipped if each.adversary == SERVER)


def test_they_are_training_nodes_with_new_labels_and_the_same_in_all_sessions(tmp_path: Path) -> None:
    settings = job(epochs=2)
    run = train(settings, tmp_path / "run")
    store = RunDirectory.open(run.path).party("A")
    graph, kept = load_party(store.graph_path), store.canaries()
    assert kept is not None
    assert (kept.count, kept.nodes) == (COUNT, graph.common)
    canaries = LabelCanaries.of(settings, graph, kept.key)
    places, planted = canaries.places(graph), canaries.into(graph)
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert planted.labels is not None
    assert len(places.unique()) == COUNT
    assert bool(graph.train_mask[places].all())
    assert torch.equal(planted.labels[places], canaries.coins.long())
    assert 0.3 < float(canaries.coins.double().mean()) < 0.7
    others = torch.ones(graph.common, dtype=torch.bool)
    others[places] = False
    assert torch.equal(planted.labels[others], graph.labels[others])
    assert not RunDirectory.open(run.path).party("B").canaries_path.exists()
    store.canaries_path.unlink()
    with refused(RunError, key=run.path / "parties" / "A" / "canaries.safetensors"):
        predict(run.path)


def test_more_than_there_are_training_nodes_are_refused(tmp_path: Path) -> None:
    with refused(ConfigError, key="label_privacy.canaries", value=2000):
        train(job(2000), tmp_path / "run")
    graph = small_parties(2)[0]
    with refused(ConfigError, key="label_privacy.canaries"):
        LabelCanaries.of(job(0), graph, system_secrets(SEED_BYTES))
