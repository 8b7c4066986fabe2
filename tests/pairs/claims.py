"""What the claims say of a pair of sessions, as checks over all that crossed the wire and all that was paid."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tests.pairs.sessions import Pair
from tests.paradigms.horizontal import models as horizontal_models
from tests.paradigms.sealed.two_sessions import low_bits_in_common, opened
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.run.jobs import load_result

REPEATS: Final = {
    Kind.HELLO,
    Kind.CONTROL,
    Kind.COMMON_IDS,
    Kind.COMBINED,
    Kind.GRADIENT,
    Kind.EMBEDDING,
    Kind.PERTURBED_FEATURES,
    Kind.PERTURBED_LABELS,
    Kind.AVERAGED,
    Kind.ROW_ORDER,
    Kind.COLUMN_HASHES,
    Kind.COLUMNS,
    Kind.READY,
    Kind.NODE_PLACES,
}
"""Of what is in the clear, or is a release: the same again where the same values are sent again. Others are drawn."""
RING: Final = {
    Kind.MASKED,
    Kind.MASKED_GRADIENT,
    Kind.MASKED_OPERAND,
    Kind.STATIC_DIFFERENCE,
    Kind.SHARE,
    Kind.CORRELATION,
    Kind.MASKED_WIRE,
    Kind.MASKED_ROWS,
    Kind.MASK_SHARE,
}
"""Of which every word is uniform."""
_NODE_KEY: Final = 32
"""Bytes of the key. Behind it is the seed of the shared weights, which is that of the run."""
_BLOCK, _HEAD, _SMALL = 16, 24, 1 << 36
_NOISY: Final = (Kind.EMBEDDING, Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS)
_TOLERANCE: Final = 0.02
"""Between probabilities of two sealed sessions, whose products round as fresh masks have it."""


def found_in(pair: Pair) -> list[str]:
    """All that is against the claims."""
    checks = (_repeated_draws, _small_differences, _kept_noise, _sums, _low_bits, _unpaid, _other_results)
    return [found for check in checks for found in check(pair)]


def _bytes(seen: Seen) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return seen.tensor().contiguous().view(-1).view(torch.uint8).numpy()


def _repeated_draws(pair: Pair) -> Iterator[str]:
    """Sixteen bytes that two sessions share, of a kind that is drawn anew in each."""
    blocks: list[dict[Kind, set[bytes]]] = []
    for session in pair.wire:
        here: dict[Kind, set[bytes]] = defaultdict(set)
        for seen in session:
            if seen.tag.kind not in REPEATS and 0 not in seen.shape:
                octets = _bytes(seen)[: _NODE_KEY if seen.tag.kind == Kind.NODE_KEY else None]
                whole = octets[: len(octets) // _BLOCK * _BLOCK].tobytes()
                here[seen.tag.kind] |= {whole[at : at + _BLOCK] for at in range(0, len(whole), _BLOCK)}
        blocks.append({kind: {one for one in some if len(set(one)) > 4} for kind, some in here.items()})
    for one, other in combinations(blocks, 2):
        for kind in one.keys() & other.keys():
            if common := len(one[kind] & other[kind]):
                yield f"{kind.name}: two sessions have {common} blocks in common"


def _place(seen: Seen) -> tuple[Kind, PartyId, PartyId, tuple[int, ...]]:
    return seen.tag.kind, seen.sender, seen.receiver, seen.shape


def _small_differences(pair: Pair) -> Iterator[str]:
    """Words under one mask: their difference is that of two plaintexts, and small in the ring."""
    heads: list[dict[object, list[Tensor]]] = []
    for session in pair.wire:
        here: dict[object, list[Tensor]] = defaultdict(list)
        for seen in session:
            if seen.tag.kind in RING and np.prod(seen.shape) >= 4:
                tensor = seen.tensor()
                if tensor.dtype == torch.int64:
                    here[_place(seen)].append(tensor.reshape(-1)[:_HEAD])
        heads.append(here)
    for one, other in combinations(heads, 2):
        for place in one.keys() & other.keys():
            some, others = torch.stack(one[place]), torch.stack(other[place])
            differences = some[:, None] - others[None]
            near = (differences > -_SMALL) & (differences < _SMALL)
            if bool((near.double().mean(-1) > 0.25).any()):
                yield f"{place}: messages of two sessions differ by small numbers"


def _kept_noise(pair: Pair) -> Iterator[str]:
    """A release is sent again whole, to the bit, or drawn anew in every row."""
    privacy, settings = pair.job.settings.privacy, pair.job.settings
    if not settings.adds_noise:
        return
    sent: list[dict[object, list[Tensor]]] = []
    for session in pair.wire:
        here: dict[object, list[Tensor]] = defaultdict(list)
        for seen in session:
            if seen.tag.kind in _NOISY and seen.sender != SERVER and len(seen.shape) == 2:
                here[_place(seen)].append(seen.tensor())
        sent.append(here)
    clip = getattr(privacy, "clip", None)
    sigma = getattr(privacy, "noise_multiplier", None)
    for one, other in combinations(sent, 2):
        for place in one.keys() & other.keys():
            for some in one[place]:
                for again in other[place]:
                    if torch.equal(some, again) or not some.is_floating_point():
                        continue
                    same = (some == again).all(1) & some.any(1)
                    if bool(same.any()):
                        yield f"{place}: {int(same.sum())} rows of a release are the same, and others are not"
                    elif sigma and clip:
                        spread = float((some - again).double().pow(2).mean()) ** 0.5
                        if spread < sigma * clip:
                            yield f"{place}: two releases differ by {spread:.3g}, less than the noise of one"


def _sums(pair: Pair) -> Iterator[str]:
    """Of what averaging opens, no difference is a holder's values, nor what changed of them."""
    for holder in sorted(pair.sums.exposed()):
        yield f"two sums differ by the values of {holder}"
    if pair.changed or pair.job.settings.tolerates_dropouts:
        for holder in sorted(pair.sums.changed()):
            yield f"two sums differ by what changed of {holder}"


