"""How a model did once outcomes are known, month by month, and whether another is better on the same nodes.

All of it is at home: predictions that this holder was told, and its own table of what came of those nodes. Nodes that a
model was trained or chosen on say nothing of it, and are left out of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from veilgraph.comparison.figures import Estimate, Scored, estimates
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.party import load_party
from veilgraph.report.tables import NOTHING, table
from veilgraph.runtime.store.predictions import load_predictions, predicting_holder
from veilgraph.runtime.store.run_directory import Record, RunDirectory
from veilgraph.tables.source import MISSING, OTHER, stream

ALL: Final = "all"
"""The period of all outcomes together."""
_ALARMS: Final = 0.05
_FEWEST: Final = 2  # outcomes of each of two classes that figures are computed from

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class OutcomeTable:
    """Where outcomes are: a CSV or Parquet ``file`` with columns for the id, the label and, for months, a date."""

    file: Path
    id: str
    label: str
    date: str | None = None


@dataclass(frozen=True)
class Watched:
    """A model in one period: ``nodes`` with an outcome, how many were of the ``positive`` class, or taken rightly.

    ``foreseen``: how many the calibrated probabilities foresaw of ``found``, with the deviation of that number if they
    are right. ``figures``: AUC and, of two classes, PR-AUC and recall in the top 5 %, with 95 % intervals.
    """

    run: Path
    period: str
    nodes: int
    found: int
    foreseen: float
    deviation: float
    figures: dict[str, Estimate]

    @property
    def is_off(self) -> bool:
        """Whether what was found is three deviations or more from what was foreseen."""
        return abs(self.found - self.foreseen) > 3 * self.deviation

    def record(self) -> Record:
        """All of it, to be written as JSON."""
        told = {name: [one.value, one.low, one.high] for name, one in self.figures.items()}
        return {**vars(self), "run": str(self.run), "figures": told, "off": self.is_off}


@dataclass(frozen=True)
class Watch:
    """Models over periods, the champion's first; ``gain``: each challenger's AUC above the champion's, in all."""

    watched: tuple[Watched, ...]
    gains: dict[Path, Estimate]
    unknown: int
    seen_before: int

    @property
    def better(self) -> list[Path]:
        """Challengers that are above the champion by more than chance."""
        return [run for run, gain in self.gains.items() if gain.low > 0]

    def alarms(self, least: float | None = None) -> list[str]:
        """What of the champion's newest period asks for somebody: its numbers foreseen, or an AUC below ``least``."""
        champion = self.watched[0].run
        newest = [each for each in self.watched if each.run == champion and each.period != ALL] or self.watched[:1]
        last, told = newest[-1], list[str]()
        if last.is_off:
            told.append(
                f"{champion}: of {last.period} {last.found:,} were found where {last.foreseen:.1f} ± "
                f"{last.deviation:.1f} were foreseen: its probabilities are off; train anew"
            )
        auc = last.figures["auc"]
        if least is not None and auc.high < least:
            told.append(
                f"{champion}: its AUC of {last.period} is {auc.value:.3f} ({auc.low:.3f} to {auc.high:.3f}), below "
                f"{least:g} by more than chance: train anew"
            )
        return told

    def table(self) -> Table:
        """A row for each period and model."""
        rows = []
        for each in self.watched:
            figures = [_figure_text(each.figures.get(name)) for name in _SHOWN]
            foreseen = f"{each.foreseen:.1f} ± {each.deviation:.1f}" + " !" * each.is_off
            rows.append((each.period, str(each.run), f"{each.nodes:,}", f"{each.found:,}", foreseen, *figures))
        columns = ("period", "model", ">nodes", ">found", ">foreseen", *(f">{name}" for name in _SHOWN.values()))
        caption = "found: of the second class, or rightly taken. ! : three deviations or more from what was foreseen."
        return table("Outcomes", columns, rows, caption=caption)

    def sentences(self) -> list[str]:
        """What was left out, and the verdict on each challenger."""
        told = [f"{self.seen_before:,} outcomes are of nodes that a model was trained or chosen on: left out"]
        told += [f"{self.unknown:,} outcomes are of nodes without a prediction of every model: left out"]
        told = [line for line, count in zip(told, (self.seen_before, self.unknown), strict=True) if count]
        champion = self.watched[0].run
        for run, gain in self.gains.items():
            how = "more than chance: promote it" if gain.low > 0 else "which may be chance: keep the champion"
            told.append(f"{run}: AUC {gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f}) above {champion}, {how}")
        return told


_SHOWN: Final = {"auc": "AUC", "pr_auc": "PR-AUC", "recall": "recall at 5 %"}


def _figure_text(one: Estimate | None) -> str:
    return NOTHING if one is None or np.isnan(one.value) else f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"


