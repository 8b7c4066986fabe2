"""What a view holds for attacks, and what a paradigm says of its own messages, for an audit that knows no paradigm.

The rows of what is sent say what each party is meant to have; this file takes it out of the messages. What several
messages hold together only their paradigm knows: its ``Source``, in ``paradigms/…/audit.py``. A package with a paradigm
of its own adds one of the same name by an entry point of the group ``veilgraph.evidence``; without one the audit tests
what must say nothing, attacks what rows expose, and lists what else reveals something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.settings import Registry
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import ViewEntry
from veilgraph.protocol.job import Check, JobSettings
from veilgraph.protocol.messages import rows_of
from veilgraph.protocol.trade_offs import Claims
from veilgraph.protocol.view import Floats, Observations, View, aggregate, numbers

Sort = Literal[
    "embedding",
    "initial",
    "gradients",
    "posteriors",
    "model",
    "open",
    "beside",
    "masked",
    "propagation",
    "hidden",
    "noise",
    "releases",
    "inference",
    "symbols",
]
# sorts of messages that are held against noise, and that no attack is mounted on
SILENT: Final = frozenset({"hidden", "noise"})

OPEN: Final = "open"  # Sort of what a party has and no attack of the catalogue is about: it is named as not attacked.

_MOST_WORDS: Final = 4096

Unsigned: TypeAlias = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Ciphertext:
    """Words of Z_2^32 or Z_2^64, [n], ``width`` of them a row; ``bitwise``: masks are taken off by XOR."""

    words: Unsigned
    width: int = 1
    bitwise: bool = False

    def less(self, words: Unsigned, others: Unsigned) -> Unsigned:
        """Take ``others`` off ``words``: by XOR if ``bitwise``, else by subtraction in the ring."""
        return words ^ others if self.bitwise else words - others


def chosen_words(words: NDArray[Any]) -> Unsigned:
    """Return a message's words, unsigned, of more than 4,096 the first and last; ``DataError``: no words of a ring."""
    flat = np.ascontiguousarray(words).reshape(-1)
    if flat.dtype.kind not in "iu" or flat.dtype.itemsize not in (4, 8):
        raise DataError(f"messages: {flat.dtype} are no words of a ring, whose bits would be uniform")
    if len(flat) > _MOST_WORDS:
        flat = np.concatenate([flat[: _MOST_WORDS // 2], flat[-_MOST_WORDS // 2 :]])
    return flat.view(f"u{flat.dtype.itemsize}")


@dataclass(frozen=True, eq=False)
class Order:
    """Distinct places in [0, size), int64 [n], that a holder sent (``told``), or that are true of its data.

    ``in_order``: their order counts, and not only which they are.
    """

    places: NDArray[np.int64]
    size: int
    told: bool = True
    in_order: bool = True


@dataclass(frozen=True)
class OpenedSum:
    """A fixed-point sum over ``holders`` that a party opens: each pass's ``rows``, with so many fractional ``bits``."""

    words: str
    rows: Observations
    bits: int
    holders: Sequence[PartyId]


@dataclass(frozen=True, eq=False)
class Noisy:
    """One release as received, ``rows`` [N, d], with noise of a ``deviation``; ``clip``: the longest row before it."""

    rows: Floats
    deviation: float
    clip: float

    @property
    def scaled(self) -> Floats:
        """The rows in units of the noise's standard deviation."""
        return self.rows / self.deviation


@dataclass(frozen=True, eq=False)
class NoisySeries:
    """Releases of the same holders, ``holder`` first, which must have the noise that their ledgers count with.

    ``anew`` says where noise is drawn anew.
    """

    holder: PartyId
    words: str
    releases: Sequence[Noisy]
    anew: str = "in every release and"


@dataclass(frozen=True, eq=False)
class Guesses:
    """An adversary's guesses at a holder's canaries: scores [m], higher = in, and the true coins [m].

    ``limit`` is the ε claimed; None: the ledger's total, where that is claimed against the adversary. ``claims`` are of
    the ledger's releases, for a larger bound at ``delta``; None: nothing is claimed but ε and δ.
    """

    words: str
    scores: Floats
    coins: Tensor | NDArray[np.bool_]
    delta: float
    limit: float | None = None
    claims: Claims | None = None
    claim: str = "The limit is the ledger's total."


Told: TypeAlias = tuple[str, float, str]
"""The evidence of a check in words, its p-value, and a note."""


@dataclass(frozen=True, eq=False)
class Inferences:
    """Joint inferences that an adversary may have made anew; a node's features reach so many ``hops``.

    ``before`` are posteriors [N, C]; ``doubled`` those where the adversary's features of one node count twice.
    """

    before: Floats
    doubled: Callable[[int], Floats]
    hops: int


@dataclass(frozen=True, eq=False)
class InitialWeights:
    """What an adversary can compute of the initial W, h^0 = X·W.

    Attributes:
        words: what that is, a sentence.
        is_all: whether it is all of W, if its seeds are right.
        has_others: whether W has parts that others drew.
        weights: holder → the known part of W of its columns, [F_owner, d].
    """

    words: str
    is_all: bool
    has_others: bool
    weights: Callable[[PartyId], Floats]


class Audited(Protocol):
    """A run under audit, as a paradigm reads it: an auditor has all views, all data and all files."""

    settings: JobSettings
    seed: int

    def view(self, party: PartyId) -> View:
        """What a party saw."""

    def graph(self, party: PartyId) -> PartyGraph:
        """A holder's data about the nodes that the job is about."""

    def whole_graph(self, party: PartyId) -> PartyGraph:
        """The same with nodes that other holders do not have."""

    def model(self, party: PartyId) -> Mapping[str, Tensor]:
        """What a party kept of the trained model."""

    def canary_key(self, party: PartyId) -> bytes | None:
        """The secret key of a holder's canaries; None where it has none."""

    def ledger(self, party: PartyId) -> list[dict[str, Any]]:
        """The entries of a holder's ledger; raises ``DataError`` where that is not here."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """One piece of evidence that an adversary has, to mount attacks on or to test that it tells nothing.

    Attributes:
        sort: what attacks on it there are.
        about: the holders whose secrets may be in it. Rows are the common nodes or, in paradigm horizontal, that
        holder's.
        permitted: whether the adversary is meant to have it; if not, it must tell nothing.
        rows: [N, d] the newest, or made of all; None where it is its steps that count.
        steps: the passes, or one made of all.
        updates: with ``initial``: the adversary's own share of what changed between the first of them.
        outputs: with ``propagation``: what the hop made of each step.
        parts: with ``beside``, once it is with what the adversary has: features, own predictions, and these.
        noise: with ``noise``: reads the words that must be uniform and independent.
        asked: with ``model``: rows of the nodes of a holder whose data the adversary is granted.
        symbols: with ``symbols``: id of a node of ``about`` → its class by randomised response, −1 for none.
    """

    sort: Sort
    words: str
    about: tuple[PartyId, ...]
    permitted: bool = True
    rows: Floats | None = None
    steps: Sequence[Floats] = field(default_factory=Observations)
    updates: tuple[Floats, ...] = ()
    outputs: Sequence[Floats] = field(default_factory=Observations)
    parts: tuple[Floats, ...] = ()
    noise: Callable[[], Sequence[Ciphertext]] | None = None
    asked: Callable[[PartyGraph], Floats] | None = None
    symbols: Mapping[str, int] = field(default_factory=dict)
    messages: tuple[ViewEntry, ...] = field(default=(), repr=False)

    def on(self, graph: PartyGraph) -> Evidence:
        """Return this with ``rows`` for a holder's nodes, by ``asked`` where it is given; errors as ``check_rows``."""
        found = self if self.asked is None else replace(self, rows=self.asked(graph))
        found.check_rows(graph.num_nodes)
        return found

    def check_rows(self, nodes: int) -> None:
        """Raise ``DataError`` for evidence that has not a row for each of so many nodes."""
        rows = self.rows if self.rows is not None else self.steps[0] if self.steps else None
        if rows is not None and len(rows) != nodes:
            raise DataError(f"{self.words}: {len(rows)} rows, and the data that the run was trained on have {nodes}")

    @property
    def matrix(self) -> Floats:
        """Its rows; raises ``DataError`` where there are none."""
        if self.rows is None:
            raise DataError(f"{self.words}: there are no rows")
        return self.rows


def unused_messages(view: View, found: Sequence[Evidence]) -> list[tuple[str, str]]:
    """List (revelations, what) of messages to a party that reveal something and are in no evidence of ``found``."""

    def key(seen: ViewEntry) -> tuple[Kind, PartyId, int]:
        return seen.tag.kind, seen.sender, seen.tag.round

    used = {key(seen) for each in found if each.permitted for seen in each.messages}
    left: dict[tuple[str, str], list[PartyId]] = {}
    for kind, sender, round_ in dict.fromkeys(key(seen) for seen in view.messages if seen.receiver == view.party):
        for row in rows_of(view.settings, sender, view.party) if (kind, sender, round_) not in used else ():
            if row.kind is kind and row.reveals and round_ in row.rounds:
                names = ", ".join(told.name for told in row.reveals)
                left.setdefault((names, row.what), []).append(sender)
    return [(names, f"{what}, from {', '.join(dict.fromkeys(senders))}") for (names, what), senders in left.items()]


def hidden_evidence(view: View, but: Collection[Kind] = ()) -> Iterator[Evidence]:
    """Yield, by sender and kind, received messages that masks or shares make uniform by themselves; without ``but``."""
    for sender in (*view.settings.data.names, SERVER):
        all_rows = rows_of(view.settings, sender, view.party)
        for kind in Kind:
            rows = [row for row in all_rows if row.kind is kind]
            is_hidden = kind not in but and rows and all(row.protection in ("mask", "share") for row in rows)
            if is_hidden and (seen := tuple(view.received(kind, sender))):
                words = f"{rows[0].what} from {sender}"
                yield Evidence("hidden", words, (sender,), permitted=False, messages=seen)


def exposed_evidence(view: View) -> Iterator[Evidence]:
    """Yield, by sender and round, the evidence that rows of the paradigm expose by themselves (``Exposed``)."""
    for sender in (*view.others, SERVER):
        rows = rows_of(view.settings, sender, view.party)
        exposed_rows = dict.fromkeys((row.kind, row.exposed, row.rounds) for row in rows if row.exposed)
        for kind, exposed, rounds in exposed_rows:
            for round_ in sorted({seen.tag.round for seen in view.received(kind, sender) if seen.tag.round in rounds}):
                words = exposed.words.format(sender=sender, round=round_)
                if exposed.sort == "embedding":
                    yield from embedding_of(view, kind, round_, words, [sender])
                elif exposed.sort == "gradients":
                    yield from gradients_of(view, kind, round_, words, [sender], (sender,))
                else:
                    messages = tuple(view.received(kind, sender, round_))
                    yield Evidence(exposed.sort, words, (sender,), messages=messages)


def embedding_of(
    view: View, kind: Kind, round_: int, words: str, senders: Sequence[PartyId], about: tuple[PartyId, ...] = ()
) -> Iterator[Evidence]:
    """Yield evidence of one round's embeddings from some senders: added up where they are masked, else side by side."""
    passes = aggregate(view, kind, round_, senders)
    parts = [passes]
    if kind is not Kind.MASKED:
        parts = [Observations([(pieces[place],) for pieces in passes.pieces]) for place in range(len(senders))]
    yield from embeddings(view, parts, words, about or tuple(senders))


def embeddings(view: View, parts: Sequence[Observations], words: str, about: tuple[PartyId, ...]) -> Iterator[Evidence]:
    """Yield evidence of embeddings: the newest pass's rows of all ``parts``, [N, d] side by side; none without one."""
    if not parts[0]:
        return
    messages = tuple(seen for part in parts for seen in part.messages)
    rows = np.concatenate([part[-1] for part in parts], axis=1)
    yield Evidence("embedding", words, about, rows=rows, messages=messages)


def gradients_of(
    view: View, kind: Kind, round_: int, words: str, senders: Sequence[PartyId], about: tuple[PartyId, ...]
) -> Iterator[Evidence]:
    """Yield evidence of gradients: those of one round from some senders, added up pass by pass."""
    yield from gradients(view, aggregate(view, kind, round_, senders), words, about)


def gradients(view: View, steps: Observations, words: str, about: tuple[PartyId, ...]) -> Iterator[Evidence]:
    """Yield evidence of gradients from ``steps``, [N, d] each; none without steps."""
    if steps:
        yield Evidence("gradients", f"{words} in {len(steps)} steps", about, steps=steps, messages=steps.messages)


class Source:
    """A paradigm's part of an audit: what its messages tell together. This base adds nothing to what rows expose.

    Attributes:
        reads_passes: whether messages are read pass by pass, each with a row for every node.
        trains_alone: whether who has the labels is compared with what it predicts from its own data as well.
    """

    reads_passes: ClassVar[bool] = True
    trains_alone: ClassVar[bool] = False

    def hidden(self, view: View) -> list[Evidence] | None:
        """Messages that must say nothing to a party; None: ``hidden_evidence``, those that rows put under masks."""
        return None

    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        """What a party may have that attacks can be mounted on, beside what rows expose one by one.

        In ``trained``, a part of the view, rows are those of the party's data.
        """
        yield from ()

    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        """Evidence that some parties have together and none alone; ``server`` is the server's view if it is one."""
        yield from ()

    def orders(self, view: View, sender: PartyId, truth: PartyGraph) -> list[Order]:
        """Orders that ``sender`` sent, which must be random, and true ones of its data, to hold these against."""
        return []

    def unattacked(self, view: View) -> Sequence[tuple[str, str]]:
        """List (revelations, what) that no attack is about, beside those that ``unused_messages`` lists."""
        return ()

    def sums(self, view: View) -> Iterator[OpenedSum]:
        """Sums in fixed point that a party opens, whose low bits could tell of the summands."""
        yield from ()

    def noisy(self, run: Audited, party: PartyId) -> Iterator[NoisySeries]:
        """Releases whose noise a party, or an auditor beside it, can test against the noise that ledgers assume.

        Raises ``DataError`` where there are some that cannot be read.
        """
        if party == SERVER and run.settings.duties.summing:
            raise DataError("noise is on sums that their learner makes for itself, and sends nobody")
        yield from ()

    def canary_guesses(
        self, run: Audited, members: Sequence[PartyId], holder: PartyId, key: bytes
    ) -> Iterator[Guesses]:
        """Guesses by ``members`` together at a holder's canaries, drawn by ``key``, that only this paradigm has."""
        yield from ()

    def claim(self, check: Check, run: Audited, view: View, holder: PartyId) -> Told | None:
        """Run a check of a holder's claim on a view that only this paradigm can read; None where it does not apply.

        Raises ``DataError`` where too little is known for the test.
        """
        return None

    def withstands(self, job: JobSettings, members: Collection[PartyId]) -> bool:
        """Whether the ledgers' ε is claimed against ``members`` together: not if too many of them made joint noise."""
        return job.noise.shared is None or len({*members} & {*job.duties.publishing}) <= job.noise.shared[1]

    def initial_weights(
        self, job: JobSettings, columns: Mapping[PartyId, int], seeds: Mapping[PartyId, int]
    ) -> InitialWeights:
        """What some holders, by their learning ``seeds``, can compute of the initial W, of so many ``columns`` each."""
        raise DataError("jobs of this paradigm open no initial embeddings")

    def inferences(self, run: Audited, members: Sequence[PartyId]) -> Inferences:
        """Joint inferences with some holders' features changed, where evidence is of sort ``inference``."""
        raise DataError(_NO_TWIN)

    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        """Probabilities, Tensor[N, C] float64, of a network like the job's on pooled data, here a vertical one."""
        return SOURCES["vertical"].posteriors(job, everything, epochs)

    def unreadable(self, run: Audited) -> str:
        """Why views of a run cannot be read, though it is complete; empty if they can."""
        return ""

    def twin(self, run: Audited) -> Any:  # noqa: ANN401 - a network has ``infer() -> Tensor[N, C]``, logits
        """The trained network in one process; raises ``DataError`` where its inferences cannot be made anew."""
        raise DataError(_NO_TWIN)


_NO_TWIN: Final = (
    "joint inferences are made anew in jobs of paradigm vertical without privacy; with it each inference has noise of "
    "its own or is of what was released once"
)

SOURCES: Final[Registry[Source]] = Registry(
    "veilgraph.evidence",
    {name: f"veilgraph.paradigms.{name}.audit:SOURCE" for name in ("vertical", "sealed", "union")},
    kind="veilgraph.protocol.evidence:Source",
)


def source_of(job: JobSettings) -> Source:
    """The source of a job's paradigm; ``Source`` itself where it has none."""
    return SOURCES.get(job.paradigm) or Source()


def evidence_of(view: View) -> list[Evidence]:
    """Everything in a view that attacks can be mounted on."""
    trained, source = view.of_training, source_of(view.settings)
    hidden = source.hidden(view)
    return [
        *(hidden_evidence(view) if hidden is None else hidden),
        *exposed_evidence(trained),
        *source.evidence(view, trained),
    ]


def posteriors(holder: PartyId, about: Sequence[PartyId], probabilities: Tensor) -> Evidence:
    """Make evidence of predicted probabilities, Tensor[N, C], as a client of ``holder`` gets them for all nodes."""
    return Evidence("posteriors", f"predicted probabilities at {holder}", tuple(about), rows=numbers(probabilities))
