from dataclasses import replace

import torch

from tests.errors import refused
from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS
from veilgraph.graph.embedded import synthetic_data
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.random_split import masks_by_fractions, split_randomly
from veilgraph.tables.settings import SplitFractions

HALF = SplitFractions(train=0.5, val=0.25, test=0.25, seed=0)
GRAPH = PartyGraph.from_data("a", synthetic_data(seed=1))


def masks_of(graph):
    return [getattr(graph, name) for name in MASKS]


def test_a_split_has_the_fractions_of_every_class_and_follows_its_seed():
    found, again, other = (split_randomly(GRAPH, HALF.model_copy(update={"seed": seed})) for seed in (0, 0, 1))
    assert GRAPH.labels is not None
    masks = masks_of(found)
    for mask, share in zip(masks, (0.5, 0.25, 0.25), strict=True):
        counts = GRAPH.labels[mask].bincount() / GRAPH.labels.bincount()
        torch.testing.assert_close(counts, torch.full((3,), share), atol=0.01, rtol=0)
    assert torch.equal(torch.stack(masks).sum(0), torch.ones(400, dtype=torch.int64))
    assert all(map(torch.equal, masks, masks_of(again)))
    assert not any(map(torch.equal, masks, masks_of(other)))


def test_unlabelled_nodes_are_in_no_mask_and_other_data_are_drawn_otherwise():
    labels = torch.tensor([0, -1, 1, 0, 1, -1, 0, 1, 0, 1] * 4)
    masks = masks_by_fractions(labels, HALF, "a")
    assert torch.equal(torch.stack(list(masks.values())).any(0), labels >= 0)
    assert not torch.equal(masks["train_mask"], masks_by_fractions(labels, HALF, "b")["train_mask"])


def test_a_split_needs_labels_and_nodes_for_every_mask():
    bare = replace(GRAPH, labels=None, train_mask=None, val_mask=None, test_mask=None, num_classes=None)
    with refused(DataError, key="labels", party="a"):
        split_randomly(bare, HALF)
    with refused(DataError, key="val_mask", party="a"):
        split_randomly(GRAPH, SplitFractions(train=0.6, val=1e-6, test=0.25))
