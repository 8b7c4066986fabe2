"""What the audit must know of a sealed job: all messages must look random, but what the label holder is told of nodes.

No party sees the noise on votes by itself. An auditor with all holders' files adds up their shares, and has the counts
that the label holder is told. Who votes for what is not saved. But every neighbour that counts in a row votes once, so
a row adds up to their number: the sum of a row less that number is noise alone, of C entries. Rows of nodes without
such neighbours, as of all training nodes, are noise as they are. To test noise of whole numbers against its law, it is
turned into numbers that are normal if the law is right: Φ⁻¹ of its distribution function, at a random place between two
values.
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
from veilgraph.link.view import ViewEntry
from veilgraph.mpc.sealed.permutations import steps_of
from veilgraph.paradigms.sealed.inputs import hidden_edges
from veilgraph.paradigms.sealed.networks.voting import VOTES
from veilgraph.paradigms.sealed.plan import epsilon_of
from veilgraph.paradigms.sealed.program import logits_of
from veilgraph.paradigms.sealed.records.audit import told_of_canaries
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import trained_twin
from veilgraph.protocol.canaries import RecordCanaries, VoteCanaries
from veilgraph.protocol.evidence import (
    Audited,
    Ciphertext,
    Evidence,
    Guesses,
    Noisy,
    NoisySeries,
    Order,
    Source,
    Unsigned,
    chosen_words,
)
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import rows_of
from veilgraph.protocol.trade_offs import GaussianClaims
from veilgraph.protocol.view import Floats, View, numbers

_SCORES: Final = ("sealed-scores", "how many validation nodes, or pairs of them, are right, at every evaluation")
_NAMED: Final = ("named-classes", "predictions of the nodes that it named")
_RELEASED: Final = ("released-weights", "weights of its own columns")

_EVERYBODYS: Final = frozenset({Kind.MASKED_WIRE, Kind.MASKED_BITS})  # all other holders are sent the same
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

Pieces = tuple[ViewEntry, ...]


class SealedSource(Source):
    """Audit a sealed job: predictions are attacked, and all other messages must look random."""

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
        messages = _opening_shares(trained)
        if not messages or trained.predicted is None:
            return
        told = "classes" if sealed(view.settings).output == "classes" else "margins"
        rows = _rows_or_none(trained.predicted)
        yield Evidence("posteriors", f"predicted {told}", view.others, rows=rows, messages=messages)
        beside = f"its own data, what it predicts from them, and the predicted {told}"
        yield Evidence("beside", beside, view.others, rows=rows, messages=messages)

    @override
    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        check_no_dealer(server, holders)
        yield from noise_from(holders, outside)
        yield from _rows_under_masks(holders, outside)

    @override
    def orders(self, view: View, sender: PartyId, truth: PartyGraph) -> list[Order]:
        """Orders of edge slots and rows that ``sender`` sent, which must be random, and the true ones of its graph."""
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
        """Noise of the saved votes, for ``party`` SERVER only: an auditor adds up all holders' shares.

        Raises ``DataError``: the job has no noise, or a file is missing or damaged.
        """
        job = sealed(run.settings)
        if party != SERVER or job.votes is None:
            return
        try:
            shares = [_vote_share(run, holder) for holder in job.data.names]
            publishing = [holder for holder in job.duties.publishing if holder != job.data.label_party]
            trained = _training_mask(job, run)
            neighbours = sum(
                (_vote_counts(job, run, holder, trained) for holder in publishing),
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
    def canary_guesses(
        self, run: Audited, members: Sequence[PartyId], holder: PartyId, key: bytes
    ) -> Iterator[Guesses]:
        """Guesses at planted records, by what the label holder is told of nodes that it does not train on.

        An auditor adds up all holders' shares, of noisy sums or of flipped bits. Raises ``DataError`` without them.
        """
        job, graph = sealed(run.settings), run.graph(holder)
        privacy = job.records
        if privacy is None:
            return
        canaries = RecordCanaries.of(job, graph, key)
        try:
            told = told_of_canaries(job, run, holder, canaries)
        except VeilgraphError as error:
            raise DataError(str(error)) from error
        what = "a bit" if canaries.of_bits else "a score"
        words = f"{what} of each of {canaries.count} nodes, which hangs on a canary among {holder}'s records"
        claims = None if canaries.of_bits else GaussianClaims()
        yield Guesses(words, numbers(told), canaries.coins, privacy.delta_of(graph.common), claims=claims)

    @override
    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        own = sealed(job)
        weighted = own.model.edge_weights or everything.edge_weight is not None
        like = own.model_copy(
            update={
                "output": "margins",
                "privacy": None,
                "trust": "dealer",
                "model": own.model.model_copy(update={"edge_weights": weighted, "edge_slots": None}),
                "train": own.train.model_copy(update={"epochs": epochs, "select_by": "last"}),
                "data": own.data.model_copy(update={"holders": (everything.party,), "label_holder": None}),
            }
        )
        found = trained_twin(like, [replace(everything, val_mask=None, test_mask=None)]).predict()
        assert found is not None
        return logits_of(found).softmax(dim=1)


def check_no_dealer(server: View | None, holders: Sequence[View]) -> None:
    """Raise ``DataError`` where those that pool what they saw know every mask: who deals, or all for whom it does."""
    together = [*holders, *([] if server is None else [server])]
    job = sealed(together[0].settings)
    known, dealer = {view.party for view in together}, job.dealing_party
    if dealer in known:
        raise DataError(
            f"{dealer}, which deals, and a holder together know every mask, and so whatever is opened: a sealed job is "
            "for those who trust that they do not collude"
        )
    if job.trust == "majority" and known >= set(job.computing):
        raise DataError(
            f"{' and '.join(job.computing)} together know every mask, and so what {dealer}, which deals, has put in: "
            "trust=majority is for those who trust that they do not all collude"
        )


def _rows_or_none(read: Callable[[], Tensor]) -> Floats | None:
    """Read rows as floats; None where reading raises ``DataError`` or ``RunError``: there are no such predictions."""
    try:
        return numbers(read())
    except (DataError, RunError):
        return None


def _opening_shares(view: View) -> Pieces:
    """The newest mask shares over all nodes from each other party: together they open the last predictions."""
    newest = [
        [seen for seen in view.received(Kind.MASK_SHARE, other) if seen.shape[0] == _nodes(view)][-1:]
        for other in view.others
    ]
    return tuple(seen for some in newest for seen in some)


def _vote_share(run: Audited, holder: PartyId) -> Tensor:
    """A holder's saved share of the votes, Tensor[N, C] int64, which add up modulo 2^64; ``RunError`` without one."""
    kept = run.model(holder)
    if VOTES not in kept:
        raise RunError(f"{holder}: it has no share of the votes; give the files of a run that was trained to its end")
    return kept[VOTES]


