"""A job of two parties' tables whose nodes release once, and the ledger for life of the party that releases."""

from pathlib import Path
from typing import Any

import yaml

from tests import about
from tests.faults.runs import LABEL_HOLDER, OTHER, table_job
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.store.lifetime import lifetime_of


def says(folder: Path, party: str, **said: Any) -> None:
    """More in a party file."""
    path = folder / party / "party.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | said))


def job(folder: Path, limit: float, **features: Any) -> JobSettings:
    """B's nodes release their two features, within ``limit`` for life; A learns from them."""
    parties = table_job(folder).data.parties or {}
    for party in parties:
        nodes = yaml.safe_load((folder / party / "party.yaml").read_text())["nodes"]
        says(folder, party, nodes=nodes | {"features": [{"columns": ["x", "y"], "scale": {"low": -10, "high": 10}}]})
    says(folder, OTHER, limits={"max_epsilon": limit, "leakage": [], **about.NODES})
    return parse_job(
        {
            "paradigm": "node-dp",
            "data": {"parties": {name: str(path) for name, path in parties.items()}, "label_holder": LABEL_HOLDER},
            "model": {"dim": 4, "hops": 1},
            "train": {"epochs": 1},
            "release": {"features": {"mechanism": "laplace", "epsilon": 1.0, **features}},
        }
    )


def ledger(settings: JobSettings, party: str = OTHER) -> Lifetime:
    return lifetime_of(Organisation.read((settings.data.parties or {})[party], party))
