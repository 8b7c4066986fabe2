"""What an ε buys banks with nodes of their own and edges between them: docs/explanation/union.md.

``python -m research.union_privacy --seeds 10`` measures what docs/figures/union-privacy.json lacks, and ``--write``
puts the table into the page. Each bank knows its own nodes and edges, and of edges across also which node of which bank
the other end is. A node's features and label are protected; that it is there, in which split, and its edges across are
known to both ends' banks.

Ways to use the others' nodes, each with all of ε:

- ``sums``: one noisy sum of rows for each class, noise made jointly; ridge and own edges at home (``averaging``).
- ``labels``: every training node's label by randomised response, drawn once; a neighbour's bank counts them. Which
  nodes are trained on is known then. ``labels, all answer``: of two classes, and whoever is not trained on says no.
- ``opinions``: ``sums``, and of every node that is not trained on the nearest of the noisy class means by randomised
  response, drawn once. Sums are of training nodes alone, so no node is in both.

- ``job, labels`` and ``job, labels, all answer``: whole jobs of ``averaging.symbols`` by the protocol; their control is
  its plaintext twin, for a job may not have so small an ε.

What is found is added to the bank's own log-probabilities by a regression on its validation nodes. It is left
out where cross-validation has a lower figure with it. Figures are test accuracies over all banks' nodes; of payments
means over banks of AUC and of average precision. Columns of payments have mean 0 and variance 1 without noise, by
figures that are taken as public.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import t as student
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from veilgraph_averaging.at_home import AtHomeSettings, ClassSums, at_home
from veilgraph_averaging.network import LinearNetwork, Own
from veilgraph_averaging.private.event import Joint
from veilgraph_averaging.private.plan import sampled_plan
from veilgraph_averaging.private.settings import SampledSettings, SharedNoiseSettings
from veilgraph_averaging.settings import averaging
from veilgraph_averaging.symbols.twin import PlainSymbols

from docs.pages import figure_path, find_page
from research.figures import Figures
from research.unions import together
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.graph.features import scale_features, to_numbers
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.stacking import Regression, RegressionInputs
from veilgraph.paradigms.union.settings import UnionJob, union
from veilgraph.paradigms.union.twin import alone, places_by_id
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.settings import LabelPrivacySettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.protocol.releases import labels_perturbed
from veilgraph.runtime.launch.jobs import train

FIGURES: Final = figure_path("union-privacy.json")
PAGE: Final = find_page("union.md")
BEGIN: Final = "### What an ε would buy\n"
END: Final = "\n- **How.**"
DELTA: Final = 1e-5
CONTROL: Final = 1e-4
EPSILONS: Final = (CONTROL, 0.5, 1.0, 2.0, 4.0, 8.0, math.inf)
UNIT: Final = "node"
PRECISION: Final = "node, average precision"
SUMS: Final = "sums"
LABELS: Final = "labels"
HIDDEN: Final = "labels, all answer"
OPINIONS: Final = "opinions"
JOBS: Final = {f"job, {LABELS}": "trained", f"job, {HIDDEN}": "all"}
"""Way → ``averaging.symbols.answers`` of whole jobs."""
JOB_EPSILONS: Final = (CONTROL, 0.5, 1.0, 2.0, 4.0)
JOB_SEEDS: Final = 6
ALONE: Final = "alone"
UNION: Final = "union"
_PULL: Final = 0.03  # of the regression's weights towards the bank by itself
_STEPS, _BACK = 4, 0.2  # of scores over own edges, as ``ClassSums`` takes them
_FOLDS: Final = 5
_FEWEST: Final = 3  # seeds of which an interval says something

Floats = NDArray[np.float64]
_Labels = NDArray[np.int64]
_Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Set:
    """Data to measure on; ``ranks``: by AUC."""

    data: Mapping[str, Any]
    ranks: bool = False
    most_seeds: int = 10


def _payments(customers: int, **more: Any) -> Mapping[str, Any]:  # noqa: ANN401
    made = {"customers": customers, "transfers": 10 * customers}
    data = {"dataset": "payments", "holders": 3, "label_holder": "B", "payments": made, "feature_scaling": "standard"}
    return {**data, **more}


def _dealt(name: str, holders: int, train: float) -> Mapping[str, Any]:
    rest = (1 - train) / 2
    split = [train, rest, rest]
    return {"dataset": name, "holders": holders, "split": split, "stratify": False, "feature_scaling": "length"}


PAYMENTS: Final = "payments, 3 banks"
DRAWN: Final = "payments, 3 banks, half of all accounts for training"
FEW: Final = "pubmed, 10 holders, 5 % for training"
SETS: Final[Mapping[str, Set]] = {
    PAYMENTS: Set(_payments(50_000), ranks=True, most_seeds=5),
    DRAWN: Set(_payments(50_000, split=[0.5, 0.25, 0.25], stratify=False), ranks=True, most_seeds=5),
    "cora, 4 holders": Set(_dealt("cora", 4, 0.5)),
    "cora, 10 holders": Set(_dealt("cora", 10, 0.5)),
    FEW: Set(_dealt("pubmed", 10, 0.05), most_seeds=5),
}
SHOWN: Final = (
    (DRAWN, UNIT, (*JOBS, OPINIONS, SUMS)),
    (DRAWN, PRECISION, tuple(JOBS)),
    ("cora, 4 holders", UNIT, (LABELS, OPINIONS, SUMS)),
    (FEW, UNIT, (LABELS, OPINIONS, SUMS)),
)
SHOWN_EPSILONS: Final = (0.5, 1.0, 2.0, 4.0)


class World:
    """All banks' nodes, numbered in turn, and edges within a bank and across: ``rows`` are of length 1."""

    def __init__(self, job: UnionJob) -> None:
        inputs = PARADIGMS["union"].data.load(job)
        self.job, self.graphs, self.ids = job, inputs.graphs, inputs.ids
        places = places_by_id(self.graphs, self.ids)
        self.own = [replace_features(graph) for graph in self.graphs]
        self.bank: _Labels = np.repeat(np.arange(len(self.own)), [graph.num_nodes for graph in self.own])
        ends = torch.cat([places[graph.party][graph.edge_index] for graph in self.graphs], 1).numpy()
        nodes, inside = len(self.bank), self.bank[ends[0]] == self.bank[ends[1]]
        self.inside, self.across = (_adjacency(ends[:, kept], nodes) for kept in (inside, ~inside))
        self.rows = _stacked([to_numbers(graph.features) for graph in self.own])
        self.labels: _Labels = np.concatenate([_given(graph.labels).numpy() for graph in self.own])
        self.classes = max(graph.num_classes or 0 for graph in self.own)
        self.train, self.val, self.test = (
            np.concatenate([_given(getattr(graph, f"{name}_mask")).numpy() for graph in self.own])
            for name in ("train", "val", "test")
        )

    @cached_property
    def class_sums(self) -> Floats:
        """Sum of training rows of each class: [C, F]."""
        one_hot = np.eye(self.classes)[self.labels[self.train]]
        return np.asarray((self.rows[self.train].T @ one_hot).T)


