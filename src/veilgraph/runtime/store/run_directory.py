"""The directory of a run: what is written where, whole or not at all, and for this account alone (0600, folders 0700).

job.yaml                       the job as run, every default spelled out
metrics.jsonl                  one line per epoch, by the label holder; metrics.replaced.jsonl: with those that a
                               session goes back over
summary.json                   the result, once the run is complete
traffic.json                   messages and bytes by party, peer and kind
curves.png                     loss and accuracy over epochs
compared.json                  what each holder reaches alone, and all data in one place, once compared
audit.json                     what attacks on the parties' views found, once audited
report.html                    all of it on one page, once asked for
trace.json                     where the time of the newest training went, in one with a profile
parties/<name>/                private to that party
    graph.safetensors          its data
    tables/                    tables that were given from Python, and the party file that describes them
    nodes.safetensors          from tables: ids of its rows, as compared and as written; encoding.json its features'
                               encoding, profile.json what columns and relations were in training, drift.json how they
                               have moved by the newest prediction, tables.sha256 whether they have changed since,
                               alignment.json the common nodes; horizontal: ids alone
    release.safetensors        the newest single release, where a job has one; own_release.safetensors what this party
                               released, sent again for as long as its data have not changed
    ledger.jsonl               its privacy ledger, written before every release; ledger.json: what it comes to
    canaries.safetensors       where a job has any: what their places, or all but, and their coins follow from
    survivors.safetensors      averaging: the survivors of every sum that it helped to open
    disclosures.jsonl          what it sent to whom, and why that may leave it
    checkpoints/epoch-*.safetensors   its part of the state, the two newest; of a complete run the best weights alone;
                               replaced/: what a session goes back over, until there is something newer at every party;
                               common.json: what all have
    model.safetensors          its part of the best model, once the run is complete
    released.safetensors       what the job tells it of that model in the clear, where it tells anything
    predictions.csv            at the label holder; horizontal: at every holder
    begin.safetensors          at the server, where a job begins with an earlier run's weights: these
    wanted.safetensors         where predictions are of named nodes alone, at the label holder: those of the next one;
                               named.safetensors how many there have been
    answers.safetensors        where a prediction is kept closed, at a holder: its share of it, at the label holder the
                               order of its rows; answered.safetensors there what was opened of it, answers.socket where
                               a session that opens it is asked
    dispute/                   where a job has disputes: graph, what it put in and drew in training, signatures
    view/NNN-<work>.messages   where views are recorded: messages that it sent or received, a file for each session;
                               passes.json what of them is kept
    trace.json                 its part of the trace
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import torch
from pydantic import TypeAdapter
from pydantic_core import from_json

from veilgraph.core.arguments import argument, resuming
from veilgraph.core.chain import digest
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import (
    append,
    check_private,
    fresh_folder,
    locked,
    os_errors_as,
    private_folder,
    read_json,
    remove_temporary_files,
    run_errors,
    write_json,
    write_whole,
)
from veilgraph.core.tensor_file import OPENED, FolderKeeper, Record, load_tensors, save_tensors
from veilgraph.core.types import Kind, PartyId
from veilgraph.graph.party import pack_ids, unpack_ids
from veilgraph.link.view import ViewFile
from veilgraph.privacy.canaries import Canaries
from veilgraph.protocol.job import JobSettings, write_job
from veilgraph.protocol.job_file import read_job
from veilgraph.runtime.store import LEDGER, SENDING
from veilgraph.runtime.store.checkpoints import Checkpoints

__all__ = ["PartyStore", "Record", "RunDirectory", "load_tensors", "save_tensors"]

VIEW_PASSES: Final = 50
"""Passes of which a view keeps the messages: attacks use no more, and embeddings change most in the first."""
LEAST_PASSES: Final = 12
"""Of a large view: enough for every attack, though ``reconstruction`` then spans fewer columns."""
VIEW_BYTES: Final = 1 << 29
"""From this size on a view, unless it is asked for more, keeps no more than the least number of passes."""

_NODES, _WRITTEN, _CANARIES = "nodes", "written.", "canaries"
_PASSES: Final = "passes.json"
TABLES: Final = "tables"
"""Where a party's part of a run has the tables that were brought in memory."""
_ASIDE: Final = "metrics.replaced.jsonl"
_FACTS: Final = Kind.HELLO.name.lower()
_RECORD: Final = TypeAdapter(Record)
_COUNTS: Final = TypeAdapter(dict[str, int])


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = _JsonLines(path / "metrics.jsonl")

    @classmethod
    def create(cls, path: Path, settings: JobSettings) -> RunDirectory:
        """A fresh run. Raises ``RunError`` where the directory is not empty, not writable, or open to others."""
        if (path / "job.yaml").is_file():
            raise RunError(
                f"{path} is a run already; go on with it ({resuming(path)}), choose another "
                f"{argument('out')} or remove it"
            )
        with os_errors_as(RunError, f"{path}: cannot be written", f"choose another {argument('out')}"):
            fresh_folder(path)
            write_job(settings, path / "job.yaml")
        run = cls(path)
        run.settings = settings  # what was written need not be parsed
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run. Raises ``RunError`` where none is at ``path``, or others than its owner may use it."""
        if not (path / "job.yaml").is_file():
            raise RunError(f"{path} is not a run directory: it has no job.yaml; give the directory of a run")
        check_private(path)
        return cls(path)

    @cached_property
    def settings(self) -> JobSettings:
        """The job as run, as it was when first asked for. Raises ``RunError`` where job.yaml is something else now."""
        try:
            return read_job(self.path / "job.yaml")
        except ConfigError as error:
            raise RunError(f"the run's own job cannot be read: {error}", key=error.key, value=error.value) from error

    @contextmanager
    def lock(self, wait_s: float = 0.0) -> Iterator[None]:
        """Keeps other processes from the run, or raises ``RunError``; removes what a killed one left half-written."""
        with locked(self.path, f"{self.path} is in use by another process; wait for it, or stop it", wait_s=wait_s):
            remove_temporary_files(self.path)
            yield

    def discard_unsent(self) -> None:
        """Remove the run where its parties, which have ended, sent nothing but facts of the job; else leave it.

        A payment, a checkpoint or a party still at work leaves it as well: nothing that was paid for or sent is lost.
        """
        parties = [*self.path.glob("parties/*")]
        if self.begun() or any((each / SENDING).exists() or _has_paid(each / LEDGER) for each in parties):
            return
        for path in (each / "disclosures.jsonl" for each in parties):
            if path.is_file() and any(
                from_json(line)["kind"] != _FACTS for line in path.read_text("utf-8").splitlines()
            ):
                return
        shutil.rmtree(self.path)

    def begun(self) -> bool:
        """Whether a party's checkpoint is here."""
        return any((self.path / "parties").glob("*/checkpoints/**/epoch-*.safetensors"))

    def trained(self) -> bool:
        """Whether a party's part of a trained model is here."""
        return any((self.path / "parties").glob("*/model.safetensors"))

    @property
    def trace_path(self) -> Path:
        """Where the trace of all parties lies."""
        return self.path / "trace.json"

    def party_path(self, party: PartyId) -> Path:
        """Folder of the private part of one party; it need not exist."""
        return self.path / "parties" / party

    def party(self, party: PartyId) -> PartyStore:
        """The private part of one party, made at need."""
        return PartyStore(self.party_path(party))

    @property
    def summary(self) -> Record | None:
        """The result, None while the run is not complete."""
        path = self.path / "summary.json"
        return _parse(path.read_bytes(), path) if path.is_file() else None

    def result(self) -> Record:
        """The result. Raises ``RunError`` where the run is not complete, or only parts that learn none are here."""
        if (summary := self.summary) is not None:
            return summary
        if not self.settings.data.is_apart:
            raise RunError(f"{self.path} is not a complete run; finish it with: {resuming(self.path)}")
        knows = self.settings.duties.scoring
        if not any(self.party_path(party).is_dir() for party in knows):
            raise RunError(
                f"{self.path} has no part of {', '.join(knows)}: scores and predictions are at the label holder alone; "
                f"ask {knows[0]} for them",
                party=knows[0],
            )
        raise RunError(
            f"{self.path} is not a complete run; an administrator finishes it with: veilgraph net submit --resume"
        )

    def append_metrics(self, record: Record) -> None:
        """Adds one epoch to metrics.jsonl."""
        append(self.path / "metrics.jsonl", json.dumps(record).encode() + b"\n")

    def metrics(self) -> list[Record]:
        """All complete lines of metrics.jsonl; a line torn by a kill is left out. For one thread at a time."""
        return self._lines.records()

    def begin_metrics(self, epoch: int) -> None:
        """Cut metrics.jsonl back to ``epoch``; what it had stays in metrics.replaced.jsonl until ``settle_metrics``."""
        path, aside = self.path / "metrics.jsonl", self.path / _ASIDE
        records = _JsonLines(path).records()
        before = _JsonLines(aside).records() or records
        if records and records[-1]["epoch"] > epoch and not aside.exists():
            write_whole(aside, path.read_bytes())
        if not records or records[-1]["epoch"] < epoch:  # of a session that began again, and was cut off
            records = before
        kept = [record for record in records if record["epoch"] <= epoch]
        write_whole(path, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def settle_metrics(self) -> None:
        """Delete metrics.replaced.jsonl, once a session is beyond the epochs that it went back over."""
        (self.path / _ASIDE).unlink(missing_ok=True)


class _JsonLines:
    """A file of JSON lines that grows while it is read: every line is parsed once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._read = 0, 0
        self._records: list[Record] = []

    def records(self) -> list[Record]:
        """The records of all complete lines so far."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._file or status.st_size < self._read:  # written anew
                self._file, self._read, self._records = status.st_ino, 0, []
            file.seek(self._read)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._records += [_parse(line, self._path) for line in complete.splitlines()]
        self._read += len(complete) + len(newline)
        return list(self._records)


def _has_paid(ledger: Path) -> bool:
    """Whether a run's ledger has more than its first line, with which it is begun."""
    return ledger.is_file() and ledger.read_bytes().count(b"\n") > 1


def _parse(content: bytes, path: Path) -> Record:
    with run_errors(path, "delete it and resume"):
        return _RECORD.validate_json(content)


class ViewSize(NamedTuple):
    """Passes that a view keeps beside the newest, None for all; only ``LEAST_PASSES`` once it has ``most_bytes``."""

    passes: int | None
    most_bytes: int | None = None


def view_size(settings: JobSettings, passes: int | None = None) -> ViewSize:
    """The size of a job's views: ``passes``, 0 for all; None for ``VIEW_PASSES``, or all in jobs with noise."""
    if passes is not None:
        return ViewSize(passes or None)
    adds_up = settings.privacy is not None or settings.training_plan is not None
    return ViewSize(None) if adds_up else ViewSize(VIEW_PASSES, VIEW_BYTES)


class PartyStore:
    """One party's private files of a run.

    ``released_path`` is of the model in the clear, in jobs that tell it anything; ``trace_path`` is there where every
    training of the run keeps a trace.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._views = path / "view"
        self.keeper = FolderKeeper(path)
        self.graph_path, self.model_path = path / "graph.safetensors", path / "model.safetensors"
        self.released_path, self.trace_path = path / "released.safetensors", path / "trace.json"
        self.ids_path, self.canaries_path = self.keeper.path(_NODES), self.keeper.path(_CANARIES)
        self.checkpoints = Checkpoints(private_folder(path / "checkpoints"), self.model_path)

    def record_views(self, size: ViewSize) -> None:
        """Has every later session of the party keep what it sends and receives."""
        private_folder(self._views)
        write_json(self._views / _PASSES, size)

    def view_size(self) -> ViewSize | None:
        """The size that ``record_views`` set; None where views are not recorded."""
        kept = self._views / _PASSES
        return ViewSize(*from_json(kept.read_text(encoding="utf-8"))) if kept.is_file() else None

    def new_view(self, work: str) -> ViewFile | None:
        """Make the file of a new session's view, NNN-<work>.messages; None where views are not recorded."""
        size = self.view_size()
        if size is None:
            return None
        path = self._views / f"{len(self.views()):03d}-{work}.messages"
        return ViewFile(path, size.passes, size.most_bytes, LEAST_PASSES)

    def views(self) -> list[Path]:
        """The views of the sessions so far, in their order; none where views are not recorded."""
        return sorted(self._views.glob("*.messages"))

    def save_ids(self, ids: Sequence[str], written: Sequence[str] = ()) -> None:
        """Write the ids of the graph's rows: as holders compare them, and as ``written`` in the table if otherwise."""
        self.keeper.put(_NODES, pack_ids(ids) | (pack_ids(written, _WRITTEN) if written else {}), {})

    def ids(self, prefix: str = "") -> list[str] | None:
        """The ids of the graph's rows, stored under ``prefix``; None for none. ``RunError``: the file is damaged."""
        kept = self.keeper.get(_NODES)
        return None if kept is None else unpack_ids(kept.tensors, prefix)

    def written_ids(self) -> list[str]:
        """The ids as the holder's own table has them; empty where that is not known, or as compared."""
        return self.ids(_WRITTEN) or []

    def save_canaries(self, canaries: Canaries) -> None:
        """Write the count, nodes and key that the party's canaries follow from."""
        key = torch.frombuffer(bytearray(canaries.key), dtype=torch.uint8)
        self.keeper.put(_CANARIES, {"key": key}, {"count": canaries.count, "nodes": canaries.nodes})

    def canaries(self) -> Canaries | None:
        """The party's canaries; None where there are none. Raises ``RunError`` where the file is damaged."""
        if (kept := self.keeper.get(_CANARIES)) is None:
            return None
        tensors, facts = kept
        with run_errors(self.canaries_path, "restore it, or begin a new run"):
            counts = _COUNTS.validate_python(facts)
            return Canaries(counts["count"], counts["nodes"], tensors["key"].numpy().tobytes())

    def has_trained(self) -> bool:
        """Whether there is anything of a training here: checkpoints, a model, or a record of sums that were opened."""
        return self.checkpoints.has_trained() or self.keeper.path(OPENED).is_file()

    def has_seed(self) -> bool:
        """Whether the party has a learning seed already."""
        return (self.path / "seed.json").is_file()

    def save_seed(self, seed: int) -> None:
        """Keeps the party's learning seed."""
        write_json(self.path / "seed.json", seed)

    def seed(self) -> int:
        """The party's learning seed. Raises ``RunError`` where it is missing or damaged."""
        return read_json(self.path / "seed.json", int, "the run cannot go on without it", "missing or damaged")

    def append_disclosures(self, lines: Callable[[str], str]) -> None:
        """Append ``lines(hash)`` to disclosures.jsonl, all or nothing; hash: SHA-256 of its last line, "" for none."""
        path = self.path / "disclosures.jsonl"
        content = path.read_bytes() if path.is_file() else b""
        last = content.splitlines()[-1:]
        write_whole(path, content + lines(digest(last[0]) if last else "").encode())

    def epochs(self) -> list[int]:
        """Epochs whose checkpoints are here, ascending."""
        return self.checkpoints.epochs()
