"""What a view holds for attacks: embeddings, gradients, opened values, predictions, and messages that must say nothing.

The rows of what is sent say what each party is meant to have; this file takes it out of the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from torch import Tensor

from veilgraph.audit.attacks.ciphertexts import Ciphertext
from veilgraph.audit.passes import Passes, matched, mean, numbers, together
from veilgraph.audit.roc import Floats
from veilgraph.audit.view import View
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Seen
from veilgraph.protocol.revealed import rows_of
from veilgraph.protocol.rows import Exposed

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
]
SILENT: Final = frozenset({"hidden", "noise"})
"""Sorts of messages that are held against noise, and that no attack is mounted on."""

OPEN: Final = "open"
"""Sort of what a party has and no attack of the catalogue is about: it is named as not attacked."""

_HIDDEN: Final = frozenset({"mask", "share"})


@dataclass(frozen=True, eq=False)
class Evidence:
    """One kind of thing that an adversary has.

    Attributes:
        sort: what attacks on it there are.
        words: what it is, for people.
        about: the holders whose secrets may be in it. Rows are the common nodes or, in paradigm horizontal, those of
            the one holder.
        permitted: whether the adversary is meant to have it; if not, it must tell nothing.
        rows: [N, d] the newest, or made of all; None where it is its steps that count.
        steps: the passes, or one made of all.
        updates: with ``initial``: the adversary's own share of what changed between the first of them.
        outputs: with ``propagation``: what the hop made of each step.
        parts: with ``beside``, once it is with what the adversary has: features, own predictions, and these.
        noise: with ``noise``: reads the words that must be uniform and independent.
        asked: with ``model``: rows of the nodes of a holder whose data the adversary is granted.
        messages: where it was taken from.
    """

    sort: Sort
    words: str
    about: tuple[PartyId, ...]
    permitted: bool = True
    rows: Floats | None = None
    steps: Sequence[Floats] = field(default_factory=Passes)
    updates: tuple[Floats, ...] = ()
    outputs: Sequence[Floats] = field(default_factory=Passes)
    parts: tuple[Floats, ...] = ()
    noise: Callable[[], Sequence[Ciphertext]] | None = None
    asked: Callable[[PartyGraph], Floats] | None = None
    messages: tuple[Seen, ...] = field(default=(), repr=False)

    def on(self, graph: PartyGraph) -> Evidence:
        """With what a model makes of a holder's nodes, where it is one.

        Raises:
            DataError: it cannot be asked.
        """
        return self if self.asked is None else replace(self, rows=self.asked(graph))


def posteriors(holder: PartyId, about: Sequence[PartyId], probabilities: Tensor) -> Evidence:
    """What a client gets who asks for the predictions of all nodes."""
    return Evidence("posteriors", f"predicted probabilities at {holder}", tuple(about), rows=numbers(probabilities))


def unused(view: View, found: Sequence[Evidence]) -> list[tuple[str, str]]:
    """(revelations, what) of everything that reveals something to a party, and is in none of its evidence."""
    used = {_key(seen) for each in found if each.permitted for seen in each.messages}
    left: dict[tuple[str, str], list[PartyId]] = {}
    for key in dict.fromkeys(_key(seen) for seen in view.messages if seen.receiver == view.party):
        if key in used:
            continue
        kind, sender, round_ = key
        for row in rows_of(view.settings, sender, view.party):
            if row.kind is kind and row.reveals and round_ in row.rounds:
                names = ", ".join(told.name for told in row.reveals)
                left.setdefault((names, row.what), []).append(sender)
    return [(names, f"{what}, from {', '.join(dict.fromkeys(senders))}") for (names, what), senders in left.items()]


def check_rows(evidence: Evidence, nodes: int) -> None:
    """Refuses evidence that has not a row for each of so many nodes.

    Raises:
        DataError: gives both numbers.
    """
    rows = evidence.rows if evidence.rows is not None else evidence.steps[0] if evidence.steps else None
    if rows is not None and len(rows) != nodes:
        raise DataError(f"{evidence.words}: {len(rows)} rows, and the data that the run was trained on have {nodes}")


def _key(seen: Seen) -> tuple[Kind, PartyId, int]:
    return seen.tag.kind, seen.sender, seen.tag.round


def hidden_of(view: View, but: Collection[Kind] = ()) -> Iterator[Evidence]:
    """Messages that are uniform by themselves, whatever the sender's data are; some kinds left out."""
    for sender in (*view.settings.data.names, SERVER):
        all_rows = rows_of(view.settings, sender, view.party)
        for kind in Kind:
            rows = [row for row in all_rows if row.kind is kind]
            if kind not in but and rows and all(row.protection in _HIDDEN for row in rows):
                seen = view.received(kind, sender)
                if seen:
                    words = f"{rows[0].what} from {sender}"
                    yield Evidence("hidden", words, (sender,), permitted=False, messages=tuple(seen))


