"""What the audit must know of an averaging job: noise, the model of all, models of those that can be told apart, and
the rounds of a private training, to an adversary that knows all but canaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import ViewEntry
from veilgraph.paradigms.horizontal.tally import Classification
from veilgraph.protocol.evidence import (
    OPEN,
    Audited,
    Evidence,
    Guesses,
    Noisy,
    NoisySeries,
    Source,
    Told,
    hidden_evidence,
)
from veilgraph.protocol.job import Check, JobSettings
from veilgraph.protocol.view import Floats, View, numbers
from veilgraph_averaging.audit_canaries import Part, Round, SampledClaims, gradient_scores
from veilgraph_averaging.audit_draws import sampling
from veilgraph_averaging.audit_sums import (
    SURVIVORS,
    VALUES,
    Key,
    hellos_of,
    known_sums,
    noise_at_holders,
    noise_at_server,
)
from veilgraph_averaging.network import Averaged, FedSgdSettings
from veilgraph_averaging.node_tasks import Classes
from veilgraph_averaging.private.canaries import TrainedCanaries
from veilgraph_averaging.rows import SCORES, TWO
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.symbols.audit import symbols_at, symbols_together
from veilgraph_averaging.tasks import Task
from veilgraph_averaging.training import EXTRA, Terms, public, to_gradients, update_bits
from veilgraph_averaging.twin import OnePlace

_MOST_EXAMPLES: Final = 1 << 29  # that fit a sum
_BEGINS: Final = "train"
"""Sessions whose first weights are those that training begins with; others go on from checkpoints."""
_TWO: Final = 2
CLEAN: Final = (Kind.GRADIENT, 0)  # kind and round of what holders note of their sums before the noise
DRAWN: Final = (Kind.GRADIENT, 1)  # kind and round of what they note of who is in them
_CENTRE, _LEAF = 0, 1
_TELLING: Final = 0.01  # p-values below which what is odd is worth a word
_ROUNDING: Final = 1.0  # what weights told in single precision may hide of a sum, in clips; far more than they do


class AveragingSource(Source):
    """Values under what is left of their masks, and models that weights and sums give."""

    reads_passes: ClassVar[bool] = False

    @override
    def hidden(self, view: View) -> list[Evidence]:
        found = list(hidden_evidence(view, but=[Kind.MASKED]))
        if view.party != SERVER:
            return [*found, *noise_at_holders([view], view.others)]
        return [*found, *noise_at_server(view, [], view.settings.data.names)]

    @override
    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        yield from symbols_at(trained)
        weights = _newest_weights(trained)
        if weights is None or not _is_attacked(view.settings):
            return
        # At the server weights follow from sums of what it receives.
        kind = Kind.MASKED if view.party == SERVER else Kind.AVERAGED
        told = tuple(seen for seen in trained.messages if seen.tag.kind is kind and seen.receiver == view.party)
        about = tuple(name for name in view.settings.data.names if name != view.party)
        words = "the averaged weights after the newest round"
        yield Evidence("model", words, about, asked=_asked_model(trained, weights), messages=told)
        if view.party != SERVER:
            yield from _model_evidence(trained, _single_updates(trained))

    @override
    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        yield from noise_at_holders(holders, outside)
        if server is not None:
            yield from noise_at_server(server, holders, outside)
        if averaging(holders[0].settings).averaging.symbols is not None:
            yield from symbols_together(holders, outside)
            return
        if not _is_attacked(holders[0].settings):
            what = f"weights and sums, without what {'+'.join(view.party for view in holders)} put in"
            yield Evidence(OPEN, what, tuple(outside))
            return
        updates = updates_of_weights(holders, outside) if server is None else updates_of_sums(server, holders, outside)
        yield from _model_evidence(holders[0], updates)
        if missing := [name for name in outside if not any(name in update.about for update in updates)]:
            what = "its part of averaged weights, of which there is none in what was recorded or none follows"
            yield Evidence(OPEN, what, tuple(missing))

    @override
    def unattacked(self, view: View) -> Sequence[tuple[str, str]]:
        job, told = averaging(view.settings), list[tuple[str, str]]()
        if job.averaging.symbols is not None or not _is_attacked(job):
            return told
        if job.averaging.privacy is None:
            told.append((SCORES.name, "sums of losses, and of how many nodes of each class are taken for which"))
        if view.party != SERVER and job.threshold <= _TWO and not _single_updates(view.of_training):
            told.append((TWO.name, "averaged weights without its own part, in which no other's alone is left"))
        return told

    @override
    def noisy(self, run: Audited, party: PartyId) -> Iterator[NoisySeries]:
        """Yield what is left of a private training's sums less the noted noiseless ones, and the noise it should be."""
        plan = averaging(run.settings).training_plan
        if plan is None:
            return
        if not plan.settings.canaries:
            raise DataError("the job has no canaries; train it again with averaging.privacy.canaries")
        by_holders: dict[tuple[PartyId, ...], list[Noisy]] = {}
        for _, rest, holders in _known_rounds(run, (party,), None):
            noisy = Noisy(rest[:, None], plan.added * math.sqrt(len(holders)), _ROUNDING)
            by_holders.setdefault(holders, []).append(noisy)
        for holders, found in by_holders.items():
            words = f"{len(found)} sums of {' and '.join(holders)}, less what they say they added before the noise"
            yield NoisySeries(holders[0], words, found)

    @override
    def canary_guesses(
        self, run: Audited, members: Sequence[PartyId], holder: PartyId, key: bytes
    ) -> Iterator[Guesses]:
        """Yield ``members``' scores of each canary of ``holder`` being in; they are granted all else but its coin."""
        plan = averaging(run.settings).training_plan
        assert plan is not None
        canaries = plan.canaries_in(run.whole_graph(holder), key, run.settings.hash())
        parts = _planted(run, holder, canaries, run.view(members[0]))
        rounds = [
            Round(rest, plan.added * math.sqrt(len(holders)), parts(weights))
            for weights, rest, holders in _known_rounds(run, members, holder)
        ]
        if not rounds:
            raise DataError("the view has none of its rounds")
        words = f"weights after {len(rounds)} rounds, {canaries.count} canaries among {holder}'s nodes"
        scores = gradient_scores(rounds, plan.event.sampling_rate)
        paid = sum(int(each["count"]) for each in run.ledger(holder))
        claims = SampledClaims(plan.event, max(len(rounds), paid))
        yield Guesses(words, scores, canaries.coins, plan.delta, claims=claims)

    @override
    def claim(self, check: Check, run: Audited, view: View, holder: PartyId) -> Told | None:
        trains = averaging(run.settings).training_plan is not None and run.graph(holder).labels is not None
        if check != "sampling-rate" or not trains:
            return None
        events = [each["event"] for each in run.ledger(holder)]
        rates = [float(event["sampling_rate"]) for event in events if "sampling_rate" in event]
        if not rates:
            raise DataError("its ledger counts no sampled sum")
        sums = [each.numpy() for each in _noted_by_sum(run.view(holder), DRAWN).values()]
        found = sampling(sums, min(rates))
        note = f"{found.rate:.3g} of its training nodes are in a sum, and its ledger counts with {min(rates):g}"
        note += "." if found.p_value > _TELLING else f"; {found.oddest}."
        return f"who is in {len(sums)} sums of {holder}, by its own notes", found.p_value, note

    @override
    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        own = averaging(job)
        _check_rebuildable(own)
        place = OnePlace(own, everything)
        for epoch in range(1, epochs + 1):
            place.train_step(epoch)
        return place.infer().double().softmax(dim=1)


