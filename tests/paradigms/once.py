"""Jobs with a single release, and parties that lose it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.paradigms.private import LABEL_HOLDER, NOISE
from tests.paradigms.runs import saved_job
from tests.roles.federation import Settings
from veilgraph.graph.party import load_party, save_party
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.store.run_directory import load_tensors


def once_job(folder: Path, *changes: Settings, holders: int = 2, **privacy: Any) -> JobSettings:
    model: Settings = {"model": {"initial": {"method": "individual"}, "local": {"model": "appnp"}}}
    noise = {} if "epsilon_total" in privacy else {"noise_multiplier": NOISE}
    return saved_job(
        folder, model, {"privacy": {"unit": "row", "schedule": "once", **noise, **privacy}}, *changes, holders=holders
    )


def graph(run: Path, party: str) -> Path:
    return run / "parties" / party / "graph.safetensors"


def change_features(run: Path, party: str) -> None:
    before = load_party(graph(run, party))
    save_party(replace(before, features=before.features.to_dense() + 1), graph(run, party))


def released(run: Path, name: str = "released") -> Tensor:
    """What the label holder was given: the rows, or another of its kept tensors."""
    return load_tensors(run / "parties" / LABEL_HOLDER / "release.safetensors")[0][name]


def lose(run: Path, party: str) -> None:
    """The kept release of one party."""
    (run / "parties" / party / "release.safetensors").unlink()
