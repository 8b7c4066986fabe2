"""What a holder adds in a round, in the open or by private training, and what the server makes of the sum.

The same for the roles and for the twin.

**Private training** sums clipped gradients of single training nodes, its terms. A term is the loss of one training
node, by the network over the *ball* of its node: the nodes from which it can be reached along at most K edges, and the
edges between these. It is computed from the ball as if there were nothing beside it, so a node that is not in the ball
changes no bit of it. A node without which a path of at most K edges is gone is in the ball; so the ball changes with
the data of its own nodes alone (Daigavane et al. 2021, section 4).

With ``gin`` and ``sage-mean`` the term is, but for the last bits, the loss that the network over all of the graph has
at the node: what a node has after k hops depends on its in-neighbours after k − 1, and on weights of edges into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from torch import Tensor
from torch.autograd import backward
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.layers import Activation
from veilgraph.nn.local.build import CustomModel
from veilgraph.nn.propagate import Adjacency, FixedInput, by_target
from veilgraph.privacy.aggregation import too_many_neighbours
from veilgraph.privacy.publisher import Publisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.agreement import same_count
from veilgraph.protocol.role import build_optimizer, precision
from veilgraph_averaging.network import Averaged, Own
from veilgraph_averaging.private.sampled import Places, SampledPublisher
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.tasks import Public, Task

EXTRA: Final = 2  # numbers in a summand beside those of the weights: the loss and the number of training examples
UPDATE_BITS: Final = 32  # fractional bits of a summand: the sum stays below 2^29

Dropout = Callable[[int], torch.Generator]  # local epoch of the round → its stream


def public(
    job: AveragingJob, features: Mapping[PartyId, int], stated: Mapping[PartyId, int], custom: CustomModel | None = None
) -> Public:
    """Return what all parties know before round 1, from each holder's number of columns and ``Subject.stated``.

    Raises ``DataError``: holders' columns differ, or what they state does not fit the task.
    """
    task, columns = job.averaging.task, same_count("columns", features)
    agreed, private = task.kind.subject.agreed(stated), job.label_privacy
    transition = None if private is None else LabelResponse(private.epsilon, agreed).transition()
    return Public(task, job.model, job.train, columns, agreed, precision(job), custom, transition)


def summand(job: AveragingJob, task: Task[Any, Any], network: Averaged, own: Own, dropout: Dropout) -> Tensor:
    """Train locally for one round; return n·Δ, n·loss, n, for n training examples: Tensor[W + 2], zeros if n is 0.

    Δ is the change of the averaged weights by ``local_epochs`` of a new Adam, or the gradient if the rule sends that.
    Weights kept at home change too, and stay. The loss is before training; afterwards the network has other weights.
    """
    examples, start, rule = task.examples(own), network.vector(), job.averaging.rule
    if not examples:
        return torch.zeros(len(start) + EXTRA, dtype=start.dtype)
    weights = network.shared()
    before = [weight.detach().clone() for weight in weights]
    optimizer = build_optimizer([*weights, *network.at_home()], {}, job)
    first = math.nan
    for epoch in range(job.averaging.local_epochs):
        optimizer.zero_grad()
        loss = task.loss(network, own, dropout(epoch))
        first = float(loss.detach()) if epoch == 0 else first
        backward(rule.local_loss(loss, weights, before))
        if not rule.sends_gradients:
            optimizer.step()
    if rule.sends_gradients:
        gradient = _flatten([weight.grad for weight in weights], weights)
        change = gradient + job.train.weight_decay * start
    else:
        change = network.vector() - start
    return torch.cat([examples * change, change.new_tensor([examples * first, examples])])


def _flatten(gradients: Sequence[Tensor | None], weights: Sequence[torch.nn.Parameter]) -> Tensor:
    """Gradients one after another, Tensor[W]; zeros where there is none."""
    pairs = zip(gradients, weights, strict=True)
    return torch.cat([(torch.zeros_like(weight) if part is None else part).reshape(-1) for part, weight in pairs])


def apply_rule(
    job: AveragingJob, memory: Mapping[str, Tensor], weights: Tensor, total: Tensor
) -> tuple[Tensor, float | None]:
    """Apply the rule to a round's sum: the next weights, Tensor[W], and the mean loss.

    ``total`` is the sum of summands, Tensor[W + 2]; ``memory``, the rule's, is updated. Where nobody trained, weights
    stay and the loss is None; in private training it is always None.
    """
    total = total.double()
    nodes = round(float(total[-1]))  # what is moved by secret rounding is whole again
    if not nodes:
        return weights, None
    loss = float(total[-EXTRA]) / nodes if job.averaging.privacy is None else None
    following = job.averaging.rule.step(weights.double(), total[:-EXTRA] / nodes, memory, job.train.learning_rate)
    return following.to(weights.dtype), loss


def update_bits(job: AveragingJob) -> int:
    """Return the fractional bits of summands; 0 with joint noise, whose summands are whole cells of its grid."""
    plan = job.training_plan
    return UPDATE_BITS if plan is None or plan.joint is None else 0


def to_gradients(job: AveragingJob, total: Tensor, weights: Tensor) -> Tensor:
    """Scale an opened sum, Tensor[W + 2] float64, from cells to gradients and add weight decay, if noise is joint."""
    plan = job.training_plan
    if plan is None or plan.joint is None:
        return total
    decay = job.train.weight_decay * total[-1] * weights.double()
    return torch.cat([total[:-EXTRA] * (plan.cell / plan.settings.divisor) + decay, total[-EXTRA:]])


def pack_result(weights: Tensor, loss: float | None) -> Tensor:
    """Pack what the server sends after a round: Tensor[W + 2], the weights, the mean loss, and 1 if there is one."""
    return torch.cat([weights, weights.new_tensor([0.0, 0.0] if loss is None else [loss, 1.0])])


def unpack_result(told: Tensor) -> tuple[Tensor, float | None]:
    """Unpack what ``pack_result`` packed: the weights, Tensor[W], and the mean loss or None."""
    return told[:-EXTRA], float(told[-EXTRA]) if told[-1] else None


# Private training


class PrivateTraining:
    """A holder's part of a private training; ``refuses``: why it does not take part, or empty."""

    def __init__(self, job: AveragingJob, graph: PartyGraph) -> None:
        plan = job.training_plan
        assert plan is not None
        self._plan, self._decay = plan, job.train.weight_decay
        self._terms: Terms | RowTerms | None = None
        self._train_mask = graph.train_mask
        self.refuses = broken_rule(job, graph)
        if graph.labels is not None and not self.refuses:
            model, dtype = job.model, precision(job)
            # Normalising would make the last rows of length 1.
            by_row = plan.hops == 0 and not (model.dim and model.local.normalize)
            kind = RowTerms if model.dim else LinearTerms
            self._terms = kind(graph, model.activation, dtype) if by_row else Terms(graph, plan.hops, dtype)
        if graph.labels is None and plan.joint is not None:
            self.refuses = (
                "it has no labels, so it has nothing to add to the noise that averaging.privacy.joint_noise has all "
                "holders make: leave joint_noise out, or leave it out of the job"
            )

    def summand(self, network: Averaged, publisher: Publisher, step: int) -> Tensor:
        """Release a noisy gradient; return it with 0 as loss and 1 as weight: Tensor[W + 2]; zeros without labels.

        With joint noise it is the noisy sum in whole cells of the grid, float64, for ``to_gradients``. Raises
        ``BudgetSpent``: nothing was released; ``ConfigError``: the publisher is another job's.
        """
        weights, terms = network.vector(), self._terms
        if terms is None:
            return torch.zeros(len(weights) + EXTRA, dtype=weights.dtype)
        if not isinstance(publisher, SampledPublisher):
            raise ConfigError("averaging.privacy: a private training leaves by a publisher with a ledger alone")
        watched = self._term_numbers(publisher.watched)
        total = publisher.sampled_sum(len(terms), terms.at(network), len(weights), step, watched)
        if self._plan.joint is not None:
            return torch.cat([total / self._plan.cell, total.new_tensor([0.0, 1.0])])
        gradient = (total / self._plan.settings.divisor).to(weights.dtype) + self._decay * weights
        return torch.cat([gradient, gradient.new_tensor([0.0, 1.0])])

    def _term_numbers(self, nodes: Tensor | None) -> frozenset[int]:
        """Return the indices of ``nodes``, Tensor[w] int64, among the training nodes; others are left out."""
        if nodes is None or self._train_mask is None:
            return frozenset()
        among = torch.isin(torch.nonzero(self._train_mask).flatten(), nodes)
        return frozenset(torch.nonzero(among).flatten().tolist())


