"""What the audit must know of a sealed job: all of it is noise, but for what the label holder is told of every node.

Of the noise on votes no party sees any by itself. An auditor who has what all holders keep adds their shares up, and
has the counts that the label holder is told. Who votes for what is not kept. But every neighbour that counts in a row
votes once, so that a row adds up to their number, whatever they vote for: what is left of the sums of rows is noise
alone, of C entries each. Rows of nodes without such neighbours, as of all that are trained on, are noise as they are.
Noise of whole numbers is held against its law by what is normal where that law is right: Φ⁻¹ of its distribution
function, at a random place between two values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import ClassVar, Final

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import DataError, RunError, VeilgraphError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Seen
from veilgraph.mpc.sealed.hops import steps_of
from veilgraph.paradigms.sealed.inputs import hidden_edges
from veilgraph.paradigms.sealed.networks.voting import VOTES
from veilgraph.paradigms.sealed.plan import epsilon_of
from veilgraph.paradigms.sealed.program import logits_of
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import trained_twin
from veilgraph.protocol.canaries import VoteCanaries
from veilgraph.protocol.evidence import (
    Audited,
    Ciphertext,
    Evidence,
    Noisy,
    NoisySeries,
    Order,
    Source,
    Unsigned,
    chosen_words,
)
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import rows_of
from veilgraph.protocol.view import Floats, View, numbers

_SCORES: Final = ("sealed-scores", "how many validation nodes, or pairs of them, are right, at every evaluation")
_NAMED: Final = ("named-classes", "predictions of the nodes that it named")
_RELEASED: Final = ("released-weights", "weights of its own columns")

_EVERYBODYS: Final = frozenset({Kind.MASKED_WIRE, Kind.MASKED_BITS})
"""Kinds of which all other holders are sent the same."""
_WORDS: Final = (*_EVERYBODYS, Kind.MASKED_ROWS, Kind.MASK_SHARE)
_OPENED: Final = {Kind.MASKED_WIRE: "what all holders open under masks", Kind.MASKED_BITS: "bits that they open"}
_MOST: Final = 48  # messages of a kind, round and shape that are read, of all sessions together
_MOST_MATRICES: Final = 8
_COLUMNS: Final = 32
_WIDTH: Final = 2
_MOST_OF_PAIRS: Final = 512
_UNLIKELY: Final = 4  # of 512 words two messages share the low bits of so many with a probability of 5·10⁻¹⁰
_ROUNDING: Final = 0.1  # by which normal scores may differ for what is rounded, at most
_TAIL: Final = 60.0  # times 1/ε: noise is farther out with a chance of e^-60
_LEAST: Final = 1e-300

Pieces = tuple[Seen, ...]


class SealedSource(Source):
    """The predictions, all other messages as noise, and for comparison a network like the job's."""

    reads_passes: ClassVar[bool] = False
    trains_alone: ClassVar[bool] = True

    @override
    def hidden(self, view: View) -> list[Evidence]:
        return list(noise_from([view], view.others)) if view.party != SERVER else []

    @override
    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        if view.party == SERVER:
            return
        yield from _rows_under_masks([trained], trained.others)
        messages = _output(trained)
        if not messages or trained.predicted is None:
            return
        told = "classes" if sealed(view.settings).output == "classes" else "margins"
        rows = _rows(trained.predicted)
        yield Evidence("posteriors", f"predicted {told}", view.others, rows=rows, messages=messages)
        beside = f"its own data, what it predicts from them, and the predicted {told}"
        yield Evidence("beside", beside, view.others, rows=rows, messages=messages)

    @override
    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        if server is not None:
            raise DataError(
                "the dealer and a holder together know every mask, and so whatever the holders open: a sealed job is "
                "for those who trust that they do not collude"
            )
        yield from noise_from(holders, outside)
        yield from _rows_under_masks(holders, outside)

    @override
    def orders(self, view: View, sender: PartyId, truth: PartyGraph) -> list[Order]:
        """Of edges' slots and of rows, each relative to a random one; true: steps of its edges, and whom it masks."""
        nodes, found, slots = _nodes(view), list[Order](), set[int]()
        told = view.received(Kind.PLACEMENT, sender)
        for seen in told if len(told) <= _MOST else [*told[: _MOST // 2], *told[-_MOST // 2 :]]:
            places = seen.tensor().numpy()
            if not _is_of_edges(view, seen):
                found.append(Order(places, nodes))
                continue
            size = _slots(view, seen)
            found += [Order(part, size) for part in np.split(places[: 2 * size + nodes], [size, 2 * size])]
            slots.add(size)
        put_in = hidden_edges(sealed(view.settings), truth)
        for size in slots:
            for edges in (put_in, put_in.flip(0)):
                steps = steps_of(edges, nodes, size - nodes)
                found += [Order(step.numpy(), size, told=False) for step in (steps.spread, steps.turn, steps.pick)]
        for mask in (truth.train_mask, truth.val_mask):
            if mask is not None and bool(mask.any()):
                found.append(Order(torch.nonzero(mask)[:, 0].numpy(), nodes, told=False, in_order=False))
        return found

    @override
    def unattacked(self, view: View) -> Sequence[tuple[str, str]]:
        job = sealed(view.settings)
        labelled = view.party == job.data.label_party
        told = {_SCORES: job.passes.evaluates and labelled, _NAMED: job.outcome.predicts_named and labelled}
        told[_RELEASED] = job.release == "holders" and view.party != SERVER
        return [what for what, is_told in told.items() if is_told]

    @override
    def noisy(self, run: Audited, party: PartyId) -> Iterator[NoisySeries]:
        """The votes that predictions are made of now: the auditor's, beside the server, for no party sees them."""
        job = sealed(run.settings)
        if party != SERVER or job.privacy is None:
            return
        try:
            shares = [_share(run, holder) for holder in job.data.names]
            publishing = [holder for holder in job.duties.publishing if holder != job.data.label_party]
            trained = _trained(job, run)
            neighbours = sum(
                (_neighbours(job, run, holder, trained) for holder in publishing),
                torch.zeros(len(shares[0]), dtype=torch.int64),
            )
        except VeilgraphError as error:
            raise DataError(str(error)) from error
        epsilon = epsilon_of(job)
        if epsilon is None or math.isinf(epsilon):
            raise DataError("the job has no noise")
        votes = torch.stack(shares).sum(dim=0)
        sums = votes.sum(dim=1, keepdim=True) - neighbours[:, None]
        places = np.random.default_rng(0)  # two audits say the same
        releases = [Noisy(normal_scores(sums, epsilon, votes.shape[1], places), 1.0, _ROUNDING)]
        if (neighbours == 0).any():
            alone = votes[neighbours == 0]  # each class by itself, for one may have another's noise
            releases += [
                Noisy(normal_scores(column[:, None], epsilon, 1, places), 1.0, _ROUNDING) for column in alone.T
            ]
        who = " and ".join(publishing)
        words = f"votes over edges of {who}, of the shares that all holders keep, less the number of votes of a node"
        yield NoisySeries(publishing[0], words, releases, anew="at every node")

    @override
    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        own = sealed(job)
        weighted = own.model.edge_weights or everything.edge_weight is not None
        like = own.model_copy(
            update={
                "output": "margins",
                "privacy": None,
                "model": own.model.model_copy(update={"edge_weights": weighted, "edge_slots": None}),
                "train": own.train.model_copy(update={"epochs": epochs, "select_by": "last"}),
                "data": own.data.model_copy(update={"holders": (everything.party,), "label_holder": None}),
            }
        )
        found = trained_twin(like, [replace(everything, val_mask=None, test_mask=None)]).predict()
        assert found is not None
        return logits_of(found).softmax(dim=1)


def _rows(read: Callable[[], Tensor]) -> Floats | None:
    """None where there are no predictions of these nodes, as attacks on them then say."""
    try:
        return numbers(read())
    except (DataError, RunError):
        return None


def _output(view: View) -> Pieces:
    """The shares that open the newest predictions to the party."""
    newest = [
        [seen for seen in view.received(Kind.MASK_SHARE, other) if seen.shape[0] == _nodes(view)][-1:]
        for other in view.others
    ]
    return tuple(seen for some in newest for seen in some)


def _share(run: Audited, holder: PartyId) -> Tensor:
    """What a holder keeps of the votes: Tensor[N, C] int64; all of them add up to these, modulo 2^64."""
    kept = run.model(holder)
    if VOTES not in kept:
        raise RunError(f"{holder}: it has no share of the votes; give the files of a run that was trained to its end")
    return kept[VOTES]


def _trained(job: SealedJob, run: Audited) -> Tensor:
    """Which nodes are trained on, as the label holder knows: Tensor[N] bool."""
    graph = _with_canaries(job, run, job.data.label_party).common_part()
    assert graph.train_mask is not None
    return graph.train_mask


def _with_canaries(job: SealedJob, run: Audited, holder: PartyId) -> PartyGraph:
    graph, key = run.graph(holder), run.canary_key(holder)
    return graph if key is None else VoteCanaries.of(job, holder, graph.num_nodes, key).into(graph)


def _neighbours(job: SealedJob, run: Audited, holder: PartyId, trained: Tensor) -> Tensor:
    """How many votes a node has over a holder's edges, its canaries among them: Tensor[N] int64."""
    source, target = hidden_edges(job, _with_canaries(job, run, holder))
    ends = torch.cat([target[~trained[target]], source[~trained[source] & trained[target]]])
    return torch.bincount(ends, minlength=len(trained))


def normal_scores(noise: Tensor, epsilon: float, entries: int, places: np.random.Generator) -> Floats:
    """Independent normal numbers, where these whole numbers are sums of so many entries of noise each: the same shape.

    ``places`` draws where they are between two values.
    """
    reach = math.ceil(_TAIL / epsilon) + 1
    values = np.arange(-reach, reach + 1)
    one = np.exp(-epsilon * abs(values)) * math.tanh(epsilon / 2)
    law = one
    for _ in range(entries - 1):
        law = np.convolve(law, one, mode="same")
    law = law / law.sum()
    below = np.concatenate([[0.0], np.cumsum(law)])
    found = numbers(noise).clip(-reach, reach).astype(np.int64) + reach
    return np.asarray(ndtri((below[found] + places.uniform(size=found.shape) * law[found]).clip(_LEAST, 1 - _LEAST)))


def _is_of_edges(view: View, seen: Seen) -> bool:
    """Whether a message of orders is of edges: rows are at most as many as there are."""
    return seen.shape[0] > _nodes(view)


def _slots(view: View, seen: Seen) -> int:
    """N and the padded number of edges, of a message of orders of edges."""
    return (seen.shape[0] - _nodes(view)) // (3 if sealed(view.settings).model.edge_weights else 2)


def _nodes(view: View) -> int:
    return 0 if view.graph is None else view.graph.common


def noise_from(views: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """What holders get from each of the others, what the dealer gave them, and what everybody's parts add up to."""
    first = views[0]
    for sender in outside:
        rows = [row for view in views for row in rows_of(view.settings, sender, view.party)]
        for kind in _WORDS:
            what = next((row.what for row in rows if row.kind is kind), kind.name)
            seen = [(each,) for each in _received(views, kind, sender)]
            yield from _noise(first, f"{what} from {sender}", (sender,), seen)
        weights = [(each,) for each in first.received(Kind.PLACEMENT, sender) if _is_of_edges(first, each)]
        if sealed(first.settings).model.edge_weights:
            yield from _noise(first, f"edge weights under masks from {sender}", (sender,), weights)
    dealt = [(each,) for view in views for each in view.received(Kind.CORRELATION, SERVER)]
    yield from _noise(first, "what the dealer corrects", tuple(outside), dealt)
    for kind, words in _OPENED.items():
        yield from _noise(first, f"{words}, added up", tuple(outside), _opened(first, kind))


def _received(views: Sequence[View], kind: Kind, sender: PartyId) -> Iterator[Seen]:
    """What several holders were sent, side by side what should be the same."""
    some = [{(seen.session, seen.tag): seen for seen in view.received(kind, sender)} for view in views]
    for key in dict.fromkeys(key for one in some for key in one):
        yield from (one[key] for one in some if key in one)


def _noise(view: View, words: str, about: tuple[PartyId, ...], found: Sequence[Pieces]) -> Iterator[Evidence]:
    if found:
        messages = tuple(seen for pieces in found for seen in pieces)
        read = partial(_read, view, found)
        yield Evidence("noise", words, about, permitted=False, noise=read, messages=messages)


def _read(view: View, found: Sequence[Pieces]) -> list[Ciphertext]:
    """Some of each shape: the first and the last of every session, and what two sessions have in common."""
    groups: dict[tuple[object, ...], dict[int, list[Pieces]]] = {}
    for pieces in found:
        seen = pieces[0]
        key = seen.tag.kind, seen.tag.round, seen.shape
        groups.setdefault(key, {}).setdefault(seen.session, []).append(pieces)
    chosen = list[Pieces]()
    for sessions in groups.values():
        half, common = max(1, _MOST // (2 * len(sessions))), _in_common(view, sessions)
        for number, some in sessions.items():
            places = {*range(min(half, len(some))), *range(max(0, len(some) - half), len(some)), *common[number]}
            chosen += [some[place] for place in sorted(places)]
    read = [(pieces[0], _ciphertext(view, pieces)) for pieces in chosen]
    return [each for place, (_, each) in enumerate(read) if not place or not _is_repeated(*read[place - 1 : place + 1])]


def _in_common(view: View, sessions: Mapping[int, Sequence[Pieces]]) -> dict[int, set[int]]:
    """Session → places of its messages that share low bits with one of another session."""
    found: dict[int, set[int]] = {number: set() for number in sessions}
    if len(sessions) > 1:
        read = {n: [_ciphertext(view, pieces).words for pieces in some[:_MOST]] for n, some in sessions.items()}
        for one, other in combinations(sessions, 2):
            for number, places in zip((one, other), _sharing_low_bits(read[one], read[other]), strict=True):
                found[number] |= places
    return found


def _sharing_low_bits(one: Sequence[Unsigned], other: Sequence[Unsigned]) -> tuple[set[int], set[int]]:
    """Places of messages of two sessions, all of one shape, that share the low bits of more words than by chance."""
    if not one or not other:
        return set(), set()
    left, right = (np.stack([words[:_MOST_OF_PAIRS] for words in each]).astype(np.uint16) for each in (one, other))
    pairs = [
        (place, int(again))
        for place, row in enumerate(left)
        for again in np.flatnonzero((right == row).sum(axis=1) >= _UNLIKELY)
    ]
    return {place for place, _ in pairs}, {again for _, again in pairs}


def _is_repeated(before: tuple[Seen, Ciphertext], after: tuple[Seen, Ciphertext]) -> bool:
    """Whether two holders were sent the same, as they should, of what is for everybody."""
    (one, first), (other, second) = before, after
    same = (one.sender, one.session, one.tag) == (other.sender, other.session, other.tag)
    return same and one.tag.kind in _EVERYBODYS and np.array_equal(first.words, second.words)


def _ciphertext(view: View, pieces: Pieces) -> Ciphertext:
    first = pieces[0]
    words, bitwise = _summed(pieces), first.tag.kind is Kind.MASKED_BITS
    if first.tag.kind is Kind.CORRELATION:
        words = words.view(torch.int64)
    if first.tag.kind is Kind.PLACEMENT:
        words = words[2 * _slots(view, first) + _nodes(view) :]
    width = first.shape[-1] if len(first.shape) == _WIDTH else 1
    return Ciphertext(chosen_words(words.numpy()), width, bitwise)


def _summed(pieces: Pieces) -> Tensor:
    total, *others = (seen.tensor() for seen in pieces)
    for other in others:
        total = total ^ other if pieces[0].tag.kind is Kind.MASKED_BITS else total + other
    return total


def _opened(view: View, kind: Kind) -> list[Pieces]:
    """Messages of one tag that all holders sent each other, whose sum is what they open."""
    sent = (view.sent(kind, view.others[0]), *(view.received(kind, other) for other in view.others))
    parts = [{(seen.session, seen.tag): seen for seen in some} for some in sent]
    return [tuple(part[key] for part in parts) for key in parts[0] if all(key in part for part in parts)]


def _rows_under_masks(views: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """What is put in or opened of every node under masks, side by side: for attacks that must find nothing."""
    view = views[0]
    opened = _opened(view, Kind.MASKED_WIRE)
    tags = {(pieces[0].session, pieces[0].tag) for pieces in opened}
    for sender in outside:
        put = [(seen,) for seen in view.received(Kind.MASKED_WIRE, sender) if (seen.session, seen.tag) not in tags]
        yield from _masked(view, put, f"what {sender} puts in under masks", (sender,))
    yield from _masked(view, opened, "what all holders open under masks", tuple(outside))


def _masked(view: View, found: Sequence[Pieces], words: str, about: tuple[PartyId, ...]) -> Iterator[Evidence]:
    nodes = _nodes(view)
    of_nodes = [pieces for pieces in found if len(pieces[0].shape) == _WIDTH and pieces[0].shape[0] == nodes]
    if of_nodes:
        chosen = [*of_nodes[: _MOST_MATRICES // 2], *of_nodes[_MOST_MATRICES // 2 :][-_MOST_MATRICES // 2 :]]
        rows = np.concatenate([_some_columns(_summed(pieces)) for pieces in chosen], axis=1)
        messages = tuple(seen for pieces in chosen for seen in pieces)
        yield Evidence("masked", words, about, permitted=False, rows=rows, messages=messages)


def _some_columns(words: Tensor) -> Floats:
    """In standard deviations: a column without a mask is as large as one with."""
    places = np.unique(np.linspace(0, words.shape[1] - 1, _COLUMNS).astype(int))
    columns = words.numpy()[:, places].astype(np.float64)
    spread = columns.std(axis=0)
    return np.asarray((columns - columns.mean(axis=0)) / np.where(spread, spread, 1))


SOURCE: Final = SealedSource()
