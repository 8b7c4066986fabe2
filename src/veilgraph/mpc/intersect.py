"""Private alignment: holders agree on their common ids and on one order of them (docs/explanation/alignment.md).

A Diffie–Hellman set intersection for any number of holders on Curve25519, by u-coordinates, which are the same for P
and −P (``curve25519``). Holder i has two secret scalars, bᵢ and sᵢ; its key is kᵢ = ±bᵢ·sᵢ. Its ids leave it as
bᵢ·H(id), go round the ring of holders, where each other holder j multiplies by kⱼ, and come back; only then it
multiplies by sᵢ. It alone so holds ±(Π k)·H(id) of its own ids, the same point for the same id at every holder; no
holder ever sees another's. Hashes of these points go to the server, which knows no id and no key, intersects them, and
returns the common ones in ascending order: the agreed order.

Two holders are no ring, as each learns by the result which of its ids the other has. The one with more ids, or the
first, has the only key, k. It computes k·H(id) of its ids alone, and sends the other holder hashes of these points. The
other one gets k·H(id) of its own ids by points that it blinds. It sends the server random tokens for ids that are not
common: on their true ones the server and the holder of k could test guesses together.

An alignment lists the common ids in another order each time, and what is drawn for a row in training would follow that.
So the first holder orders the ids by keyed hashes and tells the other holders, and not the server, where each goes.

Ids that an earlier alignment found to be common need no points: all holders know them, and the server does not. Their
tokens are hashes under a key that the first holder draws for this alignment and tells the other holders alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.errors import DataError, ProtocolError
from veilgraph.core.randomness import LearningStreams, expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource, system_secrets
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import broadcast, receive_as
from veilgraph.mpc.curve25519 import draw_inverses, draw_scalars, hash_and_multiply, multiply
from veilgraph.mpc.hash_to_curve import POINT_BYTES, HashAll, hash_all, hash_processes
from veilgraph.mpc.ring import available_cores, in_parallel
from veilgraph.mpc.x25519 import Points

TOKEN_BYTES: Final = 16
# Points per message: 30 to 200 milliseconds of work. A piece with fewer rows, perhaps none, ends its list.
PIECE_ROWS: Final = 1 << 13
MAX_IDS: Final = 10_000_000  # largest set of a holder: a list without end would keep its relays busy for ever

_HASHING: Final = 8  # processes at most: threads of this one keep up with no more
_WORTHWHILE: Final = 1 << 4  # pieces for each process at least: a start takes as long as a few
RING: Final = 3  # holders at least; two compare without one
_KEY_ROUND: Final = 1  # of the tag under which the first holder tells others the key of known ids' tokens
_TOKEN_DTYPE: Final = np.dtype(f"S{TOKEN_BYTES}")

Tokens = NDArray[np.bytes_]  # [n] S16: compared as 16 unsigned bytes, the first the most significant


@dataclass(frozen=True, slots=True, eq=False)
class _Alignment:
    """A holder's result of an alignment.

    Attributes:
        rows: Tensor[C] int64, where the common ids are in this holder's list, in the order all holders agree on.
        identity: SHA-256 of the common tokens, hexadecimal; the same at all parties of one alignment and of no other.
        set_sizes: holder → number of its ids that went round, in the job's order of holders; empty where none did.
    """

    rows: Tensor
    identity: str
    set_sizes: Mapping[PartyId, int]


@dataclass(frozen=True, slots=True)
class _ServerAlignment:
    """The server's result: ``common``, the number C of common ids, and the rest as in ``_Alignment``."""

    common: int
    identity: str
    set_sizes: Mapping[PartyId, int]