@dataclass(frozen=True, eq=False)
class Update:
    """The weights that a round would have given with some holders (``about``) alone, as an audit worked them out."""

    about: tuple[PartyId, ...]
    weights: Tensor  # Tensor[W] float64
    words: str  # what they were worked out of


def _single_updates(holder: View) -> list[Update]:
    return updates_of_weights([holder], holder.others, most=1)


def _model_evidence(view: View, updates: Sequence[Update]) -> Iterator[Evidence]:
    for update in updates:
        words = f"weights that {'+'.join(update.about)} alone made in a round, worked out of {update.words}"
        yield Evidence("model", words, update.about, asked=_asked_model(view, update.weights))


def _is_attacked(job: JobSettings) -> bool:
    """Whether a model gives each node probabilities of its classes, which attacks on members read."""
    return issubclass(averaging(job).averaging.task.kind, Classes)


def _check_rebuildable(job: AveragingJob) -> None:
    """Raise ``DataError`` if a job's model cannot be rebuilt from the averaged weights, or predicts no classes."""
    task, personal = job.averaging.task.name, job.averaging.personal
    if not _is_attacked(job):
        raise DataError(
            f"averaging.task={task} gives nodes no probabilities of classes, which this attack reads",
            key="averaging.task",
            value=task,
        )
    if personal:
        raise DataError(f"averaging.personal={', '.join(personal)}: these weights stay with their holder")
    if job.inputs.is_custom:
        raise DataError(f"model.local.model={job.model.local.model}: the package's own models are made again alone")