def replace_features(graph: PartyGraph) -> PartyGraph:
    """A bank's own nodes, with rows of length 1."""
    return scale_features(graph.common_part(), "length")


def _given(values: Tensor | None) -> Tensor:
    assert values is not None
    return values


def _adjacency(ends: _Labels, nodes: int) -> csr_array:
    kept = ends[0] != ends[1]
    first, second = ends[:, kept]
    found = csr_array((np.ones(2 * len(first)), (np.r_[first, second], np.r_[second, first])), (nodes, nodes))
    found.data[:] = 1.0
    return found


def _stacked(parts: Sequence[Any]) -> Any:  # noqa: ANN401 - dense or sparse
    if isinstance(parts[0], np.ndarray):
        return np.vstack(parts).astype(np.float64)
    from scipy.sparse import vstack  # noqa: PLC0415

    return vstack(parts).tocsr().astype(np.float64)


class Bank:
    """One bank, and what it reaches by itself."""

    def __init__(self, world: World, number: int, *, ranks: bool) -> None:
        self.world, self.ranks = world, ranks
        self.nodes = world.bank == number
        self.labels, self.train, self.val, self.test = (
            each[self.nodes] for each in (world.labels, world.train, world.val, world.test)
        )
        graph, job = world.own[number], world.job
        streams = LearningStreams(job.seed, graph.party)
        whole = world.graphs[number]
        trained = alone(job, whole, world.ids[graph.party], lambda _: None).output.double().log_softmax(1).numpy()
        self.own = Own.of(graph, torch.float64)
        self.network = LinearNetwork(graph.num_features, world.classes, torch.float64)
        by_class = Objective(graph, job.train, torch.float64).weights
        self.by_class: Floats = np.ones(world.classes) if by_class is None else by_class.numpy()
        home = at_home(AtHomeSettings(), self.own, world.classes, streams, torch.float64, self.network)
        assert isinstance(home, ClassSums)
        self.network.take(torch.from_numpy(world.class_sums.ravel()))
        home.learn(torch.zeros(graph.num_nodes, world.classes, dtype=torch.float64))
        self.home = home
        with torch.no_grad():
            network = home.network(self.own.features, self.own.adjacency, None).log_softmax(1).numpy()
        near = world.inside[self.nodes][:, self.nodes]
        said = np.eye(world.classes)[trained.argmax(1)]
        said[self.train] = np.eye(world.classes)[self.labels[self.train]]
        votes = near @ said
        self.mixing = self.shares_by_class(votes)
        own = np.log(votes @ self.mixing.T + 0.5)
        self.alone = [trained, network, own, self.shares(votes)]

    def shares_by_class(self, counts: Floats) -> Floats:
        """Shares of symbols among those at training nodes of each class: [C, C], rows sum to 1."""
        one_hot = np.eye(self.world.classes)[self.labels[self.train]]
        found = 1 + one_hot.T @ counts[self.train]
        return np.asarray(found / found.sum(1, keepdims=True))

    def shares(self, counts: Floats) -> Floats:
        """Log of smoothed shares of symbols at a node: [n, C]."""
        counts = np.maximum(counts, 0)
        return np.asarray(np.log((counts + 1) / (counts.sum(1, keepdims=True) + self.world.classes)))

    def with_sums(self, sums: Floats) -> list[Floats]:
        """Log-probabilities by noisy class sums, [C, F], and by these over own edges."""
        self.network.take(torch.from_numpy((sums - sums.mean(0)).ravel()))
        with torch.no_grad():
            self.home.add_sums(torch.from_numpy(self.val))
            scores = self.own.features.times(self.home.solved) - self.home.shift
            moved = scores
            for _ in range(_STEPS):
                moved = (1 - _BACK) * self.own.adjacency.mean(moved) + _BACK * scores
        return [scores.log_softmax(1).numpy(), moved.log_softmax(1).numpy()]

    def with_symbols(self, symbols: _Labels, told: _Mask, response: Floats | None) -> list[Floats]:
        """What symbols of other banks' nodes, where ``told``, say: log-likelihoods and shares.

        ``response``, [C, C]: P(symbol | class); None: what symbols mean is counted at own training nodes.
        """
        one_hot = np.eye(self.world.classes)[symbols] * told[:, None]
        counts = np.asarray(self.world.across[self.nodes] @ one_hot)
        law = self.shares_by_class(counts) if response is None else self.mixing @ response
        return [counts @ np.log(law).T, self.shares(counts)]

    def logits(self, more: Sequence[Floats] = ()) -> Floats:
        """The bank's own columns and ``more``, weighed by its validation nodes: [n, C].

        Without ``more`` where cross-validation has a lower figure with it.
        """
        if not more or self._crossed(more) < self._crossed():
            more = ()
        return self._fitted(more, self.val)

    def _crossed(self, more: Sequence[Floats] = ()) -> float:
        """The figure on validation nodes, each by weights that are fitted without its fold."""
        judged, found = self.val.nonzero()[0], np.empty((len(self.labels), self.world.classes))
        folds = np.empty(len(judged), np.int64)
        folds[np.argsort(self.labels[judged], kind="stable")] = np.arange(len(judged)) % _FOLDS
        for fold in range(_FOLDS):
            fitting = self.val.copy()
            fitting[judged[folds == fold]] = False
            found[judged[folds == fold]] = self._fitted(more, fitting)[judged[folds == fold]]
        return self.figure(found, self.val)

    def figure(self, logits: Floats, nodes: _Mask) -> float:
        """AUC, or accuracy."""
        truth, said = self.labels[nodes], logits[nodes]
        return float(roc_auc_score(truth, said[:, 1] - said[:, 0]) if self.ranks else (said.argmax(1) == truth).mean())

    def _fitted(self, more: Sequence[Floats], fitting: _Mask) -> Floats:
        columns = [self.alone[0], *(each - each[self.val].mean(0) for each in (*self.alone[1:], *more))]
        units = [math.sqrt(float((each[self.val] ** 2).mean())) + 1e-12 for each in columns]
        inputs = RegressionInputs(
            [each / unit for each, unit in zip(columns, units, strict=True)], np.ones((len(columns[0]), 1))
        )
        regression = Regression(self.labels[fitting], self.by_class)
        return inputs.sums(regression.fitted(inputs.of(fitting), (units[0],), _PULL))


