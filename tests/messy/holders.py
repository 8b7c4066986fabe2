"""Tables of two holders, A and B, over which a job can be trained; and changes of these."""

import csv
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.paradigms.sealed.programs import small_graphs
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import revelation_causes
from veilgraph.samples.organisations import export_organisations

Rows = list[list[str]]

VERTICAL = parse_job(
    {"paradigm": "vertical", "data": {"graphs": {"A": "a", "B": "b"}, "label_holder": "A"}, "train": {"epochs": 3}}
)


def tables_of(folder: Path, job: JobSettings, **more: object) -> Path:
    """Tables of the same nodes, and the job over them; ``more`` is what the party files say as well."""
    export_organisations(small_graphs(), folder, overlap=1.0, seed=1, job=job)
    for party in "AB":
        path = folder / party / "party.yaml"
        content = yaml.safe_load(path.read_text()) | {"limits": {"leakage": list(revelation_causes(job))}, **more}
        content["edges"][0]["unknown"] = "drop"
        path.write_text(yaml.safe_dump(content))
    return folder / "job.yaml"


def rewrite(path: Path, change: Callable[[Rows], Rows]) -> None:
    """Other rows below a table's header."""
    with path.open(newline="") as file:
        head, *rows = csv.reader(file)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *change(rows)])
