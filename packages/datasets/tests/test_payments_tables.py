"""One world's tables: what they say is what the world's views are, and jobs of four paradigms train on them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import yaml
from veilgraph_datasets import payments_tables
from veilgraph_datasets.settings import PATTERN_KINDS, PaymentsSettings
from veilgraph_datasets.transfers import LAWFUL

from packages.datasets.tests.payments import SMALL, small_world
from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.graph.build import BuiltGraph, build_graph, read_table
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.limits import refusal
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.runtime.launch.jobs import train
from veilgraph.samples.shipped import with_overrides
from veilgraph.tables.encode import fit_encoding

JOBS = ("horizontal", "averaging", "vertical", "sealed")
OF_BANKS = JOBS[:2]
SEED = 9


@pytest.fixture(scope="module", params=["csv", pytest.param("parquet", marks=nightly)])
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("payments") / "world"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payments_tables, "ROWS_AT_ONCE", 1000)
        files = payments_tables.export_payments(PaymentsSettings(**SMALL), folder, SEED, request.param)
    assert list(files) == ["A", "B", "C", "shop", "telecom"]
    assert all(file == folder / name / "party.yaml" for name, file in files.items())
    return folder


def built(out: Path, name: str) -> BuiltGraph:
    settings, folder = read_party_settings(out / name / "party.yaml"), out / name
    table = read_table(settings, folder, None, "none")
    return build_graph(settings, folder, table, fit_encoding(table, "none"))


def read(out: Path, name: str) -> dict[str, list[Any]]:
    (path,) = out.glob(f"{name}.*")
    module = pyarrow.parquet.read_table if path.suffix == ".parquet" else pyarrow.csv.read_csv
    columns: dict[str, list[Any]] = module(path).to_pydict()
    return columns


def customers(ids: list[str]) -> np.ndarray[Any, Any]:
    return np.array([int(name.removeprefix("C")) for name in ids])


@nightly
def test_every_organisations_tables_are_its_view(out: Path) -> None:
    world = small_world(SEED)
    for name in ("A", "B", "C", "shop", "telecom"):
        seen, found = world.view(name), built(out, name)
        nodes = customers(found.ids.to_pylist())
        assert not np.array_equal(nodes, np.sort(nodes)), "rows are in an order of their own"
        order = np.argsort(nodes)
        assert np.array_equal(nodes[order], seen.nodes)
        graph = found.graph
        assert graph.features.to_dense().numpy()[order] == pytest.approx(seen.features(), rel=1e-5)
        pairs = {tuple(sorted(pair)) for pair in nodes[graph.edge_index.numpy()].T.tolist()}
        assert pairs == set(map(tuple, seen.ends.T.tolist()))
        assert graph.num_edges == 2 * len(pairs)
        assert (graph.labels is None) == (seen.labels is None)
        if graph.labels is not None:
            assert np.array_equal(np.asarray(graph.labels)[order], np.asarray(seen.labels))
            masks = (graph.train_mask, graph.val_mask, graph.test_mask)
            assert all(
                np.array_equal(np.asarray(mask)[order], seen.splits == place) for place, mask in enumerate(masks)
            )


def test_ledgers_and_the_truth_are_the_worlds(out: Path) -> None:
    world = small_world(SEED)
    transfers = world.transfers
    for place, name in enumerate(world.banks):
        ledger = read(out / name, "transfers")
        rows = np.flatnonzero(transfers.seen_by(place))
        assert ledger["transfer"] == rows.tolist()
        assert np.array_equal(customers(ledger["payer"]), transfers.payer[rows])
        assert np.array_equal(customers(ledger["payee"]), transfers.payee[rows])
        assert ledger["payee_bank"] == [world.banks[bank] for bank in transfers.payee_bank[rows]]
        assert np.array_equal(np.round(np.array(ledger["amount"]) * 100), transfers.amount[rows])
        seconds = [(time - ledger["time"][0]).total_seconds() for time in ledger["time"]]
        assert np.array_equal(seconds, transfers.time[rows] - transfers.time[rows[0]])
        assert set(ledger) == {
            *("transfer", "time", "payer", "payer_bank", "payee", "payee_bank", "amount", "currency", "method")
        }, "no pattern in it"
    truth = read(out / "truth", "transfers")
    assert truth["transfer"] == np.flatnonzero(transfers.pattern != LAWFUL).tolist()
    assert truth["pattern"] == transfers.pattern[transfers.pattern != LAWFUL].tolist()
    people = read(out / "truth", "customers")
    assert [each or None for each in people["kind"]] == [
        None if number == LAWFUL else world.kind_of(number) for number in world.pattern
    ]
    assert people["bank"] == [world.banks[bank] for bank in world.customers.first]
    patterns = read(out / "truth", "patterns")
    assert set(patterns["kind"]) == set(PATTERN_KINDS)
    assert sum(patterns["customers"]) == world.launders.sum()
    assert sum(patterns["transfers"]) == len(truth["transfer"])


def test_jobs_are_alike_and_all_accept_them(out: Path) -> None:
    contents = {name: yaml.safe_load((out / f"{name}.yaml").read_text(encoding="utf-8")) for name in JOBS}
    for name, content in contents.items():
        assert content.pop("paradigm") == name
        brought = content.pop("data")["parties"]
        assert list(brought) == (["A", "B", "C"] if name in OF_BANKS else ["A", "shop", "telecom"])
        job = read_job(out / f"{name}.yaml")
        paradigm_of(job).data.check_tables(job)
        for party, path in brought.items():
            assert refusal(read_party_settings(Path(path)).limits, job, party, 100) is None
    assert contents["sealed"]["train"] == {"select_by": "auc"}
    assert len([content.pop("train") for content in contents.values()]) == len(JOBS)
    assert all(content == contents["sealed"] for content in contents.values())
    told = with_overrides(read_job(out / "sealed.yaml"), {"output": "margins"})
    for party, path in (told.data.parties or {}).items():
        assert refusal(read_party_settings(path).limits, told, party, 100) is None


@nightly
@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_every_paradigm_trains(out: Path, tmp_path: Path, name: str) -> None:
    job = with_overrides(read_job(out / f"{name}.yaml"), {"train.epochs": 2})
    assert 0 <= train(job, tmp_path / "run").summary["test_accuracy"] <= 1


def test_a_folder_in_use_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("", encoding="utf-8")
    with refused(RunError, key=tmp_path):
        payments_tables.export_payments(PaymentsSettings(), tmp_path, 0)