def multiplier(world: World, epsilon: float) -> float:
    """The noise of class sums: made jointly, against the server and one other bank."""
    if math.isinf(epsilon):
        return 0.0
    joint = SharedNoiseSettings(colluding=1)
    given = SampledSettings(epsilon_total=epsilon, delta=DELTA, batch=1.0, joint_noise=joint)
    return sampled_plan(1, given, 0, Joint(len(world.own), 1)).multiplier


def responses(symbols: _Labels, epsilon: float, classes: int) -> tuple[_Labels, Floats]:
    """Symbols by randomised response, drawn once, and P(drawn | true)."""
    if math.isinf(epsilon):
        return symbols, np.eye(classes)
    response = LabelResponse(epsilon, classes)
    drawn = response.release(torch.from_numpy(symbols), system_secrets)
    return drawn.numpy(), response.transition().numpy()


def nearest_means(rows: Any, sums: Floats) -> _Labels:  # noqa: ANN401 - dense or sparse
    """Every row's nearest class mean, by angle, of noisy class sums [C, F]."""
    means = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return np.asarray((rows @ (means - means.mean(0)).T).argmax(1), np.int64)


def every_way(name: str, seed: int) -> Iterator[tuple[str, float]]:
    """Way and ε → figure."""
    each = SETS[name]
    world = World(union(parse_job({"paradigm": "union", "seed": seed, "data": dict(each.data)})))
    banks = [Bank(world, number, ranks=each.ranks) for number in range(len(world.own))]

    def figures(way: str, more: Sequence[Sequence[Floats]]) -> Iterator[tuple[str, float]]:
        logits = [bank.logits(columns) for bank, columns in zip(banks, more, strict=True)]
        yield f"{UNIT}/{way}", _figure(banks, logits)
        if each.ranks:
            yield f"{PRECISION}/{way}", _mean_precision(banks, logits)

    yield from figures(f"{ALONE}/none", [[]] * len(banks))
    joint = together(world.job, world.graphs, world.ids)
    opened = [joint[graph.party].double().numpy() for graph in world.own]
    yield f"{UNIT}/{UNION}/none", _figure(banks, opened)
    if each.ranks:
        yield f"{PRECISION}/{UNION}/none", _mean_precision(banks, opened)
    generator, labels = np.random.default_rng([seed, 17]), np.maximum(world.labels, 0)
    for epsilon in EPSILONS:
        noise = generator.standard_normal(world.class_sums.shape) * multiplier(world, epsilon)
        sums = [bank.with_sums(world.class_sums + noise) for bank in banks]
        yield from figures(f"{SUMS}/{epsilon:g}", sums)
        drawn, response = responses(labels, epsilon, world.classes)
        said = [bank.with_symbols(drawn, world.train & ~bank.nodes, response) for bank in banks]
        yield from figures(f"{LABELS}/{epsilon:g}", said)
        if each.ranks:
            drawn, _ = responses(labels * world.train, epsilon, world.classes)
            yield from figures(f"{HIDDEN}/{epsilon:g}", [bank.with_symbols(drawn, ~bank.nodes, None) for bank in banks])
        near = nearest_means(world.rows, world.class_sums + noise)
        drawn, _ = responses(near, epsilon, world.classes)
        opinions = [bank.with_symbols(drawn, ~world.train & ~bank.nodes, None) for bank in banks]
        yield from figures(f"{OPINIONS}/{epsilon:g}", [[*a, *b] for a, b in zip(sums, opinions, strict=True)])


