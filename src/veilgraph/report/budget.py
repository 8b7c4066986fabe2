"""What a job's differential privacy costs before it runs, and what it guarantees.

The ε of one release and the ε of all of them are different numbers; no table has one without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rich.table import Table
from typing_extensions import override

from veilgraph.core.text import listed
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.settings import PrivacySettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import delta_in_doubt, delta_too_large
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.protection import (
    ADD_UP,
    BOUND,
    NO_DELTA,
    OF_NODES,
    PER_RELEASE,
    RELATIONS,
    TOTAL,
    Guarantee,
    PerturbedLabels,
    Protection,
    rounded_up,
)
from veilgraph.report.tables import NOTHING, table

_UNITS: Final = MappingProxyType(
    {
        "edge": "one edge: everything that a holder records between one pair of nodes",
        "node-edges": "one node's features and all its edges at one holder",
        "training-record": "one training node's columns at one holder",
        "node": "one node's columns at one holder",
    }
)
_NOT: Final = MappingProxyType(
    {
        "edge": "It is not about a node's features, nor about labels.",
        "node-edges": "It is not about labels, nor about which nodes there are.",
        "training-record": "It is not about nodes that are not trained on, nor about labels or edges.",
        "node": "It is not about labels or edges.",
    }
)
_OF_EDGES: Final = (
    "a column that is made of edges, as a number of payments, shows them at any ε: a party file names such columns "
    "(nodes.columns_from_edges), and its holder refuses the job while one is a feature"
)
_NONE: Final = (
    "This job has no differential privacy. What parties receive is not noised, and no number bounds what they can "
    "infer from it: per-release ε and total ε are infinite for every holder."
)


def protection_of(job: JobSettings, nodes: int | None = None) -> Protection[Any]:
    """The ``Protection`` of a job, ``NoProtection`` without privacy; ``nodes``: common to all holders, if known."""
    own: Protection[Any] | None = paradigm_of(job).guarantee.protection(job, nodes)
    if own is not None:
        return own
    if job.privacy is not None:
        return NoisyEdges(job, job.privacy, nodes)
    if job.label_privacy is not None:
        return PerturbedLabels(job, job.label_privacy, nodes)
    return NoProtection(job, None, nodes)


def plans_of(job: JobSettings, nodes: int | None = None) -> dict[str, Plan]:
    """Holders' names → their plan: the label holder's, and the others', which are all alike."""
    labelled = job.data.label_party
    others = [name for name in job.data.names if name != labelled]
    found = {
        f"{labelled} (label holder)": paradigm_of(job).privacy.plan(job, labelled, nodes),
        ", ".join(others): paradigm_of(job).privacy.plan(job, others[0], nodes),
    }
    return {name: planned for name, planned in found.items() if planned is not None}


def meaning(privacy: PrivacySettings, delta: float | None) -> str:
    """δ, unit and neighbouring relation of an ε of edges, in words; None: δ follows from the number of nodes."""
    return f"{OF_NODES if delta is None else f'δ = {delta:g}'}, unit {privacy.unit}, {privacy.relation}"


class NoProtection(Protection[None]):
    """A job without differential privacy, which may be asked what noise it would need."""

    @override
    def table(self) -> None:
        return None

    @override
    def notes(self) -> list[str]:
        return [
            f"no differential privacy: nothing is noised, and {PER_RELEASE} and {TOTAL} of every holder are infinite",
            *paradigm_of(self.job).guarantee.privacy_notes(self.job),
        ]

    @override
    def facts(self) -> Mapping[str, Any]:
        return {}

    @override
    def guarantee(self, delta: float | None = None) -> Guarantee:
        return Guarantee("", _NONE)


