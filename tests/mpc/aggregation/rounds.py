"""Rounds of a sum without a link, so that a test can be any party, and sums over one with parties that drop out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor
from veilgraph_averaging.aggregation.keys import PairSecrets, Round, Signatures
from veilgraph_averaging.aggregation.rounds import HolderRound, ServerRound
from veilgraph_averaging.aggregation.summing import Group, Sum, SummingHolder, SummingServer

from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import LinkTimeout, PeerFailed
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc.mask import SecretRounding

Result = TypeVar("Result")
NAMES = tuple("EADBCGF")
MOMENTS = (1, 2, 3, 4, 5)
"""The message before which a holder drops out."""
ANSWERS = ((Kind.KEY, 1), (Kind.MASK_SHARE, 0), (Kind.MASKED, 0), (Kind.CONTROL, 2), (Kind.MASK_SHARE, 2))
"""Kinds and rounds of a holder's messages."""
Dropped = Mapping[PartyId, int]
"""Holder → the first message that it does not send."""


def signers(names: Sequence[PartyId], seed: object = 0) -> dict[PartyId, Signatures]:
    """Every holder's keys, as after ``Signatures.agree``."""
    private = {name: Ed25519PrivateKey.from_private_bytes(fixed_secrets(seed, name, "sign")(32)) for name in names}
    publics = {name: key.public_key() for name, key in private.items()}
    return {name: Signatures(name, key, publics) for name, key in private.items()}


def pair_secrets(names: Sequence[PartyId], seed: object = 0) -> dict[PartyId, PairSecrets]:
    """Every holder's secrets with the others, as after ``PairSecrets.agree``."""
    each = {name: {peer: fixed_secrets(seed, *sorted([name, peer]), "pair")(32) for peer in names} for name in names}
    return {name: PairSecrets(secrets) for name, secrets in each.items()}


def round_of(count: int, threshold: int, number: int = 0, session: str = "test") -> Round:
    return Round(session, number, NAMES[:count], threshold)


@dataclass
class Played:
    """A round with all that was said in it: message number → holder → what it sent, and what it was told."""

    round: Round
    holders: dict[PartyId, HolderRound]
    server: ServerRound
    sent: dict[int, dict[PartyId, Tensor]] = field(default_factory=dict)
    told: dict[int, dict[PartyId, Tensor]] = field(default_factory=dict)
    total: Tensor | None = None

    def says(self, number: int, among: Iterable[PartyId], make: Callable[[PartyId], Tensor]) -> dict[PartyId, Tensor]:
        self.sent[number] = {name: make(name) for name in among}
        return self.sent[number]


def source(round_: Round, name: PartyId, seed: object = None) -> SecretSource:
    """A holder's in a round; of the same ``seed`` the same in all rounds."""
    return fixed_secrets("round", round_.number if seed is None else seed, name)


def begin(round_: Round, seed: object = None) -> Played:
    """Holders that have said nothing yet."""
    keys, shared = signers(round_.holders), pair_secrets(round_.holders)
    holders = {
        name: HolderRound(round_, name, keys[name], shared[name], source(round_, name, seed)) for name in round_.holders
    }
    return Played(round_, holders, ServerRound(round_))


def until_masked(played: Played, values: Mapping[PartyId, Tensor], dropped: Dropped | None = None) -> None:
    """Up to the masked values of those that have not dropped out."""
    gone, holders, server = dropped or {}, played.holders, played.server

    def left(message: int) -> list[PartyId]:
        return [name for name in played.round.holders if gone.get(name, 6) > message]

    offered = played.says(1, left(1), lambda name: holders[name].offer())
    offers = server.offers(offered)
    shared = played.says(2, left(2), lambda name: holders[name].share(offers))
    played.told[2] = server.shares(shared)
    played.says(3, left(3), lambda name: holders[name].mask(played.told[2][name], values[name]))


def play(
    round_: Round, values: Mapping[PartyId, Tensor], dropped: Dropped | None = None, *, begun: Played | None = None
) -> Played:
    """A whole round. ``values``: int64, of every holder."""
    gone = dropped or {}
    played = begin(round_) if begun is None else begun
    until_masked(played, values, gone)
    holders, server = played.holders, played.server

    def left(message: int) -> list[PartyId]:
        return [name for name in round_.holders if gone.get(name, 6) > message]

    survivors = server.survivors(played.sent[3])
    confirmed = played.says(4, left(4), lambda name: holders[name].confirm(survivors))
    confirmations = server.confirmations(confirmed)
    played.total = server.unmask(played.says(5, left(5), lambda name: holders[name].reveal(confirmations)))
    return played


