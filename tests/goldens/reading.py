"""What is pinned of a run: read from the files of its directory, which are documented, and from nothing else."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor

Pinned = dict[str, Any]

CLOCKS: Final = frozenset({"step_seconds", "seconds_per_step", "time"})
CHAINED: Final = frozenset({"job", "previous"})
"""Hashes, of the line before, which has a time, and of the whole job, whose text may gain a key with its default."""
_ROW: Final = ("kind", "messages", "bytes", "what", "protection", "reveals")
_HEAD: Final = ("party", "to", "work")
_DIGITS: Final = 12


def read_run(run: Path) -> tuple[Pinned, dict[str, str]]:
    """What is pinned of one run, by section (``comparing.py`` says how each is compared), and texts by their hashes."""
    parties = sorted(path.name for path in (run / "parties").iterdir())
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    disclosures, reasons = _disclosures(run, parties)
    pinned: Pinned = {
        "files": _files(run),
        "traffic": _traffic(json.loads((run / "traffic.json").read_text(encoding="utf-8"))),
        "sent bytes": summary["sent_bytes"],
        "disclosures": disclosures,
        "weights": {
            name: [f"{tensor.dtype} {list(tensor.shape)}", _rounded(float(tensor.double().norm())), _digest(tensor)]
            for name, tensor in _weights(run, parties)
        },
        "ledgers": dict(_ledgers(run, parties)),
        "scores": {key: value for key, value in summary.items() if key not in CLOCKS | {"sent_bytes", "privacy"}},
        "bits": dict(_bits(run, parties)),
    }
    if (run / "audit.json").is_file():
        pinned["findings"], pinned["bits"]["audit.json"] = _audit(run / "audit.json")
    return pinned, reasons


def _files(run: Path) -> dict[str, str]:
    folders: dict[str, list[str]] = {}
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        folders.setdefault(str(path.parent.relative_to(run)), []).append(path.name)
    return {folder: ", ".join(names) for folder, names in folders.items()}


def _traffic(entries: list[dict[str, Any]]) -> list[str]:
    """What was sent, and what was received of which the sender says something else."""
    rows: dict[str, set[str]] = {"sent": set(), "received": set()}
    for entry in entries:
        sent = entry["direction"] == "sent"
        ends = f"{entry['party']} > {entry['peer']}" if sent else f"{entry['peer']} > {entry['party']}"
        rest = {key: value for key, value in entry.items() if key not in ("party", "peer", "direction", "kind")}
        rows[entry["direction"]].add(" | ".join([ends, entry["kind"], *_named(rest)]))
    return sorted(rows["sent"]) + sorted(f"not as sent: {row}" for row in rows["received"] ^ rows["sent"])


def _disclosures(run: Path, parties: list[str]) -> tuple[list[str], dict[str, str]]:
    rows, reasons = [], {}
    for party in parties:
        for line in (run / "parties" / party / "disclosures.jsonl").read_text(encoding="utf-8").splitlines():
            record = {key: value for key, value in json.loads(line).items() if key not in CLOCKS | CHAINED}
            why = record.pop("why")
            short = hashlib.sha256(why.encode()).hexdigest()[:8]
            reasons[short] = why
            rest = {key: each for key, each in record.items() if key not in (*_HEAD, *_ROW) and each is not None}
            head = f"{record['party']} > {record['to']} | {record['work']}"
            rows.append(" | ".join([head, *(str(record[key]) for key in _ROW), *_named(rest), f"why {short}"]))
    return sorted(rows), reasons


def _named(record: dict[str, Any]) -> list[str]:
    return [f"{key} {_rounded(value)}" for key, value in sorted(record.items())]


def _weights(run: Path, parties: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of every party; of a secret-shared one the sum of the shares, which are random each by itself."""
    shared: dict[str, Tensor] = {}
    for party in parties:
        for name, tensor in sorted(load_file(run / "parties" / party / "model.safetensors").items()):
            if "share/" in name:
                shared[name] = shared[name] + tensor if name in shared else tensor
            else:
                yield f"{party}/{name}", tensor
    for name, tensor in shared.items():
        yield f"sum of shares/{name}", tensor


def _ledgers(run: Path, parties: list[str]) -> Iterator[tuple[str, Any]]:
    for party in parties:
        if (path := run / "parties" / party / "ledger.json").is_file():
            yield party, json.loads(path.read_text(encoding="utf-8"))


def _bits(run: Path, parties: list[str]) -> Iterator[tuple[str, str]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [{key: each for key, each in json.loads(line).items() if key not in CLOCKS} for line in lines]
    yield "metrics.jsonl", hashlib.sha256(json.dumps(metrics, sort_keys=True).encode()).hexdigest()
    for party in parties:
        folder = run / "parties" / party
        if (path := folder / "graph.safetensors").is_file():
            tensors = "".join(f"{name} {_digest(tensor)}" for name, tensor in sorted(load_file(path).items()))
            yield f"{party}/graph.safetensors", hashlib.sha256(tensors.encode()).hexdigest()
        if (path := folder / "predictions.csv").is_file():
            yield f"{party}/predictions.csv", hashlib.sha256(path.read_bytes()).hexdigest()


def _audit(path: Path) -> tuple[dict[str, list[Any]], str]:
    """Every finding's value, whether it passed and a hash of the rest; and a hash of the audit."""
    audit = _rounded(json.loads(path.read_text(encoding="utf-8")))
    values: dict[str, list[Any]] = {}
    for found in audit["findings"]:
        name = f"{found['adversary']} on {found['target']}: {found['attack']}, {found['secret']}, {found['evidence']}"
        value = found["value"]["value"] if isinstance(found["value"], dict) else found["value"]
        rest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
        if name in values:
            raise ValueError(f"two findings are named {name!r}; tell them apart in tests/goldens/reading.py")
        values[name] = [value, "passed" if found["passed"] else "failed", rest]
    return values, hashlib.sha256(json.dumps(audit, sort_keys=True).encode()).hexdigest()


def _digest(tensor: Tensor) -> str:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode() + content).hexdigest()


def _rounded(value: Any) -> Any:
    """The same with every number rounded to 12 digits."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
