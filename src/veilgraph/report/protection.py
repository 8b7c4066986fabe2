"""How an ε is shown, and perturbed labels: what they cost, what they are about and what they are not."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.table import Table
from typing_extensions import override

from veilgraph.core.text import listed
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.settings import LabelPrivacySettings
from veilgraph.protocol.job import JobSettings, perturbed_splits, perturbing
from veilgraph.report.tables import NOTHING, table
from veilgraph.runtime.store.run_directory import Record

S = TypeVar("S")

PER_RELEASE: Final = "per-release ε"
TOTAL: Final = "total ε"
OF_NODES: Final = "δ ≤ 1/(10·N), of N common nodes"
"""Said of a δ that follows from N, where N is not known."""
NO_DELTA: Final = "0: the bound always holds"
BOUND: Final = (
    "Whatever a receiver knows besides and computes from what it got, it can hardly tell two data sets apart that "
    "differ in one unit: the odds of any conclusion differ by a factor of at most e to the power of the total ε, but "
    "for a probability δ. Small is strong: below 1 says much, above about 16 says little."
)
RELATIONS: Final = MappingProxyType(
    {"zero-out": "as it is, or empty", "replacement": "as it is, or replaced by any other"}
)
ADD_UP: Final = "Each holder's ε is about its own data; where a person is in the data of several, their ε add up."
_DIGITS: Final = 4
_ROUNDING: Final = 1 - 1e-9  # what calibration adds to be safe is not rounded up to another digit


@dataclass(frozen=True)
class Guarantee:
    """What an ε of a job means, if there is any: its scope in a few words, the statement, what it is about, and not."""

    scope: str
    statement: str
    about: tuple[tuple[str, str], ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Protection(ABC, Generic[S]):
    """One kind of differential privacy of a job, which its ``settings`` say, as it is shown before and after a run.

    ``nodes`` are common to all holders, where known; ``not_asked``: options of ``budget`` that say nothing of it → why.
    """

    job: JobSettings
    settings: S
    nodes: int | None = None
    not_asked: ClassVar[tuple[frozenset[str], str]] = (frozenset(), "")

    @property
    def features(self) -> Protection[Any] | None:
        """The protection of features that nodes release beside it; None where they release none."""
        return None

    @abstractmethod
    def table(self) -> Table | None:
        """What every holder releases and what that costs; None where nothing is noised."""

    def notes(self) -> list[str]:
        """What must be said beside the table, a line each: what is guaranteed of what, and what is not."""
        told = self.guarantee()
        return [*(f"{name}: {what}" for name, what in told.about), *told.limits]

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What the table shows, for programs: holder → facts; an ε that is None is infinite."""

    @abstractmethod
    def guarantee(self, delta: float | None = None) -> Guarantee:
        """The guarantee in words; ``delta``: the ledgers' δ, for a job that leaves it open."""

    def own_epsilons(self) -> dict[float, float]:
        """Total ε → ε of one job, for the total that the job itself sets; empty where it sets none."""
        return {}

    def noise(self, totals: list[float]) -> list[Record]:
        """Records of the noise that each total ε needs; empty where ``NeededNoise`` has them."""
        return []


def epsilon_text(epsilon: float | None) -> str:
    """An ε as ledgers are summed up with it, None for infinite: four digits, rounded up."""
    return "infinite" if epsilon is None else rounded_up(epsilon)


def rounded_up(number: float) -> str:
    """A number as text of four digits, rounded up, so that no ε or needed noise is shown smaller than it is."""
    if math.isinf(number):
        return "infinite"
    rounded = Context(prec=_DIGITS, rounding=ROUND_CEILING).create_decimal_from_float(number * _ROUNDING)
    return f"{float(rounded):.{_DIGITS}g}" if 1e-4 <= number < 1e4 or number == 0 else f"{float(rounded):g}"


def releases_text(releases: Mapping[Any, int]) -> str:
    """Counts of releases by channel, in words; "none" where there are none."""
    return ", ".join(f"{channel} {count:,}" for channel, count in releases.items() if count) or "none"


RESPONSE: Final = "randomised response"
_OF_SEVERAL: Final = "where several holders have a node's label, each perturbs it by itself, and their ε add up"
EVERYBODY: Final = ("holds against", "everybody, all parties together")


