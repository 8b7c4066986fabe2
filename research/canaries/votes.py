"""Votes of a sealed job, by all its parties: what the label holder is told of other holders' edges, noise and all.

Here the adversary has all columns, and all edges but the canaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import torch
from torch import Tensor
from typing_extensions import override

from research.canaries.game import Game, Played, paying
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.partition import orient_pairs
from veilgraph.graph.party import PartyGraph
from veilgraph.link.factory import MemoryHub
from veilgraph.mpc.sealed.linked import DealerMachine, HolderMachine
from veilgraph.paradigms.sealed.networks.voting import VOTES
from veilgraph.paradigms.sealed.plan import Context, release_plan
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.privacy.publisher import CountPublisher
from veilgraph.protocol.job_file import parse_job

HOLDERS: Final = ("A", "B", "C")
_TRAINED: Final = 8
_CLASSES: Final = 2


@dataclass(frozen=True)
class Votes(Game):
    """An edge of holder B between two nodes that vote, as nodes without columns do, for the first class.

    Everybody can compute in the row of which of both it counts.
    """

    gaussian: ClassVar[bool] = False
    delta: float = 0.0

    @override
    def play(self, coins: Tensor) -> Played:
        job = self._job
        first = _TRAINED + 2 * coins.nonzero().flatten()
        nodes = _TRAINED + 2 * len(coins)
        context, _ = twin_context(job, _graphs(nodes, torch.stack([first, first + 1])))
        of = release_plan(job, "B", nodes)
        assert of is not None
        with paying(self.delta) as ledger:
            door = CountPublisher(of.party, of.event, of.inference, ledger)
            door.pay("predictions of the run")
            claim = door.spent().epsilon_total
        votes = sum(share for share in _shares(job, context).values())
        assert isinstance(votes, Tensor)
        every = torch.arange(_TRAINED, nodes).reshape(-1, 2).T
        counting = orient_pairs(every, job.seed)[1].sort().values
        return Played(votes[counting, 0].to(torch.float64), claim)

    @property
    def _job(self) -> SealedJob:
        privacy = {"unit": "edge", "epsilon_total": self.epsilon}
        return sealed(
            parse_job(
                {
                    "paradigm": "sealed",
                    "data": {"dataset": "synthetic", "holders": len(HOLDERS)},
                    "model": {"blocks": ["own"], "edge_slots": 1 << 17},
                    "train": {"epochs": 1, "select_by": "last", "class_weights": "none"},
                    "privacy": privacy,
                }
            )
        )


def _graphs(nodes: int, pairs: Tensor) -> list[PartyGraph]:
    """Of holders that know all nodes, of which the first few alone have columns and are trained on."""
    features = torch.zeros(nodes, 2)
    features[:_TRAINED] = torch.eye(2).repeat(_TRAINED // 2, 1)
    none = torch.empty(2, 0, dtype=torch.int64)
    graphs = [PartyGraph(name, features, none) for name in HOLDERS]
    train = torch.arange(nodes) < _TRAINED
    labels = (torch.arange(nodes) % 4 == 3).to(torch.int64)  # so that without columns the first class is likelier
    graphs[0] = replace(
        graphs[0],
        labels=labels,
        num_classes=_CLASSES,
        train_mask=train,
        val_mask=~train,
        test_mask=torch.zeros_like(train),
    )
    graphs[1] = replace(graphs[1], edge_index=torch.cat([pairs, pairs.flip(0)], 1))
    return graphs


def _shares(job: SealedJob, context: Context) -> Mapping[PartyId, Tensor]:
    """Every party's summand of the votes, when all have trained."""
    hub = MemoryHub([*HOLDERS, SERVER], 60)

    def one(party: PartyId) -> Tensor:
        link = hub.link(party)
        try:
            machine = DealerMachine(link, HOLDERS, system_secrets) if party == SERVER else HolderMachine(link, HOLDERS)
            own = {name: part for name, part in context.data.items() if name == party}
            program = SealedProgram(machine, replace(context, data=own))
            program.enter(trains=True)
            program.begin()
            for step in range(job.train.epochs):
                program.step(step)
            return program.shares()[VOTES]
        except BaseException as error:
            hub.fail(party, error)
            raise

    with ThreadPoolExecutor(len(HOLDERS) + 1) as pool:
        found = {party: pool.submit(one, party) for party in (*HOLDERS, SERVER)}
        return {party: share.result() for party, share in found.items()}
