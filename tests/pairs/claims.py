"""What the claims say of a pair of sessions, as checks over all that crossed the wire and all that was paid."""

import hashlib
import json
from collections.abc import Iterator
from typing import Final

import torch

from tests.pairs.sessions import Pair
from tests.paradigms.horizontal import models as horizontal_models
from veilgraph.audit.sealing import RELEASES, octets, repetitions
from veilgraph.core.types import Kind
from veilgraph.protocol.job import adds_noise
from veilgraph.runtime.launch.jobs import load_result

_TOLERANCE: Final = 0.02
"""Between probabilities of two sealed sessions, whose products round as fresh masks have it."""


def found_in(pair: Pair) -> list[str]:
    """All that is against the claims."""
    checks = (_repetitions, _sums, _unpaid, _other_results)
    return [found for check in checks for found in check(pair)]


def _repetitions(pair: Pair) -> Iterator[str]:
    """What the audit finds in the same sessions."""
    yield from map(str, repetitions(pair.sessions, [pair.job.settings]))


def _sums(pair: Pair) -> Iterator[str]:
    """Of what averaging opens, no difference is a holder's values, nor what changed of them."""
    for holder in sorted(pair.sums.exposed()):
        yield f"two sums differ by the values of {holder}"
    if pair.changed or pair.job.settings.passes.tolerates_dropouts:
        for holder in sorted(pair.sums.changed()):
            yield f"two sums differ by what changed of {holder}"


def _unpaid(pair: Pair) -> Iterator[str]:
    """A ledger counts at least what an observer counts: releases that differ are as many releases."""
    settings = pair.job.settings
    if not adds_noise(settings) or settings.paradigm == "sealed":
        return
    for graph in pair.job.graphs:
        party, whole = graph.party, set[tuple[Kind, bytes]]()
        for session in pair.sessions:
            whole |= {
                (seen.tag.kind, hashlib.sha256(octets(seen).tobytes()).digest())
                for seen in session.received
                if seen.sender == party and seen.tag.kind in RELEASES[1:] and 0 not in seen.shape
            }
        kinds = {kind for kind, _ in whole}
        seen_by_others = max((sum(one == kind for one, _ in whole) for kind in kinds), default=0)
        if settings.training_plan is not None:  # every sum is a release of all that are in it
            seen_by_others = len({each.total.numpy().tobytes() for each in pair.sums.sums if party in each.counted})
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
        if pair.job.settings.model_dump()["output"] == "margins" and distance > _TOLERANCE:
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
