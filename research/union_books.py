"""What unions make of books that differ by a few days, and of customers who are at two banks.

    python -m research.union_books --lag
    python -m research.union_books --links --seeds 100 101 102 103 104

``--lag``: of all pairs of accounts that pay each other between banks, how many are in one bank's export alone, where
the payee's bank books later than the payer's. ``--links``: average AUC and average precision of each bank's own
validation accounts, by the twin of union jobs. ``linked``: both banks have an edge, in both directions, between the two
accounts of a customer. ``beside``: an account's columns have those of the customer's other account beside them, less
its own, as a relation of its own might bring them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from veilgraph_datasets.payments_tables import export_payments
from veilgraph_datasets.settings import PaymentsSettings

from research.unions import together
from veilgraph.core.types import PartyId
from veilgraph.graph.build import build_graph, read_table
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import append_others
from veilgraph.paradigms.union.settings import union
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.tables.encode import fit_encoding

BANKS = "ABC"
PAIR = ["payer", "payer_bank", "payee", "payee_bank"]
Books = tuple[list[PartyGraph], dict[PartyId, list[str]]]


def main() -> None:
    """See the head of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lag", action="store_true")
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="*", default=[100])
    parser.add_argument("--customers", type=int, default=10_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.lag:
        with world_of(5000, 0) as world:
            for days in (1, 3):
                sys.stdout.write(f"{days} days later: {lost(world, days, 30):.1%} of a month, ")
                sys.stdout.write(f"{lost(world, days, 89):.1%} of a quarter\n")
    for seed in asked.seeds if asked.links else ():
        with world_of(asked.customers, seed) as world:
            found = books(world)
        for way, each in {"plain": found, "linked": linked(found), "beside": beside(found)}.items():
            auc, precision = judged(seed, each)
            sys.stdout.write(f"{seed} {way}: AUC {auc:.4f}, average precision {precision:.4f}\n")


@contextmanager
def world_of(customers: int, seed: int) -> Iterator[Path]:
    """A made-up world, written."""
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder) / "world"
        export_payments(PaymentsSettings(customers=customers, transfers=10 * customers), world, seed)
        yield world


def lost(world: Path, days: int, period: int) -> float:
    """Share of pairs of accounts at different banks, of some days, that one of the two books lacks."""
    transfers = pd.concat([pd.read_csv(world / bank / "transfers.csv") for bank in BANKS]).drop_duplicates("transfer")
    across = transfers[transfers.payer_bank != transfers.payee_bank]
    booked = pd.to_datetime(across.time)
    end = booked.max().normalize()
    begin = end - pd.Timedelta(days=period)

    def pairs(later: int) -> set[tuple[str, ...]]:
        day = booked + pd.Timedelta(days=later)
        return set(across[(day >= begin) & (day < end)][PAIR].itertuples(index=False, name=None))

    paid, received = pairs(0), pairs(days)
    return len(paid ^ received) / len(paid | received)


def books(world: Path) -> Books:
    """What the banks' tables say."""
    graphs, ids = list[PartyGraph](), dict[PartyId, list[str]]()
    for bank in BANKS:
        own = Organisation.read(world / bank / "accounts.yaml", bank)
        table = read_table(own.settings, own.folder, None, "none")
        built = build_graph(own.settings, own.folder, table, fit_encoding(table, "none"), others=[*BANKS])
        graphs.append(built.graph)
        ids[bank] = built.ids.to_pylist()
    return graphs, ids


def _own(found: Books) -> dict[PartyId, dict[str, int]]:
    graphs, ids = found
    return {graph.party: {text: row for row, text in enumerate(ids[graph.party][: graph.common])} for graph in graphs}


def linked(found: Books) -> Books:
    """With an edge in both directions between two accounts of a customer."""
    graphs, ids, own = list[PartyGraph](), dict[PartyId, list[str]](), _own(found)
    for graph in found[0]:
        names = list(found[1][graph.party])
        rows, mine, ends = {text: row for row, text in enumerate(names)}, own[graph.party], list[tuple[int, int]]()
        for other in own.keys() - {graph.party}:
            for customer in sorted(mine.keys() & own[other].keys()):
                name = f"{other}/{customer}"
                if name not in rows:
                    rows[name] = len(names)
                    names.append(name)
                ends += [(mine[customer], rows[name]), (rows[name], mine[customer])]
        edges = torch.cat([graph.edge_index, torch.tensor(ends, dtype=torch.int64).T], 1)
        weights = None if graph.edge_weight is None else torch.cat([graph.edge_weight, torch.ones(len(ends))])
        longer = append_others(graph, len(names) - graph.num_nodes)
        graphs.append(replace(longer, edge_index=edges, edge_weight=weights, num_common=graph.common))
        ids[graph.party] = names
    return graphs, ids


def beside(found: Books) -> Books:
    """With what the customer's other account has more than an account, and whether there is one, as columns."""
    graphs, own = list[PartyGraph](), _own(found)
    columns = {graph.party: graph.features.to_dense() for graph in found[0]}
    for graph in found[0]:
        more = torch.zeros(graph.num_nodes, graph.num_features + 1)
        for customer, row in own[graph.party].items():
            others = [
                columns[bank][rows[customer]] for bank, rows in own.items() if bank != graph.party and customer in rows
            ]
            if others:
                more[row] = torch.cat([torch.stack(others).mean(0) - columns[graph.party][row], torch.ones(1)])
        graphs.append(replace(graph, features=torch.cat([columns[graph.party], more], 1)))
    return graphs, found[1]


def judged(seed: int, found: Books) -> tuple[float, float]:
    """AUC and average precision of validation accounts, means over the banks."""
    files: Mapping[str, str] = {bank: f"{bank}.safetensors" for bank in BANKS}
    data = {"graphs": files, "label_holder": "B", "feature_scaling": "standard"}
    train = {"select_by": "auc", "class_weights": "balanced"}
    job = union(parse_job({"paradigm": "union", "seed": seed, "data": data, "train": train}))
    inputs = PARADIGMS["union"].data.accept(job, *found)
    logits = together(job, inputs.graphs, inputs.ids)
    figures = [_of_own(graph, logits[graph.party]) for graph in inputs.graphs]
    return float(np.mean([auc for auc, _ in figures])), float(np.mean([precision for _, precision in figures]))


def _of_own(graph: PartyGraph, logits: Tensor) -> Sequence[float]:
    assert graph.labels is not None
    assert graph.val_mask is not None
    rows = graph.val_mask[: graph.common]
    truth, scores = graph.labels[: graph.common][rows], logits.softmax(1)[rows, 1]
    return roc_auc_score(truth, scores), average_precision_score(truth, scores)


if __name__ == "__main__":
    main()
