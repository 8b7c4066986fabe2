"""How far the other parties' ledgers for life are, as a party last heard in any job."""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from veilgraph.core.errors import RunError
from veilgraph.core.files import locked, private_folder, write_whole
from veilgraph.core.types import PartyId
from veilgraph.privacy.lifetime_file import LifetimeFile
from veilgraph.privacy.lifetime_ledger import Lifetime

_FOLDER: Final = "heard"


class LedgerHead(BaseModel):
    """How far a party's lifetime ledger is.

    Attributes:
        ledger: its id.
        lines: how many it has.
        head: HMAC-SHA256 of these lines, under the owner's salt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ledger: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    lines: Annotated[int, Field(ge=1, le=2**32)]
    head: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def goes_on_from(self, other: LedgerHead) -> bool:
        """Whether it is of the same ledger, and further."""
        return self.ledger == other.ledger and self.lines > other.lines


class PeerHeads:
    """One party's: its own, and those that it heard of, in one session.

    What it heard in other sessions since this one first looked tells nothing of this one, in which the others may have
    said how far they are before that.

    Args:
        party: its name.
        own: its lifetime ledger; None where it has none in this job.
        folder: of what it hears; None on one machine, where nothing is kept.
        releases: whether the job releases anything, so that every holder has a ledger in it.
    """

    def __init__(self, party: PartyId, own: Lifetime | None, folder: Path | None, *, releases: bool) -> None:
        self._party, self._own, self._releases = party, own, releases
        self._folder = None if folder is None else folder / _FOLDER
        self._first: dict[PartyId, LedgerHead | None] = {}

    def own(self) -> LedgerHead | None:
        """Of its own ledger as it is now."""
        if self._own is None:
            return None
        lines = self._own.lines
        with lines.held():
            return _head_after(lines, lines.count)

    def heard(self, party: PartyId) -> LedgerHead | None:
        """What it had last heard of another's when this session first looked.

        Raises:
            RunError: what it kept of that is damaged.
        """
        if party not in self._first:
            self._first[party] = self._kept(party)
        return self._first[party]

    def keep(self, said: Mapping[PartyId, LedgerHead | None]) -> None:
        """Keeps what it heard in this session, unless another has heard of more: on the disk when this returns."""
        if self._folder is None or not any(said.values()):
            return
        with locked(private_folder(self._folder), f"{self._folder} is in use", wait_s=math.inf):
            for party, head in said.items():
                path, kept = self._path(party), self._kept(party)
                if path is not None and head is not None and (kept is None or head.goes_on_from(kept)):
                    write_whole(path, head.model_dump_json().encode())

    def _kept(self, party: PartyId) -> LedgerHead | None:
        path = self._path(party)
        if path is None or not path.is_file():
            return None
        try:
            return LedgerHead.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise RunError(
                f"{path}: damaged ({error}); restore it, or delete it, and what {party} brings next is believed"
            ) from error

    def fault_of(self, party: PartyId, now: LedgerHead | None) -> str:
        """What another's ledger has against it by what was heard of it before; empty for nothing."""
        told = self.heard(party)
        if told is None or not self._releases:
            return ""
        if now is None or now.ledger != told.ledger:
            return (
                f"{party} brings another ledger of all that it released than {self._party} heard of, which had "
                f"{told.lines} lines: put back {party}'s ledger; or, if {party} brings other data, of which nothing "
                f"was released before, have {self._party} delete {self._shown(party)} in its kit"
            )
        if now.lines < told.lines:
            return (
                f"{party}'s ledger of all that it released has {now.lines} lines, and {self._party} heard of "
                f"{told.lines}: it is an older copy; put back the newest"
            )
        if now.lines == told.lines and now.head != told.head:
            return f"{party}'s ledger of all that it released is not the one that {self._party} heard of; put that back"
        return ""

    def fault_of_memory(self, party: PartyId, heard: LedgerHead | None) -> str:
        """What this party's own ledger has against it by what another heard of it; empty for nothing."""
        if heard is None or self._own is None:
            return ""
        lines = self._own.lines
        with lines.held():
            mine = _head_after(lines, min(heard.lines, lines.count))
        if heard.ledger != mine.ledger:
            return ""  # the other says so
        if mine != heard:
            return (
                f"{party} heard of a ledger of {self._party} with {heard.lines} lines that is not this one: it is an "
                f"older copy, or went on by itself; put back its newest copy"
            )
        return ""

    def _path(self, party: PartyId) -> Path | None:
        return None if self._folder is None else self._folder / f"{party}.json"

    def _shown(self, party: PartyId) -> str:
        """That file for all to read: where the kit lies is its owner's own."""
        path = self._path(party)
        return "" if path is None else "/".join(path.parts[-3:])


def _head_after(lines: LifetimeFile, count: int) -> LedgerHead:
    salt = bytes.fromhex(lines.header.salt)
    head = hmac.digest(salt, f"{lines.header.id}/{count}/{lines.head(count)}".encode(), "sha256")
    return LedgerHead(ledger=lines.header.id, lines=count, head=head.hex())