def _training_mask(job: SealedJob, run: Audited) -> Tensor:
    """Training mask of the common nodes, from the label holder's graph: Tensor[N] bool."""
    graph = _with_canaries(job, run, job.data.label_party).common_part()
    assert graph.train_mask is not None
    return graph.train_mask


def _with_canaries(job: SealedJob, run: Audited, holder: PartyId) -> PartyGraph:
    """A holder's graph, with its canaries where the run has some."""
    graph, key = run.graph(holder), run.canary_key(holder)
    return graph if key is None else VoteCanaries.of(job, holder, graph.num_nodes, key).into(graph)


def _vote_counts(job: SealedJob, run: Audited, holder: PartyId, trained: Tensor) -> Tensor:
    """Number of votes at each node over a holder's edges, canaries included: Tensor[N] int64."""
    source, target = hidden_edges(job, _with_canaries(job, run, holder))
    ends = torch.cat([target[~trained[target]], source[~trained[source] & trained[target]]])
    return torch.bincount(ends, minlength=len(trained))


def normal_scores(noise: Tensor, epsilon: float, entries: int, places: np.random.Generator) -> Floats:
    """Turn whole numbers into standard normal ones, if each is a sum of ``entries`` geometric noises of ε: same shape.

    ``places`` draws uniformly within the probability of each value.
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


def _is_of_edges(view: View, seen: ViewEntry) -> bool:
    """Whether a PLACEMENT message is about edges: it is longer than the number of nodes."""
    return seen.shape[0] > _nodes(view)


def _slots(view: View, seen: ViewEntry) -> int:
    """N plus the padded number of edges, from the length of a PLACEMENT message about edges."""
    return (seen.shape[0] - _nodes(view)) // (3 if sealed(view.settings).model.edge_weights else 2)


def _nodes(view: View) -> int:
    return 0 if view.graph is None else view.graph.common


def noise_from(views: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """Messages that must look random: from each of ``outside``, from the dealer, and the sums that holders open."""
    first = views[0]
    for sender in outside:
        rows = [row for view in views for row in rows_of(view.settings, sender, view.party)]
        for kind in _WORDS:
            what = next((row.what for row in rows if row.kind is kind), kind.name)
            seen = [(each,) for each in _received_by(views, kind, sender)]
            yield from _as_noise(first, f"{what} from {sender}", (sender,), seen)
        weights = [(each,) for each in first.received(Kind.PLACEMENT, sender) if _is_of_edges(first, each)]
        if sealed(first.settings).model.edge_weights:
            yield from _as_noise(first, f"edge weights under masks from {sender}", (sender,), weights)
    dealer = sealed(first.settings).dealing_party
    dealt = [(each,) for view in views for each in view.received(Kind.CORRELATION, dealer)]
    yield from _as_noise(first, "what the dealer corrects", tuple(outside), dealt)
    for kind, words in _OPENED.items():
        yield from _as_noise(first, f"{words}, added up", tuple(outside), _opened(first, kind))


def _received_by(views: Sequence[View], kind: Kind, sender: PartyId) -> Iterator[ViewEntry]:
    """Messages of a kind from ``sender`` to several holders; those of one session and tag follow each other."""
    some = [{(seen.session, seen.tag): seen for seen in view.received(kind, sender)} for view in views]
    for key in dict.fromkeys(key for one in some for key in one):
        yield from (one[key] for one in some if key in one)


def _as_noise(view: View, words: str, about: tuple[PartyId, ...], found: Sequence[Pieces]) -> Iterator[Evidence]:
    """Yield evidence that these messages, read as a sample of ciphertexts, must look random; nothing of none."""
    if found:
        messages = tuple(seen for pieces in found for seen in pieces)
        read = partial(_read_sample, view, found)
        yield Evidence("noise", words, about, permitted=False, noise=read, messages=messages)


def _read_sample(view: View, found: Sequence[Pieces]) -> list[Ciphertext]:
    """Read a sample of messages of each kind, round and shape as ciphertexts, without repeats.

    It has the first and last ones of every session, and those that share low bits with another session's.
    """
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
    return [each for place, (_, each) in enumerate(read) if not place or not _is_copy(*read[place - 1 : place + 1])]


def _in_common(view: View, sessions: Mapping[int, Sequence[Pieces]]) -> dict[int, set[int]]:
    """Session → positions of its messages that share low bits with one of another session."""
    found: dict[int, set[int]] = {number: set() for number in sessions}
    if len(sessions) > 1:
        read = {n: [_ciphertext(view, pieces).words for pieces in some[:_MOST]] for n, some in sessions.items()}
        for one, other in combinations(sessions, 2):
            for number, places in zip((one, other), _sharing_low_bits(read[one], read[other]), strict=True):
                found[number] |= places
    return found


def _sharing_low_bits(one: Sequence[Unsigned], other: Sequence[Unsigned]) -> tuple[set[int], set[int]]:
    """Positions, in each of two sessions, of messages of one shape that share more words' low bits than by chance."""
    if not one or not other:
        return set(), set()
    left, right = (np.stack([words[:_MOST_OF_PAIRS] for words in each]).astype(np.uint16) for each in (one, other))
    pairs = [
        (place, int(again))
        for place, row in enumerate(left)
        for again in np.flatnonzero((right == row).sum(axis=1) >= _UNLIKELY)
    ]
    return {place for place, _ in pairs}, {again for _, again in pairs}


