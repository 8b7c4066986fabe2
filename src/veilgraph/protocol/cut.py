"""Where the computational graph is cut between parties: the activation goes out, its gradient comes in.

``HolderCut`` is the one door through which data-dependent values leave a holder for the server. Embeddings are masked
whenever the job masks, and go in the clear only when the job asks for that; the label holder's gradient of z_L has no
others to be summed with and goes without a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import gather, receive_as
from veilgraph.mpc.mask import PairwiseMasks, open_sum
from veilgraph.mpc.ring import CPU

GRADIENT_BITS: Final = 40  # fractional bits of a masked gradient: the sum stays below 2^21

WEIGHT_BITS: Final = 16
"""Fractional bits of a masked weight of the degree-weighted mean: a grid far coarser than a weight's last place.

Weights are given in float64 and not in the job's precision, where the rounding of degree + 1/P tells of the degree: so
whole degrees add up to whole ones, and all holders' 1/P are rounded alike.
"""

_REMEDY: Final = "lower model.combine.bits, set model.local.normalize, or scale the features"


def leaf(tensor: Tensor) -> Tensor:
    """Return the same values as the start of a party's own autograd graph, with a gradient wanted."""
    return tensor.detach().requires_grad_(True)


def gradient_of(tensor: Tensor) -> Tensor:
    """The gradient that a leaf collected, zero when nothing depends on it."""
    return tensor.new_zeros(tensor.shape) if tensor.grad is None else tensor.grad


class HolderCut:
    """A holder's side of its cuts to the server; without ``masks`` embeddings go in the clear.

    A masked one has so many fractional ``bits``. Messages are made on the CPU.
    """

    def __init__(
        self, link: Link, masks: PairwiseMasks | None, bits: int, dtype: torch.dtype, device: torch.device = CPU
    ) -> None:
        self._link, self._masks, self._bits, self._dtype, self._device = link, masks, bits, dtype, device

    def publish_weight(self, weight: Tensor) -> None:
        """Sends w_i [N, 1] float64 of the degree-weighted mean, once a session."""
        self._publish(Tag(Kind.MASKED, 0, 0), Tag(Kind.EMBEDDING, 0, 0), weight, "combine weights", WEIGHT_BITS)

    def publish(self, step: int, round_: int, piece: Tensor) -> None:
        """Send what this holder contributes to COMBINE of a round ≥ 1: [N, d]."""
        masked, clear = Tag(Kind.MASKED, step, round_), Tag(Kind.EMBEDDING, step, round_)
        self._publish(masked, clear, piece.detach(), f"local embeddings of round {round_}", self._bits)

    def publish_gradient(self, step: int, round_: int, gradient: Tensor) -> None:
        """Sends this branch's gradient of the combined embedding of ``round_`` (< R): [N, d]."""
        masked, clear = Tag(Kind.MASKED_GRADIENT, step, round_), Tag(Kind.GRADIENT, step, round_)
        self._publish(masked, clear, gradient, f"gradients of round {round_}", GRADIENT_BITS)

    def publish_deep_gradient(self, step: int, gradient: Tensor) -> None:
        """Sends ∂L/∂z_L, at the label holder only: its rows and their directions tell of the labels."""
        self._link.send(SERVER, Tag(Kind.GRADIENT, step), gradient.cpu().contiguous())

    def combined(self, step: int, round_: int, shape: tuple[int, int]) -> Tensor:
        """Receives h^r for the next round; at the label holder, after the last, z_L."""
        return receive_as(self._link, SERVER, Tag(Kind.COMBINED, step, round_), shape, self._dtype).to(self._device)

    def gradient(self, step: int, round_: int, shape: tuple[int, int]) -> Tensor:
        """Receives the gradient of what was published in ``round_``."""
        return receive_as(self._link, SERVER, Tag(Kind.GRADIENT, step, round_), shape, self._dtype).to(self._device)

    def _publish(self, masked: Tag, clear: Tag, values: Tensor, what: str, bits: int) -> None:
        """Send values to the server: masked, in fixed point, under one tag, or in the clear under the other."""
        values = values.cpu()
        if self._masks is None:
            self._link.send(SERVER, clear, values.to(self._dtype).contiguous())
        else:
            purpose = f"{what}/{masked.round}"
            hidden = self._masks.hide_message(self._link, masked, values, bits, purpose, _REMEDY)
            self._link.send(SERVER, masked, hidden)


class ServerCut:
    """The server's side of the same cuts; ``masked`` says whether the holders mask, ``bits`` are as there."""

    def __init__(
        self,
        link: Link,
        holders: Sequence[PartyId],
        *,
        masked: bool,
        bits: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        self._link, self._holders, self._masked, self._bits, self._dtype = link, tuple(holders), masked, bits, dtype
        self._device = device

    def weight_total(self, nodes: int) -> Tensor:
        """Σ_i w_i of the degree-weighted mean: [N, 1]."""
        return self._sum(Tag(Kind.MASKED, 0, 0), Tag(Kind.EMBEDDING, 0, 0), (nodes, 1), WEIGHT_BITS)

    def total(self, step: int, round_: int, shape: tuple[int, int]) -> Tensor:
        """The sum of what the holders published in a round."""
        return self._sum(Tag(Kind.MASKED, step, round_), Tag(Kind.EMBEDDING, step, round_), shape, self._bits)

    def each(self, step: int, round_: int, shape: tuple[int, int]) -> list[Tensor]:
        """What each holder published in the clear, in the holders' order."""
        tag = Tag(Kind.EMBEDDING, step, round_)
        return [piece.to(self._device) for piece in gather(self._link, self._holders, tag, shape, self._dtype).values()]

    def gradient_total(self, step: int, round_: int, shape: tuple[int, int]) -> Tensor:
        """The sum of the holders' gradients of the combined embedding of ``round_``."""
        masked, clear = Tag(Kind.MASKED_GRADIENT, step, round_), Tag(Kind.GRADIENT, step, round_)
        return self._sum(masked, clear, shape, GRADIENT_BITS)

    def send_combined(self, step: int, round_: int, combined: Tensor, to: Sequence[PartyId] | None = None) -> None:
        """Sends h^r to all holders, or z_L to the label holder."""
        values = combined.detach().cpu().contiguous()
        for holder in to or self._holders:
            self._link.send(holder, Tag(Kind.COMBINED, step, round_), values)

    def send_gradients(self, step: int, round_: int, gradients: Sequence[Tensor]) -> None:
        """Sends each holder the gradient of its published piece: one for all, or one per holder in order."""
        each = gradients if len(gradients) > 1 else list(gradients) * len(self._holders)
        for holder, gradient in zip(self._holders, each, strict=True):
            self._link.send(holder, Tag(Kind.GRADIENT, step, round_), gradient.cpu().contiguous())

    def _sum(self, masked: Tag, clear: Tag, shape: tuple[int, int], bits: int) -> Tensor:
        """Receive one message of each holder, masked or in the clear, and return their sum."""
        if self._masked:
            pieces = gather(self._link, self._holders, masked, shape, torch.int64)
            return open_sum(pieces.values(), bits, self._dtype, f"the sum of {masked}", _REMEDY).to(self._device)
        pieces = gather(self._link, self._holders, clear, shape, self._dtype)
        return torch.stack(list(pieces.values())).sum(dim=0).to(self._device)