def broken_rule(job: AveragingJob, graph: PartyGraph) -> str:
    """Return why a holder does not train: its graph breaks the rule that the count of terms rests on; else empty."""
    return "" if graph.labels is None else too_many_neighbours(job.inputs.degree_rules.get(graph.party), graph)


def check_rule(job: AveragingJob, graph: PartyGraph) -> None:
    """Raise ``DataError`` if ``broken_rule``: a node of a labelled graph has more neighbours than allowed."""
    if reason := broken_rule(job, graph):
        raise DataError(f"party {graph.party!r}: {reason}", code="degree-bound", key="averaging.privacy.degree_bound")


@dataclass(frozen=True, eq=False)
class _Ball:
    """The subgraph that a node's gradient is computed from; ``place`` is the node's row in it."""

    features: FixedInput
    adjacency: Adjacency
    place: int
    label: Tensor


class Terms:
    """Gradients of single training nodes' losses, each computed by autograd from the node's ball of ``hops``."""

    def __init__(self, graph: PartyGraph, hops: int, dtype: torch.dtype) -> None:
        assert graph.labels is not None
        assert graph.train_mask is not None
        self._graph, self._hops, self._dtype, self._labels = graph, hops, dtype, graph.labels
        self._nodes: list[int] = torch.nonzero(graph.train_mask).flatten().tolist()
        edges = torch.arange(graph.num_edges, dtype=torch.int64)  # in place of weights: which edge it is
        self._incoming = by_target(graph.edge_index, edges, graph.num_nodes)
        self._rows = to_scipy(graph.features) if is_sparse(graph.features) else None
        self._balls = dict[int, _Ball]()

    def __len__(self) -> int:
        return len(self._nodes)

    def numbers(self, nodes: Tensor) -> list[int]:
        """Return each training node's term number, its index among the training nodes, for Tensor[n] int64."""
        numbers = {node: number for number, node in enumerate(self._nodes)}
        return [numbers[node] for node in nodes.tolist()]

    def ball(self, node: int) -> list[int]:
        """Return the nodes from which ``node`` can be reached along at most K edges, itself included, ascending."""
        found, last = {node}, [node]
        for _ in range(self._hops):
            near = (int(source) for target in last for source in self._into(self._incoming.indices, target))
            last = [source for source in near if source not in found]
            found.update(last)
        return sorted(found)

    def gradient(self, network: Averaged, number: int) -> Tensor:
        """Compute the gradient of term ``number``'s loss in all averaged weights: Tensor[W] of the weights' dtype."""
        if number not in self._balls:
            self._balls[number] = self._extract_ball(self._nodes[number])
        ball = self._balls[number]
        logits = network(ball.features, ball.adjacency, None)[ball.place : ball.place + 1]
        loss, weights = functional.cross_entropy(logits, ball.label), network.shared()
        return _flatten(torch.autograd.grad(loss, weights, allow_unused=True), weights)

    def at(self, network: Averaged) -> Callable[[int], Tensor]:
        """Return a function: term number → its gradient, Tensor[W], at the network's current weights."""
        return lambda number: self.gradient(network, number)

    def _extract_ball(self, node: int) -> _Ball:
        graph, nodes = self._graph, self.ball(node)
        place = {each: at for at, each in enumerate(nodes)}
        edges = np.sort(np.concatenate([self._into(self._incoming.data, each) for each in nodes]))
        kept = [edge for edge in edges.tolist() if int(graph.edge_index[0, edge]) in place]
        index = graph.edge_index[:, kept].apply_(place.__getitem__)
        weight = None if graph.edge_weight is None else graph.edge_weight[kept]
        rows = graph.features[nodes] if self._rows is None else torch.from_numpy(self._rows[nodes].toarray())
        return _Ball(
            FixedInput(rows, self._dtype),
            Adjacency.of_edges(index, weight, len(nodes), self._dtype),
            place[node],
            self._labels[node : node + 1],
        )

    def _into(self, of_edges: NDArray[Any], target: int) -> NDArray[Any]:
        """Return the entries of ``of_edges`` (sources or edge numbers, sorted by target) for edges into ``target``."""
        start, end = self._incoming.indptr[target : target + 2]
        return of_edges[start:end]