def exposed_of(view: View) -> Iterator[Evidence]:
    """What the rows of its paradigm expose to attacks, of one sender and one round at a time."""
    for sender in (*view.others, SERVER):
        rows = rows_of(view.settings, sender, view.party)
        for kind, exposed, rounds in dict.fromkeys((row.kind, row.exposed, row.rounds) for row in rows if row.exposed):
            for round_ in sorted({seen.tag.round for seen in view.received(kind, sender)}):
                if round_ in rounds:
                    yield from _of_one(view, kind, exposed, sender, round_)


def _of_one(view: View, kind: Kind, exposed: Exposed, sender: PartyId, round_: int) -> Iterator[Evidence]:
    words = exposed.words.format(sender=sender, round=round_)
    if exposed.sort == "embedding":
        yield from embedding_of(view, kind, round_, words, [sender])
    elif exposed.sort == "gradients":
        yield from gradients_of(view, kind, round_, words, [sender], (sender,))
    else:
        yield Evidence(exposed.sort, words, (sender,), messages=tuple(view.received(kind, sender, round_)))


def embedding_of(
    view: View, kind: Kind, round_: int, words: str, senders: Sequence[PartyId], about: tuple[PartyId, ...] = ()
) -> Iterator[Evidence]:
    """The embeddings of one round from some senders: added up where they are masked, else side by side."""
    passes = together(view, kind, round_, senders)
    parts = [passes]
    if kind is not Kind.MASKED:
        parts = [Passes([(pieces[place],) for pieces in passes.pieces]) for place in range(len(senders))]
    yield from embeddings(view, parts, words, about or tuple(senders))


def embeddings(view: View, parts: Sequence[Passes], words: str, about: tuple[PartyId, ...]) -> Iterator[Evidence]:
    """The rows of one round, parts of them side by side; with noise out of all passes as well."""
    if not parts[0]:
        return
    messages = tuple(seen for part in parts for seen in all_of(part))
    for how, of_all in _ways(view, len(parts[0])).items():
        rows = np.concatenate([of_all(part) for part in parts], axis=1)
        yield Evidence("embedding", f"{words}{how}", about, rows=rows, messages=messages)


def gradients_of(
    view: View, kind: Kind, round_: int, words: str, senders: Sequence[PartyId], about: tuple[PartyId, ...]
) -> Iterator[Evidence]:
    """The gradients of one round from some senders, added up."""
    yield from gradients(view, together(view, kind, round_, senders), words, about)


def gradients(view: View, steps: Passes, words: str, about: tuple[PartyId, ...]) -> Iterator[Evidence]:
    """What is attacked is the mean of the first steps; with noise that of all, and weighed, as well."""
    if steps:
        words, messages = f"{words} in {len(steps)} steps", all_of(steps)
        yield Evidence("gradients", words, about, steps=steps, messages=messages)
        for how, of_all in list(_ways(view, len(steps)).items())[1:]:
            yield Evidence("gradients", f"{words}{how}", about, steps=(of_all(steps),), messages=messages)


def _ways(view: View, count: int) -> dict[str, Callable[[Sequence[Floats]], Floats]]:
    """What one may make of so many passes of the same rows: the newest alone or, where each has noise of its own, all.

    Nobody is told which is best, so each of them is attacked.
    """
    newest = {"": lambda passes: passes[-1]}
    if view.settings.privacy is None or count < 2:
        return newest
    return newest | {f", the mean of {count} passes": mean, f", {count} passes weighed by what they share": matched}


def rounds_of(view: View, kind: Kind, sender: PartyId) -> list[int]:
    """Rounds, but 0, of the messages of a kind that came from a party."""
    return sorted({seen.tag.round for seen in view.received(kind, sender)} - {0})


def all_of(passes: Passes) -> tuple[Seen, ...]:
    """The messages of all passes."""
    return tuple(seen for pieces in passes.pieces for seen in pieces)
