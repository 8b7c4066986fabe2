"""Goals of speed beside what was measured, and what it cannot fall below: ``python -m benchmarks.goals``.

Benchmarks ``keep`` their figures in ``docs/figures/speed.json``, by type of processor. This writes the first section of
``docs/reference/benchmarks.md`` and a picture from them. With ``--small`` it measures what needs no benchmark of its
own first.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch

from docs.pages import DOCS, figure_path, find_page

HISTORY: Final = figure_path("speed.json")
PICTURE: Final = figure_path("speed.svg")
BEGIN: Final = "## Goals\n"
END: Final = "\n## A training step\n"
_DIGITS: Final = """
import sys
from veilgraph.runtime.launch.jobs import train
from veilgraph.samples.shipped import shipped_job, with_overrides
train(with_overrides(shipped_job("digits"), {"train.epochs": 3}), sys.argv[1] + "/run")
"""


@dataclass(frozen=True)
class Goal:
    """What is to be reached.

    Attributes:
        what: the figure, in words.
        most: it is reached at this or less.
        unit: of both, behind the number.
        made_by: the command that measures it.
        between: what stands between the figure and its floor.
        floor: what it cannot fall below, in this design; None: see ``Kept``.
    """

    what: str
    most: float
    unit: str
    made_by: str
    between: str
    floor: float | None = None


_PAIR: Final = "benchmarks.sealed --trust"
_ALIGNMENT: Final = "benchmarks.alignment"
_SMALL: Final = "benchmarks.goals --small"
_PRODUCT: Final = "secure product / SPU or CrypTen"
GOALS: Final[Mapping[str, Goal]] = {
    "step cora": Goal("vertical step / pooled PyG, Cora", 3, "×", "benchmarks.step", "masks, rounding, messages", 2.3),
    "step pubmed": Goal("the same, PubMed", 2, "×", "benchmarks.step", "sparse products, masks", 2.1),
    **{
        f"product {shape}": Goal(f"{_PRODUCT}, {shape}", 0.05, "×", "benchmarks.peers", between)
        for shape, between in (("pubmed", "sparse products"), ("arxiv", "sums of large matrices"))
    },
    "alignment 1000000": Goal("10⁶ ids, three holders", 60, "s", _ALIGNMENT, "second factors"),
    "alignment 10000000": Goal("10⁷ ids, three holders", 900, "s", _ALIGNMENT, ""),
    "alignment 10000:10000000": Goal("10⁴ ids against 10⁷", 60, "s", _ALIGNMENT, "hashes"),
    "slow cora": Goal(
        "sealed Cora at 40 ms, 100 Mbit/s", 30, "s", "benchmarks.sealed", "rounds, and what holders send"
    ),
    "nobody linear": Goal("Cora, `trust: nobody`, `linear`, of a core", 60, "s", _PAIR, ""),
    "nobody mlp": Goal("the same, `mlp`", 60, "s", _PAIR, "comparisons, sines"),
    "sealed 1000000": Goal("sealed job of 10⁶ nodes", 300, "s", "benchmarks.sealed_scale", ""),
    "growth": Goal("vertical epoch a node, 5·10⁶ nodes / 10⁴", 1.5, "×", "benchmarks.scale", "20 rows a target, not 1"),
    "import": Goal("`veilgraph.fit`, imported, of a core", 1.7, "s", _SMALL, "own modules"),
    "digits": Goal("digits, three epochs", 3, "s", _SMALL, ""),
}


@dataclass(frozen=True)
class Kept:
    """A measured figure: of which goal, its value and floor, when, at which commit, on which processor."""

    goal: str
    value: float
    floor: float | None
    day: str
    commit: str
    processor: str


def keep(goal: str, value: float, floor: float | None = None) -> None:
    """Add a figure, in its goal's unit, to the history; without a goal of that name do nothing."""
    if goal not in GOALS:
        return
    found = Kept(goal, value, floor, datetime.now(UTC).date().isoformat(), _commit(), processor())
    HISTORY.write_text(json.dumps([asdict(each) for each in [*history(), found]], indent=1) + "\n", encoding="utf-8")


def history() -> list[Kept]:
    """All figures, oldest first."""
    return [Kept(**each) for each in json.loads(HISTORY.read_text(encoding="utf-8"))] if HISTORY.exists() else []


def processor() -> str:
    """This machine's processor: its maker's name, family and model, and what PyTorch uses of it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text("utf-8").splitlines() if told.exists() else [f"model name: {platform.processor()}"]
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    kind = " ".join(filter(None, (said.get("model name"), said.get("cpu family"), said.get("model"))))
    return f"{kind or 'unknown'}, {torch.backends.cpu.get_cpu_capability()}"


def _commit() -> str:
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, cwd=DOCS, capture_output=True, text=True, check=False).stdout.strip()


def section(found: list[Kept]) -> list[str]:
    """A table for every processor, in Markdown: the newest figure of each goal there."""
    lines = []
    for kind in sorted({each.processor for each in found}):
        newest = {each.goal: each for each in found if each.processor == kind}
        lines += [
            f"On {kind}, two cores; the last column is run by `python -m`. A step's floor is its twin in the clear "
            "with the products that hide features, a product's its messages over sockets:",
            "",
            "| goal | at most | figure | floor | what stands between | |",
            "|---|---|---|---|---|---|",
            *(_row(goal, newest.get(name)) for name, goal in GOALS.items()),
            "",
        ]
    return [*lines, f"![Figures over goals](../figures/{PICTURE.name})", ""]


def _row(goal: Goal, kept: Kept | None) -> str:
    def cell(value: float | None) -> str:
        return "–" if value is None else f"{value:.3g} {goal.unit}"

    figure, floor = (kept.value, kept.floor or goal.floor) if kept else (None, goal.floor)
    cells = (goal.what, cell(goal.most), cell(figure), cell(floor), goal.between, f"`{goal.made_by}`")
    return f"| {' | '.join(cells)} |"


def draw(found: list[Kept], path: Path) -> None:
    """Figures over their goals, by day: a line for each goal."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - seconds to import

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for name, goal in GOALS.items():
        points = [(each.day, each.value / goal.most) for each in found if each.goal == name]
        days, ratios = zip(*points, strict=True) if points else ((), ())
        axes.semilogy(days, ratios, marker="o", label=goal.what)
    axes.axhline(1, linestyle=":", color="grey")
    axes.set_ylabel("figure / goal")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    figure.savefig(path)


def write() -> None:
    """Write the section and the picture."""
    page, found = find_page("benchmarks.md"), history()
    before, rest = page.read_text(encoding="utf-8").split(BEGIN, 1)
    _, after = rest.split(END, 1)
    page.write_text("".join([before, BEGIN, "\n", "\n".join(section(found)), END, after]), encoding="utf-8")
    draw(found, PICTURE)


def _small() -> None:
    keep("import", _core_seconds("import veilgraph; veilgraph.fit"), _core_seconds("import torch"))
    started = time.perf_counter()
    _run(_DIGITS)
    keep("digits", time.perf_counter() - started)


def _run(code: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", code, folder], check=True, stdout=subprocess.DEVNULL)


def _core_seconds(code: str) -> float:
    """Seconds of a core of a fresh process, the least of three."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _run(code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def main() -> None:
    """Measure what is small if asked, then write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goals", description=__doc__)
    parser.add_argument("--small", action="store_true", help="measure the import and the digits first")
    if parser.parse_args().small:
        _small()
    write()


if __name__ == "__main__":
    main()
