"""What a comparison of a job found: a table, and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rich.table import Table

from veilgraph.comparison.figures import Estimate
from veilgraph.comparison.study import Study
from veilgraph.comparison.ways import POOLED
from veilgraph.protocol.figures import leak_words

TITLES: Final = {"auc": "AUC", "pr_auc": "PR-AUC", "recall": "recall", "f1": "F1", "accuracy": "accuracy"}


def study_table(study: Study) -> Table:
    """Every way with its figures, and how far its AUC is above that of the label holder alone."""
    seeds = len(study.seeds)
    table = Table(
        title=f"Is it worth it? {sum(study.tested):,} test nodes, {seeds} seed{'s' * (seeds > 1)}",
        title_justify="left",
        caption=_caption(study),
        caption_justify="left",
    )
    table.add_column("way", no_wrap=True)
    for name in shown_figures(study.lines[0].figures):
        table.add_column(TITLES[name], justify="right", no_wrap=True, min_width=len("0.000"))
    table.add_column("AUC above alone", justify="right", no_wrap=True)
    for line in study.lines:
        gain = "" if line.gain is None else _signed(line.gain["auc"])
        values = (f"{line.figures[name].value:.3f}" for name in shown_figures(line.figures))
        table.add_row(line.name, *values, gain, style="bold" if line is study.judged else None)
    return table


def shown_figures(names: Iterable[str]) -> list[str]:
    """Without the accuracy where nodes of two classes are ranked: where one is rare it is high for saying the other."""
    found = list(names)
    return [name for name in found if name != "accuracy" or "pr_auc" not in found]


def row_words(name: str, found: Mapping[str, float]) -> str:
    """One way's figures in a line, as soon as they are known."""
    return f"{name}: " + ", ".join(f"{TITLES[each]} {found[each]:.3f}" for each in shown_figures(found))


def verdict(study: Study) -> str:
    """In a sentence, whether the job finds more than its label holder's best way by itself; at home what that is."""
    home, gain = study.at_home(), study.over_home()
    best = f"{home.name!r}, AUC {home.figures['auc'].value:.3f}"
    if gain is None:
        return f"the best at home is {best}"
    return f"{study.job.paradigm}: AUC {_signed(gain)} above the best at home ({best}), {known(gain.low, gain.high)}"


def above_pooled(paradigm: str, aucs: Mapping[str, float | None]) -> str:
    """Why a federation is above its pooled reference, in a sentence; empty where it is not.

    Args:
        paradigm: the job's.
        aucs: way → its test AUC, None where it is undefined.
    """
    job, pooled = aucs.get(paradigm), aucs.get(POOLED)
    if job is None or pooled is None or not job > pooled:
        return ""
    return (
        f"{paradigm} (AUC {job:.3f}) is above pooled ({pooled:.3f}): pooled is the better of two models that were "
        "tried on all data, not the best there is, so what links and columns bring is measured too low here."
    )


def leak(study: Study) -> str:
    """The ways whose test AUC is a likely leak, in a sentence; empty where there is none."""
    return leak_words({line.name: line.figures["auc"].value for line in study.lines})


def known(low: float, high: float) -> str:
    """What the interval of a difference says of it."""
    if low > 0:
        return "more than chance"
    return "less, by more than chance" if high < 0 else "which may be chance: take more seeds or more test nodes"


def _caption(study: Study) -> str:
    said = ["In brackets: 95 % interval over test nodes and seeds; F1 is of all classes alike."]
    if "recall" in study.lines[0].figures:
        share = f"{100 * study.alarms:g} %"
        said.append(f"Recall: of {study.recall_of}, among the {share} that are likeliest of it.")
    if study.judged is not None:
        said.append("Pooled, or with lent labels: for simulations alone, as nobody may have these.")
        said.append("Sealed jobs open probabilities here, so that nodes can be ranked.")
    return " ".join(said)


def _signed(one: Estimate) -> str:
    low, high = (f"{end:+.2f}".replace("0.", ".", 1) for end in (one.low, one.high))
    return f"{one.value:+.3f} ({low}…{high})"
