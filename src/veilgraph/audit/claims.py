"""What a run claims, held against what was seen of it. Each of these checks fails an audit without a limit.

An auditor has all views, all data and all ledgers, and knows what an honest run would look like to the adversary. The
tests on arrays, which come first, do not look at the data: each p-value is exact, or a bound for any data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, chisquare, kruskal, spearmanr

from veilgraph.audit.attack import AuditContext
from veilgraph.audit.finding import Finding, Secret, Skipped
from veilgraph.audit.sealing import orders_p_value
from veilgraph.audit.statistics import Interval, Verdict
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.privacy.release_cache import fingerprint
from veilgraph.protocol.evidence import Noisy, Told
from veilgraph.protocol.job import Check
from veilgraph.protocol.view import View

_MOST: Final = 60  # releases of which all pairs are compared: the first half and the newest


@dataclass(frozen=True)
class NoiseTest:
    """The result of testing releases against their claimed noise: ``p_value`` of all tests together.

    ``share``: the least estimate of noise over that claimed; ``excess``: by how many clips the longest row is too long.
    """

    p_value: float
    share: float
    excess: float


def noise_level(releases: Sequence[Noisy]) -> NoiseTest:
    """Tests releases of one adversary's view against the noise that is claimed: at least one of them.

    A released matrix is x + n, n of independent N(0, s²) entries, and every row of x is at most C long. Whatever x is,

    - ‖x + n‖² is stochastically at least ‖n‖² ~ s²·χ². Less is the mark of noise that is too small, or not there;
    - so is ‖(x + n) − (x' + n')‖², with 2s² in place of s²: what is small there is noise that came twice, over other
      data as well. The same holds of pairs of rows in one release;
    - ‖(x + n)_v‖ ≤ C + ‖n_v‖. More is the mark of a row that was not clipped, and is seen best in the mean of releases.

    Where rows were trained on what was released before, they depend on its noise, by way of a few weights: too little
    to make a difference small.
    """
    half = _MOST // 2
    kept = list(releases) if len(releases) <= _MOST else [*releases[:half], *releases[-half:]]
    squares, counts = list[float](), list[int]()
    for each in kept:
        scaled = each.scaled
        even = scaled[: len(scaled) // 2 * 2]
        for values in (scaled, (even[::2] - even[1::2]) / np.sqrt(2)):
            squares.append(float((values**2).sum()))
            counts.append(values.size)
    for one, other in combinations(kept, 2):
        if one.rows.shape == other.rows.shape:
            squares.append(float(((one.scaled - other.scaled) ** 2).sum()) / 2)
            counts.append(one.rows.size)
    low = chi2.cdf(squares, counts)
    high, excess = zip(*(_rows_too_long(series) for series in _release_groups(kept)), strict=True)
    tests = len(low) + len(high)
    shares = np.sqrt(np.asarray(squares) / np.asarray(counts))
    return NoiseTest(float(min(1.0, tests * min(low.min(), *high))), float(shares.min()), float(max(excess)))


def _release_groups(releases: Sequence[Noisy]) -> list[Sequence[Noisy]]:
    """Every release by itself, and groups of two or more with the same shape, deviation and clip."""
    alike: dict[tuple[object, ...], list[Noisy]] = {}
    for each in releases:
        alike.setdefault((each.rows.shape, each.deviation, each.clip), []).append(each)
    return [*([each] for each in releases), *(some for some in alike.values() if len(some) > 1)]


def _rows_too_long(series: Sequence[Noisy]) -> tuple[float, float]:
    """p-value of the longest row in the mean of some releases, and by how much it is too long, in clips."""
    first = series[0]
    rows = np.mean([each.rows for each in series], axis=0)
    deviation, width = first.deviation / np.sqrt(len(series)), rows.shape[1]
    longest = float(np.linalg.norm(rows, axis=1).max())
    beyond = max(0.0, longest - first.clip)
    p_value = min(1.0, len(rows) * float(chi2.sf((beyond / deviation) ** 2, width)))
    noise = deviation * float(np.sqrt(chi2.isf(0.01 / len(rows), width)))
    return p_value, max(0.0, beyond - noise) / first.clip


_FEWEST: Final = 50


def order_p_value(degrees: NDArray[Any], labels: NDArray[Any] | None) -> tuple[float, float]:
    """Test whether the order of rows [N] depends on degrees (Spearman) or labels, −1: unknown (Kruskal and Wallis).

    Gives the p-value, and the rank correlation of places with degrees or, if that is more, the share η of places that
    classes explain: 0 where the order says nothing.
    """
    if len(degrees) < _FEWEST:
        raise DataError(f"degrees: {len(degrees)} rows are too few to tell whether their order says something")
    places = np.arange(len(degrees))
    p_values, figures = [1.0], [0.0]
    if len(np.unique(degrees)) > 1:
        found = spearmanr(places, degrees)
        p_values.append(float(found.pvalue))
        figures.append(abs(float(found.statistic)))
    groups = [] if labels is None else [places[labels == each] for each in np.unique(labels[labels >= 0])]
    groups = [each for each in groups if len(each) >= _FEWEST // 10]
    if len(groups) > 1:
        p_values.append(float(kruskal(*groups).pvalue))
        everything = np.concatenate(groups)
        between = sum(len(each) * (each.mean() - everything.mean()) ** 2 for each in groups)
        figures.append(float(np.sqrt(between / ((everything - everything.mean()) ** 2).sum())))
    return min(1.0, max(1, len(p_values) - 1) * min(p_values)), max(figures)


_LOW: Final = 4
_FEWEST_SUMS: Final = 320
_DIGITS: Final = 23
_SLACK: Final = 4


def low_bits_p_value(sums: Iterable[NDArray[np.int64]], *, bits: int, summands: int) -> tuple[float, float]:
    """χ² test of the lowest four bits of opened int64 sums of so many float32 numbers, in so many fractional ``bits``.

    Secret rounding makes them uniform. Without it a sum has as many trailing zeros as its smallest summand
    (``mpc.mask``). Equal sums count once.

    Gives the p-value, and the share of sums that end in four zeros: 1/16 where the bits say nothing. Raises
    ``DataError``: too few different sums are large enough for four bits.
    """
    least = summands * 2.0 ** (_LOW + _DIGITS - _SLACK + 1)  # so that the largest summand is moved by 2^4 or more
    distinct = np.unique(np.concatenate([np.unique(each) for each in sums]))
    chosen = distinct[np.abs(distinct.astype(np.float64)) >= least]
    if len(chosen) < _FEWEST_SUMS:
        raise DataError(
            f"sums: {len(chosen)} different ones are of {least * 2.0**-bits:.2g} or more; of {_FEWEST_SUMS} it can be "
            "told whether their low bits are uniform"
        )
    counts = np.bincount(chosen & ((1 << _LOW) - 1), minlength=1 << _LOW)
    return float(chisquare(counts).pvalue), float(counts[0] / len(chosen))


# The checks

_MOST_PASSES: Final = 16

Found = Iterator[Finding | Skipped]


_CHECKS: Final[dict[Check, Callable[[AuditContext, View], Found]]] = {}


def run_check(name: Check, case: AuditContext, party: PartyId) -> Found:
    """Run a check of one party's view, and yield its findings."""
    yield from _CHECKS[name](case, case.view(party))


