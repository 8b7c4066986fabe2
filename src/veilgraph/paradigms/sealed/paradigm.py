"""Sealed training as a paradigm: its words, what it costs, and what a run asks of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeVar

import torch

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import system_secrets
from veilgraph.core.text import counted, listed
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.partition import holder_alone, pool
from veilgraph.graph.party import PartyGraph
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.mailbox import SLACK_BYTES
from veilgraph.mpc.sealed.correlations import AHEAD_STRIDES, STRIDE_BYTES
from veilgraph.mpc.sealed.cut_and_choose import DIGEST_BYTES
from veilgraph.mpc.sealed.functions import MOST_CLASSES
from veilgraph.mpc.sealed.machine import CountingMachine
from veilgraph.paradigms.sealed.answers import answering_role
from veilgraph.paradigms.sealed.evidence import LEAST_LEFT, epsilon_for, left_by_noise
from veilgraph.paradigms.sealed.inputs import (
    WIDE,
    fit_bounds_to,
    max_degree_of,
    plan_of,
    slots_of,
    stated_neighbours,
    trials_of,
)
from veilgraph.paradigms.sealed.label_holder import SealedLabelHolder
from veilgraph.paradigms.sealed.networks.propagation import is_dense
from veilgraph.paradigms.sealed.plan import (
    BOOSTING,
    MOST_JUDGED,
    NEIGHBOURS,
    OWN,
    QUANTILES,
    UNIT,
    Context,
    Plan,
    Sizes,
    epsilon_of,
    hops_of,
    is_apart,
    is_pooled,
    release_plan,
)
from veilgraph.paradigms.sealed.program import TRIAL, SealedProgram
from veilgraph.paradigms.sealed.records.program import program_of
from veilgraph.paradigms.sealed.roles import SealedDealer, SealedHolder
from veilgraph.paradigms.sealed.rows import ROWS
from veilgraph.paradigms.sealed.settings import LARGEST_DEGREE, SealedJob, sealed
from veilgraph.paradigms.sealed.twin import check_ranges, train_plain
from veilgraph.privacy.plan import Plan as ReleasePlan
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


def _noise_words(job: SealedJob) -> str:
    others = listed([name for name in job.data.names if name != job.data.label_party])
    return (
        f"Of the edges of {others} nothing is used but one count of the classes of neighbours, to which the dealer "
        f"adds noise that no holder knows. {job.data.label_party} learns the noisy counts of every node that is "
        "predicted, and predicts from both: ε bounds what these tell of one edge of theirs. Columns, and the edges of "
        f"{job.data.label_party}, have no noise."
    )


_BLOCKS: Final = {
    OWN: "holders' columns",
    NEIGHBOURS: "what each makes of them over its own edges",
    QUANTILES: "whether they are above their quantiles",
    UNIT: "these as rows of length 1",
    BOOSTING: "what boosted trees make of the label holder's",
}


def _record_words(job: SealedJob) -> str:
    others, learner = listed([name for name in job.data.names if name != job.data.label_party]), job.data.label_party
    return (
        f"{learner} fits a model of its own at home. Of the columns of {others} one sum over its training nodes is "
        "made, to which each adds noise of its own: weights that nobody sees. "
        f"{learner} learns what these make of every node that it does not train on, and adds it to its own model: ε "
        f"bounds what that tells of one training node's columns at one of {others}. Columns of nodes that are not "
        f"trained on have no noise. Edges of {others} are not used."
    )


def network_words(job: SealedJob, plan: Plan) -> str:
    """Describe in a few sentences, for a report, the network of a job, its rows, training steps and trials."""
    over = f"{job.data.label_party}'s own edges" if job.privacy is not None else "all holders' edges together"
    usual = replace(plan, trials=trials_of(job, 0))
    parts = [_BLOCKS[block] for block in usual.blocks if block in _BLOCKS]
    for pooled, where in ((True, over), (False, "every holder's edges by themselves")):
        hops = sorted({hops_of(block) for block in usual.blocks if hops_of(block) and is_pooled(block) == pooled})
        if hops:
            parts.append(f"columns after {listed([str(each) for each in hops])} hops over {where}")
    deep = any(trial.deep for trial in usual.trials)
    kind = f"A linear model beside a hidden layer of {plan.hidden}" if deep else "A linear model"
    choices, means = counted(len(usual.trials), "choice"), ", and means of them" * plan.standard
    more = len(plan.trials) - len(usual.trials)
    wide = f", {more} more on rows of length 1 where there are {WIDE} columns or more" * bool(more)
    tried = f" It tries {choices} of these and of rates{wide}{means}." if len(usual.trials) > 1 else ""
    steps = f"{counted(job.train.epochs, 'step')} of SGD with momentum"
    return f"{kind} is trained in {steps} on rows that are made once, of {listed(parts)}.{tried}"


_ITEM = 8
_BASE = 750 << 20  # of a process with nothing to do, and of what it keeps once freed
_COPIES, _HELD = 2, 19
"""Of all columns, and matrices of the widest opening or of a number for each slot, that are in hand at once. Measured:
within a sixth of block models from ten thousand to half a million nodes (docs/reference/sealed-benchmarks.md)."""
_MATRICES: Final = 1  # of a dense graph, as measured on ACM: 1.2 GB at most in any party
_STEPS, _EVALUATIONS = "steps", "evaluations"


def costs_of(context: Context, steps: int, evaluate_every: int | None = None, dealer_checks: float = 0.0) -> Costs:
    """Count rounds, bytes and memory of a training of ``steps`` with its final release and prediction, without data.

    A step is scored after every ``evaluate_every``. With ``dealer_checks``, the chance that a dealing is opened, the
    mean number of dealings is counted.
    """
    sizes = context.sizes
    machine = CountingMachine(list(sizes.columns), SERVER)
    program = program_of(machine, context, lambda _: system_secrets)
    program.enter(trains=True)
    program.begin()
    evaluations, best = 0, program.shares()
    for step in range(steps):
        program.step(step, best)
        if evaluate_every and ((step + 1) % evaluate_every == 0 or step + 1 == steps):
            program.score(step + 1)
            evaluations, best = evaluations + 1, program.shares()
    if context.plan.release or sizes.asked != 0:
        program.restore({TRIAL: torch.tensor(_costliest_trials(context))}, training=False)
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
        # Where each judges, the server is told, and who has no rows.
        others = 1 + len(sizes.blocks) - len(sizes.owners) if sizes.blocks else len(sizes.columns)
        sent[_EVALUATIONS][context.label_party] += evaluations * others * JUDGEMENT_BYTES
    parties = (*sizes.columns, SERVER)
    stages = [Stage(name, rounds[name], {party: of[party] for party in parties}) for name, of in sent.items()]
    if dealer_checks:
        stages.insert(0, _dealer_checks(machine.dealt, 1 / (1 - dealer_checks)))
    return Costs(stages, _peak_memory(context, machine.widest))


def _costliest_trials(context: Context) -> list[int]:
    """All trials, whose mean may be taken; of words the one whose release and prediction send most bytes."""
    places, found = list(range(len(context.plan.trials))), list[int]()
    tried = [places] if context.plan.standard else [[place] for place in places]
    for members in tried if len(tried) > 1 else []:
        machine = CountingMachine(list(context.sizes.columns), SERVER)
        program = SealedProgram(machine, context)
        program.enter(trains=True)
        program.begin()
        machine.costs.clear()
        machine.at("")
        program.restore({TRIAL: torch.tensor(members)}, training=False)
        if context.plan.release:
            program.release()
        program.predict()
        found.append(sum(sum(cost.sent.values()) for cost in machine.costs.values()))
    return tried[found.index(max(found))] if found else places


def _dealer_checks(dealt: Mapping[PartyId, int], dealings: float) -> Stage:
    """Messages of dealer checks, for a mean number of ``dealings``, all but one opened; ``dealt``: messages to each."""
    others, digest = len(dealt) - 1, HEADER_BYTES + DIGEST_BYTES
    sent = dict.fromkeys(dealt, dealings * others * digest)
    sent[next(iter(dealt))] += dealings * len(dealt) * (HEADER_BYTES + 1)
    told = sum(digest + DIGEST_BYTES * messages for messages in dealt.values())
    sent[SERVER] = dealings * told + (dealings - 1) * len(dealt) * digest
    return Stage("dealer checks", round(2 * dealings), {party: round(count) for party, count in sent.items()})


def _peak_memory(context: Context, widest: int) -> Mapping[PartyId, int]:
    """Estimate peak memory in bytes of each holder and the server; ``widest``: entries of the largest opening."""
    sizes, plan = context.sizes, context.plan
    if sizes.blocks:  # fitted to unions of 10^5 to 10^6 accounts, all within a ninth (docs/explanation/union.md)
        columns = context.width_of(context.abreast[0], *plan.home, *plan.blocks, *filter(is_apart, plan.blocks))
        over = {holder: (1 + plan.directed) * (sizes.nodes + edges) for holder, edges in sizes.edges.items()}
        found = {holder: 533_000_000 + 110 * sizes.nodes * columns + 123 * slots for holder, slots in over.items()}
        return found | {SERVER: 455_000_000 + 83 * sizes.nodes * columns + 12 * sum(over.values())}
    put_in = {holder: context.width_of(holder, *context.plan.home) for holder in sizes.columns}
    everything = _COPIES * _ITEM * sizes.nodes * sum(put_in[holder] for holder in context.abreast)
    dense = [holder for holder in sizes.edges if is_dense(context, holder)]
    slots = sizes.nodes + max((edges for holder, edges in sizes.edges.items() if holder not in dense), default=0)
    matrices = _MATRICES * _ITEM * sizes.nodes**2 * len(dense)
    common = _BASE + everything + _HELD * _ITEM * (widest + slots) + matrices
    own = {holder: _COPIES * _ITEM * sizes.nodes * columns for holder, columns in put_in.items()}
    return {holder: common + 2 * own[holder] for holder in own} | {SERVER: common}


_LIKELY: Final = 8190  # edges of a node at all holders together, where these tell none to a plan of costs
WIDE_BYTES: Final = 3 * 8  # that the dealer sends for an element of a result, at most


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
        costs = costs_of(context, job.train.epochs, every, job.dealer_checks)
        if not any(told) or all(own.neighbours is not None for own in sizes.values()):
            return costs
        note = (
            f"counted for {context.sizes.max_degree:,} edges at a node: model.max_degree and tables do not say how many"
        )
        return replace(costs, notes=[note])

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
            fields |= {"classes": (2, MOST_CLASSES), "training": (0, MAX_NODES), "validation": judged}
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
        return WIDE_BYTES * (2 * nodes * width + 4 * slots) + (AHEAD_STRIDES + 1) * STRIDE_BYTES + SLACK_BYTES

    def role(self, session: RoleContext, aligned: Aligned) -> Role:
        if session.answers:
            return answering_role(session)
        if aligned.graph is None:
            return SealedDealer(session)
        labelled = session.link.party == session.settings.data.label_party
        return (SealedLabelHolder if labelled else SealedHolder)(session, aligned.graph)


class _SealedPrivacy(Privacy[SealedJob]):
    protects: ClassVar[tuple[str, ...]] = ("edge", "training-record")

    def protecting(self, unit: str, epsilon: float) -> dict[str, Any]:
        if unit == "training-record":
            return {
                **super().protecting(unit, epsilon),
                "output": "margins",
                "train": {"select_by": "last", "epochs": 1, "checkpoint_every": 1},
            }
        return {
            **super().protecting(unit, epsilon),
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
    way: ClassVar[str] = "sealed, noise on votes"

    def threat_model(self, job: SealedJob) -> str:
        if job.records is not None:
            return f"{job.data.label_party} and all other holders together, without the dealer"
        return f"{job.data.label_party} and all other holders together, without the dealer, which draws the noise"

    def noise_source(self, job: SealedJob) -> str:
        if job.records is not None:
            return "each holder's ε is about its own columns of training nodes, and it draws its own noise"
        return "each holder's ε is about its own edges; the noise is the dealer's, and one for all holders together"

    def privacy_notes(self, job: SealedJob) -> list[str]:
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

    def expected_gain(self, job: SealedJob, nodes: int | None, training: int | None = None) -> list[str]:
        if job.records is not None:
            return ["what such scores added on public data sets, docs/explanation/sealed.md says for several ε"]
        epsilon, slots = epsilon_of(job), job.model.edge_slots
        if epsilon is None or slots is None:
            return []
        if not nodes:
            return ["how much noise leaves of what votes add follows from the number of common nodes: give --nodes"]
        trained = 1.0 if training is None else training / nodes  # a pair of training nodes is not counted
        votes = slots / 2 * (len(job.data.names) - 1) * (1 + trained) / nodes
        left, way_out = left_by_noise(votes, epsilon), ""
        if left < LEAST_LEFT:
            way_out = (
                f", too little to show: raise privacy.epsilon_total to {epsilon_for(votes):g}, or leave privacy out"
            )
        found = f"noise leaves at most {left:.0%} of what votes add without it"
        return [f"{found} ({round(votes, 1):g} votes a node by model.edge_slots; docs/explanation/sealed.md){way_out}"]

    def privacy_limits(self, job: SealedJob) -> list[str]:
        if job.records is not None:
            return [
                f"{job.data.label_party} learns scores that depend on columns of nodes that are not trained on, which "
                "have no noise.",
                "Whoever deals knows all masks: with it, a holder that works together with the dealer has no bound.",
                f"{job.data.label_party} shortens residuals to a length of 1 by itself, and nobody else checks it.",
            ]
        return [
            f"What {job.data.label_party} predicts depends on all holders' features, which have no noise.",
            "Whoever deals knows the noise: with it, a holder that works together with the dealer has no bound.",
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


S = TypeVar("S", bound=SealedJob)


class SealedWords(Words[S]):
    """Words in reports on jobs that open results only."""

    def collusion(self, job: S) -> str:
        return (
            "Whoever deals the random numbers and one holder together could read everything of all others. All holders "
            "but one together, without it, learn nothing but what they had and are told."
        )

    def server_part(self, job: S) -> str:
        return "deals random numbers; has no data"


class _SealedWords(SealedWords[SealedJob]):
    def describe(self, job: SealedJob) -> list[str]:
        names = listed(job.data.names)
        if job.records is not None:
            return [
                f"{names} have other columns of the same nodes. All that they compute with is masked.",
                _record_words(job),
                f"{job.data.label_party} learns nothing else. The server deals random numbers, sees no message between "
                "holders, and must not collude with one of them.",
                "All are told sizes: nodes, columns, training nodes, classes.",
            ]
        told = "the class" if job.output == "classes" else "a score of every class"
        nodes = "every node"
        if job.named_nodes is not None:
            nodes = (
                f"at most {counted(job.named_nodes, 'node')} in all, which it names in later predictions and nobody "
                "else learns"
            )
        but = ""
        if job.release == "holders":
            but = ", but that every holder learns the weights of its own columns in the first layer at the end"
        judges, named = job.passes.evaluates, job.outcome.predicts_named
        judged = ", and at every evaluation one number, which says how well the step does" if judges else ""
        counts = ", and noisy votes of its neighbours" * bool(job.privacy)
        dealer = "sees no message between holders, and must not collude with one of them"
        if job.dealer_checks:
            dealer += f"; a dealing with a wrong byte is found out with chance {job.dealer_checks:g} before it is used"
        plan = plan_of(job)
        noise = [] if job.privacy is None else [_noise_words(job)]
        return [
            f"{names} have other columns, and edges of their own, of the same nodes. All that they compute with is "
            f"masked: nobody sees another's features, edges, degrees, labels or training nodes, nor any weight, "
            f"gradient or score{but}.",
            network_words(job, plan),
            f"{job.data.label_party} learns {told} that is predicted for {nodes}{judged}{counts}. It learns nothing "
            f"else. The server deals random numbers, {dealer}.",
            *noise,
            "All are told sizes: nodes, columns, rounded numbers of edges, training nodes, classes"
            + ", validation nodes that judge, and which step is best so far" * judges
            + ", and how many nodes are named" * named
            + ".",
        ]

    def verdict(self, job: SealedJob, what: str, nodes: str) -> str:
        if job.records is not None:
            return (
                f"{job.data.label_party} predicts {what}, for {nodes}, by a model of its own and by weights of the "
                "others' columns that nobody sees."
            )
        return (
            f"{listed(job.data.names)} trained one model together that predicts {what}, for {nodes}; only "
            f"{job.data.label_party} sees the predictions, and nobody sees the model."
        )


SEALED: Final = Paradigm[SealedJob](
    title="sealed: nothing is opened but predictions",
    rows=ROWS,
    data=_SealedData(),
    session=_SealedSessions(),
    privacy=_SealedPrivacy(),
    guarantee=_SealedGuarantee(),
    baselines=_SealedBaselines(),
    words=_SealedWords(),
)
"""Holders of the same nodes train one network of which nothing is opened but predictions."""
