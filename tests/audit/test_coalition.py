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
from veilgraph.audit.finding import Finding
from veilgraph.audit.statistics import measure
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party
from veilgraph.privacy.mechanism import Mechanism
from veilgraph.privacy.publisher import NoisedPublisher
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


def test_a_friend_takes_its_noise_off_and_finds_what_another_left_out(tmp_path: Path) -> None:
    """C adds no noise. In the sum A's and B's hide that from the server; with them it sees C's rows as they are."""
    job = job_in(tmp_path / "data", initial={"method": "individual"})
    content = job.model_dump(mode="json") | {
        "privacy": {"unit": "row", "schedule": "every-step", "epsilon_total": 2.0, "canaries": 200},
        "train": {"epochs": 6, "patience": None, "select_by": "last"},
    }
    draw = NoisedPublisher.draw_release

    def silent(self: NoisedPublisher, mechanism: Mechanism, shape: tuple[int, ...]) -> Any:
        drawn = draw(self, mechanism, shape)
        if self.plan.party != "C":
            return drawn
        drawn.result().zero_()
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoisedPublisher, "draw_release", silent)
        run = train(parse_job(content), tmp_path / "run", record_views=True).path
    found = audit(run, AuditPlan(adversaries=(SERVER, "server+A+B"), attacks=("epsilon",)))
    bounds: dict[tuple[str, str], Finding] = {(f.adversary, f.target): f for f in found.findings}
    assert set(bounds) == {(SERVER, "A"), (SERVER, "B"), (SERVER, "C"), ("server+A+B", "C")}
    assert {key for key, finding in bounds.items() if not finding.passed} == {("server+A+B", "C")}


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


def test_in_every_step_the_label_holder_is_one_of_those_that_joint_noise_withstands(tmp_path: Path) -> None:
    job = job_in(tmp_path / "data", initial={"method": "individual"}, local={"model": "appnp"})
    content = job.model_dump(mode="json") | {
        "privacy": {
            "unit": "row",
            "schedule": "every-step",
            "epsilon_total": 4.0,
            "canaries": 200,
            "joint_noise": {"colluding": 1},
        },
        "train": {"epochs": 2, "patience": None, "select_by": "last"},
    }
    run = train(parse_job(content), tmp_path / "run", record_views=True).path
    plan = AuditPlan(adversaries=(SERVER, "server+A", "server+B", "server+A+B"), attacks=("epsilon",))
    found: dict[tuple[str, str], Finding] = {(f.adversary, f.target): f for f in audit(run, plan).findings}
    claimed = {key: finding.limit for key, finding in found.items()}
    assert claimed.pop(("server+A+B", "C")) is None
    assert set(claimed) == {
        *((SERVER, name) for name in NAMES),
        *(("server+A", name) for name in "BC"),
        *(("server+B", name) for name in "AC"),
    }
    for (who, name), limit in claimed.items():
        assert limit is not None
        assert limit == pytest.approx(4.0, rel=1e-6) if name == "A" else 2 < limit < 4
        assert found[who, name].passed


def test_the_claim_of_joint_noise_is_against_so_many_friends_and_no_more(tmp_path: Path) -> None:
    """Of three that publish one may help the server: canaries prove less than the ledger says. Of two, nothing."""
    job = job_in(tmp_path / "data", "ABCD", initial={"method": "individual"}, local={"model": "appnp"})
    content = job.model_dump(mode="json") | {
        "privacy": {"unit": "row", "epsilon_total": 4.0, "canaries": 200, "joint_noise": {"colluding": 1}},
        "train": {"epochs": 2, "patience": None},
    }
    run = train(parse_job(content), tmp_path / "run", record_views=True).path
    plan = AuditPlan(adversaries=(SERVER, "server+A", "server+B", "server+A+C", "server+B+C"), attacks=("epsilon",))
    found: dict[tuple[str, str], Finding] = {(f.adversary, f.target): f for f in audit(run, plan).findings}
    claimed = {key: finding.limit for key, finding in found.items()}
    assert claimed.pop(("server+B+C", "D")) is None
    assert set(claimed) == {
        *((who, name) for who in (SERVER, "server+A") for name in "BCD"),
        *(("server+B", name) for name in "CD"),
        *(("server+A+C", name) for name in "BD"),
    }
    for key, limit in claimed.items():
        assert limit == pytest.approx(4.0, rel=1e-6)
        assert found[key].passed, key
