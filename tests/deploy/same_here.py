"""A run over the engine beside the same run in one process."""

from collections.abc import Sequence
from pathlib import Path

import torch

from veilgraph.core.types import SERVER
from veilgraph.deploy.demo import LocalNetwork
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import resume
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors


def model_of(run_of, parties: Sequence[str]) -> dict[str, torch.Tensor]:
    """All parties' plain weights, and every shared W opened."""
    tensors: dict[str, torch.Tensor] = {}
    for party in parties:
        for name, tensor in load_tensors(run_of(party).party(party).model_path)[0].items():
            if name.startswith("initial.share/"):
                tensors[name] = tensors[name] + tensor if name in tensors else tensor
            else:
                tensors[f"{party}/{name}"] = tensor
    return tensors


def assert_same_here(network: LocalNetwork, settings: JobSettings, holders: Sequence[str], folder: Path) -> None:
    """The weights are those of an undisturbed run in this process on the same aligned data, bit for bit."""
    here = run_here(network, settings, holders, folder)
    ours = model_of(lambda party: RunDirectory.open(network.runs(party) / settings.name), (*holders, SERVER))
    theirs = model_of(lambda party: here, (*holders, SERVER))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def run_here(network: LocalNetwork, settings: JobSettings, holders: Sequence[str], folder: Path) -> RunDirectory:
    """An undisturbed run in this process on the same aligned data with the same seeds."""

    def run_of(party: str) -> RunDirectory:
        return RunDirectory.open(network.runs(party) / settings.name)

    stores = {party: run_of(party).party(party) for party in (*holders, SERVER)}
    content = settings.model_dump(mode="json")
    graphs = {party: str(stores[party].graph_path) for party in holders}
    content["data"] = {"graphs": graphs, "label_holder": "A"}  # scaled already
    here = RunDirectory.create(folder / "here", parse_job(content))
    for party, store in stores.items():
        here.party(party).save_seed(store.seed())
        if party in holders:
            here.party(party).graph_path.write_bytes(store.graph_path.read_bytes())
    resume(here.path)
    return here
