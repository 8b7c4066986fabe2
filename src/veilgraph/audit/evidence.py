"""What a view holds for attacks: embeddings, gradients, opened values, predictions, and messages that must say nothing.

``docs/threat-model.md`` says what each party is meant to have; this file takes it out of the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from torch import Tensor

from veilgraph.audit.passes import Passes, matched, mean, numbers, together
from veilgraph.audit.roc import Floats
from veilgraph.audit.view import View
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import expand
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.mpc.dealer import Direction, operand_mask_name
from veilgraph.roles.disclosure_rows import TABLE, Row
from veilgraph.roles.disclosures import direction_of, facts_of

Sort = Literal["embedding", "initial", "gradients", "posteriors", "propagation", "hidden", "releases", "inference"]

_MOST_UPDATES: Final = 10
_MOST_HOPS: Final = 80
_MOST_NOISY_HOPS: Final = 400
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
    messages: tuple[Seen, ...] = field(default=(), repr=False)


def evidence_of(view: View) -> list[Evidence]:
    """Everything in a view that attacks can be mounted on.

    Raises:
        RunError: a message cannot be read.
    """
    found, trained = [*_hidden(view)], view.of_training
    if view.party == SERVER:
        return [*found, *_at_server(trained)]
    found += [*_initial(trained), *_perturbed(trained)]
    if view.settings.paradigm == "vertical":
        found += [*_combined(trained), *_asked(view)]
        if view.party != view.settings.data.label_party:
            found += [*_returned(trained), *_initial_gradients(trained)]
    return found


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
        for row in _rows_of(view, kind, sender):
            if row.reveals and _is_of(row, round_):
                left.setdefault((", ".join(row.reveals), row.what), []).append(sender)
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


def _rows_of(view: View, kind: Kind, sender: PartyId) -> list[Row]:
    """What the job's messages of a kind from a party carry."""
    facts, direction = facts_of(view.settings, sender, view.party), direction_of(sender, view.party)
    return [row for row in TABLE if (row.kind, row.direction) == (kind, direction) and facts >= set(row.when)]


def _is_of(row: Row, round_: int) -> bool:
    """Whether messages of that round carry it: under the tags of embeddings, round 0 is that of the degrees."""
    is_embedding = row.direction == "holder to server" and row.kind in (Kind.MASKED, Kind.EMBEDDING)
    return not is_embedding or ("degrees" in row.what) == (round_ == 0)


def _hidden(view: View) -> Iterator[Evidence]:
    """Messages that are uniform by themselves, whatever the sender's data are."""
    for sender in (*view.settings.data.names, SERVER):
        for kind in Kind:
            rows = _rows_of(view, kind, sender)
            if rows and all(row.protection in _HIDDEN for row in rows):
                seen = view.received(kind, sender)
                if seen:
                    words = f"{rows[0].what} from {sender}"
                    yield Evidence("hidden", words, (sender,), permitted=False, messages=tuple(seen))


def _at_server(view: View) -> Iterator[Evidence]:
    settings = view.settings
    if settings.paradigm == "horizontal":
        for holder in view.others:
            for layer in _rounds(view, Kind.EMBEDDING, holder):
                yield from _embedding(view, Kind.EMBEDDING, layer, f"{holder}'s embedding of layer {layer}", [holder])
            for layer in _rounds(view, Kind.GRADIENT, holder):
                words = f"{holder}'s gradients of the global embedding of layer {layer}"
                yield from _gradients(view, Kind.GRADIENT, layer, words, [holder], (holder,))
    if settings.paradigm != "vertical":
        return
    holders, label_party = settings.publishing, settings.data.label_party
    kind = Kind.MASKED if settings.is_masked else Kind.EMBEDDING
    for round_ in range(1, settings.model.rounds + 1):
        if not settings.is_masked:
            for holder in holders:
                yield from _embedding(view, kind, round_, f"{holder}'s embedding of round {round_}", [holder])
        if len(holders) > 1:
            what = "the sum of all embeddings" if settings.is_masked else "all embeddings side by side"
            yield from _embedding(view, kind, round_, f"{what} of round {round_}", holders)
    yield from _hops_at_server(view)
    yield from _gradients(view, Kind.GRADIENT, 0, "gradients of the output z_L", [label_party], (label_party,))
    kind = Kind.MASKED_GRADIENT if settings.is_masked else Kind.GRADIENT
    for round_ in range(1, settings.model.rounds):
        words = f"gradients of the combined embedding of round {round_}"
        yield from _gradients(view, kind, round_, words, holders, (label_party,))


