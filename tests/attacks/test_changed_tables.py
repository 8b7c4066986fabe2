"""Tables that change between two sessions or jobs: no difference of what is opened may be that of what changed."""

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor
from veilgraph_averaging.aggregation.survivors import RecordedSum, SumId, SurvivorRecord
from veilgraph_averaging.settings import AveragingJob, averaging

from tests.attacks.sums import Seen, watching
from tests.errors import refused
from tests.paradigms.averaging.jobs import NAMES, dropping_out, job, sums_of
from tests.paradigms.exported import export, over
from tests.roles.federation import Settings
from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.core.tensor_file import MemoryKeeper
from veilgraph.core.types import PartyId
from veilgraph.graph.party import load_party
from veilgraph.runtime.launch.jobs import resume, train
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory

CHANGED, LATE = "B", "D"
STEADY: Settings = {"model": {"dropout": 0.0}, "train": {"epochs": 1, "select_by": "last"}}


def from_tables(folder: Path, *changes: Settings) -> AveragingJob:
    settings = job(STEADY, *changes)
    return averaging(over(export(folder, settings), settings, label_holder="A"))


def table_of(settings: AveragingJob, holder: PartyId) -> Path:
    path = Path(str((settings.data.parties or {})[holder]))
    return path.parent / str(yaml.safe_load(path.read_text("utf-8"))["nodes"]["file"])


def change_row(settings: AveragingJob, holder: PartyId = CHANGED) -> None:
    """One row of a holder's table has other values."""
    table = table_of(settings, holder)
    with table.open(encoding="utf-8", newline="") as file:
        header, first, *rest = list(csv.reader(file))
    first = [value if name in ("id", "label", "split") else "3" for name, value in zip(header, first, strict=True)]
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, first, *rest])


def begun_again(folder: Path, seen: Seen, *changes: Settings) -> Path:
    """A training with private seeds, whose table at B changes, and which begins again by leave."""
    settings = from_tables(folder, *changes)
    run = train(settings, folder / "run", private_seeds=True).path
    (run / "summary.json").unlink()
    change_row(settings)
    (run / "parties" / CHANGED / "alignment.json").unlink()
    sums = len(seen.sums)
    with refused(RunError, code="restart"):
        resume(run)
    assert len(seen.sums) == sums
    resume(run, restart=True)
    return run


ALL: Settings = {"averaging": {"threshold": len(NAMES)}}


def test_a_training_that_begins_again_over_other_tables_has_new_seeds(tmp_path: Path) -> None:
    with watching() as seen:
        run = RunDirectory.open(begun_again(tmp_path, seen, ALL))
    assert seen.changed() == set()
    assert len(seen.sums) == 2 * (2 * STEADY["train"]["epochs"] + 1), "both trainings are whole"
    assert all(run.party(party).seed() >= 1 << 63 for party in NAMES)


def test_with_the_same_seeds_two_sums_differ_by_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control: the seeds stay."""
    save, seeds = PartyStore.save_seed, dict[Path, int]()
    monkeypatch.setattr(PartyStore, "save_seed", lambda self, seed: save(self, seeds.setdefault(self.path, seed)))
    with watching() as seen:
        begun_again(tmp_path, seen, ALL)
    assert seen.changed() == {CHANGED}


def test_who_was_late_is_in_rounds_with_new_weights_and_in_none_with_the_old(tmp_path: Path) -> None:
    settings = from_tables(tmp_path, {"averaging": {"threshold": 3, "patience_s": 100}, "timeout_s": 600})
    with watching() as seen:
        with dropping_out({LATE: dict.fromkeys(sums_of(1), 1)}):
            run = train(settings, tmp_path / "run", private_seeds=True).path
        (run / "summary.json").unlink()
        change_row(settings)
        (run / "parties" / CHANGED / "alignment.json").unlink()
        before = len(seen.sums)
        resume(run, restart=True)
    assert seen.sums[0].counted == ("A", "B", "C")
    assert {one.counted for one in seen.sums[before:]} == {tuple(NAMES)}
    assert seen.exposed() == seen.changed() == set()


def test_a_record_of_sums_over_other_tables_is_of_weights_alone() -> None:
    keeper, old, new = MemoryKeeper(), torch.zeros(3), torch.ones(3)
    record = SurvivorRecord("A", NAMES, keeper, "before")
    for epoch in (1, 2):
        record.add(SumId.of("weights", epoch, old + 2 * epoch), ["A", "B", "C"])
    with refused(ProtocolError, code="other-weights"):
        RecordedSum(SurvivorRecord("A", NAMES, keeper, "before"), SumId.of("weights", 1, new)).check_weights()
    record = SurvivorRecord("A", NAMES, keeper, "after")
    fresh = RecordedSum(record, SumId.of("weights", 1, new))
    fresh.check_weights()
    fresh.check(NAMES)
    with refused(ProtocolError, code="other-survivors"):
        RecordedSum(record, SumId.of("weights", 1, old + 4)).check(NAMES)


# Statistics of columns


def column_sums(settings: AveragingJob, out: Path) -> Tensor:
    """What holder A keeps of the sums over all rows: the means, times the number of rows that the sums tell."""
    run = train(settings, out, private_seeds=True).path
    means = json.loads((run / "parties" / "A" / "encoding.json").read_text("utf-8"))["means"]
    rows = sum(load_party(run / "parties" / holder / "graph.safetensors").num_nodes for holder in NAMES)
    return torch.tensor(means or [], dtype=torch.float64) * rows


def first_row(settings: AveragingJob) -> Tensor:
    """The features of the row that ``change_row`` changes."""
    with table_of(settings, CHANGED).open(encoding="utf-8", newline="") as file:
        row = next(csv.DictReader(file))
    return torch.tensor([float(value) for name, value in row.items() if name.startswith("x")], dtype=torch.float64)


def test_sums_over_columns_of_two_jobs_differ_by_the_row_that_changed(tmp_path: Path) -> None:
    """What docs/explanation/averaging.md says of them: the reason why a holder has to accept column-statistics."""
    settings = from_tables(tmp_path, {"data": {"feature_scaling": "standard"}})
    before, earlier = column_sums(settings, tmp_path / "one"), first_row(settings)
    change_row(settings)
    after, later = column_sums(settings, tmp_path / "other"), first_row(settings)
    assert torch.allclose(after - before, later - earlier, atol=1e-9)
    assert bool((later != earlier).all())


def test_without_them_a_job_tells_no_sum_over_columns(tmp_path: Path) -> None:
    """The way out that the page names."""
    settings = from_tables(tmp_path, {"data": {"feature_scaling": "none"}})
    assert column_sums(settings, tmp_path / "one").numel() == 0
    traffic = [
        row["kind"]
        for holder in NAMES
        for row in json.loads((tmp_path / "one" / "parties" / holder / "traffic.json").read_text("utf-8"))
    ]
    assert "averaged" in traffic
    assert "column_sums" not in traffic
