"""The directory of a run: what is written where, whole or not at all.

job.yaml                       the job as run, every default spelled out
metrics.jsonl                  one line per epoch, by the label holder
summary.json                   the result, once the run is complete
traffic.json                   messages and bytes by party, peer and kind
curves.png                     loss and accuracy over epochs
audit.json                     what attacks on the parties' views found, once audited
report.html                    all of it on one page, once asked for
trace.json                     where the time of the newest training went, in one with a profile
parties/<name>/                private to that party
    graph.safetensors          its data
    nodes.safetensors          from tables: ids of its rows; encoding.json its features' encoding, tables.sha256 whether
                               they have changed since, alignment.json the common nodes; horizontal: ids alone
    release.safetensors        the newest single release, where a job has one
    ledger.jsonl               its privacy ledger, written before every release; ledger.json: what it comes to
    canaries.safetensors       where a job has any: what tells which rows they replace, and what an audit is to guess
    disclosures.jsonl          what it sent to whom, and why that may leave it
    checkpoints/epoch-*.safetensors   its part of the state, the two newest
    model.safetensors          its part of the best model, once the run is complete
    predictions.csv            at the label holder; horizontal: at every holder
    view/NNN-<work>.messages   where views are recorded: messages that it sent or received, a file for each session;
                               passes.json how many passes' beside the newest
    trace.json                 its part of the trace
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from veilgraph.core.chain import digest
from veilgraph.core.config import JobSettings, read_job, write_job
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import locked, write_whole
from veilgraph.core.trace import write_trace
from veilgraph.core.types import PartyId
from veilgraph.graph.ids import pack_ids, unpack_ids
from veilgraph.privacy.canaries import Canaries

_KEPT_CHECKPOINTS: Final = 2
_NODES: Final = "nodes.safetensors"
_PASSES: Final = "passes.json"
_UNFINISHED: Final = re.compile(r"\.[^.]+\.(safetensors|jsonl?|csv|png|html)\.\w+")
"""Names of the files that ``write_whole`` and ``save_party`` have not renamed yet."""
Record = dict[str, Any]


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = _Lines(path / "metrics.jsonl")

    @classmethod
    def create(cls, path: Path, settings: JobSettings) -> RunDirectory:
        """A fresh run.

        Raises:
            RunError: the directory exists and is not empty, or cannot be written.
        """
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise RunError(f"{path} exists and is not an empty directory; choose another --out or remove it")
            path.mkdir(parents=True, exist_ok=True)
            temporary = path / ".job.yaml"
            write_job(settings, temporary)
            temporary.replace(path / "job.yaml")
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error}); choose another --out") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run.

        Raises:
            RunError: there is no readable run at ``path``.
        """
        if not (path / "job.yaml").is_file():
            raise RunError(f"{path} is not a run directory: it has no job.yaml; give the directory of a run")
        return cls(path)

    @cached_property
    def settings(self) -> JobSettings:
        """The job as run, as it was when first asked for.

        Raises:
            RunError: job.yaml was changed into something else.
        """
        try:
            return read_job(self.path / "job.yaml")
        except ConfigError as error:
            raise RunError(f"the run's own job cannot be read: {error}") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from working on the run, and removes what a killed one left half-written.

        Raises:
            RunError: another process does.
        """
        with locked(self.path, f"{self.path} is in use by another process; wait for it, or stop it"):
            self._forget_unfinished()
            yield

    def _forget_unfinished(self) -> None:
        for path in self.path.rglob(".*"):
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def begun(self) -> bool:
        """Whether a party's part of a training is here."""
        return any((self.path / "parties").glob("*/checkpoints/epoch-*.safetensors"))

    def trained(self) -> bool:
        """Whether a party's part of a trained model is here."""
        return any((self.path / "parties").glob("*/model.safetensors"))

    @property
    def trace_path(self) -> Path:
        """Where the trace of all parties lies."""
        return self.path / "trace.json"

    def party_path(self, party: PartyId) -> Path:
        """Where the private part of one party is."""
        return self.path / "parties" / party

    def party(self, party: PartyId) -> PartyStore:
        """The private part of one party, made at need."""
        return PartyStore(self.party_path(party))

    @property
    def summary(self) -> Record | None:
        """The result, None while the run is not complete."""
        path = self.path / "summary.json"
        if not path.is_file():
            return None
        return _parse(path.read_text(encoding="utf-8"), path)

    def write_json(self, name: str, value: object) -> None:
        """Writes a JSON file whole."""
        write_whole(self.path / name, json.dumps(value, indent=2).encode())

    def append_metrics(self, record: Record) -> None:
        """Adds one epoch to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[Record]:
        """All complete lines of metrics.jsonl; a line torn by a kill is left out. For one thread at a time."""
        return self._lines.records()

    def forget_metrics_after(self, epoch: int) -> None:
        """Drops the epochs that a resumed run will do again."""
        path = self.path / "metrics.jsonl"
        kept = [record for record in _Lines(path).records() if record["epoch"] <= epoch]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        write_whole(path, text.encode())


class _Lines:
    """A file of JSON lines that grows while it is read: every line is parsed once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._read = 0, 0
        self._records: list[Record] = []

    def records(self) -> list[Record]:
        """Those of all complete lines."""
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
        self._records += [_parse(line, self._path) for line in complete.decode().splitlines()]
        self._read += len(complete) + len(newline)
        return list(self._records)


def _parse(text: str, path: Path) -> Record:
    try:
        record: Record = json.loads(text)
    except json.JSONDecodeError as error:
        raise RunError(f"{path}: damaged ({error}); delete it and --resume") from error
    return record


