"""Link stealing and attribute inference on plain networks, and the list of all that is attacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Data

from research.attack_strength_labels import labels
from research.attack_strength_members import membership
from research.attack_strength_models import Outputs, PlainNetwork, PlainSettings, classes_of, train_plain
from research.attack_strength_settings import Attacked, StrengthSettings, own_seed
from research.attack_strength_solved import hops, solved_features
from research.link_reference import reference_posteriors
from research.link_stealing import STEALING, Knowledge, link_scores
from veilgraph.audit.edges import influence_scores, queried_pairs
from veilgraph.audit.features import auxiliary_nodes, choose_attributes, infer_attribute
from veilgraph.audit.pairs import DISTANCES, NodeRows, Numbers, sample_pairs
from veilgraph.graph.features import choose_columns, from_scipy, is_sparse, scale_features, to_scipy
from veilgraph.graph.party import PartyGraph

Family = Callable[[Data, Data, StrengthSettings, int], dict[str, Attacked]]
"""(attacked graph, another data set, settings, seed) → attacks by name."""

_KNOWN: Final = {
    number: ", ".join(
        name for name, used in (("F", attack.attributes), ("A*", attack.partial), ("DS'", attack.shadow)) if used
    )
    or "posteriors alone"
    for number, attack in STEALING.items()
}
"""Attack → what its adversary has beside posteriors, in the paper's symbols."""
_LEARNED: Final = 0.0
"""Threshold of scores that are a classifier's log-odds."""


def links(data: Data, other: Data, settings: StrengthSettings, seed: int) -> dict[str, Attacked]:
    """Link stealing of He et al. 2021: eight attacks on posteriors, eight distances, and the hidden layer instead.

    The network learns from a random share of the nodes, the shadow network likewise in the other data set. As many
    unlinked pairs as links are attacked, without those that A* knows.
    """
    (target, hidden), (shadow, _) = (_nodes(graph, settings, seed) for graph in (data, other))
    pairs, other_pairs = (
        sample_pairs(graph.edge_index.numpy(), len(graph.y), seed=own_seed(seed, number))
        for number, graph in enumerate((data, other))
    )
    partial, attacked = pairs.split(settings.partial_share, seed)
    posteriors, embeddings = Knowledge(target, partial, (shadow, other_pairs)), Knowledge(NodeRows(hidden), partial)

    def scored(knowledge: Knowledge, number: int, **choices: Any) -> Attacked:  # noqa: ANN401 - of link_scores
        attack = STEALING[number]
        threshold = _LEARNED if attack.partial or attack.shadow else None
        return Attacked(link_scores(number, knowledge, attacked.pairs, seed=seed, **choices), attacked.truth, threshold)

    return {
        **{f"attack {number}, {_KNOWN[number]}": scored(posteriors, number) for number in STEALING},
        "attack 2, difference of distances": scored(posteriors, 2, evidence="difference"),
        "attack 2, attributes alone": scored(posteriors, 2, evidence="attributes"),
        "attack 0 on embeddings": scored(embeddings, 0),
        "attack 3 on embeddings": scored(embeddings, 3),
        **{
            f"attack 0 by {distance}": scored(posteriors, 0, distance=distance)
            for distance in DISTANCES
            if distance != "correlation"
        },
        "LinkTeller": influence(data, settings, seed),
    }


def influence(data: Data, settings: StrengthSettings, seed: int) -> Attacked:
    """LinkTeller of Wu et al. 2022: who has all features doubles a node's and asks for posteriors; no link is known."""
    seen = _scaled(data)
    network = _network_of(seen, settings.links, settings.training_share, seed)
    none = np.empty((2, 0), dtype=np.int64)
    matrix = to_scipy(seen.x) if is_sparse(seen.x) else csr_matrix(seen.x.numpy())
    edges = data.edge_index.numpy()
    pairs = queried_pairs(edges, none, len(data.y), queries=settings.queries, seed=own_seed(seed, 2))

    def ask(node: int) -> NDArray[np.float64]:
        factors = np.ones(len(data.y))
        factors[node] = 2
        changed = from_scipy(matrix.multiply(factors[:, None]).tocsr().astype(np.float32))
        return network.outputs(Data(x=changed, edge_index=data.edge_index)).posteriors

    return Attacked(influence_scores(network.outputs(seen).posteriors, ask, pairs.pairs), pairs.truth)


def attributes(data: Data, other: Data, settings: StrengthSettings, seed: int) -> dict[str, Attacked]:
    """Attribute inference of Duddu et al. 2020: columns that the network never saw, from what it gives out."""
    x = _dense(data.x)
    private = choose_attributes(x, count=settings.words)
    public = np.setdiff1d(np.arange(x.shape[1]), [attribute.column for attribute in private])
    seen = Data(x=choose_columns(data.x, torch.from_numpy(public)), edge_index=data.edge_index, y=data.y)
    outputs = _trained(seen, settings.attributes, settings.training_share, seed)
    auxiliary = auxiliary_nodes(len(x), settings.auxiliary_share, seed=seed)
    found: dict[str, Attacked] = {}
    for attribute in private:
        share = attribute.values[auxiliary].mean()
        usual = float(np.log(share / (1 - share)))  # log-odds of who knows nothing of a node
        for name, rows in (("embeddings", outputs.embeddings), ("posteriors", outputs.posteriors)):
            scores, truth = infer_attribute(rows, attribute.values, auxiliary, seed=seed), attribute.values[~auxiliary]
            others = {
                "accuracy": float(((scores > 0) == truth).mean()),
                "prior_accuracy": float((truth == (share >= 0.5)).mean()),
            }
            found[f"word {attribute.column} from {name}"] = Attacked(scores, truth, usual, others)
    return found


FAMILIES: Final[dict[str, Family]] = {
    "membership": membership,
    "links": links,
    "attributes": attributes,
    "labels": labels,
    "solved features": solved_features,
    "hops": hops,
}
"""The attacks by what they are after."""


def _nodes(data: Data, settings: StrengthSettings, seed: int) -> tuple[NodeRows, Numbers]:
    """What the link adversary has of a graph's nodes, and the hidden layer."""
    outputs = _trained(data, settings.links, settings.training_share, seed)
    x = _dense(data.x)
    known = x[:, np.count_nonzero(x, axis=0) >= settings.frequent]
    reference = reference_posteriors(known, outputs.posteriors.argmax(axis=1), seed=seed)
    return NodeRows(outputs.posteriors, known, reference), outputs.embeddings


def _trained(data: Data, network: PlainSettings, share: float, seed: int) -> Outputs:
    data = _scaled(data)
    return _network_of(data, network, share, seed).outputs(data)


def _scaled(data: Data) -> Data:
    """Every node's features scaled to a sum of 1, as Kipf & Welling have them."""
    features = scale_features(PartyGraph("whole", data.x, data.edge_index), "row").features
    return Data(x=features, edge_index=data.edge_index, y=data.y)


def _network_of(data: Data, network: PlainSettings, share: float, seed: int) -> PlainNetwork:
    members = torch.from_numpy(auxiliary_nodes(len(data.y), share, seed=own_seed(seed, 0)))
    return train_plain(data, members, classes_of(data), network, seed=seed)


def _dense(x: Tensor) -> NDArray[np.float32]:
    dense: NDArray[np.float32] = x.to_dense().numpy()
    return dense