def of_job(name: str, way: str, epsilon: float, seed: int) -> tuple[float, float]:
    """AUC and average precision of a whole job, means over the banks' own test nodes."""
    data = {key: value for key, value in SETS[name].data.items() if key != "feature_scaling"}
    symbols = {"answers": JOBS[way], "allow_weak": True}
    content = {"paradigm": "averaging", "seed": seed, "data": data, "averaging": {"symbols": symbols}}
    if epsilon != CONTROL:
        with TemporaryDirectory() as folder:
            job = parse_job({**content, "label_privacy": {"epsilon": epsilon}})
            run = train(job, Path(folder) / "run", study=True).path
            found = [json.loads((run / "parties" / bank / "result.json").read_text()) for bank in job.data.names]
            return fmean(each["test_auc"] for each in found), fmean(each["test_ap"] for each in found)
    job = averaging(parse_job({**content, "label_privacy": {"epsilon": 0.5}}))
    job = job.model_copy(update={"label_privacy": LabelPrivacySettings(epsilon=epsilon)})
    inputs = PARADIGMS["averaging"].data.load(job)
    response, drawn = LabelResponse(epsilon, 2), {}
    for graph in inputs.graphs:
        drawn[graph.party] = response.release(labels_perturbed(job, graph.common_part())[1], system_secrets)
    twin, scores = PlainSymbols(job, inputs.graphs, inputs.ids, drawn), []
    for graph in inputs.graphs:
        objective = Objective(graph.common_part(), job.train, torch.float64)
        scores.append(objective.score(twin.logits(graph.party), everything=True).values)
    return tuple(fmean(float(each[name] or 0.0) for each in scores) for name in ("test_auc", "test_ap"))  # type: ignore[return-value]


