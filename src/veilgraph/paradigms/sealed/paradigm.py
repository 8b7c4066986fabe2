"""Sealed training as a paradigm: its words, what it costs, and what a run asks of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.text import counted, listed
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.partition import isolate, pool
from veilgraph.graph.party import PartyGraph
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.mailbox import SLACK_BYTES
from veilgraph.mpc.sealed.correlations import AHEAD_STRIDES, STRIDE_BYTES
from veilgraph.mpc.sealed.cut_and_choose import DIGEST_BYTES
from veilgraph.mpc.sealed.functions import LARGEST_DIVISOR
from veilgraph.mpc.sealed.machine import CountingMachine
from veilgraph.paradigms.sealed.inputs import fit_bounds_to, most_edges_at_a_node, plan_of, slots_of
from veilgraph.paradigms.sealed.networks import network_of
from veilgraph.paradigms.sealed.plan import Context, Sizes, release_plan
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.roles import SealedDealer, SealedHolder, SealedLabelHolder
from veilgraph.paradigms.sealed.rows import ROWS
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import check_ranges, in_one_place
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.aligning import AlignedData, AlignedSessions
from veilgraph.protocol.costs import JUDGEMENT_BYTES, Costs, PartySizes, Stage
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
    Words,
)
from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
from veilgraph.protocol.role import Role, RoleContext


def _noise(job: SealedJob) -> str:
    others = listed([name for name in job.data.names if name != job.data.label_party])
    return (
        f"Of the edges of {others} nothing is used but one count of votes, to which the dealer adds noise that no "
        "holder knows: ε bounds what all predictions of the run together tell of one edge of theirs. Columns, and the "
        f"edges of {job.data.label_party}, have no noise."
    )


_ITEM = 8
_BASE = 750 << 20
"""Of a process with nothing to do, and of what it keeps once freed."""
_COPIES, _HELD = 2, 19
"""Of all columns, and matrices of the widest opening or of a number for each slot, that are in hand at once. Measured:
within a sixth of block models from ten thousand to half a million nodes (docs/sealed-benchmarks.md)."""
_STEPS, _EVALUATIONS = "steps", "evaluations"


def costs_of(context: Context, steps: int, evaluate_every: int | None = None, dealer_checks: float = 0.0) -> Costs:
    """Of a training, and what is told at its end.

    Args:
        context: without data.
        steps: of the training.
        evaluate_every: steps between evaluations; None: there are none.
        dealer_checks: chance that a dealing is opened; of those the mean number is counted.
    """
    sizes = context.sizes
    machine = CountingMachine(list(sizes.columns), SERVER)
    program = SealedProgram(machine, context)
    program.enter(trains=True)
    program.begin()
    evaluations = 0
    for step in range(steps):
        program.step(step)
        if evaluate_every and ((step + 1) % evaluate_every == 0 or step + 1 == steps):
            program.score(step + 1)
            evaluations += 1
    if context.plan.release or sizes.asked != 0:
        program.restore({}, training=False)
    if context.plan.release:
        program.release()
    if sizes.asked != 0:
        program.predict()
    rounds, sent = Counter[str](), dict[str, Counter[PartyId]]()
    for place, cost in machine.costs.items():
        name = {"step": _STEPS, "score": _EVALUATIONS}.get(place.split(" ")[0], place or "seeds")
        rounds[name] += cost.rounds
        sent.setdefault(name, Counter()).update(cost.sent)
    if evaluations:  # the label holder then tells all other parties what came of each
        rounds[_EVALUATIONS] += evaluations
        sent[_EVALUATIONS][context.label_party] += evaluations * len(sizes.columns) * JUDGEMENT_BYTES
    parties = (*sizes.columns, SERVER)
    stages = [Stage(name, rounds[name], {party: of[party] for party in parties}) for name, of in sent.items()]
    if dealer_checks:
        stages.insert(0, _checks(machine.dealt, 1 / (1 - dealer_checks)))
    return Costs(stages, _memory(sizes, machine.widest))


def _checks(dealt: Mapping[PartyId, int], dealings: float) -> Stage:
    """Of so many dealings, all but one of which are opened."""
    others, digest = len(dealt) - 1, HEADER_BYTES + DIGEST_BYTES
    sent = dict.fromkeys(dealt, dealings * others * digest)
    sent[next(iter(dealt))] += dealings * len(dealt) * (HEADER_BYTES + 1)
    told = sum(digest + DIGEST_BYTES * messages for messages in dealt.values())
    sent[SERVER] = dealings * told + (dealings - 1) * len(dealt) * digest
    return Stage("dealer checks", round(2 * dealings), {party: round(count) for party, count in sent.items()})


def _memory(sizes: Sizes, widest: int) -> Mapping[PartyId, int]:
    """Columns of all holders under masks, the masks that a party knows, and what is in hand at once."""
    everything = _COPIES * _ITEM * sizes.nodes * sum(sizes.columns.values())
    slots = max(sizes.nodes + edges for edges in sizes.edges.values())
    common = _BASE + everything + _HELD * _ITEM * (widest + slots)
    own = {holder: _COPIES * _ITEM * sizes.nodes * columns for holder, columns in sizes.columns.items()}
    return {holder: common + 2 * own[holder] for holder in own} | {SERVER: common}


_WIDE: Final = 3 * 8
"""Bytes of what the dealer sends for an element of a result, at most."""


class SealedData(AlignedData[SealedJob]):
    """What sealed jobs begin with."""

    def check_graphs(self, job: SealedJob, graphs: Sequence[PartyGraph]) -> None:
        check_ranges(job, graphs)

    def unknown_range(self, job: SealedJob) -> str:
        if job.model.unit_rows:
            return ""
        return (
            "model.unit_rows=false: whether columns fit the ring follows from all holders' nodes and edges together. "
            "Where they do not, the job ends without predictions. Set model.unit_rows to true, or check it on graphs "
            "that are on one machine (data.graphs, of veilgraph data align)"
        )

    def fit_bounds_to(self, job: SealedJob, graphs: Sequence[PartyGraph]) -> SealedJob:
        return fit_bounds_to(job, graphs)


class SealedSessions(AlignedSessions[SealedJob]):
    """Sessions of sealed jobs."""

    has_costs: ClassVar[bool] = True

    def costs(self, job: SealedJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs:
        label_holder, plan = sizes[job.data.label_party], plan_of(job, nodes)
        if job.passes.evaluates and not label_holder.validation:
            raise ConfigError(
                f"train.select_by={job.train.select_by}: the job counts validation nodes, and there are none; give "
                "--validation"
            )
        context = Context(
            Sizes(
                nodes,
                label_holder.training,
                label_holder.classes,
                {holder: (1 + plan.own_hops) * own.columns for holder, own in sizes.items()},
                {holder: slots_of(job, own.edges) for holder, own in sizes.items()},
                job.model.max_degree,
                label_holder.validation,
                0 if job.outcome.predicts_named else None,
            ),
            plan,
            job.data.label_party,
            {},
        )
        every = job.train.evaluate_every if job.passes.evaluates else None
        return costs_of(context, job.train.epochs, every, job.dealer_checks)

    def stated(self, job: SealedJob, party: PartyId, *, releases: bool) -> dict[str, Range]:
        fields = dict(NO_NUMBERS)
        if party == SERVER or releases:
            return fields
        fields |= {"nodes": (1, MAX_NODES), "features": (1, MAX_FEATURES), "edges": (1, MAX_NODES)}
        if party == job.data.label_party:
            # None of them where nothing is trained: the role holds a training to at least one.
            judged = (0, MAX_NODES) if job.passes.evaluates else (0, 0)
            fields |= {"classes": (2, LARGEST_DIVISOR), "training": (0, MAX_NODES), "validation": judged}
            fields["asked"] = (0, job.named_nodes or 0)
        return fields

    def unread_bytes(self, job: SealedJob, hellos: Mapping[PartyId, Hello]) -> int:
        nodes = max(hello.nodes for hello in hellos.values())
        relations = len(job.data.names) if job.model.relations == "each" else 1
        columns = relations * sum(hello.features for hello in hellos.values())
        training = max(hello.training for hello in hellos.values())
        classes = max(hello.classes for hello in hellos.values())
        width = max(columns, classes, job.model.hidden) if training >= columns else max(columns, training, classes)
        return 2 * _WIDE * nodes * max(width, 256) + (AHEAD_STRIDES + 1) * STRIDE_BYTES + SLACK_BYTES

    def role(self, session: RoleContext, aligned: Aligned) -> Role:
        if aligned.graph is None:
            return SealedDealer(session)
        labelled = session.link.party == session.settings.data.label_party
        return (SealedLabelHolder if labelled else SealedHolder)(session, aligned.graph)


class SealedPrivacy(Privacy[SealedJob]):
    """The ε of sealed jobs."""

    protects: ClassVar[tuple[str, ...]] = ("edge",)

    def protecting(self, unit: str, epsilon: float, degree_bound: int | None) -> dict[str, Any]:
        return {
            **super().protecting(unit, epsilon, degree_bound),
            "model": {"network": "linear", "edge_slots": 1 << 16},
        }

    def plan(self, job: SealedJob, party: PartyId, nodes: int | None = None) -> Plan | None:
        return release_plan(job, party, nodes)

    def largest_epsilon(self, job: SealedJob, party: PartyId, nodes: int | None = None) -> float:
        own = release_plan(job, party, nodes)
        return math.inf if own is None else own.epsilon_bound

    def most_edges_at_a_node(self, graph: PartyGraph) -> float:
        return most_edges_at_a_node(graph)

    def to_be_private(self) -> Mapping[str, Any]:
        return {"unit": "edge", "aggregation": {}}


class SealedGuarantee(Guarantee[SealedJob]):
    """The ε of sealed jobs in words."""

    way: ClassVar[str] = "sealed, noise on votes"

    def threat_model(self, job: SealedJob) -> str:
        return f"{job.data.label_party} and all other holders together, without the dealer, which draws the noise"

    def noise_source(self, job: SealedJob) -> str:
        return "each holder's ε is about its own edges; the noise is the dealer's, and one for all holders together"

    def privacy_notes(self, job: SealedJob) -> list[str]:
        if job.privacy is None:
            return [
                "to have it, for edges, add to the job privacy: {unit: edge, epsilon_total: 4, aggregation: {}}, which "
                "needs model.network=linear and model.edge_slots"
            ]
        return [
            "columns have no noise: what predictions tell of features, ε does not bound",
            "all predictions of a run have the same noise, and later ones of it cost nothing more",
        ]

    def privacy_limits(self, job: SealedJob) -> list[str]:
        return [
            f"What {job.data.label_party} predicts depends on all holders' features, which have no noise.",
            "Whoever deals knows the noise: with it, a holder that works together with the dealer has no bound.",
        ]

    def unbounded(self, job: SealedJob) -> str:
        if job.privacy is not None:
            return "its noise bounds nothing: raise privacy.noise_multiplier"
        return "a sealed job without privacy tells predictions as they are: set privacy.epsilon_total, for edges"


class SealedBaselines(Baselines[SealedJob]):
    """What sealed jobs are compared with."""

    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult:
        job = sealed(inputs.settings)
        return in_one_place(job, isolate(inputs.graphs, holder, job.data.label_party), progress)

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        job = sealed(inputs.settings)
        return in_one_place(job, pool(inputs.graphs, job.data.label_party), progress)

    def beside(self, job: SealedJob) -> Mapping[str, Any]:
        return {"paradigm": "vertical"}


class SealedWords(Words[SealedJob]):
    """Sealed jobs in sentences."""

    def describe(self, job: SealedJob) -> list[str]:
        names = listed(job.data.names)
        told = "the class" if job.output == "classes" else "the probability of every class"
        nodes = "every node"
        if job.named_nodes is not None:
            nodes = (
                f"at most {counted(job.named_nodes, 'node')} in all, which it names in later predictions and nobody "
                "else learns"
            )
        but = ""
        if job.release == "holders":
            but = ", but that every holder learns the weights of its own columns in the first layer at the end"
        dealer = "sees no message between holders, and must not collude with one of them"
        if job.dealer_checks:
            dealer += f"; a dealing with a wrong byte is found out with chance {job.dealer_checks:g} before it is used"
        plan = plan_of(job)
        network = network_of(plan).words.format(
            hops=counted(plan.hops, "hop"), own_hops=counted(plan.own_hops, "hop"), hidden=plan.hidden
        )
        noise = [] if job.privacy is None else [_noise(job)]
        return [
            f"{names} have other columns, and edges of their own, of the same nodes. All that they compute with is "
            f"masked: nobody sees another's features, edges, degrees, labels or training nodes, nor any weight, "
            f"gradient or score{but}.",
            f"{network}, trained in {counted(job.train.epochs, 'step')} of SGD with momentum.",
            f"{job.data.label_party} learns {told} that is predicted for {nodes}, and nothing else; the server deals "
            f"random numbers, {dealer}.",
            *noise,
            "What all are told are sizes: nodes, columns, rounded numbers of edges, training nodes, classes"
            + (", and how many nodes are named." if job.outcome.predicts_named else "."),
        ]

    def collusion(self, job: SealedJob) -> str:
        return (
            "Whoever deals the random numbers and one holder together could read everything of all others. All holders "
            "but one together, without it, learn nothing but what they had and are told."
        )

    def server_part(self, job: SealedJob) -> str:
        return "deals random numbers; has no data"

    def verdict(self, job: SealedJob, what: str, nodes: str) -> str:
        return (
            f"{listed(job.data.names)} trained one model together that predicts {what}, for {nodes}; only "
            f"{job.data.label_party} sees the predictions, and nobody sees the model."
        )


SEALED: Final = Paradigm[SealedJob](
    title="sealed: nothing is opened but predictions",
    rows=ROWS,
    data=SealedData(),
    session=SealedSessions(),
    privacy=SealedPrivacy(),
    guarantee=SealedGuarantee(),
    baselines=SealedBaselines(),
    words=SealedWords(),
)
"""Holders of the same nodes train one network of which nothing is opened but predictions."""
