"""What a run claims, held against what was seen of it. Each of these checks fails an audit without a limit.

An auditor has all views, all data and all ledgers, and knows what an honest run would look like to the adversary.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from veilgraph.audit.attack import Case
from veilgraph.audit.epsilon import inserted_at
from veilgraph.audit.finding import Finding, Secret, Skipped
from veilgraph.audit.noise import low_bits_p_value, noise_level, order_p_value, sampling, split_p_value
from veilgraph.audit.sealing import orders_p_value
from veilgraph.audit.statistics import Interval, Verdict
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.privacy.plan import Channel
from veilgraph.privacy.release_cache import fingerprint
from veilgraph.protocol.audit_settings import Check
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.view import View
from veilgraph.run.ledgers import LEDGER

_MOST_PASSES: Final = 16
_SPLIT: Final = 1
_TELLING: Final = 0.01
"""p-values below which what is odd is worth a word."""
_CLEAR: Final[Mapping[Kind, Channel]] = {Kind.EMBEDDING: "embeddings", Kind.GRADIENT: "gradients"}
_MASKED: Final[Mapping[Kind, Channel]] = {Kind.MASKED: "embeddings", Kind.MASKED_GRADIENT: "gradients"}

Found = Iterator[Finding | Skipped]


def checked(case: Case, party: PartyId, names: Sequence[str]) -> Found:
    """All checks of what one party saw, one alone; ``names``: of the attacks that are asked for."""
    for name, check in _CHECKS.items():
        if name in names:
            yield from check(case, case.view(party))


class _Claim:
    """A test of what a run claims, of what one party saw of another's secret."""

    def __init__(self, check: Check, view: View, target: PartyId, secret: Secret) -> None:
        self.check, self.adversary, self.target, self.secret = check, view.party, target, secret

    def finding(self, evidence: str, p_value: float, note: str) -> Finding:
        """The level is that of the audit's tests together, and set once all of them are there."""
        judged = Verdict(found=False, auc=0.5, against=0.5, p_value=p_value, level=0.0)
        return Finding(
            self.adversary,
            self.target,
            self.secret,
            self.check,
            evidence,
            permitted=False,
            measure="p-value",
            value=Interval(p_value, p_value, p_value, 0.95),
            verdict=judged,
            note=note,
        )

    def skipped(self, why: object, of: str | None = None) -> Skipped:
        """Not mounted; ``of``: on what, by default the target."""
        return Skipped(self.adversary, f"{self.check} of {of or self.target}", str(why), self.check)


def _noise_level(case: Case, view: View) -> Found:
    """Releases against the noise that ledgers count with, as their paradigm finds them in the run."""
    try:
        for series in case.source.noisy(case, view.party):
            found = noise_level(series.releases)
            note = f"Of the noise {found.share:.3g} is there by the least of all estimates, {series.anew} anew."
            if series.clipped and found.excess:
                note += (
                    f" A row, or a mean of releases, is {found.excess:.3g} clips longer than clip and noise explain."
                )
            yield _Claim("noise-level", view, series.holder, "noise").finding(series.words, found.p_value, note)
    except DataError as error:
        yield Skipped(view.party, "noise-level", str(error), "noise-level")


def _sampling_rate(case: Case, view: View) -> Found:
    """At the server: whether holders that train privately drew who is in a sum as their ledgers count."""
    for name in case.settings.data.names:
        if view.party != SERVER or case.settings.training_plan is None or case.graph(name).labels is None:
            continue
        claim = _Claim("sampling-rate", view, name, "noise")
        try:
            entries = _ledger(case, name)
            rates = [float(each["event"]["sampling_rate"]) for each in entries if "sampling_rate" in each["event"]]
            if not rates:
                raise DataError("its ledger counts no sampled sum")
            sums = [each.numpy() for each in case.source.drawn(case.view(name))]
            found = sampling(sums, min(rates))
        except DataError as error:
            yield claim.skipped(error)
            continue
        note = f"{found.rate:.3g} of its training nodes are in a sum, and its ledger counts with {min(rates):g}"
        note += "." if found.p_value > _TELLING else f"; {found.oddest}."
        yield claim.finding(f"who is in {len(sums)} sums of {name}, by its own notes", found.p_value, note)