def align_holder(
    link: Link,
    holders: Sequence[PartyId],
    ids: Sequence[str],
    secrets: SecretSource = system_secrets,
    stated: Mapping[PartyId, int] | None = None,
    *,
    known: Sequence[str] = (),
    grows: bool = True,
) -> _Alignment:
    """Find the ids that all holders have; every holder calls it, and the server ``align_server``. Once per link.

    ``ids`` are compared as UTF-8 text, exactly as given. ``secrets`` gives scalars and the order in which ids leave;
    the agreed order depends on all holders' scalars. ``stated``: holder → most ids that it may bring; default:
    ``MAX_IDS`` each. ``known`` were common in an earlier alignment of these holders, and do not go round; without
    ``grows`` no id does, as where no holder has had a new one since.

    Raises:
        DataError: an id is empty, occurs twice or is no text; there are none or too many; or none is common to all.
        ProtocolError: another party sent something that is not a curve point, or lost, added or doubled something.
    """
    check_ids(link.party, ids)
    set_sizes: dict[PartyId, int] = {}
    is_known = np.fromiter(map(set(known).__contains__, ids), np.bool_, len(ids))
    places, kept = np.flatnonzero(~is_known & grows), np.flatnonzero(is_known)
    tokens, ring = np.empty(0, _TOKEN_DTYPE), _Ring(link, holders, secrets, stated or {})
    if grows:
        tokens, sizes = (ring.go_round if len(holders) >= RING else ring.compare)(ids, places)
        set_sizes = {**sizes, link.party: len(places)}
    if known:
        key = _agree_on_key(link, holders, secrets)
        digests = [
            hashlib.blake2b(ids[row].encode(), key=key, digest_size=TOKEN_BYTES).digest() for row in kept.tolist()
        ]
        tokens = np.concatenate([tokens, _to_tokens(digests)])
        places = np.concatenate([places, kept])
    ascending = _ascending_order(tokens)
    tokens = tokens[ascending]
    ring.check_once(tokens)
    link.send(SERVER, Tag(Kind.ID_TOKENS), _to_tensor(tokens))
    common = _receive_tokens(link, SERVER, Tag(Kind.COMMON_IDS))
    if not _are_in(common, tokens).all():
        raise ProtocolError(
            f"{SERVER} sent {link.party} common ids that {link.party} does not have", code="foreign-ids", party=SERVER
        )
    if set_sizes and len(common) > len(kept) + min(set_sizes.values()):
        fewest = min(set_sizes, key=set_sizes.__getitem__)
        raise ProtocolError(
            f"{len(common)} ids of {link.party} are common, and {fewest} brought fewer; ask {fewest} what it runs",
            code="too-many-ids",
            key=fewest,
            value=len(common),
            party=fewest,
        )
    _check_any_common(common, holders)
    rows = torch.from_numpy(places[ascending[np.searchsorted(tokens, common)]])
    sizes = {holder: set_sizes[holder] for holder in holders if holder in set_sizes}
    return _Alignment(rows, _tokens_digest(common), sizes)


def _agree_on_key(link: Link, holders: Sequence[PartyId], secrets: SecretSource) -> bytes:
    """Draw the key of known ids' tokens at the first holder, and tell the other holders: 32 bytes, of one alignment."""
    first, *others = holders
    tag = Tag(Kind.ROW_ORDER, 0, _KEY_ROUND)
    if link.party != first:
        return receive_as(link, first, tag, (SEED_BYTES,), torch.uint8).numpy().tobytes()
    key = secrets(SEED_BYTES)
    broadcast(link, others, tag, torch.frombuffer(bytearray(key), dtype=torch.uint8))
    return key


def align_server(link: Link, holders: Sequence[PartyId]) -> _ServerAlignment:
    """Intersect the holders' tokens and tell every holder the result.

    Raises ``DataError``: no id is common to all, as they were told; ``ProtocolError``: a holder's tokens are out of
    order or not each once.
    """
    tokens = {holder: _receive_tokens(link, holder, Tag(Kind.ID_TOKENS)) for holder in holders}
    common = reduce(lambda some, own: some[_are_in(some, own)], sorted(tokens.values(), key=len))
    broadcast(link, holders, Tag(Kind.COMMON_IDS), _to_tensor(common))
    _check_any_common(common, holders)
    return _ServerAlignment(len(common), _tokens_digest(common), {holder: len(own) for holder, own in tokens.items()})


