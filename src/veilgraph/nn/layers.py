"""Layers of the split network, and Adam and backward passes without what torch first imports for its compiler.

That takes seconds of computing and up to 80 MB in every process that trains, and nothing here is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import unwrap
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Settings
from veilgraph.nn.propagate import Adjacency

FACT_BITS: Final = 20
"""Fractional bits of the sums before the first round: they stay below 2^41."""

_PIECE: Final = 1 << 16  # elements of a dropout mask that are drawn at a time, in the cache

Activation = Literal["none", "tanh", "relu", "sigmoid"]

ACTIVATIONS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "none": lambda x: x,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}
"""Element-wise functions by the name the settings use."""


Probability = Annotated[float, Field(ge=0, lt=1)]
"""Of dropping an element, in settings."""


class Masks:
    """Dropout masks drawn elsewhere, 1 where an element is kept, in order of use; given in place of a generator."""

    def __init__(self, masks: Iterable[Tensor]) -> None:
        self._masks = iter(masks)

    def next(self) -> Tensor:
        """Return the next mask."""
        return next(self._masks)


def dropout(x: Tensor, p: float, generator: torch.Generator | Masks | None) -> Tensor:
    """Inverted dropout: zeroes an element with probability ``p`` and scales the others by 1/(1 − p).

    The mask is drawn from the generator, not the process-wide one; None means evaluation.
    """
    if generator is None or p == 0:
        return x
    mask = generator.next().to(x.dtype) if isinstance(generator, Masks) else draw_mask(x, p, generator)
    return x * mask.div_(1 - p).to(x.device)


def draw_mask(x: Tensor, p: float, generator: torch.Generator) -> Tensor:
    """Draw a dropout mask of x's shape and dtype: 0 with probability ``p``, else 1."""
    # The bits of ``bernoulli_`` where it does not use MKL, in two fifths of its time: the same on every processor.
    mask = torch.empty(x.shape, dtype=x.dtype)
    for part in torch.split(mask.view(-1), _PIECE):
        part.copy_(torch.rand(len(part), dtype=torch.float64, generator=generator).lt_(1 - p))
    return mask


def linear(in_dim: int, out_dim: int, *, bias: bool) -> nn.Linear:
    """An ``nn.Linear`` with Glorot-uniform weights and zero bias, drawn from torch's process-wide generator.

    Call it inside ``LearningStreams.global_generator``. Weights are drawn in float32 whatever the job's
    precision, so that both precisions start from the same numbers.
    """
    layer = nn.Linear(in_dim, out_dim, bias=bias, dtype=torch.float32)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class ServerSettings(Settings):
    """The server's deep layers; the paper's network is (d, d, |C|) (VFGNN 4.1)."""

    layers: int = Field(1, ge=0, le=8)
    """hidden layers of width dim"""
    activation: Activation = "sigmoid"
    """after every hidden layer"""
    dropout: Probability = 0.5
    """of every hidden layer"""


class Deep(nn.Module):
    """``layers`` times linear → activation → dropout, of width ``dim``; with 0: dropout alone, of width ``in_dim``."""

    def __init__(self, in_dim: int, dim: int, settings: ServerSettings) -> None:
        super().__init__()
        widths = [in_dim] + [dim] * settings.layers
        self.layers = nn.ModuleList(linear(before, after, bias=True) for before, after in pairwise(widths))
        self.output_dim = widths[-1]
        self._activation = ACTIVATIONS[settings.activation]
        self._dropout = settings.dropout

    def forward(self, m: Tensor, generator: torch.Generator | None) -> Tensor:
        """Maps the combined embedding Tensor[N, in_dim] to z_L Tensor[N, output_dim]; None means evaluation."""
        if not self.layers:
            return dropout(m, self._dropout, generator)
        for layer in self.layers:
            m = dropout(self._activation(layer(m)), self._dropout, generator)
        return m


def build_deep(
    in_dim: int, dim: int, settings: ServerSettings, *, streams: LearningStreams, dtype: torch.dtype
) -> Deep:
    """The server's layers with initial weights from the stream "deep"."""
    with streams.global_generator("deep"):
        return Deep(in_dim, dim, settings).to(dtype)


class HeadSettings(Settings):
    """The label holder's output layer."""

    logit_hops: int = Field(0, ge=0, le=32)
    """propagations of logits over own edges"""
    logit_teleport: float = Field(0.1, ge=0, le=1)
    """share of own logits that each keeps"""
    dropout: Probability = 0.0
    """before the linear map to logits"""


class OutputHead(nn.Module):
    """Dropout, one linear layer, and optionally APPNP propagation of the logits over the label holder's edges.

    The propagation is z ← (1 − α)·Ã·z + α·logits with Ã the mean over a node and its neighbours, common nodes alone.
    """

    def __init__(self, in_dim: int, classes: int, settings: HeadSettings) -> None:
        super().__init__()
        self.output = linear(in_dim, classes, bias=True)
        self._settings = settings

    def forward(self, z: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Maps z_L Tensor[N, in_dim] to logits Tensor[N, classes]; ``generator`` None means evaluation."""
        logits: Tensor = self.output(dropout(z, self._settings.dropout, generator))
        teleport = self._settings.logit_teleport
        propagated = logits
        for _ in range(self._settings.logit_hops):
            propagated = (1 - teleport) * adjacency.self_loop_mean(propagated, 1.0) + teleport * logits
        return propagated


def build_head(
    in_dim: int, classes: int, settings: HeadSettings, *, streams: LearningStreams, dtype: torch.dtype
) -> OutputHead:
    """The output layer with initial weights from the stream "head"."""
    with streams.global_generator("head"):
        return OutputHead(in_dim, classes, settings).to(dtype)


class Adam(torch.optim.Adam):
    """``torch.optim.Adam``, to the bit: its methods as they are before torch wraps them for its compiler."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class _GivenGradients(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, gradients: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, *ctx.gradients


def zero_with_gradients(outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return a scalar 0 whose ``backward()`` runs that of ``outputs`` from the given ``gradients``, to the bit.

    Given gradients, torch's own ``backward`` imports sympy to compare shapes; from a scalar it needs none. Raises
    ``RuntimeError`` where the shapes of an output and its gradient differ.
    """
    for output, gradient in zip(outputs, gradients, strict=True):
        if output.shape != gradient.shape:
            raise RuntimeError(f"a gradient of shape {tuple(gradient.shape)} for an output of {tuple(output.shape)}")
    with torch.enable_grad():
        return cast(Tensor, _GivenGradients.apply(gradients, *outputs))  # type: ignore[no-untyped-call]


class FactNetwork(nn.Module):
    """A network with a buffer ``facts``, Tensor[K] float64: sums that holders made before the first round; or none."""

    facts: Tensor

    def keep_facts(self, count: int) -> None:
        """Register the buffer ``facts`` for so many numbers, NaN until ``gather``; none where ``count`` is 0."""
        if count:
            self.register_buffer("facts", torch.full((count,), torch.nan, dtype=torch.float64))

    @property
    def has_facts(self) -> bool:
        """Whether ``gather`` has filled ``facts``, or there are none."""
        found = self._buffers.get("facts")
        return found is None or not bool(found.isnan().any())

    def gather(self, sizes: Sequence[int], summed: Callable[[int, Tensor], Tensor]) -> None:
        """Fill ``facts``: ``summed(size, known)`` gives each sum's numbers from its size and those of sums before."""
        known = torch.empty(0, dtype=torch.float64)
        for size in sizes:
            known = torch.cat([known, summed(size, known).double()])
        if sizes:
            self.facts.copy_(known)
