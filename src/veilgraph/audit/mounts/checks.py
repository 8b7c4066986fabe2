"""What a run claims, held against what was seen of it. Each of these fails an audit without a limit.

An auditor has all views, all data and all ledgers, and knows what an honest run would look like to the adversary.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from veilgraph.audit.attacks.dependence import order_p_value, split_p_value
from veilgraph.audit.attacks.low_bits import low_bits_p_value
from veilgraph.audit.attacks.noise_level import Noisy, noise_level
from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding, Skipped
from veilgraph.audit.mounts.claims import claim_finding
from veilgraph.audit.mounts.gradient_epsilon import gradients_noise
from veilgraph.audit.mounts.sampling import sampled
from veilgraph.audit.mounts.told import told_dealer, told_orders
from veilgraph.audit.mounts.vote_noise import votes_noise
from veilgraph.audit.passes import numbers, together
from veilgraph.audit.roc import Floats
from veilgraph.audit.source import source_of
from veilgraph.audit.view import View, load_view
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.plan import Channel
from veilgraph.privacy.settings import MECHANISMS
from veilgraph.privacy.single import fingerprint
from veilgraph.protocol.audit_settings import Check
from veilgraph.protocol.cut import GRADIENT_BITS
from veilgraph.protocol.inserted import Inserted
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.run.ledgers import LEDGER

_MOST_PASSES: Final = 16
_SPLIT: Final = 1
_CLEAR: Final[Mapping[Kind, Channel]] = {Kind.EMBEDDING: "embeddings", Kind.GRADIENT: "gradients"}
_MASKED: Final[Mapping[Kind, Channel]] = {Kind.MASKED: "embeddings", Kind.MASKED_GRADIENT: "gradients"}


def checked(case: Case, party: PartyId, names: Sequence[str]) -> Iterator[Finding | Skipped]:
    """All checks of what one party saw.

    Args:
        case: of the run.
        party: one alone.
        names: of the attacks that are asked for.
    """
    view = load_view(case.run, party)
    for name, check in _CHECKS.items():
        if name in names:
            yield from check(case, view)


def _noise_level(case: Case, view: View) -> Iterator[Finding | Skipped]:
    """At the server: every release of the run, of all sessions, against the noise that the plan has."""
    settings, privacy = case.settings, case.settings.privacy
    if settings.training_plan is not None:
        yield from gradients_noise(case, view.party)
        return
    if view.party != SERVER or privacy is None:
        return
    if isinstance(settings, SealedJob):
        yield from votes_noise(case)
        return
    if settings.summing:
        yield Skipped(SERVER, "noise-level", "noise is on sums that their learner makes for itself, and sends nobody",
                      "noise-level")  # fmt: skip
        return
    mechanism = MECHANISMS[privacy.mechanism]
    if not (mechanism.is_gaussian and mechanism.is_plain) or vertical(settings).divisor is None:
        what = f"mechanism {privacy.mechanism}, combine {vertical(settings).model.combine.strategy}"
        yield Skipped(SERVER, "noise-level", f"it reads Gaussian noise in means and columns, and this is {what}",
                      "noise-level")  # fmt: skip
        return
    for who, received in _noisy(case, view).items():
        releases = list({each.rows.tobytes(): each for each in received}.values()) if privacy.once else received
        if not releases:
            continue
        found = noise_level(releases)
        note = f"Of the noise {found.share:.3g} is there by the least of all estimates, in every release and anew."
        if found.excess:
            note += f" A row, or a mean of releases, is {found.excess:.3g} clips longer than clip and noise explain."
        words = f"{len(releases)} releases of {' and '.join(who)}"
        yield claim_finding("noise-level", SERVER, who[0], "noise", words, found.p_value, note)


def _noisy(case: Case, view: View) -> dict[tuple[PartyId, ...], list[Noisy]]:
    """Holders → what the server has of what they released together, or of one by itself."""
    settings, holders = case.settings, case.settings.publishing
    plans = {
        name: paradigm_of(settings).plan(settings, name, case.graph(name).num_nodes) for name in settings.data.names
    }
    noise: dict[tuple[PartyId, Kind], tuple[float, tuple[float, ...]]] = {}
    for name, of in plans.items():
        if of is not None and of.multiplier > 0 and settings.privacy is not None:
            for kind, channel in (*_MASKED.items(), *_CLEAR.items()):
                mechanism = of.mechanism(channel, alone=kind is Kind.GRADIENT)
                longest = of.longest if channel == "embeddings" else (settings.privacy.gradient_clip,)
                noise[name, kind] = float(np.sqrt(mechanism.variance)), longest
    shared = vertical(settings).sent_divisor
    found: dict[tuple[PartyId, ...], list[Noisy]] = {}
    for kind, channel in _MASKED.items():
        if all((name, kind) in noise for name in holders) and settings.is_masked:
            parts = shared if channel == "embeddings" else 1
            deviation = float(np.sqrt(sum(noise[name, kind][0] ** 2 for name in holders))) / parts
            bounds = zip(*(noise[name, kind][1] for name in holders), strict=True)
            lengths = tuple(sum(each) / parts for each in bounds)
            for round_ in range(1, vertical(settings).model.rounds + 1):
                rows = together(view, kind, round_, holders)
                bits = vertical(settings).model.combine.bits if channel == "embeddings" else GRADIENT_BITS
                unit = 2.0 ** (40 - bits)  # passes take all sums to have 40 fractional bits
                for place in range(len(rows)):
                    found.setdefault(holders, []).extend(_side_by_side(rows[place] * unit, deviation, lengths))
    for kind, channel in _CLEAR.items():
        for name in settings.data.names:
            if (name, kind) not in noise:
                continue
            deviation, lengths = noise[name, kind]
            parts = shared if channel == "embeddings" else 1
            for seen in view.received(kind, name):
                if channel == "gradients" or seen.tag.round > 0:
                    of_parts = [each / parts for each in lengths]
                    found.setdefault((name,), []).extend(
                        _side_by_side(numbers(seen.tensor()), deviation / parts, of_parts)
                    )
    return found


def _side_by_side(rows: Floats, deviation: float, longest: Sequence[float]) -> list[Noisy]:
    """The matrices that a release is made of, each with noise of its own."""
    parts = np.split(rows, len(longest), axis=1)
    return [Noisy(part, deviation, clip) for part, clip in zip(parts, longest, strict=True)]


def _paid(case: Case, view: View) -> Iterator[Finding | Skipped]:
    """At who is sent them: releases that went out against those that the ledgers have."""
    settings, privacy = case.settings, case.settings.privacy
    for other in view.others:
        sent = {kind: view.received(kind, other) for kind in (Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS)}
        different = sum(len({fingerprint(each.tensor()) for each in some}) for some in sent.values())
        if different and view.party != SERVER:
            yield _compared(view.party, other, different, different - _ledger(case, other).total())
    if isinstance(settings, SealedJob):
        yield from _paid_openings(case, view)
        return
    if view.party != SERVER or privacy is None:
        return
    seen = {name: _released(case, view, name) for name in settings.data.names}
    for name in settings.data.names:
        of = paradigm_of(settings).plan(settings, name, case.graph(name).num_nodes)
        if of is None or of.event is None or name in settings.summing:
            continue
        went: dict[Channel, int] = {channel: len(each) for channel, each in seen[name].items()}
        if of.others:
            theirs = [seen[other] for other in seen if other != name]
            went["others"] = sum(round_ > 0 for each in theirs for some in each.values() for _, round_ in some)
        entries = _ledger(case, name)
        unpaid = sum(max(0, count - entries[channel]) for channel, count in went.items())
        yield _compared(SERVER, name, sum(went.values()), unpaid)


def _paid_openings(case: Case, view: View) -> Iterator[Finding]:
    """At the label holder of a sealed job with noise: whoever opened predictions to it has paid for their noise."""
    if case.settings.privacy is None or view.party != case.settings.data.label_party:
        return
    for name in case.settings.publishing:
        opened = len({each.session for each in view.received(Kind.MASK_SHARE, name)})
        unpaid = int(opened > 0 and not _ledger(case, name)["predictions"])
        yield _compared(view.party, name, opened, unpaid)


def _compared(adversary: PartyId, holder: PartyId, releases: int, unpaid: int) -> Finding:
    words, note = f"{releases} releases of {holder}'s data, and its ledger", f"{max(0, unpaid)} were not paid for."
    return claim_finding("paid", adversary, holder, "noise", words, float(unpaid <= 0), note)


def _reach(case: Case, view: View) -> Iterator[Finding | Skipped]:
    """Rows that a canary of unit ``node`` reaches: its own, and those of the neighbours that it keeps."""
    privacy = case.settings.privacy
    if view.party != SERVER or privacy is None or privacy.canaries_in != "data" or privacy.unit != "node":
        return
    bound = privacy.degree_bound or 0
    for name in case.settings.publishing:
        kept = case.run.party(name).canaries()
        notes = [seen for seen in load_view(case.run, name).own if seen.tag.kind is Kind.EMBEDDING]
        if kept is None or not notes:
            yield Skipped(SERVER, f"reach of {name}", "its canaries are not here", "reach")
            continue
        canaries = Inserted.of(case.settings, name, case.graph(name).num_nodes, bytes, kept.key)
        if canaries.leaves <= bound:
            why = f"canaries have {canaries.leaves} neighbours, and the bound of {bound} keeps them all"
            yield Skipped(SERVER, f"reach of {name}", why, "reach")
            continue
        at = np.searchsorted(canaries.everywhere.numpy(), canaries.places(name).numpy())
        reached = max(int((seen.tensor().numpy()[at] != 0).any(axis=2).sum(axis=1).max()) for seen in notes)
        words = f"the rows of {canaries.count} canaries with {canaries.leaves} neighbours each, before the noise"
        note = f"A node reaches {reached} rows; a degree bound of {bound} leaves it {1 + bound}, itself among them."
        yield claim_finding("reach", SERVER, name, "noise", words, float(reached <= 1 + bound), note)


def _released(case: Case, view: View, name: PartyId) -> dict[Channel, list[tuple[object, int]]]:
    """(which, round) of each release that the server was sent; with ``once`` the same bytes are one release."""
    settings = case.settings
    once = settings.privacy is not None and settings.privacy.once
    own = {_key(each): each for each in load_view(case.run, name).own} if once else {}
    found: dict[Channel, dict[object, int]] = {}
    for kind, channel in (*_CLEAR.items(), *_MASKED.items()):
        for seen in view.received(kind, name):
            if channel == "embeddings" and seen.tag.round == 0:
                continue
            bare = own.get(_key(seen)) if kind in _MASKED else seen
            which: object = fingerprint(bare.tensor()) if once and bare is not None else _key(seen)
            found.setdefault(channel, {})[which] = seen.tag.round
    return {channel: list(each.items()) for channel, each in found.items()}


def _key(seen: Seen) -> tuple[int, Kind, int, int]:
    return seen.session, seen.tag.kind, seen.tag.step, seen.tag.round


def _ledger(case: Case, name: PartyId) -> Counter[str]:
    """Channel → releases that a holder's ledger has; nothing where there is none."""
    path = case.run.party_path(name) / LEDGER
    found = Counter[str]()
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            entry = json.loads(line)
            found[entry["channel"]] += int(entry["count"])
    return found


