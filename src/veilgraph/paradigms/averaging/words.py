"""An averaging job in words."""

from __future__ import annotations

from collections.abc import Sequence

from veilgraph.core.words import TRUST, counted, listed
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.privacy.sampled_settings import SampledSettings
from veilgraph.protocol.label_release import noised_labels


def describe(settings: AveragingJob) -> list[str]:
    """A job in sentences."""
    own, holders = settings.averaging, settings.data.names
    rule, task = own.rule.build(0, settings.train.learning_rate), own.task.kind
    if settings.averaging.privacy is not None:
        return _private(settings, settings.averaging.privacy)
    return [
        f"{listed(holders)} have graphs of their own with the same columns, and no node in common.",
        *task.describe(own.task),
        f"In every round each trains the same network on its own graph, {counted(own.local_epochs, 'epoch')} long.",
        *_at_home(own.personal),
        "Changes of weights, losses and counts are added up under masks: the server learns sums over the holders, and "
        f"{rule.words}, weighted by {task.examples_are}.",
        f"A round goes on as long as {settings.threshold} of the {len(holders)} holders are there; who drops out is "
        "left out of its sums.",
        "Every holder, and the server, has the weights after every round: what a model has learnt of its data by heart "
        "they can ask it.",
        noised_labels(settings),
        TRUST,
    ]


def _private(settings: AveragingJob, given: SampledSettings) -> list[str]:
    holders, bound = settings.data.names, given.degree_bound
    return [
        f"{listed(holders)} have graphs of their own with the same columns, and no node in common.",
        f"In every round each draws every training node with probability {given.sampling_rate:g}, clips the gradient "
        f"of each that is drawn to length {given.clip:g}, adds these up with Gaussian noise, and pays for it in its "
        "ledger first.",
        "Sums are added up under masks: the server learns sums over the holders, and takes a step down their mean.",
        f"A round goes on as long as {settings.threshold} of the {len(holders)} holders are there; who drops out is "
        "left out of its sums.",
        "Every holder, and the server, has the weights after every round. An ε bounds what all that says of a node's "
        "features, label and edges"
        + _made_by(settings)
        + ("." if bound is None else f"; no node may have more than {counted(bound, 'neighbour')}."),
        *_home(settings),
        "No losses, scores or counts are sent: each holder judges the model on its own nodes.",
        TRUST,
    ]


def _made_by(settings: AveragingJob) -> str:
    joint = None if settings.training_plan is None else settings.training_plan.joint
    if joint is None:
        return ", by its holder's noise alone"
    return (
        f", by noise that {joint.honest} of the {joint.holders} holders that a sum has at least make together: where "
        f"more than {joint.colluding} collude, or add none, it does not hold"
    )


def _home(settings: AveragingJob) -> list[str]:
    if settings.averaging.at_home is None:
        return []
    return [
        "After the last round each learns a correction from its own features, labels and edges without noise; it keeps "
        "that, and no ε is about it."
    ]


def _at_home(parts: Sequence[str]) -> list[str]:
    if not parts:
        return []
    named = {"input": "the map of the features", "local": "the hops", "output": "the last map"}
    return [f"Each has weights of its own in {listed([named[part] for part in parts])}, which it never adds up."]
