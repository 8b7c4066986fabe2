"""Jobs of holders that bring graphs, or tables from Python, and the ledgers for life that they pay from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor

import veilgraph as vg
from tests import about
from tests.paradigms.private import LABEL_HOLDER, OTHER
from tests.roles.federation import small_parties
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.plain_fitting import LedgerPlace
from veilgraph.runtime.store.lifetime import LIMITS_FILE, lifetime_at
from veilgraph.samples.shipped import with_overrides

ONE: dict[str, Any] = {"mechanism": "laplace", "epsilon": 1.0, "low": -20.0, "high": 20.0}
QUICK: dict[str, Any] = {"train": {"epochs": 1, "patience": None, "select_by": "last"}}
JOB: dict[str, Any] = {"paradigm": "node-dp", "release": {"features": ONE}, "model": {"dim": 4, "hops": 1}, **QUICK}
"""Of what holders bring from Python: one learns, and the nodes of the other release their features once."""
QUIET: dict[str, Any] = {"model": {"dim": 4, "local": {"model": "appnp", "hops": 1}}, **QUICK}
"""A job of theirs that noises nothing."""
NODES = 60
IDS = [f"c{number}" for number in range(NODES)]


def anew(number: int, of: Mapping[str, Any] = JOB) -> dict[str, Any]:
    """The same job with another range: what was released is of no use for it."""
    return {**of, "release": {"features": {**ONE, "high": 20 + number / 100}}}


def job(folder: Path) -> JobSettings:
    """Over saved graphs."""
    files = {name: str(path) for name, path in saved(folder, None).items()}
    return parse_job({**JOB, "data": {"graphs": files, "label_holder": LABEL_HOLDER}})


def other(settings: JobSettings, number: int = 1) -> JobSettings:
    return with_overrides(settings, {"name": f"other{number}", "release.features.high": 20 + number / 100})


def folder_of(data: Path, party: str = OTHER) -> Path:
    return data / "ledger" / party


def ledger(folder: Path, party: str = OTHER) -> Lifetime:
    return lifetime_at(LedgerPlace(folder, party))


def limited(folder: Path, **limits: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIMITS_FILE).write_text(yaml.safe_dump({**about.NODES, **limits}))


def graphs() -> dict[str, PartyGraph]:
    return {graph.party: graph for graph in small_parties(2)}


def saved(folder: Path, ids: Sequence[str] | None, order: Sequence[int] | None = None) -> dict[str, Path]:
    """The graphs of two holders, B's nodes in another order and under these ids."""
    folder.mkdir(parents=True, exist_ok=True)
    places = torch.arange(NODES) if order is None else torch.tensor(order)
    for graph in graphs().values():
        moved = _moved(graph, places)
        save_party(moved, folder / f"{graph.party}.safetensors", ids)
    return {name: folder / f"{name}.safetensors" for name in "AB"}


def _moved(graph: PartyGraph, places: Tensor) -> PartyGraph:
    """Row n is what was row ``places[n]``."""
    inverse = torch.empty_like(places)
    inverse[places] = torch.arange(len(places))
    masks: dict[str, Any] = {
        name: None if getattr(graph, name) is None else getattr(graph, name)[places]
        for name in ("labels", "train_mask", "val_mask", "test_mask")
    }
    return replace(graph, features=graph.features.to_dense()[places], edge_index=inverse[graph.edge_index], **masks)


def customers() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Of a bank, with a label, and of a shop; and who paid whom."""
    rng = np.random.default_rng(3)
    ends = {"source": rng.choice(IDS, 120), "target": rng.choice(IDS, 120)}
    bank = pd.DataFrame({"id": IDS, "income": rng.normal(size=NODES), "fraud": rng.integers(0, 2, NODES)})
    shop = pd.DataFrame({"id": IDS, "spent": rng.normal(size=NODES), "age": rng.normal(size=NODES)})
    return bank, shop, pd.DataFrame(ends)


def frames() -> dict[str, vg.Tables]:
    """The same as holders bring them from Python."""
    bank, shop, paid = customers()
    return {
        "bank": vg.Tables(bank, paid, label="fraud"),
        "shop": vg.Tables(shop, paid, limits={**about.NODES, "max_epsilon": 1.0}),
    }