def _returned(view: View) -> Iterator[Evidence]:
    """At a holder: gradients of what it published, which come from the label holder's loss."""
    for round_ in _rounds(view, Kind.GRADIENT, SERVER):
        words = "gradients of its own embedding" + (f" of round {round_}" if view.settings.model.rounds > 1 else "")
        yield from _gradients(view, Kind.GRADIENT, round_, words, [SERVER], (view.settings.data.label_party,))


def _combined(view: View) -> Iterator[Evidence]:
    """At a holder: what the server sent back of all holders' embeddings."""
    for round_ in _rounds(view, Kind.COMBINED, SERVER):
        is_last = round_ == view.settings.model.rounds
        words = "the network's output z_L" if is_last else f"the combined embedding of round {round_}"
        yield from _embedding(view, Kind.COMBINED, round_, words, [SERVER], about=view.others)

    last = view.settings.model.rounds - (view.settings.model.server.layers > 0)
    combined = {round_: together(view, Kind.COMBINED, round_, [SERVER]) for round_ in range(1, last + 1)}
    yield from _hops(combined, combined, view.others, "inputs and outputs of the exchange rounds", _most(view))


def _hops_at_server(view: View) -> Iterator[Evidence]:
    """What the server sent back and what it got in the next round: a hop of propagation."""
    settings, holders = view.settings, view.settings.publishing
    rounds = range(1, settings.model.rounds + 1)
    sent = {round_: Passes([(seen,) for seen in view.sent(Kind.COMBINED, holders[0], round_)]) for round_ in rounds}
    if settings.is_masked:
        sums = {round_: together(view, Kind.MASKED, round_, holders) for round_ in rounds}
        yield from _hops(
            sent, sums, holders, "what went into the exchange rounds and the sums that came out", _most(view)
        )
        return
    for holder in holders:
        own = {round_: together(view, Kind.EMBEDDING, round_, [holder]) for round_ in rounds}
        yield from _hops(
            sent, own, [holder], f"what went into the exchange rounds and came out at {holder}", _most(view)
        )


def _hops(
    inputs: Mapping[int, Passes], outputs: Mapping[int, Passes], about: Sequence[PartyId], words: str, most: int
) -> Iterator[Evidence]:
    """Pairs of what went into a round and what the next made of it, of the same pass; so many, the newest.

    After the last round there may be an activation and more, so it is used where there is no other alone.
    """
    pairs = list[tuple[tuple[Seen, ...], tuple[Seen, ...]]]()
    for round_, given in inputs.items():
        if pairs and round_ + 1 == max(outputs):
            break
        made = {_pass(pieces): pieces for pieces in outputs.get(round_ + 1, Passes()).pieces}
        pairs += [(pieces, made[_pass(pieces)]) for pieces in given.pieces if _pass(pieces) in made]
    newest = sorted(pairs, key=lambda pair: _pass(pair[0]))[-most:]
    if newest:
        steps, made_of_them = (Passes([pair[side] for pair in newest]) for side in (0, 1))
        messages = (*_all(steps), *_all(made_of_them))
        yield Evidence("propagation", words, tuple(about), steps=steps, outputs=made_of_them, messages=messages)


def _most(view: View) -> int:
    """Hops that are looked at: without noise a few say all."""
    return _MOST_HOPS if view.settings.privacy is None else _MOST_NOISY_HOPS


def _pass(pieces: Sequence[Seen]) -> tuple[int, int]:
    return pieces[0].session, pieces[0].tag.step


def _initial(view: View) -> Iterator[Evidence]:
    """At a holder: h^0 of every pass, which all holders open, and its own part of what changes W."""
    method = view.settings.model.initial.method
    kind = {"collaborative": Kind.SHARE, "secure-sum": Kind.MASKED}.get(method)
    if kind is None or view.settings.paradigm != "vertical":
        return
    opened = together(view, kind, 0, (view.party, *view.others))
    if opened:
        yield Evidence(
            "initial",
            f"the initial embeddings h0 of {len(opened)} passes, which all holders open",
            view.others,
            rows=opened[-1],
            steps=opened,
            updates=_own_updates(view, opened) if method == "collaborative" else (),
            messages=_all(opened),
        )


