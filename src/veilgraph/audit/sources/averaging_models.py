"""Models that parties of an averaging job have or work out: all holders' after a round, and those of a part of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from veilgraph.audit.passes import numbers
from veilgraph.audit.roc import Floats
from veilgraph.audit.sources.averaging_sums import SURVIVORS, VALUES, hellos_of, known_sums
from veilgraph.audit.view import View
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Seen
from veilgraph.paradigms.averaging.settings import AveragingJob, averaging
from veilgraph.paradigms.averaging.tasks.classes import Classes
from veilgraph.paradigms.averaging.tasks.task import Task
from veilgraph.paradigms.averaging.training import EXTRA, opened, public, update_bits
from veilgraph.paradigms.horizontal.tally import Classification
from veilgraph.protocol.job import JobSettings

_MOST_EXAMPLES: Final = 1 << 29
"""That fit a sum."""
_BEGINS: Final = "train"
"""Sessions whose first weights are those that training begins with; others go on from checkpoints."""


@dataclass(frozen=True, eq=False)
class Update:
    """Weights as some holders alone would have made them in a round.

    Attributes:
        about: these holders.
        weights: Tensor[W] float64.
        words: what they were worked out of.
    """

    about: tuple[PartyId, ...]
    weights: Tensor
    words: str


def is_attacked(job: JobSettings) -> bool:
    """Whether a model gives each node probabilities of its classes, which attacks on members read."""
    return issubclass(averaging(job).averaging.task.kind, Classes)


def check_asked(job: AveragingJob) -> None:
    """Refuses models that cannot be made again from weights that all have.

    Raises:
        DataError: says why.
    """
    task, personal = job.averaging.task.name, job.averaging.personal
    if not is_attacked(job):
        raise DataError(
            f"averaging.task={task} gives nodes no probabilities of classes, which this attack reads",
            key="averaging.task",
            value=task,
        )
    if personal:
        raise DataError(f"averaging.personal={', '.join(personal)}: these weights stay with their holder")
    if job.is_custom:
        raise DataError(f"model.local.model={job.model.local.model}: the package's own models are made again alone")


def asked_model(view: View, weights: Tensor) -> Callable[[PartyGraph], Floats]:
    """Probabilities that some weights give a holder's nodes, [N, C].

    Args:
        view: of who has them.
        weights: Tensor[W].
    """
    job = averaging(view.settings)

    def rows(graph: PartyGraph) -> Floats:
        check_asked(job)
        task = task_of(view)
        network = task.network(LearningStreams(0, SERVER))
        network.take(weights)
        own = task.own(graph, LearningStreams(0, graph.party))
        with torch.no_grad():
            return numbers(task.output(network, own).double().softmax(dim=1))

    return rows


def task_of(view: View) -> Task[Any, Any]:
    """The job's, as parties state it of themselves in a view."""
    job, hellos = averaging(view.settings), next(iter(hellos_of(view).values()))
    told = {holder: hellos[holder] for holder in job.data.names if holder in hellos}
    known = public(
        job,
        {holder: hello.features for holder, hello in told.items()},
        {holder: hello.classes for holder, hello in told.items()},
    )
    return known.task.kind(known)


def newest_weights(view: View) -> Tensor | None:
    """Those that all had after the newest round: Tensor[W] float64; None where there was none."""
    told = {key: weights for key, weights in weights_of(view).items() if key[1]}
    return told[max(told)] if told else None


def updates_of_sums(server: View, friends: Sequence[View], outside: Sequence[PartyId]) -> list[Update]:
    """What the server and its friends know of others, of the newest round: of each, or of all together.

    Args:
        server: its view.
        friends: views of holders that help it.
        outside: the others.
    """
    weights = weights_of(server)
    for known in reversed(known_sums(server, friends)):
        key = known.session, known.round.number
        start, about = _before(weights, key), tuple(each for each in known.counted if each in outside)
        notes = _notes([each for each in friends if each.party in known.counted], key)
        if start is None or known.size != len(start) + EXTRA or notes is None or not about:
            continue
        parts: dict[tuple[PartyId, ...], Tensor] = {
            (each,): known.less_masks(each, known.sharing, own=True) for each in about if not known.hiding(each)
        }
        parts = parts or {about: known.total - notes}
        job = averaging(server.settings)
        found = [_update(server, whose, start, real_of(job, part, start), "sums") for whose, part in parts.items()]
        if any(found):
            return [each for each in found if each is not None]
    return []


