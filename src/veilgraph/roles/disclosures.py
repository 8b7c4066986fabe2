"""What a party sent, in words: to whom, what it was, what protects it, and what it reveals.

``TABLE`` has a row for every kind of message and direction of docs/protocol.md. Its words are about the receiver; how
the wire is protected from everybody else is the link's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from veilgraph.core.config import JobSettings
from veilgraph.core.errors import ProtocolError
from veilgraph.core.limits import Revelation
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.recorded import TrafficEntry

Work = Literal["align", "train", "predict"]
"""A piece of work: one session of all parties."""

Protection = Literal["none", "share", "mask", "blinding", "random", "public"]
"""Against the receiver: nothing, the values are data-dependent and in the clear; an additive share, uniform by itself;
a uniform mask unknown to the receiver; secret keys on curve points; no data went in; facts that are public."""

Direction = Literal["holder to holder", "holder to server", "server to holder"]


class Disclosure(BaseModel):
    """Messages of one kind that one party sent to one other in a piece of work."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    party: PartyId
    """The sender."""
    to: PartyId
    kind: str
    """Of ``Kind``, in lower case."""
    messages: int = Field(ge=0)
    bytes: int = Field(ge=0)
    """On the wire, headers included."""
    what: str
    protection: Protection
    """Of the least protected thing that messages of this kind carry."""
    why: str
    """Why it may leave the sender or, where nothing protects it, what follows from that."""
    reveals: tuple[Revelation, ...]
    """Names of core.limits that come true by it, together with the other senders' messages."""
    epsilon: None = None
    """Null: no differential privacy, so nothing bounds what the receiver can infer."""


class DisclosureRecord(Disclosure):
    """A line of ``disclosures.jsonl``."""

    time: AwareDatetime
    """When the piece of work ended, UTC, in whole seconds."""
    work: Work
    job: str
    """SHA-256 of the settings."""
    whole: bool = True
    """False: the party was killed, and this is what it had sent when it last took note; a little more may have gone."""


@dataclass(frozen=True)
class Row:
    """What messages of one kind and direction carry in jobs of which all facts of ``when`` (``_facts``) hold."""

    kind: Kind
    direction: Direction
    what: str
    protection: Protection
    why: str
    reveals: tuple[Revelation, ...] = ()
    when: tuple[str, ...] = ()


def disclosures(settings: JobSettings, entries: Sequence[TrafficEntry]) -> list[Disclosure]:
    """Puts into words what a party sent. What it received is its senders' to disclose, and left out.

    Args:
        settings: of the job.
        entries: traffic of one party in one piece of work.

    Raises:
        ProtocolError: the job has no such message.
    """
    return [_disclosure(settings, entry) for entry in entries if entry.direction == "sent"]


def disclosure_lines(
    settings: JobSettings, work: Work, found: Sequence[Disclosure], time: datetime, *, whole: bool = True
) -> str:
    """The block that a piece of work adds to ``disclosures.jsonl``: one JSON object per line.

    Args:
        settings: of the job.
        work: what was done.
        found: as ``disclosures`` gives them.
        time: when it ended, with a time zone.
        whole: False for what a killed party had sent when it last took note.
    """
    when, job = time.astimezone(UTC).replace(microsecond=0), settings.hash()
    records = [DisclosureRecord(**dict(one), time=when, work=work, job=job, whole=whole) for one in found]
    return "".join(record.model_dump_json() + "\n" for record in records)


def _disclosure(settings: JobSettings, entry: TrafficEntry) -> Disclosure:
    direction = direction_of(entry.party, entry.peer)
    facts = _facts(settings, entry.party, entry.peer)
    rows = [
        row for row in TABLE if row.kind is entry.kind and row.direction == direction and facts.issuperset(row.when)
    ]
    if not rows:
        raise ProtocolError(
            f"{entry.party} sent {entry.kind.name.lower()} to {entry.peer}, which is no message of this job; give the "
            "settings that the traffic was recorded with"
        )
    return Disclosure(
        party=entry.party,
        to=entry.peer,
        kind=entry.kind.name.lower(),
        messages=entry.messages,
        bytes=entry.bytes,
        what="; ".join(row.what for row in rows),
        protection="none" if any(row.protection == "none" for row in rows) else rows[0].protection,
        why=" ".join(dict.fromkeys(row.why for row in rows)),
        reveals=tuple(dict.fromkeys(name for row in rows for name in row.reveals)),
    )


