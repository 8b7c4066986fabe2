"""The network of a sealed job as a program of ``mpc.sealed``: holders, the dealer and the twin all run this one.

Linear propagation does not depend on weights, so it is done once. Rows of P^K·X are wanted at T training nodes that
nobody but the label holder may know. Either T hidden one-hot columns are propagated and multiplied with every holder's
columns, or the columns themselves are propagated and the label holder picks its rows: what is fewer is propagated.
A step then has no hop in it.

P = D^(−1/2)·Ã·D^(−1/2) or D^(−1)·Ã, Ã = I + Σ_i A_i over all holders, whose degrees D nobody learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

import torch
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed.functions import (
    BITS,
    FINE_BITS,
    inverse_root,
    largest_place,
    relu,
    softmax,
    times,
)
from veilgraph.mpc.sealed.machine import HiddenGraph, Machine
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, joined

WEIGHT_BITS: Final = 24
"""Of weights and velocities, and of what is added to them."""
_RATE_BITS: Final = 16
_TELEPORT_BITS: Final = 8


@dataclass(frozen=True)
class Sizes:
    """What all parties know before anything is sent.

    Attributes:
        nodes: N.
        training: T.
        classes: C.
        columns: holder → number of its feature columns, in the job's order.
        edges: holder → padded number of its directed edges.
        max_degree: bound of every node's degree over all holders, the node itself included.
    """

    nodes: int
    training: int
    classes: int
    columns: Mapping[PartyId, int]
    edges: Mapping[PartyId, int]
    max_degree: int


@dataclass(frozen=True)
class OwnData:
    """What one holder puts in; in the twin, there is one of every holder.

    Attributes:
        features: float64 [N, F].
        edges: int64 [2, E].
        rows: training nodes, at the label holder.
        labels: their classes, likewise.
        weights: of the rows in the loss, likewise; None: all alike.
    """

    features: Tensor
    edges: Tensor
    rows: Tensor | None = None
    labels: Tensor | None = None
    weights: Tensor | None = None

    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        found = sha256()
        for part in (self.features, self.edges, self.rows, self.labels, self.weights):
            if part is not None:
                found.update(str(tuple(part.shape)).encode())
                found.update(part.contiguous().numpy().tobytes())
        return found.digest()


@dataclass(frozen=True)
class Plan:
    """What is computed.

    Attributes:
        hops: K.
        teleport: α, what comes back of x in every hop.
        symmetric: whether P is the symmetric normalisation.
        hidden: width of the hidden layer; None: a linear model.
        learning_rate: a whole number, and how often it is halved.
        momentum: of the velocity.
        weight_decay: of L2.
        batch: rows of a step; None: all.
        weighted: whether rows have weights in the loss.
        seed: of the initial weights, which are public.
        output: what the label holder learns of every node.
    """

    hops: int
    teleport: float
    symmetric: bool
    hidden: int | None
    learning_rate: tuple[int, int]
    momentum: float
    weight_decay: float
    batch: int | None
    weighted: bool
    seed: int
    output: Literal["classes", "probabilities"]

    def propagates_rows(self, sizes: Sizes) -> bool:
        """Whether one-hot columns of the training rows are propagated, and not the features."""
        return sizes.training < sum(sizes.columns.values())


class SealedNetwork:
    """One party's part in training and inference.

    Args:
        machine: of the party.
        sizes: that all know.
        plan: that all follow.
        label_party: who has the labels.
        data: holder → what it puts in: a holder's own, nothing at the dealer, all in the twin.
    """

    def __init__(
        self,
        machine: Machine,
        sizes: Sizes,
        plan: Plan,
        label_party: PartyId,
        data: Mapping[PartyId, OwnData],
    ) -> None:
        self._machine, self._sizes, self._plan = machine, sizes, plan
        self._label_party, self._data = label_party, data
        self.weights: list[Wire] = [machine.constant(weight, self.weight_bits) for weight in self._initial()]
        self.velocities: list[Wire | None] = [None] * len(self.weights)
        self._features: list[Wire] = []
        self._graphs: list[HiddenGraph] = []
        self._roots: Wire | None = None
        self._rows: Wire | None = None
        self._targets: tuple[Wire, Wire | None] | None = None

    @property
    def weight_bits(self) -> int:
        """A learning rate n/2^k is a multiplication by n and k more fractional bits."""
        return WEIGHT_BITS + self._plan.learning_rate[1]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Of the weights."""
        columns, classes, hidden = sum(self._sizes.columns.values()), self._sizes.classes, self._plan.hidden
        return [(columns, classes)] if hidden is None else [(columns, hidden), (hidden, classes)]

    def _initial(self) -> list[Tensor]:
        """Glorot's, and zero for a linear model, whose loss is convex: int64."""
        if self._plan.hidden is None:
            return [torch.zeros(self.shapes[0], dtype=torch.int64)]
        generator = torch.Generator().manual_seed(self._plan.seed)
        return [
            torch.empty(shape, dtype=torch.float64)
            .uniform_(-1, 1, generator=generator)
            .mul_((6 / sum(shape)) ** 0.5 * 2.0**self.weight_bits)
            .round_()
            .to(torch.int64)
            for shape in self.shapes
        ]

    def enter(self) -> None:
        """Every holder puts its columns and its edges in; once a session."""
        machine, sizes = self._machine, self._sizes
        machine.at("enter")
        self._features = [
            machine.put(holder, self._of(holder, "features"), (sizes.nodes, columns), BITS)
            for holder, columns in sizes.columns.items()
        ]
        if self._plan.hops:
            self._graphs = [
                machine.hidden_graph(holder, self._of(holder, "edges"), sizes.nodes, edges)
                for holder, edges in sizes.edges.items()
            ]

    def begin(self) -> None:
        """What is computed once: by which rows are scaled and, in a session that trains, the hidden training rows."""
        self._normalise()
        self._machine.at("rows")
        self._rows = self._hidden_rows()

    def _normalise(self) -> None:
        """D^(−1/2), once."""
        if self._plan.hops and self._roots is None:
            self._machine.at("degrees")
            self._roots = inverse_root(self._machine, self._degrees(), self._sizes.max_degree)[:, None]

    def _degrees(self) -> Summands:
        """Of all holders together, the node itself counted once."""
        nodes, first = self._sizes.nodes, next(iter(self._sizes.columns))
        total = torch.zeros(nodes, dtype=torch.int64)
        for holder, data in self._data.items():
            total += torch.bincount(data.edges[1], minlength=nodes) + (holder == first)
        return self._machine.summands(total, (nodes,), 0)

    def _hidden_rows(self) -> Wire:
        """P^K·X at the training nodes, which nobody but the label holder knows: [T, F]."""
        machine, sizes, owner = self._machine, self._sizes, self._label_party
        rows = self._of(owner, "rows")
        if not self._plan.propagates_rows(sizes):
            everything = self._propagate(joined(self._features, 1))
            return machine.open(machine.pick(owner, rows, sizes.training, everything))
        columns = None if rows is None else _one_hot(rows, sizes.nodes).T.contiguous()
        start = machine.put(owner, columns, (sizes.nodes, sizes.training), BITS)
        propagated = self._propagate(start, transposed=True).T
        return joined([machine.open(machine.product(matmul, propagated, part), BITS) for part in self._features], 1)

    def _enter_targets(self) -> tuple[Wire, Wire | None]:
        """Classes of the training rows, one-hot, and their weights in the loss; once a session that trains."""
        machine, sizes, owner = self._machine, self._sizes, self._label_party
        labels, weights = self._of(owner, "labels"), self._of(owner, "weights")
        one_hot = None if labels is None else _one_hot(labels, sizes.classes)
        targets = machine.put(owner, one_hot, (sizes.training, sizes.classes), BITS)
        if not self._plan.weighted:
            return targets, None
        column = None if weights is None else weights[:, None]
        return targets, machine.put(owner, column, (sizes.training, 1), BITS)

    def shares(self) -> dict[str, Tensor]:
        """This party's summand of every weight, and of what training goes on from, by name: int64."""
        return {name: self._machine.share(wire) for name, wire in self._wires().items() if wire is not None}

    def _wires(self) -> dict[str, Wire | None]:
        named: dict[str, Wire | None] = {f"weight.{place}": weight for place, weight in enumerate(self.weights)}
        named |= {f"velocity.{place}": velocity for place, velocity in enumerate(self.velocities)}
        return named | {"roots": self._roots, "rows": self._rows}

    def check(self, saved: Mapping[str, Tensor]) -> None:
        """Refuses shares that are of another network.

        Raises:
            RunError: names what differs.
        """
        for place, shape in enumerate(self.shapes):
            found = saved.get(f"weight.{place}")
            if found is None or tuple(found.shape) != shape:
                raise RunError(
                    f"weight.{place}: the saved shares are of another network; give the files of this party's own run, "
                    "or begin anew"
                )

    def restore(self, saved: Mapping[str, Tensor], *, training: bool) -> None:
        """Shares of all parties become wires again, under fresh masks; at all of them together.

        Args:
            saved: this party's, none at the dealer.
            training: whether training goes on; else weights alone are needed.
        """
        sizes, columns = self._sizes, sum(self._sizes.columns.values())
        for place, shape in enumerate(self.shapes):
            self.weights[place] = self._restored(saved, f"weight.{place}", shape, self.weight_bits)
            if training:
                self.velocities[place] = self._restored(saved, f"velocity.{place}", shape, WEIGHT_BITS)
        if training:
            self._rows = self._restored(saved, "rows", (sizes.training, columns), BITS)
            if self._plan.hops:
                self._roots = self._restored(saved, "roots", (sizes.nodes, 1), FINE_BITS)

    def _restored(self, saved: Mapping[str, Tensor], name: str, shape: tuple[int, int], bits: int) -> Wire:
        return self._machine.open(self._machine.summands(saved.get(name), shape, 0), bits=bits)

    def step(self, number: int) -> None:
        """One step of SGD with momentum.

        Args:
            number: counts all steps of the job from 0.
        """
        machine, plan = self._machine, self._plan
        assert self._rows is not None
        if self._targets is None:
            self._targets = self._enter_targets()
        machine.at(f"step {number}")
        features, (targets, row_weights) = self._rows, self._targets
        total = rows = self._sizes.training
        if plan.batch is not None and plan.batch < total:
            rows = plan.batch
            start = number * rows % total
            wanted = slice(min(start, total - rows), min(start, total - rows) + rows)
            features, targets = features[wanted], targets[wanted]
            row_weights = None if row_weights is None else row_weights[wanted]
        activations, gate = self._hidden(features)
        error = softmax(machine, self._linear(activations, self.weights[-1])) - targets
        if row_weights is not None:
            error = times(machine, error, row_weights)
        gradients = [machine.product(transposed_matmul, activations, error)]
        if gate is not None:
            back = machine.product(matmul, error, self.weights[-1].T)
            back = machine.open(machine.gate(gate, machine.open(back, back.bits - BITS)))
            gradients.insert(0, machine.product(transposed_matmul, features, back))
        for place, gradient in enumerate(gradients):
            self._update(place, gradient.scaled(1 / rows, _RATE_BITS))

    def _update(self, place: int, gradient: Summands) -> None:
        """V ← μ·v + gradient + decay·W, opened; W ← W − rate·v, which is linear."""
        machine, plan = self._machine, self._plan
        velocity, weight, bits = self.velocities[place], self.weights[place], gradient.bits
        if velocity is not None:
            gradient = gradient + machine.split(velocity).scaled(plan.momentum, bits - velocity.bits)
        if plan.weight_decay:
            decayed = machine.split(weight).scaled(plan.weight_decay, bits - weight.bits)
            gradient = gradient + decayed
        velocity = machine.open(gradient, bits - WEIGHT_BITS)
        self.velocities[place] = velocity
        whole, halvings = plan.learning_rate
        self.weights[place] = weight - velocity.halved(halvings).times(whole)

    def _hidden(self, features: Wire) -> tuple[Wire, Bit | None]:
        if self._plan.hidden is None:
            return features, None
        return relu(self._machine, self._linear(features, self.weights[0]))

    def _linear(self, left: Wire, weight: Wire) -> Wire:
        product = self._machine.product(matmul, left, weight)
        return self._machine.open(product, product.bits - BITS)

    def predict(self) -> Tensor | None:
        """What the label holder learns of every node: classes [N, 1] or probabilities [N, C]; None at all others."""
        machine = self._machine
        self._normalise()
        machine.at("predict")
        start, total = 0, None
        for part in self._features:
            product = machine.product(matmul, part, self.weights[0][start : start + part.shape[1]])
            start, total = start + part.shape[1], product if total is None else total + product
        assert total is not None
        values = self._propagate(machine.open(total, total.bits - BITS))
        if self._plan.hidden is not None:
            values = self._linear(relu(machine, values)[0], self.weights[1])
        found = largest_place(machine, values) if self._plan.output == "classes" else softmax(machine, values)
        return machine.reveal(found, self._label_party)

    def _propagate(self, wire: Wire, *, transposed: bool = False) -> Wire:
        """X after K times v ← (1 − α)·P·v + α·x, or with Pᵀ: [N, d] with ``BITS``."""
        machine, hops = self._machine, self._plan.hops
        if not hops:
            return wire
        first, between, last = self._scales(transposed=transposed)
        start = machine.product(torch.mul, wire, first)
        scaled, kept = start, self._teleported(start) if hops > 1 else None
        for hop in range(hops):
            summed = machine.open(machine.hop(self._graphs, machine.open(scaled, scaled.bits - BITS, 32)))
            ends = hop == hops - 1
            scaled = machine.product(torch.mul, summed, last if ends else between)
            if self._plan.teleport:
                scaled = scaled.scaled(1 - self._plan.teleport, _TELEPORT_BITS)
                back = self._teleported(machine.split(wire.times(1 << FINE_BITS).halved(FINE_BITS))) if ends else kept
                scaled = scaled + back
        return machine.open(scaled, scaled.bits - BITS)

    def _scales(self, *, transposed: bool) -> tuple[Wire, Wire, Wire]:
        """What rows are multiplied by before the first hop, between hops, and after the last."""
        machine = self._machine
        assert self._roots is not None
        inverse = times(machine, self._roots, self._roots, FINE_BITS)
        if self._plan.symmetric:
            return self._roots, inverse, self._roots
        one = machine.constant(torch.full((1, 1), 1 << FINE_BITS), FINE_BITS)
        return (inverse, inverse, one) if transposed else (one, inverse, inverse)

    def _teleported(self, start: Summands) -> Summands:
        return start.scaled(self._plan.teleport, _TELEPORT_BITS)

    def _of(self, holder: PartyId, what: str) -> Tensor | None:
        data = self._data.get(holder)
        found: Tensor | None = None if data is None else getattr(data, what)
        return found


def _one_hot(places: Tensor, size: int) -> Tensor:
    return torch.nn.functional.one_hot(places, size).to(torch.float64)