def _asked_model(view: View, weights: Tensor) -> Callable[[PartyGraph], Floats]:
    """Return a function: holder's graph → class probabilities [N, C] of its nodes by these ``weights`` [W]."""
    job = averaging(view.settings)

    def rows(graph: PartyGraph) -> Floats:
        _check_rebuildable(job)
        task = _task_of(view)
        network = task.network(LearningStreams(0, SERVER))
        network.take(weights)
        own = task.own(graph, LearningStreams(0, graph.party))
        with torch.no_grad():
            return numbers(task.judging.output(network, own).double().softmax(dim=1))

    return rows


def _task_of(view: View) -> Task[Any, Any]:
    job, hellos = averaging(view.settings), next(iter(hellos_of(view).values()))
    told = {holder: hellos[holder] for holder in job.data.names if holder in hellos}
    known = public(
        job,
        {holder: hello.features for holder, hello in told.items()},
        {holder: hello.classes for holder, hello in told.items()},
    )
    return known.task.kind(known)


def _newest_weights(view: View) -> Tensor | None:
    """Return the averaged weights after the newest round in a view: Tensor[W] float64; None without a round."""
    told = {key: weights for key, weights in _weights_of(view).items() if key[1]}
    return told[max(told)] if told else None


def updates_of_sums(server: View, friends: Sequence[View], outside: Sequence[PartyId]) -> list[Update]:
    """Work out the updates of holders ``outside`` from the newest round's sum: of each, or of all together."""
    weights, job = _weights_of(server), averaging(server.settings)
    for known in reversed(known_sums(server, friends)):
        key = known.session, known.round.number
        start, about = _weights_before(weights, key), tuple(each for each in known.counted if each in outside)
        notes = _sum_of_notes([each for each in friends if each.party in known.counted], key)
        if start is None or known.size != len(start) + EXTRA or notes is None or not about:
            continue
        parts: dict[tuple[PartyId, ...], Tensor] = {
            (each,): known.less_masks(each, known.sharing, own=True) for each in about if not known.hiding(each)
        }
        parts = parts or {about: known.total - notes}
        found = [_update(job, whose, start, _to_real(job, part, start), "sums") for whose, part in parts.items()]
        if any(found):
            return [each for each in found if each is not None]
    return []


def updates_of_weights(holders: Sequence[View], outside: Sequence[PartyId], most: int | None = None) -> list[Update]:
    """Work out others' joint update as averaged weights less the ``holders``' own parts, in the newest such round.

    Sums of scores tell how many training nodes there are. ``most``: the most other holders that may be counted.
    """
    view, job = holders[0], averaging(holders[0].settings)
    rule = job.averaging.rule
    if rule.memory(1):  # a step is no mean then, but what the rule remembers of many
        return []
    weights, counted = _weights_of(view), _counted_by_sum(view)
    examples = _training_examples(view, counted)
    for key in sorted(weights, reverse=True):
        of_round = counted.get(key, ())
        start, about = _weights_before(weights, key), tuple(each for each in of_round if each in outside)
        notes, total = _sum_of_notes([each for each in holders if each.party in of_round], key), examples.get(of_round)
        if start is None or notes is None or total is None or not 0 < len(about) <= (most or len(about)):
            continue
        mean = (weights[key] - start) / float(rule.step(torch.zeros(1), torch.ones(1), {}, job.train.learning_rate))
        whole = torch.cat([mean * total, mean.new_tensor([0.0, total])])
        if found := _update(job, about, start, whole - _to_real(job, notes, start), "averaged weights"):
            return [found]
    return []


