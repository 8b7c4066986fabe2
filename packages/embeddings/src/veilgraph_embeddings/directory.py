"""The directory of an embedding job: what may be published apart from what may not (0600, folders 0700).

job.yaml                      the job as run, every default spelled out
publish/                      what may leave, and nothing else
    embeddings.csv            id and numbers of each node, ordered by id
    embeddings.safetensors    the same: ids, rows [N, d] float32
    card.json                 method, numbers, and of ``noise`` what ε protects; figures of the report are not here
private/
    encoder.safetensors       what the encoder learnt, of which parts follow from private values
    report.json               what attacks and uses found, before and after
    report.html               the same on one page
    ledger.jsonl              with ``noise``: the release, written before it was made; ledger.json: what it comes to
    published.json            SHA-256 of the files in publish/; written last: with it the run is complete
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.arguments import argument
from veilgraph.core.errors import RunError
from veilgraph.core.files import check_private, fresh_folder, os_errors_as, private_folder, write_whole
from veilgraph.core.tensor_file import load_tensors, save_tensors
from veilgraph.core.text import csv_cell
from veilgraph.graph.party import pack_ids, unpack_ids
from veilgraph_embeddings.settings import EmbedJob, read_embed_job, write_embed_job

PUBLISHED: Final = ("embeddings.csv", "embeddings.safetensors", "card.json")
FROM_EDGES: Final = "e*"
"""Columns of ``embeddings.csv``, as a party file names those that are made of edges (``nodes.columns_from_edges``)."""
_DONE: Final = "published.json"


@dataclass(frozen=True)
class EmbeddingDirectory:
    """One on disk.

    Attributes:
        path: of it.
    """

    path: Path

    @classmethod
    def create(cls, path: Path, job: EmbedJob) -> EmbeddingDirectory:
        """A fresh one.

        Raises:
            RunError: the directory exists and is not empty or others may use it, or it cannot be written.
        """
        with os_errors_as(RunError, f"{path}: cannot be written", f"choose another {argument('out')}"):
            fresh_folder(path)
            write_embed_job(job, path / "job.yaml")
            private_folder(path / "private")
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> EmbeddingDirectory:
        """A complete one.

        Raises:
            RunError: there is none, it was cut off, others may use it, or a published file is not what was written.
        """
        if not (path / "private" / _DONE).is_file():
            raise RunError(f"{path}: no complete embeddings are here; embed anew, with another {argument('out')}")
        check_private(path)
        found = cls(path)
        try:
            wanted = json.loads((path / "private" / _DONE).read_text(encoding="utf-8"))
            for name in PUBLISHED:
                if _digest(found.published / name) != wanted[name]:
                    raise RunError(f"{found.published / name}: is not what was written; restore it, or embed anew")
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path}: damaged ({error}); restore it, or embed anew") from error
        return found

    @property
    def published(self) -> Path:
        """What may leave."""
        return self.path / "publish"

    @property
    def private(self) -> Path:
        """What may not."""
        return self.path / "private"

    @property
    def job(self) -> EmbedJob:
        """As run."""
        return read_embed_job(self.path / "job.yaml")

    def write_encoder(self, weights: Mapping[str, Tensor]) -> None:
        """Keeps the encoder."""
        save_tensors(self.private / "encoder.safetensors", weights, {})

    def write_report(self, report: Mapping[str, Any], page: str) -> None:
        """Keeps the report, as JSON and as a page."""
        write_whole(self.private / "report.json", _json(report))
        write_whole(self.private / "report.html", page.encode())

    def publish(self, ids: Sequence[str], rows: Tensor, card: Mapping[str, Any]) -> None:
        """Writes what may leave, and that it is all there.

        Rows are ordered by id, so that their order tells nothing that ids do not.
        """
        order = sorted(range(len(ids)), key=ids.__getitem__)
        ids, rows = [ids[place] for place in order], rows[order].float()
        private_folder(self.published)
        write_whole(self.published / "embeddings.csv", _csv(ids, rows.numpy()))
        save_tensors(self.published / "embeddings.safetensors", {**pack_ids(ids), "rows": rows}, {})
        write_whole(self.published / "card.json", _json(card))
        digests = {name: _digest(self.published / name) for name in PUBLISHED}
        write_whole(self.private / _DONE, _json(digests))

    def embeddings(self) -> tuple[list[str], Tensor]:
        """Ids and rows, Tensor[N, d] float32.

        Raises:
            RunError: the file is missing or damaged.
        """
        tensors, _ = load_tensors(self.published / "embeddings.safetensors")
        return unpack_ids(tensors) or [], tensors["rows"]

    def report(self) -> dict[str, Any]:
        """What attacks and uses found."""
        found: dict[str, Any] = json.loads((self.private / "report.json").read_text(encoding="utf-8"))
        return found


def _csv(ids: Sequence[str], rows: NDArray[np.float32]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", *(f"e{place}" for place in range(rows.shape[1]))])
    writer.writerows([csv_cell(name), *map(str, row)] for name, row in zip(ids, rows, strict=True))
    return text.getvalue().encode()


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
