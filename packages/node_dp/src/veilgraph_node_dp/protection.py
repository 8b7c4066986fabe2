"""What a job's releases of nodes' own values cost and guarantee, in words and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.table import Table
from typing_extensions import override

from veilgraph.core.text import listed
from veilgraph.protocol.limits import delta_in_doubt, delta_too_large
from veilgraph.report.budget import NoisyEdges
from veilgraph.report.protection import BOUND, EVERYBODY, PER_RELEASE, RESPONSE, TOTAL, Guarantee, Protection
from veilgraph.report.tables import NOTHING, table
from veilgraph.runtime.store.run_directory import Record
from veilgraph_node_dp.feature_settings import FeatureReleaseSettings
from veilgraph_node_dp.settings import NodeDpJob, node_dp


def protection_of(job: NodeDpJob, nodes: int | None) -> Protection[Any] | None:
    """Make the report on nodes' releases and, with ``privacy``, the learner's edges; None: nothing is released."""
    features = job.release.features
    if job.privacy is not None:
        return EdgesAndFeatures(job, job.privacy, nodes)
    return None if features is None else PerturbedFeatures(job, features, nodes)


class PerturbedFeatures(Protection[FeatureReleaseSettings]):
    """Cost and guarantee of ``release``: nodes perturb features, and perhaps labels, a single time at home."""

    not_asked = (
        frozenset({"total", "horizon"}),
        "--total, --jobs and --predictions are about noise on edges; the ε of perturbed features is in the job "
        "itself; leave them out",
    )

    @override
    def table(self) -> Table:
        delta = f"; δ = {self.settings.delta:g}." if self.settings.delta else "."
        columns = ("holder", "released", "mechanism", f">{PER_RELEASE}", f">{TOTAL}")
        rows = []
        for holder, costs in self.facts().items():
            first, total = holder, f"{sum(each['epsilon'] for each in costs):g}"
            for each in costs:
                rows.append((first, each["what"], each["mechanism"], f"{each['epsilon']:g}", total))
                first = total = ""
            if not costs and not self.job.duties.summing:
                rows.append((f"{holder} (learns)", "nothing", NOTHING, "0", "0"))
        return table("Local differential privacy", columns, rows, caption=f"Of one release, made a single time{delta}")

    @override
    def notes(self) -> list[str]:
        if self.nodes is None:
            refused = delta_in_doubt(self.job)
        elif refused := delta_too_large(self.job, self.nodes):
            refused = f"every holder refuses the job: {refused}"
        return [*super().notes(), *([refused] if refused else [])]

    @override
    def facts(self) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {holder: [] for holder in self.job.data.names}
        for holder in self.job.duties.releasing:
            of = {"what": "features", "mechanism": self.settings.mechanism, "epsilon": self.settings.epsilon}
            found[holder].append(of)
        if (labels := node_dp(self.job).release.labels) is not None:
            found[labels.holder].append({"what": "label", "mechanism": RESPONSE, "epsilon": labels.epsilon})
        return found

    @override
    def guarantee(self, delta: float | None = None) -> Guarantee:
        job, release, labels = self.job, self.settings, node_dp(self.job).release.labels
        about = [
            ("unit", "what one node releases at one holder, all its features together"),
            (
                "neighbouring relation",
                f"replacement: the node's own values, or any others from {release.low:g} to {release.high:g}",
            ),
            ("δ", "0: the bound always holds" if release.delta is None else f"{release.delta:g}"),
            (
                "features",
                f"{release.mechanism}, ε {release.epsilon:g}, perturbed once at {listed(job.duties.releasing)}",
            ),
        ]
        if labels is not None:
            about.append(("labels", f"randomised response, ε {labels.epsilon:g} more, at {labels.holder}"))
        if job.duties.summing:
            edges = f"Edges are {listed(job.duties.summing)}'s, with an ε of their own."
        else:
            edges = f"Edges are not noised: {job.data.label_party}, which learns, has them and sends nothing of them."
        several = "Where a person's values are at several holders, their ε add up"
        if len(job.duties.releasing) > 1:
            costs = self.facts()
            everything = sum(each["epsilon"] for holder in job.duties.releasing for each in costs[holder])
            several += f": what a node releases at all of these has a total ε of {everything:g}"
        limits = (
            edges,
            "Which nodes there are, and which have a label for training, is not hidden.",
            f"{several}.",
            "Changed data are released anew, which costs as much again; training and predicting cost nothing.",
        )
        delta_said = "" if release.delta is None else f", at δ = {release.delta:g}"
        scope = f"of what one node releases at one holder, replacement{delta_said}, against everybody"
        return Guarantee(scope, BOUND, (*about, EVERYBODY), limits)


class EdgesAndFeatures(NoisyEdges):
    """Cost and guarantee of both: perturbed features of nodes, and noisy sums over the learner's edges; two ε."""

    @property
    @override
    def features(self) -> PerturbedFeatures:
        """Cost and guarantee of what nodes perturb, apart from the edges."""
        features = node_dp(self.job).release.features
        assert features is not None
        return PerturbedFeatures(self.job, features, self.nodes)

    @override
    def guarantee(self, delta: float | None = None) -> Guarantee:
        of_edges, of_nodes = super().guarantee(delta), self.features.guarantee()
        learner, others = listed(self.job.duties.summing), listed(self.job.duties.releasing)
        about = [(f"{learner}: {name}", what) for name, what in of_edges.about]
        about += [(f"{others}: {name}", what) for name, what in of_nodes.about]
        limits = dict.fromkeys((*of_edges.limits, *of_nodes.limits))
        scope = f"{of_edges.scope}; and {of_nodes.scope}"
        return replace(of_edges, scope=scope, about=tuple(about), limits=tuple(limits))
