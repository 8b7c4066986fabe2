"""Averaging as a paradigm: its words, and a job's bytes and memory before it runs (docs/explanation/averaging.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.text import TRUST, counted, listed
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.mailbox import SLACK_BYTES
from veilgraph.paradigms.horizontal.node_lists import HASH_BYTES
from veilgraph.paradigms.horizontal.paradigm import (
    SameColumnsData,
    SameColumnsPrivacy,
    SameColumnsSessions,
    SameColumnsWords,
)
from veilgraph.paradigms.union.paradigm import JoinedData
from veilgraph.paradigms.union.twin import one_graph
from veilgraph.protocol import paradigm as seam
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.costs import JUDGEMENT_BYTES, Costs, PartySizes, Stage, size_of, total_bytes
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.paradigm import LABELS_ALONE, Baselines, Guarantee, Paradigm
from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
from veilgraph.protocol.releases import noised_labels
from veilgraph.protocol.role import Role, RoleContext
from veilgraph_averaging import twin as baselines
from veilgraph_averaging.aggregation.summing import holder_bytes
from veilgraph_averaging.private.settings import SampledSettings
from veilgraph_averaging.roles import AveragingHolder, AveragingServer
from veilgraph_averaging.rows import ROWS
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.symbols.home import own_model
from veilgraph_averaging.symbols.roles import SymbolHolder, SymbolServer, check_classes_of_symbols
from veilgraph_averaging.symbols.words import costs_of_symbols, describe_symbols
from veilgraph_averaging.symbols.worth import refusal_of_weak, words_of_worth
from veilgraph_averaging.tasks import Task, TaskSettings
from veilgraph_averaging.training import EXTRA, check_rule, public


def _dropout_words(job: AveragingJob) -> str:
    return (
        f"A round goes on as long as {job.threshold} of the {len(job.data.names)} holders are there; who drops out is "
        "left out of its sums."
    )


def _describe_open(job: AveragingJob) -> list[str]:
    own, task = job.averaging, job.averaging.task.kind
    named = {"input": "the map of the features", "local": "the hops", "output": "the last map"}
    parts = listed([named[part] for part in own.personal])
    return [
        *own.task.describe(),
        f"In every round each trains the same network on its own graph, {counted(own.local_epochs, 'epoch')} long.",
        *([f"Each has weights of its own in {parts}, which it never adds up."] if own.personal else []),
        "Changes of weights, losses and counts are added up under masks: the server learns sums over the holders, and "
        f"{own.rule.words}, weighted by {task.subject.examples}.",
        _dropout_words(job),
        "Every holder, and the server, has the weights after every round: what a model has learnt of its data by heart "
        "they can ask it.",
        noised_labels(job),
    ]


def _describe_private(job: AveragingJob, given: SampledSettings) -> list[str]:
    joint, bound = None if job.training_plan is None else job.training_plan.joint, given.degree_bound
    noise = ", by its holder's noise alone"
    if joint is not None:
        noise = (
            f", by noise that {joint.honest} of the {joint.holders} holders that a sum has at least make together: "
            f"where more than {joint.colluding} collude, or add none, it does not hold"
        )
    bounded = "." if bound is None else f"; no node may have more than {counted(bound, 'neighbour')}."
    home = (
        "After the last round each learns a correction from its own features, labels and edges without noise; it keeps "
        "that, and no ε is about it."
    )
    return [
        f"In every round each draws every training node with probability {given.sampling_rate:g}, clips the gradient "
        f"of each that is drawn to length {given.clip:g}, adds these up with Gaussian noise, and pays for it in its "
        "ledger first.",
        "Sums are added up under masks: the server learns sums over the holders, and takes a step down their mean.",
        _dropout_words(job),
        "Every holder, and the server, has the weights after every round. An ε bounds what all that says of a node's "
        f"features, label and edges{noise}{bounded}",
        *([] if job.averaging.at_home is None else [home]),
        "No losses, scores or counts are sent: each holder judges the model on its own nodes.",
    ]


_NUMBER: Final = 8  # bytes of one that is added up, and of facts and tallies
_WAITS: Final = 10
"""Messages of a sum that wait for the ones before: five from the holders, and what the server says after each."""


def costs_of(job: AveragingJob, sizes: Mapping[PartyId, PartySizes]) -> Costs | None:
    """Return what a job sends stage by stage, and its memory; None where the network comes from parties' Python.

    Raises ``ConfigError``: labels have too many classes for symbols.
    """
    if job.averaging.symbols is not None:
        check_classes_of_symbols(job, max(own.classes for own in sizes.values()))
        return costs_of_symbols(sizes)
    classes = {holder: own.classes for holder, own in sizes.items() if own.classes}
    stated = classes or dict.fromkeys(sizes, 1)  # of a task without any, which holders merely say that they have
    known = public(job, {holder: own.columns for holder, own in sizes.items()}, stated)
    task: Task[Any, Any] = known.task.kind(known)
    try:
        network = task.network(LearningStreams(job.seed, SERVER))
    except ConfigError:  # a part of it comes from Python
        return None
    network.keep_home(job.averaging.personal)
    weights, real = len(network.vector()), known.dtype.itemsize

    train, holders = job.train, len(sizes)

    def told(count: int, each: int = _NUMBER) -> dict[PartyId, int]:
        """Bytes of ``count`` numbers, ``each`` so wide, that the server sends to every holder: sender → bytes."""
        return {SERVER: holders * (HEADER_BYTES + each * count)}

    def summed(size: int, each: int = _NUMBER) -> dict[PartyId, int]:
        """Bytes of a masked sum of ``size`` numbers with all holders, and of telling its result: sender → bytes."""
        up, down = holder_bytes(holders, size)
        return {**dict.fromkeys(sizes, up), SERVER: holders * down + told(size, each)[SERVER]}

    judged = -(-train.epochs // train.evaluate_every)
    tallied = job.averaging.privacy is None  # else each holder judges for itself
    verdict = {job.data.label_party: JUDGEMENT_BYTES} if train.select_by != "last" else {}
    keys = dict.fromkeys(sizes, (holders - 1) * (HEADER_BYTES + SEED_BYTES))
    tally = summed(task.judging.tally_size) if tallied else {}
    stages = [
        Stage("set-up", 2, total_bytes((keys, 2), (told(weights, real), 1))),
        Stage(
            "facts",
            _WAITS * len(task.sums_before.sizes),
            total_bytes(*((summed(size), 1) for size in task.sums_before.sizes)),
        ),
        Stage("rounds", _WAITS * train.epochs, total_bytes((summed(weights + EXTRA, real), train.epochs))),
        Stage(
            "evaluations", (_WAITS * tallied + bool(verdict)) * judged, total_bytes((tally, judged), (verdict, judged))
        ),
        Stage("inference", _WAITS * tallied, tally),
    ]
    notes = ["of holders that all stay to the end; who drops out sends less"]
    if train.patience is not None:
        notes.append(f"at most: training ends after {train.patience} evaluations that are no better (train.patience)")
    most = _NUMBER * max(weights + EXTRA, task.judging.tally_size)
    memory = {**dict.fromkeys(sizes, 3 * most), SERVER: (holders + 2) * most}
    return Costs([stage for stage in stages if stage.sent], memory, notes)


class _AveragingData(SameColumnsData[AveragingJob]):
    """As of horizontal jobs, and with ``averaging.symbols`` as of a union."""

    _joined: ClassVar[JoinedData[AveragingJob]] = JoinedData()

    @override
    def load(self, job: AveragingJob) -> Inputs:
        return super().load(job) if job.averaging.symbols is None else self._joined.load(job)

    @override
    def label_party(self, job: AveragingJob, graphs: Sequence[PartyGraph]) -> PartyId:
        if job.averaging.symbols is None:
            return super().label_party(job, graphs)
        return self._joined.label_party(job, graphs)

    @override
    def accept(self, job: AveragingJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        if job.averaging.symbols is None:
            return super().accept(job, graphs, ids)
        found = self._joined.accept(job, graphs, ids)
        sizes = {graph.party: size_of(graph, job.inputs, ids[graph.party]) for graph in graphs}
        if refused := refusal_of_weak(job, sizes):
            raise ConfigError(refused, code="too-weak", key="averaging.symbols")
        return found

    @override
    def check_graphs(self, job: AveragingJob, graphs: Sequence[PartyGraph]) -> None:
        """Refuse graphs that break a private training's bound on neighbours; see ``Data.check_graphs``."""
        for graph in graphs:
            check_rule(job, graph)


