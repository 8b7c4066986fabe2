"""Symbols between banks, attacked: what another bank finds out of labels, and what it proves of their ε."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from veilgraph_averaging.symbols import roles

from tests.mpc.sessions import fixed_secrets
from tests.paradigms.averaging.symbol_jobs import ALL, symbol_job
from tests.paradigms.union.banks import banks
from tests.roles.federation import Settings
from veilgraph.audit.audit import AuditPlan, audit, evidence_for
from veilgraph.audit.canaries import one_run_epsilon
from veilgraph.audit.finding import Finding
from veilgraph.core.secrets import SecretSource
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.canaries import LabelCanaries
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.session import publishers
from veilgraph.runtime.store.run_directory import RunDirectory

EPSILON, COUNT, ACCOUNTS, JOBS = 2.0, 120, 400, 7
ATTACKS = ("label-symbol", "membership-symbol", "epsilon")


@pytest.fixture(autouse=True)
def nothing_is_learnt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a bank learns at home is sent to nobody, and takes the time."""

    def undecided(graph: PartyGraph, ids: object, seed: int) -> SimpleNamespace:
        return SimpleNamespace(output=torch.zeros(graph.common, 2))

    monkeypatch.setattr(roles, "own_model", undecided)


def trained(
    folder: Path, *changes: Settings, holders: int = 2, epsilon: float = EPSILON, **options: Any
) -> RunDirectory:
    graphs, ids = banks(holders, accounts=ACCOUNTS)
    private: Settings = {"label_privacy": {"epsilon": epsilon, "canaries": COUNT}}
    job = symbol_job(private, *changes, holders=tuple("ABC"[:holders]))
    train(job, folder, parties=graphs, ids=ids, record_views=True, **options)
    return RunDirectory.open(folder)


def attacked(run: RunDirectory, adversary: str = "B") -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for each in audit(run.path, AuditPlan((adversary,), ATTACKS)).findings:
        found.setdefault(each.attack, []).append(each)
    return found


def single(found: Mapping[str, list[Finding]], attack: str) -> Finding:
    (each,) = found[attack]
    return each


def test_a_symbol_is_the_label_as_often_as_epsilon_says_and_proves_less_than_it(tmp_path: Path) -> None:
    found = attacked(trained(tmp_path / "run"))
    labels, proven = single(found, "label-symbol"), single(found, "epsilon")
    assert labels.accuracy == pytest.approx(LabelResponse(EPSILON, 2).keep_probability, abs=0.1)
    assert labels.targets is not None
    assert 0 < sum(labels.targets) < ACCOUNTS * 2 / 5 - COUNT + 1, "and canaries are not among them"
    assert proven.limit == EPSILON
    assert proven.passed
    assert proven.value is not None
    assert 1 < proven.value.low < EPSILON
    members = single(found, "membership-symbol").value
    assert members is not None
    assert members.value == 1, "who is trained on shows: trained-counterparts"


def test_without_randomised_response_every_label_is_found_and_epsilon_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LabelResponse, "release", lambda self, labels, source: labels.clone())
    found = attacked(trained(tmp_path / "run"))
    assert single(found, "label-symbol").accuracy == 1
    proven = single(found, "epsilon")
    assert proven.passed is False
    assert proven.accuracy == 1


def test_where_all_answer_who_is_trained_on_is_within_epsilon_as_well(tmp_path: Path) -> None:
    found = attacked(trained(tmp_path / "run", ALL))
    members, proven = single(found, "membership-symbol"), single(found, "epsilon")
    assert members.value is not None
    kept = LabelResponse(EPSILON, 2).keep_probability
    assert 0.5 < members.value.low < members.value.high < kept
    assert proven.passed


def test_banks_together_have_the_symbols_of_all_of_them(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", holders=3)
    found = attacked(run, "B+C")
    sizes = {each.evidence: sum(each.targets or ()) for each in found["label-symbol"]}
    alone, other, together = (sizes[f"symbols of A's nodes at edges with {who}"] for who in ("B", "C", "B and C"))
    assert max(alone, other) < together < alone + other, "the same node has the same symbol for both"
    assert all(each.passed for each in found["epsilon"])
    assert len(found["epsilon"]) == 3
    about = sorted((each.target, each.evidence.split(",")[0]) for each in attacked(run, "B")["epsilon"])
    assert about == [(who, f"symbols of {who}'s nodes at edges with B") for who in "AC"]


def symbols_told(run: RunDirectory) -> dict[str, int]:
    (evidence,) = (each for each in evidence_for(run, "B") if each.sort == "symbols")
    return dict(evidence.symbols)


def proves(runs: list[RunDirectory]) -> float:
    """The ε that the symbols of all runs together prove, of canaries that are the same in all of them."""
    graph = banks(2, accounts=ACCOUNTS)[0][0]
    ids, kept = runs[0].party("A").ids(), runs[0].party("A").canaries()
    assert ids is not None
    assert kept is not None
    canaries = LabelCanaries.of(runs[0].settings, graph, kept.key)
    told = [symbols_told(run) for run in runs]
    seen = [place for place, node in enumerate(canaries.places(graph).tolist()) if ids[node] in told[0]]
    names = [ids[node] for node in canaries.places(graph)[seen].tolist()]
    scores = np.array([sum(2.0 * each[name] - 1 for each in told) for name in names])
    return one_run_epsilon(scores, canaries.coins.numpy()[seen], 0.0).epsilon


@pytest.mark.parametrize("kept", [True, False], ids=["one ledger", "no ledger"])
def test_many_jobs_of_one_ledger_prove_no_more_than_one_and_without_a_ledger_more_than_epsilon(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same canaries in each job; draws are anew unless the ledger kept them."""
    monkeypatch.setattr(publishers, "system_secrets", lambda length: bytes(range(length)))  # the canaries' key
    runs, options = list[RunDirectory](), dict[str, Any]()
    if kept:
        options["ledgers"] = {name: tmp_path / name for name in "AB"}
    for number in range(2 if kept else JOBS):
        monkeypatch.setattr(publishers, "LabelPublisher", partial(drawing, fixed_secrets("draws", number)))
        runs.append(trained(tmp_path / f"{number}", epsilon=1.0, **options))
    assert (symbols_told(runs[0]) == symbols_told(runs[1])) == kept
    alone, together = proves(runs[:1]), proves(runs)
    assert 0 < alone < 1
    assert together == alone if kept else together > 1


def drawing(source: SecretSource, response: Any, labels: Tensor, ledger: Any, _: object, *rest: Any) -> LabelPublisher:
    """A holder's publisher, with draws of this source."""
    return LabelPublisher(response, labels, ledger, source, *rest)