def _averaged_messages(view: View) -> Iterator[ViewEntry]:
    """Yield the server's results of sums in a view, in order, once each, though it sends them to every holder."""
    told = [seen for seen in view.messages if seen.tag.kind is Kind.AVERAGED]
    first = {(seen.session, seen.tag.step): seen for seen in reversed(told)}
    yield from (first[key] for key in sorted(first))


def _weights_of(view: View) -> dict[Key, Tensor]:
    """Return sum → the weights that followed, Tensor[W] float64; number 0 has those that training begins with."""
    found, size = dict[Key, Tensor](), -1
    for seen in _averaged_messages(view):
        number = seen.tag.step
        size = size if number else seen.shape[0]
        begins = not number and view.works[seen.session] == _BEGINS
        if begins or (number and seen.shape == (size + EXTRA,)):
            found[seen.session, number] = seen.tensor().double()[:size]
    return found


def _weights_before(weights: Mapping[Key, Tensor], key: Key) -> Tensor | None:
    """Return the weights that holders had before a sum, from the same session; None if unknown."""
    earlier = [other for other in weights if other[0] == key[0] and other[1] < key[1]]
    return weights[max(earlier)] if earlier else None


def _counted_by_sum(view: View) -> dict[Key, tuple[PartyId, ...]]:
    """Return sum → the holders whose values are in it, as the server sent it."""
    names, found = view.settings.data.names, dict[Key, tuple[PartyId, ...]]()
    for seen in view.messages:
        if seen.sender == SERVER and (seen.tag.kind, seen.tag.round) == SURVIVORS:
            told = zip(names, seen.tensor().to(torch.bool).tolist(), strict=True)
            found.setdefault((seen.session, seen.tag.step), tuple(name for name, one in told if one))
    return found


def _training_examples(view: View, counted: Mapping[Key, tuple[PartyId, ...]]) -> dict[tuple[PartyId, ...], int]:
    """Return set of holders → how many training nodes they have together, by sums of class counts."""
    task, found = _task_of(view), dict[tuple[PartyId, ...], int]()
    for seen in _averaged_messages(view):
        of_sum = counted.get((seen.session, seen.tag.step))
        if of_sum is not None and seen.shape == (task.judging.tally_size,):
            found[of_sum] = round(float(Classification(task.public.stated).confusion(seen.tensor())[0].sum()))
    return found


def _noted_by_sum(view: View, what: tuple[Kind, int]) -> dict[Key, Tensor]:
    return {(seen.session, seen.tag.step): seen.tensor() for seen in view.noted(*what)}


def _sum_of_notes(friends: Sequence[View], key: Key) -> Tensor | None:
    """Add up what ``friends`` noted to have put into a sum: int64 [size], 0 without any; None if one has no note."""
    notes = [seen.tensor() for view in friends for seen in view.noted(*VALUES) if (seen.session, seen.tag.step) == key]
    return None if len(notes) < len(friends) else sum(notes, torch.zeros((), dtype=torch.int64))


def _to_real(job: AveragingJob, words: Tensor, weights: Tensor) -> Tensor:
    """Decode the ring elements of a sum, int64 [W + 2], to reals, float64; ``weights``: those before the round."""
    return to_gradients(job, words.double() * 2.0 ** -update_bits(job), weights)


def _update(job: AveragingJob, about: tuple[PartyId, ...], start: Tensor, whole: Tensor, words: str) -> Update | None:
    """Make an ``Update`` from the sum of some holders' parts, Tensor[W + 2]; None if none trains, or it is masked."""
    examples = round(float(whole[-1]))
    if not 0 < examples < _MOST_EXAMPLES:
        return None
    rule, change = job.averaging.rule, whole[:-EXTRA] / examples
    if not rule.sends_gradients:
        return Update(about, start + change, words)
    return Update(about, rule.step(start, change, rule.memory(len(start)), job.train.learning_rate), words)


