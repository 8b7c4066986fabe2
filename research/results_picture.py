"""The README's table and picture of results, from ``docs/figures/sealed-peers.json``.

``python -m research.results_picture`` writes both. A way's cell is its mean over seeds; of several ways that do the
same it is the best of these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from docs.pages import DOCS, figure_path
from research.sealed_peers import FIGURES, FRESH

README: Final = DOCS.parent / "README.md"
PICTURE: Final = figure_path("results.svg")
BEGIN: Final = "(docs/figures/results.svg)\n"
END: Final = "\n`make demo`"
SETS: Final = {
    "amazon": "Amazon fraud, AUC",
    "S-FFSD": "card fraud, AUC",
    "cora": "Cora",
    "citeseer": "CiteSeer",
    "pubmed": "PubMed",
    "facebook": "Facebook",
}
WAYS: Final[Mapping[str, Sequence[str]]] = {
    "the label holder alone": ("A alone", "A: boosting", "A: logistic"),
    "**sealed: nothing opened but predictions, and how well steps do**": ("sealed",),
    "vertical: sums of embeddings and gradients in the clear": ("vertical",),
    "all data pooled (not allowed in practice)": (
        "pooled: PyG",
        "pooled: boosting",
        "pooled: apart",
        "pooled: logistic",
    ),
}
_COLOURS: Final = ("#9aa4ad", "#1f6feb", "#8ab4f8", "#d0d7de")


def best(found: Mapping[str, Sequence[float]], name: str, ways: Sequence[str]) -> float | None:
    """The best way's mean on a set, over the seeds that are not fresh; None where none is measured."""
    means = []
    for way in ways:
        keys = [f"{name}/{way}/{seed}" for seed in range(FRESH) if f"{name}/{way}/{seed}" in found]
        means += [fmean(found[key][0] for key in keys)] if keys else []
    return max(means, default=None)


def table(found: Mapping[str, Sequence[float]]) -> list[str]:
    """Markdown: a row for each way."""
    lines = [f"| test nodes | {' | '.join(SETS.values())} |", f"|---|{'---:|' * len(SETS)}"]
    for words, ways in WAYS.items():
        values = [best(found, name, ways) for name in SETS]
        lines.append(f"| {words} | {' | '.join('–' if value is None else f'{value:.3f}' for value in values)} |")
    return lines


def draw(found: Mapping[str, Sequence[float]], path: Path) -> None:
    """Bars of each way on each set, as SVG."""
    import matplotlib as mpl  # noqa: PLC0415 - seconds to import
    from matplotlib.figure import Figure  # noqa: PLC0415 - likewise

    figure = Figure(figsize=(8, 2.6), layout="constrained")
    axes = figure.subplots()
    for place, (words, ways) in enumerate(WAYS.items()):
        values = [best(found, name, ways) or 0.0 for name in SETS]
        axes.bar(
            [column + 0.2 * (place - 1.5) for column in range(len(SETS))],
            values,
            width=0.19,
            color=_COLOURS[place],
            label=words.strip("*").partition(":")[0],
        )
    axes.set_xticks(range(len(SETS)), list(SETS.values()))
    axes.set_ylim(0.5, 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    with mpl.rc_context({"svg.hashsalt": "veilgraph"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Writes both."""
    found = json.loads(FIGURES.read_text(encoding="utf-8"))["test"]
    draw(found, PICTURE)
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n" + "\n".join(table(found)) + f"\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
