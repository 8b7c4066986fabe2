"""Over the real engine, with private seeds: the same job on the same tables, aligned anew, predicts the same by id."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import nightly
from tests.deploy.consortium import HOLDERS, Consortium, job
from tests.paradigms.repeated import DROPPING, distance
from veilgraph.core.randomness import PUBLIC_SEEDS
from veilgraph.core.types import SERVER
from veilgraph.graph.settings import DataSettings, PartitionSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.store.predictions import Predictions, load_predictions
from veilgraph.samples.organisations import export_parts

SHORT: Mapping[str, Any] = {"epochs": 4, "patience": None, "checkpoint_every": 2}
BY_NODES: Mapping[str, Any] = {
    "data": {"holders": list(HOLDERS), "label_holder": "A", "feature_scaling": "standard"},
    "timeout_s": 120,
    "train": {**SHORT},
}
AVERAGING: Mapping[str, Any] = {
    "paradigm": "averaging",
    "model": {"dim": 4, "local": {"model": "gcn", "hops": 1}},
    "averaging": {"personal": ["input"], "patience_s": 15},
}


def submitted(consortium: Consortium, settings: JobSettings) -> tuple[Predictions, dict[str, int]]:
    consortium.submit(settings)
    stores = {party: consortium.run(party, settings.name).party(party) for party in (*HOLDERS, SERVER)}
    return load_predictions(stores["A"]), {party: store.seed() for party, store in stores.items()}


def twice(consortium: Consortium, settings: JobSettings) -> float:
    """The largest difference of a probability of two submissions, under two names."""
    again = settings.model_copy(update={"name": f"{settings.name}-again"})
    (one, seeds), (other, seeds_again) = submitted(consortium, settings), submitted(consortium, again)
    assert seeds == seeds_again
    assert min(seeds.values()) > PUBLIC_SEEDS
    assert len(set(seeds.values())) == len(seeds)
    return distance(one, other)


@nightly
def test_a_vertical_and_a_sealed_job(consortium: Consortium) -> None:
    with consortium.changed(""):
        for file in map(consortium.party_file, HOLDERS):
            file.write_text(file.read_text("utf-8").replace("seed: job", "seed: private"), "utf-8")
        assert twice(consortium, job("vertical", model=DROPPING, train=SHORT)) == 0
        with consortium.changed("limits: {leakage: [predicted-margins, predicted-classes, sealed-scores]}"):
            settings = job("sealed", paradigm="sealed", model={"max_degree": 64}, train=SHORT, output="margins")
            assert twice(consortium, settings) < 2e-3


@nightly
@pytest.mark.parametrize("changes", [{"paradigm": "horizontal"}, AVERAGING], ids=["horizontal", "averaging"])
def test_a_job_of_holders_with_nodes_of_their_own(
    consortium: Consortium, tmp_path: Path, changes: Mapping[str, Any]
) -> None:
    settings = parse_job({"name": changes["paradigm"], **BY_NODES, **changes})
    overlap = 0.2 if changes["paradigm"] == "horizontal" else 0
    divided = DataSettings(dataset="synthetic", holders=3, partition=PartitionSettings(overlap=overlap))
    with consortium.changed(""):
        for party, file in export_parts(divided, tmp_path / "parts", 0, job=settings).items():
            text = file.read_text("utf-8")
            for table in ("nodes.csv", "edges.csv"):
                text = text.replace(table, str(file.parent / table))
            consortium.party_file(party).write_text(text, "utf-8")
        assert twice(consortium, settings) == 0
