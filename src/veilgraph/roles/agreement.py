"""Before work, all parties tell each other the public facts of the job and refuse together when they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.party import check_aligned
from veilgraph.link.collectives import exchange, tensor_text, text_tensor

PROTOCOL_VERSION: Final = 1


class Hello(BaseModel):
    """Public facts that a party states: no more than the job's initial method needs; the server states no shapes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: int = PROTOCOL_VERSION
    job: str
    nodes: int = 0
    features: int = 0
    feature_bits: int = 0
    checkpoints: list[int] = []
    """Epochs whose checkpoints the party holds; the newest that all hold is where the job goes on."""


def agree(link: Link, holders: Sequence[PartyId], mine: Hello) -> dict[PartyId, Hello]:
    """Exchanges hellos among all parties.

    Returns:
        Party → its hello, this party's own included.

    Raises:
        ConfigError: another version of the protocol, or another job.
        DataError: the holders' node counts differ.
        ProtocolError: a hello cannot be understood.
    """
    others = [party for party in (*holders, SERVER) if party != link.party]
    tag = Tag(Kind.HELLO)
    texts = exchange(link, others, tag, text_tensor(mine.model_dump_json()), shape=(None,))
    hellos = {link.party: mine}
    for party, text in texts.items():
        try:
            hellos[party] = Hello.model_validate_json(tensor_text(text))
        except ValidationError as error:
            raise ProtocolError(f"{link.party} cannot understand the hello of {party}: {error}") from error
    for party, hello in hellos.items():
        if hello.version != mine.version:
            raise ConfigError(
                f"{party} speaks protocol version {hello.version} and {link.party} {mine.version}; "
                "install the same release of veilgraph at every party"
            )
        if hello.job != mine.job:
            raise ConfigError(
                f"{party} runs job {hello.job[:12]} and {link.party} {mine.job[:12]} (SHA-256 of the settings); "
                "give every party the same job file"
            )
    check_aligned({holder: hellos[holder].nodes for holder in holders})
    return hellos


def newest_common(hellos: dict[PartyId, Hello]) -> int:
    """The newest epoch whose checkpoint every party holds; 0 for a fresh start."""
    common = set.intersection(*(set(hello.checkpoints) for hello in hellos.values()))
    return max(common, default=0)
