"""Before work, all parties tell each other the public facts of the job, and refuse together when one must.

Nothing else has been sent by then. What others state is read as a stranger's text: bounded, printable, one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError, ProtocolError
from veilgraph.core.limits import REASON_CHARACTERS
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.party import check_aligned
from veilgraph.link.collectives import exchange, tensor_text, text_tensor

PROTOCOL_VERSION: Final = 5
MAX_HELLO_BYTES: Final = 1 << 16

_SHOWN: Final = 12
"""Characters of a hash that a message names."""


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("characters that cannot be printed on one line")
    return text


_Count = Annotated[int, Field(ge=0, le=2**32)]
_Epoch = Annotated[int, Field(ge=0, lt=2**63)]
_Hash = Annotated[str, Field(max_length=128, pattern=r"^[0-9a-z]*$")]


class _Versioned(BaseModel):
    """What the hello of every version has."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    version: int


class Hello(BaseModel):
    """Public facts that a party states: no more than the job's initial method needs; the server states no shapes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: _Count = PROTOCOL_VERSION
    job: _Hash
    """SHA-256 of the settings."""
    alignment: _Hash = ""
    """Identity of the alignment that gave the rows their order, empty where there was none; optional at the server."""
    nodes: _Count = 0
    """Rows of the tables: the nodes common to all holders."""
    features: _Count = 0
    classes: Annotated[int, Field(ge=0, le=2**32)] = 0
    """Of the labels, where several holders may have some."""
    feature_bits: Annotated[int, Field(ge=0, le=64)] = 0
    checkpoints: Annotated[list[_Epoch], Field(max_length=1000)] = []
    """Epochs whose checkpoints the party holds; the newest that all hold is where the job goes on."""
    steps: _Count | None = None
    """Training steps that the party's privacy budget still allows, or, where there is a single release, such releases;
    null without a budget."""
    release: Annotated[int, Field(ge=-(2**32), le=2**32)] = 0
    """Number of the newest release, where there is a single one, that the holder made or was given; negative where its
    data have changed since, 0 for none."""
    refuses: Annotated[str, Field(max_length=REASON_CHARACTERS), AfterValidator(_one_line)] = ""
    """Why the party does not take part; empty when it does."""


def agree(link: Link, holders: Sequence[PartyId], mine: Hello, round_: int = 0) -> dict[PartyId, Hello]:
    """Exchanges hellos among all parties; one that refuses sends its own as well, so that all know why.

    Args:
        link: of this party.
        holders: in the job's order.
        mine: what this party states.
        round_: of the messages; parties may agree more than once in a session.

    Returns:
        Party → its hello, this party's own included.

    Raises:
        ConfigError: another version of the protocol, another job, or a party that refuses this one.
        DataError: the holders' alignments or node counts differ.
        ProtocolError: a hello cannot be understood.
    """
    others = [party for party in (*holders, SERVER) if party != link.party]
    texts = exchange(link, others, Tag(Kind.HELLO, 0, round_), text_tensor(mine.model_dump_json()), shape=(None,))
    received = {party: _parse(link.party, party, text) for party, text in texts.items()}
    hellos = {party: received.get(party, mine) for party in (*holders, SERVER)}
    _check_job(link.party, hellos)
    _check_accepted(hellos)
    _check_alignment({p: hello.alignment for p, hello in hellos.items() if p in holders or hello.alignment})
    check_aligned({holder: hellos[holder].nodes for holder in holders})
    return hellos


def newest_common(hellos: Mapping[PartyId, Hello]) -> int:
    """The newest epoch whose checkpoint every party holds; 0 for a fresh start."""
    common = set.intersection(*(set(hello.checkpoints) for hello in hellos.values()))
    return max(common, default=0)


def fewest_steps(hellos: Mapping[PartyId, Hello]) -> int | None:
    """Training steps that every party's privacy budget allows; None where no party has one."""
    return min((hello.steps for hello in hellos.values() if hello.steps is not None), default=None)


def _parse(party: PartyId, sender: PartyId, received: Tensor) -> Hello:
    """The hello of another party; its version is read first, for other versions have other fields."""
    if received.numel() > MAX_HELLO_BYTES:
        raise ProtocolError(
            f"{party} got a hello of {received.numel()} bytes from {sender}; at most {MAX_HELLO_BYTES} are allowed"
        )
    text = tensor_text(received)
    try:
        version = _Versioned.model_validate_json(text).version
        if version == PROTOCOL_VERSION:
            return Hello.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        known = ".".join(str(part) for part in problem["loc"] if isinstance(part, int) or part in Hello.model_fields)
        raise ProtocolError(
            f"{party} cannot understand the hello of {sender}: {known or 'its form'}: {problem['msg']}; install the "
            "same release of veilgraph at every party"
        ) from error
    raise ConfigError(
        f"{sender} speaks protocol version {str(version)[:_SHOWN]} and {party} {PROTOCOL_VERSION}; install the same "
        "release of veilgraph at every party"
    )


def _check_job(party: PartyId, hellos: Mapping[PartyId, Hello]) -> None:
    mine = hellos[party]
    for other, hello in hellos.items():
        if hello.job != mine.job:
            raise ConfigError(
                f"{other} runs job {hello.job[:_SHOWN]} and {party} {mine.job[:_SHOWN]} (SHA-256 of the settings); "
                "give every party the same job file"
            )


def _check_accepted(hellos: Mapping[PartyId, Hello]) -> None:
    refusals = [f"{party} refuses the job: {hello.refuses}" for party, hello in hellos.items() if hello.refuses]
    if refusals:
        raise ConfigError("; ".join(refusals))


def _check_alignment(alignments: Mapping[PartyId, str]) -> None:
    if len(set(alignments.values())) > 1:
        listed = ", ".join(f"{party} has {identity[:_SHOWN] or 'none'}" for party, identity in alignments.items())
        raise DataError(
            f"the tables are not of one alignment ({listed}); row v must be the same node at every holder, so align "
            "them again, all together"
        )
