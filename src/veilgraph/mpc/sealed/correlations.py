"""Correlated randomness at both of its ends: what the dealer and one holder both expand, and what the dealer sends.

Where all holders get shares of a value that the dealer makes, all but the last draw theirs; the last one is sent what
is missing.

The dealer may be a party without data, or one of the holders. The latter's data are its own summands, and what it puts
in goes out under the masks of all others, who alone compute: it never gets a Λ. What the first two of these draw from a
stream of their own, it does not know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.randomness import Keystream
from veilgraph.core.secrets import SEED_BYTES, SecretSource, system_secrets
from veilgraph.core.types import NOBODY, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import broadcast, gather, receive_as
from veilgraph.mpc.ring import encode
from veilgraph.mpc.sealed.kept_bytes import Form, Kept, keep, kept_form, restore

STRIDE_BYTES: Final = 16 << 20  # after so many bytes dealt to it a holder says that it has used them
AHEAD_STRIDES: Final = 4  # how many of these strides the dealer may be ahead

# Holder → what it draws in an operation: its shares of what is dealt (the last holder has none), and its own masks.
Draws: TypeAlias = dict[PartyId, tuple[list[Tensor], list[Tensor]]]
# who sends, to whom else, and how many bytes to each
Message: TypeAlias = tuple[Sequence[PartyId], Sequence[PartyId], int]
Round: TypeAlias = Sequence[Message]  # messages that wait for the rounds before
Result = TypeVar("Result")
Own = TypeVar("Own")
Result_co = TypeVar("Result_co", covariant=True)
REMEDY: Final = "lower sealed.bits, or scale the columns of the tables"
_ALIGNED: Final = 8


def _padded_bytes(form: Form) -> int:
    shape, dtype = form
    return -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED


def size_of(forms: Sequence[Form]) -> int:
    """Bytes of tensors of such forms, each filled up to whole words."""
    return sum(map(_padded_bytes, forms))


def _pack(parts: Sequence[Tensor], forms: Sequence[Form]) -> Tensor:
    """Join tensors as uint8 [``size_of``], each filled up to whole words with bytes of its own."""
    buffer, start = torch.zeros(size_of(forms), dtype=torch.uint8), 0
    for part, form in zip(parts, forms, strict=True):
        octets, size = part.contiguous().view(-1).view(torch.uint8), _padded_bytes(form)
        end = start + octets.numel()
        buffer[start:end] = octets
        filling = start + size - end  # by bytes of the same part, as zeros would not look like noise in an audit
        buffer[end : end + filling] = octets[:filling].repeat(filling)[:filling]
        start += size
    return buffer


def _unpack(buffer: Tensor, forms: Sequence[Form]) -> list[Tensor]:
    parts, start = [], 0
    for form in forms:
        shape, dtype = form
        parts.append(buffer[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape))
        start += _padded_bytes(form)
    return parts


def sum_parts(parts: Iterable[Tensor]) -> Tensor:
    """The sum of one or more tensors, in their ring."""
    return reduce(torch.add, parts)


class Stream:
    """Uniform tensors that the dealer and one holder draw in the same order, from 32 secret bytes."""

    def __init__(self, seed: bytes) -> None:
        self._keystream = Keystream(seed, "sealed")

    def draw(self, forms: Sequence[Form]) -> list[Tensor]:
        """Draw the next tensors of these forms, uniform in Z_2^32 or Z_2^64 by their dtype."""
        return _unpack(self._keystream.take(size_of(forms)), forms)

    def fork(self, count: int) -> list[Stream]:
        """Draw the seeds of so many streams."""
        return [Stream(seed.numpy().tobytes()) for seed in self.draw([((SEED_BYTES,), torch.uint8)] * count)]


class Operations:
    """Numbers of operations: those of parts of a program that run side by side are different."""

    def __init__(self, newest: int = -1, stride: int = 1) -> None:
        self.newest, self._stride = newest, stride

    def next(self) -> int:
        """Begin the next operation, and return its number."""
        self.newest += self._stride
        return self.newest

    def fork(self, count: int) -> list[Operations]:
        """Return the numbers of so many parts: of each every so many of these."""
        stride = self._stride * count
        return [Operations(self.newest + self._stride * (place + 1) - stride, stride) for place in range(count)]

    def join(self, parts: Iterable[Operations]) -> None:
        """Go on behind the numbers that all parts have used."""
        self.newest = max([self.newest, *(part.newest for part in parts)])


def _go_on() -> None:
    """Take a turn where no other part of the program runs."""


class Pace:
    """Count of the bytes dealt to a holder, the same at both ends: it acknowledges them stride by stride."""

    def __init__(self) -> None:
        self._bytes = self._awaited = 0

    def due(self) -> range:
        """Return the strides whose acknowledgements the dealer must receive before it sends its next message."""
        begin, self._awaited = self._awaited, max(self._awaited, self._bytes // STRIDE_BYTES - AHEAD_STRIDES)
        return range(begin, self._awaited)

    def count(self, size: int) -> range:
        """Count a message's bytes, and return the strides that it completes."""
        before = self._bytes // STRIDE_BYTES
        self._bytes += size
        return range(before, self._bytes // STRIDE_BYTES)


def _ready_tag(stride: int) -> Tag:
    return Tag(Kind.READY, stride)


def encoded(party: PartyId, values: Tensor | None, shape: tuple[int, ...], bits: int) -> Tensor:
    """Return a party's input, floating or whole numbers, as int64 with so many fractional bits.

    Raises ``ConfigError``: it is None or not of ``shape``, which all know; ``RangeOverflow``: it does not fit.
    """
    if values is None or tuple(values.shape) != shape:
        found = None if values is None else list(values.shape)
        raise ConfigError(f"{party} puts in {found}, and {list(shape)} is what all know")
    if not values.is_floating_point():
        return values.to(torch.int64) << bits
    return encode(values, bits, f"{party}'s input", REMEDY)


class Holder:
    """The end of a holder that computes, with what it has in common with the dealer.

    ``leads``: it is the first, which adds what all know. The last is sent what is missing from the others' shares.
    Where ``shares_stream``, the dealer has data or is ``NOBODY``, and the first two holders have a stream of their own.
    """

    def __init__(
        self,
        link: Link,
        holders: Sequence[PartyId],
        dealer: PartyId,
        secrets: SecretSource = system_secrets,
        *,
        shares_stream: bool = False,
    ) -> None:
        self.link, self.party, self.dealer, self._pace = link, link.party, dealer, Pace()
        self.others = [holder for holder in holders if holder != link.party]
        self.leads, self._is_last = link.party == holders[0], link.party == holders[-1]
        self.is_second = link.party in holders[1:2]
        self._operations = Operations()
        self.turn: Callable[[], None] = _go_on
        """Called once a round, by every holder and the dealer: it lets other parts of the program go on.

        What the dealer deals before its turn a holder receives before its own: a dealer that is too far ahead waits for
        acknowledgements, and so must not wait for those of a later turn.
        """
        self._stream = Stream(secrets(SEED_BYTES)) if dealer == NOBODY else self._received_stream(dealer)
        self._pair: Stream | None = None
        if shares_stream and self.leads:
            seed = secrets(SEED_BYTES)
            link.send(holders[1], Tag(Kind.SEED), torch.frombuffer(bytearray(seed), dtype=torch.uint8))
            self._pair = Stream(seed)
        elif shares_stream and self.is_second:
            self._pair = self._received_stream(holders[0])

    def _received_stream(self, sender: PartyId) -> Stream:
        return Stream(receive_as(self.link, sender, Tag(Kind.SEED), (SEED_BYTES,), torch.uint8).numpy().tobytes())

    def drawn(self, forms: Sequence[Form]) -> list[Tensor]:
        """Draw this holder's own masks, of these forms; the dealer draws the same."""
        return self._stream.draw(forms)

    def drawn_in_pair(self, forms: Sequence[Form]) -> list[Tensor]:
        """Draw what the first two holders both draw, and a dealer with data does not know."""
        assert self._pair is not None
        return self._pair.draw(forms)

    def shared(
        self, tag: Tag, forms: Sequence[Form], own: Sequence[Form] = (), kept: Sequence[Kept] = ()
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return this holder's shares of what all get shares of, of ``forms``, and its own masks, of ``own``.

        ``kept``: of how much the last holder is sent, for each form; by default all.
        """
        if not (self._is_last and forms):
            drawn = self._stream.draw([*forms, *own])
            return drawn[: len(forms)], drawn[len(forms) :]
        if not kept:
            return self.dealt(tag, forms), self._stream.draw(own)
        octets = self.dealt(tag, [*map(kept_form, forms, kept)])
        return [*map(restore, octets, kept, forms)], self._stream.draw(own)

    def dealt(self, tag: Tag, forms: Sequence[Form]) -> list[Tensor]:
        """Receive tensors of these forms that the dealer sends this holder alone, and acknowledge full strides."""
        size = size_of(forms)
        return _unpack(self._from_dealer(Tag(Kind.CORRELATION, tag.step), ((size,), torch.uint8), size), forms)

    def told(self, tag: Tag, shape: tuple[int, ...]) -> Tensor:
        """Receive int64 of ``shape`` that a dealer with data puts in, and acknowledge full strides."""
        form: Form = shape, torch.int64
        return self._from_dealer(tag, form, size_of([form]))

    def _from_dealer(self, tag: Tag, form: Form, size: int) -> Tensor:
        message = receive_as(self.link, self.dealer, tag, *form)
        for stride in self._pace.count(size):
            self.link.send(self.dealer, _ready_tag(stride), torch.ones(1, dtype=torch.uint8))
        return message

    def next(self, kind: Kind) -> Tag:
        """Begin the next operation, and return the tag of its messages."""
        return Tag(kind, self._operations.next())

    def fork(self, count: int) -> list[Holder]:
        """Return the ends of so many parts of the program that run side by side, with streams of their own."""
        lanes, streams = [copy(self) for _ in range(count)], self._stream.fork(count)
        pairs = [None] * count if self._pair is None else self._pair.fork(count)
        for lane, stream, pair, operations in zip(lanes, streams, pairs, self._operations.fork(count), strict=True):
            lane._stream, lane._pair, lane._operations = stream, pair, operations
        return lanes

    def join(self, lanes: Iterable[Holder]) -> None:
        """Go on where these parts have ended."""
        self._operations.join(lane._operations for lane in lanes)

    def opened(self, tag: Tag, part: Tensor) -> Tensor:
        """Exchange parts with all other holders, and return the sum of all, which all learn."""
        return sum(self.exchange(tag, part).values(), start=part)

    def exchange(self, tag: Tag, part: Tensor) -> dict[PartyId, Tensor]:
        """Send all other holders a part, and return theirs. One round."""
        broadcast(self.link, self.others, tag, part)
        self.turn()
        return gather(self.link, self.others, tag, part.shape, part.dtype)


def check_places(places: Tensor, below: int, sender: PartyId) -> None:
    """Raise ``ProtocolError`` unless all places are in [0, ``below``)."""
    if places.numel() and not (int(places.min()) >= 0 and int(places.max()) < below):
        raise ProtocolError(
            f"{sender} sent places outside of the {below} that there are; ask what it runs", code="places", party=sender
        )


class Dealer(ABC):
    """The dealer's end. What it deals is made by functions, which a dealer that only counts does not call.

    ``holders``: those that compute, in the job's order; ``party``: the dealer, which may be another holder with data.
    """

    device = "cpu"

    def __init__(self, party: PartyId, holders: Sequence[PartyId]) -> None:
        self.party, self.holders = party, tuple(holders)
        self.operations = Operations()
        self.turn: Callable[[], None] = _go_on
        self.turns = 0
        """How many of them were taken."""

    def take_turn(self) -> None:
        """Let other parts of the program go on."""
        self.turns += 1
        self.turn()

    def next(self) -> None:
        """Begin an operation, or a part of one with messages of its own."""
        self.operations.next()

    def others(self, owner: PartyId) -> list[PartyId]:
        """All holders but one."""
        return [holder for holder in self.holders if holder != owner]

    @abstractmethod
    def draw(self, holder: PartyId, forms: Sequence[Form]) -> list[Tensor]:
        """Draw the same uniform tensors as ``holder`` does; of ``NOBODY`` ones that nobody else has."""

    @abstractmethod
    def made(self, forms: Sequence[Form], make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Return what ``make`` gives, tensors of these forms; a dealer that only counts does not call it."""

    @abstractmethod
    def deal(self, holder: PartyId, forms: Sequence[Form], make: Callable[[], list[Tensor]]) -> None:
        """Send one holder what ``make`` gives, tensors of these forms."""

    @abstractmethod
    def own(self, make: Callable[[LinkedDealer], Own]) -> Own | None:
        """Return what ``make`` gives from this party's own data; None, and no call, at a dealer that only counts."""

    @abstractmethod
    def tell(self, kind: Kind, holders: Sequence[PartyId], shape: tuple[int, ...], values: Tensor | None) -> None:
        """Send holders what ``own`` gave, int64 of ``shape``."""

    def correct(
        self,
        forms: Sequence[Form],
        make: Callable[[], list[Tensor]],
        draws: Draws,
        *,
        bitwise: int = 0,
        kept: Sequence[Kept] = (),
    ) -> list[Tensor]:
        """Return ``make()``; send the last holder what others' drawn shares lack: the first ``bitwise`` by XOR.

        ``kept``: how much of that is sent, for each form; by default all.
        """
        *before, last = self.holders
        secrets = self.made(forms, make)

        def missing() -> list[Tensor]:
            others = zip(*(draws[holder][0] for holder in before), strict=True)
            signs = [torch.bitwise_xor] * bitwise + [torch.sub] * (len(secrets) - bitwise)
            return [reduce(sign, shares, secret) for sign, shares, secret in zip(signs, others, secrets, strict=True)]

        sent = [*map(kept_form, forms, kept)] if kept else forms
        self.deal(last, sent, lambda: [*map(keep, missing(), kept)] if kept else missing())
        return secrets

    def draws(self, forms: Sequence[Form], own: Sequence[Form] = ()) -> Draws:
        """Draw for all holders: shares of ``forms``, none for the last one, and masks of its ``own``."""
        found = Draws()
        for holder in self.holders:
            shares = () if holder == self.holders[-1] else forms
            drawn = self.draw(holder, [*shares, *own])
            found[holder] = drawn[: len(shares)], drawn[len(shares) :]
        return found

    def zeros(self, shape: Sequence[int]) -> Tensor:
        """Return zeros of Z_2^64: int64 of ``shape``."""
        return torch.zeros(tuple(shape), dtype=torch.int64, device=self.device)


class LinkedDealer(Dealer):
    """A dealer that deals over a link to ``holders``, in the job's order; nothing of its session is saved."""

    def __init__(self, link: Link, holders: Sequence[PartyId], secrets: SecretSource) -> None:
        super().__init__(link.party, holders)
        seeds = {holder: secrets(SEED_BYTES) for holder in (*holders, NOBODY)}
        self._link, self.streams = link, {holder: Stream(seed) for holder, seed in seeds.items()}
        self._paces = {holder: Pace() for holder in holders}
        for holder in holders:
            link.send(holder, Tag(Kind.SEED), torch.frombuffer(bytearray(seeds[holder]), dtype=torch.uint8))

    def fork(self, count: int) -> list[LinkedDealer]:
        """Return the ends of so many parts of the program that run side by side, with streams of their own."""
        lanes = [copy(self) for _ in range(count)]
        streams = {holder: stream.fork(count) for holder, stream in self.streams.items()}
        for place, (lane, operations) in enumerate(zip(lanes, self.operations.fork(count), strict=True)):
            lane.streams = {holder: forked[place] for holder, forked in streams.items()}
            lane.operations = operations
        return lanes

    def join(self, lanes: Iterable[LinkedDealer]) -> None:
        """Go on where these parts have ended."""
        self.operations.join(lane.operations for lane in lanes)

    @override
    def draw(self, holder: PartyId, forms: Sequence[Form]) -> list[Tensor]:
        return self.streams[holder].draw(forms)

    @override
    def made(self, forms: Sequence[Form], make: Callable[[], list[Tensor]]) -> list[Tensor]:
        return make()

    @override
    def deal(self, holder: PartyId, forms: Sequence[Form], make: Callable[[], list[Tensor]]) -> None:
        self._send(holder, Kind.CORRELATION, _pack(make(), forms))

    @override
    def own(self, make: Callable[[LinkedDealer], Own]) -> Own | None:
        return make(self)

    @override
    def tell(self, kind: Kind, holders: Sequence[PartyId], shape: tuple[int, ...], values: Tensor | None) -> None:
        assert values is not None
        for holder in holders:
            self._send(holder, kind, values)

    def receive(self, sender: PartyId, kind: Kind, form: Form) -> Tensor:
        """Receive a holder's message to a dealer with data, in this operation."""
        return receive_as(self._link, sender, Tag(kind, self.operations.newest), *form)

    def _send(self, holder: PartyId, kind: Kind, message: Tensor) -> None:
        pace = self._paces[holder]
        for stride in pace.due():
            receive_as(self._link, holder, _ready_tag(stride), (1,), torch.uint8)
        pace.count(message.numel() * message.element_size())
        self._link.send(holder, Tag(kind, self.operations.newest), message)


class Operation(Protocol[Result_co]):
    """One of a program's: one description, from which all four machines follow.

    What it costs follows from ``rounds``, and from ``deal`` on shapes alone.
    """

    def hold(self, holder: Holder, /) -> Result_co:
        """Compute a holder's part of the result from Λ and its shares of λ."""

    def deal(self, dealer: Dealer, /) -> Result_co:
        """Compute the dealer's part from λ, and its data if any; only functions given to ``Dealer`` read numbers."""

    def plain(self) -> Result_co:
        """Compute the twin's result, from the numbers themselves."""

    def rounds(self, holders: Sequence[PartyId], /) -> Sequence[Round]:
        """List the messages that the computing ``holders`` send one another, or a dealer with data, round by round."""


@dataclass(frozen=True)
class Step(Generic[Result]):
    """An operation of four parts."""

    hold: Callable[[Holder], Result]
    deal: Callable[[Dealer], Result]
    plain: Callable[[], Result]
    messages: Sequence[Round] = ()

    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        """List the messages that holders send one another, round by round."""
        return self.messages