class _Ring:
    """One holder's place in the ring, which takes lists from ``previous``.

    Tags: step counts the pieces of a list, round the holders it has passed after its owner.
    """

    def __init__(
        self, link: Link, holders: Sequence[PartyId], secrets: SecretSource, stated: Mapping[PartyId, int]
    ) -> None:
        self._most = {holder: min(MAX_IDS, stated.get(holder, MAX_IDS)) for holder in holders}
        place = list(holders).index(link.party)
        self.previous = holders[place - 1]
        self._link, self._secrets = link, secrets
        self._next = holders[(place + 1) % len(holders)]
        self._owners = [holders[place - passed] for passed in range(len(holders))]
        self._keeper = max(holders, key=lambda holder: stated.get(holder, 0))
        if len(holders) >= RING:
            self._blind, self._seal, self._key = draw_scalars(secrets)
        else:
            self._blind, self._seal = draw_inverses(secrets)
            self._key = self._blind

    def go_round(self, ids: Sequence[str], places: NDArray[np.int64]) -> tuple[Tokens, dict[PartyId, int]]:
        """Return tokens of the ids at ``places``, and how many ids each other holder brings."""
        order = self._send_own(ids, places)
        sizes = self._relay()
        return self._collect_own(order), sizes

    def compare(self, ids: Sequence[str], places: NDArray[np.int64]) -> tuple[Tokens, dict[PartyId, int]]:
        """Do as ``go_round`` with one other holder; without the key, ids that are not common get random tokens."""
        other, tag = self.previous, Tag(Kind.ID_TOKENS)
        if self._link.party == self._keeper:
            tokens = self._own_tokens(ids, places)
            self._link.send(other, tag, _to_tensor(tokens[_ascending_order(tokens)]))
            return tokens, self._relay()
        tokens = self._collect_own(self._send_own(ids, places))
        theirs = _receive_tokens(self._link, other, tag)
        self._check_most(other, len(theirs))
        self.check_once(np.sort(tokens))  # before some of them go
        alone = ~_are_in(tokens, theirs)
        tokens[alone] = _to_tokens([self._secrets(TOKEN_BYTES * int(alone.sum()))])
        return tokens, {other: len(theirs)}

    def _own_tokens(self, ids: Sequence[str], places: NDArray[np.int64]) -> Tokens:
        pieces = [places[start : start + PIECE_ROWS] for start in range(0, len(places), PIECE_ROWS)]
        cores = min(available_cores(), _HASHING, len(pieces) // _WORTHWHILE)
        with hash_processes(cores) if cores else nullcontext(hash_all) as hashing:

            def tokens_of(piece: NDArray[np.int64]) -> Tokens:
                return _hash_points(self._hash(ids, piece, hashing))

            tasks = [partial(tokens_of, piece) for piece in pieces]
            return np.concatenate([np.empty(0, _TOKEN_DTYPE), *in_parallel(tasks, "tokens")])

    def _send_own(self, ids: Sequence[str], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Send the ids at ``places`` to the next one as points b·H(id), in pieces; the last one is shorter.

        They leave in an order of their own, which is returned: int64 [n].
        """
        order: NDArray[np.int64] = expand(self._secrets(SEED_BYTES), "order", (len(places),)).argsort().numpy()
        for step, start in enumerate(range(0, len(places) + 1, PIECE_ROWS)):
            self._send(step, 0, self._hash(ids, places[order[start : start + PIECE_ROWS]]))
        return order

    def _relay(self) -> dict[PartyId, int]:
        """Multiply all others' lists by this holder's key and pass them on, one piece of each in turn: owner → length.

        Whatever a piece waits for at the previous holder comes earlier in that holder's turns, so no ring can lock.
        """
        sizes = dict.fromkeys(self._owners[1:], 0)
        unfinished = list(range(1, len(self._owners)))
        step = 0
        while unfinished:
            longer = []
            for passed in unfinished:
                piece = self._receive(step, passed - 1, None)
                rows = piece.shape[0]
                owner = self._owners[passed]
                sizes[owner] += rows
                self._check_most(owner, sizes[owner], rows)
                if rows == PIECE_ROWS:
                    longer.append(passed)
                self._send(step, passed, self._multiply(self._key, piece))
            unfinished, step = longer, step + 1
        return sizes

    def _collect_own(self, order: NDArray[np.int64]) -> Tokens:
        """Receive this holder's list back and multiply by s: tokens of its ids, before they were put in ``order``."""
        tokens = np.empty(len(order), _TOKEN_DTYPE)
        for step, start in enumerate(range(0, len(order) + 1, PIECE_ROWS)):
            places = order[start : start + PIECE_ROWS]
            piece = self._receive(step, len(self._owners) - 1, len(places))
            tokens[places] = _hash_points(self._multiply(self._seal, piece))
        return tokens

    def check_once(self, ascending: Tokens) -> None:
        """Raise ``ProtocolError`` where a point came back twice."""
        if not _is_ascending(ascending):
            raise ProtocolError(
                f"{self.previous} returned the points of {self._link.party} with one of them twice",
                code="points-twice",
                party=self.previous,
            )

    def _check_most(self, owner: PartyId, size: int, rows: int = 0) -> None:
        if rows > PIECE_ROWS or size > self._most[owner]:
            raise ProtocolError(
                f"{self.previous} sent {self._link.party} {rows or size} points at once, {size} in all; "
                f"the limits are {PIECE_ROWS} and {self._most[owner]} for the ids of {owner}",
                code="too-many-ids",
                key=owner,
                value=size,
                party=self.previous,
            )

    def _hash(self, ids: Sequence[str], places: NDArray[np.int64], hashing: HashAll = hash_all) -> Points:
        return hash_and_multiply(self._blind, [ids[row].encode() for row in places.tolist()], hashing)

    def _send(self, step: int, passed: int, points: Points) -> None:
        self._link.send(self._next, Tag(Kind.BLINDED_IDS, step, passed), torch.from_numpy(points))

    def _receive(self, step: int, passed: int, rows: int | None) -> Tensor:
        tag = Tag(Kind.BLINDED_IDS, step, passed)
        return receive_as(self._link, self.previous, tag, [rows, POINT_BYTES], torch.uint8)

    def _multiply(self, scalar: bytes, piece: Tensor) -> Points:
        try:
            return multiply(scalar, piece.numpy(), self._secrets)
        except ValueError as error:
            raise ProtocolError(
                f"{self.previous} sent {self._link.party} bytes that are no point of Curve25519 to multiply",
                code="no-point",
                party=self.previous,
            ) from error


def check_ids(party: PartyId, ids: Sequence[str]) -> None:
    """Raise ``DataError`` unless ids are 1 to ``MAX_IDS``, unique, not empty and UTF-8. It names rows, never ids."""

    def refusal(code: str, value: int, said: str) -> DataError:
        return DataError(said, code=code, key="ids", value=value, party=party)

    if not 1 <= len(ids) <= MAX_IDS:
        said = f"{party} has {len(ids)} ids to align; between 1 and {MAX_IDS} are possible"
        raise refusal("count-of-ids", len(ids), said)
    with suppress(TypeError, UnicodeEncodeError):  # at once, where nothing is to be named
        "".join(ids).encode()
        if len(every := set(ids)) == len(ids) and "" not in every:
            return
    rows: dict[str, int] = {}
    for row, value in enumerate(ids):
        if not isinstance(value, str) or not value:
            said = f"{party}'s id in row {row} is empty or no text; give every row an id or leave it out"
            raise refusal("empty-id", row, said)
        if (first := rows.setdefault(value, row)) != row:
            raise refusal("id-twice", row, f"{party}'s rows {first} and {row} have the same id; keep one row per id")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            said = f"{party}'s id in row {row} is not Unicode text; read the file as UTF-8"
            raise refusal("not-unicode", row, said) from error


def _check_any_common(common: Tokens, holders: Sequence[PartyId]) -> None:
    if not len(common):
        raise DataError(
            f"no id is common to {', '.join(holders)}: ids are compared as text, exactly (spaces, case and "
            "leading zeros count); write them in the same form at all holders",
            code="no-common-id",
            key="ids",
            value=list(holders),
        )


def _receive_tokens(link: Link, sender: PartyId, tag: Tag) -> Tokens:
    """Receive tokens; ``ProtocolError`` unless they ascend: any other order could say something of the ids."""
    tensor = receive_as(link, sender, tag, [None, TOKEN_BYTES], torch.uint8)
    tokens = tensor.numpy().view(_TOKEN_DTYPE).reshape(-1)
    if not _is_ascending(tokens):
        raise ProtocolError(
            f"{sender} sent {link.party} {tag} out of order: tokens ascend, and each comes once",
            code="order",
            key=tag,
            party=sender,
        )
    return tokens


def _to_tokens(digests: Iterable[bytes]) -> Tokens:
    return np.frombuffer(b"".join(digests), _TOKEN_DTYPE)


def _hash_points(points: Points) -> Tokens:
    rows = points.tobytes()
    digests = [hashlib.sha256(rows[at : at + POINT_BYTES]).digest() for at in range(0, len(rows), POINT_BYTES)]
    return _to_tokens(digest[:TOKEN_BYTES] for digest in digests)


def _are_in(some: Tokens, ascending: Tokens) -> NDArray[np.bool_]:
    places = np.searchsorted(ascending, some)
    found = places < len(ascending)
    found[found] = ascending[places[found]] == some[found]
    return found


def _ascending_order(tokens: Tokens) -> NDArray[np.intp]:
    order = tokens.view(">u8")[:: TOKEN_BYTES // 8].astype(np.uint64).argsort()  # numbers sort ten times as fast
    return order if _is_ascending(tokens[order]) else tokens.argsort()


def _is_ascending(tokens: Tokens) -> bool:
    return bool((tokens[1:] > tokens[:-1]).all())


def _to_tensor(tokens: Tokens) -> Tensor:
    return torch.from_numpy(tokens.view(np.uint8).reshape(-1, TOKEN_BYTES))


def _tokens_digest(common: Tokens) -> str:
    return hashlib.sha256(common.tobytes()).hexdigest()


def agree_on_order(link: Link, holders: Sequence[PartyId], ids: Sequence[str], streams: LearningStreams) -> Tensor:
    """Agree on the first holder's order of common rows; every holder calls it after ``align_holder``, once per link.

    The server must not read what goes over it. ``ids`` are the C common ones, in the order of their tokens; the first
    holder's ``streams`` give the order: Tensor[C] int64, places in ``ids``. Raises ``ProtocolError``: that is no order
    of C rows.
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
    """Return the permutation of ``ids`` that sorts a hash of each, under a key of the seed and of all ids together.

    Who knows the seed cannot compute where an id stands without knowing every other, and the order of other ids is
    another altogether.
    """
    every = hashlib.sha256()
    for name in sorted(ids):
        every.update(hashlib.sha256(name.encode()).digest())
    return streams.order(f"rows/{every.hexdigest()}", ids)
