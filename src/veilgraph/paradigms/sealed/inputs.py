"""What a sealed job has all parties compute, and what a holder puts in: made of its graph, within the job's bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.federation import check_classes
from veilgraph.graph.partition import orient_pairs
from veilgraph.graph.party import PartyGraph, pairs_once
from veilgraph.paradigms.sealed.boosting import Examples
from veilgraph.paradigms.sealed.plan import (
    BOOSTING,
    MOST_JUDGED,
    MOST_RANKED,
    MOST_TOLD,
    MOST_WHITENED,
    NEIGHBOURS,
    OWN,
    QUANTILES,
    THRESHOLDS,
    UNIT,
    OwnData,
    Plan,
    Sizes,
    Trial,
    epsilon_of,
    flips_of,
    hops_of,
    record_noise_of,
)
from veilgraph.paradigms.sealed.settings import LARGEST_DEGREE, LARGEST_WEIGHTED, SealedJob
from veilgraph.protocol.judge import balanced_weights

_OF_WORDS: Final = (
    Trial(("pooled.6",), deep=False, learning_rate=8.0, weight_decay=2.5e-4),
    Trial(("each.2",), deep=False, learning_rate=8.0, weight_decay=2.5e-4),
    Trial((OWN, "pooled.1", "pooled.2", "pooled.3"), deep=True, learning_rate=1.0, weight_decay=1e-2, drops=True),
)
_OF_TABLES: Final = (
    Trial((OWN, "pooled.6"), deep=False, learning_rate=1.0, weight_decay=5e-3),
    Trial((OWN, BOOSTING), deep=True, learning_rate=0.25, weight_decay=5e-3),
    Trial((OWN, QUANTILES, NEIGHBOURS, BOOSTING, "pooled.6"), deep=True, learning_rate=0.125, weight_decay=5e-3),
    Trial((OWN, "pooled.1", "pooled.2"), deep=False, learning_rate=0.5, weight_decay=5e-3),
)
WIDE: Final = 100  # columns of all holders, from which on most of them are words, or as rare as these
_OF_UNIONS: Final = (
    Trial((OWN,), deep=False, learning_rate=1.0, weight_decay=5e-3),
    Trial((OWN, BOOSTING), deep=True, learning_rate=0.25, weight_decay=5e-3),
    Trial((OWN, NEIGHBOURS, BOOSTING, "each.1", "each.2"), deep=True, learning_rate=0.125, weight_decay=5e-3),
    Trial((OWN, "pooled.1", "pooled.2"), deep=False, learning_rate=0.5, weight_decay=5e-3),
)
_OF_WIDE: Final = (
    Trial(("unit.6",), deep=False, learning_rate=0.0625, weight_decay=0.06),
    Trial(("unit.each.2",), deep=False, learning_rate=0.0625, weight_decay=0.06),
)
_MOST_DEVIATIONS: Final = 32.0  # columns are clipped there: farther out nothing is learned
_LEAST_RATE: Final = 2.0**-6  # exact to a fifth, see ``exact_rates``
_LEAST_STEPS: Final = 20  # of a trial: what is trained for fewer says nothing


def trials_of(job: SealedJob, columns: int | None = None) -> tuple[Trial, ...]:
    """The trials (blocks, network and rates) of a job: what it states, else what has suited data of its kind.

    ``columns`` is F, all holders' number of columns; None counts as wide. Too few steps cut the list short.
    """
    model, train, standard = job.model, job.train, job.data.feature_scaling == "standard"
    found: tuple[Trial, ...] = (_OF_TABLES if job.is_aligned else _OF_UNIONS) if standard else _OF_WORDS
    if standard and (columns is None or columns >= WIDE):
        found = (*(_slowed(trial, columns or WIDE) for trial in found), *_OF_WIDE)
    shallow = next(trial for trial in found if not trial.deep and any(map(hops_of, trial.blocks)))
    deep = next(trial for trial in found if trial.deep)
    if train.select_by == "last":  # there is one trial
        found = (shallow, *found)
    if job.records is not None:
        return (Trial((OWN,), deep=False, learning_rate=1.0, weight_decay=0.0),)
    if job.privacy is not None:
        found = (replace(shallow, blocks=model.blocks or ("pooled.6",)),)
    elif model.blocks is not None:
        found = tuple(replace(trial, blocks=model.blocks) for trial in (deep, shallow))
    if model.network is not None:
        kept = tuple(trial for trial in found if trial.deep == (model.network == "mlp"))
        found = kept or tuple(replace(trial, deep=model.network == "mlp") for trial in found)
    if train.learning_rate is not None:
        found = tuple(replace(trial, learning_rate=train.learning_rate) for trial in found)
    least = max(_LEAST_STEPS, train.evaluate_every)  # so that every trial is judged
    most = 1 if train.select_by == "last" else max(1, train.epochs // least)
    return tuple(dict.fromkeys(found))[:most]


def _slowed(trial: Trial, columns: int) -> Trial:
    """Divide a trial's rate as the curvature of standardised columns grows: with their number, behind a layer its root.

    Too high a rate leaves the ring's range and with it the whole trial. Boosting's columns do not grow in number.
    """
    if trial.deep and not any(map(hops_of, trial.blocks)):
        return trial
    halvings = math.log2(columns / WIDE) / (2 if trial.deep else 1)
    return replace(trial, learning_rate=max(trial.learning_rate / 2 ** round(halvings), _LEAST_RATE))


def plan_of(job: SealedJob, sizes: Sizes | None = None) -> Plan:
    """Build the public plan of a job's computation; its trials may depend on the number of columns in ``sizes``.

    Raises ``ConfigError``: the weights of a trial would decay by more than they are in a step.
    """
    model, train = job.model, job.train
    trials = trials_of(job, None if sizes is None else sizes.width)
    for rate, own in ((trial.learning_rate, trial.weight_decay) for trial in trials):
        decay = own if train.weight_decay is None else train.weight_decay
        if rate * decay >= 1:  # up to 2·(1 + momentum) they shrink, and then grow until no number holds them
            raise ConfigError(
                f"train.learning_rate={rate:g} times train.weight_decay={decay:g} is {rate * decay:g} and must stay "
                "below 1: each step shrinks weights by that share; lower one of them",
                code="decays",
                key="train.learning_rate",
                value=rate,
            )
    return Plan(
        trials=trials,
        standard=job.data.feature_scaling == "standard",
        directed=model.directed,
        weighted_edges=model.edge_weights,
        hidden=model.hidden,
        steps=train.epochs,
        kept_every=train.evaluate_every,
        saved_every=train.checkpoint_every,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
        batch=train.batch_size,
        weighted=train.class_weights == "balanced",
        ranks=train.select_by == "auc",
        seed=job.seed,
        output=job.output,
        release=job.release == "holders",
        votes=epsilon_of(job),
        records=record_noise_of(job, None if sizes is None else sizes.nodes),
        flips=flips_of(job, None if sizes is None else sizes.nodes),
    )


def slots_of(job: SealedJob, edges: int) -> int:
    """The number of edges that a holder states: as the job says, else ``padded``; 1 if no hop or vote uses edges."""
    if not plan_of(job).crosses:
        return 1
    return padded(edges) if job.model.edge_slots is None else job.model.edge_slots


def stated_neighbours(job: SealedJob, party: PartyId, most: float) -> int:
    """Round a holder's most edges at a node up to 2^k − 1, as it states them; 0 where the job sets the bound."""
    rule = job.inputs.degree_rules.get(party)
    if rule is None or rule[1] is not None:
        return 0
    return (1 << max(1, math.ceil(most).bit_length())) - 1


