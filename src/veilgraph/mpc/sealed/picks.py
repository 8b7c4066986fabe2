"""Picks of hidden rows: one party chooses rows of a wire, and nobody else knows which.

The owner tells its rows once. Columns are dealt in portions, so that nobody has a second copy of all of them.

A dealer with data picks of v = Λ − λ, where λ is its own. Of Λ the first holder, who knows it, deals shares in a random
order that it has in common with the dealer, and the second holder has the other share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.link.collectives import broadcast, receive_as
from veilgraph.mpc.sealed.correlations import Dealer, Holder, LinkedDealer, Operation, Round, check_places, sum_parts
from veilgraph.mpc.sealed.kept_bytes import Form
from veilgraph.mpc.sealed.permutations import rest_after, shuffled, take_rows
from veilgraph.mpc.sealed.wire import Summands, Wire, concatenate, joined, row_slices


@dataclass(frozen=True, eq=False)
class Pick(Operation[Summands]):
    """Rows of wires side by side that one holder chooses, [count] different ones, and nobody else knows."""

    owner: PartyId
    rows: Tensor | None
    count: int
    wires: Sequence[Wire]

    @property
    def _order(self) -> list[Form]:
        return [((self.wires[0].shape[0],), torch.int64)]

    @property
    def _portions(self) -> Iterator[Wire]:
        """Yield columns of all wires in turn, so many as are in hand at a time."""
        ends = [0, *accumulate(wire.shape[1] for wire in self.wires)]
        for columns in row_slices((ends[-1], self.wires[0].shape[0])):
            parts = [
                wire[:, max(0, columns.start - start) : max(0, columns.stop - start)]
                for start, wire in zip(ends, self.wires, strict=False)
            ]
            yield concatenate([part for part in parts if part.shape[1]] or parts[:1], 1)

    def _summands(self, parts: Iterator[Tensor]) -> Summands:
        """Put this party's summands of all portions side by side."""
        bits, columns = self.wires[0].bits, sum(wire.shape[1] for wire in self.wires)
        return Summands(joined((Wire(None, part, bits) for part in parts), columns, 1).mask, bits)

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        if self.owner in holders:
            return [[((self.owner,), holders, 8 * self.count)]]
        sizes = (prod(wire.shape) * wire.ring // 8 for wire in self._portions)
        return [[(holders[:1], (self.owner,), size) for size in sizes]]

    @override
    def hold(self, holder: Holder) -> Summands:
        """Return this holder's summand of the rows; ``ConfigError``: the owner's are not ``count`` different ones."""
        tag = holder.next(Kind.PLACEMENT)
        made = (self._for_dealer if holder.dealer == self.owner else self._for_holder)(holder, tag)
        tags = chain([tag], iter(lambda: holder.next(Kind.PLACEMENT), None))
        found = self._summands(made(next(tags), wire) for wire in self._portions)
        if self.owner in (holder.party, holder.dealer):
            holder.turn()  # behind all that the dealer deals, or waits for
        return found

    def _for_holder(self, holder: Holder, tag: Tag) -> Callable[[Tag, Wire], Tensor]:
        """Return what makes this holder's summand of a portion of rows that a holder chooses."""
        if holder.party != self.owner:
            holder.turn()
            relative = receive_as(holder.link, self.owner, tag, (self.count,), torch.int64)
            self._check(relative)
            return lambda _, wire: -take_rows(holder.drawn([_form(wire)])[0], relative)
        rows = self.chosen()
        relative = rest_after(rows, shuffled(holder.drawn(self._order)[0]))
        broadcast(holder.link, holder.others, tag, relative)

        def made(tag: Tag, wire: Wire) -> Tensor:
            (dealt,) = holder.dealt(tag, [_form(wire)])
            return take_rows(wire.known, rows) - take_rows(dealt, relative)

        return made

    def _for_dealer(self, holder: Holder, tag: Tag) -> Callable[[Tag, Wire], Tensor]:
        """Return what makes this holder's summand of a portion of rows that the dealer chooses."""
        random = shuffled(holder.drawn(self._order)[0]) if holder.leads else None
        relative = holder.told(tag, (self.count,)) if holder.is_second else None

        def made(tag: Tag, wire: Wire) -> Tensor:
            if relative is not None:
                self._check(relative)
                return take_rows(holder.drawn_in_pair([_form(wire)])[0], relative)
            if random is not None:
                (share,) = holder.drawn_in_pair([_form(wire)])
                rows = take_rows(wire.known, random) - share
                holder.link.send(holder.dealer, Tag(Kind.MASKED_ROWS, tag.step), rows)
            return wire.mask.new_zeros((self.count, wire.shape[1]))

        return made

    def _check(self, relative: Tensor) -> None:
        check_places(relative, self.wires[0].shape[0], self.owner)

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

    @override
    def deal(self, dealer: Dealer) -> Summands:
        """Deal the owner all rows of λ in its random order, less the others' shares; the own summand is zero.

        Of rows that the dealer chooses itself, its summand is its share of Λ less λ.
        """
        dealer.next()
        is_own = self.owner == dealer.party
        (numbers,) = dealer.draw(dealer.holders[0] if is_own else self.owner, self._order)
        random = dealer.own(lambda _: shuffled(numbers))
        relative = rest_after(self.chosen(), random) if is_own and random is not None else None
        if is_own:
            dealer.tell(Kind.PLACEMENT, dealer.holders[1:2], (self.count,), relative)
        return self._summands(
            self._dealt(dealer, wire, random, relative, first=not place) for place, wire in enumerate(self._portions)
        )

    def _dealt(
        self, dealer: Dealer, wire: Wire, random: Tensor | None, relative: Tensor | None, *, first: bool
    ) -> Tensor:
        """Deal a portion, and return the dealer's summand of it."""
        if not first:
            dealer.next()
        nothing = wire.mask.new_zeros((self.count, wire.shape[1]))
        if self.owner == dealer.party:
            part = dealer.own(partial(self._dealers_part, wire, relative))
            return nothing if part is None else part

        def make() -> list[Tensor]:
            assert random is not None
            others = sum_parts(dealer.draw(holder, [_form(wire)])[0] for holder in dealer.others(self.owner))
            return [take_rows(wire.mask, random) - others]

        dealer.deal(self.owner, [_form(wire)], make)
        return nothing

    def _dealers_part(self, wire: Wire, relative: Tensor | None, dealer: LinkedDealer) -> Tensor:
        assert relative is not None
        assert self.rows is not None
        share = dealer.receive(dealer.holders[0], Kind.MASKED_ROWS, _form(wire))
        return take_rows(share, relative) - take_rows(wire.mask, self.rows)

    @override
    def plain(self) -> Summands:
        assert self.rows is not None
        rows = self.rows
        return Summands(torch.cat([wire.known[rows] for wire in self.wires], 1), self.wires[0].bits)


def _form(wire: Wire) -> Form:
    return wire.shape, wire.mask.dtype
