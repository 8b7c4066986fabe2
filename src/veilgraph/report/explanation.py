"""Why a node has its score, as far as its holder can tell at home: a regression of the scores on the holder's own data.

The holder was told the scores anyway, so nobody is asked and nothing leaks. For a class c the score of a node is its
log-odds, log p_c − log(1 − p_c), of the network itself. It is regressed, by ridge regression on nodes that were not
trained on, on the holder's columns, their means over one and two hops of its own relations, and degrees. A node's
score is then the mean score, plus what each of these moves it by, plus a rest: what other holders' data say, and what
no sum of the holder's own says. How much of the scores' variance such sums explain is measured on nodes left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.table import Table
from sklearn.linear_model import RidgeCV

from veilgraph.comparison.figures import Floats
from veilgraph.comparison.plain import FEW_COLUMNS, across_apart, around, most_varied
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import to_numbers
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.protocol.job import JobSettings
from veilgraph.report.tables import table
from veilgraph.runtime.session.preparation import ENCODING, kept_encoding
from veilgraph.runtime.store.predictions import Predictions, load_predictions, predicting_holder
from veilgraph.runtime.store.run_directory import PartyStore, Record, RunDirectory

SHOWN: Final = 10
_FEWEST: Final = 50  # scored nodes that a regression is fitted to
_MOST: Final = 20_000  # of which more would not change it
_FARTHEST: Final = 16.0  # of log-odds: a rounded probability says no more
_PENALTIES: Final = tuple(10.0**power for power in range(-1, 6))


@dataclass(frozen=True)
class Reason:
    """What one column, of the node or around it, or a number of links moves a score by, in log-odds.

    ``value``: how the node differs from the mean node, in standard deviations; of categories that of the likeliest.
    """

    about: str
    value: float
    moves: float


@dataclass(frozen=True)
class Explanation:
    """One node's score of one class: ``mean`` + Σ ``moves`` of all reasons + ``rest`` = ``score``, in log-odds.

    ``reasons``: those that move it most, first; ``others``: what all further ones move it by together. ``explained``:
    the share of the scores' variance, R², that reasons explain of nodes that the regression did not see; up to 1.
    ``trained``: the model was trained on the node, so that its score may be its label's.
    """

    node: str
    label: str
    score: float
    mean: float
    reasons: tuple[Reason, ...]
    others: float
    rest: float
    explained: float
    trained: bool

    def record(self) -> Record:
        """All of it, to be written as JSON."""
        return {**vars(self), "reasons": [vars(each) for each in self.reasons]}

    def table(self) -> Table:
        """A row for each reason, and what they add up to."""
        rows = [(each.about, f"{each.value:+.1f}", f"{each.moves:+.2f}") for each in self.reasons]
        rows += [("all else of this holder's own", "", f"{self.others:+.2f}")] if self.others else []
        rows += [("others' data, and what no such sum says", "", f"{self.rest:+.2f}")]
        caption = (
            f"The mean node has {self.mean:+.2f}. Own data explain {max(self.explained, 0):.0%} of how scores differ, "
            "on nodes left out. value: standard deviations from the mean."
            + " The model was trained on this node: its label may be all that the score says."
            * self.trained
        )
        title = f"{self.node}: log-odds of {self.label} are {self.score:+.2f}"
        return table(title, ("", ">value", ">moves the score by"), rows, caption=caption)


def explain(
    run: RunDirectory,
    nodes: Sequence[int] | None = None,
    *,
    ids: Sequence[str] | None = None,
    party: PartyId | None = None,
    shown: int = SHOWN,
) -> list[Explanation]:
    """Explain the newest scores of some nodes, by number or id, to the class that each is taken for.

    ``party``: the holder whose part is here; None: who has the run's predictions.

    Raises:
        ConfigError: no or wrong nodes, or the job opens no scores.
        RunError: the holder's part or predictions are missing or damaged.
        DataError: the predictions are of tables that have changed, or of too few nodes.
    """
    if not (nodes or ids):
        raise ConfigError("nodes: none is named; name nodes or ids whose scores are to be explained", key="nodes")
    party = party or predicting_holder(run)
    if not run.party_path(party).is_dir():
        raise RunError(f"{run.path} has no part of {party}; explain scores where that holder's part is", party=party)
    store = run.party(party)
    if not (store.path / "predictions.safetensors").is_file():
        raise ConfigError(f"party={party!r} was told no scores in this run; name a holder that was", key="party")
    found = load_predictions(store)
    scored = _scores(found, run.settings)
    asked = found.of_nodes(nodes or ()) if ids is None else found.of_ids(ids)
    own = _own_numbers(store, found, party, is_aligned=run.settings.is_aligned)
    places = {row: place for place, row in enumerate(found.nodes.tolist())}
    rows = [places[row] for row in asked.nodes.tolist()]
    fits = {label: _Fit.of(scored[:, label], own) for label in sorted(set(asked.classes.tolist()))}
    labels = asked.class_labels()
    return [
        fits[label].explain(row, name, labels[label], shown)
        for row, name, label in zip(rows, asked.names(), asked.classes.tolist(), strict=True)
    ]


def _scores(found: Predictions, job: JobSettings) -> Floats:
    """Log-odds of each class, by the network itself: float64 [n, C]."""
    likely = found.uncalibrated.double().numpy()
    if found.classes_alone or likely.shape[1] < 2:
        raise ConfigError(
            f"{job.name}: it opens no scores of classes, so there is nothing to explain; train with output: margins, "
            "if all holders accept that",
            key="output",
        )
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(likely) - np.log1p(-likely), -_FARTHEST, _FARTHEST))


@dataclass(frozen=True)
class _Numbers:
    """Standardised numbers of n scored nodes, float64 [n, K], what each is about, and bool [n]: was it trained on."""

    rows: Floats
    about: Sequence[str]
    trained: np.ndarray

    @property
    def fitted(self) -> np.ndarray:
        """Which nodes a regression is fitted to, at most ``_MOST``: int64."""
        others = np.flatnonzero(~self.trained)
        return np.sort(np.random.default_rng(0).permutation(others)[:_MOST])


def _own_numbers(store: PartyStore, found: Predictions, party: PartyId, *, is_aligned: bool) -> _Numbers:
    graph = load_party(store.graph_path)
    kept = store.ids()
    rows = found.nodes.numpy()
    are_theirs = int(rows.max()) < graph.common
    if are_theirs and kept is not None and found.compared is not None:
        are_theirs = [kept[row] for row in rows] == list(found.compared)
    if not are_theirs:
        raise DataError(
            f"{party}: the newest predictions are of tables that have changed since the training, and only those "
            "of the training are kept; train anew to explain new scores",
            party=party,
        )
    graph = graph if is_aligned else across_apart(graph)
    columns, places = most_varied(to_numbers(graph.features), FEW_COLUMNS)
    names = _column_names(store, graph)
    blocks = [(columns, [names[place] for place in places])]
    for each in around(graph, columns, (1, 2)) if graph.num_edges else ():
        links = "links" if each.relation is None or not graph.relations else graph.relations[each.relation].name
        links = f"{links} {each.way} it" if each.way else links
        if each.hops:
            blocks.append((each.rows, [f"{names[place]} of neighbours by {links}" for place in places]))
        else:
            blocks.append((np.log1p(each.rows), [f"how many {links}"]))
    numbers = np.concatenate([block for block, _ in blocks], axis=1)[rows]
    deviations = numbers.std(0)
    varied = deviations > 0
    numbers = (numbers[:, varied] - numbers[:, varied].mean(0)) / deviations[varied]
    about = [name for _, names in blocks for name in names]
    trained = np.zeros(graph.num_nodes, np.bool_) if graph.train_mask is None else graph.train_mask.numpy()
    found_numbers = _Numbers(numbers, [about[place] for place in np.flatnonzero(varied)], trained[rows])
    if len(found_numbers.fitted) < _FEWEST:
        raise DataError(
            f"{party}: {len(found_numbers.fitted)} scored nodes were not trained on, too few to explain a score by; "
            f"{_FEWEST} are needed",
            party=party,
        )
    return found_numbers


def _column_names(store: PartyStore, graph: PartyGraph) -> Sequence[str]:
    """[F] the table columns' names; without tables their numbers."""
    if (store.path / ENCODING).is_file():
        return kept_encoding(store).sources
    return [f"column {place}" for place in range(graph.num_features)]