_Row = NDArray[Any]
_ACTIVATIONS: Final[Mapping[Activation, Callable[[_Row], _Row]]] = {
    "none": lambda z: z,
    "tanh": np.tanh,
    "relu": lambda z: np.maximum(z, 0),
    "sigmoid": expit,
}
"""f."""
_SLOPES: Final[Mapping[Activation, Callable[[_Row], _Row]]] = {
    "none": np.ones_like,
    "tanh": lambda h: 1 - h * h,
    "relu": lambda h: (h > 0).astype(h.dtype),
    "sigmoid": lambda h: h * (1 - h),
}
"""f′(z), of f(z)."""


class RowTerms:
    """Terms where no edge is used: gradients of a node's own row alone, in closed form.

    With z = U·x + b, h = f(z), logits V·h + c and p their softmax, e the label as a row of zeros and a one:

        ∂/∂c = p − e = d,    ∂/∂V = d·hᵀ,    ∂/∂b = (Vᵀd) ∘ f′(z) = g,    ∂/∂U = g·xᵀ

    Where x is zero, so is a column of the last. Each is computed from one row, of the same shape every time, so a node
    that is not this one changes no bit of it. ``Terms`` computes the same by autograd; NumPy takes a tenth of the time
    of a single row.
    """

    def __init__(self, graph: PartyGraph, activation: Activation, dtype: torch.dtype) -> None:
        assert graph.labels is not None
        assert graph.train_mask is not None
        self._activation, self._slope = _ACTIVATIONS[activation], _SLOPES[activation]
        nodes = torch.nonzero(graph.train_mask).flatten()
        self._labels: list[int] = graph.labels[nodes].tolist()
        self._rows, self._places = list[tuple[_Row, _Row]](), dict[int, torch.Tensor]()
        sparse = to_scipy(graph.features).copy() if is_sparse(graph.features) else None
        if sparse is not None:
            sparse.sum_duplicates()  # a place twice in a term would be clipped as two
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        for node in nodes.tolist():
            if sparse is None:
                row = graph.features[node].numpy()
                columns = np.flatnonzero(row)
                values = row[columns]
            else:
                start, end = sparse.indptr[node : node + 2]
                columns, values = sparse.indices[start:end].astype(np.int64), sparse.data[start:end]
            self._rows.append((columns, values.astype(kind)))

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, network: Averaged) -> Callable[[int], Places]:
        """Return a function: term number → the sparse gradient of its loss, at the network's current weights."""
        # a map of the features, f, a map to logits, each with a bias
        first, bias, last, lift = (weight.detach().numpy() for weight in network.shared())

        def gradient(number: int) -> Places:
            columns, values = self._rows[number]
            hidden = self._activation(first[:, columns] @ values + bias)
            logits = last @ hidden + lift
            off = softmax(logits)
            off[self._labels[number]] -= 1
            back = (off @ last) * self._slope(hidden)
            if number not in self._places:
                mine = np.arange(len(bias))[:, None] * first.shape[1] + columns
                rest = first.size + np.arange(len(bias) + last.size + len(lift))
                self._places[number] = torch.from_numpy(np.concatenate([mine.ravel(), rest]))
            parts = (np.outer(back, values).ravel(), back, np.outer(off, hidden).ravel(), off)
            return Places(self._places[number], torch.from_numpy(np.concatenate(parts)))

        return gradient


class LinearTerms(RowTerms):
    """Terms of a ``LinearNetwork``: with p the softmax of W·x, the gradient of W is (p − e)·xᵀ."""

    @override
    def at(self, network: Averaged) -> Callable[[int], Places]:
        (weights,) = (weight.detach().numpy() for weight in network.shared())

        def gradient(number: int) -> Places:
            columns, values = self._rows[number]
            off = softmax(weights[:, columns] @ values)
            off[self._labels[number]] -= 1
            if number not in self._places:
                mine = np.arange(len(off))[:, None] * weights.shape[1] + columns
                self._places[number] = torch.from_numpy(mine.ravel())
            return Places(self._places[number], torch.from_numpy(np.outer(off, values).ravel()))

        return gradient