def _low_bits(pair: Pair) -> Iterator[str]:
    """Sealed: nothing is opened twice with the same low bits."""
    holders = len(pair.job.graphs)
    sessions = [[one for one in opened(session, holders) if one.dim() == 2] for session in pair.wire]
    for one, other in combinations(sessions, 2):
        if nodes := low_bits_in_common(one, other):
            yield f"{len(nodes)} rows are opened with the same low bits in two sessions"


def _unpaid(pair: Pair) -> Iterator[str]:
    """A ledger counts at least what an observer counts: releases that differ are as many releases."""
    settings = pair.job.settings
    if not settings.adds_noise or settings.paradigm == "sealed":
        return
    perturbs = settings.privacy is None  # then embeddings follow from what was perturbed
    kinds_released = _NOISY[1:] if perturbs else _NOISY[:1]
    for graph in pair.job.graphs:
        party, whole = graph.party, set[tuple[Kind, bytes]]()
        for session in pair.wire:
            whole |= {
                (seen.tag.kind, hashlib.sha256(_bytes(seen).tobytes()).digest())
                for seen in session
                if seen.sender == party and seen.tag.kind in kinds_released and 0 not in seen.shape
            }
        kinds = {kind for kind, _ in whole}
        seen_by_others = max((sum(one == kind for one, _ in whole) for kind in kinds), default=0)
        lifetime = pair.job.folder / "ledger" / party / "lifetime.jsonl"
        counted = (
            sum(json.loads(line).get("count", 0) for line in lifetime.read_text().splitlines())
            if (lifetime.is_file())
            else 0
        )
        if counted < seen_by_others:
            yield f"{party} released {seen_by_others} times, and its ledger for life counts {counted}"


def _other_results(pair: Pair) -> Iterator[str]:
    """A run that was cut and resumed is what it would have been."""
    if pair.uncut is None:
        return
    run, uncut = load_result(pair.runs[-1]), load_result(pair.uncut)
    paradigm = pair.job.settings.paradigm
    distance = float((run.predictions.probabilities - uncut.predictions.probabilities).abs().max())
    if paradigm == "sealed":
        if pair.job.settings.model_dump()["output"] == "probabilities" and distance > _TOLERANCE:
            yield f"a resumed run differs from the uncut one by {distance:.3g}"
        return
    if distance:
        yield f"a resumed run differs from the uncut one by {distance:.3g}"
    if paradigm == "horizontal":
        ours, theirs = horizontal_models(run), horizontal_models(uncut)
        if any(
            not torch.equal(each, theirs[party][name]) for party, some in ours.items() for name, each in some.items()
        ):
            yield "a resumed run has other weights than the uncut one"
