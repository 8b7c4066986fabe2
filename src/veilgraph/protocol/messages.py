"""The one table of what is sent: the form of its rows, what they may reveal, and what they come to in a job.

Each paradigm has its rows beside it (``paradigms/*/rows.py``). Limits, disclosures, the audit and the documentation's
tables all follow from them. What a row reveals has a name, so that a party can state once, in its own settings, what
may be learnt from its data. Public facts (settings, counts, sizes, times) have no name. The words are about the
receiver; how the wire is protected from everybody else is the link's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import permutations
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, AwareDatetime, Field

from veilgraph.core.chain import digest
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.settings import Exact, Registry
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.protocol.job import JobSettings

J_contra = TypeVar("J_contra", bound=JobSettings, contravariant=True)


@dataclass(frozen=True, eq=False)
class Revelation(Generic[J_contra]):
    """What messages of a paradigm's jobs may reveal.

    Attributes:
        name: by which a party's limits call it, in every paradigm for the same.
        statement: who learns what, in one sentence.
        cause: the settings that make a job's messages reveal it; empty where a party's own tables do.
        whose: the parties of whose data it tells others something.
        part_of: name of what tells this and more, so that who accepts that accepts this.
        jobs: in which it is revealed, for the documentation, where its rows' facts do not say so.
    """

    name: str
    statement: str
    cause: Callable[[J_contra], str]
    whose: Callable[[J_contra], Sequence[PartyId]] = lambda job: job.duties.publishing
    jobs: str = ""
    part_of: str = ""


# fmt: off
EMBEDDING_SUMS: Final = (
    "embedding-sums", "The server sees every node's embeddings summed over the holders, which depend on all features "
    "and edges, and the sum's gradient.")
SINGLE_EMBEDDINGS: Final = (
    "single-embeddings", "The server sees every holder's embedding of every node and, with more than one round or "
    "layer, every holder's gradients.")
POOLED_DEGREES: Final = (
    "pooled-degrees", "The server learns every node's exact degree, or sum of edge weights, over all holders together.")
SINGLE_DEGREES: Final = (
    "single-degrees", "The server learns every node's exact degree, or sum of edge weights, at every holder.")
TRAINING_ROWS: Final = (
    "training-rows", "From gradients the server and every holder can infer which nodes are trained on and which of "
    "those share a class; in paradigm horizontal a holder also the class.")
TRAINING_NODES: Final = (
    "training-nodes", "From gradients the server and every holder can infer which nodes are trained on, and of their "
    "labels no more than the job's ε allows.",
    lambda job: "" if job.label_privacy is None else f"label_privacy.epsilon={job.label_privacy.epsilon:g}")
TARGET_SUMS: Final = (
    "target-sums", "Every holder, in paradigm averaging the server too, learns before the first round the number of "
    "training nodes and the sums of their targets, of the targets' sizes and of their squares.")
# fmt: on
"""Name and statement of what jobs of several paradigms reveal, and the settings that do where these are the same."""


Protection = Literal["none", "share", "mask", "noise", "blinding", "random", "public"]
"""Against the receiver: nothing, the values are data-dependent and in the clear; an additive share, uniform by itself;
a uniform mask unknown to the receiver; differentially private noise, as strong as the ε says (never ε = ∞); secret keys
on curve points, in hashes, or of an order; no data went in; facts that are public."""


ANY: Final = range(2**32)
DEGREES: Final = range(1)
EMBEDDINGS: Final = range(1, 2**32)  # rounds of tags; under those of embeddings, round 0 is that of the degrees


@dataclass(frozen=True, eq=False)
class Condition(Generic[J_contra]):
    """What has to be true of a job for a row to be of it; ``words`` name the option in documents, or are empty."""

    words: str
    holds: Callable[[J_contra], bool]
    opposite: Condition[J_contra] | None = None

    def otherwise(self, words: str) -> Condition[J_contra]:
        """Return the opposite condition, called ``words``."""
        return Condition(words, lambda job: not self.holds(job), self)


@dataclass(frozen=True, eq=False)
class Route(Generic[J_contra]):
    """Between whom messages go, a role each or ``SERVER``; ``among`` says which of these, where not all are meant."""

    sender: str
    receiver: str
    among: Callable[[J_contra, PartyId, PartyId], bool] | None = None

    def fit(self, job: J_contra, sender: PartyId, receiver: PartyId) -> bool:
        """Whether messages of this route go from ``sender`` to ``receiver``."""
        roles = (sender == SERVER, receiver == SERVER) == (self.sender == SERVER, self.receiver == SERVER)
        return roles and (self.among is None or self.among(job, sender, receiver))


class WireFormat(NamedTuple):
    """What messages look like on the wire, in the notation of docs/explanation/protocol.md.

    ``tag`` has step and round, ``shape`` type and shape, ``part`` the part of a session in which they are sent.
    """

    tag: str
    shape: str
    part: str


@dataclass(frozen=True, eq=False)
class Exposed:
    """What of a sender's messages attacks can be mounted on, by rounds; ``words`` have ``{sender}`` and ``{round}``."""

    sort: Literal["embedding", "gradients", "releases"]
    words: str


