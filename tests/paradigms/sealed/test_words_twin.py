"""The twin that makes no rows is the twin that makes them."""

import pytest
import torch

from research.words_twin import SparseNetwork, chosen_words_twin
from tests.paradigms.sealed.programs import small_graphs, small_job
from tests.roles.federation import Settings
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.twin import chosen_twin, twin_context

STEPS: Settings = {"output": "margins", "train": {"epochs": 44, "select_by": "accuracy", "evaluate_every": 11}}


@pytest.mark.cases(2)
@pytest.mark.parametrize("training", [6, 20])
@pytest.mark.parametrize("directed", [False, True])
def test_predicts_the_same_margins(training: int, directed: bool) -> None:
    changes: Settings = {"model": {"network": None, "blocks": ["own", "pooled.2", "each.1"], "directed": directed}}
    job = small_job(2, STEPS, changes)
    graphs = small_graphs(2, training=training, directed=directed)
    sparse, dense = chosen_words_twin(job, graphs), chosen_twin(job, graphs)
    assert sparse.taken is not None
    assert dense.taken is not None
    assert sparse.taken[0] == dense.taken[0]
    torch.testing.assert_close(sparse.predict(), dense.predict(), rtol=1e-4, atol=1e-4)


def test_takes_no_columns_that_are_made_at_home() -> None:
    job = small_job(2, {"model": {"blocks": ["own", "neighbours"]}})
    context, data = twin_context(job, small_graphs(2))
    with pytest.raises(ValueError, match="stay sparse"):
        SparseNetwork(PlainMachine(list(data)), context)
