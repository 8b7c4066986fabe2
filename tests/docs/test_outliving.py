"""docs/explanation/threat-model.md lists all that outlives a session in a party's part of a run."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from docs.pages import find_page
from tests.paradigms.sealed.private import voting
from tests.roles.federation import Settings, merge
from veilgraph.core.tensor_file import load_tensors
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import predict, train

PAGE = find_page("threat-model.md")
SHORT: Settings = {"data": {"dataset": "synthetic"}, "train": {"epochs": 2, "checkpoint_every": 1}}
FREE: Settings = {"train": {"patience": None}}
JOBS: dict[str, Settings] = {
    "vertical": {},
    "horizontal": {"paradigm": "horizontal"},
    "node-dp": {"paradigm": "node-dp", "release": {"features": {"epsilon": 4.0, "low": -10.0, "high": 10.0}}, **FREE},
    "averaging": {"paradigm": "averaging", **FREE},
    "sealed": {"paradigm": "sealed"},
    "sealed, disputes": {"paradigm": "sealed", "disputes": True},
    "sealed, votes": merge({"paradigm": "sealed"}, voting(epsilon_total=4)),
}


def listed() -> list[str]:
    """Patterns of the entries in the page's table."""
    section = PAGE.read_text(encoding="utf-8").split("## What outlives a session")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [pattern for cell in cells for pattern in re.findall("`([^`]+)`", cell)]


def entries(run: Path) -> set[str]:
    """Files of the parties' folders, and what is in those with weights and checkpoints."""
    found = set[str]()
    for path in (run / "parties").rglob("*"):
        name = "/".join(path.relative_to(run / "parties").parts[1:])
        if not path.is_file() or not name:
            continue
        if path.suffix == ".safetensors" and not fnmatch(name, "graph.safetensors"):
            inside = load_tensors(path)[0] if path.stem.startswith(("epoch", "model")) else {}
            found |= {f"{name}: {tensor}" for tensor in inside}
        found.add(name)
    return found


@pytest.mark.parametrize("name", JOBS)
def test_all_that_a_party_saves_is_listed(name: str, tmp_path: Path) -> None:
    run = train(parse_job(merge(SHORT, JOBS[name])), tmp_path / "run").path
    predict(run)
    patterns = listed()
    unlisted = {entry for entry in entries(run) if not any(fnmatch(entry, pattern) for pattern in patterns)}
    assert unlisted == set()
    assert not [entry for entry in entries(run) if ": state/" in entry or ": optimizer/" in entry]  # it is complete


def test_a_dealer_saves_nothing_but_how_far_it_is(tmp_path: Path) -> None:
    run = train(parse_job(merge(SHORT, JOBS["sealed, votes"])), tmp_path / "run").path
    dealt = [load_tensors(path)[0] for path in (run / "parties" / "server").rglob("*.safetensors")]
    assert len(dealt) >= 2
    assert {name.removeprefix("best/") for names in dealt for name in names} == {"weight.trial"}