def max_degree_of(job: SealedJob, told: Iterable[int]) -> int:
    """The bound of a node's degree over all holders: the job's, else by what holders state, ``told``.

    That is 1 + their sum, or their largest where nodes are holders' own. Raises ``DataError``: it is above the limit.
    """
    found = job.model.max_degree or max(4, 1 + (sum if job.is_aligned else max)(told))
    most = LARGEST_WEIGHTED if job.model.edge_weights else LARGEST_DEGREE
    if found > most:
        what = "weighted edges" if job.model.edge_weights else "edges"
        raise DataError(
            f"model.max_degree={job.model.max_degree or 'null'}: the {what} of a node may count {found:,} in all, "
            f"and a sealed job computes over {most:,} at most: leave out edges of nodes that have more",
            key="model.max_degree",
            value=job.model.max_degree,
        )
    return found


def padded(edges: int) -> int:
    """Round a number up by at most a quarter, to three leading bits; at least 1."""
    step = 1 << max(0, edges.bit_length() - 3)
    return max(1, -(-edges // step) * step)


def fit_bounds_to(job: SealedJob, graphs: Sequence[PartyGraph]) -> SealedJob:
    """Set ``model.edge_weights`` and ``model.directed`` where a graph's common part has weights or one-way edges."""
    if job.records is not None:  # which puts in no edge
        return job
    parts = [graph.common_part() for graph in graphs]
    says = {
        "edge_weights": job.model.edge_weights or any(part.edge_weight is not None for part in parts),
        "directed": job.model.directed or not all(_is_symmetric(part.edge_index, _weights_of(part)) for part in parts),
    }
    return job.model_copy(update={"model": job.model.model_copy(update=says)})


def own_data(job: SealedJob, graph: PartyGraph, *, refuses: bool = False) -> OwnData:
    """Make a holder's columns and edges for the program; ``DataError`` where they do not fit the job's public bounds.

    A holder that ``refuses`` the job anyway checks no edges, or how the job ends would show whether they fit.
    """
    plan, common = plan_of(job), graph.common_part()
    if plan.records is not None:
        return OwnData(
            {OWN: short_rows(common.features.to_dense().to(torch.float64))}, torch.empty((2, 0), dtype=torch.int64)
        )
    if common.edge_weight is not None and not plan.weighted_edges:
        way_out = "leave weights out" if job.privacy else "set model.edge_weights: true, or leave weights out"
        raise DataError(
            f"party {graph.party!r}: its edges have weights, and model.edge_weights=false says that all count alike; "
            f"{way_out}",
            key="model.edge_weights",
            value=False,
        )
    weights, edges = _weights_of(common), hidden_edges(job, common)
    if refuses:
        pass
    elif _is_noised(job, graph.party):
        _check_slots(job, graph.party, edges)
    else:
        _check_edges(job, common, weights)
    return OwnData(columns_of(plan, graph), edges, weights)


def examples_of(job: SealedJob, graph: PartyGraph) -> Examples | None:
    """Rows and labels of training nodes to which the label holder fits its trees; None without block ``boosting``."""
    if BOOSTING not in plan_of(job).blocks:
        return None
    common = graph.common_part()
    assert common.labels is not None
    assert common.train_mask is not None
    rows = common.train_mask.nonzero()[:, 0]
    return Examples(_tree_columns(job, graph)[rows], common.labels[rows])


def with_scores(own: OwnData, graph: PartyGraph, job: SealedJob, examples: Examples | None, classes: int) -> OwnData:
    """Add the block ``boosting`` to ``own``: scores of every common node by trees fitted to ``examples``.

    ``examples`` are those of the training; None leaves ``own`` as it is. Raises ``RunError``: they are of other columns
    than ``graph`` has, or of more classes.
    """
    if examples is None:
        return own
    seen = _tree_columns(job, graph)[: graph.common]
    if seen.shape[1] != examples.rows.shape[1] or bool((examples.labels >= classes).any()):
        raise RunError(
            f"party {graph.party!r}: trees of the block {BOOSTING} were fitted to other columns or classes than there "
            f"are now, {graph.num_features} and {classes}; give those that the run was trained on, or train anew",
            code="other-network",
            key=BOOSTING,
            party=graph.party,
        )
    return replace(own, columns={**own.columns, BOOSTING: examples.scores(seen, classes)})


def _tree_columns(job: SealedJob, graph: PartyGraph) -> Tensor:
    """What trees are fitted to: columns, ``neighbours`` of these over own edges: float64 [N, 3·F + 1]."""
    columns = _own_columns(plan_of(job), graph)
    return torch.cat([columns, neighbours(columns, graph.edge_index, _weights_of(graph))], 1)


def _check_slots(job: SealedJob, party: PartyId, edges: Tensor) -> None:
    """Refuse, with ``DataError``, more edges, padded, than ``model.edge_slots``; for edges that ε protects.

    Nothing else about them is checked: if degrees or directions ended a job, jobs could find them to the last edge.
    """
    if job.model.edge_slots is not None and padded(edges.shape[1]) > job.model.edge_slots:
        raise DataError(
            f"party {party!r}: {padded(edges.shape[1]):,} edges, rounded up, and model.edge_slots="
            f"{job.model.edge_slots:,}: raise it",
            key="model.edge_slots",
            value=job.model.edge_slots,
        )


def _check_edges(job: SealedJob, common: PartyGraph, weights: Tensor | None) -> None:
    """Refuse, with ``DataError``, edges beyond the job's slots or degree bound, and one-way ones if undirected."""
    model, plan, party = job.model, plan_of(job), common.party
    slots, edges = slots_of(job, common.num_edges), common.edge_index
    if plan.crosses and common.num_edges > slots:
        raise DataError(
            f"party {party!r}: {common.num_edges:,} edges, and model.edge_slots={slots:,}: raise it",
            key="model.edge_slots",
            value=slots,
        )
    rule, degree = job.inputs.degree_rules.get(party), common.most_edges_at_a_node()
    if rule is not None and rule[1] is not None and degree > rule[1]:
        raise DataError(
            f"party {party!r}: the edges of a node count {degree:,.10g}, and model.max_degree={model.max_degree} "
            f"leaves each of {len(job.data.names)} holders {rule[1]:,}: raise it, or leave out edges of such nodes",
            key="model.max_degree",
            value=model.max_degree,
        )
    if not plan.directed and not _is_symmetric(edges, weights):
        raise DataError(
            f"party {party!r}: some of its edges go one way only, or with another weight back, and "
            "model.directed=false says that all go both ways; set model.directed: true, or give every edge in both "
            "directions",
            key="model.directed",
            value=False,
        )


def hidden_edges(job: SealedJob, graph: PartyGraph) -> Tensor:
    """Edges between common nodes that a holder puts in: with noise on its votes, by ``orient_pairs``: int64 [2, E]."""
    return orient_pairs(graph.edge_index, job.seed) if _is_noised(job, graph.party) else graph.edge_index


def _is_noised(job: SealedJob, party: PartyId) -> bool:
    return job.privacy is not None and party in job.duties.publishing


def edges_once(edges: Tensor) -> Tensor:
    """Return each (source, target) pair of int64 [2, E] once, without self-loops."""
    return pairs_once(edges[:, edges[0] != edges[1]])[0]


def with_labels(own: OwnData, graph: PartyGraph, job: SealedJob, streams: LearningStreams, classes: int) -> OwnData:
    """Add shuffled training and, if steps are judged, validation nodes, with labels and class weights, to ``own``.

    Raises ``DataError``: there are no training nodes, or all are of one class; or none to judge steps by.
    """
    assert graph.labels is not None
    assert graph.train_mask is not None
    rows = graph.train_mask.nonzero()[:, 0]
    if not rows.numel():
        raise DataError(f"party {graph.party!r}: none of its labelled common nodes is for training; mark some")
    check_classes(graph)
    # Where a row stands among the training rows tells nothing: the order is drawn from the party's own seed.
    rows = rows[torch.randperm(rows.numel(), generator=streams.generator("rows"))]
    labels = graph.labels[rows]
    weights = None
    if job.train.class_weights == "balanced":
        weights = balanced_weights(labels, classes)[labels]
    own = replace(own, rows=rows, labels=labels, weights=weights)
    if job.train.select_by == "last":
        return own
    assert graph.val_mask is not None
    judged = graph.val_mask.nonzero()[:, 0]
    if not judged.numel():
        raise DataError(
            f"party {graph.party!r}: train.select_by={job.train.select_by} judges steps by common validation nodes, "
            "and there are none; mark some, or set it to last",
            key="train.select_by",
            value=job.train.select_by,
        )
    if job.train.select_by == "auc" and bool((graph.labels[judged] == graph.labels[judged[0]]).all()):
        raise DataError(
            f"party {graph.party!r}: train.select_by=auc ranks common validation nodes of two classes, and all are of "
            "one; mark some of another, or set it to accuracy",
            key="train.select_by",
            value="auc",
        )
    judged = judged[torch.randperm(judged.numel(), generator=streams.generator("judged"))]
    judged = judged[ranked_first(graph.labels[judged])[:MOST_JUDGED]]
    return replace(own, judged=judged, judged_labels=graph.labels[judged])


def ranked_first(labels: Tensor) -> Tensor:
    """Order V nodes so that those ranked against all others, ``MOST_RANKED``, come first: positions, int64 [V].

    These are of every class in turn; of two classes, of the second as far as it goes.
    """
    turn = torch.zeros_like(labels)
    for label in range(int(labels.max()) + 1):
        turn[labels == label] = torch.arange(int((labels == label).sum()))
    if int(labels.max()) <= 1:
        turn = 1 - labels
    order = torch.argsort(turn, stable=True)
    rest = order[MOST_RANKED:].sort().values
    return torch.cat([order[:MOST_RANKED], rest])


def most_right(labels: Tensor, select_by: str) -> int:
    """Largest score of validation nodes with these labels: their number or, for "auc", that of ranked pairs."""
    if select_by != "auc":
        return labels.numel()
    return int((labels[:MOST_RANKED, None] != labels[None]).sum())


def _weights_of(graph: PartyGraph) -> Tensor | None:
    return None if graph.edge_weight is None else graph.edge_weight.to(torch.float64)


def _is_symmetric(edges: Tensor, weights: Tensor | None) -> bool:
    """Whether every edge is there in both directions, as often and with the same weights in one as in the other."""
    nodes = int(edges.max()) + 1 if edges.numel() else 0
    there, back = (np.asarray(one * nodes + other) for one, other in (edges, edges.flip(0)))
    if weights is None:  # sorting numbers alone is ten times as fast as finding their order
        return np.array_equal(np.sort(there), np.sort(back))
    counts = weights.numpy()
    places, others = (np.lexsort((counts, pairs)) for pairs in (there, back))
    return np.array_equal(there[places], back[others]) and np.array_equal(counts[places], counts[others])


def _own_columns(plan: Plan, graph: PartyGraph) -> Tensor:
    """A holder's own columns: float64 [N, F], clipped if the plan standardises, else rows scaled to length 1."""
    columns = graph.features.to_dense().to(torch.float64)
    return columns.clamp(-_MOST_DEVIATIONS, _MOST_DEVIATIONS) if plan.standard else nn.functional.normalize(columns)


def short_rows(columns: Tensor) -> Tensor:
    """Shorten rows [N, d] to length 1 where they are longer, or divide each of a wide matrix by its length."""
    if columns.shape[1] > MOST_WHITENED:
        return nn.functional.normalize(columns)
    lengths: Tensor = torch.linalg.vector_norm(columns, dim=1, keepdim=True)
    return columns / lengths.clamp_min(1)


def columns_of(plan: Plan, graph: PartyGraph) -> dict[str, Tensor]:
    """Make every block of the plan that needs no labels, of all common nodes: block → float64 [N, width]."""
    known = graph if len(plan.home) > 1 else graph.common_part()
    columns = _own_columns(plan, known)
    made = {
        OWN: lambda: columns,
        NEIGHBOURS: lambda: neighbours(columns, known.edge_index, _weights_of(known)),
        QUANTILES: lambda: with_means(quantiles(columns), known.edge_index, _weights_of(known)),
        UNIT: lambda: unit_rows(columns),
    }
    return {block: made[block]()[: graph.common] for block in plan.home if block in made}


def unit_rows(columns: Tensor) -> Tensor:
    """Scale every column to 0 … 1 by its range, then every row to length 1, zero rows apart: float64 [N, F]."""
    if not len(columns):
        return columns
    from_least = columns - columns.min(0).values
    return nn.functional.normalize(from_least / from_least.max(0).values.clamp_min(2.0**-16))


def quantiles(columns: Tensor) -> Tensor:
    """Compare values with seven quantiles of their column: 1 above, else 0: float64 [N, 7·min(F, 16)].

    The 16 columns with most distinct values are taken; entries of one with 8 or fewer are 0.
    """
    different = torch.tensor([column.unique().numel() for column in columns.T])
    found = columns.new_zeros((len(columns), THRESHOLDS * min(len(different), MOST_TOLD)))
    at = torch.arange(1, THRESHOLDS + 1, dtype=columns.dtype) / (THRESHOLDS + 1)
    for place, column in enumerate(different.argsort(descending=True, stable=True)[:MOST_TOLD]):
        if different[column] > THRESHOLDS + 1:
            above = columns[:, column, None] > torch.from_numpy(np.quantile(columns[:, column].numpy(), at.numpy()))
            found[:, place * THRESHOLDS : (place + 1) * THRESHOLDS] = above
    return found


def with_means(columns: Tensor, edges: Tensor, weights: Tensor | None) -> Tensor:
    """Return columns [N, F] beside their means over the sources of every node's edges: float64 [N, 2·F]."""
    return torch.cat([columns, neighbours(columns, edges, weights)[:, : columns.shape[1]]], 1)


def neighbours(columns: Tensor, edges: Tensor, weights: Tensor | None) -> Tensor:
    """Means and deviations of columns [N, F] over every node's sources, and log(1 + degree): float64 [N, 2·F + 1].

    Zero where a node has no edge. Nodes that others do not know count as well; edges are int64 [2, E], weights float64
    [E].
    """
    nodes, (sources, targets) = len(columns), edges.numpy()
    counts = np.ones(len(sources)) if weights is None else weights.numpy()
    adjacency = csr_array((counts, (targets, sources)), (nodes, nodes))
    degrees = torch.from_numpy(np.asarray(adjacency.sum(axis=1)))[:, None]
    some = degrees.clamp_min(2.0**-16)
    mean = torch.from_numpy(adjacency @ columns.numpy()) / some
    square = torch.from_numpy(adjacency @ columns.square().numpy()) / some
    return torch.cat([mean, (square - mean.square()).clamp_min(0).sqrt(), degrees.log1p()], 1)
