"""What organisations find of laundering by the product's own jobs: recall of each pattern, alone, together and pooled.

``python -m research.payments_jobs [--seeds S] [--customers N] [--transfers T] [--found FILE]`` prints the tables of
docs/guides/payments.md. Every federated figure is a whole job, with all parties and messages; alone and pooled are its
network in one place. What is found is kept in FILE, a line each, and not computed again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from veilgraph_datasets.settings import PATTERN_KINDS, PaymentsSettings
from veilgraph_datasets.world import SHOP, TELECOM, PaymentsWorld, payments_world

from research.payments import ALARMS, ALL, TEST, recall_of
from veilgraph.graph.features import scale_together
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import HorizontalPart, pool
from veilgraph.paradigms.horizontal.settings import HorizontalJob, horizontal
from veilgraph.paradigms.horizontal.twin import LayeredNetwork, parts_of
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import fit
from veilgraph.protocol.role import precision
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

Places = NDArray[np.int64]
Scores = NDArray[np.float64]
Scored = Iterator[tuple[int, Places, Scores]]
"""For each bank that looks for launderers: its number, customers, and how likely each is one."""

_TRAIN: Final[Mapping[str, Any]] = {"select_by": "last", "patience": None, "epochs": 100}
_JOBS: Final[dict[str, dict[str, Any]]] = {
    "horizontal": {},
    "averaging": {"train": {**_TRAIN, "epochs": 10}},
    "vertical": {"model": {"local": {"model": "appnp", "hops": 2}}},
    "sealed": {
        "model": {"network": "linear", "blocks": ["own", "neighbours", "each.2"]},
        "train": {"select_by": "auc"},
        "output": "margins",
    },
}
"""Paradigm → what its job says, chosen by the validation AUC of worlds 100 and 101."""


@dataclass(frozen=True)
class Found:
    """What was found by one way in one world.

    Attributes:
        seed: of the world and of the training.
        way: a key of ``WAYS``.
        auc: of launderers against others among test customers, the mean over banks.
        recall: kind of pattern → share of its test members that are among the alarms.
    """

    seed: int
    way: str
    auc: float
    recall: dict[str, float]


def job(paradigm: str, world: PaymentsWorld) -> JobSettings:
    """The job of a paradigm over a world's organisations."""
    data = {"dataset": "payments", "holders": 3, "feature_scaling": "standard", "payments": world.settings.model_dump()}
    settings = {"name": "payments", "paradigm": paradigm, "preset": "paper", "seed": world.seed, "data": data}
    return parse_job(settings | {"train": _TRAIN} | {"timeout_s": 3600} | _JOBS[paradigm])


def federated(paradigm: str, world: PaymentsWorld) -> Scored:
    """A whole job's predictions, at everyone who gets any."""
    settings = job(paradigm, world)
    with TemporaryDirectory() as folder:
        result = train(settings, Path(folder) / "run")
        if settings.is_aligned:
            yield 0, common(world), result.predictions.uncalibrated[:, 1].double().numpy()
            return
        for bank, name in enumerate(settings.data.names):
            found = load_predictions(RunDirectory.open(result.path).party(name))
            yield bank, np.array(found.ids, np.int64), found.uncalibrated[:, 1].double().numpy()


def layered(world: PaymentsWorld) -> Scored:
    """The horizontal job's network on each bank's graph by itself."""
    settings = horizontal(job("horizontal", world))
    inputs = paradigm_of(settings).data.load(settings)
    names = np.array(sorted({name for each in inputs.ids.values() for name in each})).astype(np.int64)
    for bank, part in enumerate(parts_of(inputs.graphs, inputs.ids)):
        yield bank, names[part.ids.numpy()], _layered(settings, part)


def layered_together(world: PaymentsWorld) -> Scored:
    """That network on the graph of all banks' customers, each with the columns that its own bank has of it."""
    settings = horizontal(job("horizontal", world))
    seen = world.together()
    (graph,) = scale_together([PartyGraph.from_data("pooled", seen.data(), 2)], settings.data.feature_scaling)
    likely = _layered(settings, HorizontalPart(graph, torch.arange(graph.num_nodes)))
    for bank in range(len(world.banks)):
        yield bank, seen.nodes, likely


