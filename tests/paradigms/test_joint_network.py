"""A label holder that learns of its own columns and of released ones together, in whole runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.chance import fixed_chance
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import predict, train

NODES = 900


def graphs() -> dict[str, PartyGraph]:
    """A node's class is whether a column of A's and one of B's have one sign: neither says anything by itself."""
    generator = torch.Generator().manual_seed(3)
    own, other = (torch.randn(NODES, 2, generator=generator) for _ in range(2))
    ring = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
    drawn = torch.rand(NODES, generator=generator)
    masks: dict[str, Any] = {
        "train_mask": drawn < 0.5,
        "val_mask": (drawn >= 0.5) & (drawn < 0.75),
        "test_mask": drawn >= 0.75,
    }
    labels = (own[:, 0] * other[:, 0] > 0).long()
    return {
        "A": PartyGraph("A", own, ring, labels=labels, num_classes=2, **masks),
        "B": PartyGraph("B", other, ring),
    }


@pytest.mark.cases(1)
@pytest.mark.parametrize(("noise", "joint"), [(0.01, True), (1e4, False)])
def test_what_neither_says_by_itself_is_learnt_of_both_and_of_noise_nothing(
    noise: float, joint: bool, tmp_path: Path
) -> None:
    job = parse_job(
        {
            "data": {"holders": ["A", "B"], "label_holder": "A"},
            "privacy": {
                "noise_multiplier": noise,
                "unit": "edge",
                "aggregation": {"hops": 1, "own_rows": "clear" if joint else "noised", "dim": 4},
            },
            "model": {"dim": 8},
            "train": {"epochs": 20, "select_by": "accuracy"},
            "preset": "auto",
        }
    )
    with fixed_chance("joint network"):
        run = train(job, tmp_path / "run", parties=graphs())
    alone = run.summary["without_releases"]
    assert alone["test_accuracy"] < 0.65
    if joint:
        assert run.summary["test_accuracy"] > 0.85
        assert torch.equal(predict(tmp_path / "run").probabilities, run.predictions.probabilities)
    else:
        assert run.summary["test_accuracy"] == alone["test_accuracy"]
        assert alone["changed"] == 0
