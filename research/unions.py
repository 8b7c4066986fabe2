"""What a union is worth: banks of made-up worlds alone, together without edges across, and as a union.

    python -m research.unions --seeds 4
    python -m research.unions --bare
    python -m research.unions --sets
    python -m research.unions --rows
    python -m research.unions --unseen

``--bare``: of worlds 0 and 1 the largest bank has no labels, and its own accounts are judged.
``--sets``: data sets on which nothing was chosen, with their nodes dealt to three holders at random. The figure there
is test accuracy, of Amazon AUC. ``--unseen``: of worlds 0 and 1 launderers of each pattern in turn are left out of
training and validation; recall is of these among test accounts. ``--rows``: worlds of which half of the labelled
accounts train, by steps of so many rows at most; figures are of validation accounts.
Every way trains the network of union jobs with the defaults, on floating numbers in one place, as the tests hold the
protocol to. A bank by itself has its own accounts, and all payments of these; of others' accounts it knows nothing
else. Written to docs/figures/unions.json after every world; worlds that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from veilgraph_datasets.settings import PATTERN_KINDS, PaymentsSettings
from veilgraph_datasets.world import payments_world

from docs.pages import figure_path
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.inputs import plan_of
from veilgraph.paradigms.sealed.program import logits_of
from veilgraph.paradigms.sealed.stacking import fit_stacking
from veilgraph.paradigms.sealed.twin import train_and_restore_best
from veilgraph.paradigms.union.inputs import symmetric_graph
from veilgraph.paradigms.union.settings import UnionJob, union
from veilgraph.paradigms.union.twin import alone, begin_program, pooled
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.paradigm import PARADIGMS

FIGURES: Final = figure_path("unions.json")
ALARMS: Final = 0.05
"""Share of a bank's test accounts that are looked into."""


ROWS: Final = (1 << 15, 1 << 14, 1 << 12)
SETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "digits": {"dataset": "digits"},
    "block model, homophily 0.8": {"dataset": "block-model", "block_model": {"nodes": 5000, "homophily": 0.8}},
    "block model, homophily 0.1": {"dataset": "block-model", "block_model": {"nodes": 5000, "homophily": 0.1}},
    "Cora": {"dataset": "cora"},
    "CiteSeer": {"dataset": "citeseer"},
    "PubMed": {"dataset": "pubmed"},
    "Amazon": {"dataset": "amazon"},
}
RANKED: Final = ("Amazon",)
"""Data sets whose figure is AUC."""


def main() -> None:
    """See the head of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--customers", type=int, default=50_000)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--sets", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--unseen", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for option, figures in (("bare", _bare), ("sets", _sets), ("rows", _rows), ("unseen", _unseen)):
        if getattr(asked, option):
            for name, one in figures(asked.customers):
                sys.stdout.write(f"{name}: {said(one)}\n")
                sys.stdout.flush()
            return
    found = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.is_file() else {}
    for seed in range(asked.seeds):
        if str(seed) not in found:
            found[str(seed)] = world(seed, asked.customers)
            FIGURES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        for way, figures in found[str(seed)].items():
            sys.stdout.write(f"{seed} {way}: {said(figures)}\n")
    for way in next(iter(found.values())):
        sys.stdout.write(f"mean {way}: {said(mean_of([each[way] for each in found.values()]))}\n")


Named = Iterator[tuple[str, Mapping[str, float]]]


def _bare(customers: int) -> Named:
    return ((str(seed), bare(seed, customers)) for seed in range(2))


def _sets(_: int) -> Named:
    return ((name, dealt(data, ranks=name in RANKED)) for name, data in SETS.items())


def _rows(customers: int) -> Named:
    return ((str(rows), mean_of([by_rows(seed, customers, rows) for seed in range(100, 104)])) for rows in ROWS)


def _unseen(customers: int) -> Named:
    return ((f"{seed} {way}", figures) for seed in range(2) for way, figures in unseen(seed, customers))


def mean_of(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each name."""
    return {name: float(np.mean([each[name] for each in figures])) for name in figures[0]}


def said(figures: Mapping[str, float]) -> str:
    """In a line."""
    return ", ".join(f"{name} {value:.3f}" for name, value in figures.items())


