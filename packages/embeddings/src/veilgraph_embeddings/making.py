"""From a job and a world to embeddings, what attacks make of them, and what they make of plain ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.lifetime_costs import EVERYBODY
from veilgraph.privacy.lifetime_ledger import Account, Lifetime
from veilgraph_embeddings.assess import Assessment, HeldOut, assess
from veilgraph_embeddings.method import Embedded, MethodSettings, Tools
from veilgraph_embeddings.methods.plain import AutoencoderSettings, Plain
from veilgraph_embeddings.proxies import Proxy, check_enough, proxies
from veilgraph_embeddings.release import Door
from veilgraph_embeddings.settings import EmbedJob
from veilgraph_embeddings.world import World, drawn, drawn_pairs

LEDGER: Final = "ledger.jsonl"

Progress = Callable[[str, int, int], None]
"""What is done, how many steps of it, of how many."""


@dataclass(frozen=True, eq=False)
class Made:
    """What a job came to, before anything of it is published.

    Attributes:
        embedded: what the method made.
        after: what attacks and uses find in it.
        before: the same in plain embeddings of the same data and seed.
        proxies: features that tell the private attribute by themselves.
        held: how many nodes and edges the figures are of.
    """

    embedded: Embedded
    after: Assessment
    before: Assessment
    proxies: tuple[Proxy, ...]
    held: dict[str, int]


def make(
    job: EmbedJob,
    world: World,
    folder: Path,
    progress: Progress,
    *,
    lifetime: Lifetime | None = None,
    source: SecretSource = system_secrets,
    before: Assessment | None = None,
) -> Made:
    """Embeds, and attacks what was made.

    Args:
        job: the job.
        world: of it.
        folder: where a ledger is kept.
        progress: called as work goes on.
        lifetime: the ledger of all that was ever released of the world; None where it has that of this run alone.
        source: of noise that must protect; ``system_secrets`` outside tests.
        before: of plain embeddings of the same world and seed, where it is known already.

    Raises:
        DataError: too few nodes, a copy of the private attribute among the features, or numbers that are not finite.
        BudgetSpent: the release is not allowed; none was made.
    """
    found, held = proxies(world), held_out(job, world)
    told = given(world, held)
    streams = LearningStreams(job.seed, "embed")
    method = job.method

    door = door_of(job, world, folder, lifetime, source)

    def run(settings: MethodSettings, name: str) -> Embedded:
        kind, steps = settings.kind, settings.kind.epochs(settings)
        tools = Tools(streams, door, lambda epoch, losses: progress(name, epoch, steps))
        made = kind.embed(told, settings, tools)
        if not bool(torch.isfinite(made.rows).all()):
            raise DataError(
                f"method={name!r}: embeddings are not finite; lower method.learning_rate or scale the features",
                key="method",
                value=name,
            )
        return made

    embedded = run(method, method.name)
    progress("attacks", 0, 2)
    after = assess(embedded.rows, world, held, seed=job.seed)
    progress("attacks", 1, 2)
    if before is None:
        if method.kind is Plain:
            before = after
        else:
            plain = plain_of(method)
            before = assess(run(plain, plain.name).rows, world, held, seed=job.seed)
    progress("attacks", 2, 2)
    counts = {
        "nodes": world.num_nodes,
        "edges": world.pairs.shape[1],
        "known": int(held.known.sum()),
        "unseen": int(held.unseen.sum()),
        "links": held.pairs.shape[1],
    }
    return Made(embedded, after, before, found, counts)


def door_of(
    job: EmbedJob, world: World, folder: Path, lifetime: Lifetime | None, source: SecretSource = system_secrets
) -> Door:
    """The door of a run, through which all nodes of the world pay. Arguments as for ``make``."""

    def ledger(delta: float, budget: float) -> Ledger:
        return Ledger.open(folder / LEDGER, delta, budget, job=job.hash())

    account = None
    if lifetime is not None:
        keys = EVERYBODY
        if world.named:
            lifetime.lines.check_people(world.ids)
            keys = lifetime.keys(world.ids)
        account = Account(lifetime, keys, None, job.hash(), job.name)
    return Door(ledger, account, world.ids, source)


def plain_of(method: MethodSettings) -> MethodSettings:
    """Plain embeddings as wide and as long trained as a method's, where it has such settings."""
    like: dict[str, Any] = {
        name: getattr(method, name) for name in AutoencoderSettings.model_fields if hasattr(method, name)
    }
    return AutoencoderSettings(**{**like, "name": "plain"})


def held_out(job: EmbedJob, world: World) -> HeldOut:
    """Who knows what, by the job's seed.

    Raises:
        DataError: too few nodes have a value.
    """
    asked, nodes = job.evaluation, world.num_nodes
    known = drawn("known", nodes, asked.known, job.seed)
    unseen = drawn("unseen", nodes, asked.unseen, job.seed)
    apart = drawn_pairs(world.pairs, asked.links, job.seed)
    check_enough(world, known, ~known, "hide")
    check_enough(world, ~unseen, unseen, "keep")
    return HeldOut(
        known.numpy(),
        unseen.numpy(),
        world.pairs[:, apart],
        world.pairs[:, ~apart],
        job.data.edges_public,
        asked.families,
    )


def given(world: World, held: HeldOut) -> World:
    """What the encoder is given: without the edges and the useful values that it is judged by."""
    return replace(world, pairs=held.given, keep=world.keep.without(torch.from_numpy(held.unseen)))