@dataclass(frozen=True, eq=False)
class MessageSpec(Generic[J_contra]):
    """What messages of one kind between some parties carry, in jobs of which all facts (``when``) are true.

    A message is of a job when at least one row fits; what all that fit say is said.

    Attributes:
        why: it may leave the sender or, where nothing protects it, what follows from that.
        reveals: what comes true by it, together with the other senders' messages.
        paid: whether the sender's ledger pays for it.
        rounds: of the tags of the messages that carry it; all by default.
        exposed: what of it the audit attacks by itself; what several messages make together its ``Source`` finds.
        forms: of the messages; none where the row says more of those of another.
    """

    kind: Kind
    ends: Route[J_contra]
    what: str
    protection: Protection
    why: str
    reveals: tuple[Revelation[J_contra], ...] = ()
    when: tuple[Condition[J_contra], ...] = ()
    paid: bool = False
    rounds: range = ANY
    exposed: Exposed | None = None
    forms: tuple[WireFormat, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """Whether it is made of noised values alone, so that a finite ε bounds what it tells."""
        return self.paid or self.protection == "noise"

    def of(self, job: J_contra) -> bool:
        """Whether a job has such messages: all conditions of the row hold."""
        return all(fact.holds(job) for fact in self.when)


TO_HOLDER: Final = Route[JobSettings]("holder", "holder")
TO_SERVER: Final = Route[JobSettings]("holder", SERVER)
FROM_SERVER: Final = Route[JobSettings](SERVER, "holder")
FIRST_TO_HOLDER: Final = Route[JobSettings](
    "first holder", "holder", lambda job, sender, _: sender == job.data.names[0]
)
LABELLED_TO_HOLDER: Final = Route[JobSettings](
    "label holder", "holder", lambda job, sender, _: sender == job.data.label_party
)
LABELLED_TO_SERVER: Final = Route[JobSettings](
    "label holder", SERVER, lambda job, sender, _: sender == job.data.label_party
)

TWO_HOLDERS: Final = Condition[JobSettings](
    "two holders", lambda job: sum(name != job.inputs.across for name in job.data.names) == 2
)
MORE_HOLDERS: Final = TWO_HOLDERS.otherwise("three holders or more")
JUDGED: Final = Condition[JobSettings](
    "not `select_by: last`", lambda job: not job.passes.learns_alone and job.train.select_by != "last"
)

OPENED: Final = (
    "Uniform by itself: the pairwise masks cancel only in the sum over all holders, which the receiver opens."
)
EXACTLY: Final = "Of two holders each subtracts its own part and has the other's exactly: masks hide nothing from it."
TRAINING: Final = "Not protected: the receiver can infer training nodes and which of them share a class."
TRAINED_ON: Final = "Not protected: the receiver can infer which nodes are trained on."


_HELLO: Final = (
    "Version, hashes of settings and alignment, number of common nodes, number and precision of feature columns where "
    "the method needs them, checkpoints held and whether they may be replaced, training steps that the privacy budget "
    "allows, number of the release held and whether it is of another alignment, the reason of a refusal, whether a "
    "person is still to approve, and before an alignment the number of the holder's ids and whether some are new; how "
    "long the sender's records are, their hashes under a secret salt, and signatures."
)
_SEAL: Final = "Says who the sender is and nothing of its data; the secret halves of the keys stay at the sender."
_ASKED: Final = "Drawn from a secret of the sender's, and from nothing of its data."
_RANKED: Final = (
    "Every party allows it: the order follows from messages that the sender was meant to get, not from its own data; "
    "whether it is right, the receiver alone knows."
)
_AUDIT: Final = "an [audit](../guides/audit.md#across-organisations)"

# One row, few lines: a table is read across.
# fmt: off
COMMON_ROWS: Final[tuple[MessageSpec[JobSettings], ...]] = (
    *(MessageSpec(Kind.HELLO, ends, "facts of the job", "public", _HELLO,
          forms=(WireFormat("0 …, 0 … 9", "uint8 [bytes of JSON]; round 3: [32]", "[agreement](#agreement), records"),))
      for ends in (TO_HOLDER, TO_SERVER, FROM_SERVER)),
    *(MessageSpec(Kind.SEAL, ends, "certificate, fresh public key, signature", "public", _SEAL,
          forms=(WireFormat("0, 0 … 1", "uint8 [bytes]", "handshake of `testing.sealed_link`, which no command uses"),))
      for ends in (TO_HOLDER, TO_SERVER, FROM_SERVER)),
    *(MessageSpec(Kind.AUDIT_QUESTION, ends, "random pairs of nodes", "random", _ASKED,
          forms=(WireFormat("0, 0 … 1", "uint8 [bytes of JSON]; int64 [pairs, 2]", _AUDIT),))
      for ends in (TO_HOLDER, TO_SERVER)),
    *(MessageSpec(Kind.AUDIT_ANSWER, ends, "how attacks on what the sender saw rank pairs of nodes", "none", _RANKED,
          forms=(WireFormat("answer, 0 … 2", "uint8 [bytes of JSON]; int64 [targets, 2]; float32 [targets]", _AUDIT),))
      for ends in (TO_HOLDER, FROM_SERVER)),
)
"""What every job has: agreement, sealing, audits across organisations."""

ALIGNMENT_ROWS: Final[tuple[MessageSpec[JobSettings], ...]] = (
    MessageSpec(Kind.BLINDED_IDS, TO_HOLDER, "node ids as curve points under secret keys", "blinding",
        "Without the keys the receiver can neither read nor test an id (decisional Diffie-Hellman); it learns how many "
        "ids a holder has.", forms=(WireFormat("piece, holders passed", "uint8 [≤ 8,192, 32]", "alignment"),)),
    MessageSpec(Kind.ID_TOKENS, TO_HOLDER, "hashes of the node ids under the sender's key", "blinding",
        "The receiver gets those of its own ids alone: it learns which of them the sender has, as by the result, and "
        "how many ids the sender has.", when=(TWO_HOLDERS,),
        forms=(WireFormat("0, 0", "uint8 [ids of the sender, 16]", "alignment"),)),
    MessageSpec(Kind.ID_TOKENS, TO_SERVER, "hashes of the node ids under the holders' keys", "blinding",
        "Without the keys the server can compute none; it must not collude with a holder, and learns how many ids each "
        "holder has and how many they have in common.",
        forms=(WireFormat("0, 0", "uint8 [ids of the sender, 16]", "alignment"),)),
    MessageSpec(Kind.COMMON_IDS, FROM_SERVER, "the hashes that all holders sent", "none",
        "The purpose of alignment: the receiver learns which of its own ids all other holders have.",
        forms=(WireFormat("0, 0", "uint8 [N, 16]", "alignment"),)),
    MessageSpec(Kind.ROW_ORDER, FIRST_TO_HOLDER, "where the common nodes stand in the order of rows", "blinding",
        "Follows from ids that the receiver has as well, and from the first holder's seed; nobody but the holders may "
        "know it.", forms=(WireFormat("0, 0", "int32 [N]", "alignment, not for an inference"),), rounds=range(1)),
    MessageSpec(Kind.ROW_ORDER, FIRST_TO_HOLDER, "the key of tokens of known ids", "random",
        "Drawn for one alignment; nobody but the holders may know it.", rounds=range(1, 2),
        forms=(WireFormat("0, 1", "uint8 [32]", "alignment that goes on from another"),)),
)
"""Where rows of all holders are the same nodes."""
# fmt: on


def judgement(ends: Route[JobSettings], when: Condition[Any] = JUDGED) -> MessageSpec[Any]:
    """Make the row of a label holder's CONTROL message after an evaluation: whether it is the best, whether to stop."""
    why = "In the clear: tells whether the validation scores rose, not by how much."
    form = WireFormat("epoch, 0", "bool [2]: best so far, stop", "every evaluation but the last inference")
    return MessageSpec(Kind.CONTROL, ends, "best so far? stop?", "none", why, when=(when,), forms=(form,))


def summed_rows(
    kind: Kind,
    what: str,
    reveals: tuple[Revelation[J_contra], ...],
    single: tuple[Revelation[J_contra], ...],
    *when: Condition[J_contra],
    forms: tuple[WireFormat, ...],
) -> tuple[MessageSpec[J_contra], MessageSpec[J_contra]]:
    """Make the rows of a sum that holders open together: masked of three or more, exact (``single`` too) of two."""
    return (
        MessageSpec(kind, TO_HOLDER, what, "mask", OPENED, reveals, (MORE_HOLDERS, *when), forms=forms),
        MessageSpec(kind, TO_HOLDER, what, "none", EXACTLY, (*reveals, *single), (TWO_HOLDERS, *when), forms=forms),
    )


PARADIGMS: Final[Registry[Any]] = Registry(
    "veilgraph.paradigms",
    {
        "vertical": "veilgraph.paradigms.vertical.paradigm:VERTICAL",
        "horizontal": "veilgraph.paradigms.horizontal.paradigm:HORIZONTAL",
        "sealed": "veilgraph.paradigms.sealed.paradigm:SEALED",
        "union": "veilgraph.paradigms.union.paradigm:UNION",
    },
    kind="veilgraph.protocol.paradigm:Paradigm",
)
"""The paradigms by name, for modules that their seam is made of, which ``paradigm.PARADIGMS`` types for all others."""


if TYPE_CHECKING:
    from veilgraph.link.view import TrafficEntry
    from veilgraph.privacy.publisher import Spent


def rows_of(job: JobSettings, sender: PartyId, receiver: PartyId, kind: Kind | None = None) -> list[MessageSpec[Any]]:
    """Return the rows that say what a job's messages from one party to another carry, of one kind or of all."""
    rows = [row for row in _paradigm_rows(job) if kind in (None, row.kind)]
    return [row for row in rows if row.ends.fit(job, sender, receiver) and row.of(job)]


def revelation_causes(job: JobSettings, party: PartyId | None = None) -> dict[str, str]:
    """Return revelation → the settings that cause it, for what a job reveals of ``party``'s data, or of anybody's."""
    true = {told for row in _sent_rows(job) for told in row.reveals}
    found = dict[str, str]()
    for told in _revelations_of(_paradigm_rows(job)):
        if told in true and (party is None or party in told.whose(job)) and (cause := told.cause(job)):
            found.setdefault(told.name, cause)
    return found


def bounded_revelations(job: JobSettings) -> frozenset[str]:
    """Names of the revelations that a job makes through noised messages alone, so that a finite ε bounds them."""
    rows = list(_sent_rows(job))
    bare = {told.name for row in rows if not row.is_bounded for told in row.reveals}
    return frozenset(told.name for row in rows for told in row.reveals) - bare


def wider_revelations(job: JobSettings) -> dict[str, str]:
    """Return revelation → a wider one that includes it, by name, among all that jobs of this paradigm may reveal."""
    return {told.name: told.part_of for told in _revelations_of(_paradigm_rows(job)) if told.part_of}


def revelation_statements(job: JobSettings) -> dict[str, str]:
    """Return revelation → who learns what, for all that jobs of this paradigm may reveal."""
    return {told.name: told.statement for told in _revelations_of(_paradigm_rows(job))}


@cache
def all_revelations() -> Mapping[str, str]:
    """Return revelation → who learns what, for all paradigms that are installed.

    Raises ``ConfigError``: two call different things by one name, or a package cannot be loaded.
    """
    found = dict[str, str]()
    for paradigm in PARADIGMS:
        for told in _revelations_of(PARADIGMS[paradigm].rows):
            if found.setdefault(told.name, told.statement) != told.statement:
                raise ConfigError(
                    f"paradigm={paradigm!r} calls something else {told.name!r} than another does, and parties "
                    "accept revelations by name; rename it in that package, or remove the package"
                )
    return MappingProxyType(found)


def _paradigm_rows(job: JobSettings) -> tuple[MessageSpec[Any], ...]:
    rows: tuple[MessageSpec[Any], ...] = PARADIGMS[job.paradigm].rows
    return rows


def _revelations_of(rows: Iterable[MessageSpec[Any]]) -> list[Revelation[Any]]:
    return list(dict.fromkeys(told for row in rows for told in row.reveals))


def _sent_rows(job: JobSettings) -> Iterator[MessageSpec[Any]]:
    """Yield the rows whose conditions a job meets, and that fit at least two of its parties."""
    pairs = list(permutations((*job.data.names, SERVER), 2))
    for row in _paradigm_rows(job):
        if row.of(job) and any(row.ends.fit(job, *pair) for pair in pairs):
            yield row


def _check_revelation_name(name: str) -> str:
    if name not in (known := all_revelations()):
        raise ValueError(f"no paradigm that is installed reveals anything by this name; choose of {', '.join(known)}")
    return name


RevelationName = Annotated[str, AfterValidator(_check_revelation_name)]  # a name in ``all_revelations``


Work = Literal["align", "train", "predict", "answer", "audit"]  # a piece of work: one session of all parties


class Disclosure(Exact):
    """Messages of one kind that one party sent to one other in a piece of work."""

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
    reveals: tuple[str, ...]
    """Names of the revelations that come true by it, together with the other senders' messages."""
    epsilon_release: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Of one of the messages by itself, at the job's δ; null: it did not pass the sender's publisher, or ε is ∞."""
    epsilon_total: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Of everything that the sender has published in the run so far, at the same δ; null likewise."""


class DisclosureRecord(Disclosure):
    """A line of ``disclosures.jsonl``."""

    time: AwareDatetime
    """When the piece of work ended, UTC, in whole seconds."""
    work: Work
    job: str
    """SHA-256 of the settings."""
    whole: bool = True
    """False: the party was killed, and this is what it had sent when it last took note; a little more may have gone."""
    previous: str = ""
    """SHA-256 of the line before; empty in the first."""


def disclosures(settings: JobSettings, entries: Sequence[TrafficEntry], spent: Spent | None = None) -> list[Disclosure]:
    """Describe what a party sent, by sender, receiver and kind; ``entries``: its traffic, ``spent``: its releases' ε.

    Raises ``ProtocolError`` where the job has no such message.
    """
    return [_disclosure(settings, entry, spent) for entry in entries if entry.direction == "sent"]


def disclosure_lines(
    settings: JobSettings,
    work: Work,
    found: Sequence[Disclosure],
    time: datetime,
    *,
    whole: bool = True,
    previous: str = "",
) -> str:
    """The block that a piece of work adds to ``disclosures.jsonl``: one JSON object per line.

    ``whole`` is False for a killed party; ``previous`` is the SHA-256 of the last line that is there, or empty.
    """
    when, job = time.astimezone(UTC).replace(microsecond=0), settings.hash()
    lines = []
    for one in found:
        record = DisclosureRecord(**dict(one), time=when, work=work, job=job, whole=whole, previous=previous)
        lines.append(record.model_dump_json())
        previous = digest(lines[-1].encode())
    return "".join(line + "\n" for line in lines)


def _disclosure(settings: JobSettings, entry: TrafficEntry, spent: Spent | None) -> Disclosure:
    rows = rows_of(settings, entry.party, entry.peer, entry.kind)
    if not rows:
        raise ProtocolError(
            f"{entry.party} sent {entry.kind.name.lower()} to {entry.peer}, which is no message of this job; give the "
            "settings that the traffic was recorded with",
            code="undisclosed",
            key=entry.kind.name.lower(),
            value=entry.peer,
            party=entry.party,
        )
    one = total = None
    if spent is not None and any(row.paid for row in rows):
        # What nodes perturb is of two kinds, each with an ε of its own.
        noise = settings.noise
        own = {Kind.PERTURBED_FEATURES: noise.feature_release, Kind.PERTURBED_LABELS: noise.label_release}.get(
            entry.kind
        )
        one, total = _finite(spent.epsilon_release if own is None else own.epsilon), _finite(spent.epsilon_total)
    return Disclosure(
        party=entry.party,
        to=entry.peer,
        kind=entry.kind.name.lower(),
        messages=entry.messages,
        bytes=entry.bytes,
        what="; ".join(row.what for row in rows),
        protection="none" if any(row.protection == "none" for row in rows) else rows[0].protection,
        why=" ".join(dict.fromkeys(row.why for row in rows)),
        reveals=tuple(dict.fromkeys(told.name for row in rows for told in row.reveals)),
        epsilon_release=one,
        epsilon_total=total,
    )


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