def message_of(tag: Tag) -> int:
    """Number of a holder's message in its sum, from 1; 0 for what is of none."""
    kind = (tag.kind, tag.round)
    return 1 + ANSWERS.index(kind) if kind in ANSWERS else 0


class DropsOut(Wrapper):
    """A holder's link that loses what it sends in a sum from some message on."""

    def __init__(self, link: Link, moments: Mapping[int, int]) -> None:
        super().__init__(link)
        self._moments = moments

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if to != SERVER or message_of(tag) < self._moments.get(tag.step, 6):
            super().send(to, tag, tensor)


class GivesUp(Wrapper):
    """The server's link, which does not wait for those that have dropped out, so that no test depends on speed."""

    def __init__(self, link: Link, dropped: Mapping[PartyId, Mapping[int, int]]) -> None:
        super().__init__(link)
        self._dropped = dropped

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        gone = message_of(tag) >= self._dropped.get(sender, {}).get(tag.step, 6)
        return not (gone and timeout_s) and super().comes(sender, tag, timeout_s)


class TakesNothing(Wrapper):
    """The server's link, whose first message to a holder that is gone is not taken, as by a stopped process."""

    def __init__(self, link: Link, gone: Mapping[PartyId, int]) -> None:
        super().__init__(link)
        self._gone = dict(gone)

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if tag.step >= self._gone.get(to, tag.step + 1):
            del self._gone[to]
            raise LinkTimeout(f"{to} did not take {tag}")
        super().send(to, tag, tensor)


@dataclass
class Summed:
    """What came of sums over links."""

    sums: list[Sum]
    counted: dict[PartyId, list[bool]]
    links: dict[PartyId, RecordedLink]


def add_over_links(
    values: Mapping[PartyId, Sequence[Tensor]],
    threshold: int,
    *,
    dropped: Mapping[PartyId, Mapping[int, int]] | None = None,
    late: bool = False,
    gone: Mapping[PartyId, int] | None = None,
    bits: int = 24,
) -> Summed:
    """One sum after another, of each holder's values.

    Args:
        values: holder → its values, one tensor for each sum.
        threshold: t.
        dropped: holder → number of a sum → the first message that it does not send in it.
        late: whether that message does come, when nobody waits for it any more.
        gone: holder → number of the sum before which it closes its link for good.
        bits: fractional.
    """
    names, lost = tuple(values), dropped or {}
    hub = MemoryHub([*names, SERVER], 20.0)
    group = Group("session", names, threshold)
    size, count = values[names[0]][0].numel(), len(values[names[0]])
    links = {name: RecordedLink(hub.link(name), keep_transcript=True) for name in (*names, SERVER)}

    def holder(name: PartyId) -> list[bool]:
        secrets = fixed_secrets("sum", name)
        signatures = Signatures.agree(links[name], names, secrets, round_=3)
        shared = PairSecrets.agree(links[name], names, secrets, round_=4)
        link = links[name] if late else DropsOut(links[name], lost.get(name, {}))
        end = SummingHolder(link, group, signatures, shared, secrets, SecretRounding(bytes(32)))
        mine = values[name][: (gone or {}).get(name)]
        found = [end.add(number, each, bits, "values", "change it") for number, each in enumerate(mine)]
        if len(mine) < count:
            link.close()
        return found

    def server() -> list[Sum]:
        end = SummingServer(TakesNothing(GivesUp(links[SERVER], lost), gone or {}), group, 20.0)
        return [end.add(number, size) for number in range(count)]

    def held(name: PartyId, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except Exception as error:
            hub.fail(name, error)
            raise

    with ThreadPoolExecutor(len(names) + 1) as pool:
        works = {name: pool.submit(held, name, partial(holder, name)) for name in names}
        sums = pool.submit(held, SERVER, server)
        ended = [*(work.exception() for work in works.values()), sums.exception()]
    errors = [error for error in ended if error is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, PeerFailed)), errors[0])
    return Summed(sums.result(), {name: work.result() for name, work in works.items()}, links)


def ring_values(names: Sequence[PartyId], size: int, seed: int) -> dict[PartyId, Tensor]:
    """Anything in Z_2^64."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randint(-(2**62), 2**62, (size,), generator=generator) * 2 + 1 for name in names}
