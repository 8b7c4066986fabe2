"""The mean of two networks, as one: (W_1 + W_2)/2, U_1 and U_2 side by side, and V_1/2 on top of V_2/2."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from veilgraph.mpc.sealed.wire import Bit, Wire, joined
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.plan import Trial

Part = tuple[Trial, Sequence[Wire]]
"""A network, and its weights: W and U side by side, and V where it is deep."""


def mean_where(network: Network, better: Bit, earlier: Part, own: Part) -> list[Wire]:
    """Weights of ``network.trial``, which is the mean of two: of that, or of the second network, which is one of both.

    Args:
        network: of the party.
        better: whether the mean is wanted, [1, 1]; which it is nobody knows.
        earlier: the first network. Where ``better`` is not nothing of it is left, whatever its numbers are.
        own: the second one.
    """
    machine, classes = network.machine, network.context.sizes.classes
    mean = []
    for first, second in zip(_among(network, earlier, 0), _among(network, own, earlier[0].deep), strict=True):
        # Half of both, but for what goes into hidden layers, of which each has its own.
        halves, layers = (first - second)[:, :classes], first[:, classes:].times(2)
        everywhere = better.map(partial(torch.broadcast_to, size=second.shape))
        twice = machine.split(second).times(2) + machine.gate(everywhere, joined([halves, layers], 1))
        mean.append(machine.open(twice.halved(1), 1))
    return mean


def _among(network: Network, part: Part, before: int) -> list[Wire]:
    """A network's weights in their places among those of ``network.trial``, behind so many hidden layers; else zero."""
    (trial, weights), classes, hidden = part, network.context.sizes.classes, network.context.plan.hidden
    rows = torch.searchsorted(network.places(network.trial.blocks), network.places(trial.blocks))
    layers = torch.arange(before * hidden, (before + trial.deep) * hidden)
    outputs = torch.arange(classes)
    into = [(rows, torch.cat([outputs, classes + layers])), (layers, outputs)]

    def moved(weight: Wire, shape: tuple[int, int], places: tuple[Tensor, Tensor]) -> Wire:
        def move(values: Tensor) -> Tensor:
            found = values.new_zeros(shape)
            found[places[0][:, None], places[1]] = values
            return found

        return weight.map(move)

    none = network.machine.constant(torch.zeros((0, classes), dtype=torch.int64), weights[0].bits)
    given = [*weights, none][: len(network.shapes)]
    return [moved(*each) for each in zip(given, network.shapes, into, strict=False)]
