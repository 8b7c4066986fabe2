"""Limits of an audit: what may be above one, and what nothing was held to, does not pass."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from veilgraph.audit.attack import ATTACKS
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import CLIENT, Finding, Outcome, measure_outcome
from veilgraph.audit.statistics import Interval
from veilgraph.cli import app
from veilgraph.core.errors import DataError
from veilgraph.protocol.job import AttackLimit


def test_a_limit_that_nothing_is_held_to_does_not_pass(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate is shut where the attack could not be mounted, whoever it was that could not."""

    def untested(adversaries: tuple[str, ...], attacks: tuple[str, ...], limited: str) -> list[tuple[str, str]]:
        found = audit(run, AuditPlan(adversaries, attacks, limits={limited: 0.99999}, shadows=2))
        return [(each.adversary, each.attack) for each in found.untested]

    nobody = "no adversary"
    assert untested((CLIENT,), ("attribute",), "attribute") == []
    assert untested((CLIENT,), ("attribute",), "reconstruction") == [(nobody, "reconstruction")]
    assert untested((CLIENT,), ("reconstruction",), "reconstruction") == [(CLIENT, "reconstruction")]
    assert untested((CLIENT, "B"), ("reconstruction",), "reconstruction") == []  # B has what it takes, a client not
    # Names are whole names: attribute is not tested by attribute-release, nor the other way round.
    assert untested((CLIENT,), ("attribute", "attribute-release"), "attribute-release") == [
        (CLIENT, "attribute-release")
    ]

    def nothing_to_say(*_: object) -> None:
        raise DataError("too few targets")

    with monkeypatch.context() as patch:
        silent = replace(ATTACKS["attribute"], mount=nothing_to_say)  # type: ignore[arg-type]
        patch.setattr("veilgraph.audit.audit.ATTACKS", {"attribute": silent})
        assert (CLIENT, "attribute on A") in untested((CLIENT,), ("attribute",), "attribute")
    with monkeypatch.context() as patch:
        patch.setattr("veilgraph.audit.audit.evidence_for", nothing_to_say)
        assert (CLIENT, "any attack") in untested((CLIENT,), ("attribute",), "attribute")
    said = CliRunner().invoke(app, ["audit", str(run), "--adversary", CLIENT, "--attack", "attribute",
                                    "--limit", "reconstruction=0.9"])  # fmt: skip
    assert said.exit_code == 3
    assert "nothing was held to the limit on reconstruction" in said.output
    said = CliRunner().invoke(app, ["audit", str(run), "--adversary", CLIENT, "--attack", "attribute",
                                    "--limit", "attribute=1", "--limit", "attribute:tpr_at_1_percent=1"])  # fmt: skip
    assert said.exit_code == 0, said.output
    for wrong in ("attribute", "attribute=0.4", "attribute:tpr=0.5", "attribute:tpr_at_1_percent=1.5", "attribut=0.9"):
        said = CliRunner().invoke(app, ["audit", str(run), "--limit", wrong])
        assert said.exit_code == 2, wrong


def outcome(auc: float, targets: int, **others: Any) -> Outcome:
    """Scores whose AUC is about that."""
    random = np.random.default_rng(0)
    truth = np.arange(targets) % 2 == 0
    shift = 2**0.5 * float(norm.ppf(auc))
    return Outcome(random.standard_normal(targets) + shift * truth, truth, **others)


def finding_of(attacked: Outcome, level: float = 0.01) -> Finding:
    return Finding(
        *("server", "B", "edges", "link-similarity", "of a test"),
        permitted=True,
        **measure_outcome(attacked, seed=0, level=level),
    )


def test_an_attack_that_is_right_the_other_way_round_is_no_guess() -> None:
    """On a graph whose neighbours differ a high similarity means that there is no edge."""
    low, high = finding_of(outcome(0.24, 2000)), finding_of(outcome(0.76, 2000))
    assert low.value.value == pytest.approx(0.76, abs=0.03)
    assert low.verdict is not None
    assert low.verdict.found
    assert "other way round" in low.note
    assert "other way round" not in high.note
    assert low.roc is not None
    assert np.trapezoid(low.roc.tpr, low.roc.fpr) > 0.7
    assert low.judged(AttackLimit(auc=0.55), 0.01).exceeded == ("auc",)
    both = finding_of(outcome(0.7, 2000, without=outcome(0.2, 2000).scores))
    assert both.without is not None
    assert both.without.value == pytest.approx(0.8, abs=0.03), "what it knew before has two directions as well"
    fixed = finding_of(outcome(0.2, 2000, threshold=5.0))
    assert fixed.figures is not None
    assert fixed.figures["advantage"].value > 0.3


def test_what_may_be_above_a_limit_does_not_pass() -> None:
    few, many = finding_of(outcome(0.55, 100)), finding_of(outcome(0.55, 20_000))
    assert few.value.value < 0.6 < few.value.high
    limit = AttackLimit(auc=0.6)
    assert few.judged(limit, 0.01).passed is False
    assert many.judged(limit, 0.01).passed is True
    assert many.judged(None, 0.01).passed is None
    assert few.figures is not None
    rate = few.figures["tpr_at_1_percent"]
    assert few.judged(AttackLimit(tpr_at_1_percent=rate.high), 0.01).passed is True
    below = few.judged(AttackLimit(tpr_at_1_percent=(rate.value + rate.high) / 2), 0.01)
    assert (below.passed, below.exceeded) == (False, ("tpr_at_1_percent",))
    assert below.limit is None
    rare = few.figures["tpr_at_0_1_percent"]
    assert few.judged(AttackLimit(tpr_at_0_1_percent=rare.high), 0.01).passed is True
    with pytest.raises(ValueError, match="a limit is of auc"):
        AttackLimit()


def test_an_epsilon_above_the_ledgers_does_not_pass() -> None:
    def proven(value: float, limit: float | None) -> Finding:
        bound = Interval(value, value, value, 0.95)
        fields = {"permitted": True, "measure": "epsilon", "value": bound, "limit": limit}
        return Finding("server", "B", "noise", "epsilon", "canaries", **fields).judged(None, 0.01)  # type: ignore[arg-type]

    assert (proven(1.9, 2.0).passed, proven(1.9, 2.0).limit) == (True, 2.0)
    assert (proven(2.1, 2.0).passed, proven(2.1, 2.0).exceeded) == (False, ("epsilon",))
    assert proven(2.1, None).passed is None
