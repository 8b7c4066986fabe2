"""Common exchanges over any link, and the text of small messages."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from veilgraph.core.errors import PeerFailed, ProtocolError
from veilgraph.core.types import Link, PartyId, Tag
from veilgraph.core.validation import rule_of

Form = TypeVar("Form", bound=BaseModel)
Shape = Sequence[int | None]
"""Expected dims; None stands for any."""


def receive_as(link: Link, sender: PartyId, tag: Tag, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Receives a message and checks what it carries: every real number that a role gets comes through here.

    Raises ``ProtocolError``: of another shape or dtype, or with a number that is not finite; or as ``Link.receive``.
    """
    tensor = link.receive(sender, tag)
    fits = len(shape) == tensor.ndim and all(want in (None, got) for want, got in zip(shape, tensor.shape, strict=True))
    if not fits or tensor.dtype != dtype:
        words = (
            f"{link.party} got {_describe(tensor.shape, tensor.dtype)} as {tag} from {sender}, "
            f"expected {_describe(shape, dtype)}"
        )
        raise ProtocolError(words, code="shape", key=tag, value=_describe(tensor.shape, tensor.dtype), party=sender)
    if dtype.is_floating_point and not _is_finite(tensor):
        words = (
            f"{link.party} got {tag} from {sender} with numbers that are not finite; where training has diverged, "
            f"lower train.learning_rate, else ask what {sender} runs"
        )
        raise ProtocolError(words, code="not-finite", key=tag, party=sender)
    return tensor


def _is_finite(tensor: Tensor) -> bool:
    """Tell by a tensor's extremes whether every number is finite: one pass, and no memory set aside."""
    return not tensor.numel() or all(math.isfinite(float(extreme)) for extreme in torch.aminmax(tensor))


def broadcast(link: Link, to: Iterable[PartyId], tag: Tag, tensor: Tensor) -> None:
    """Sends the same message to every party of ``to``; errors as ``Link.send``."""
    for receiver in to:
        link.send(receiver, tag, tensor)


def gather(link: Link, senders: Iterable[PartyId], tag: Tag, shape: Shape, dtype: torch.dtype) -> dict[PartyId, Tensor]:
    """Receives one message of every sender, in the order of ``senders``; errors as ``receive_as``."""
    return {sender: receive_as(link, sender, tag, shape, dtype) for sender in senders}


def gather_present(
    link: Link, senders: Iterable[PartyId], tag: Tag, shape: Shape, dtype: torch.dtype, patience_s: float
) -> dict[PartyId, Tensor]:
    """Gather from those whose message comes within ``patience_s`` seconds in all; a late one can be received later."""
    deadline, present = time.monotonic() + patience_s, {}
    for sender in senders:
        if link.comes(sender, tag, max(0.0, deadline - time.monotonic())):
            with suppress(PeerFailed):
                present[sender] = receive_as(link, sender, tag, shape, dtype)
    return present


def exchange(
    link: Link, peers: Iterable[PartyId], tag: Tag, tensor: Tensor, shape: Shape | None = None
) -> dict[PartyId, Tensor]:
    """Sends ``tensor`` to every peer and receives theirs, of its dtype and, by default, shape: peer → tensor."""
    names = tuple(peers)
    broadcast(link, names, tag, tensor)
    return gather(link, names, tag, tensor.shape if shape is None else shape, tensor.dtype)


def text_tensor(text: str) -> Tensor:
    """Text as UTF-8: Tensor[bytes] uint8. For small messages."""
    return torch.tensor(list(text.encode("utf-8")), dtype=torch.uint8)


def tensor_text(tensor: Tensor) -> str:
    """The text that ``text_tensor`` made a tensor of; ``ProtocolError`` for what is no uint8 vector of valid UTF-8."""
    if tensor.dtype != torch.uint8 or tensor.ndim != 1:
        words = f"got {_describe(tensor.shape, tensor.dtype)} as a text, expected [any] torch.uint8"
        raise ProtocolError(words, code="shape", value=_describe(tensor.shape, tensor.dtype))
    try:
        return bytes(tensor.tolist()).decode("utf-8")
    except UnicodeDecodeError as error:
        words = f"got a text of {tensor.numel()} bytes that is not UTF-8 ({error.reason})"
        raise ProtocolError(words, code="not-utf-8", value=tensor.numel()) from error


def receive_model(link: Link, sender: PartyId, tag: Tag, form: type[Form], most: int) -> Form:
    """Receive a pydantic model as JSON of at most ``most`` bytes; ``ProtocolError``: longer, or no such model."""
    text = receive_as(link, sender, tag, (None,), torch.uint8)
    if text.numel() > most:
        words = f"{link.party} got {text.numel()} bytes as {tag} from {sender}; at most {most} are allowed"
        raise ProtocolError(words, code="too-long", key=tag, value=text.numel(), party=sender)
    try:
        return form.model_validate_json(tensor_text(text))
    except ValidationError as error:
        problem = rule_of(error.errors(include_url=False, include_input=False)[0])  # without what the sender wrote
        raise ProtocolError(
            f"{link.party} cannot understand {tag} of {sender}: {problem}; install the same release of veilgraph at "
            "every party",
            code="not-understood",
            key=tag,
            party=sender,
        ) from error


def _describe(shape: Shape, dtype: torch.dtype) -> str:
    return f"[{', '.join('any' if dim is None else str(dim) for dim in shape)}] {dtype}"
