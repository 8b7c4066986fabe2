"""Signed messages: a signature counts for one message, from one party to one other, in one session."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.deploy.small_project import bank_and_shop
from tests.errors import refused
from tests.mpc.sessions import simulate
from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import text_tensor
from veilgraph.link.identity import Identity
from veilgraph.link.signed import SignedLink, Signers, digest_of, sign_messages, signature_tag
from veilgraph.link.statement import SessionKey
from veilgraph.link.wrapper import Wrapper

PARTIES = ("bank", "shop", SERVER)
RUN = "0" * 64
TAG = Tag(Kind.SHARE, 3, 1)
MESSAGE = torch.tensor([1, 2])


def sessions(*, identities: Mapping[PartyId, Identity] | None = None) -> dict[PartyId, SignedLink]:
    """The links of a session in which everybody has sent everybody a message."""

    def one(link: Link) -> SignedLink:
        identity = None if identities is None else identities[link.party]
        signed = sign_messages(link, PARTIES, RUN, identity, "localhost")
        others = [party for party in PARTIES if party != link.party]
        for other in others:
            signed.send(other, TAG, MESSAGE)
        for other in others:
            assert torch.equal(signed.receive(other, TAG), MESSAGE)
        return signed

    return simulate(dict.fromkeys(PARTIES, one))


def test_what_is_received_is_kept_with_its_signature() -> None:
    links = sessions()
    for party, link in links.items():
        assert link.keys == links["bank"].keys
        assert set(link.received) == {(other, TAG) for other in PARTIES if other != party}
        for (sender, tag), message in link.received.items():
            assert message.digest == digest_of(tag, MESSAGE)
            assert Signers(link.keys).has_signed(sender, party, tag, message)


def test_a_signature_counts_for_nothing_else() -> None:
    first, second = sessions(), sessions()
    message, signers = first["shop"].received["bank", TAG], Signers(first["bank"].keys)
    assert signers.has_signed("bank", "shop", TAG, message)
    assert not signers.has_signed("bank", SERVER, TAG, message)
    assert not signers.has_signed("shop", "bank", TAG, message)
    assert not signers.has_signed("bank", "shop", TAG, message._replace(digest=digest_of(TAG, MESSAGE + 1)))
    for tag in (Tag(TAG.kind, 4, 1), Tag(TAG.kind, 3, 2), Tag(Kind.MASKED_WIRE, 3, 1)):
        assert not signers.has_signed("bank", "shop", tag, message), "its receiver cannot say that it was another"
        assert not signers.has_signed("bank", "shop", TAG, message._replace(digest=digest_of(tag, MESSAGE)))
    assert not signers.has_signed("bank", "shop", TAG, message._replace(signature=bytes(64)))
    assert not Signers(second["bank"].keys).has_signed("bank", "shop", TAG, message)
    mixed = [first["bank"].keys[0], *second["bank"].keys[1:]]
    assert not Signers(mixed).has_signed("bank", "shop", TAG, message), "one new key makes another session"


def test_every_tag_has_a_signature_of_its_own() -> None:
    tags = [Tag(kind, step, round_) for kind in Kind for step in (0, 1) for round_ in (0, 1, 255, 65535)]
    assert len({signature_tag(tag) for tag in tags}) == len(tags)


class Alters(Wrapper):
    """A wire on which a message, or its signature, is changed."""

    def __init__(self, link: Link, kind: Kind) -> None:
        super().__init__(link)
        self._kind = kind

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        super().send(to, tag, tensor + 1 if tag.kind is self._kind and tag != Tag(Kind.SIGNATURE) else tensor)


@pytest.mark.parametrize("kind", [Kind.SHARE, Kind.SIGNATURE])
def test_a_message_that_does_not_fit_its_signature_is_refused_and_not_kept(kind: Kind) -> None:
    links: list[SignedLink] = []

    def sends(link: Link) -> None:
        sign_messages(Alters(link, kind), PARTIES[:2], RUN, None, "localhost").send("shop", TAG, MESSAGE)

    def takes(link: Link) -> None:
        links.append(sign_messages(link, PARTIES[:2], RUN, None, "localhost"))
        with refused(ProtocolError, code="signature", party="bank", key=str(TAG)):
            links[0].receive("bank", TAG)

    simulate({"bank": sends, "shop": takes})
    assert links[0].received == {}


def own_key(**changes: str) -> str:
    fields = {"run": RUN, "time": "2026-11-30T00:00:00+00:00", "party": "bank", "key": "ab" * 32}
    return SessionKey.model_construct(**{**fields, **changes}).model_dump_json()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "{}",
        "x" * (1 << 16),
        own_key(party="shop"),
        own_key(run="1" * 64),
        own_key(key="ab"),
        own_key(signature="ab"),
    ],
)
def test_a_session_key_that_is_none_is_refused(said: str) -> None:
    def sends(link: Link) -> None:
        link.send("shop", Tag(Kind.SIGNATURE), text_tensor(said))

    def takes(link: Link) -> None:
        with pytest.raises(ProtocolError):
            sign_messages(link, PARTIES[:2], RUN, None, "localhost")

    simulate({"bank": sends, "shop": takes})


def test_certificates_vouch_for_session_keys(tmp_path: Path) -> None:
    kits = bank_and_shop(tmp_path / "ours")
    identities: dict[PartyId, Identity] = {party: kits[party].identity() for party in PARTIES}
    keys: Sequence[SessionKey] = sessions(identities=identities)["bank"].keys
    assert all(key.signature for key in keys)
    strange = {**identities, "shop": bank_and_shop(tmp_path / "theirs")["shop"].identity()}
    with pytest.raises(ProtocolError):
        sessions(identities=strange)
    with pytest.raises(ProtocolError):
        sessions(identities={**identities, "shop": identities["bank"]})
