"""Jobs across organisations on one machine."""

from pathlib import Path

from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.samples.organisations import export_dataset


def exported(tmp_path: Path) -> dict[str, Path]:
    return export_dataset(DataSettings(dataset="synthetic", holders=2), tmp_path / "tables", overlap=0.75, seed=3)


def job(parties: dict[str, Path], **changes) -> JobSettings:
    data = {"parties": {name: str(path) for name, path in parties.items()}, "feature_scaling": "standard"}
    return parse_job({"data": data, "model": {"dim": 4}, "train": {"epochs": 4, "checkpoint_every": 2}, **changes})
