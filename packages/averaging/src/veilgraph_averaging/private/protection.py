"""What private training costs and guarantees, in words and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table
from typing_extensions import override

from veilgraph.privacy import accountant
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.protection import (
    ADD_UP,
    BOUND,
    PER_RELEASE,
    RELATIONS,
    TOTAL,
    Guarantee,
    Protection,
    epsilon_text,
)
from veilgraph.report.tables import table
from veilgraph.runtime.store.run_directory import Record
from veilgraph_averaging.private.event import SampledEvent
from veilgraph_averaging.private.plan import SampledPlan, least_multiplier


class PrivateTraining(Protection[SampledPlan]):
    """Cost and guarantee of ``averaging.privacy``: noisy sums of clipped gradients of sampled training nodes."""

    not_asked = (
        frozenset({"horizon", "nodes"}),
        "--jobs and --predictions are about releases over edges, and --nodes about nodes that holders have in "
        "common; leave them out",
    )

    @override
    def table(self) -> Table:
        plan = self.settings
        rows = {
            "rounds, a release each": f"{plan.steps:,}",
            "sampling rate": f"{plan.settings.sampling_rate:g}",
            "terms that a node is in, at most": f"{plan.terms:,}",
            "noise over clip": f"{plan.multiplier:.4g}",
            **({} if plan.joint is None else {"of which each adds": f"{plan.added:.4g}"}),
            PER_RELEASE: epsilon_text(plan.epsilon_release),
            TOTAL: epsilon_text(plan.epsilon_total),
            "δ": f"{plan.delta:g}",
        }
        return table(
            "Private training",
            ("", ">each holder"),
            rows.items(),
            caption="Of every holder with labels alike. Noise over clip: standard deviation / C.",
            bold=lambda row: row[0].endswith(" ε"),
        )

    @override
    def facts(self) -> dict[str, Record]:
        plan = self.settings
        facts = {
            "releases": plan.steps,
            "noise_multiplier": plan.multiplier,
            "sampling_rate": plan.settings.sampling_rate,
            "terms": plan.terms,
            "epsilon_release": plan.epsilon_release,
            "epsilon_total": plan.epsilon_total,
            "delta": plan.delta,
            **({} if plan.joint is None else {"joint_noise": asdict(plan.joint)}),
        }
        return dict.fromkeys(self.job.data.names, facts)

    @override
    def guarantee(self, delta: float | None = None) -> Guarantee:
        plan, given = self.settings, self.settings.settings
        bound, noise = "edges are not used", "each holder's own"
        if given.degree_bound is not None:
            bound = f"at most averaging.privacy.degree_bound={given.degree_bound}; a holder of a node with more refuses"
        if (joint := plan.joint) is not None:
            noise = (
                f"{joint.honest} holders make it together, each {plan.added:.3g} of the clip: where more than "
                f"{joint.colluding} of them collude, or add none, the guarantee does not hold"
            )
        about = (
            ("unit", "one node's features, label and all its edges at one holder, and whether it is trained on"),
            ("neighbouring relation", f"{given.neighbours}: the unit {RELATIONS[given.neighbours]}"),
            ("δ", f"{plan.delta:g}"),
            ("mechanism", "sums of clipped gradients of sampled training nodes, Gaussian noise, "
             f"{plan.steps:,} rounds"),
            ("noise", noise),
            ("neighbours of a node", bound),
            ("holds against", plan.against),
        )  # fmt: skip
        limits = (
            ADD_UP,
            "Not counted: whether a holder has labels, how many classes and columns there are, sizes and times of "
            "messages, that a node breaks the bound on neighbours, choices made by looking at data, and scores and "
            "predictions that a holder hands on.",
            *paradigm_of(self.job).guarantee.privacy_limits(self.job),
        )
        what = f"of every holder's nodes with label and edges, {given.neighbours}"
        return Guarantee(f"{what}, at δ = {plan.delta:g}, against {plan.against}", BOUND, about, limits)

    @override
    def own_epsilons(self) -> dict[float, float]:
        total = self.settings.settings.epsilon_total
        return {} if total is None else {total: total}

    @override
    def noise(self, totals: Sequence[float]) -> list[Record]:
        """Return for each total ε the noise multiplier that it needs, and the ε of one round with that."""
        plan, given = self.settings, self.settings.settings

        def event(noise: float) -> SampledEvent:
            return SampledEvent(noise, given.sampling_rate, plan.terms, given.neighbours)

        found = []
        for total in totals:
            noise = least_multiplier(event, total, plan.delta, plan.steps, plan.multiplier)
            one = accountant.per_step(event(noise), plan.delta)
            found.append({"epsilon_total": total, "noise_multiplier": noise, "epsilon_release": one})
        return found
