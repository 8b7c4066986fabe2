"""An ``audit.json`` as an audit writes it, with one finding of every kind."""

from typing import Any

Json = dict[str, Any]


def interval(value: float, half: float = 0.02) -> Json:
    return {"value": value, "low": max(value - half, 0.0), "high": min(value + half, 1.0), "confidence": 0.95}


def curve(auc: float) -> Json:
    """TPR = FPR^k has the area 1 / (k + 1)."""
    power = 1 / auc - 1
    rates = [place / 50 for place in range(51)]
    return {"fpr": rates, "tpr": [rate**power for rate in rates]}


def finding(adversary: str, target: str, secret: str, attack: str, value: float, **changes: Any) -> Json:
    tested = {
        "found": value > 0.53,
        "auc": value,
        "p_value": 0.001 if value > 0.53 else 0.4,
        "level": 0.01,
        "against": 0.5,
    }
    return {
        "adversary": adversary,
        "target": target,
        "secret": secret,
        "attack": attack,
        "evidence": "sum of all holders' embeddings, last pass",
        "permitted": True,
        "measure": "auc",
        "value": interval(value),
        "figures": {
            "advantage": interval(2 * value - 1),
            "tpr_at_0_1_percent": interval(0.01, 0.005),
            "tpr_at_1_percent": interval(0.05),
        },
        "accuracy": None,
        "without": None,
        "pooled": None,
        "gain": None,
        "verdict": tested,
        "roc": curve(value),
        "limit": None,
        "passed": None,
        "note": "",
        **changes,
    }


def against_a_baseline(value: float, without: float, **changes: Any) -> Json:
    gain = interval(value - without, 0.015)
    found = value - without > 0.015
    tested = {"found": found, "auc": value, "p_value": 0.002 if found else 0.3, "level": 0.01, "against": without}
    return {"without": interval(without), "gain": gain, "verdict": tested, **changes}


def findings() -> list[Json]:
    return [
        finding(
            *("server", "B", "edges", "link-similarity", 0.82),
            **against_a_baseline(0.82, 0.61, pooled=interval(0.93, 0.01), limit=0.9, passed=True),
        ),
        finding(
            *("A", "B", "edges", "link-supervised", 0.66),
            **against_a_baseline(0.66, 0.655, limit=0.6, passed=False, exceeded=["auc"]),
        ),
        finding(*("A", "B", "features", "attribute", 0.51), **against_a_baseline(0.51, 0.50, accuracy=0.31)),
        finding(*("client", "A", "membership", "membership-confidence", 0.71), note="Over 100 training nodes."),
        finding(
            *("server", "B", "nothing", "uniformity", 0.505),
            evidence="masked messages, taken as random numbers",
            permitted=False,
            passed=True,
        ),
        {
            **finding("server", "B", "noise", "epsilon", 0.5, roc=None, figures=None, verdict=None),
            "measure": "epsilon",
            "value": {"value": 1.9, "low": 1.9, "high": 1.9, "confidence": 0.95},
            "limit": 8.0,
            "passed": True,
        },
    ]


def leak() -> Json:
    """Masked evidence that tells something."""
    return finding(
        *("server", "B", "features", "reconstruction", 0.7), evidence="masked messages", permitted=False, passed=False
    )


def audit(*, job: str, seed: int = 0, paradigm: str = "vertical", more: tuple[Json, ...] = ()) -> Json:
    return {
        "version": 2,
        "job": job,
        "paradigm": paradigm,
        "seed": seed,
        "false_alarm_rate": 0.01,
        "findings": [*findings(), *more],
        "skipped": [{"adversary": "C", "attack": "label-norm", "why": "C receives no gradient in this job"}],
    }