def watch(runs: Sequence[Path], outcomes: OutcomeTable, party: PartyId | None = None) -> Watch:
    """Hold the newest predictions of runs against outcomes; the first run is the champion's.

    Raises:
        ConfigError: a run's predictions open no probabilities or have no ids, or runs have other classes.
        RunError: a run or its predictions are not here.
        DataError: the outcomes break a rule, or too few are of nodes that all models predict.
    """
    models = [_Model.of(path, party) for path in runs]
    classes = models[0].classes
    if other := next((model for model in models if model.classes != classes), None):
        raise ConfigError(
            f"{other.path}: its classes are {', '.join(other.classes)}, and the champion's {', '.join(classes)}; "
            "compare models of the same classes",
            key="runs",
        )
    ids, labels, periods = _read(outcomes, classes)
    predicted = np.array([all(text in model.rows for model in models) for text in ids], np.bool_)
    before = np.array([any(text in model.seen for model in models) for text in ids], np.bool_) & predicted
    kept = predicted & ~before
    counts = np.bincount(labels[kept], minlength=len(classes))
    if (counts >= _FEWEST).sum() < 2:
        raise DataError(
            f"{outcomes.file}: of {len(ids):,} outcomes {int(kept.sum()):,} are of nodes that were predicted and not "
            f"trained on, and figures need {_FEWEST} of each of two classes; give more outcomes"
        )
    known = [text for text, there in zip(ids, kept, strict=True) if there]
    watched, whole = list[Watched](), dict[Path, dict[str, Estimate]]()
    for period in [*sorted(set(periods[kept])), *([ALL] if outcomes.date else [])]:
        rows = np.flatnonzero((periods[kept] == period) | (period == ALL))
        for model in models:
            one = model.judged([known[row] for row in rows], labels[kept][rows], period)
            watched.append(one)
            whole[model.path] = one.figures
    champion = whole[models[0].path]["auc"]
    gains = {model.path: whole[model.path]["auc"].above(champion) for model in models[1:]}
    return Watch(tuple(watched), gains, int((~predicted).sum()), int(before.sum()))


def _read(given: OutcomeTable, classes: Sequence[str]) -> tuple[list[str], Labels, NDArray[np.str_]]:
    """Ids, labels [n] and months "2026-01" [n] of all outcomes that are known; without dates all are of ``ALL``."""
    ids, labels, periods = list[str](), list[Labels](), list[NDArray[np.str_]]()
    columns = [given.id, given.label, *([] if given.date is None else [given.date])]
    for batch in stream(given.file, columns):
        codes = batch[1].codes(classes)
        batch[1].refuse_any(
            codes == OTHER,
            f"is not one of the model's classes, {', '.join(classes)}",
            "mend it, or name another column",
        )
        known = codes != MISSING
        ids += batch[0].filter(known).ids().to_pylist()
        labels.append(codes[known].astype(np.int64))
        months = np.full(int(known.sum()), ALL, np.dtype("U8"))
        if given.date is not None:
            times = batch[2].filter(known).times()
            batch[2].filter(known).refuse_any(np.isnat(times), "is no date", "write it as 2026-01-31")
            months = times.astype("datetime64[M]").astype("U8")
        periods.append(months)
    if repeated := [text for text, times in Counter(ids).items() if times > 1]:
        raise DataError(
            f"{given.file}: column {given.id!r}: {repeated[0]!r} is there more than once, as {len(repeated):,} ids "
            "are; give one outcome of each",
            key=given.id,
        )
    none = np.zeros(0, np.int64), np.zeros(0, np.dtype("U8"))
    return ids, np.concatenate([none[0], *labels]), np.concatenate([none[1], *periods])


@dataclass(frozen=True)
class _Model:
    """A run's newest predictions: id → row, calibrated probabilities [n, C], and ids that it was made with."""

    path: Path
    classes: tuple[str, ...]
    rows: dict[str, int]
    likely: NDArray[np.float64]
    seen: frozenset[str]

    @classmethod
    def of(cls, path: Path, party: PartyId | None) -> _Model:
        run = RunDirectory.open(path)
        store = run.party(party or predicting_holder(run))
        found = load_predictions(store)
        if found.classes_alone or found.probabilities.shape[1] < 2 or found.ids is None:
            raise ConfigError(
                f"{path}: outcomes are held against probabilities of nodes with ids, and it has none; give a run that "
                "was trained from tables, with output: margins in sealed jobs",
                key="runs",
            )
        graph, kept, written = load_party(store.graph_path), store.ids() or [], store.written_ids()
        masks = [mask for mask in (graph.train_mask, graph.val_mask) if mask is not None]
        seen = {row for mask in masks for row in mask.nonzero()[:, 0].tolist()}
        names = {text for ids in (kept, written) for row, text in enumerate(ids) if row in seen}
        return cls(
            path, tuple(found.class_labels()), found.rows(), found.probabilities.double().numpy(), frozenset(names)
        )

    def judged(self, ids: Sequence[str], labels: Labels, period: str) -> Watched:
        """This model on some nodes."""
        likely = self.likely[[self.rows[text] for text in ids]]
        binary = len(self.classes) == 2
        chances = likely[:, 1] if binary else likely.max(axis=1)
        found = int((labels == 1).sum() if binary else (likely.argmax(axis=1) == labels).sum())
        deviation = float(np.sqrt((chances * (1 - chances)).sum()))
        figures = dict(estimates([Scored(labels, likely)], _ALARMS))
        return Watched(self.path, period, len(ids), found, float(chances.sum()), deviation, figures)