def updates_of_weights(holders: Sequence[View], outside: Sequence[PartyId], most: int | None = None) -> list[Update]:
    """What holders know of others when they take their own parts off averaged weights, in the newest round they can.

    Averaged weights are a mean; of how many training nodes, sums of scores tell.

    Args:
        holders: their views.
        outside: the others.
        most: of the others that were counted in the round; None: any number.
    """
    view, job = holders[0], averaging(holders[0].settings)
    rule = job.averaging.rule.build(1, job.train.learning_rate)
    if rule.state():  # a step is no mean then, but what the rule remembers of many
        return []
    weights, counted = weights_of(view), _survivors(view)
    examples = _examples(view, counted)
    for key in sorted(weights, reverse=True):
        of_round = counted.get(key, ())
        start, about = _before(weights, key), tuple(each for each in of_round if each in outside)
        notes, total = _notes([each for each in holders if each.party in of_round], key), examples.get(of_round)
        if start is None or notes is None or total is None or not 0 < len(about) <= (most or len(about)):
            continue
        mean = (weights[key] - start) / float(rule.step(torch.zeros(1), torch.ones(1)))
        whole = torch.cat([mean * total, mean.new_tensor([0.0, total])])
        if found := _update(view, about, start, whole - real_of(job, notes, start), "averaged weights"):
            return [found]
    return []


Key = tuple[int, int]
"""Session, and number of a sum in it."""


def _told(view: View) -> Iterator[Seen]:
    """What the server made of sums, as it told it, to one holder of all."""
    told = [seen for seen in view.messages if seen.tag.kind is Kind.AVERAGED]
    first = {(seen.session, seen.tag.step): seen for seen in reversed(told)}
    yield from (first[key] for key in sorted(first))


def weights_of(view: View) -> dict[Key, Tensor]:
    """Sum → the weights that followed, Tensor[W] float64; those that training begins with under 0."""
    found, size = dict[Key, Tensor](), -1
    for seen in _told(view):
        number = seen.tag.step
        size = size if number else seen.shape[0]
        begins = not number and view.works[seen.session] == _BEGINS
        if begins or (number and seen.shape == (size + EXTRA,)):
            found[seen.session, number] = seen.tensor().double()[:size]
    return found


def _before(weights: Mapping[Key, Tensor], key: Key) -> Tensor | None:
    """The weights that holders had before a sum, of the same session."""
    earlier = [other for other in weights if other[0] == key[0] and other[1] < key[1]]
    return weights[max(earlier)] if earlier else None


def _survivors(view: View) -> dict[Key, tuple[PartyId, ...]]:
    """Sum → whom a holder was told to be in it."""
    names = view.settings.data.names
    return {
        (seen.session, seen.tag.step): tuple(
            name for name, one in zip(names, seen.tensor().tolist(), strict=True) if one
        )
        for seen in view.received(SURVIVORS[0], SERVER, SURVIVORS[1])
    }


def _examples(view: View, counted: Mapping[Key, tuple[PartyId, ...]]) -> dict[tuple[PartyId, ...], int]:
    """Some holders → how many training nodes they have, as sums of class counts tell."""
    task, found = task_of(view), dict[tuple[PartyId, ...], int]()
    for seen in _told(view):
        of_sum = counted.get((seen.session, seen.tag.step))
        if of_sum is not None and seen.shape == (task.tally_size,):
            found[of_sum] = round(float(Classification(task.public.stated).confusion(seen.tensor())[0].sum()))
    return found


def _notes(friends: Sequence[View], key: Key) -> Tensor | None:
    """What some holders put into a sum: int64 [size], or 0 of none; None where not all have noted it."""
    notes = [
        seen.tensor()
        for friend in friends
        for seen in friend.own
        if (seen.session, seen.tag.step) == key and (seen.tag.kind, seen.tag.round) == VALUES
    ]
    return None if len(notes) < len(friends) else sum(notes, torch.zeros((), dtype=torch.int64))


def real_of(job: AveragingJob, words: Tensor, weights: Tensor) -> Tensor:
    """What words of a sum are in real numbers, Tensor[W + 2] float64; ``weights`` are those of the round."""
    return opened(job, words.double() * 2.0 ** -update_bits(job), weights)


def _update(view: View, about: tuple[PartyId, ...], start: Tensor, whole: Tensor, words: str) -> Update | None:
    """Of what holders add together, Tensor[W + 2]; None where nobody of them trains, or masks are still there."""
    examples = round(float(whole[-1]))
    if not 0 < examples < _MOST_EXAMPLES:
        return None
    job = averaging(view.settings)
    rule = job.averaging.rule.build(len(start), job.train.learning_rate)
    change = whole[:-EXTRA] / examples
    return Update(about, rule.step(start, change) if rule.sends_gradients else start + change, words)
