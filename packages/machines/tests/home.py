"""A consortium in whose one job a holder has two machines: ``python -m packages.machines.tests.home OUT ADDRESS``."""

import json
import sys
from pathlib import Path

from tests.deploy.consortium import job, started
from veilgraph.runtime.store.predictions import load_predictions

CHANGES = {"precision": "float64", "timeout_s": 60}
NAMES = ("alone", "several")


def main(out: Path, address: str) -> None:
    """Train a job with one machine a holder, and the same with two at A, and write what A has of both."""
    found = {}
    with started(out / "consortium") as consortium:
        for name in NAMES:
            with consortium.changed(
                {"A": f"machines: {{count: 2, address: '{address}'}}"} if name == "several" else {}
            ):
                consortium.submit(job(name, **CHANGES))
            run = consortium.run("A", name)
            probabilities = load_predictions(run.party("A")).probabilities.tolist()
            found[name] = {"metrics": run.metrics(), "probabilities": probabilities}
    (out / "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
