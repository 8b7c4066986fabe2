"""Additive shares over Z_2^64 (VFGNN 2.2): uniform one by one, the secret when summed over the holders."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from veilgraph.core.types import Link, PartyId, Tag
from veilgraph.link.collectives import exchange
from veilgraph.mpc.mask import PairwiseMasks, add


def share_contribution(contribution: Tensor, masks: PairwiseMasks, purpose: str) -> Tensor:
    """Turns what each holder contributes to a secret sum into its uniform share of that sum, without a message.

    Args:
        contribution: int64, this holder's summand; the secret is the sum over the holders.
        masks: the pairwise masks of this session.
        purpose: names the secret; never used twice in a session.
    """
    return contribution + masks.mask(purpose, 0, tuple(contribution.shape))


def open_shares(link: Link, others: Iterable[PartyId], tag: Tag, share: Tensor) -> Tensor:
    """Every holder sends its share to every other; all reconstruct the sum mod 2^64 (VFGNN Rec)."""
    return add([share, *exchange(link, others, tag, share).values()])