def _paid(case: Case, view: View) -> Found:
    """At who is sent them: releases that went out against those that the ledgers have."""
    settings = case.settings

    def compared(holder: PartyId, releases: int, unpaid: int) -> Finding:
        words, note = f"{releases} releases of {holder}'s data, and its ledger", f"{max(0, unpaid)} were not paid for."
        return _Claim("paid", view, holder, "noise").finding(words, float(unpaid <= 0), note)

    for other in view.others if view.party != SERVER else ():
        sent = [view.received(kind, other) for kind in (Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS)]
        different = sum(len({fingerprint(each.tensor()) for each in some}) for some in sent)
        if different:
            yield compared(other, different, different - _releases(case, other).total())
    if settings.noise.counts_votes:  # whoever opened predictions to the label holder has paid for their noise
        for name in settings.duties.publishing if view.party == settings.data.label_party else ():
            opened = len({each.session for each in view.received(Kind.MASK_SHARE, name)})
            yield compared(name, opened, int(opened > 0 and not _releases(case, name)["predictions"]))
        return
    if view.party != SERVER or settings.privacy is None:
        return
    seen = {name: _released(case, view, name) for name in settings.data.names}
    for name in settings.data.names:
        plan = paradigm_of(settings).privacy.plan(settings, name, case.graph(name).num_nodes)
        if plan is None or plan.event is None or name in settings.duties.summing:
            continue
        went: dict[Channel, int] = {channel: len(each) for channel, each in seen[name].items()}
        if plan.others:
            theirs = [seen[other] for other in seen if other != name]
            went["others"] = sum(round_ > 0 for each in theirs for some in each.values() for _, round_ in some)
        entries = _releases(case, name)
        unpaid = sum(max(0, count - entries[channel]) for channel, count in went.items())
        yield compared(name, sum(went.values()), unpaid)


def _released(case: Case, view: View, name: PartyId) -> dict[Channel, list[tuple[object, int]]]:
    """(which, round) of each release that the server was sent; with ``once`` the same bytes are one release."""
    once = case.settings.privacy is not None and case.settings.privacy.once
    own = {_key(each): each for each in case.view(name).own} if once else {}
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


def _ledger(case: Case, name: PartyId) -> list[dict[str, Any]]:
    """The entries of a holder's ledger.

    Raises:
        DataError: it is not here.
    """
    path = case.run.party_path(name) / LEDGER
    if not path.is_file():
        raise DataError("its ledger is not here")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def _releases(case: Case, name: PartyId) -> Counter[str]:
    """Channel → releases that a holder's ledger has; nothing where there is none."""
    found = Counter[str]()
    try:
        for entry in _ledger(case, name):
            found[entry["channel"]] += int(entry["count"])
    except DataError:
        pass
    return found


def _reach(case: Case, view: View) -> Found:
    """Rows that a canary of unit ``node`` reaches: its own, and those of the neighbours that it keeps."""
    privacy = case.settings.privacy
    if view.party != SERVER or privacy is None or privacy.canaries_in != "data" or privacy.unit != "node":
        return
    bound = privacy.degree_bound or 0
    for name in case.settings.duties.publishing:
        claim, notes = _Claim("reach", view, name, "noise"), case.view(name).noted(Kind.EMBEDDING)
        try:
            canaries = inserted_at(case, name)
        except DataError as error:
            yield claim.skipped(error)
            continue
        if not notes:
            yield claim.skipped("its canaries are not here")
        elif canaries.leaves <= bound:
            yield claim.skipped(f"canaries have {canaries.leaves} neighbours, and the bound of {bound} keeps them all")
        else:
            at = np.searchsorted(canaries.everywhere.numpy(), canaries.places(name).numpy())
            reached = max(int((seen.tensor().numpy()[at] != 0).any(axis=2).sum(axis=1).max()) for seen in notes)
            words = f"the rows of {canaries.count} canaries with {canaries.leaves} neighbours each, before the noise"
            note = f"A node reaches {reached} rows; a degree bound of {bound} leaves it {1 + bound}, itself among them."
            yield claim.finding(words, float(reached <= 1 + bound), note)