def job_of(seed: int, customers: int, **settings: Any) -> UnionJob:  # noqa: ANN401
    """Of three banks of a world; ``settings`` of the job beside its seed and its world."""
    made = {"customers": customers, "transfers": 10 * customers}
    data = {"dataset": "payments", "holders": 3, "label_holder": "B", "payments": made, **settings.pop("data", {})}
    return union(parse_job({"paradigm": "union", "seed": seed, "data": data, **settings}))


def world(seed: int, customers: int) -> dict[str, dict[str, float]]:
    """Name of a way → AUC and average precision, means over the banks, and recall of all banks' alarms together."""
    graphs, found = every_way(job_of(seed, customers))
    return {way: judged(graphs, logits) for way, logits in found.items()}


def by_rows(seed: int, customers: int, rows: int) -> dict[str, float]:
    """What a union is worth to validation accounts where half of the labelled ones train, by steps of so many rows."""
    job = job_of(seed, customers, data={"split": [0.5, 0.1, 0.4]}, train={"batch_size": rows})
    inputs = PARADIGMS["union"].data.load(job)
    told = train_and_restore_best(job, begin_program(job, inputs.graphs, inputs.ids)).predict()
    assert told is not None
    parts = torch.split(logits_of(told), [graph.common for graph in inputs.graphs])
    judging = [replace(graph, test_mask=graph.val_mask) for graph in inputs.graphs]
    return judged(judging, {graph.party: part for graph, part in zip(inputs.graphs, parts, strict=True)})


def bare(seed: int, customers: int) -> dict[str, float]:
    """What a union is worth to the largest bank where it has no labels."""
    job = job_of(seed, customers)
    inputs = PARADIGMS["union"].data.load(job)
    (first, *others), none = inputs.graphs, {"labels": None, "train_mask": None, "val_mask": None, "test_mask": None}
    without = replace(first, num_classes=None, **none)  # type: ignore[arg-type]
    return judged([first], together(job, [without, *others], inputs.ids))


def dealt(data: Mapping[str, Any], *, ranks: bool) -> dict[str, float]:
    """Name of a way → accuracy over all holders' test nodes, of seed 0, or the mean of their AUC."""
    job = union(parse_job({"paradigm": "union", "data": {**data, "holders": 3}}))
    graphs, found = every_way(job)
    return {way: judged(graphs, logits)["auc"] if ranks else accuracy(graphs, logits) for way, logits in found.items()}


def unseen(seed: int, customers: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield name of a way → kind of pattern → recall of its test launderers, by all kinds or by all the others."""
    job = job_of(seed, customers)
    inputs = PARADIGMS["union"].data.load(job)
    graphs, ids = inputs.graphs, inputs.ids
    truth = payments_world(PaymentsSettings.model_validate(job.data.payments), seed)
    customer = np.concatenate([np.flatnonzero(truth.customers.of_bank(bank)) for bank in range(len(truth.banks))])
    kinds = {}
    for graph in graphs:
        pattern = truth.pattern[customer[np.array(ids[graph.party][: graph.common], np.int64)]]
        kinds[graph.party] = torch.from_numpy(np.where(pattern >= 0, truth.kind[pattern], -1))
    yield "union, all patterns", recalls(graphs, kinds, together(job, graphs, ids))
    yield "each alone, all patterns", recalls(graphs, kinds, each_alone(job, graphs, ids))
    found: dict[str, dict[str, float]] = {"union, none of its kind": {}, "each alone, none of its kind": {}}
    for place, kind in enumerate(PATTERN_KINDS):
        without = [without_kind(graph, kinds[graph.party] == place) for graph in graphs]
        for way, logits in zip(found, (together(job, without, ids), each_alone(job, without, ids)), strict=True):
            found[way][kind] = recalls(graphs, kinds, logits)[kind]
    yield from found.items()


def without_kind(graph: PartyGraph, members: Tensor) -> PartyGraph:
    """Neither train on these of a graph's own nodes nor judge steps by them."""
    kept = torch.ones(graph.num_nodes, dtype=torch.bool)
    kept[: graph.common] = ~members
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    return replace(graph, train_mask=graph.train_mask & kept, val_mask=graph.val_mask & kept)


def recalls(
    graphs: Sequence[PartyGraph], kinds: Mapping[PartyId, Tensor], logits: Mapping[PartyId, Tensor]
) -> dict[str, float]:
    """Kind of pattern → share of its test members that are among the alarms of their banks."""
    alarmed, kind = list[Tensor](), list[Tensor]()
    for graph in graphs:
        assert graph.test_mask is not None
        test = graph.test_mask[: graph.common]
        scores = logits[graph.party].softmax(1)[test, 1]
        alarms = torch.zeros(len(scores), dtype=torch.bool)
        alarms[scores.argsort(descending=True)[: round(ALARMS * len(scores))]] = True
        alarmed.append(alarms)
        kind.append(kinds[graph.party][test])
    alarms, of = torch.cat(alarmed), torch.cat(kind)
    return {name: float(alarms[of == place].double().mean()) for place, name in enumerate(PATTERN_KINDS)}


def each_alone(
    job: UnionJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]
) -> dict[PartyId, Tensor]:
    """Logits of every bank's own accounts by a bank that trains by itself."""
    return {graph.party: alone(job, graph, ids[graph.party], lambda _: None).output for graph in graphs}