def direction_of(sender: PartyId, receiver: PartyId) -> Direction:
    """Between which roles a message goes; a label holder is a holder."""
    if sender == SERVER:
        return "server to holder"
    return "holder to server" if receiver == SERVER else "holder to holder"


def _facts(job: JobSettings, sender: PartyId, receiver: PartyId) -> set[str]:
    model, label_party = job.model, job.data.label_party
    holds = {
        "collaborative": model.initial.method == "collaborative",
        "secure-sum": model.initial.method == "secure-sum",
        "two holders": len(job.data.names) == 2,
        "more holders": len(job.data.names) > 2,
        "masked": model.combine.is_masked,
        "unmasked": not model.combine.is_masked,
        "degree-weighted": model.combine.strategy == "degree-weighted",
        "more rounds": model.rounds > 1,
        "no layers": model.server.layers == 0,
        "logit hops": model.head.logit_hops > 0,
        "from label holder": sender == label_party,
        "to label holder": receiver == label_party,
        "to another": receiver not in (label_party, SERVER),
    }
    return {fact for fact, true in holds.items() if true}


_TO_HOLDER: Final = "holder to holder"
_TO_SERVER: Final = "holder to server"
_FROM_SERVER: Final = "server to holder"

_HELLO: Final = (
    "Version, hashes of settings and alignment, number of common nodes, number and precision of feature columns where "
    "the method needs them, checkpoints held, the reason of a refusal."
)
_CONTROL: Final = "In the clear: tells whether the validation scores rose, not by how much."
_OPENED: Final = (
    "Uniform by itself: the pairwise masks cancel only in the sum over all holders, which the receiver opens."
)
_EXACTLY: Final = "Of two holders each subtracts its own part and has the other's exactly: masks hide nothing from it."
_DEALT: Final = "Uniform for the receiver; the server, which dealt the mask, must not get it."
_TRAINING: Final = "Not protected: the receiver can infer training nodes and which of them share a class."
_SPREAD: Final = "Non-zero rows tell of the label holder's edges around the training nodes."