@dataclass(frozen=True)
class _Fit:
    """A regression of one class's scores [n] on numbers: weights [K], their mean and the share that they explain."""

    numbers: _Numbers
    scores: Floats
    weights: Floats
    mean: float
    explained: float

    @classmethod
    def of(cls, scores: Floats, numbers: _Numbers) -> _Fit:
        """Fit to nodes that were not trained on; the penalty is that which predicts nodes left out best."""
        x, y = numbers.rows[numbers.fitted], scores[numbers.fitted]
        model = RidgeCV(alphas=_PENALTIES, scoring="r2").fit(x, y)
        explained = float(model.best_score_) if y.std() > 0 else 0.0
        return cls(numbers, scores, model.coef_, float(model.intercept_), explained)

    def explain(self, row: int, node: str, label: str, shown: int) -> Explanation:
        """Explain the score of the node in a row."""
        reasons = sorted(self._reasons(row), key=lambda each: -abs(each.moves))
        others = sum(each.moves for each in reasons[shown:])
        score, moved = float(self.scores[row]), sum(each.moves for each in reasons)
        rest = score - self.mean - moved
        first, trained = tuple(reasons[:shown]), bool(self.numbers.trained[row])
        return Explanation(node, label, score, self.mean, first, others, rest, self.explained, trained)

    def _reasons(self, row: int) -> Iterator[Reason]:
        """One for each name, of which a column with categories, or with means over one and two hops, has several."""
        values, moves = self.numbers.rows[row], self.numbers.rows[row] * self.weights
        of_name: dict[str, list[int]] = {}
        for place, name in enumerate(self.numbers.about):
            of_name.setdefault(name, []).append(place)
        for name, places in of_name.items():
            most = max(places, key=lambda place: abs(moves[place]))
            yield Reason(name, float(values[most]), float(moves[places].sum()))