def _is_copy(before: tuple[ViewEntry, Ciphertext], after: tuple[ViewEntry, Ciphertext]) -> bool:
    """Whether a message to all holders is the same one that another holder got just before."""
    (one, first), (other, second) = before, after
    same = (one.sender, one.session, one.tag) == (other.sender, other.session, other.tag)
    return same and one.tag.kind in _EVERYBODYS and np.array_equal(first.words, second.words)


def _ciphertext(view: View, pieces: Pieces) -> Ciphertext:
    """Read the sum of pieces as words that must look random; of a PLACEMENT message, its masked weights alone."""
    first = pieces[0]
    words, bitwise = _sum_pieces(pieces), first.tag.kind is Kind.MASKED_BITS
    if first.tag.kind is Kind.CORRELATION:
        words = words.view(torch.int64)
    if first.tag.kind is Kind.PLACEMENT:
        words = words[2 * _slots(view, first) + _nodes(view) :]
    width = first.shape[-1] if len(first.shape) == _WIDTH else 1
    return Ciphertext(chosen_words(words.numpy()), width, bitwise)


def _sum_pieces(pieces: Pieces) -> Tensor:
    total, *others = (seen.tensor() for seen in pieces)
    for other in others:
        total = total ^ other if pieces[0].tag.kind is Kind.MASKED_BITS else total + other
    return total


