"""Faults planted in what dealer and holders draw, alike at both."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from veilgraph.core.types import NOBODY
from veilgraph.mpc.sealed import comparison, hops, permutations, picks
from veilgraph.mpc.sealed.correlations import Holder, Stream
from veilgraph.mpc.sealed.kept_bytes import Form
from veilgraph.mpc.sealed.linked import DealerMachine

Patch = pytest.MonkeyPatch
Forms = Sequence[Form]
Wanted = Callable[[Forms], bool]
DRAW = Stream.draw


def drawing(patch: Patch, change: Callable[[Stream, Forms, list[Tensor]], list[Tensor]]) -> None:
    """Dealer and holders draw wrongly, and alike."""
    patch.setattr(Stream, "draw", lambda self, forms: change(self, forms, DRAW(self, forms)))


def left_out(wanted: Wanted) -> Callable[[Patch], None]:
    """Draws of some forms are zero."""

    def mutate(patch: Patch) -> None:
        drawing(patch, lambda _, forms, new: [torch.zeros_like(x) for x in new] if wanted(forms) else new)

    return mutate


def repeated(wanted: Wanted) -> Callable[[Patch], None]:
    """Draws of some forms are what the stream's first of these were."""

    def mutate(patch: Patch) -> None:
        first: dict[tuple[Stream, str], list[Tensor]] = {}

        def change(self: Stream, forms: Forms, new: list[Tensor]) -> list[Tensor]:
            return [x.clone() for x in first.setdefault((self, str(forms)), new)] if wanted(forms) else new

        drawing(patch, change)

    return mutate


def compared(shape: tuple[int, ...]) -> Callable[[Patch], None]:
    """What is opened in comparisons of so many numbers is left as it is."""
    words = -(-torch.Size(shape).numel() // 64)
    own = [form for forms in comparison.forms(comparison.LONG, words, shape)[1:] for form in forms]

    def mutate(patch: Patch) -> None:
        drawing(
            patch,
            lambda _, forms, new: [
                torch.zeros_like(x) if form in own else x for form, x in zip(forms, new, strict=True)
            ],
        )

    return mutate


def unshuffled(nodes: int) -> Callable[[Patch], None]:
    """Random orders of so many rows are none."""

    def mutate(patch: Patch) -> None:
        shuffled = permutations.shuffled
        for module in (hops, picks):
            patch.setattr(
                module, "shuffled", lambda numbers: torch.arange(nodes) if len(numbers) == nodes else shuffled(numbers)
            )

    return mutate


def cuts_alike(patch: Patch) -> None:
    """The dealer draws the same numbers below what is cut in every session."""
    init = DealerMachine.__init__

    def with_one_seed(self: DealerMachine, *arguments: object) -> None:
        init(self, *arguments)  # type: ignore[arg-type]
        self.dealing.streams[NOBODY] = Stream(bytes(32))

    patch.setattr(DealerMachine, "__init__", with_one_seed)


def bits_unmasked(entries: int) -> Callable[[Patch], None]:
    """The bits that two holders send to cut so many numbers have no mask."""
    plane = (-(-entries // 64),), torch.int64

    def mutate(patch: Patch) -> None:
        drawing(
            patch,
            lambda _, forms, new: [
                torch.zeros_like(x) if form == plane else x for form, x in zip(forms, new, strict=True)
            ],
        )

    return mutate


def weights_unmasked(patch: Patch) -> None:
    """Masks of edges' weights, each drawn behind three orders of as many slots, are zero."""
    before: dict[Stream, Forms] = {}

    def change(self: Stream, forms: Forms, new: list[Tensor]) -> list[Tensor]:
        earlier, before[self] = before.get(self, ()), forms
        is_weights = [((*shape, 1), dtype) for shape, dtype in earlier] == list(forms) and len(forms) == 1
        return [torch.zeros_like(x) for x in new] if is_weights else new

    drawing(patch, change)


def pair_unmasked(patch: Patch) -> None:
    """What the first two holders draw, against a holder that deals, is nothing."""

    def nothing(_: Holder, forms: Forms) -> list[Tensor]:
        return [torch.zeros(size, dtype=dtype) for size, dtype in forms]

    patch.setattr(Holder, "drawn_in_pair", nothing)
