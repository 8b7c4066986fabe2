"""The trained network of a run in one process: what a joint inference gives, without the parties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.tensor_file import load_tensors
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import load_party
from veilgraph.mpc import ring
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.run.run_directory import RunDirectory

_INITIAL: Final = "initial."


def trained_twin(run: RunDirectory) -> PlainNetwork:
    """The plaintext twin with all parties' weights.

    Raises:
        DataError: the job is not vertical, adds noise, or has a network that is not the package's own.
    """
    settings = run.settings
    if settings.privacy is not None or vertical(settings).model.initial.release is not None:
        raise DataError(
            "joint inferences are made anew in jobs of paradigm vertical without privacy and perturbed features; with "
            "them each inference has noise of its own or is of what was released once"
        )
    if settings.is_custom:
        raise DataError("joint inferences are made anew with the package's own local models, and this job has another")
    graphs = [load_party(run.party(name).graph_path) for name in settings.data.names]
    network = PlainNetwork(settings, graphs, settings.data.label_party)
    parts = {party: load_tensors(run.party(party).model_path)[0] for party in (*settings.data.names, SERVER)}
    with torch.no_grad():
        for name, module in network.modules().items():
            party, part = name.split("/")
            prefix = f"{part}."
            module.load_state_dict(
                {key.removeprefix(prefix): value for key, value in parts[party].items() if key.startswith(prefix)}
            )
        for owner, weight in network.embedding.weights().items():
            weight.copy_(_initial_weight(parts, owner))
        for owner, weight in network.embedding.own_weights().items():
            weight.copy_(parts[owner][f"{_INITIAL}own_weight"])
    return network


def _initial_weight(parts: Mapping[PartyId, Mapping[str, Tensor]], owner: PartyId) -> Tensor:
    """W^owner: of that holder, or the sum of all shares."""
    name = f"{_INITIAL}share/{owner}"
    shares = [part[name] for part in parts.values() if name in part]
    if not shares:
        return parts[owner][f"{_INITIAL}weight"]
    own = parts[owner]
    total = torch.stack(shares).sum(dim=0)
    bits = int(own[f"{_INITIAL}weight_bits"])
    return ring.decode(total, bits, torch.float64, "W", "train the run again", float(own[f"{_INITIAL}scale"]))
