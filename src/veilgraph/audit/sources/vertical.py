"""What the messages of a vertical job hold for attacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from veilgraph.audit.evidence import (
    Evidence,
    all_of,
    embedding_of,
    gradients_of,
    rounds_of,
)
from veilgraph.audit.passes import Passes, together
from veilgraph.audit.roc import Floats
from veilgraph.audit.source import OpenedSum, Source
from veilgraph.audit.sources.vertical_joined import joined
from veilgraph.audit.twin import trained_twin
from veilgraph.audit.view import View
from veilgraph.core.randomness import expand
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.features import to_scipy
from veilgraph.graph.party import load_party
from veilgraph.link.view import Seen
from veilgraph.mpc.dealer import Direction, operand_mask_name, row_blocks
from veilgraph.paradigms.vertical.initial.ranges import SUM_BITS
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.columns import matrix_of
from veilgraph.protocol.cut import GRADIENT_BITS
from veilgraph.run.run_directory import RunDirectory

_MOST_UPDATES: Final = 10
_MOST_HOPS: Final = 80
_MOST_COLUMNS: Final = 1000
_MOST_NOISY_HOPS: Final = 400


class VerticalSource(Source):
    """Sums and single embeddings, opened h0, gradients, and propagation over several rounds."""

    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        """Of the server or of a holder."""
        if view.party == SERVER:
            yield from _at_server(trained)
            return
        yield from (*_initial(trained), *_combined(trained), *_columns(trained), *_asked(view))
        if view.party != view.settings.data.label_party:
            yield from (*_returned(trained), *_initial_gradients(trained))

    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        """What one of them hides from another is no longer hidden."""
        yield from joined(server, holders, outside)

    def sums(self, view: View) -> Iterator[OpenedSum]:
        """Of embeddings and gradients at the server; with ``secure-sum`` of h0 at holders."""
        settings, trained = view.settings, view.of_training
        model, publishing = vertical(settings).model, settings.publishing
        if view.party == SERVER and settings.is_masked:
            for round_ in range(1, model.rounds + 1):
                if vertical(settings).sums_releases:  # whole numbers of one public grid, whatever their summands are
                    break
                rows = together(trained, Kind.MASKED, round_, publishing)
                yield OpenedSum(f"the sums of round {round_}", rows, model.combine.bits, publishing)
                rows = together(trained, Kind.MASKED_GRADIENT, round_, publishing)
                yield OpenedSum(f"the sums of gradients of round {round_}", rows, GRADIENT_BITS, publishing)
        if view.party != SERVER and model.initial.method == "secure-sum":
            everybody = (view.party, *view.others)
            for kind, words in ((Kind.MASKED, "h0"), (Kind.MASKED_GRADIENT, "gradients of h0")):
                yield OpenedSum(f"the sums of {words}", together(trained, kind, 0, everybody), SUM_BITS, everybody)

    def unreadable(self, run: RunDirectory) -> str:
        """Products of a large graph are made in blocks of rows."""
        settings = run.settings
        if vertical(settings).model.initial.method != "collaborative":
            return ""
        graphs = [load_party(run.party(name).graph_path) for name in settings.data.names]
        features = {graph.party: graph.num_features for graph in graphs}
        blocks = row_blocks(graphs[0].common, features, vertical(settings).model.dim)
        if len(blocks) == 1:
            return ""
        return (
            f"has {graphs[0].common} common nodes, multiplied in {len(blocks)} blocks of rows, and the audit reads "
            f"those of one; audit a run on at most {blocks[0].stop} of the nodes"
        )

    def twin(self, run: RunDirectory) -> PlainNetwork:
        """With all parties' weights."""
        return trained_twin(run)


