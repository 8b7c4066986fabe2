"""Tables of what ``research.apge`` measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from scipy.stats import t as student

Line = dict[str, Any]

COLUMNS: Final[dict[str, Callable[[Line], float]]] = {
    "strongest attack": lambda line: float(line["attack"]["advantage"]["value"]),
    "useful attribute": lambda line: float(line["useful"]["accuracy"]["value"]),
    "edges, AUC": lambda line: float(line["links"]["value"]),
}


def tables(lines: Sequence[Line], methods: Sequence[str]) -> str:
    """A table of each world, of changes against plain, and of attackers that know more."""
    found = list[str]()
    for world in dict.fromkeys(line["world"] for line in lines):
        of = {
            method: sorted(
                (line for line in lines if line["world"] == world and line["method"] == method),
                key=lambda line: int(line["seed"]),
            )
            for method in methods
        }
        found += [f"**{world}**", "", *_figures(of), "", *_stronger(of), ""]
    return "\n".join(found)


def _figures(of: dict[str, list[Line]]) -> Iterator[str]:
    yield f"| embeddings | {' | '.join(COLUMNS)} | attack, of plain | useful, less plain | edges, less plain |"
    yield "|---" * (len(COLUMNS) + 4) + "|"
    plain = {name: _values(of["plain"], each) for name, each in COLUMNS.items()}
    for method, lines in of.items():
        if not lines:
            continue
        values = {name: _values(lines, each) for name, each in COLUMNS.items()}
        cells = [interval(each) for each in values.values()]
        attack, useful, edges = values
        count = min(len(values[attack]), len(plain[attack]))
        changes = [
            interval(values[attack][:count] / plain[attack][:count], "{:.0%}"),
            *(interval(100 * (values[name][:count] - plain[name][:count]), "{:+.1f}") for name in (useful, edges)),
        ]
        yield f"| {method} | {' | '.join(cells)} | {' | '.join(changes if method != 'plain' else ['', '', ''])} |"


def _stronger(of: dict[str, list[Line]]) -> Iterator[str]:
    shown = {method: lines for method, lines in of.items() if lines and "stronger" in lines[0]}
    if not shown:
        return
    names = list(next(iter(shown.values()))[0]["stronger"])
    yield f"| attacker | {' | '.join(shown)} |"
    yield "|---" * (len(shown) + 1) + "|"
    for name in names:
        cells = [interval(np.array([line["stronger"][name] for line in lines])) for lines in shown.values()]
        yield f"| {name} | {' | '.join(cells)} |"


def _values(lines: Sequence[Line], of: Callable[[Line], float]) -> np.ndarray:
    return np.array([of(line) for line in lines])


def interval(values: np.ndarray, form: str = "{:.3f}") -> str:
    """The mean over seeds with its 95 % interval by Student's t; the mean alone of one."""
    mean = float(values.mean())
    if len(values) < 2:
        return form.format(mean)
    half = float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)
    return f"{form.format(mean)} [{form.format(mean - half)}, {form.format(mean + half)}]"