def _low_bits(case: Case, view: View) -> Found:
    """Sums that a party opens, of which the low bits tell of the summands unless these were rounded in secret."""
    for opened in case.source.sums(view) if case.settings.precision == "float32" else ():
        rows = opened.rows
        if not rows:
            continue
        others = [name for name in opened.holders if name != view.party]
        claim = _Claim("low-bits", view, others[0], "nothing")
        pieces = rows.pieces if len(rows) <= _MOST_PASSES else rows.pieces[:: len(rows) // _MOST_PASSES]
        try:
            sums = [sum(each.tensor() for each in some).numpy() for some in pieces]  # type: ignore[union-attr]
            p_value, share = low_bits_p_value(sums, bits=opened.bits, summands=len(opened.holders))
        except DataError as error:
            yield claim.skipped(error, opened.words)
            continue
        note = f"{share:.1%} of the sums end in four zero bits; of uniform ones 6.3 % do."
        yield claim.finding(f"low bits of {opened.words}", p_value, note)


def _split(case: Case, view: View) -> Found:
    """At a learner that is sent labels under randomised response: who is trained on comes in the clear beside them."""
    for other in view.others:
        claim = _Claim("split", view, other, "labels")
        for seen in view.received(Kind.PERTURBED_LABELS, other)[-1:]:
            labels, split = case.graph(other).labels, seen.tensor()[:, _SPLIT].numpy()
            if labels is None or len(labels) != len(split):
                continue
            known = labels.numpy() >= 0
            try:
                p_value, even = split_p_value(split[known], labels.numpy()[known], seed=case.seed)
            except DataError as error:
                yield claim.skipped(error)
                continue
            note = f"{even:.2%} of splits that were drawn without the labels are as even over the classes as this."
            yield claim.finding(f"which of {other}'s nodes are trained on, or validated with", p_value, note)


def _row_order(case: Case, view: View) -> Found:
    """At the server: rows that the program has put in an order, which must say nothing of the tables."""
    if view.party != SERVER:
        return
    if not case.settings.data.from_tables:
        yield Skipped(SERVER, "row-order", "the rows are in the order in which the data were given", "row-order")
        return
    for name in case.settings.data.names:
        claim, graph = _Claim("row-order", view, name, "features"), case.graph(name)
        degrees = np.bincount(graph.edge_index.numpy().reshape(-1), minlength=graph.num_nodes)
        try:
            p_value, strength = order_p_value(degrees, None if graph.labels is None else graph.labels.numpy())
        except DataError as error:
            yield claim.skipped(error)
            continue
        note = f"Of the places, {strength:.3g} is told by degrees or classes: 0 is nothing, 1 everything."
        yield claim.finding(f"the order of {name}'s rows", p_value, note)


def _orders(case: Case, view: View) -> Found:
    """At a holder: orders that the others told, against uniform ones, each other and the true ones."""
    for sender in () if view.party == SERVER else view.others:
        claim, found = _Claim("orders", view, sender, "edges"), case.source.orders(view, sender, case.graph(sender))
        if told := sum(each.told for each in found):
            try:
                p_value = orders_p_value(found)
            except DataError as error:
                yield claim.skipped(error)
                continue
            note = "Do they rise and fall at random, and are no two, told or true, alike?"
            yield claim.finding(f"{told} orders from {sender}", p_value, note)


def _one_byte(case: Case, view: View) -> Found:
    """At the server that deals: that something was used, by a byte that is always the same."""
    for sender in case.settings.data.names if view.party == SERVER else ():
        if heard := view.received(Kind.READY, sender):
            others = sum(seen.shape != (1,) or int(seen.tensor()) != 1 for seen in heard)
            note = f"{others} of them are anything but the byte 1."
            claim = _Claim("one-byte", view, sender, "nothing")
            yield claim.finding(f"{len(heard)} messages from {sender}", float(others == 0), note)


_CHECKS: Final[Mapping[Check, Callable[[Case, View], Found]]] = {
    "noise-level": _noise_level,
    "sampling-rate": _sampling_rate,
    "paid": _paid,
    "reach": _reach,
    "low-bits": _low_bits,
    "split": _split,
    "row-order": _row_order,
    "orders": _orders,
    "one-byte": _one_byte,
}
