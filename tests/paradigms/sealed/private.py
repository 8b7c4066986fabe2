"""Sealed jobs with noise on votes, and noise that parties and twin have alike."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.roles.federation import Settings
from veilgraph.core.randomness import Keystream
from veilgraph.core.secrets import SecretSource
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed import machine
from veilgraph.privacy.geometric import two_sided

KEY = bytes(range(32))
MARGINS: Settings = {"output": "margins"}


def voting(**privacy: Any) -> Settings:
    """Votes with the noise that ``privacy`` says; where it says nothing, with so little that none is ever drawn."""
    said = privacy or {"epsilon_total": 1e6}
    return {"model": {"network": "linear", "edge_slots": 4096}, "privacy": {"unit": "edge", **said}}


@contextmanager
def noise_from(key: bytes) -> Iterator[None]:
    """Dealers draw their noise from this key inside."""

    def drawn(shape: tuple[int, ...], epsilon: float, _: SecretSource) -> torch.Tensor:
        return two_sided(shape, epsilon, noise_of(key))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "two_sided", drawn)
        yield


def noise_of(key: bytes = KEY) -> SecretSource:
    """What such a dealer draws noise from."""
    stream = Keystream(key, "noise/votes")
    return lambda length: stream.take(length).numpy().tobytes()


def pairs(*ends: tuple[int, int]) -> torch.Tensor:
    """Edges both ways."""
    there = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T
    return torch.cat([there, there.flip(0)], 1)


def with_edges(graphs: list[PartyGraph], holder: int, edges: torch.Tensor) -> list[PartyGraph]:
    """The graphs, one of them with other edges."""
    return [replace(g, edge_index=edges, edge_weight=None) if n == holder else g for n, g in enumerate(graphs)]
