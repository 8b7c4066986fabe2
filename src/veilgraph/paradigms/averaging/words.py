"""An averaging job in words."""

from __future__ import annotations

from veilgraph.core.words import TRUST, counted, listed
from veilgraph.paradigms.averaging.settings import AveragingJob


def describe(settings: AveragingJob) -> list[str]:
    """A job in sentences."""
    own, holders = settings.averaging, settings.data.names
    rule = own.rule.build(0, settings.train.learning_rate)
    return [
        f"{listed(holders)} have graphs of their own with the same columns, and no node in common.",
        f"In every round each trains the same network on its own graph, {counted(own.local_epochs, 'epoch')} long.",
        "Changes of weights, losses and counts are added up under masks: the server learns sums over the holders, and "
        f"{rule.words}, weighted by training nodes.",
        f"A round goes on as long as {settings.threshold} of the {len(holders)} holders are there; who drops out is "
        "left out of its sums.",
        "Every holder, and the server, has the weights after every round: what a model has learnt of its data by heart "
        "they can ask it. There is no differential privacy: nothing is noised.",
        TRUST,
    ]
