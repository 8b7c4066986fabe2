"""Picks of hidden rows: one party chooses rows of a wire, and nobody else knows which.

A dealer with data picks of v = Λ − λ, where λ is its own. Of Λ the first holder, who knows it, deals shares in a random
order that it has in common with the dealer, and the second holder has the other share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.link.collectives import broadcast, receive_as
from veilgraph.mpc.sealed.correlations import (
    Dealer,
    Form,
    Holder,
    LinkedDealer,
    Operation,
    Round,
    check_places,
    sum_parts,
)
from veilgraph.mpc.sealed.permutations import rest_after, shuffled, take_rows
from veilgraph.mpc.sealed.wire import Summands, Wire


@dataclass(frozen=True, eq=False)
class Pick(Operation[Summands]):
    """Rows of a wire that one holder chooses, [count] different ones, and nobody else knows."""

    owner: PartyId
    rows: Tensor | None
    count: int
    wire: Wire

    @property
    def _form(self) -> Form:
        return self.wire.shape, self.wire.mask.dtype

    @property
    def _order(self) -> list[Form]:
        return [((self.wire.shape[0],), torch.int64)]

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        if self.owner in holders:
            return [[((self.owner,), holders, 8 * self.count)]]
        return [[(holders[:1], (self.owner,), prod(self.wire.shape) * self.wire.ring // 8)]]

    @override
    def hold(self, holder: Holder) -> Summands:
        """Return this holder's summand of the rows; ``ConfigError``: the owner's are not ``count`` different ones."""
        tag = holder.next(Kind.PLACEMENT)
        if holder.dealer == self.owner:
            return self._for_dealer(holder, tag)
        if holder.party != self.owner:
            holder.turn()
            relative = receive_as(holder.link, self.owner, tag, (self.count,), torch.int64)
            return self._summand(-self._taken(holder.drawn([self._form])[0], relative))
        relative = self._relative(shuffled(holder.drawn(self._order)[0]))
        broadcast(holder.link, holder.others, tag, relative)
        holder.turn()
        (dealt,) = holder.dealt(tag, [self._form])
        return self._summand(take_rows(self.wire.known, self.chosen()) - take_rows(dealt, relative))

    def _for_dealer(self, holder: Holder, tag: Tag) -> Summands:
        """Return this holder's summand of rows that the dealer chooses: the second has a share of these rows of Λ."""
        if holder.leads:
            random = shuffled(holder.drawn(self._order)[0])
            (share,) = holder.drawn_in_pair([self._form])
            rows = take_rows(self.wire.known, random) - share
            holder.link.send(holder.dealer, Tag(Kind.MASKED_ROWS, tag.step), rows)
        holder.turn()
        if holder.is_second:
            relative = holder.told(tag, (self.count,))
            return self._summand(self._taken(holder.drawn_in_pair([self._form])[0], relative))
        return self._summand(self.wire.mask.new_zeros((self.count, *self.wire.shape[1:])))

    def _taken(self, share: Tensor, relative: Tensor) -> Tensor:
        check_places(relative, self.wire.shape[0], self.owner)
        return take_rows(share, relative)

    def chosen(self) -> Tensor:
        """Return the owner's rows; ``ConfigError``: they are not ``count`` different ones."""
        if self.rows is None:
            raise ConfigError(f"{self.owner} chooses rows and gives none: give {self.count}")
        if tuple(self.rows.shape) != (self.count,) or len(set(self.rows.tolist())) < self.count:
            raise ConfigError(
                f"{self.owner} chooses rows {list(self.rows.shape)}: give {self.count} different ones, as all know",
                key="rows",
            )
        return self.rows

    def _relative(self, random: Tensor) -> Tensor:
        return rest_after(self.chosen(), random)

    def _dealers_part(self, dealer: LinkedDealer, relative: Tensor | None) -> Tensor:
        assert relative is not None
        share = dealer.receive(dealer.holders[0], Kind.MASKED_ROWS, self._form)
        return take_rows(share, relative) - take_rows(self.wire.mask, self.chosen())

    def _summand(self, part: Tensor) -> Summands:
        return Summands(part, self.wire.bits)

    @override
    def deal(self, dealer: Dealer) -> Summands:
        """Deal the owner all rows of λ in its random order, less the others' shares; the own summand is zero.

        Of rows that the dealer chooses itself, its summand is its share of Λ less λ.
        """
        dealer.next()
        mask, is_own = self.wire.mask, self.owner == dealer.party
        random = shuffled(dealer.draw(dealer.holders[0] if is_own else self.owner, self._order)[0])
        nothing = mask.new_zeros((self.count, *self.wire.shape[1:]))
        if is_own:
            relative = dealer.own(lambda _: self._relative(random))
            dealer.tell(Kind.PLACEMENT, dealer.holders[1:2], (self.count,), relative)
            part = dealer.own(lambda linked: self._dealers_part(linked, relative))
            return self._summand(nothing if part is None else part)

        def make() -> list[Tensor]:
            others = sum_parts(dealer.draw(holder, [self._form])[0] for holder in dealer.others(self.owner))
            return [take_rows(mask, random) - others]

        dealer.deal(self.owner, [self._form], make)
        return self._summand(nothing)

    @override
    def plain(self) -> Summands:
        assert self.rows is not None
        return self._summand(self.wire.known[self.rows])
