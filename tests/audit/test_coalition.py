"""Parties that put their views together: what one of them hides from another is no longer hidden."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.runs import divided
from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from veilgraph.audit.attack import ATTACKS, AuditContext
from veilgraph.audit.audit import AuditPlan, audit, evidence_for
from veilgraph.audit.statistics import measure
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory

NAMES = ("A", "B", "C")


def job_in(folder: Path, names: str = "".join(NAMES), **model: Any) -> JobSettings:
    network, data = {"dim": 8, "local": {"model": "sage-mean", "hops": 2}, **model}, divided(folder, names, 240, 18)
    return parse_job({"data": data, "model": network, "train": {"epochs": 3, "patience": None}})


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``collaborative``, with a dealer and masks."""
    folder = tmp_path_factory.mktemp("dealt")
    return train(job_in(folder / "data"), folder / "run", record_views=True).path


@pytest.fixture(scope="module")
def summed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``secure-sum``, with two exchange rounds."""
    folder = tmp_path_factory.mktemp("summed")
    job = job_in(folder / "data", initial={"method": "secure-sum"}, rounds=2)
    return train(job, folder / "run", record_views=True).path


def of(run: Path, adversary: str, words: str) -> list[Evidence]:
    return [each for each in evidence_for(RunDirectory.open(run), adversary) if words in each.words]


def features(run: Path, party: str) -> np.ndarray:
    return load_party(RunDirectory.open(run).party(party).graph_path).features.to_dense().double().numpy()


def test_the_dealer_and_a_holder_have_the_others_features(dealt: Path) -> None:
    for evidence in of(dealt, "server+B", "from the dealer's masks"):
        if evidence.sort == "embedding":
            (party,) = evidence.about
            truth = features(dealt, party)
            assert evidence.rows is not None
            scale = (evidence.rows * truth).sum() / (truth**2).sum()
            assert np.abs(evidence.rows / scale - truth).max() < 1e-3
    case = AuditContext(RunDirectory.open(dealt), seed=0, shadows=2)

    def auc(adversary: str, words: str, attack: str, target: str) -> float:
        (evidence,) = [each for each in of(dealt, adversary, words) if each.sort in ATTACKS[attack].sorts]
        outcome = ATTACKS[attack].mount(evidence, case, adversary, target)
        return measure(outcome.scores, outcome.truth).auc

    assert auc("server+B", "the features of C, from the dealer's masks", "attribute", "C") > 0.99
    assert auc(SERVER, "the sum of all embeddings", "attribute", "C") < 0.95
    assert auc("server+B", "gradients of the initial embedding h0, from the dealer's", "label-gradient", "A") > 0.75


def test_without_the_dealer_the_masks_hold(dealt: Path) -> None:
    assert not of(dealt, "B+C", "masks")
    assert {party for each in of(dealt, "B+C", "") for party in each.about} == {"A"}


def test_all_holders_but_one_and_the_server_have_its_embedding(tmp_path: Path, dealt: Path) -> None:
    """It is what the holder would have sent without masks, to their resolution."""
    clear = train(job_in(tmp_path / "data", combine={"masked": False}), tmp_path / "run", record_views=True).path
    (wanted,) = of(clear, SERVER, "C's embedding of round 1")
    (found,) = of(dealt, "server+A+B", "the embeddings of C in round 1")
    assert wanted.rows is not None
    assert found.rows is not None
    assert np.abs(found.rows / np.linalg.norm(found.rows) - wanted.rows / np.linalg.norm(wanted.rows)).max() < 1e-4
    (pair,) = of(dealt, "server+B", "the embeddings of the others in round 1")
    assert pair.about == ("A", "C")


@pytest.mark.cases(1)
@pytest.mark.parametrize("who", ["A+B", "server+B"])
def test_every_attack_is_for_coalitions_too(summed: Path, who: str) -> None:
    """Of what one party's attack reads of its own there is one for each member."""
    attacks = ("known-weights", "link-influence")
    found = audit(summed, AuditPlan((who,), attacks))
    assert {finding.attack for finding in found.findings} == set(attacks)
    weights = {finding.target: finding.value.value for finding in found.findings if finding.attack == "known-weights"}
    assert weights["C"] > (0.99 if who == "A+B" else 0.8), "all learn from the job's seed"
    assert not (summed / "parties" / who).exists(), "nothing is made in the run"


@pytest.mark.parametrize("who", ["server+Z", "A+A", "A+B+C", "server+client"])
def test_a_coalition_that_is_none_is_refused(dealt: Path, who: str) -> None:
    with refused(ConfigError, key="adversaries"):
        audit(dealt, AuditPlan(adversaries=(who,)))
    assert "adversaries=" in one_error(veilgraph("audit", dealt, "--adversary", who))