# One row, few lines: a table is read across.
# fmt: off
TABLE: Final = (
    Row(Kind.HELLO, _TO_HOLDER, "facts of the job", "public", _HELLO),
    Row(Kind.HELLO, _TO_SERVER, "facts of the job", "public", _HELLO),
    Row(Kind.HELLO, _FROM_SERVER, "facts of the job", "public", _HELLO),
    Row(Kind.CONTROL, _TO_HOLDER, "best so far? stop?", "none", _CONTROL, when=("from label holder",)),
    Row(Kind.CONTROL, _TO_SERVER, "best so far? stop?", "none", _CONTROL, when=("from label holder",)),
    # Alignment and sealing
    Row(Kind.SEAL, _TO_HOLDER, "certificate, fresh public key, signature", "public",
        "Says who the sender is and nothing of its data; the secret halves of the keys stay at the sender."),
    Row(Kind.BLINDED_IDS, _TO_HOLDER, "node ids as curve points under secret keys", "blinding",
        "Without the keys the receiver can neither read nor test an id (decisional Diffie-Hellman); it learns how many "
        "ids a holder has."),
    Row(Kind.ID_TOKENS, _TO_SERVER, "hashes of the node ids under all holders' keys", "blinding",
        "No party can compute one alone; the server, which must not collude with a holder, learns how many ids each "
        "holder has and how many they have in common."),
    Row(Kind.COMMON_IDS, _FROM_SERVER, "the hashes that all holders sent", "none",
        "The purpose of alignment: the receiver learns which of its own ids all other holders have."),
    # Initial embeddings
    Row(Kind.KEY, _TO_HOLDER, "a fresh public key", "random",
        "Made of random numbers; its secret half stays at the sender."),
    Row(Kind.SEED, _FROM_SERVER, "the seed of the receiver's own masks", "random",
        "Made of random numbers; nobody but the server and the receiver may know it.", when=("collaborative",)),
    Row(Kind.CORRELATION, _FROM_SERVER, "products of masks under a fresh mask", "random",
        "Computed from random numbers alone.", when=("collaborative",)),
    Row(Kind.STATIC_DIFFERENCE, _TO_HOLDER, "features minus a one-time mask", "mask", _DEALT, when=("collaborative",)),
    Row(Kind.MASKED_OPERAND, _TO_HOLDER, "shares of weights and, in training, gradients of h0, minus one-time masks",
        "mask", _DEALT, when=("collaborative",)),
    Row(Kind.SHARE, _TO_HOLDER, "additive shares of h0", "share",
        "Uniform by itself; the sum over all holders is h0, which every holder is meant to learn.",
        ("initial-embeddings",), ("collaborative",)),
    Row(Kind.MASKED, _TO_HOLDER, "masked parts of h0", "mask", _OPENED, ("initial-embeddings",),
        ("secure-sum", "more holders")),
    Row(Kind.MASKED, _TO_HOLDER, "masked parts of h0", "none", _EXACTLY,
        ("initial-embeddings", "single-initial-embeddings"), ("secure-sum", "two holders")),
    Row(Kind.MASKED_GRADIENT, _TO_HOLDER, "masked gradients of h0", "mask", _OPENED, ("initial-gradients",),
        ("secure-sum", "more holders")),
    Row(Kind.MASKED_GRADIENT, _TO_HOLDER, "masked gradients of h0", "none", _EXACTLY,
        ("initial-gradients", "single-initial-embeddings"), ("secure-sum", "two holders")),
    # COMBINE
    Row(Kind.MASKED, _TO_SERVER, "masked embeddings", "mask", _OPENED, ("embedding-sums",), ("masked",)),
    Row(Kind.MASKED, _TO_SERVER, "masked degrees", "mask", _OPENED, ("pooled-degrees",), ("masked", "degree-weighted")),
    Row(Kind.EMBEDDING, _TO_SERVER, "embeddings in the clear", "none",
        "Not protected: the server has the sender's embedding of every node.", ("embedding-sums", "single-embeddings"),
        ("unmasked",)),
    Row(Kind.EMBEDDING, _TO_SERVER, "degrees in the clear", "none",
        "Not protected: the server has the sender's degree of every node, exactly.",
        ("pooled-degrees", "single-degrees"), ("unmasked", "degree-weighted")),
    Row(Kind.COMBINED, _FROM_SERVER, "output z_L in the clear", "none",
        "The label holder needs it for loss and predictions; it tells of all holders' features and edges.",
        ("output-embeddings",), ("to label holder",)),
    Row(Kind.COMBINED, _FROM_SERVER, "which is the combined embedding itself", "none",
        "No layer of the server has changed it.", ("combined-as-output",), ("to label holder", "no layers")),
    Row(Kind.COMBINED, _FROM_SERVER, "combined embeddings of earlier rounds in the clear", "none",
        "Not protected: the receiver can infer other holders' edges from them.", ("combined-embeddings",),
        ("more rounds",)),
    # Gradients
    Row(Kind.GRADIENT, _TO_SERVER, "gradient of z_L in the clear", "none", _TRAINING, ("training-rows",),
        ("from label holder",)),
    Row(Kind.GRADIENT, _TO_SERVER, "spread over the label holder's edges", "none", _SPREAD, ("label-holder-edges",),
        ("from label holder", "logit hops")),
    Row(Kind.GRADIENT, _TO_SERVER, "gradients of earlier rounds in the clear", "none",
        "Not protected: the server has the sender's own gradients of the combined embeddings.", ("single-embeddings",),
        ("more rounds", "unmasked")),
    Row(Kind.MASKED_GRADIENT, _TO_SERVER, "masked gradients of earlier rounds", "mask", _OPENED,
        ("combined-embeddings",), ("more rounds", "masked")),
    Row(Kind.GRADIENT, _FROM_SERVER, "gradient of what the receiver published, in the clear", "none",
        "It comes from the receiver's own labels.", when=("to label holder",)),
    Row(Kind.GRADIENT, _FROM_SERVER, "gradient of what the receiver published, in the clear", "none", _TRAINING,
        ("training-rows",), ("to another",)),
    Row(Kind.GRADIENT, _FROM_SERVER, "spread over the label holder's edges", "none", _SPREAD, ("label-holder-edges",),
        ("to another", "logit hops")),
)
# fmt: on
"""What messages carry. A message is of a job when at least one row fits; what all that fit say is said."""