def accuracy(graphs: Sequence[PartyGraph], logits: Mapping[PartyId, Tensor]) -> float:
    """Over all holders' own test nodes."""
    right = []
    for graph in graphs:
        assert graph.labels is not None
        assert graph.test_mask is not None
        test = graph.test_mask[: graph.common]
        right.append(logits[graph.party].argmax(1)[test] == graph.labels[: graph.common][test])
    return float(torch.cat(right).double().mean())


def every_way(job: UnionJob) -> tuple[Sequence[PartyGraph], dict[str, dict[PartyId, Tensor]]]:
    """The holders' graphs, and logits of their own nodes by each way."""
    inputs = PARADIGMS["union"].data.load(job)
    graphs, ids = inputs.graphs, inputs.ids
    inside = [graph.with_edges((graph.edge_index < graph.common).all(0)) for graph in graphs]
    place = pooled(job, graphs, ids, lambda _: None).output
    apart = dict(zip(job.data.names, torch.split(place, [graph.common for graph in graphs]), strict=True))
    return graphs, {
        "each alone": each_alone(job, graphs, ids),
        "union without edges across": together(job, inside, ids),
        "union": together(job, graphs, ids),
        "all in one place": apart,
    }


def together(
    job: UnionJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]
) -> dict[PartyId, Tensor]:
    """Logits of every bank's own accounts, with what its own edges add at home."""
    told = train_and_restore_best(job, begin_program(job, graphs, ids)).predict()
    assert told is not None
    parts = torch.split(logits_of(told), [graph.common for graph in graphs])
    return {graph.party: stacked(job, graph, part) for graph, part in zip(graphs, parts, strict=True)}


def stacked(job: UnionJob, graph: PartyGraph, logits: Tensor) -> Tensor:
    """As its bank does it."""
    if graph.labels is None:
        return logits
    own = symmetric_graph(graph, plan_of(job))
    return fit_stacking(logits, own, Objective(own.common_part(), job.train, torch.float64).weights).logits(logits, own)


def judged(graphs: Sequence[PartyGraph], logits: Mapping[PartyId, Tensor]) -> dict[str, float]:
    """On every bank's own test accounts."""
    aucs, precisions, alarms, cases = list[float](), list[float](), 0, 0
    for graph in graphs:
        assert graph.labels is not None
        assert graph.test_mask is not None
        test = graph.test_mask[: graph.common]
        truth, scores = graph.labels[: graph.common][test], logits[graph.party].softmax(1)[test, 1]
        aucs.append(roc_auc_score(truth, scores))
        precisions.append(average_precision_score(truth, scores))
        first = scores.argsort(descending=True)[: round(ALARMS * len(scores))]
        alarms, cases = alarms + int(truth[first].sum()), cases + int(truth.sum())
    return {"auc": float(np.mean(aucs)), "ap": float(np.mean(precisions)), "recall": alarms / cases}


if __name__ == "__main__":
    main()