def _low_bits(case: Case, view: View) -> Iterator[Finding | Skipped]:
    """Sums that a party opens, of which the low bits tell of the summands unless these were rounded in secret."""
    if case.settings.precision != "float32":
        return
    for opened in source_of(case.settings).sums(view):
        words, rows = opened.words, opened.rows
        if not rows:
            continue
        others = [name for name in opened.holders if name != view.party]
        pieces = rows.pieces if len(rows) <= _MOST_PASSES else rows.pieces[:: len(rows) // _MOST_PASSES]
        try:
            sums = [sum(each.tensor() for each in some).numpy() for some in pieces]  # type: ignore[union-attr]
            p_value, share = low_bits_p_value(sums, bits=opened.bits, summands=len(opened.holders))
        except DataError as error:
            yield Skipped(view.party, f"low-bits of {words}", str(error), "low-bits")
            continue
        note = f"{share:.1%} of the sums end in four zero bits; of uniform ones 6.3 % do."
        yield claim_finding("low-bits", view.party, others[0], "nothing", f"low bits of {words}", p_value, note)


def _split(case: Case, view: View) -> Iterator[Finding | Skipped]:
    """At a learner that is sent labels under randomised response: who is trained on comes in the clear beside them."""
    for other in view.others:
        for seen in view.received(Kind.PERTURBED_LABELS, other)[-1:]:
            labels, split = case.graph(other).labels, seen.tensor()[:, _SPLIT].numpy()
            if labels is None or len(labels) != len(split):
                continue
            known = labels.numpy() >= 0
            try:
                p_value, even = split_p_value(split[known], labels.numpy()[known], seed=case.seed)
            except DataError as error:
                yield Skipped(view.party, f"split of {other}", str(error), "split")
                continue
            note = f"{even:.2%} of splits that were drawn without the labels are as even over the classes as this."
            words = f"which of {other}'s nodes are trained on, or validated with"
            yield claim_finding("split", view.party, other, "labels", words, p_value, note)


def _row_order(case: Case, view: View) -> Iterator[Finding | Skipped]:
    """At the server: rows that the program has put in an order, which must say nothing of the tables."""
    settings = case.settings
    if view.party != SERVER:
        return
    if not settings.data.from_tables:
        yield Skipped(SERVER, "row-order", "the rows are in the order in which the data were given", "row-order")
        return
    for name in settings.data.names:
        graph = case.graph(name)
        degrees = np.bincount(graph.edge_index.numpy().reshape(-1), minlength=graph.num_nodes)
        labels = None if graph.labels is None else graph.labels.numpy()
        try:
            p_value, strength = order_p_value(degrees, labels)
        except DataError as error:
            yield Skipped(SERVER, f"row-order of {name}", str(error), "row-order")
            continue
        note = f"Of the places, {strength:.3g} is told by degrees or classes: 0 is nothing, 1 everything."
        yield claim_finding("row-order", SERVER, name, "features", f"the order of {name}'s rows", p_value, note)


_CHECKS: Final[Mapping[Check, Callable[[Case, View], Iterator[Finding | Skipped]]]] = {
    "noise-level": _noise_level,
    "sampling-rate": sampled,
    "paid": _paid,
    "reach": _reach,
    "low-bits": _low_bits,
    "split": _split,
    "row-order": _row_order,
    "orders": told_orders,
    "one-byte": told_dealer,
}
