"""A holder's site with small tables, asked whether it would take part in a job."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from veilgraph.deploy import part
from veilgraph.deploy.kit import Kit, SiteFile
from veilgraph.deploy.request import Request
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.site import CheckAnswer

JOB_ID = "a" * 32
NODES = "id,income,fraud\n" + "".join(f"c{n},{n * 1.5},{'yes' if n % 3 else 'no'}\n" for n in range(30))
EDGES = "payer,payee\n" + "".join(f"c{n},c{(n * 7 + 1) % 30}\n" for n in range(30))
PARTY: dict[str, Any] = {
    "party": "bank",
    "nodes": {
        "file": "nodes.csv",
        "id": "id",
        "features": [{"columns": ["income"], "missing": "mean"}],
        "label": {"column": "fraud", "classes": ["no", "yes"]},
        "split": {"train": 0.5, "val": 0.25, "test": 0.25},
    },
    "edges": [{"file": "edges.csv", "source": "payer", "target": "payee"}],
}


def job(name: str = "fraud", **changes: Any) -> JobSettings:
    data = {"holders": ["bank", "shop"], "label_holder": "bank", "feature_scaling": "standard"}
    return parse_job({"name": name, "data": data, "model": {"dim": 4}, **changes})


@dataclass
class Asked:
    """The bank's site.

    Attributes:
        kit: its kit, which has joined with ``file``.
        file: its party file, beside its tables.
    """

    kit: Kit
    file: Path

    def says(self, **changes: Any) -> None:
        """Changes the party file."""
        self.file.write_text(yaml.safe_dump(yaml.safe_load(self.file.read_text()) | changes), encoding="utf-8")

    def table(self, name: str, text: str) -> None:
        (self.file.parent / name).write_text(text, encoding="utf-8")

    def answer(self, settings: JobSettings | dict[str, Any]) -> CheckAnswer:
        """What the process of the site replies."""
        content = settings if isinstance(settings, dict) else settings.model_dump(mode="json")
        asked = Request(
            id=JOB_ID,
            project="fraud",
            sites=[self.kit.name],
            expires=0,
            ask="run",
            job=content,
            work="check",
        )
        return part.checked(asked, self.kit)

    def files(self) -> dict[Path, bytes]:
        """All that the site and its owner have, to the byte."""
        folders = (self.kit.path, self.file.parent)
        return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


@contextmanager
def asked(kit: Kit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """The site, joined in ``folder``."""
    monkeypatch.setattr(part, "NatsLink", lambda *_, **__: pytest.fail("it made a link"))
    monkeypatch.setattr(part, "take_part", lambda *_, **__: pytest.fail("it took part"))
    found = Asked(kit, folder / "party.yaml")
    found.file.write_text(yaml.safe_dump(PARTY), encoding="utf-8")
    found.table("nodes.csv", NODES)
    found.table("edges.csv", EDGES)
    kit.prepare(SiteFile(party_file=found.file, runs=folder / "runs"))
    yield found