class PartyStore:
    """One party's private files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checkpoints, self._views = path / "checkpoints", path / "view"
        self._checkpoints.mkdir(parents=True, exist_ok=True)

    @property
    def graph_path(self) -> Path:
        """Where the party's data lies."""
        return self.path / "graph.safetensors"

    @property
    def model_path(self) -> Path:
        """Where the party's part of the trained model lies."""
        return self.path / "model.safetensors"

    @property
    def trace_path(self) -> Path:
        """Where the party's trace lies; it is there where every training of the run keeps one."""
        return self.path / "trace.json"

    def keep_trace(self) -> None:
        """Has every later training session of the party keep a trace, in place of the one before."""
        write_trace(self.trace_path, [], {})

    def record_views(self, passes: int | None) -> None:
        """Has every later session of the party keep what it sends and receives, of so many passes and the newest."""
        self._views.mkdir(exist_ok=True)
        write_whole(self._views / _PASSES, json.dumps(passes).encode())

    def new_view(self, work: str) -> tuple[Path, int | None] | None:
        """Where this session's view goes, and of how many passes it is; None where views are not recorded."""
        kept = self._views / _PASSES
        if not kept.is_file():
            return None
        passes: int | None = json.loads(kept.read_text(encoding="utf-8"))
        return self._views / f"{len(self.views()):03d}-{work}.messages", passes

    def views(self) -> list[Path]:
        """The views of the sessions so far, in their order; none where views are not recorded."""
        return sorted(self._views.glob("*.messages"))

    def save_ids(self, ids: Sequence[str]) -> None:
        """Keeps the ids of the graph's rows."""
        save_tensors(self.path / _NODES, pack_ids(ids), {})

    def ids(self) -> list[str] | None:
        """The ids of the graph's rows; None where there are none.

        Raises:
            RunError: the file is damaged.
        """
        path = self.path / _NODES
        return unpack_ids(load_tensors(path)[0]) if path.is_file() else None

    @property
    def canaries_path(self) -> Path:
        """Where the party's canaries lie."""
        return self.path / "canaries.safetensors"

    def save_canaries(self, canaries: Canaries) -> None:
        """Keeps what is to take the place of some of the party's rows."""
        key = torch.frombuffer(bytearray(canaries.key), dtype=torch.uint8)
        save_tensors(self.canaries_path, {"key": key}, {"count": canaries.count, "nodes": canaries.nodes})

    def canaries(self) -> Canaries | None:
        """The party's canaries; None where there are none.

        Raises:
            RunError: the file is damaged.
        """
        path = self.canaries_path
        if not path.is_file():
            return None
        tensors, facts = load_tensors(path)
        try:
            return Canaries(int(facts["count"]), int(facts["nodes"]), bytes(tensors["key"].tolist()))
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path}: damaged ({error}); restore it, or begin a new run") from error

    def has_seed(self) -> bool:
        """Whether the party has a learning seed already."""
        return (self.path / "seed.json").is_file()

    def save_seed(self, seed: int) -> None:
        """Keeps the party's learning seed."""
        write_whole(self.path / "seed.json", json.dumps(seed).encode())

    def seed(self) -> int:
        """The party's learning seed.

        Raises:
            RunError: it is missing or damaged.
        """
        path = self.path / "seed.json"
        try:
            return int(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path}: missing or damaged ({error}); the run cannot go on without it") from error

    def append_disclosures(self, lines: Callable[[str], str]) -> None:
        """Adds to disclosures.jsonl what a piece of work sent, all of it or nothing.

        Args:
            lines: given the SHA-256 of the last line that is there, or nothing, the lines to add.
        """
        path = self.path / "disclosures.jsonl"
        content = path.read_bytes() if path.is_file() else b""
        last = content.splitlines()[-1:]
        write_whole(path, content + lines(digest(last[0]) if last else "").encode())

    def epochs(self) -> list[int]:
        """Epochs whose checkpoints are here, ascending."""
        return sorted(int(path.stem.removeprefix("epoch-")) for path in self._checkpoints.glob("epoch-*.safetensors"))

    def save_checkpoint(self, epoch: int, tensors: Mapping[str, Tensor], facts: Record) -> None:
        """Writes a checkpoint whole and drops all but the two newest before it."""
        save_tensors(self.checkpoint_path(epoch), tensors, facts)
        older = [held for held in self.epochs() if held <= epoch]
        for held in older[:-_KEPT_CHECKPOINTS]:
            self.checkpoint_path(held).unlink(missing_ok=True)

    def checkpoint_path(self, epoch: int) -> Path:
        """Where the checkpoint of an epoch lies."""
        return self._checkpoints / f"epoch-{epoch:06d}.safetensors"

    def load_checkpoint(self, epoch: int) -> tuple[dict[str, Tensor], Record]:
        """Reads a checkpoint.

        Raises:
            RunError: the file is missing or damaged.
        """
        tensors, facts = load_tensors(self.checkpoint_path(epoch))
        if not {"judgement", "stopped"} <= facts.keys():
            raise RunError(f"{self.checkpoint_path(epoch)}: damaged (no judgement in it); delete it and --resume")
        return tensors, facts

    def forget_after(self, epoch: int) -> None:
        """Drops the model, and checkpoints newer than what the parties agreed on.

        Another session's shares do not fit this one's, and a kill may come before every party has its new model.
        """
        self.model_path.unlink(missing_ok=True)
        for held in self.epochs():
            if held > epoch:
                self.checkpoint_path(held).unlink(missing_ok=True)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Record) -> None:
    """Writes tensors and JSON-able facts to one safetensors file, whole or not at all."""
    copies = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    write_whole(path, save(copies, {"facts": json.dumps(facts)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Record]:
    """Reads what ``save_tensors`` wrote.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts: Record = json.loads((file.metadata() or {})["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise RunError(f"{path}: missing or damaged ({error}); delete it and --resume, or train again") from error
