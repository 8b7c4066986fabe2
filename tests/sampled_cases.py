"""Which cases of a test ``make test`` plays: ``@pytest.mark.cases(3)`` keeps three, and ``make nightly`` plays all."""

from collections import defaultdict
from hashlib import sha256

import pytest


def cases_left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cases beyond the number that their test's mark names, of those that are not left to nightly anyway.

    Each case that is kept has as many values of parameters as possible that no earlier one has. Ties go by a hash of
    the name, so that the choice is the same in every run and follows no order of the parameters.
    """
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        later = any(mark.args[:1] == (True,) for mark in item.iter_markers("skipif"))
        if isinstance(item, pytest.Function) and item.get_closest_marker("cases") is not None and not later:
            tests[item.nodeid.partition("[")[0]].append(item)
    return {item for cases in tests.values() for item in set(cases) - _chosen(cases)}


def _chosen(cases: list[pytest.Function]) -> set[pytest.Function]:
    mark = cases[0].get_closest_marker("cases")
    assert mark is not None
    (most,) = mark.args
    left = sorted(cases, key=lambda item: sha256(item.nodeid.encode()).digest())
    chosen: set[pytest.Function] = set()
    seen: set[tuple[str, int]] = set()
    while left and len(chosen) < most:
        best = max(left, key=lambda item: len(_values(item) - seen))
        left.remove(best)
        chosen.add(best)
        seen |= _values(best)
    return chosen


def _values(case: pytest.Function) -> set[tuple[str, int]]:
    return {(name, id(value)) for name, value in case.callspec.params.items()}  # a list's values come again as they are
