"""Small graphs, and the adjacency matrix computed slowly."""

import torch

from veilgraph.nn.propagate import Adjacency


def random_adjacency(nodes=12, edges=30, seed=0, dtype=torch.float64, weighted=False):
    """Random directed edges; the last two nodes stay isolated."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, max(nodes - 2, 1), (2, edges), generator=generator)
    weight = torch.rand(edges, generator=generator, dtype=dtype) + 0.1 if weighted else None
    return Adjacency.of_edges(edge_index, weight, nodes, dtype)


def dense(adjacency):
    """A[v, u], slowly."""
    matrix = torch.zeros(adjacency.num_nodes, adjacency.num_nodes, dtype=adjacency.dtype)
    weight = adjacency.edge_weight
    for edge, (source, target) in enumerate(adjacency.edge_index.T.tolist()):
        matrix[target, source] += 1 if weight is None else weight[edge]
    return matrix
