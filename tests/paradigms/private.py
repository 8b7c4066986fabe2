"""What was paid, sent and kept in private runs, and refusals of all parties."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from veilgraph.core.errors import BudgetSpent, ConfigError, PeerFailed
from veilgraph.core.tensor_file import load_tensors
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import load_party, save_party
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.store.run_directory import RunDirectory

LABEL_HOLDER, OTHER = "A", "B"


def graph(run: Path, party: PartyId) -> Path:
    return run / "parties" / party / "graph.safetensors"


def change_features(run: Path, party: PartyId) -> None:
    before = load_party(graph(run, party))
    save_party(replace(before, features=before.features.to_dense() + 1), graph(run, party))


def released(run: Path, name: str) -> Tensor:
    """What the label holder was given, and keeps."""
    return load_tensors(run / "parties" / LABEL_HOLDER / "release.safetensors")[0][name]


def lose(run: Path, party: PartyId) -> None:
    """The kept release of one party."""
    (run / "parties" / party / "release.safetensors").unlink()


def ledger(run: Path, party: PartyId) -> Path:
    return run / "parties" / party / "ledger.jsonl"


def entries(run: Path, party: PartyId) -> list[dict[str, Any]]:
    """A ledger's lines but the first; a line that a kill left unfinished is none."""
    path = ledger(run, party)
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines[1:] if line.endswith(b"\n")]


def paid(run: Path, party: PartyId) -> Counter[str]:
    """Channel → releases that the party's ledger counts."""
    found = Counter[str]()
    for entry in entries(run, party):
        found[entry["channel"]] += entry["count"]
    return found


def kinds_sent(run: Path, party: PartyId, work: str = "traffic.json") -> set[str]:
    rows = json.loads((run / "parties" / party / work).read_text())
    return {row["kind"] for row in rows if row["direction"] == "sent"}


@contextmanager
def errors_of_all() -> Iterator[dict[PartyId, BaseException]]:
    """What every party fails with, not the first cause alone."""
    found: dict[PartyId, BaseException] = {}
    original = jobs.__dict__["run_simulated"]

    def run(of: RunDirectory, party: PartyId, *rest: Any) -> None:
        try:
            original(of, party, *rest)
        except BaseException as error:
            found[party] = error
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "run_simulated", run)
        yield found


def refused_by_all(do: Callable[[], object], message: str) -> str:
    """Every party ends, with the same refusal on one line or, where it was slower, because another has ended so."""
    with errors_of_all() as errors, pytest.raises((ConfigError, BudgetSpent), match=message) as caught:
        do()
    refusal = str(caught.value)
    assert {LABEL_HOLDER, OTHER, SERVER} <= errors.keys()
    assert all(str(error) == refusal or isinstance(error, PeerFailed) for error in errors.values())
    assert "\n" not in refusal
    return refusal