class PerturbedLabels(Protection[LabelPrivacySettings]):
    """``label_privacy``: labels are perturbed a single time, before training."""

    not_asked = (
        frozenset({"total", "horizon", "nodes"}),
        "--total, --jobs, --predictions and --nodes are about noise on edges; the ε of perturbed labels is in the "
        "job itself, has no δ, and the same labels are paid for once; leave them out",
    )

    def _perturbed_splits_text(self, joined: str = "and") -> str:
        return f"training {joined} validation" if _true_test_labels(self.job) else f"training, validation {joined} test"

    @override
    def table(self) -> Table:
        epsilon = f"{self.settings.epsilon:g}"
        perturbing = (f"labels of {self._perturbed_splits_text()} nodes", RESPONSE, epsilon, epsilon)
        other = ("nothing: it has no labels here", NOTHING, "0", "0")
        return table(
            "Label privacy",
            ("holder", "perturbs", "mechanism", f">{PER_RELEASE}", f">{TOTAL}"),
            ((holder, *(perturbing if costs else other)) for holder, costs in self.facts().items()),
            caption="Of one label, perturbed a single time in all jobs with this ε; δ = 0.",
        )

    @override
    def facts(self) -> dict[str, list[Record]]:
        costs = [{"what": "label", "mechanism": RESPONSE, "epsilon": self.settings.epsilon}]
        return {holder: costs if holder in perturbing(self.job) else [] for holder in self.job.data.names}

    @override
    def guarantee(self, delta: float | None = None) -> Guarantee:
        job, several, where = self.job, len(perturbing(self.job)) > 1, listed(perturbing(self.job))
        if several:
            where = f"each of {where} that has labels"
        about = (
            ("unit", f"one label, at one holder, of a {self._perturbed_splits_text('or')} node"),
            ("neighbouring relation", "replacement: the node's own class, or any other"),
            ("δ", NO_DELTA),
            ("mechanism", f"randomised response, ε {self.settings.epsilon:g}, a single time, at {where}"),
            EVERYBODY,
        )  # fmt: skip
        limits = (
            "It is about labels alone: features and edges are not noised, and for them per-release ε and total ε are "
            "infinite.",
            "All that leaves a holder afterwards - gradients, which epoch is the best, when to stop - is computed from "
            "perturbed labels, and costs nothing more.",
            "Which nodes have a label for training, how many classes there are, and whether a label that was perturbed "
            "before has changed, is not hidden.",
            "The same labels in another job with this ε cost nothing; with another ε, or changed, they cost as much "
            "again.",
            f"Not counted: predictions and scores that {listed(perturbing(job))} {'hand' if several else 'hands'} on. "
            f"{compared_with(job)}",
            *([f"{_OF_SEVERAL.capitalize()}."] if several else []),
        )
        return Guarantee(
            "of one label, replacement, against everybody; features and edges are not noised", BOUND, about, limits
        )

    @override
    def own_epsilons(self) -> dict[float, float]:
        return {self.settings.epsilon: self.settings.epsilon}


def _true_test_labels(job: JobSettings) -> bool:
    return "test_mask" not in perturbed_splits(job)


def compared_with(job: JobSettings) -> str:
    """Which labels the scores of a job with ``label_privacy`` compare with, in a sentence."""
    if job.noise.learns_true_labels:
        return "All figures compare with true labels: each holder judges on its own nodes."
    if _true_test_labels(job):
        return (
            "Training and validation figures compare with perturbed labels, and are no accuracies against the true "
            "ones; test figures compare with true labels."
        )
    return (
        "All figures, test figures among them, compare with perturbed labels, and are no accuracies against the true "
        "ones."
    )


def labels_suffix(job: JobSettings) -> str:
    """The words behind a test figure of a run: " against perturbed labels" or, where they are true, nothing."""
    return "" if job.label_privacy is None or _true_test_labels(job) else " against perturbed labels"


def expected_true(job: JobSettings, accuracy: float | None, classes: int) -> str:
    """The accuracy to expect against true labels, from that against perturbed ones, in words; empty if known."""
    if job.label_privacy is None or accuracy is None or _true_test_labels(job):
        return ""
    expected = LabelResponse(job.label_privacy.epsilon, classes).expected_accuracy(accuracy)
    return f"Against true labels about {expected:.1%} is to be expected (docs/explanation/privacy.md#labels)."
