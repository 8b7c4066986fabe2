"""Small jobs of node-level privacy, and what their parties kept and sent."""

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.paradigms.runs import lasting, lasting_summary
from tests.roles.federation import Settings
from tests.roles.local_parties import local_job, local_parties
from veilgraph.graph.party import save_party
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import DisclosureRecord
from veilgraph.runtime.launch.jobs import TrainResult
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

LEARNER, OTHER = "A", "B"
DELTA = 1e-4


def saved(folder: Path, *changes: Settings, own: bool = False, **features: Any) -> JobSettings:
    """A job of three holders over graphs that lie in ``folder``."""
    folder.mkdir()
    settings = local_job(3, *changes, **features)
    paths = {}
    for one in local_parties(settings, own=own):
        paths[one.party] = str(folder / f"{one.party}.safetensors")
        save_party(one, Path(paths[one.party]))
    return local_job(3, *changes, {"data": {"dataset": None, "graphs": paths}}, **features)


def edges(unit: str = "edge", **privacy: Any) -> Settings:
    """Noise on the learner's edges."""
    bound = {"degree_bound": 59} if unit == "node-edges" else {}
    return {
        "model": {"hops": "auto"},
        "privacy": {"unit": unit, "epsilon_total": 3.0, "delta": DELTA, "hops": 2, **bound, **privacy},
    }


def kept(run: Path) -> dict[str, Tensor]:
    """What the learner was given."""
    return load_tensors(run / "parties" / LEARNER / "release.safetensors")[0]


def disclosed(run: Path, party: str) -> list[DisclosureRecord]:
    lines = (run / "parties" / party / "disclosures.jsonl").read_text().splitlines()
    return [DisclosureRecord.model_validate_json(line) for line in lines]


def sent(run: Path, party: str) -> Counter[str]:
    """Channel → messages with perturbed values, in all sessions of the run together."""
    found = Counter[str]()
    for record in disclosed(run, party):
        if record.kind.startswith("perturbed_"):
            assert record.to == LEARNER
            found[record.kind.removeprefix("perturbed_")] += record.messages
    return found


def assert_same(one: TrainResult, other: TrainResult) -> None:
    """What was learnt, bit for bit."""
    assert lasting(one.metrics) == lasting(other.metrics)
    assert torch.equal(one.predictions.probabilities, other.predictions.probabilities)
    assert lasting_summary(one.summary) == lasting_summary(other.summary)
    ours, theirs = (load_tensors(RunDirectory.open(run.path).party(LEARNER).model_path)[0] for run in (one, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
