"""What a vertical job will send, and hold, before it runs (docs/protocol.md, Bytes and Memory)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.product import AHEAD, row_blocks
from veilgraph.paradigms.vertical.network import deep_width
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.costs import JUDGEMENT_BYTES, Costs, PartySizes, Stage, added
from veilgraph.protocol.job import passes_cost

_RING: Final = 8
"""Bytes of an element of Z_2^64."""
_DEALT: Final = ("collaborative", "secure-sum", "individual")


class _Sizes:
    """Bytes of the messages of a job, by who sends them."""

    def __init__(self, job: VerticalJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> None:
        model = job.model
        self._job, self._nodes, self._dim, self._rounds = job, nodes, model.dim, model.rounds
        self.columns = {holder: own.columns for holder, own in sizes.items()}
        self._all, self._peers = sum(self.columns.values()), len(sizes) - 1
        self._label, self._method = job.data.label_party, model.initial.method
        self._real = 8 if job.precision == "float64" else 4
        self._published = _RING if model.combine.is_masked else self._real
        self._deep = self._matrix(self._real, deep_width(model, len(sizes)))
        self._blocks = len(row_blocks(nodes, self.columns, model.dim)) if self._method == "collaborative" else 1

    def _matrix(self, each: int, width: int | None = None) -> int:
        return each * self._nodes * (self._dim if width is None else width) + HEADER_BYTES

    def _parties(self, holders: int, server: int, label_holder: int = 0) -> dict[PartyId, int]:
        sent = dict.fromkeys(self.columns, holders)
        sent[self._label] += label_holder
        return {**sent, SERVER: server}

    def set_up(self) -> dict[PartyId, int]:
        """Keys, seeds, weights of the mean, and features under masks; without what parties state of themselves."""
        small = HEADER_BYTES + SEED_BYTES
        weighted = self._matrix(self._published, 1) if self._job.model.combine.kind.needs_weight else 0
        is_dealt = self._method == "collaborative"
        sent = self._parties(self._peers * small + weighted, len(self.columns) * small if is_dealt else 0)
        if is_dealt:
            for holder, columns in self.columns.items():
                sent[holder] += self._peers * (_RING * self._nodes * columns + self._blocks * HEADER_BYTES)
        return sent

    def embed(self) -> dict[PartyId, int]:
        """h^0, once."""
        if self._method == "individual":
            return self._parties(0, 0)
        opened = self._peers * (self._matrix(_RING) + (self._blocks - 1) * HEADER_BYTES)
        if self._method == "secure-sum":
            return self._parties(opened, 0)
        ready = max(0, self._blocks - AHEAD) * (HEADER_BYTES + 1)
        dealt = len(self.columns) * (self._matrix(_RING) + (self._blocks - 1) * HEADER_BYTES)
        sent = self._parties(opened + ready, dealt)
        for holder, columns in self.columns.items():
            operands = _RING * self._dim * (self._all - columns) + self._peers * HEADER_BYTES
            sent[holder] += self._blocks * operands
        return sent

    def learn(self) -> dict[PartyId, int]:
        """The gradient of h^0, once."""
        if self._method == "individual":
            return self._parties(0, 0)
        gradients = self._peers * (self._matrix(_RING) + (self._blocks - 1) * HEADER_BYTES)
        return self._parties(gradients, self.dealt_backward())

    def dealt_backward(self) -> int:
        """The dealer's half of a backward product."""
        if self._method != "collaborative":
            return 0
        return self._blocks * (_RING * self._dim * self._all + len(self.columns) * HEADER_BYTES)

    def publish(self) -> dict[PartyId, int]:
        """What holders publish in a pass forward, and get back in between."""
        back = len(self.columns) * (self._rounds - 1) * self._matrix(self._real)
        return self._parties(self._rounds * self._matrix(self._published), back)

    def output(self) -> dict[PartyId, int]:
        """z_L to the label holder."""
        return self._parties(0, self._deep)

    def back(self) -> dict[PartyId, int]:
        """Gradients of a training step, but that of h^0."""
        gradients = (self._rounds - 1) * self._matrix(self._published)
        return self._parties(gradients, len(self.columns) * self._rounds * self._matrix(self._real), self._deep)

    def judged(self) -> dict[PartyId, int]:
        """What the label holder tells of an evaluation."""
        tells = self._job.train.select_by != "last"
        return self._parties(0, 0, len(self.columns) * JUDGEMENT_BYTES if tells else 0)

    def memory(self) -> dict[PartyId, int]:
        """Beyond a party's own graph, network and optimiser."""
        nodes, dim, parties = self._nodes, self._dim, len(self.columns)
        ahead = 3 * _RING * dim * ((parties + 1) * nodes // self._blocks + 2 * self._all)
        held = {}
        for holder, columns in self.columns.items():
            kept = _RING * nodes * (self._all - columns) + (_RING + 24 // self._blocks) * nodes * columns
            shares = 16 * self._all * dim + ahead
            held[holder] = self._real * nodes * dim + (kept + shares if self._method == "collaborative" else 0)
        expanded = _RING * nodes * self._all
        return {**held, SERVER: min(expanded, 1 << 30) if self._method == "collaborative" else 0}


def costs_of(job: VerticalJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs | None:
    """As ``Sessions.costs``: of a training of all its epochs, in threads, processes and across organisations alike.

    None in batches, with one release, and with perturbed features: what is sent follows from more than sizes.
    """
    train, initial = job.train, job.model.initial
    if (
        train.batch_size is not None
        or job.passes.learns_alone
        or initial.method not in _DEALT
        or initial.release is not None
    ):
        return None
    each, steps = _Sizes(job, nodes, sizes), train.epochs
    evaluations = 0 if passes_cost(job) else -(-steps // train.evaluate_every)
    judged = -(-steps // train.evaluate_every)
    passes = steps + evaluations
    published = passes - (max(0, evaluations - 1) if job.publishes_once else 0)
    # Of the last evaluation h^0 is new, but where no pass is made for one; the last backward product is dealt in vain.
    embedded = steps + (1 if evaluations else 0)
    training = added(
        (each.embed(), embedded),
        (each.learn(), steps),
        (each.publish(), published),
        (each.output(), passes),
        (each.back(), steps),
        (each.judged(), judged),
        ({SERVER: each.dealt_backward()}, 1 if evaluations else 0),
    )
    waits, between = (2 if initial.method == "collaborative" else 1), 2 * job.model.rounds
    stages = [
        Stage("set-up", 3, each.set_up()),
        Stage("training", embedded * waits + published * between + steps * (between + 1) + judged, training),
        Stage("inference", waits + between, added((each.embed(), 1), (each.publish(), 1), (each.output(), 1))),
    ]
    notes = []
    if train.patience is not None:
        notes.append(f"at most: training ends after {train.patience} evaluations that are no better (train.patience)")
    if job.publishes_once and evaluations > 1:
        notes.append("what an evaluation published is not sent again in the training step after it")
    return Costs(stages, each.memory(), notes)
