"""A world of payments as the tables of its organisations, with jobs of several paradigms over them, and the truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from veilgraph.core.files import private_folder, whole_file
from veilgraph.core.types import PartyId
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import JOBS, parse_job
from veilgraph.samples.organisations import Rows, TableFormat, accepting, node_ids, write_table, write_yaml, writing
from veilgraph_datasets.settings import PATTERN_KINDS, PaymentsSettings
from veilgraph_datasets.transfers import CURRENCIES, LAWFUL, METHODS, Transfers
from veilgraph_datasets.world import SHOP, SPLITS, TELECOM, UNKNOWN, PaymentsWorld, View, payments_world

ROWS_AT_ONCE: Final = 1 << 20
"""Of a ledger, in memory as text."""
_BEGIN: Final = np.datetime64("2025-01-01T00:00:00", "s")
_CLASSES: Final = ("no", "yes")
_TRAIN: Final = {"epochs": 100, "select_by": "last", "patience": None}
_SEALED_TRAIN: Final = {"select_by": "auc"}
NETWORK: Final = "network"
"""The organisation that has the transfers between banks, and no customers."""
_ENDS: Final = {"source": "payer", "source_holder": "payer_bank", "target": "payee", "target_holder": "payee_bank"}
_JOBS: Final = {"horizontal": False, "averaging": False, "vertical": True, "sealed": True}
"""Paradigm → whether its holders have the same customers: the first bank, the shop and the telecom; else all banks."""


def export_payments(
    settings: PaymentsSettings,
    out: Path,
    seed: int,
    format: TableFormat = "csv",  # noqa: A002 - the option's name
) -> dict[PartyId, Path]:
    """Makes a world and writes what each of its organisations would export, and the truth beside them.

    In a folder for each bank, ``shop`` and ``telecom``: ``nodes``, ``edges`` and ``party.yaml``; at banks also
    ``accounts``, their own customers alone, ``transfers``, their ledger, and ``accounts.yaml``, the party file of both
    for a union. ``network`` has ``transfers`` between banks and ``party.yaml``. Beside these ``union.yaml``,
    ``network.yaml``, a union with it, ``horizontal.yaml``, ``averaging.yaml`` where that paradigm is installed,
    ``vertical.yaml`` and ``sealed.yaml``, which differ in ``paradigm``, ``data``, ``across`` and ``train``, and
    ``truth/``: ``customers``, ``patterns`` and the ``transfers`` that are part of one. Party files accept what these
    jobs reveal, and the margins of a sealed one.

    Returns:
        Organisation → its party file.

    Raises:
        DataError: a bank has too few customers for the patterns.
        RunError: ``out`` is in use or cannot be written.
    """
    with writing(out):
        world = payments_world(settings, seed)
        names = (*world.banks, SHOP, TELECOM)
        files = {name: out / name / "party.yaml" for name in names}
        contents = {paradigm: _job(paradigm, world, files) for paradigm in _JOBS if paradigm in JOBS}
        accounts = {name: files[name].with_name("accounts.yaml") for name in world.banks}
        contents["union"] = _job("union", world, accounts)
        accounts[NETWORK] = out / NETWORK / "party.yaml"
        contents[NETWORK] = _job("union", world, accounts) | {"across": NETWORK}
        jobs = [parse_job(content, paradigm) for paradigm, content in contents.items()]
        jobs.append(parse_job(contents["sealed"] | {"output": "margins"}))
        ids = pa.array(node_ids(np.arange(len(world.customers))))
        orders = np.random.default_rng(seed)
        for name, file in files.items():
            private_folder(file.parent)
            _write_view(world.view(name), ids, file, format, orders, jobs)
            if name in world.banks:
                seen = world.transfers.seen_by(world.banks.index(name))
                _write_ledger(world, seen, ids, file.with_name(f"transfers.{format}"))
                _write_accounts(world.view(name), ids, accounts[name], format, orders, jobs)
        private_folder(out / NETWORK)
        across = world.transfers.payer_bank != world.transfers.payee_bank
        _write_ledger(world, across, ids, out / NETWORK / f"transfers.{format}")
        edges = {"file": f"transfers.{format}", **_ENDS, "directed": True}
        mine = [job for job in jobs if NETWORK in job.data.names]
        write_yaml({"party": NETWORK, "edges": [edges], **accepting(*mine)}, accounts[NETWORK])
        for name, content in contents.items():
            write_yaml(content, out / f"{name}.yaml")
        _write_truth(world, ids, private_folder(out / "truth"), format)
    return files


def _job(paradigm: str, world: PaymentsWorld, files: Mapping[PartyId, Path]) -> dict[str, Any]:
    holders = (world.banks[0], SHOP, TELECOM) if _JOBS.get(paradigm) else world.banks
    brought = {name: str(file.absolute()) for name, file in files.items() if name in (*holders, NETWORK)}
    return {
        "name": "payments",
        "paradigm": paradigm,
        "seed": world.seed,
        "data": {"parties": brought, "label_holder": world.banks[0], "feature_scaling": "standard"},
        "train": _SEALED_TRAIN if paradigm in ("sealed", "union") else _TRAIN,
    }


def _write_view(
    seen: View,
    ids: pa.StringArray,
    file: Path,
    suffix: TableFormat,
    orders: np.random.Generator,
    jobs: list[JobSettings],
) -> None:
    rows = orders.permutation(len(seen.nodes))
    missing = "mean" if seen.labels is not None else "error"
    nodes = _write_nodes(seen, ids, rows, file.with_name(f"nodes.{suffix}"), missing)
    pairs = seen.ends[:, orders.permutation(seen.ends.shape[1])]
    ends = dict(zip(("source", "target"), (ids.take(pa.array(each)) for each in pairs), strict=True))
    write_table(ends, file.with_name(f"edges.{suffix}"))
    edges = {"file": f"edges.{suffix}", "source": "source", "target": "target", "directed": False}
    mine = [job for job in jobs if seen.name in job.data.names and job.paradigm != "union"]
    write_yaml({"party": seen.name, "nodes": nodes, "edges": [edges], **accepting(*mine)}, file)


def _write_nodes(seen: View, ids: pa.StringArray, rows: Rows, path: Path, missing: str) -> dict[str, Any]:
    """Some of the nodes that an organisation knows; what its party file says of them."""
    columns: dict[str, Any] = {"id": ids.take(pa.array(seen.nodes[rows]))}
    columns.update((name, pa.array(values[rows], from_pandas=True)) for name, values in seen.columns.items())
    features = [{"columns": list(seen.columns), "missing": missing}]
    nodes: dict[str, Any] = {"file": path.name, "id": "id", "features": features}
    if seen.labels is not None and seen.splits is not None:
        columns["laundering"] = _named(seen.labels[rows], _CLASSES)
        columns["split"] = _named(seen.splits[rows], SPLITS)
        nodes["label"] = {"column": "laundering", "classes": list(_CLASSES)}
        nodes["split"] = {"column": "split", **{name: name for name in SPLITS}}
    write_table(columns, path)
    return nodes


def _write_accounts(
    seen: View,
    ids: pa.StringArray,
    file: Path,
    suffix: TableFormat,
    orders: np.random.Generator,
    jobs: list[JobSettings],
) -> None:
    """A bank's own customers, and a party file of these and of its ledger."""
    own = np.flatnonzero(~np.isnan(next(iter(seen.columns.values()))))
    nodes = _write_nodes(seen, ids, orders.permutation(own), file.with_name(f"accounts.{suffix}"), "error")
    edges = {"file": f"transfers.{suffix}", **_ENDS, "weight": "amount", "directed": True}
    mine = [job for job in jobs if job.paradigm == "union"]
    write_yaml({"party": seen.name, "nodes": nodes, "edges": [edges], **accepting(*mine)}, file)


