"""What differs between goldens: to the bit, or but for what another processor changes."""

import math
from collections.abc import Iterator
from typing import Any, Final

from tests.goldens.reading import Pinned

NORMS: Final = 1e-4
"""Relative, of a tensor's norm on another processor."""
SCORES: Final = 0.02
"""Of an accuracy, AUC or F1 there."""
_LEDGERS: Final = 1e-9
_OF_BITS: Final = frozenset({"bits", "answers"})
"""Sections that are compared on the same processor alone."""
_EPOCHS: Final = frozenset({"best_epoch", "changed"})
"""Scores that are counts, and jump."""
_SHOWN: Final = 12


def differences(golden: Pinned, made: Pinned, *, exact: bool) -> list[str]:
    """One line for everything that is not the same.

    Args:
        golden: what is pinned of one case.
        made: the same of another making.
        exact: both were made on the same processor with the same libraries, so that every bit counts. Otherwise
            weights are compared by shape and norm, scores and ledgers as numbers, findings by their names.
    """
    if not golden or not made:
        return ["there is nothing to compare with" if made else "it was not made"]
    found: list[str] = []
    for section in sorted(golden.keys() | made.keys()):
        if exact or section not in _OF_BITS:
            found += [f"{section}: {line}" for line in _section(section, golden.get(section), made.get(section), exact)]
    return found


def shown(name: str, found: list[str]) -> str:
    """The differences of a case as text, the first of many."""
    more = [f"… and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "\n  ".join([f"{name}: {len(found)} differences", *found[:_SHOWN], *more])


def _section(section: str, before: Any, after: Any, exact: bool) -> Iterator[str]:
    if isinstance(before, list) and isinstance(after, list):
        yield from (f"- {row}" for row in before if row not in after)
        yield from (f"+ {row}" for row in after if row not in before)
        if sorted(before) != sorted(after) and set(before) == set(after):
            yield f"the same rows, but {len(before)} and {len(after)} of them"
        return
    if not isinstance(before, dict) or not isinstance(after, dict):
        if before != after:
            yield f"{before} became {after}"
        return
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after:
            yield f"{'-' if key in before else '+'} {key}"
        elif before[key] != after[key] and (exact or not _near(section, key, before[key], after[key])):
            yield f"{key}: {before[key]} became {after[key]}"


def _near(section: str, key: str, before: Any, after: Any) -> bool:
    """Whether values are the same but for what a processor's rounding may change."""
    if section == "weights":
        return bool(before[0] == after[0]) and math.isclose(before[1], after[1], rel_tol=NORMS, abs_tol=1e-7)
    if section == "findings":
        return True
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_near(section, each, before[each], after[each]) for each in before)
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return bool(before == after)
    if section == "scores":
        return key in _EPOCHS or math.isclose(before, after, rel_tol=0, abs_tol=SCORES)
    return section == "ledgers" and math.isclose(before, after, rel_tol=_LEDGERS)
