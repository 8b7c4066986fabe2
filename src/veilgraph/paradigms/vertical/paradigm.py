"""VFGNN as a paradigm: costs (docs/explanation/protocol.md, Bytes and Memory), privacy, roles, and report texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.text import TRUST, counted, listed
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph, rows_between
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.product import AHEAD, KEEP_BYTES, row_blocks
from veilgraph.mpc.ring import MAX_DETECTED_BITS
from veilgraph.nn.combine import build_combine
from veilgraph.nn.local.model import not_partitioned
from veilgraph.paradigms.vertical.network import check_together, deep_width
from veilgraph.paradigms.vertical.roles import DataHolder, LabelHolder, Server
from veilgraph.paradigms.vertical.rows import ROWS
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.paradigms.vertical.twin import isolated, pooled
from veilgraph.protocol import paradigm as seam
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.aligning import AlignedData, AlignedSessions, encoded_tables
from veilgraph.protocol.costs import JUDGEMENT_BYTES, Costs, PartySizes, Stage, total_bytes, unread_of_passes
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
from veilgraph.protocol.role import LocalPart, Role, RoleContext

_RING: Final = 8  # bytes of an element of Z_2^64


def costs_of(job: VerticalJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs | None:
    """Count rounds, bytes and memory of a job of all its epochs, for ``nodes`` common ones; None for one in batches."""
    train, model, method, label_party = job.train, job.model, job.model.initial.method, job.data.label_party
    if train.batch_size is not None:
        return None
    columns = {holder: own.columns for holder, own in sizes.items()}
    everything, holders, dim, rounds = sum(columns.values()), len(sizes), model.dim, model.rounds
    peers, dealt = holders - 1, method == "collaborative"
    real = 8 if job.precision == "float64" else 4
    published = _RING if model.combine.is_masked else real
    blocks = len(row_blocks(nodes, columns, dim)) if dealt else 1

    def matrix(each: int, width: int = dim) -> int:
        return each * nodes * width + HEADER_BYTES

    def sent(by_holder: int, by_server: int, by_label_holder: int = 0) -> dict[PartyId, int]:
        found = {**dict.fromkeys(columns, by_holder), SERVER: by_server}
        found[label_party] += by_label_holder
        return found

    key, in_blocks = HEADER_BYTES + SEED_BYTES, matrix(_RING) + (blocks - 1) * HEADER_BYTES
    weighted = matrix(published, 1) if model.combine.kind.needs_weight else 0
    opened = 0 if method == "individual" else peers * in_blocks  # h^0 in a pass, its gradient in a step
    ready = max(0, blocks - AHEAD) * (HEADER_BYTES + 1)
    set_up = sent(peers * key + weighted, dealt * holders * key)
    embed = sent(opened + dealt * ready, dealt * holders * in_blocks)
    for holder, own in columns.items() if dealt else ():
        set_up[holder] += peers * (_RING * nodes * own + blocks * HEADER_BYTES)
        embed[holder] += blocks * (_RING * dim * (everything - own) + peers * HEADER_BYTES)
    dealt_backward = dealt * blocks * (_RING * dim * everything + holders * HEADER_BYTES)
    publish = sent(rounds * matrix(published), holders * (rounds - 1) * matrix(real))
    deep = matrix(real, deep_width(model, holders))
    back = sent((rounds - 1) * matrix(published), holders * rounds * matrix(real), deep)
    verdict = sent(0, 0, holders * JUDGEMENT_BYTES if train.select_by != "last" else 0)

    judged = -(-train.epochs // train.evaluate_every)
    passes = train.epochs + judged
    publications = passes - (judged - 1 if job.publishes_once else 0)
    embedded = train.epochs + 1  # of the last evaluation h^0 is new, and the last backward product is dealt in vain
    training = total_bytes(
        (embed, embedded),
        (sent(opened, dealt_backward), train.epochs),
        (publish, publications),
        (sent(0, deep), passes),
        (back, train.epochs),
        (verdict, judged),
        ({SERVER: dealt_backward}, 1),
    )
    waits, between = 1 + dealt, 2 * rounds
    in_training = embedded * waits + publications * between + train.epochs * (between + 1) + judged
    stages = [
        Stage("set-up", 3, set_up),
        Stage("training", in_training, training),
        Stage("inference", waits + between, total_bytes((embed, 1), (publish, 1), (sent(0, deep), 1))),
    ]
    notes = []
    if train.patience is not None:
        notes.append(f"at most: training ends after {train.patience} evaluations that are no better (train.patience)")
    if job.publishes_once and judged > 1:
        notes.append("what an evaluation published is not sent again in the training step after it")
    memory = {}  # beside graph, network and optimiser
    ahead = 3 * _RING * dim * ((holders + 1) * nodes // blocks + 2 * everything)
    static, copies = _RING * nodes * everything, 2 if blocks == 1 else 1  # matrices, and transposed ones
    for holder, own in columns.items():
        kept = copies * static + 24 // blocks * nodes * own
        memory[holder] = real * nodes * dim + dealt * (kept + 16 * everything * dim + ahead)
    memory[SERVER] = dealt * (copies * static if copies * static <= KEEP_BYTES else min(static, KEEP_BYTES))
    return Costs(stages, memory, notes)


class _VerticalData(AlignedData[VerticalJob]):
    def check_graphs(self, job: VerticalJob, graphs: Sequence[PartyGraph]) -> None:
        common = {graph.party: rows_between(graph.features, 0, graph.common) for graph in graphs}
        check_together(job.model.initial, job.model.dim, common, job.model.initial.feature_bits)

    def check_tables(self, job: VerticalJob) -> None:
        """Refuse tables whose features may not fit the ring, by all their nodes, as common ones are not known yet."""
        check_together(job.model.initial, job.model.dim, encoded_tables(job), job.model.initial.feature_bits)

    def unknown_range(self, job: VerticalJob) -> str:
        if not (job.model.initial.is_joint and job.data.is_apart):
            return ""
        return (
            f"whether features fit the ring of model.initial.method={job.model.initial.method} each holder finds out "
            "of its own when the job begins: their tables are not here"
        )


class VerticalSessions(AlignedSessions[VerticalJob]):
    """Costs, stated sizes and roles of vertical jobs' sessions."""

    has_costs: ClassVar[bool] = True

    def costs(self, job: VerticalJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs | None:
        return costs_of(job, nodes, sizes)

    def stated(self, job: VerticalJob, party: PartyId, *, releases: bool) -> dict[str, seam.Range]:
        """Bounds of what a holder states in its hello: steps and nodes, and features and bits as the method needs."""
        fields = {"steps": (0, seam.MAX_STEPS), "nodes": (1, seam.MAX_NODES)}
        if job.model.initial.is_joint:
            fields["features"] = (1, seam.MAX_FEATURES)
        if job.model.initial.method == "collaborative":
            bits = job.model.initial.feature_bits
            fields["feature_bits"] = (0, MAX_DETECTED_BITS) if bits is None else (bits, bits)
        return fields

    def unread_bytes(self, job: VerticalJob, hellos: Mapping[PartyId, Hello]) -> int:
        model = job.model
        return unread_of_passes(
            hellos,
            width=build_combine(model.combine).output_dim(model.dim, len(job.data.names)),
            dim=model.dim,
            rounds=model.rounds,
            batch_size=job.train.batch_size,
        )

    def unspreadable(self, job: VerticalJob) -> str | None:
        if job.device != "cpu":
            return f"machines: they compute on their CPUs, and device={job.device!r}; set it to cpu, or use one machine"
        return not_partitioned(job.model.local)

    def local_part(self, role: Role) -> LocalPart | None:
        return role.local_part() if isinstance(role, DataHolder) else None

    def role(self, session: RoleContext, aligned: Aligned) -> Role:
        job, graph = session.settings, aligned.graph
        if graph is None:
            return Server(session)
        if session.link.party == job.data.label_party:
            return LabelHolder(session, graph)
        return DataHolder(session, graph)


class _VerticalPrivacy(seam.Privacy[VerticalJob]):
    protects: ClassVar[tuple[str, ...]] = ("label",)

    def largest_epsilon(self, job: VerticalJob, party: PartyId, nodes: int | None = None) -> float:
        return math.inf

    def label_epsilon(self, job: VerticalJob, party: PartyId) -> float:
        return super().label_epsilon(job, party) if party == job.data.label_party else 0.0


class _VerticalGuarantee(seam.Guarantee[VerticalJob]):
    def unbounded(self, job: VerticalJob) -> str:
        if job.label_privacy is not None:
            return seam.LABELS_ALONE
        return "a vertical job has no noise on what holders publish; sealed, for edges, has some"


class _VerticalBaselines(seam.Baselines[VerticalJob]):
    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult:
        return isolated(inputs.settings, inputs.graphs, holder, progress)

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        return pooled(inputs.settings, inputs.graphs, progress)

    def beside(self, job: VerticalJob) -> Mapping[str, Any]:
        return {"paradigm": "sealed", "output": "margins"}


class VerticalWords(seam.Words[VerticalJob]):
    """Words in reports on vertical jobs."""

    def describe(self, job: VerticalJob) -> list[str]:
        return _description(job)

    def collusion(self, job: VerticalJob) -> str:
        said = super().collusion(job)
        if job.model.initial.method == "collaborative":
            said += " The first layer is on shares: all features of all other holders are among that."
        return said

    def verdict(self, job: VerticalJob, what: str, nodes: str) -> str:
        holders = job.data.names
        both = "both" if len(holders) == 2 else "all"
        names = listed(holders)
        return f"{names} trained one model together that predicts {what}, on the {nodes} that {both} of them have."


_FIRST_LAYER: Final[Mapping[str, str]] = {
    "collaborative": "The first layer is computed on secret shares: no party ever sees another's features, and its "
    "weights exist nowhere in one place. Every holder learns the result for every common node, h⁰, and anew "
    "whenever they change.",
    "secure-sum": "In the first layer each holder multiplies its columns by weights of its own, and only the sum "
    "over the holders, h⁰, is opened, to every holder.",
    "individual": "Each holder computes its first layer from its own columns alone, and shows nothing of it.",
}


def _description(job: VerticalJob) -> list[str]:
    model, learner, private = job.model, job.data.label_party, job.label_privacy
    sentences = [
        f"{listed(job.data.names)} have different columns, and edges of their own, of the same nodes. "
        f"{learner} alone has labels.",
        _FIRST_LAYER[model.initial.method],
        f"Over its own edges each holder then joins what a node has with {model.local.kind.words}, "
        f"{counted(model.local.hops, 'hop')} far. No edge is sent to anybody."
        if model.local.hops
        else "No edges are used.",
    ]
    sentences.append(
        f"The server {model.combine.kind.words}. That is "
        f"{'masked: the server opens the sum alone' if job.passes.is_masked else 'not masked'}."
    )
    if model.rounds > 1:
        sentences.append(
            f"That happens in {model.rounds} rounds: after all but the last, every holder is sent what was combined."
        )
    labels = (
        "its labels"
        if private is None
        else f"its labels under randomised response (ε {private.epsilon:g} of one label, once, before training)"
    )
    sentences.append(
        f"The server has {counted(model.server.layers, 'further layer')}; {learner} gets the output, computes the "
        f"loss from {labels}, and gradients return the same way."
    )
    if job.train.batch_size is not None:
        fanout, every = model.local.fanout, job.train.refresh_every
        drawn = "all neighbours" if fanout is None else f"at most {counted(fanout, 'neighbour')} of a node, drawn anew"
        renewed = "once an epoch" if every is None else f"every {counted(every, 'step')}"
        sentences.append(
            f"A step is about {job.train.batch_size:,} nodes in an order that all parties know; each holder takes "
            f"{drawn}, and tells nobody which. The first layer is computed for all nodes, and changes, {renewed}."
        )
    return [*sentences, _noise_words(job), TRUST]


def _noise_words(settings: VerticalJob) -> str:
    if settings.label_privacy is not None:
        return "What is told of a label is bounded by an ε; features and edges are not noised."
    return "There is no differential privacy: nothing is noised."


VERTICAL: Final = seam.Paradigm[VerticalJob](
    title="vertical: the same nodes, different columns",
    rows=ROWS,
    data=_VerticalData(),
    session=VerticalSessions(),
    privacy=_VerticalPrivacy(),
    guarantee=_VerticalGuarantee(),
    baselines=_VerticalBaselines(),
    words=VerticalWords(),
)
"""Holders of the same nodes train one network; embeddings are combined at a server."""