def _opened(view: View, kind: Kind) -> list[Pieces]:
    """Groups of messages of one session and tag, one from each holder, whose sum is what they open."""
    others = [holder for holder in sealed(view.settings).computing if holder != view.party]
    sent = (view.sent(kind, others[0]), *(view.received(kind, other) for other in others))
    parts = [{(seen.session, seen.tag): seen for seen in some} for some in sent]
    return [tuple(part[key] for part in parts) for key in parts[0] if all(key in part for part in parts)]


def _rows_under_masks(views: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """Masked matrices with a row for every node, from each of ``outside`` and opened: attacks must find nothing."""
    view = views[0]
    opened = _opened(view, Kind.MASKED_WIRE)
    tags = {(pieces[0].session, pieces[0].tag) for pieces in opened}
    for sender in outside:
        put = [(seen,) for seen in view.received(Kind.MASKED_WIRE, sender) if (seen.session, seen.tag) not in tags]
        yield from _masked_matrices(view, put, f"what {sender} puts in under masks", (sender,))
    yield from _masked_matrices(view, opened, "what all holders open under masks", tuple(outside))


def _masked_matrices(view: View, found: Sequence[Pieces], words: str, about: tuple[PartyId, ...]) -> Iterator[Evidence]:
    """Yield, as evidence that must tell nothing, columns of some messages with a row for every node."""
    nodes = _nodes(view)
    of_nodes = [pieces for pieces in found if len(pieces[0].shape) == _WIDTH and pieces[0].shape[0] == nodes]
    if of_nodes:
        chosen = [*of_nodes[: _MOST_MATRICES // 2], *of_nodes[_MOST_MATRICES // 2 :][-_MOST_MATRICES // 2 :]]
        rows = np.concatenate([_some_columns(_sum_pieces(pieces)) for pieces in chosen], axis=1)
        messages = tuple(seen for pieces in chosen for seen in pieces)
        yield Evidence("masked", words, about, permitted=False, rows=rows, messages=messages)


def _some_columns(words: Tensor) -> Floats:
    """Up to 32 columns of [N, d], each standardised, so that unmasked columns are as large as masked ones."""
    places = np.unique(np.linspace(0, words.shape[1] - 1, _COLUMNS).astype(int))
    columns = words.numpy()[:, places].astype(np.float64)
    spread = columns.std(axis=0)
    return np.asarray((columns - columns.mean(axis=0)) / np.where(spread, spread, 1))


SOURCE: Final = SealedSource()
