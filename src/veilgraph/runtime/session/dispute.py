"""A training run again by an auditor, from what all parties handed over of it, to name who deviated.

Every party's role runs as in the session: on what the party had committed to, and with the key that it had committed
to. Each message is compared with the digest that its receiver kept, under the sender's signature:

- A party deviates whose signed message is not the one that it sends here, unless it had taken a wrong message before.
  What a party computes of a wrong message, this replay cannot know, so it is not judged from then on.
- So does a party that signed a message after its part here had ended by itself.
- So does a party whose evidence has a signature that is not its sender's: it had refused such a message.

Commitments are messages, too: another table, or another key, is another message. A party cannot deny a message, for
its receiver has the signature; it cannot claim one, for it has none.

An honest party is never named: it signs what follows from what it committed to and took, and it hands over the
signature of every wrong message that it took. It must hand over its folder as it is, and the replay needs the software
that it ran. Where an honest party took a wrong message somebody is named, for one was sent before any was taken; or a
party's part stops here, as it had committed to what nothing can be computed from.

A session that went on from a checkpoint is run again after the one that saved it, from the checkpoint that this leaves
here, with the same data. So nobody can go on from another checkpoint.

What this does not show: that a party's table is true, that it drew its key at random, or who ended a session. A
prediction leaves no evidence.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import (
    ConfigError,
    DataError,
    PeerFailed,
    ProtocolError,
    RangeOverflow,
)
from veilgraph.core.files import private_folder
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.text import printable
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.factory import MemoryHub
from veilgraph.link.identity import Trust
from veilgraph.link.signed import Signers, digest_of
from veilgraph.link.wrapper import Wrapper
from veilgraph.protocol.agreement import Point, Start, newest_common
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.role import RoleContext, Witness
from veilgraph.runtime.session.training import fit
from veilgraph.runtime.session.witness import COMMITTED, Evidence, commit, secrets_of, software_here
from veilgraph.runtime.store.checkpoints import Checkpoints

_Key = tuple[PartyId, PartyId, Tag]  # sender, receiver, tag


@dataclass
class Verdict:
    """What a replay found.

    Attributes:
        compared: party → how many of its signed messages are what it sends here.
        unseen: party → how many more messages it sends here, while it is judged, that are in nobody's evidence; without
            those that ask a dealer for more.
        named: party → how it deviated first.
        unjudged: party → the wrong message that it took first, after which nothing of it was judged.
        stopped: party → the error with which its part ended here.
        lacking: party → how many sessions it has no evidence of that another has, all after those that are run again.
    """

    compared: dict[PartyId, int]
    unseen: dict[PartyId, int] = field(default_factory=dict)
    named: dict[PartyId, str] = field(default_factory=dict)
    unjudged: dict[PartyId, str] = field(default_factory=dict)
    stopped: dict[PartyId, str] = field(default_factory=dict)
    lacking: dict[PartyId, int] = field(default_factory=dict)


class _ReachedError(Exception):
    """A party has the checkpoint from which the next session went on."""


def dispute(evidence: Sequence[Sequence[Evidence]], trust: Trust) -> Verdict:
    """Run a training again from the evidence of all its parties, each with its sessions; name who deviated.

    Raises ``ConfigError``: it is not of all parties, of one training, or of this software; ``DataError``: a party's key
    of a session is not signed with that of its certificate.
    """
    by_party = _by_party(evidence)
    line = _line(by_party)
    for each, _ in line:
        _check_session(each, trust)
    found = Verdict(dict.fromkeys(by_party, 0), lacking=_lacking(by_party, line[-1][0]))
    for (before, _), (after, _) in pairwise(line):
        for party in by_party:
            if not _are_equal(before[party].put_in, after[party].put_in):
                found.named.setdefault(party, "it went on with other data than it had put in before")
    with tempfile.TemporaryDirectory() as folder:
        for each, until in line:
            _run_session(each, until, found, Path(folder))
            if found.stopped:
                break
    return found


def _run_session(by_party: Mapping[PartyId, Evidence], until: int | None, found: Verdict, folder: Path) -> None:
    """Run a session again, with checkpoints in ``folder``, as far as the checkpoint of epoch ``until``."""
    own, signed = next(iter(by_party.values())), dict[_Key, bytes]()
    signers = Signers(own.facts.keys)
    for receiver, each in by_party.items():
        for (sender, tag), message in each.received.items():
            if signers.has_signed(sender, receiver, tag, message):
                signed[sender, receiver, tag] = message.digest
            else:
                found.named.setdefault(
                    receiver, f"it handed over {in_words(tag)} of {sender} without {sender}'s signature"
                )
    # All parties compute on this machine, so each may take as many times as long.
    hub = MemoryHub(list(by_party), own.job.timeout_s * len(by_party))
    links = {party: _ComparingLink(hub.link(party), signed, found) for party in by_party}

    def run(party: PartyId) -> None:
        try:
            _run_again(by_party[party], links[party], private_folder(folder / party), until)
        except (PeerFailed, _ReachedError):  # another's part ended, or the next session has the rest
            links[party].was_cut_off = True
        except Exception as error:  # noqa: BLE001 - whatever computing on data can raise that a party made up
            found.stopped[party] = f"{type(error).__name__}: {error}"
            # Its data alone end an honest party's part by one of these; this machine may by others.
            links[party].was_cut_off = not isinstance(error, DataError | RangeOverflow)
            hub.fail(party, error)

    with ThreadPoolExecutor(len(by_party)) as pool:
        for done in [pool.submit(run, party) for party in by_party]:
            done.result()
    for (sender, receiver, tag), _ in signed.items():
        if links[sender].never_sends(receiver, tag):
            found.named.setdefault(sender, f"it sent {receiver} {in_words(tag)}, after its part here had ended")


def in_words(tag: Tag) -> str:
    """Say which message a tag is of."""
    if tag == COMMITTED:
        return "commitment to what it put in and to the key of all that it drew"
    return f"{tag.kind.name.lower()} (pass {tag.step}, round {tag.round})"


def _by_party(evidence: Sequence[Sequence[Evidence]]) -> dict[PartyId, dict[str, Evidence]]:
    """Return party → session → evidence, in the order of sessions; ``ConfigError``: it is not of all parties."""
    first = evidence[0][0]
    names = (*first.job.data.names, SERVER)
    if sorted(each[0].party for each in evidence) != sorted(names):
        brought = ", ".join(each[0].party for each in evidence)
        raise ConfigError(
            f"the session was of {', '.join(names)}, and here is evidence of {brought}: a session is run again with "
            "everybody's consent, so give one folder of each party",
            code="parties",
        )
    for own in evidence:
        if other := next((each.party for each in own if each.party != own[0].party), None):  # or its part would stop
            raise ConfigError(
                f"a folder of {own[0].party} has evidence of {other}; ask both for the folder dispute as it is",
                code="parties",
            )
    return {own[0].party: {each.facts.session: each for each in own} for own in evidence}


def _line(by_party: Mapping[PartyId, Mapping[str, Evidence]]) -> list[tuple[dict[PartyId, Evidence], int | None]]:
    """Return the sessions from the beginning to the newest that all have, each with the epoch until which it counts.

    ``ConfigError``: a party lacks one of them, or has them in another order.
    """
    (first, own), *others = by_party.items()
    common = [name for name in own if all(name in each for each in by_party.values())]
    for party, each in others:
        if [name for name in each if name in common] != common:  # or a file's new name would hide the newest session
            raise ConfigError(
                f"{first} and {party} have the sessions in different orders; ask everybody for the folder dispute of "
                "the same run as it is",
                code="session",
            )
    name, until, line = (common or list(own))[-1], None, list[tuple[dict[PartyId, Evidence], int | None]]()
    while True:
        if lacking := next((party for party, each in by_party.items() if name not in each), None):
            raise ConfigError(
                f"{lacking} has no evidence of session {printable(name, 32)}"
                f"{', from which the training went on' if line else ', as others have'}; ask everybody for the folder "
                "dispute of the same run as it is",
                code="session",
                party=lacking,
            )
        session = {party: each[name] for party, each in by_party.items()}
        line.insert(0, (session, until))
        held = {party: [Point(*point) for point in each.facts.held] for party, each in session.items()}
        point = newest_common(held)
        if point is None or not point.epoch or len(line) > len(own):  # the last: a lie, which its greeting gives away
            return line
        name, until = point.session, point.epoch


def _lacking(
    by_party: Mapping[PartyId, Mapping[str, Evidence]], last: Mapping[PartyId, Evidence]
) -> dict[PartyId, int]:
    """Return party → how many sessions it has no evidence of, of those after the last that another has."""
    later = set[str]()
    for party, sessions in by_party.items():
        names = list(sessions)
        later |= set(names[names.index(last[party].facts.session) + 1 :])
    counts = {party: len(later - set(sessions)) for party, sessions in by_party.items()}
    return {party: count for party, count in counts.items() if count}


def _are_equal(these: Mapping[str, Tensor], those: Mapping[str, Tensor]) -> bool:
    return these.keys() == those.keys() and all(
        one.dtype == other.dtype and torch.equal(one, other)
        for one, other in ((each, those[name]) for name, each in these.items())
    )


def _check_session(by_party: Mapping[PartyId, Evidence], trust: Trust) -> None:
    """Check that the evidence is of one session, of this software, and with keys that are signed."""
    first = next(iter(by_party.values()))
    for each in by_party.values():
        if each.facts.keys != first.facts.keys or each.job.hash() != first.job.hash():
            raise ConfigError(
                f"{each.party} and {first.party} handed over different sessions; ask both for the same", code="session"
            )
        if each.facts.software != software_here():  # or an honest party could be named for a last bit
            raise ConfigError(
                f"{each.party} trained with {each.facts.software}, and here are {software_here()}; run the session "
                "again with the same versions on a machine of the same kind",
                code="software",
                party=each.party,
            )
    for key in first.facts.keys:
        try:
            key.check(key.party, first.job.hash(), trust)
        except ProtocolError as error:
            words = f"{key.party}'s key of the session cannot be trusted: {error}"
            if not key.signature:
                words += "; on one machine nobody has a certificate: run it again without --root"
            elif not trust.roots:
                words += "; give the project's root certificate (--root)"
            elif key.party == SERVER:
                words += "; give the name in the certificate of who dealt (--dealer)"
            raise DataError(words, party=key.party) from error


class _ComparingLink(Wrapper):
    """A party's link in a replay, compared with what was ``signed`` until the party takes a wrong message."""

    def __init__(self, link: Link, signed: Mapping[_Key, bytes], found: Verdict) -> None:
        super().__init__(link)
        self._signed, self._found = signed, found
        self._sent, self.was_cut_off = set[tuple[PartyId, Tag]](), False

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self._sent.add((to, tag))
        was = self._signed.get((self.party, to, tag))
        if was is None and self._is_judged and tag.kind != Kind.READY:  # a dealer reads no more of these than it needs
            self._found.unseen[self.party] = self._found.unseen.get(self.party, 0) + 1
        if was is not None and self._is_judged:
            if was == digest_of(tag, tensor):
                self._found.compared[self.party] += 1
            else:
                words = f"it sent {to} another {in_words(tag)} than follows from what it committed to and took"
                self._found.named.setdefault(self.party, words)
        super().send(to, tag, tensor)

    @override
    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        tensor = super().receive(sender, tag)
        was = self._signed.get((sender, self.party, tag))
        if was is not None and self._is_judged and was != digest_of(tag, tensor):
            self._found.unjudged[self.party] = f"{in_words(tag)} of {sender}"
        return tensor

    @property
    def _is_judged(self) -> bool:
        return self.party not in self._found.unjudged

    def never_sends(self, to: PartyId, tag: Tag) -> bool:
        """Whether this party's part ended by itself, as far as is known, without sending this message."""
        return self._is_judged and not self.was_cut_off and (to, tag) not in self._sent


