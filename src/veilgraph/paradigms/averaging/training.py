"""What one holder adds to a round, and what the server makes of the sum: the same for the roles and for the twin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import backward

from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.nn.local.custom import CustomModel
from veilgraph.paradigms.averaging.network import Averaged
from veilgraph.paradigms.averaging.rules.rule import Rule
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.paradigms.averaging.tasks.own import Own
from veilgraph.paradigms.averaging.tasks.task import Public, Task
from veilgraph.privacy.local.labels import LabelResponse
from veilgraph.protocol.agreement import same_count
from veilgraph.protocol.role import build_optimizer, precision

EXTRA: Final = 2
"""Numbers in a summand beside those of the weights: the loss and the number of training examples."""
UPDATE_BITS: Final = 32
"""Fractional bits of a summand: the sum stays below 2^29."""
RECORDS: Final = Tag(Kind.CONTROL, 0, 4)
"""Of a holder's record of survivors, before the sums of a session that goes on from another."""
REMEDY: Final = "lower train.learning_rate or scale the features (data.feature_scaling)"

Dropout = Callable[[int], torch.Generator]
"""Local epoch of the round → its stream."""


def public(
    job: AveragingJob,
    features: Mapping[PartyId, int],
    stated: Mapping[PartyId, int],
    custom: CustomModel | None = None,
) -> Public:
    """What all know before the first round.

    Args:
        job: of all.
        features: holder → columns.
        stated: holder → what it states by ``Task.stated``.
        custom: for ``model.local.model: custom``.

    Raises:
        DataError: holders' columns differ, or what the task needs of them.
    """
    task, columns = job.averaging.task, same_count("columns", features)
    agreed, private = task.kind.agreed(stated), job.label_privacy
    transition = None if private is None else LabelResponse(private.epsilon, agreed).transition()
    return Public(task, job.model, job.train, columns, agreed, precision(job), custom, transition)


def summand(
    job: AveragingJob, rule: Rule, task: Task[Any, Any], network: Averaged, own: Own, dropout: Dropout
) -> Tensor:
    """What a holder adds in a round: n·Δ, n·loss, n, for n training examples; zeros where it has none.

    Δ is how the weights that are averaged change in ``local_epochs`` of Adam, which begins anew in every round, or the
    gradient where the rule takes that; the holder's own change too, and stay. The loss is that of the weights as they
    were, in the first of these epochs.

    Args:
        job: of the holder.
        rule: of the job.
        task: of the job.
        network: with the weights of the round; afterwards with others.
        own: the holder's data.
        dropout: its streams of the round.

    Returns:
        Tensor[W + 2], of the network's dtype.
    """
    examples, start = task.examples(own), network.vector()
    if not examples:
        return torch.zeros(len(start) + EXTRA, dtype=start.dtype)
    weights = network.shared()
    before = [weight.detach().clone() for weight in weights]
    optimizer = build_optimizer([*weights, *network.at_home()], {}, job)
    first = math.nan
    for epoch in range(job.averaging.local_epochs):
        optimizer.zero_grad()
        loss = task.loss(network, own, dropout(epoch))
        first = float(loss.detach()) if epoch == 0 else first
        backward(rule.local_loss(loss, weights, before))
        if not rule.sends_gradients:
            optimizer.step()
    if rule.sends_gradients:
        decay = job.train.weight_decay
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in weights]
        change = torch.cat([part.reshape(-1) for part in parts]) + decay * start
    else:
        change = network.vector() - start
    return torch.cat([examples * change, change.new_tensor([examples * first, examples])])


def averaged(rule: Rule, weights: Tensor, total: Tensor, *, tells_loss: bool = True) -> tuple[Tensor, float | None]:
    """The next weights and the mean loss of the round; the same weights, and no loss, where nobody trained.

    Args:
        rule: of the job; its state changes.
        weights: Tensor[W], of the round.
        total: Tensor[W + 2], sum of what holders added.
        tells_loss: whether they added losses.
    """
    total = total.double()
    nodes = round(float(total[-1]))  # what is moved by secret rounding is whole again
    if not nodes:
        return weights, None
    loss = float(total[-EXTRA]) / nodes if tells_loss else None
    return rule.step(weights.double(), total[:-EXTRA] / nodes).to(weights.dtype), loss


def update_bits(job: AveragingJob) -> int:
    """Fractional bits of summands: none where noise is made jointly, for these are whole numbers of its grid."""
    plan = job.training_plan
    return UPDATE_BITS if plan is None or plan.joint is None else 0


def opened(job: AveragingJob, total: Tensor, weights: Tensor) -> Tensor:
    """A sum of summands in the units of a gradient, with the decay of weights, as a summand has without joint noise.

    Args:
        job: of all.
        total: Tensor[W + 2] float64, as opened.
        weights: Tensor[W], of the round.
    """
    plan = job.training_plan
    if plan is None or plan.joint is None:
        return total
    decay = job.train.weight_decay * total[-1] * weights.double()
    return torch.cat([total[:-EXTRA] * (plan.cell / plan.settings.batch) + decay, total[-EXTRA:]])


def said(weights: Tensor, loss: float | None) -> Tensor:
    """What the server tells of a round: Tensor[W + 2], the weights, the mean loss, and whether there is one."""
    return torch.cat([weights, weights.new_tensor([0.0, 0.0] if loss is None else [loss, 1.0])])


def heard(told: Tensor) -> tuple[Tensor, float | None]:
    """What ``said`` said."""
    return told[:-EXTRA], float(told[-EXTRA]) if told[-1] else None