def _check(name: Check) -> Callable[[Callable[[AuditContext, View], Found]], None]:
    """Decorator: register a check of one party's view."""
    return lambda check: _CHECKS.update({name: check})


def _check_of_each(
    name: Check, secret: Secret
) -> Callable[[Callable[[AuditContext, View, PartyId], Told | None]], None]:
    """Decorator: register a check of each other holder. None: nothing to test; ``DataError``: too little."""

    def enter(check: Callable[[AuditContext, View, PartyId], Told | None]) -> None:
        def of_each(case: AuditContext, view: View) -> Found:
            for target in view.others:
                try:
                    if told := check(case, view, target):
                        yield _finding(name, view, target, secret, told)
                except DataError as error:
                    yield _skipped_check(name, view, target, error)

        _CHECKS[name] = of_each

    return enter


def _finding(check: Check, view: View, target: PartyId, secret: Secret, told: Told) -> Finding:
    """Make a finding of a check's evidence, p-value and note; its level is set later, from the number of tests."""
    evidence, p_value, note = told
    return Finding(
        view.party,
        target,
        secret,
        check,
        evidence,
        permitted=False,
        measure="p-value",
        value=Interval(p_value, p_value, p_value, 0.95),
        verdict=Verdict(found=False, auc=0.5, against=0.5, p_value=p_value, level=0.0),
        note=note,
    )


def _skipped_check(check: Check, view: View, of: str, why: DataError) -> Skipped:
    return Skipped(view.party, f"{check} of {of}", str(why), check)


@_check("noise-level")
def _noise_level(case: AuditContext, view: View) -> Found:
    """Test the releases that a party received against the noise that their senders' ledgers count with."""
    try:
        for series in case.source.noisy(case, view.party):
            found = noise_level(series.releases)
            note = f"Of the noise {found.share:.3g} is there by the least of all estimates, {series.anew} anew."
            yield _finding("noise-level", view, series.holder, "noise", (series.words, found.p_value, note))
    except DataError as error:
        yield Skipped(view.party, "noise-level", str(error), "noise-level")


@_check_of_each("sampling-rate", "noise")
def _sampling_rate(case: AuditContext, view: View, name: PartyId) -> Told | None:
    """At the server: test whether a holder sampled the rows of its releases at the rate in its ledger."""
    return case.source.claim("sampling-rate", case, view, name) if view.party == SERVER else None


