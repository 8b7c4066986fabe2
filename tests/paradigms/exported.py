"""Small horizontal jobs from tables, and what of ids may be found where."""

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.samples.organisations import export_parts

HASHES = ("md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b", "blake2s")


def export(tmp_path: Path, settings: JobSettings) -> dict[str, Path]:
    return export_parts(settings.data, tmp_path / "tables", settings.seed, job=settings)


def over(parties: Mapping[str, Path], settings: JobSettings, **data: Any) -> JobSettings:
    """The job over the parties' own files in place of the data set."""
    content = settings.model_dump(mode="json")
    paths = {name: str(path) for name, path in parties.items()}
    scaling = settings.data.feature_scaling
    brought = "graphs" if all(path.endswith(".safetensors") for path in paths.values()) else "parties"
    return parse_job(content | {"data": {brought: paths, "feature_scaling": scaling, **data}})


@contextmanager
def edited(table: Path) -> Iterator[list[dict[str, str]]]:
    """The rows of a CSV, which are written back as the block leaves them."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    yield rows
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def plain_hashes(ids: Iterable[str]) -> dict[bytes, str]:
    """The first eight bytes of all that anybody can compute of an id without a key, raw and in hex, and of what."""
    found: dict[bytes, str] = {}
    for name in ids:
        plain = [hashlib.new(each, name.encode()).digest() for each in HASHES]
        for digest in (*plain, hashlib.blake2b(name.encode(), digest_size=16).digest()):
            found |= {digest[:8]: f"hash of {name}", digest.hex().encode()[:8]: f"hash of {name} in hex"}
    return found


def found_in(content: bytes, needles: Mapping[bytes, str]) -> set[str]:
    """Which of the needles, of eight bytes each, are anywhere in the content."""
    wanted = np.array([int.from_bytes(needle, "little") for needle in needles], dtype=np.uint64)
    named, hits = list(needles.values()), set()
    for start in range(8):
        words = np.frombuffer(content[start : start + (len(content) - start) // 8 * 8], dtype="<u8")
        hits |= {named[place] for place in np.flatnonzero(np.isin(wanted, words))}
    return hits
