"""The files that SecureGNN and veilgraph exchange: arrays in npz, what is public in JSON; nothing executable."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from research.secure_gnn_cubic import fit_cubic, sigmoid
from veilgraph.core.errors import DataError, RunError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import is_sparse
from veilgraph.graph.federation import check_federation, find_label_holder
from veilgraph.graph.party import PartyGraph

Array = NDArray[Any]

TANH: Final = fit_cubic(np.tanh, 2.0)
SIGMOID: Final = fit_cubic(sigmoid, 4.0)


@dataclass(frozen=True)
class SecureGNN:
    """The network and its training.

    Attributes:
        dim: d.
        hops: K, GraphSAGE with the mean aggregator; the first weights are [I/2, I/2].
        epochs: steps of SGD on all training nodes, without dropout.
        evaluate_every: epochs between two evaluations of the twin.
        learning_rate: on the mean over the training nodes.
        first_learning_rate: the same for W⁰, whose gradients are smaller, as features are.
        momentum: of SGD.
        weight_decay: added to the gradient, times the weight.
        feature_factor: public; features are multiplied by it, so that h⁰ is large beside the fixed point's last place.
    """

    dim: int
    hops: int
    epochs: int
    evaluate_every: int = 2
    learning_rate: float = 0.1
    first_learning_rate: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    feature_factor: float = 10.0


def write_inputs(
    folder: Path,
    settings: SecureGNN,
    graphs: Sequence[PartyGraph],
    label_party: PartyId,
    seed: int,
    epochs: int,
    *,
    public_adjacency: bool,
) -> None:
    """Writes what ``spu/program.py`` reads.

    Args:
        folder: an empty one.
        settings: network and training, but for its epochs.
        graphs: of all holders.
        label_party: who has the labels.
        seed: of the first weights.
        epochs: to train.
        public_adjacency: whether the edges are known to all.

    Raises:
        DataError: a graph has edge weights or nodes of its own, or nobody has labels.
    """
    check_federation(graphs, label_party)
    for graph in graphs:
        if graph.edge_weight is not None or graph.common != graph.num_nodes:
            raise DataError(
                f"party {graph.party!r}: SecureGNN takes common nodes and edges without weights; leave them out"
            )
    labelled = find_label_holder(graphs, label_party)
    if labelled.labels is None or labelled.train_mask is None or labelled.num_classes is None:
        raise DataError(f"party {label_party!r}: SecureGNN is trained on labels; give labels, masks and num_classes")
    order = training_first(labelled)
    place = np.argsort(order)
    holders = [labelled, *(graph for graph in graphs if graph is not labelled)]
    for rank, graph in enumerate(holders):
        dense = graph.features.to_dense() if is_sparse(graph.features) else graph.features
        features = (settings.feature_factor * dense.numpy()[order]).astype(np.float32)
        np.savez(folder / f"holder{rank}.npz", features=features, edge_index=place[graph.edge_index.numpy()])
    count, classes = int(labelled.train_mask.sum()), labelled.num_classes
    weights = first_weights(settings, sum(graph.num_features for graph in graphs), classes, np.random.default_rng(seed))
    labels = np.eye(classes, dtype=np.float32)[labelled.labels.numpy()[order[:count]]]
    named: dict[str, Any] = {f"weight{number}": each for number, each in enumerate(weights)}
    np.savez(folder / "shared.npz", labels=labels, **named)
    task = {
        "hosts": _free_hosts(len(graphs)),
        "widths": [graph.num_features for graph in holders],
        "epochs": epochs,
        "evaluate_every": settings.evaluate_every,
        "tanh": TANH.coefficients,
        "sigmoid": SIGMOID.coefficients,
        "learning_rate": settings.learning_rate / count,  # the program's loss is the sum over the training nodes
        "first_learning_rate": settings.first_learning_rate / count,
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay * count,
        "public_adjacency": public_adjacency,
    }
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")


def training_first(labelled: PartyGraph) -> Array:
    """int64 [N]: the label holder's nodes in the order of the files, those for training first."""
    trains = np.zeros(labelled.num_nodes, bool) if labelled.train_mask is None else labelled.train_mask.numpy()
    return np.argsort(~trains, kind="stable")


def first_weights(settings: SecureGNN, features: int, classes: int, generator: np.random.Generator) -> list[Array]:
    """W⁰ [F, d], V [d, d], b [d], U [d, C], c [C], then [I/2, I/2] of every hop, float32; Glorot's uniform or 0."""

    def glorot(rows: int, columns: int) -> Array:
        bound = float(np.sqrt(6 / (rows + columns)))
        return generator.uniform(-bound, bound, (rows, columns))

    dim = settings.dim
    first = [glorot(features, dim), glorot(dim, dim), np.zeros(dim), glorot(dim, classes), np.zeros(classes)]
    return [weight.astype(np.float32) for weight in (*first, *[np.eye(dim) / 2] * (2 * settings.hops))]


def read_arrays(path: Path, *needed: str) -> dict[str, Array]:
    """All arrays of an npz file; one that holds objects is refused.

    Raises:
        RunError: it is missing, is no such file or lacks an array.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = dict(arrays)
    except (OSError, ValueError, EOFError) as error:
        raise RunError(
            f"SPU: {path.name} cannot be read ({error}); is this the pinned version?", key=path.name
        ) from error
    if missing := [name for name in needed if name not in found]:
        raise RunError(
            f"SPU: {path.name} has no {missing[0]!r}; is this the pinned version?", key=path.name, value=missing[0]
        )
    return found


def _free_hosts(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    hosts = [f"127.0.0.1:{server.getsockname()[1]}" for server in sockets]
    for server in sockets:
        server.close()
    return hosts