@_check("paid")
def _paid(case: AuditContext, view: View) -> Found:
    """Compare the distinct releases that a party received with those that each sender's ledger has paid for."""
    settings = case.settings

    def compared(holder: PartyId, releases: int, unpaid: int) -> Finding:
        words, note = f"{releases} releases of {holder}'s data, and its ledger", f"{max(0, unpaid)} were not paid for."
        return _finding("paid", view, holder, "noise", (words, float(unpaid <= 0), note))

    for other in view.others if view.party != SERVER else ():
        sent = [view.received(kind, other) for kind in (Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS)]
        different = sum(len({fingerprint(each.tensor()) for each in some}) for some in sent)
        if different:
            yield compared(other, different, different - _releases_paid(case, other).total())
    # Whoever opened predictions to the label holder has paid for their noise.
    if settings.noise.counts_votes or settings.noise.sums_records:
        for name in settings.duties.publishing if view.party == settings.data.label_party else ():
            opened = len({each.session for each in view.received(Kind.MASK_SHARE, name)})
            yield compared(name, opened, int(opened > 0 and not _releases_paid(case, name)["predictions"]))


def _releases_paid(case: AuditContext, name: PartyId) -> Counter[str]:
    """Channel → releases that a holder's ledger has; nothing where there is none."""
    found = Counter[str]()
    with suppress(DataError):
        for entry in case.ledger(name):
            found[entry["channel"]] += int(entry["count"])
    return found


@_check("low-bits")
def _low_bits(case: AuditContext, view: View) -> Found:
    """Test whether the low bits of opened sums are uniform, as they are where summands were rounded in secret."""
    for opened in case.source.sums(view) if case.settings.precision == "float32" else ():
        rows = opened.rows
        if not rows:
            continue
        pieces = rows.pieces if len(rows) <= _MOST_PASSES else rows.pieces[:: len(rows) // _MOST_PASSES]
        try:
            sums = [sum(each.tensor() for each in some).numpy() for some in pieces]  # type: ignore[union-attr]
            p_value, share = low_bits_p_value(sums, bits=opened.bits, summands=len(opened.holders))
        except DataError as error:
            yield _skipped_check("low-bits", view, opened.words, error)
            continue
        other = next(name for name in opened.holders if name != view.party)
        note = f"{share:.1%} of the sums end in four zero bits; of uniform ones 6.3 % do."
        yield _finding("low-bits", view, other, "nothing", (f"low bits of {opened.words}", p_value, note))


@_check_of_each("split", "labels")
def _split(case: AuditContext, view: View, other: PartyId) -> Told | None:
    """Test whether the training split, which is sent in the clear, depends on a holder's labels."""
    return case.source.claim("split", case, view, other)


@_check("row-order")
def _row_order(case: AuditContext, view: View) -> Found:
    """At the server: test whether the order of each holder's rows depends on their degrees or labels."""
    if view.party == SERVER and not case.settings.data.from_tables:
        yield Skipped(SERVER, "row-order", "the rows are in the order in which the data were given", "row-order")
        return
    for name in view.others if view.party == SERVER else ():
        graph = case.graph(name)
        degrees = np.bincount(graph.edge_index.numpy().reshape(-1), minlength=graph.num_nodes)
        try:
            p_value, strength = order_p_value(degrees, None if graph.labels is None else graph.labels.numpy())
        except DataError as error:
            yield _skipped_check("row-order", view, name, error)
            continue
        note = f"Of the places, {strength:.3g} is told by degrees or classes: 0 is nothing, 1 everything."
        yield _finding("row-order", view, name, "features", (f"the order of {name}'s rows", p_value, note))


@_check_of_each("orders", "edges")
def _orders(case: AuditContext, view: View, sender: PartyId) -> Told | None:
    """At a holder: test that the orders which another one sent are random, unlike each other and the true ones."""
    found = [] if view.party == SERVER else case.source.orders(view, sender, case.graph(sender))
    note = "Do they rise and fall at random, and are no two, told or true, alike?"
    told = sum(each.told for each in found)
    return (f"{told} orders from {sender}", orders_p_value(found), note) if told else None


@_check_of_each("one-byte", "nothing")
def _one_byte(case: AuditContext, view: View, sender: PartyId) -> Told | None:
    """At the server, and at a holder that deals: check that every READY message of a holder is the byte 1."""
    hears = view.party in (SERVER, view.settings.duties.dealing)
    heard = view.received(Kind.READY, sender) if hears else []
    others = sum(seen.shape != (1,) or int(seen.tensor()) != 1 for seen in heard)
    note = f"{others} of them are anything but the byte 1."
    return (f"{len(heard)} messages from {sender}", float(others == 0), note) if heard else None