def _initial_gradients(view: View) -> Iterator[Evidence]:
    """At a holder with ``secure-sum``: the gradients of h^0, which all holders open."""
    words, about = "gradients of the initial embedding h0", (view.settings.data.label_party,)
    yield from _gradients(view, Kind.MASKED_GRADIENT, 0, words, (view.party, *view.others), about)


def _own_updates(view: View, opened: Passes) -> tuple[Floats, ...]:
    """What a holder put into the product that changed W after the first passes: B = F + V, V from the dealer's seed.

    They end where the next h^0 is not that of the next step: where a session ended, or a view was cut off.
    """
    seeds = {seen.session: seen for seen in view.received(Kind.SEED, SERVER)}
    sent = view.sent(Kind.MASKED_OPERAND, view.others[0], int(Direction.BACKWARD))
    operands = {(seen.session, seen.tag.step): seen for seen in sent}
    found = list[Floats]()
    for before, after in zip(opened.pieces[:_MOST_UPDATES], opened.pieces[1:], strict=False):
        session, step = before[0].session, before[0].tag.step
        operand = operands.get((session, step))
        if operand is None or (after[0].session, after[0].tag.step) != (session, step + 1):
            break
        seed = seeds[session].tensor().numpy().tobytes()
        mask = expand(seed, operand_mask_name(view.party, Direction.BACKWARD, step), operand.shape)
        found.append((operand.tensor() + mask).double().numpy())
    return tuple(found)


def _asked(view: View) -> Iterator[Evidence]:
    """At a holder: what it is predicted when its own tables have changed."""
    given = "" if view.party == view.settings.data.label_party else ", which it must be given"
    words = f"predictions of joint inferences with its own features changed{given}"
    yield Evidence("inference", words, view.others)


def _perturbed(view: View) -> Iterator[Evidence]:
    """At a holder that learns: what others' nodes perturbed by themselves."""
    for other in view.others:
        seen = view.received(Kind.PERTURBED_FEATURES, other)
        if seen:
            yield Evidence("releases", f"features that {other}'s nodes perturbed", (other,), messages=tuple(seen))


def _embedding(
    view: View, kind: Kind, round_: int, words: str, senders: Sequence[PartyId], about: tuple[PartyId, ...] = ()
) -> Iterator[Evidence]:
    passes = together(view, kind, round_, senders)
    parts = [passes]
    if kind is not Kind.MASKED:
        parts = [Passes([(pieces[place],) for pieces in passes.pieces]) for place in range(len(senders))]
    yield from embeddings(view, parts, words, about or tuple(senders))


def embeddings(view: View, parts: Sequence[Passes], words: str, about: tuple[PartyId, ...]) -> Iterator[Evidence]:
    """The rows of one round, parts of them side by side; with noise out of all passes as well."""
    if not parts[0]:
        return
    messages = tuple(seen for part in parts for seen in _all(part))
    for how, of_all in _ways(view, len(parts[0])).items():
        rows = np.concatenate([of_all(part) for part in parts], axis=1)
        yield Evidence("embedding", f"{words}{how}", about, rows=rows, messages=messages)


def _gradients(
    view: View, kind: Kind, round_: int, words: str, senders: Sequence[PartyId], about: tuple[PartyId, ...]
) -> Iterator[Evidence]:
    yield from gradients(view, together(view, kind, round_, senders), words, about)


def gradients(view: View, steps: Passes, words: str, about: tuple[PartyId, ...]) -> Iterator[Evidence]:
    """What is attacked is the mean of the first steps; with noise that of all, and weighed, as well."""
    if steps:
        words, messages = f"{words} in {len(steps)} steps", _all(steps)
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


def _rounds(view: View, kind: Kind, sender: PartyId) -> list[int]:
    return sorted({seen.tag.round for seen in view.received(kind, sender)} - {0})


def _all(passes: Passes) -> tuple[Seen, ...]:
    return tuple(seen for pieces in passes.pieces for seen in pieces)
