"""A recurrent network over objects that move, joined in every frame with those that are near.

After Feddy (Jiang et al., *Federated Dynamic GNN with Secure Aggregation*, arXiv 2009.07351), which aggregates objects
near in the current graph and what is known from the previous one; docs/reference/errata.md says what had to be chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilgraph.nn.layers import linear
from veilgraph_trajectories.windows import Windows, near_of

_PLANE: Final = 2
_MEMORY: Final = 0.9
"""β, of a heading."""
_TOUCH: Final = 1e-3
"""Metres, below which directions mean nothing."""
_SLOW: Final = 0.1
"""Metres: who has come much less far has no heading, and goes on as before."""


class MovingGNN(nn.Module):
    """Predicts where objects are a frame later; the same however a scene is moved or turned.

    In frame t an object at p_i came by u_i from where it was before (0 where it was not seen), and its heading is
    e_i ∝ Σ_s βˢ·u_i^(t−s). Vectors are taken along and across the heading, ⟨·⟩. Then

        m_ij = ReLU(W₁⟨x/r, x/|x|·exp(−|x|), u_i, u_j⟩ + W_h h_j + b₁)    with x = p_j − p_i
        a_i = Σ_j w(|p_j − p_i|)·ReLU(W₂ m_ij + b₂)    over objects nearer than r
        h_i ← GRU([⟨u_i⟩, a_i], h_i)
        next p_i = p_i + u_i + (W_o h_i + b_o, along and across)

    h_i is what it has of the previous frame, 0 where it was not there; w(d) = (1 + cos(πd/r))/2, so that nothing jumps
    as objects come near. Where W_o is 0, as it is at the beginning, objects go on as they went.

    Args:
        dim: of h.
        radius: r, metres.
    """

    def __init__(self, dim: int, radius: float) -> None:
        super().__init__()
        self.message = linear(4 * _PLANE, dim, bias=True)
        self.heard = linear(dim, dim, bias=True)
        self.before = linear(dim, dim, bias=False)
        self.cell = nn.GRUCell(_PLANE + dim, dim)
        self.output = linear(dim, _PLANE, bias=True)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self._radius = radius

    def forward(self, seen: Windows) -> Tensor:
        """Where each object would be one frame after each, from where it truly was till then.

        Args:
            seen: M tracks of T frames.

        Returns:
            Tensor[M, T − 1, 2], of frames 1 to T − 1; means nothing where the object was not there a frame before.
        """
        return self._next(seen, seen.here.shape[1])

    def roll_out(self, seen: Windows, observed: int) -> Tensor:
        """Where each object would be in all frames that follow, from where it truly was in the first ones alone.

        Objects of the last observed frame stay; no other comes.

        Args:
            seen: M tracks of T frames.
            observed: how many of them are looked at.

        Returns:
            Tensor[M, T − observed, 2]; means nothing where the object was not there in the last observed frame.
        """
        return self._next(seen, observed)[:, observed - 1 :]

    def _next(self, seen: Windows, observed: int) -> Tensor:
        """[M, T − 1, 2], of which those after the first ``observed`` frames follow from what came before."""
        found: list[Tensor] = []
        h = seen.positions.new_zeros(len(seen), self.cell.hidden_size)
        for frame in self._observed(seen, min(observed, seen.here.shape[1] - 1)):
            h = self._state(h, frame)
            found.append(frame.ahead(self.output(h)))
        while len(found) < seen.here.shape[1] - 1:  # objects of the last observed frame, where they would be
            near = near_of(found[-1], frame.here, seen.pairs, self._radius)
            frame = frame.after(found[-1], frame.here, near)
            told = self._told(frame.position, frame.went, frame.heading, near)
            frame = replace(frame, told=self.message(told[0]), weight=told[1])
            h = self._state(h, frame)
            found.append(frame.ahead(self.output(h)))
        return torch.stack(found, dim=1)

    def _observed(self, seen: Windows, count: int) -> list[_Frame]:
        """The first frames. What pairs tell of places needs no state, and is computed of all frames at once."""
        nobody = torch.zeros_like(seen.here[:, 0])
        frame, frames = _Frame.empty(seen.positions[:, 0], nobody), list[_Frame]()
        for t in range(count):
            frame = frame.after(seen.positions[:, t], seen.here[:, t], seen.near[t])
            frames.append(frame)
        sizes, objects = [each.near.shape[1] for each in frames], len(seen)
        near = torch.cat([each.near + t * objects for t, each in enumerate(frames)], dim=1)
        position, went = (torch.cat([getattr(each, name) for each in frames]) for name in ("position", "went"))
        vectors, weight = self._told(position, went, torch.cat([each.heading for each in frames]), near)
        parts = zip(torch.split(self.message(vectors), sizes), torch.split(weight, sizes), frames, strict=True)
        return [replace(each, told=told, weight=own) for told, own, each in parts]

    def _told(self, position: Tensor, went: Tensor, heading: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """Of each pair the vectors that go into its message, as its receiver sees them, and w: [E, 8], [E, 1]."""
        other, own = near
        apart = position[other] - position[own]
        distance = apart.norm(dim=1, keepdim=True)
        close = apart / distance.clamp_min(_TOUCH) * torch.exp(-distance)
        seen = torch.cat([apart / self._radius, close, went[own], went[other]], dim=1)
        return _inward(seen, heading[own]), (1 + torch.cos(math.pi / self._radius * distance)) / 2

    def _state(self, h: Tensor, frame: _Frame) -> Tensor:
        """The h of a frame from that of the frame before; 0 for who is not there."""
        other, own = frame.near
        message = functional.relu(frame.told + self.before(h)[other])
        around = torch.zeros_like(h).index_add(0, own, frame.weight * functional.relu(self.heard(message)))
        own_way = _inward(frame.went, frame.heading)
        return torch.where(frame.here[:, None], self.cell(torch.cat([own_way, around], dim=1), h), 0)


@dataclass(frozen=True, eq=False)
class _Frame:
    """Who is where, M objects.

    Attributes:
        position: Tensor[M, 2].
        here: Tensor[M] bool.
        went: Tensor[M, 2], since the frame before; 0 where it was not seen there.
        course: Tensor[M, 2], these added up, older ones less.
        near: Tensor[2, E], pairs of the frame.
        told: Tensor[E, d], of each pair W₁ of what its receiver sees.
        weight: Tensor[E, 1].
    """

    position: Tensor
    here: Tensor
    went: Tensor
    course: Tensor
    near: Tensor
    told: Tensor
    weight: Tensor

    @classmethod
    def empty(cls, position: Tensor, nobody: Tensor) -> _Frame:
        """Before anybody was seen."""
        zero, none = torch.zeros_like(position), torch.zeros(2, 0, dtype=torch.int64)
        return cls(position, nobody, zero, zero, none, zero, zero)

    def after(self, position: Tensor, here: Tensor, near: Tensor) -> _Frame:
        """The next one, but for what pairs tell."""
        went = torch.where((here & self.here)[:, None], position - self.position, 0)
        course = torch.where(here[:, None], _MEMORY * self.course + went, 0)
        return replace(self, position=position, here=here, went=went, course=course, near=near)

    @property
    def heading(self) -> Tensor:
        """Tensor[M, 2], of length 1 but for who is slow."""
        return self.course / (self.course.square().sum(1, keepdim=True) + _SLOW**2).sqrt()

    def ahead(self, turn: Tensor) -> Tensor:
        """Where objects would be a frame later: as they went, and a turn along and across their heading."""
        return self.position + self.went + _outward(turn, self.heading)


def _inward(vectors: Tensor, heading: Tensor) -> Tensor:
    """Vectors along and across a heading; Tensor[K, 2n], Tensor[K, 2]."""
    x, y = heading[:, :1], heading[:, 1:]
    one, other = vectors[:, ::2], vectors[:, 1::2]
    return torch.cat([one * x + other * y, other * x - one * y], dim=1)


def _outward(vectors: Tensor, heading: Tensor) -> Tensor:
    """Back; Tensor[K, 2], Tensor[K, 2]."""
    turned = torch.stack([-heading[:, 1], heading[:, 0]], dim=1)
    return vectors[:, :1] * heading + vectors[:, 1:] * turned