def _figure(banks: Sequence[Bank], logits: Sequence[Floats]) -> float:
    """Over all test nodes; of AUC the mean over banks."""
    found = [bank.figure(each, bank.test) for bank, each in zip(banks, logits, strict=True)]
    sizes = [1 if bank.ranks else bank.test.sum() for bank in banks]
    return float(np.average(found, weights=sizes))


def _mean_precision(banks: Sequence[Bank], logits: Sequence[Floats]) -> float:
    """Average precision, the mean over banks."""
    return fmean(
        average_precision_score(bank.labels[bank.test], (each[:, 1] - each[:, 0])[bank.test])
        for bank, each in zip(banks, logits, strict=True)
    )


def gain(before: Mapping[str, float], values: Mapping[str, float]) -> str:
    """Points above, of seeds that both have, with a 95 % interval of their mean."""
    gains = [100 * (values[seed] - before[seed]) for seed in before if seed in values]
    if len(gains) < _FEWEST:
        return "–"
    half = float(student.ppf(0.975, len(gains) - 1)) * stdev(gains) / math.sqrt(len(gains))
    return f"{fmean(gains):+.1f} ± {half:.1f}"


def table(figures: Figures) -> list[str]:
    """Markdown: a bank alone, a union without noise, and what each way adds at every ε to its control, all paired."""
    heads = " | ".join(f"ε = {epsilon:g}" for epsilon in SHOWN_EPSILONS)
    lines = [
        f"| data | alone | union, no noise | way | {heads} | no noise |",
        f"|---|---:|---:|---|{'---:|' * (len(SHOWN_EPSILONS) + 1)}",
    ]
    for name, level, ways in SHOWN:
        alone_, joint = (figures.by_seed(name, level, way, None) for way in (ALONE, UNION))
        about = [f"{name}{'' if level == UNIT else ', average precision'}"]
        about += [f"{fmean(alone_.values()):.3f}", gain(alone_, joint)]
        for way in ways:
            control = figures.by_seed(name, level, way, CONTROL)
            cells = [gain(control, figures.by_seed(name, level, way, each)) for each in (*SHOWN_EPSILONS, math.inf)]
            lines.append(f"| {' | '.join(about)} | {way} | {' | '.join(cells)} |")
            about = ["", "", ""]
    return lines


def main() -> None:
    """Measures, or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=";".join(SETS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=JOB_SEEDS, help="seeds of whole jobs")
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = Figures(FIGURES)
    if arguments.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        text = "\n".join(table(figures))
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
        return
    for name in arguments.sets.split(";"):
        for seed in range(min(arguments.seeds, SETS[name].most_seeds)):
            if f"{name}/{UNIT}/{OPINIONS}/{EPSILONS[-1]:g}/{seed}" not in figures.found:
                for key, value in every_way(name, seed):
                    figures.measure(f"{name}/{key}/{seed}", partial(float, value))
    for seed in range(arguments.jobs):
        for way, epsilon in product(JOBS, JOB_EPSILONS):
            keys = [f"{DRAWN}/{level}/{way}/{epsilon:g}/{seed}" for level in (UNIT, PRECISION)]
            if not all(key in figures.found for key in keys):
                for key, value in zip(keys, of_job(DRAWN, way, epsilon, seed), strict=True):
                    figures.measure(key, partial(float, value))


if __name__ == "__main__":
    main()