class _Replayed(Witness):
    """Puts in what a party committed to, and commits to it once more, so that this is compared as well."""

    def __init__(self, link: Link, evidence: Evidence) -> None:
        self._link, self._evidence = link, evidence

    @override
    def put_in(self, tensors: Mapping[str, Tensor], held: Sequence[Point], start: Start) -> Mapping[str, Tensor]:
        own = self._evidence
        commit(self._link, own.job, own.key, own.graph_digest, own.put_in)
        return own.put_in

    @override
    def keep(self) -> None:
        pass


def _run_again(own: Evidence, link: Link, folder: Path, until: int | None) -> None:
    """Run a party's part of a session, as ``runtime.session.party`` does, from its evidence."""
    context = RoleContext(
        own.job,
        link,
        LearningStreams(0, own.party),  # of which nothing is sent: what it shuffled is among what it put in
        secrets_of(own.key),
        alignment=own.facts.alignment,
        restarts=own.facts.restarts,
        witness=_Replayed(link, own),
    )

    def done(epoch: int, kept: bool) -> None:
        if kept and epoch == until:
            raise _ReachedError

    role = paradigm_of(own.job).session.role(context, Aligned(own.facts.alignment, own.graph))
    with closing(role):
        held = [Point(*each) for each in own.facts.held]
        fit(role, Checkpoints(folder, folder / "model"), held, begin=lambda *_: None, log=lambda _: None, done=done)
