"""What a finished training comes to (summary.json, traffic.json), and what it is compared with.

It is compared with the same network trained on each holder's data alone, and on all data pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

import torch

from veilgraph.core.errors import RunError
from veilgraph.core.files import read_json, write_json
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import PartyId
from veilgraph.graph.party import load_party
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.protocol.plain_fitting import Inputs, Progress
from veilgraph.runtime.store import ALONE, LEDGER_SUMMARY
from veilgraph.runtime.store.run_directory import RunDirectory


def summarise(run: RunDirectory, parties: Sequence[PartyId], scored: PartyId) -> None:
    """Writes summary.json and traffic.json of a finished training, whose result is that of ``scored``.

    ``parties`` are those whose parts are here. Raises ``RunError`` where a file is missing or damaged.
    """
    again = "train again", "missing or damaged"
    logs = (read_json(run.party(party).path / "traffic.json", list[Record], *again) for party in parties)
    traffic = [entry for log in logs for entry in log]
    write_json(run.path / "traffic.json", traffic, indent=2)
    result = read_json(run.party(scored).path / "result.json", Record, *again)

    def found(name: str) -> dict[PartyId, Record]:
        paths = {party: run.party(party).path / name for party in parties}
        return {party: read_json(path, Record, *again) for party, path in paths.items() if path.is_file()}

    if adds_noise(run.settings):
        result["privacy"] = found(LEDGER_SUMMARY)
    if alone := found(ALONE):
        result["alone"] = alone
    result["seconds_per_step"] = fmean(record["step_seconds"] for record in run.metrics())
    result["sent_bytes"] = {
        party: sum(entry["bytes"] for entry in traffic if entry["party"] == party and entry["direction"] == "sent")
        for party in parties
    }
    write_json(run.path / "summary.json", result, indent=2)


_FEDERATED: Final = "federated"
COMPARED: Final = "compared.json"
"""In a run's directory: what its network reaches alone and pooled, once compared."""
Stage = Callable[[str, int], AbstractContextManager[Progress]]
"""(what is trained, its epochs) → a block that shows its progress."""


@dataclass(frozen=True)
class Comparison:
    """What one network reaches in three ways; accuracies are in [0, 1].

    Attributes:
        alone: holder → what it reaches by itself. Vertical: one without labels is lent the label holder's. Horizontal:
        on its own nodes; holders without labels are left out.
        pooled: what it reaches on all data pooled, which nobody may have in practice.
        here: holder → what the run reaches on that holder's own nodes; empty where holders have no nodes of their own.
        judge: the holder on whose own nodes alone ``federated`` is judged, so that it says no more than ``here``; else
        empty.
    """

    federated: Record
    alone: Mapping[PartyId, Record]
    pooled: Record
    here: Mapping[PartyId, Record] = field(default_factory=dict)
    judge: PartyId = ""

    def summaries(self) -> dict[str, Record]:
        """Name of each training → its summary: holders alone, federated, pooled."""
        rows = dict[str, Record]()
        for party, summary in self.alone.items():
            rows[f"{party} alone"] = summary
            if party in self.here:
                rows[f"{_FEDERATED}, {party}'s nodes"] = self.here[party]
        together = {} if self.judge else {_FEDERATED: self.federated}
        return {**rows, **together, "pooled": self.pooled}

    def references(self, figure: str = "accuracy") -> dict[str, float]:
        """Name → ``figure`` on the test split, of the trainings that are not federated and have that figure."""
        key = f"test_{figure}"
        rows = self.summaries().items()
        others = {name: summary.get(key) for name, summary in rows if not name.startswith(_FEDERATED)}
        return {name: value for name, value in others.items() if value is not None}


def judge_of(job: JobSettings, summary: Record) -> PartyId:
    """The holder whose own nodes alone the test figures of a run's summary are of; empty where they are of all."""
    own = summary.get("alone", {}).get(job.data.label_party, {}).get("together", {})
    figures = [key for key in own if key.startswith("test_")]
    is_own = bool(figures) and all(own[key] == summary.get(key) for key in figures)
    return job.data.label_party if is_own else ""


def compare(run: RunDirectory, stage: Stage = lambda name, epochs: nullcontext(lambda records: None)) -> Comparison:
    """Train a complete run's network on each holder's data alone and on all data pooled; write compared.json.

    Raises ``ConfigError``: there are no such trainings; ``RunError``: the run is not complete, or lacks data.
    """
    job = run.settings
    together = run.result()
    inputs, paradigm, alone = _all_inputs(run), PARADIGMS[job.paradigm], dict[PartyId, Record]()
    with one_thread():
        for party in job.data.names:
            with stage(f"{party} alone", job.train.epochs) as progress:
                result = paradigm.baselines.alone(inputs, party, progress)
            if result is not None:
                alone[party] = result.summary
        with stage("pooled", job.train.epochs) as progress:
            pooled = paradigm.baselines.pooled(inputs, progress).summary
    how = {key: together[key] for key in ("best_epoch", "seconds_per_step")}
    here = {party: {**how, **found["together"]} for party, found in together.get("alone", {}).items()}
    found = Comparison(together, alone, pooled, here, judge_of(job, together))
    write_json(run.path / COMPARED, found.summaries())
    return found


def read_compared(run: RunDirectory) -> dict[str, Record]:
    """``Comparison.summaries`` of a run; empty where it was not compared. Raises ``RunError`` where it is damaged."""
    path = run.path / COMPARED
    if not path.is_file():
        return {}
    return read_json(path, dict[str, Record], f"compare again with: veilgraph compare {run.path}")


def _all_inputs(run: RunDirectory) -> Inputs:
    """The graphs and ids of all holders of a run; ``RunError``: one of them is not here."""
    names = run.settings.data.names
    missing = [name for name in names if not (run.party_path(name) / "graph.safetensors").is_file()]
    if missing:
        raise RunError(
            f"{run.path} has no data of {', '.join(missing)}; only a run of all parties on one machine can be compared "
            "with the same data in one place"
        )
    stores = {name: run.party(name) for name in names}
    ids = {name: found for name, store in stores.items() if (found := store.ids()) is not None}
    return Inputs(run.settings, [load_party(store.graph_path) for store in stores.values()], ids)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch to one thread: with matrices this small, threads cost more than they give."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
