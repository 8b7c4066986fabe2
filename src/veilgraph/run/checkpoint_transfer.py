"""A holder that averaging went on without gets the checkpoint that the others go on from.

Its weights, the best ones and the judgement are the same at all holders, which were told each of them. The holder keeps
the checkpoint as if it had been there when it was saved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link.collectives import broadcast, receive_as
from veilgraph.protocol.judge import Judgement
from veilgraph.protocol.resumption import Start
from veilgraph.protocol.role import Role
from veilgraph.run.checkpoints import BEST, Checkpoints, is_final

_log = logging.getLogger("veilgraph")
_TENSORS: Final = Tag(Kind.AVERAGED, 0, 1)
_JUDGEMENT: Final = Tag(Kind.AVERAGED, 0, 2)
_FACTS: Final = 6
"""Numbers of a judgement, whether training had stopped, and whether the checkpoint is the final one."""


def transfer(role: Role, checkpoints: Checkpoints, start: Start, state: Callable[[], Mapping[str, Tensor]]) -> None:
    """The first holder that has the checkpoint of a start gives it to those behind, where there are any.

    ``state`` gives what a checkpoint of this party holds, by name: of the shapes of what comes.
    """
    if not start.behind:
        return
    link, holders = role.session.link, role.session.holders
    giver = next(holder for holder in holders if holder not in start.behind)
    if link.party == giver:
        _, tensors, facts = checkpoints.load(start.point)
        numbers = [*astuple(Judgement(**facts["judgement"])), facts["stopped"], is_final(facts)]
        broadcast(link, start.behind, _JUDGEMENT, torch.tensor(numbers, dtype=torch.float64).view(torch.int64))
        content = torch.cat([tensors[name].double().reshape(-1) for name in sorted(tensors)])
        broadcast(link, start.behind, _TENSORS, content)
    elif link.party in start.behind:
        told = receive_as(link, giver, _JUDGEMENT, (_FACTS,), torch.int64).view(torch.float64).tolist()
        epoch, score, loss, since, stopped, final = told
        epochs = range(role.session.settings.train.epochs + 1)
        if epoch not in epochs or since not in epochs or {stopped, final} - {0, 1}:
            raise ProtocolError(
                f"{giver} gives a checkpoint with judgement {told}, which is none of this job; ask it what it runs",
                code="checkpoint",
                party=giver,
            )
        live = state()
        names = sorted(name for name in live if not final or name.startswith(BEST))
        sizes = [live[name].numel() for name in names]
        content = receive_as(link, giver, _TENSORS, (sum(sizes),), torch.float64)
        parts = zip(names, torch.split(content, sizes), strict=True)
        tensors = {name: part.view_as(live[name]).to(live[name].dtype) for name, part in parts}
        judgement = Judgement(int(epoch), score, loss, int(since))
        checkpoints.adopt(
            start.point, tensors, {"judgement": asdict(judgement), "stopped": bool(stopped)}, final=bool(final)
        )
        _log.info("%s goes on from the checkpoint of epoch %d that %s has", link.party, start.epoch, giver)