def _at_server(view: View) -> Iterator[Evidence]:
    settings = view.settings
    holders, label_party = settings.publishing, settings.data.label_party
    kind = Kind.MASKED if settings.is_masked else Kind.EMBEDDING
    for round_ in range(1, vertical(settings).model.rounds + 1):
        if not settings.is_masked:
            for holder in holders:
                yield from embedding_of(view, kind, round_, f"{holder}'s embedding of round {round_}", [holder])
        if len(holders) > 1:
            what = "the sum of all embeddings" if settings.is_masked else "all embeddings side by side"
            yield from embedding_of(view, kind, round_, f"{what} of round {round_}", holders)
    yield from _hops_at_server(view)
    yield from gradients_of(view, Kind.GRADIENT, 0, "gradients of the output z_L", [label_party], (label_party,))
    kind = Kind.MASKED_GRADIENT if settings.is_masked else Kind.GRADIENT
    for round_ in range(1, vertical(settings).model.rounds):
        words = f"gradients of the combined embedding of round {round_}"
        yield from gradients_of(view, kind, round_, words, holders, (label_party,))


def _returned(view: View) -> Iterator[Evidence]:
    """At a holder: gradients of what it published, which come from the label holder's loss."""
    for round_ in rounds_of(view, Kind.GRADIENT, SERVER):
        words = "gradients of its own embedding" + (
            f" of round {round_}" if vertical(view.settings).model.rounds > 1 else ""
        )
        yield from gradients_of(view, Kind.GRADIENT, round_, words, [SERVER], (view.settings.data.label_party,))


def _combined(view: View) -> Iterator[Evidence]:
    """At a holder: what the server sent back of all holders' embeddings."""
    for round_ in rounds_of(view, Kind.COMBINED, SERVER):
        is_last = round_ == vertical(view.settings).model.rounds
        words = "the network's output z_L" if is_last else f"the combined embedding of round {round_}"
        yield from embedding_of(view, Kind.COMBINED, round_, words, [SERVER], about=view.others)

    last = vertical(view.settings).model.rounds - (vertical(view.settings).model.server.layers > 0)
    combined = {round_: together(view, Kind.COMBINED, round_, [SERVER]) for round_ in range(1, last + 1)}
    yield from _hops(combined, combined, view.others, "inputs and outputs of the exchange rounds", _most(view))


def _hops_at_server(view: View) -> Iterator[Evidence]:
    """What the server sent back and what it got in the next round: a hop of propagation."""
    settings, holders = view.settings, view.settings.publishing
    rounds = range(1, vertical(settings).model.rounds + 1)
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
        messages = (*all_of(steps), *all_of(made_of_them))
        yield Evidence("propagation", words, tuple(about), steps=steps, outputs=made_of_them, messages=messages)


def _most(view: View) -> int:
    """Hops that are looked at: without noise a few say all."""
    return _MOST_HOPS if view.settings.privacy is None else _MOST_NOISY_HOPS


def _pass(pieces: Sequence[Seen]) -> tuple[int, int]:
    return pieces[0].session, pieces[0].tag.step


def _columns(view: View) -> Iterator[Evidence]:
    """At the label holder: columns that it was given as they are, the newest; of many those with the most entries."""
    for sender in view.others:
        messages = [view.received(Kind.COLUMNS, sender, round_) for round_ in range(3)]
        if all(messages):
            counts, places, values = (each[-1].tensor() for each in messages)
            width = 1 + int(places.max()) if len(places) else 1
            matrix = to_scipy(matrix_of(counts, places, values.double(), width)).tocsc()
            most = np.argsort(-np.diff(matrix.indptr), kind="stable")[:_MOST_COLUMNS]
            seen = tuple(one for each in messages for one in each)
            rows = matrix[:, np.sort(most)].toarray()
            yield Evidence("embedding", f"{sender}'s columns as they are", (sender,), rows=rows, messages=seen)


def _initial(view: View) -> Iterator[Evidence]:
    """At a holder: h^0 of every pass, which all holders open, and its own part of what changes W."""
    method = vertical(view.settings).model.initial.method
    kind = {"collaborative": Kind.SHARE, "secure-sum": Kind.MASKED}.get(method)
    if kind is None:
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
            messages=all_of(opened),
        )


def _initial_gradients(view: View) -> Iterator[Evidence]:
    """At a holder with ``secure-sum``: the gradients of h^0, which all holders open."""
    words, about = "gradients of the initial embedding h0", (view.settings.data.label_party,)
    yield from gradients_of(view, Kind.MASKED_GRADIENT, 0, words, (view.party, *view.others), about)


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


VERTICAL: Final = VerticalSource()
