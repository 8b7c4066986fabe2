"""One order of the common nodes for as long as these and the first holder's seed are the same (docs/alignment.md).

An alignment lists the common ids by tokens, in another order each time, and what is drawn for a row in training would
follow that. So the first holder orders the ids by keyed hashes and tells the other holders, and not the server, where
each goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.collectives import broadcast, receive_as


def agree_on_order(link: Link, holders: Sequence[PartyId], ids: Sequence[str], streams: LearningStreams) -> Tensor:
    """The order of rows, of the first holder's choice; every holder calls it after ``align_holder``, once per link.

    Args:
        link: of this holder. What goes over it the server must not read.
        holders: in the job's order.
        ids: the C common ones of this holder, in the order of their tokens.
        streams: of this holder; those of the first holder give the order.

    Returns:
        Tensor[C] int64, the places in ``ids`` from which the rows come.

    Raises:
        ProtocolError: the first holder sent something that is no order of C rows.
        LinkError: as ``Link.send`` and ``receive_as``.
    """
    first, *others = holders
    tag, count = Tag(Kind.ROW_ORDER), len(ids)
    if link.party == first:
        order = torch.tensor(order_of(ids, streams), dtype=torch.int32)
        broadcast(link, others, tag, order)
        return order.long()
    order = receive_as(link, first, tag, (count,), torch.int32).long()
    if not torch.equal(order.sort().values, torch.arange(count)):
        raise ProtocolError(
            f"{first} sent {link.party} {tag} with places that are not those of {count} rows, each once; ask {first} "
            "what it runs",
            code="order",
            key=tag,
            party=first,
        )
    return order


def order_of(ids: Sequence[str], streams: LearningStreams) -> list[int]:
    """Places of ``ids`` by a hash of each under a key that follows from the seed and from all of them together.

    Who knows the seed cannot compute where an id stands without knowing every other, and the order of other ids is
    another altogether.
    """
    every = hashlib.sha256()
    for name in sorted(ids):
        every.update(hashlib.sha256(name.encode()).digest())
    return streams.order(f"rows/{every.hexdigest()}", ids)
