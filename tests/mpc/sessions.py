"""Runs one function per party in threads over the in-memory link, for protocol tests."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from veilgraph.core.errors import PeerFailed
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import Message, RecordedLink
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.mpc.product import Dealer, Direction
from veilgraph.paradigms.vertical.network import EmbeddingSession, InitialEmbedding, InitialSettings, build_embedding

Gradient = Callable[[PartyId, int, Tensor], Tensor]
"""(holder, step, the opened h^0) → ∂L/∂h^0 of that holder's branch."""


def fixed_secrets(*seed: object) -> SecretSource:
    """A source of secrets that gives the same ones every time, so that statistical tests cannot flake."""
    count = 0

    def secrets(length: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(repr((*seed, count)).encode()).digest(length)

    return secrets


def simulate(programs: Mapping[PartyId, Callable[[Link], Any]]) -> dict[PartyId, Any]:
    """Runs every party's program in a thread; raises the first cause when one fails."""
    hub = MemoryHub(list(programs), timeout_s=20)

    def run(party: PartyId) -> Any:
        try:
            return programs[party](hub.link(party))
        except Exception as error:
            hub.fail(party, error)
            raise

    with ThreadPoolExecutor(len(programs)) as pool:
        futures = {party: pool.submit(run, party) for party in programs}
        errors = [error for future in futures.values() if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, PeerFailed)), errors[0])
        return {party: future.result() for party, future in futures.items()}


def recorded(program: Callable[[Link], Any]) -> Callable[[Link], tuple[Message, ...]]:
    """A party's program that returns what the party sent and received."""

    def run(link: Link) -> tuple[Message, ...]:
        wrapper = RecordedLink(link, keep_transcript=True)
        program(wrapper)
        return wrapper.transcript()

    return run


def streams(names: Sequence[PartyId]) -> dict[PartyId, LearningStreams]:
    return {name: LearningStreams(7, name) for name in names}


def agreed_masks(names: Sequence[PartyId], seed: object = 0) -> dict[PartyId, PairwiseMasks]:
    """Every holder's masks after they agreed on keys."""

    def agree(link: Link) -> PairwiseMasks:
        return PairwiseMasks.agree(link, names, fixed_secrets(seed, link.party))

    return simulate(dict.fromkeys(names, agree))


@dataclass(frozen=True)
class Embedded:
    """One holder's session: the method's object, h^0 of every step and after the last, and the holder's view."""

    embedding: InitialEmbedding
    opened: list[Tensor]
    view: tuple[Message, ...]


def embed_session(
    settings: InitialSettings,
    matrices: Mapping[PartyId, Tensor],
    *,
    dim: int,
    steps: int,
    bits: int,
    gradient: Gradient,
    after_learn: Callable[[InitialEmbedding], None] = lambda embedding: None,
    block_bytes: int = 1 << 25,
) -> dict[PartyId, Embedded]:
    """Every holder embeds and learns ``steps`` times, then embeds once more."""
    names = list(matrices)
    features = {name: matrices[name].shape[1] for name in names}
    nodes = matrices[names[0]].shape[0]

    def holder(plain_link: Link) -> Embedded:
        link = RecordedLink(plain_link, keep_transcript=True)
        party = link.party
        masks = PairwiseMasks.agree(link, names, fixed_secrets(0, party))
        session = EmbeddingSession(
            link,
            settings,
            matrices[party],
            features,
            bits,
            dim,
            masks,
            LearningStreams(7, party),
            torch.float64,
            block_bytes=block_bytes,
        )
        embedding = build_embedding(session)
        try:
            opened = []
            for step in range(steps):
                opened.append(embedding.embed(step, learns=True))
                embedding.learn(step, gradient(party, step, opened[-1]))
                after_learn(embedding)
            opened.append(embedding.embed(steps, learns=False))
        finally:
            embedding.close()
        return Embedded(embedding, opened, link.transcript())

    def server(link: Link) -> None:
        if settings.method != "collaborative":
            return
        dealer = Dealer(link, features, nodes, dim, fixed_secrets(0, SERVER), block_bytes=block_bytes)
        dealer.send_seeds()
        for step in range(steps):
            dealer.deal(Direction.FORWARD, step)
            dealer.deal(Direction.BACKWARD, step)
        dealer.deal(Direction.FORWARD, steps)

    results = simulate({**dict.fromkeys(names, holder), SERVER: server})
    return {name: results[name] for name in names}