def _layered(settings: HorizontalJob, part: HorizontalPart) -> Scores:
    network = LayeredNetwork(settings.model, settings.train, [part], seed=settings.seed, dtype=precision(settings))
    fit(network)
    return _likely(network.infer())


def columns_together(world: PaymentsWorld, together: bool) -> Scored:
    """The vertical job's network on what the first bank knows, or on what the shop and the telecom know as well."""
    settings = job("vertical", world)
    inputs = paradigm_of(settings).data.load(settings)
    graph = pool(inputs.graphs, settings.data.label_party) if together else inputs.graphs[0]
    network = PlainNetwork(settings, [graph], graph.party)
    fit(network)
    yield 0, common(world), _likely(network.infer())


def common(world: PaymentsWorld) -> Places:
    """Customers of the first bank whom the shop and the telecom know, ascending: rows of vertical and sealed jobs."""
    known = np.intersect1d(world.view(SHOP).nodes, world.view(TELECOM).nodes)
    return np.intersect1d(known, np.flatnonzero(world.customers.first == 0))


WAYS: Final[dict[str, Callable[[PaymentsWorld], Scored]]] = {
    "each bank alone": layered,
    "averaging": lambda world: federated("averaging", world),
    "horizontal": lambda world: federated("horizontal", world),
    "all banks' data in one place": layered_together,
    "bank A alone": lambda world: columns_together(world, together=False),
    "vertical": lambda world: federated("vertical", world),
    "sealed": lambda world: federated("sealed", world),
    "bank's, shop's and telecom's data in one place": lambda world: columns_together(world, together=True),
}
TABLES: Final = {
    "all banks' customers": tuple(WAYS)[:4],
    "customers of bank A whom the shop and the telecom know": tuple(WAYS)[4:],
}


def found(way: str, world: PaymentsWorld) -> Found:
    """What one way finds in a world."""
    launders = world.launders
    alarms, judged = np.zeros((2, len(launders)), np.bool_)
    aucs = []
    for bank, customers, likely in WAYS[way](world):
        mine = (world.customers.first[customers] == bank) & (world.split[customers] == TEST)
        nodes, scores = customers[mine], likely[mine]
        aucs.append(float(roc_auc_score(launders[nodes], scores)))
        judged[nodes] = True
        alarms[nodes[np.argsort(-scores)[: round(ALARMS * len(nodes))]]] = True
    return Found(world.seed, way, float(np.mean(aucs)), recall_of(world, alarms, judged))


def table(every: list[Found], ways: tuple[str, ...]) -> str:
    """Means over worlds, and sample standard deviations of the AUC, as Markdown."""
    lines = [f"| | AUC | {' | '.join(PATTERN_KINDS)} | all |", "|---|---|" + "---:|" * (1 + len(PATTERN_KINDS))]
    for way in ways:
        mine = [each for each in every if each.way == way]
        aucs = [each.auc for each in mine]
        spread = np.std(aucs, ddof=1) if len(aucs) > 1 else 0.0
        cells = (
            f"{100 * np.nanmean([each.recall.get(kind, np.nan) for each in mine]):.0f} %"
            for kind in (*PATTERN_KINDS, ALL)
        )
        lines.append(f"| {way} | {np.mean(aucs):.3f} ± {spread:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _likely(logits: torch.Tensor) -> Scores:
    return np.asarray(logits.detach().double().softmax(dim=1)[:, 1].numpy())


def _kept(path: Path) -> list[Found]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Found(**json.loads(line)) for line in lines]


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.payments_jobs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--customers", type=int, default=50_000)
    parser.add_argument("--transfers", type=int, default=500_000)
    parser.add_argument("--found", type=Path, default=Path("runs/payments-jobs.jsonl"))
    asked = parser.parse_args()
    settings = PaymentsSettings(customers=asked.customers, transfers=asked.transfers)
    asked.found.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed in range(asked.seeds):
        world = payments_world(settings, seed)
        done = {each.way for each in _kept(asked.found) if each.seed == seed}
        for way in WAYS:
            if way not in done:
                line = json.dumps(asdict(found(way, world)))
                with asked.found.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
                sys.stderr.write(line + "\n")
    every = [each for each in _kept(asked.found) if each.seed < asked.seeds]
    for title, ways in TABLES.items():
        sys.stdout.write(f"\n{title}\n\n{table(every, ways)}\n")


if __name__ == "__main__":
    _main()