class _AveragingSessions(SameColumnsSessions[AveragingJob]):
    has_costs: ClassVar[bool] = True

    def costs(self, job: AveragingJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs | None:
        """Return what the job sends and holds; None where the network comes from the parties' own Python."""
        return costs_of(job, sizes)

    @override
    def stated(self, job: AveragingJob, party: PartyId, *, releases: bool) -> dict[str, seam.Range]:
        found = super().stated(job, party, releases=releases)
        return found if job.averaging.symbols is None else {**found, "edges": (1, seam.MAX_NODES)}

    @override
    def unread_bytes(self, job: AveragingJob, hellos: Mapping[PartyId, Hello]) -> int | None:
        if job.averaging.symbols is None:
            return None
        return (HASH_BYTES + 1) * max(hello.edges for hello in hellos.values()) + SLACK_BYTES

    def role(self, session: RoleContext, aligned: Aligned) -> Role:
        if averaging(session.settings).averaging.symbols is not None:
            graph = aligned.graph
            return SymbolServer(session) if graph is None else SymbolHolder(session, graph, aligned.ids or ())
        return AveragingServer(session) if aligned.graph is None else AveragingHolder(session, aligned.graph)


class _AveragingPrivacy(SameColumnsPrivacy[AveragingJob]):
    protects: ClassVar[tuple[str, ...]] = (*SameColumnsPrivacy.protects, "node-edges")

    def protecting(self, unit: str, epsilon: float, *, joined: bool = False) -> dict[str, Any]:
        """Return the keys of a private training, for ``node-edges``; see ``Privacy.protecting``."""
        if unit != "node-edges":
            found = super().protecting(unit, epsilon)
            return {**found, "averaging": {"symbols": {}}} if joined else found
        return {"averaging": {"privacy": {"epsilon_total": epsilon}}}

    def largest_epsilon(self, job: AveragingJob, party: PartyId, nodes: int | None = None) -> float:
        return math.inf if job.training_plan is None else job.training_plan.epsilon_total


class _AveragingGuarantee(Guarantee[AveragingJob]):
    def protection(self, job: AveragingJob, nodes: int | None) -> Any:  # noqa: ANN401 - as the seam has it
        from veilgraph_averaging.private.protection import (  # noqa: PLC0415 - loads what reports are made with
            PrivateTraining,
        )

        if job.averaging.symbols is not None and job.label_privacy is not None:
            from veilgraph_averaging.symbols.protection import Symbols  # noqa: PLC0415 - as above

            return Symbols(job, job.label_privacy, nodes)
        return None if job.training_plan is None else PrivateTraining(job, job.training_plan, nodes)

    @override
    def expected_gain(
        self, job: AveragingJob, nodes: int | None, sizes: Mapping[PartyId, PartySizes] | None = None
    ) -> list[str]:
        return words_of_worth(job, sizes)

    @override
    def too_weak(self, job: AveragingJob, sizes: Mapping[PartyId, PartySizes]) -> str:
        return refusal_of_weak(job, sizes)

    @override
    def way(self, job: AveragingJob) -> str:
        plan = job.training_plan
        if plan is None:
            return "labels, averaging"
        joint = plan.joint
        if plan.settings.neighbours != "zero-out":
            return ""
        if job.model.dim or job.averaging.at_home is None:
            return ""
        if joint is None:
            return "class sums, then at home"
        return "class sums with joint noise, then at home" if joint.honest == len(job.data.names) - 1 else ""

    def privacy_limits(self, job: AveragingJob) -> list[str]:
        """Say that ε does not cover what holders learn at home; see ``Guarantee.privacy_limits``."""
        if job.averaging.at_home is None:
            return []
        return [
            "What a holder has learnt at home after the last round (at_home in its model file, and its predictions) "
            "has no noise: ε holds as long as it keeps these."
        ]

    def unbounded(self, job: AveragingJob) -> str:
        if job.averaging.symbols is not None:
            return "a symbol is of a label: set limits.epsilon_unit to label"
        if job.label_privacy is not None:
            return LABELS_ALONE
        return "without averaging.privacy its weights are not noised: give averaging.privacy.epsilon_total"


class _AveragingBaselines(Baselines[AveragingJob]):
    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult | None:
        (graph,) = (graph for graph in inputs.graphs if graph.party == holder)
        if averaging(inputs.settings).averaging.symbols is not None:
            return None if graph.labels is None else own_model(graph, inputs.ids[holder], inputs.settings.seed)
        return baselines.alone(averaging(inputs.settings), graph, progress)

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        if averaging(inputs.settings).averaging.symbols is not None:
            whole = one_graph(inputs.graphs, inputs.ids)
            return own_model(whole, [str(row) for row in range(whole.num_nodes)], inputs.settings.seed)
        return baselines.pooled(averaging(inputs.settings), inputs.graphs, progress)


class _AveragingWords(SameColumnsWords[AveragingJob]):
    def describe(self, job: AveragingJob) -> list[str]:
        given = job.averaging.privacy
        if job.averaging.symbols is not None:
            return describe_symbols(job)
        return [
            f"{listed(job.data.names)} have graphs of their own with the same columns, and no node in common.",
            *(_describe_open(job) if given is None else _describe_private(job, given)),
            TRUST,
        ]

    def collusion(self, job: AveragingJob) -> str:
        if job.averaging.symbols is not None:
            return "All other parties together see of a label no more than its symbol, which ε bounds."
        return (
            f"The server and {job.threshold} holders together could undo the masks of the others, and so read what a "
            "single holder sent; fewer can not."
        )

    def server_part(self, job: AveragingJob) -> str:
        if job.averaging.symbols is not None:
            return "computes nothing"
        return "opens sums of weights; has no data"

    def predicts(self, job: AveragingJob, classes: int | None) -> str:
        task = job.averaging.task
        return super().predicts(job, classes) if task.name == TaskSettings().name else task.kind.subject.words


AVERAGING: Final = Paradigm[AveragingJob](
    title="averaging: graphs of one's own, one model",
    rows=ROWS,
    data=_AveragingData(),
    session=_AveragingSessions(),
    privacy=_AveragingPrivacy(),
    guarantee=_AveragingGuarantee(),
    baselines=_AveragingBaselines(),
    words=_AveragingWords(),
    begins_with_weights=True,
)
"""Every holder trains on a graph of its own; sums of their weights become one model."""
