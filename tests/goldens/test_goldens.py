"""The goldens of this tree are those that are kept: one case always, all of them in ``make nightly``.

Bits depend on the processor and the libraries. Where these are others than the file's, norms, scores, shapes, traffic
and disclosures are compared, and the test says so by being skipped after that. ``make goldens BASE=…`` compares to the
bit anywhere.
"""

import pytest

from tests import nightly
from tests.goldens.cases import CASES
from tests.goldens.comparing import NORMS, differences, shown
from tests.goldens.making import ROOT, Goldens, case_of, make, read_goldens

_FAST = [name for name, case in CASES.items() if case.fast]
_SLOW = [name for name, case in CASES.items() if not case.fast]


def check(name: str, made: Goldens) -> None:
    kept = read_goldens()
    exact = kept["environment"] == made["environment"]
    found = differences(case_of(kept, name), case_of(made, name), exact=exact)
    how = "" if exact else f"\n(compared but for rounding: the bits are those of {kept['environment']})"
    assert not found, shown(name, found) + how
    if not exact:
        pytest.skip(f"the same within {NORMS:g} of every norm; bits are those of {kept['environment']}")


@pytest.fixture(scope="module")
def slow() -> Goldens:
    return make(ROOT, _SLOW)


@pytest.mark.parametrize("name", _FAST)
def test_a_golden(name: str) -> None:
    check(name, make(ROOT, [name]))


@nightly
@pytest.mark.parametrize("name", _SLOW)
def test_goldens(name: str, slow: Goldens) -> None:
    check(name, slow)


def test_every_case_is_kept_and_no_other() -> None:
    assert read_goldens()["cases"].keys() == CASES.keys()
