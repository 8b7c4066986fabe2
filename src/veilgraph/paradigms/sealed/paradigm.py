"""Sealed training as a paradigm: its words, what it costs, and what a run asks of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import holder_alone, pool
from veilgraph.link.mailbox import SLACK_BYTES
from veilgraph.mpc.sealed.correlations import AHEAD_STRIDES, STRIDE_BYTES
from veilgraph.mpc.sealed.functions import MOST_CLASSES
from veilgraph.paradigms.sealed import trust
from veilgraph.paradigms.sealed.answers import answering_role
from veilgraph.paradigms.sealed.costs import costs_of
from veilgraph.paradigms.sealed.evidence import LEAST_LEFT, epsilon_for, left_by_noise
from veilgraph.paradigms.sealed.inputs import (
    fit_bounds_to,
    max_degree_of,
    plan_of,
    slots_of,
    stated_neighbours,
)
from veilgraph.paradigms.sealed.label_holder import SealedLabelHolder
from veilgraph.paradigms.sealed.plan import (
    MOST_JUDGED,
    Context,
    Sizes,
    epsilon_of,
    is_apart,
    release_plan,
)
from veilgraph.paradigms.sealed.records.home import check_classes_of_bits
from veilgraph.paradigms.sealed.roles import SealedDealer, SealedHolder
from veilgraph.paradigms.sealed.rows import ROWS
from veilgraph.paradigms.sealed.settings import LARGEST_DEGREE, SealedJob, sealed
from veilgraph.paradigms.sealed.twin import check_ranges, train_plain
from veilgraph.paradigms.sealed.words import SealedJobWords
from veilgraph.privacy.plan import Plan as ReleasePlan
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.aligning import AlignedData, AlignedSessions
from veilgraph.protocol.costs import Costs, PartySizes
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.paradigm import (
    MAX_FEATURES,
    MAX_NODES,
    NO_NUMBERS,
    Baselines,
    Guarantee,
    Paradigm,
    Privacy,
    Range,
)
from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
from veilgraph.protocol.role import Role, RoleContext

_LIKELY: Final = 8190  # edges of a node at all holders together, where these tell none to a plan of costs
_WIDE_BYTES: Final = 3 * 8  # that the dealer sends for an element of a result, at most
_ENCRYPTED: Final = 8  # times as many where nobody deals


def bytes_of_one(job: SealedJob) -> int:
    """The most bytes that a party sends for an element of a result."""
    return _WIDE_BYTES * (_ENCRYPTED if job.trust == "nobody" else 1)


def _row_count(hello: Hello) -> int:
    return hello.training + hello.validation


class _SealedData(AlignedData[SealedJob]):
    def check_graphs(self, job: SealedJob, graphs: Sequence[PartyGraph]) -> None:
        check_ranges(job, graphs)

    def fit_bounds_to(self, job: SealedJob, graphs: Sequence[PartyGraph]) -> SealedJob:
        return fit_bounds_to(job, graphs)


class _SealedSessions(AlignedSessions[SealedJob]):
    has_costs: ClassVar[bool] = True

    def costs(self, job: SealedJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs:
        label_holder = sizes[job.data.label_party]
        check_classes_of_bits(job, job.data.label_party, label_holder.classes)
        if job.passes.evaluates and not label_holder.validation:
            raise ConfigError(
                f"train.select_by={job.train.select_by}: the job counts validation nodes, and there are none; give "
                "--validation"
            )
        likely = _LIKELY // len(sizes)
        most = {party: likely if own.neighbours is None else own.neighbours for party, own in sizes.items()}
        told = [stated_neighbours(job, *each) for each in most.items()]
        whole = Sizes(
            nodes,
            label_holder.training,
            label_holder.classes,
            {holder: own.columns for holder, own in sizes.items()},
            {holder: slots_of(job, own.edges) for holder, own in sizes.items()},
            max_degree_of(job, told),
            min(label_holder.validation, MOST_JUDGED) if job.passes.evaluates else 0,
            0 if job.outcome.predicts_named else None,
        )
        context = Context(whole, plan_of(job, whole), job.data.label_party, {})
        every = job.train.evaluate_every if job.passes.evaluates else None
        costs = costs_of(context, job.train.epochs, every, job.dealer_checks, job.dealing_party)
        if not any(told) or all(own.neighbours is not None for own in sizes.values()):
            return costs
        note = (
            f"counted for {context.sizes.max_degree:,} edges at a node: model.max_degree and tables do not say how many"
        )
        return replace(costs, notes=[*costs.notes, note])

    def stated(self, job: SealedJob, party: PartyId, *, releases: bool) -> dict[str, Range]:
        """Bounds of the sizes that a holder states in its hello, with labels also of rows, classes and named nodes."""
        fields = dict(NO_NUMBERS)
        if party == SERVER or releases:
            return fields
        fields |= {"nodes": (1, MAX_NODES), "features": (1, MAX_FEATURES), "edges": (1, MAX_NODES)}
        rule = job.inputs.degree_rules.get(party)
        if rule is not None and rule[1] is None:
            fields["neighbours"] = (1, LARGEST_DEGREE)
        if party == job.data.label_party:
            # None of them where nothing is trained: the role holds a training to at least one.
            judged = (0, MOST_JUDGED) if job.passes.evaluates else (0, 0)
            classes = 2 if job.bits is not None else MOST_CLASSES
            fields |= {"classes": (2, classes), "training": (0, MAX_NODES), "validation": judged}
            fields["asked"] = (0, 0 if job.online else job.named_nodes or 0)
        return fields

    def unread_bytes(self, job: SealedJob, hellos: Mapping[PartyId, Hello]) -> int:
        nodes = max(hello.nodes for hello in hellos.values())
        plan = plan_of(job)
        holders = [(hello.features, hello.classes) for hello in hellos.values()]
        columns = sum(
            sum(plan.width_of(block, *own) for own in holders) * (len(holders) if is_apart(block) else 1)
            for block in plan.blocks
        )
        rows, classes = (max(of(hello) for hello in hellos.values()) for of in (_row_count, lambda each: each.classes))
        width = max(columns, rows, classes + job.model.hidden, 256)
        slots = nodes + max(hello.edges for hello in hellos.values())
        return bytes_of_one(job) * (2 * nodes * width + 4 * slots) + (AHEAD_STRIDES + 1) * STRIDE_BYTES + SLACK_BYTES

    def role(self, session: RoleContext, aligned: Aligned) -> Role:
        if session.answers:
            return answering_role(session)
        if aligned.graph is None:
            return SealedDealer(session)
        labelled = session.link.party == session.settings.data.label_party
        return (SealedLabelHolder if labelled else SealedHolder)(session, aligned.graph)


class _SealedPrivacy(Privacy[SealedJob]):
    protects: ClassVar[tuple[str, ...]] = ("edge", "training-record", "node")

    def protecting(self, unit: str, epsilon: float, *, joined: bool = False) -> dict[str, Any]:
        if unit in ("training-record", "node"):
            return {
                **super().protecting(unit, epsilon, joined=joined),
                "output": "margins",
                "train": {"select_by": "last", "epochs": 1, "checkpoint_every": 1},
            }
        return {
            **super().protecting(unit, epsilon, joined=joined),
            "model": {"edge_slots": 1 << 16, "max_degree": (1 << 13) - 1},
            "train": {"select_by": "last"},
        }

    def plan(self, job: SealedJob, party: PartyId, nodes: int | None = None) -> ReleasePlan | None:
        return release_plan(job, party, nodes)

    def largest_epsilon(self, job: SealedJob, party: PartyId, nodes: int | None = None) -> float:
        own = release_plan(job, party, nodes)
        return math.inf if own is None else own.epsilon_total

    def most_edges_at_a_node(self, graph: PartyGraph) -> float:
        return graph.most_edges_at_a_node()


_MARGINS_SAY_MORE: Final = (
    "of classes alone votes turn few predictions: with output: margins, if all holders accept it, they added more "
    "accuracy at ε = 4 on all seven sets of several classes, though next to nothing on one of hundreds of votes a node"
)


class _SealedGuarantee(Guarantee[SealedJob]):
    def way(self, job: SealedJob) -> str:
        return "sealed, noise on votes"

    def threat_model(self, job: SealedJob) -> str:
        return trust.against(job)

    def noise_source(self, job: SealedJob) -> str:
        if job.records is not None:
            of = "of training nodes" if job.bits is None else "of one node"
            return f"each holder's ε is about its own columns {of}, and it draws its own noise"
        whose = f"of {trust.dealer_of_noise(job)}" if trust.is_by_holder(job) else "the dealer's,"
        return f"each holder's ε is about its own edges; the noise is {whose} and one for all holders together"

    def privacy_notes(self, job: SealedJob) -> list[str]:
        if job.bits is not None:
            return [
                "a node costs ε once a job: by the sum over training nodes, or by a bit that is turned over at random",
                "all predictions of a run open the same bits, and cost nothing more; another job pays for its own",
            ]
        if job.records is not None:
            return [
                "columns of nodes that are not trained on have no noise: ε does not bound what scores tell of them",
                "all predictions of a run have the same noise, and later ones of it cost nothing more",
            ]
        if job.privacy is None:
            return [
                "to have it, for edges, add to the job privacy: {unit: edge, epsilon_total: 4}, which needs "
                "train.select_by=last and model.edge_slots"
            ]
        return [
            "columns have no noise: what predictions tell of features, ε does not bound",
            "all predictions of a run have the same noise, and later ones of it cost nothing more",
            *([_MARGINS_SAY_MORE] if job.output == "classes" else []),
        ]

    def expected_gain(
        self, job: SealedJob, nodes: int | None, sizes: Mapping[PartyId, PartySizes] | None = None
    ) -> list[str]:
        if job.records is not None:
            told = "scores" if job.bits is None else "bits"
            return [f"what such {told} added on public data sets, docs/explanation/sealed.md says for several ε"]
        epsilon, slots = epsilon_of(job), job.model.edge_slots
        if epsilon is None or slots is None:
            return []
        if not nodes:
            return ["how much noise leaves of what votes add follows from the number of common nodes: give --nodes"]
        # A pair of training nodes is not counted.
        trained = 1.0 if sizes is None else sizes[job.data.label_party].training / nodes
        votes = slots / 2 * (len(job.data.names) - 1) * (1 + trained) / nodes
        left, way_out = left_by_noise(votes, epsilon), ""
        if left < LEAST_LEFT:
            way_out = (
                f", too little to show: raise privacy.epsilon_total to {epsilon_for(votes):g}, or leave privacy out"
            )
        found = f"noise leaves at most {left:.0%} of what votes add without it"
        return [f"{found} ({round(votes, 1):g} votes a node by model.edge_slots; docs/explanation/sealed.md){way_out}"]

    def privacy_limits(self, job: SealedJob) -> list[str]:
        if job.bits is not None:
            return [
                *trust.without_bound(job),
                f"{job.data.label_party} shortens residuals to a length of 1 by itself, and nobody else checks it.",
            ]
        if job.records is not None:
            return [
                f"{job.data.label_party} learns scores that depend on columns of nodes that are not trained on, which "
                "have no noise.",
                *trust.without_bound(job),
                f"{job.data.label_party} shortens residuals to a length of 1 by itself, and nobody else checks it.",
            ]
        return [
            f"What {job.data.label_party} predicts depends on all holders' features, which have no noise.",
            *trust.without_bound(job),
        ]

    def unbounded(self, job: SealedJob) -> str:
        if job.privacy is not None:
            return "its noise bounds nothing: lower privacy.epsilon_total"
        return "a sealed job without privacy tells predictions as they are: set privacy.epsilon_total, for edges"


class _SealedBaselines(Baselines[SealedJob]):
    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult:
        job = sealed(inputs.settings)
        return train_plain(job, holder_alone(inputs.graphs, holder, job.data.label_party), progress)

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        job = sealed(inputs.settings)
        return train_plain(job, pool(inputs.graphs, job.data.label_party), progress)

    def beside(self, job: SealedJob) -> Mapping[str, Any]:
        return {"paradigm": "vertical"}


SEALED: Final = Paradigm[SealedJob](
    title="sealed: nothing is opened but predictions",
    rows=ROWS,
    data=_SealedData(),
    session=_SealedSessions(),
    privacy=_SealedPrivacy(),
    guarantee=_SealedGuarantee(),
    baselines=_SealedBaselines(),
    words=SealedJobWords(),
)
"""Holders of the same nodes train one network of which nothing is opened but predictions."""