def _named(places: Rows, names: tuple[str, ...]) -> pa.StringArray:
    """The names at some places; nothing at ``UNKNOWN``."""
    return pa.array(names).take(pa.array(np.where(places == UNKNOWN, 0, places), mask=places == UNKNOWN))


def _write_ledger(world: PaymentsWorld, which: NDArray[np.bool_], ids: pa.StringArray, path: Path) -> None:
    """Some transfers, as they came, some at a time."""
    seen = np.flatnonzero(which)
    banks = pa.array(world.banks)
    parts = (seen[start : start + ROWS_AT_ONCE] for start in range(0, max(len(seen), 1), ROWS_AT_ONCE))
    write_parts((_ledger(world.transfers.take(rows), rows, ids, banks) for rows in parts), path)


def _ledger(transfers: Transfers, numbers: Rows, ids: pa.StringArray, banks: pa.StringArray) -> pa.Table:
    def said(names: pa.StringArray, places: Rows) -> pa.StringArray:
        return names.take(pa.array(places))

    return pa.table(
        {
            "transfer": numbers,
            "time": pa.array(_BEGIN + transfers.time.astype("timedelta64[s]")),
            "payer": said(ids, transfers.payer),
            "payer_bank": said(banks, transfers.payer_bank),
            "payee": said(ids, transfers.payee),
            "payee_bank": said(banks, transfers.payee_bank),
            "amount": transfers.amount / 100,
            "currency": said(pa.array(CURRENCIES), transfers.currency),
            "method": said(pa.array(METHODS), transfers.method),
        }
    )


def write_parts(parts: Iterator[pa.Table], path: Path) -> None:
    """One table of several that follow each other, the first of which tells the columns."""
    first = next(parts)
    with whole_file(path) as file:
        writer = (pa.parquet.ParquetWriter if path.suffix == ".parquet" else pa.csv.CSVWriter)(file, first.schema)
        with writer:
            writer.write_table(first)
            for part in parts:
                writer.write_table(part)


def _write_truth(world: PaymentsWorld, ids: pa.StringArray, folder: Path, suffix: TableFormat) -> None:
    banks, customers, transfers = pa.array(world.banks), world.customers, world.transfers
    own = world.pattern != LAWFUL
    kinds = np.where(own, world.kind[np.where(own, world.pattern, 0)], UNKNOWN)
    write_table(
        {
            "id": ids,
            "bank": banks.take(pa.array(customers.first)),
            "second_bank": _named(customers.second, world.banks),
            "laundering": _named(own.astype(np.int8), _CLASSES),
            "pattern": pa.array(world.pattern, mask=~own),
            "kind": _named(kinds, PATTERN_KINDS),
        },
        folder / f"customers.{suffix}",
    )
    numbers = np.flatnonzero(transfers.pattern != LAWFUL)
    unlawful = transfers.take(numbers)
    counts = np.bincount(unlawful.pattern, minlength=len(world.kind))
    write_table(
        {
            "pattern": np.arange(len(world.kind)),
            "kind": _named(world.kind, PATTERN_KINDS),
            "customers": np.bincount(world.pattern[own], minlength=len(world.kind)),
            "transfers": counts,
        },
        folder / f"patterns.{suffix}",
    )
    write_table({"transfer": numbers, "pattern": unlawful.pattern}, folder / f"transfers.{suffix}")
