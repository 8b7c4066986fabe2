"""Runs one function per party in threads over the in-memory link, for protocol tests."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from veilgraph.core.config import InitialSettings
from veilgraph.core.randomness import LearningStreams, system_secrets
from veilgraph.core.types import SERVER, Link
from veilgraph.link.memory import MemoryHub
from veilgraph.mpc.dealer import Dealer, Direction
from veilgraph.mpc.embed import Embedding, InitialEmbedding, build_embedding
from veilgraph.mpc.mask import PairwiseMasks


def simulate(programs: Mapping[str, Callable[[Link], Any]]) -> dict[str, Any]:
    hub = MemoryHub(list(programs), timeout_s=20)

    def run(party: str) -> Any:
        try:
            return programs[party](hub.link(party))
        except Exception as error:
            hub.fail(party, error)
            raise

    with ThreadPoolExecutor(len(programs)) as pool:
        futures = {party: pool.submit(run, party) for party in programs}
        errors = [error for future in futures.values() if (error := future.exception()) is not None]
        if errors:
            raise next((e for e in errors if "PeerFailed" not in type(e).__name__), errors[0])
        return {party: future.result() for party, future in futures.items()}


def streams(names):
    return {name: LearningStreams(7, name) for name in names}


def embed_session(
    settings: InitialSettings,
    matrices: Mapping[str, torch.Tensor],
    dim: int,
    steps: int,
    bits: int,
    gradient: Callable[[str, int, torch.Tensor], torch.Tensor],
    dtype: torch.dtype = torch.float64,
    wrap: Callable[[Link], Link] = lambda link: link,
    after_learn: Callable[[InitialEmbedding], None] = lambda embedding: None,
) -> dict[str, Any]:
    """Each holder embeds and learns ``steps`` times; returns its embedding object and the opened h^0 of each step."""
    names = list(matrices)
    features = {name: matrices[name].shape[1] for name in names}
    nodes = matrices[names[0]].shape[0]

    def holder(link: Link) -> Any:
        link = wrap(link)
        masks = PairwiseMasks.agree(link, names, system_secrets)
        party = link.party
        session = Embedding(
            link, settings, matrices[party], features, bits, dim, masks, LearningStreams(7, party), dtype
        )
        embedding = build_embedding(session)
        opened = []
        for step in range(steps):
            opened.append(embedding.embed(step, learns=True))
            embedding.learn(step, gradient(party, step, opened[-1]))
            after_learn(embedding)
        opened.append(embedding.embed(steps, learns=False))
        embedding.close()
        return embedding, opened

    def server(link: Link) -> None:
        if settings.method != "collaborative":
            return
        dealer = Dealer(wrap(link), features, nodes, dim, system_secrets)
        dealer.send_seeds()
        for step in range(steps):
            dealer.deal(Direction.FORWARD, step)
            dealer.deal(Direction.BACKWARD, step)
        dealer.deal(Direction.FORWARD, steps)

    return simulate({**dict.fromkeys(names, holder), SERVER: server})