class NoisyEdges(Protection[PrivacySettings]):
    """The protection by ``privacy``: what is computed over edges, or of training records, is released with noise."""

    @override
    def table(self) -> Table:
        plans, against = plans_of(self.job, self.nodes), paradigm_of(self.job).guarantee.threat_model(self.job)
        columns = [_plan_cells(planned, against) for planned in plans.values()]
        return table(
            "Differential privacy",
            ("", *(f">{name}" for name in plans)),
            ((heading, *(column[heading] for column in columns)) for heading in columns[0]),
            bold=lambda row: row[0] in (PER_RELEASE, TOTAL),
        )

    @override
    def notes(self) -> list[str]:
        job, guarantee = self.job, paradigm_of(self.job).guarantee
        return [
            guarantee.noise_source(job),
            *self._delta_notes(),
            *guarantee.privacy_notes(job),
            *guarantee.expected_gain(job, self.nodes),
            *([_OF_EDGES] if "edge" in self.settings.unit else []),
        ]

    @property
    def _has_pure_epsilon(self) -> bool:
        return self.job.noise.counts_votes

    def _delta_notes(self) -> list[str]:
        """How δ follows where the job leaves it open, or what is wrong with the one that it states."""
        if self._has_pure_epsilon:
            return ["ε is pure, of two-sided geometric noise on whole numbers: δ is 0, and the bound always holds"]
        if self.settings.stated_delta is None:
            most = self.settings.delta_of(None)
            rule = (
                "privacy.delta is left out and follows from N, the number of common nodes: the largest power of ten "
                f"that is at most 1/(10·N), and at most {most:g}"
            )
            if self.nodes is None:
                above = f"N above {round(0.1 / most):,}"
                rule += f", which is taken here; with {above} it is less, and noise more: --nodes N shows it"
            return [rule]
        if self.nodes is None:
            return [doubt] if (doubt := delta_in_doubt(self.job)) else []
        refused = delta_too_large(self.job, self.nodes)
        return [f"every holder refuses the job: {refused}"] if refused else []

    @override
    def facts(self) -> Mapping[str, Any]:
        return {
            name: {
                "mechanism": planned.mechanism,
                "releases_per_inference": planned.inference,
                "releases": planned.releases,
                "deviation": planned.deviation if planned.releases else 0.0,
                "unit": planned.settings.unit,
                "relation": planned.settings.relation,
                "delta": planned.delta,
                "epsilon_release": planned.epsilon_release,
                "epsilon_total": planned.epsilon_total,
                "holds_against": paradigm_of(self.job).guarantee.threat_model(self.job),
            }
            for name, planned in plans_of(self.job, self.nodes).items()
        }

    @override
    def guarantee(self, delta: float | None = None) -> Guarantee:
        job, settings, guarantee = self.job, self.settings, paradigm_of(self.job).guarantee
        against, known = guarantee.threat_model(job), 0.0 if self._has_pure_epsilon else settings.stated_delta or delta
        planned = next(each for each in plans_of(job, self.nodes).values() if each.releases)
        about = (
            ("unit", _UNITS[settings.unit]),
            ("neighbouring relation", f"{settings.relation}: the unit {RELATIONS[settings.relation]}"),
            ("δ", OF_NODES.removeprefix("δ = ") if known is None else f"{known:g}" if known else NO_DELTA),
            ("mechanism", f"{planned.mechanism}, {planned.words}"),
            ("holds against", against),
        )
        alone = f"{job.data.label_party}, the label holder, publishes nothing before it hands on predictions."
        handed = "" if job.duties.summing else ", and predictions and scores that the label holder hands on"
        limits = (
            _NOT[settings.unit],
            *guarantee.privacy_limits(job),
            *([] if job.duties.summing else [alone]),
            ADD_UP,
            "Not counted: how many nodes and columns there are, which nodes are common, sizes and times of messages, "
            f"choices made by looking at data{handed}.",
        )
        whose = listed(job.duties.summing) if job.duties.summing else "every holder"
        at = OF_NODES if known is None else f"δ = {known:g}"
        scope = f"of {whose}'s {settings.unit}s, {settings.relation}, at {at}, against {against}"
        return Guarantee(scope, BOUND, about, limits)


def _plan_cells(planned: Plan, against: str) -> dict[str, str]:
    def if_any(text: str) -> str:
        return text if planned.releases else NOTHING

    return {
        "releases per inference": f"{planned.inference}",
        "releases in all": f"{planned.releases:,}",
        "mechanism": if_any(planned.mechanism),
        "standard deviation of an entry": if_any(f"{planned.deviation:.4g}" if planned.releases else ""),
        "unit": planned.settings.unit,
        "neighbours": planned.settings.relation,
        "δ": f"{planned.delta:g}",
        PER_RELEASE: rounded_up(planned.epsilon_release),
        TOTAL: rounded_up(planned.epsilon_total),
        "holds against": against,
    }
