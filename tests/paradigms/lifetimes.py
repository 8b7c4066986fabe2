"""A job of two parties' tables that releases once, and the ledger for life of the party that releases."""

from pathlib import Path
from typing import Any

import yaml

from tests.faults.runs import OTHER, table_job
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.store.lifetime import lifetime_of

APPNP: dict[str, Any] = {
    "model": {"initial": {"method": "individual"}, "local": {"model": "appnp", "hops": 1}},
    "train": {"epochs": 1},
}


def job(folder: Path, limit: float, **privacy: Any) -> JobSettings:
    made = table_job(
        folder, APPNP, {"privacy": {"unit": "row", "schedule": "once", "epsilon_total": 1.0, "delta": 1e-4} | privacy}
    )
    unit = str(privacy.get("unit", "row"))
    relation = privacy.get("neighbours") or ("zero-out" if unit in ("row", "node-edges") else "replacement")
    protects: dict[str, Any] = {"epsilon_unit": unit, "epsilon_neighbours": relation, "most_neighbours": 1000}
    if unit == "node-edges":
        protects["most_neighbours"] = privacy["degree_bound"]
    path = folder / OTHER / "party.yaml"
    said = yaml.safe_load(path.read_text())
    said["nodes"]["features"] = [{"columns": ["x", "y"], "scale": {"low": -10, "high": 10}}]
    path.write_text(yaml.safe_dump(said | {"limits": {"max_epsilon": limit, "leakage": [], **protects}}))
    return made


def ledger(settings: JobSettings) -> Lifetime:
    return lifetime_of(Organisation.read((settings.data.parties or {})[OTHER], OTHER))