def _known_rounds(
    run: Audited, members: Sequence[PartyId], target: PartyId | None
) -> Iterator[tuple[Tensor, Floats, tuple[PartyId, ...]]]:
    """Yield the private rounds of which everything is recorded, less all that is known but noise and canaries.

    ``members`` know their own parts, and are granted others' noiseless sums, without the canaries of ``target`` (None:
    with all). Yields the weights before a round, Tensor[W] float64; what is left of its sum, [W] over the clip: the
    other holders' noise and the target's canaries; and these other holders.
    """
    job, view = averaging(run.settings), run.view(members[0])
    given = job.averaging.privacy
    assert given is not None
    trains = {name: run.view(name) for name in job.data.names if run.graph(name).labels is not None}
    weights, counted = _weights_of(view), _counted_by_sum(view)
    steps = _mean_gradients(job, weights)
    clean = {name: _noted_by_sum(each, CLEAN) for name, each in trains.items() if name not in members}
    own = {name: _noted_by_sum(each, VALUES) for name, each in trains.items() if name in members}
    for key in sorted(weights):
        start, step, of_round = weights.get((key[0], key[1] - 1)), steps.get(key), counted.get(key, ())
        there = tuple(name for name in clean if name in of_round)
        helping = [notes for party, notes in own.items() if party in of_round]
        known = all(key in clean[name] for name in there) and all(key in notes for notes in helping)
        if start is None or step is None or not known or not there or target not in (None, *there):
            continue
        total = step * (len(there) + len(helping))
        for notes in helping:
            total = total - _to_real(job, notes[key], start)[:-EXTRA]
        total = given.divisor * (total - len(there) * job.train.weight_decay * start)
        for name in there:
            total = total - clean[name][key][int(name != target)]
        yield start, numbers(total / given.clip), there


def _mean_gradients(job: AveragingJob, weights: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Return sum → the mean gradient of its round, from differences of weights with the momentum taken off."""
    rule = job.averaging.rule
    momentum = rule.momentum if isinstance(rule, FedSgdSettings) else 0.0
    moved = {
        key: (weights[key[0], key[1] - 1] - following) / job.train.learning_rate
        for key, following in weights.items()
        if (key[0], key[1] - 1) in weights
    }
    found = dict[Key, Tensor]()
    for (session, number), step in moved.items():
        if not momentum or (number == 1 and (session, 0) in weights):  # nothing is remembered yet
            found[session, number] = step
        elif (session, number - 1) in moved:
            found[session, number] = step - momentum * moved[session, number - 1]
    return found


def _planted(run: Audited, holder: PartyId, canaries: TrainedCanaries, view: View) -> Callable[[Tensor], list[Part]]:
    """Return a function: a round's weights → clipped gradients, over the clip, of a holder's canaries in and out."""
    plan, graph = averaging(run.settings).training_plan, run.whole_graph(holder)
    assert plan is not None
    network: Averaged = _task_of(view).network(LearningStreams(0, SERVER))
    dtype, clip = next(network.parameters()).dtype, plan.settings.clip
    kinds = list[tuple[Terms, list[int], int, bool]]()
    for inside in (True, False):
        terms = Terms(canaries.world(graph, torch.full((canaries.count,), inside)), plan.hops, dtype)
        if inside or canaries.relation == "replacement":
            kinds.append((terms, terms.numbers(canaries.places[:, _CENTRE]), 1, inside))
        if canaries.leaves:
            kinds.append((terms, terms.numbers(canaries.places[:, _LEAF]), canaries.leaves, inside))

    def clipped(gradient: Tensor) -> Floats:
        row = numbers(gradient / clip)
        return np.asarray(row / max(1.0, float(np.linalg.norm(row))))

    def parts(weights: Tensor) -> list[Part]:
        network.take(weights.to(dtype))
        return [
            Part(np.stack([clipped(terms.gradient(network, number)) for number in chosen]), count, inside)
            for terms, chosen, count, inside in kinds
        ]

    return parts


SOURCE: Final = AveragingSource()
