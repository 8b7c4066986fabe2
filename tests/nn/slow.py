"""What operators compute, slowly and obviously."""

import torch

from veilgraph.graph.party import PartyGraph

DOUBLE = torch.float64


def random_graph(nodes=9, edges=30, seed=0, weighted=False, columns=5):
    """Random directed edges, some of them loops; the last node is isolated."""
    generator = torch.Generator().manual_seed(seed)
    return PartyGraph(
        party="a",
        features=torch.randn(nodes, columns, dtype=DOUBLE, generator=generator),
        edge_index=torch.randint(0, max(nodes - 1, 1), (2, edges), generator=generator),
        edge_weight=torch.rand(edges, dtype=DOUBLE, generator=generator) if weighted else None,
    )


def slow_aggregate(graph, name):
    """AGGREGATE as a dense matrix, one edge at a time."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=DOUBLE)
    for edge, (source, target) in enumerate(graph.edge_index.T.tolist()):
        if source != target:
            matrix[target, source] += 1 if graph.edge_weight is None else graph.edge_weight[edge]
    degrees = matrix.sum(1)
    inverse = torch.tensor([1 / degree if degree else 0 for degree in degrees.tolist()], dtype=DOUBLE)
    if name == "gcn":
        return inverse.sqrt()[:, None] * matrix * inverse.sqrt()
    return inverse[:, None] * matrix if name == "mean" else matrix
