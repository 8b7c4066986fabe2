"""What a kill leaves half-written: it disturbs nothing, and the next work on the run removes it."""

import errno
from pathlib import Path

import pytest

from tests import nightly
from tests.errors import refused
from tests.faults.host import Host, Order
from tests.faults.runs import LABEL_HOLDER, OTHER, assert_undisturbed, graph_job, table_job, unfinished
from tests.paradigms.cutting import CutError, as_training_leaves_it, cut_at
from veilgraph.core.errors import RunError
from veilgraph.core.files import write_whole
from veilgraph.core.types import SERVER, PartyId
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory

STRAYS = (
    "parties/A/checkpoints/.epoch-000004.safetensors.00c0ffee00c0ffee",
    "parties/B/checkpoints/.epoch-000099.safetensors.00c0ffee00c0ffee",
    "parties/server/.model.safetensors.00c0ffee00c0ffee",
    "parties/A/.graph.safetensors.0123456789abcdef",
    "parties/A/.predictions.csv.00c0ffee00c0ffee",
    "parties/B/.traffic.json.00c0ffee00c0ffee",
    ".metrics.jsonl.00c0ffee00c0ffee",
    ".summary.json.00c0ffee00c0ffee",
)


def cut(settings: JobSettings, run: Path, epoch: int) -> Path:
    with cut_at(epoch), pytest.raises(CutError):
        train(settings, run)
    return run


def test_half_written_files_disturb_nothing_and_do_not_pile_up(tmp_path: Path) -> None:
    run = cut(graph_job(tmp_path / "data"), tmp_path / "run", 7)
    for name in STRAYS:
        (run / name).write_bytes(b"\x10\x00\x00")
    own = run / ".gitignore"
    own.write_text("*\n")
    resume(run)
    assert unfinished(run) == [own]  # not ours to remove
    own.unlink()
    (run / STRAYS[0]).write_bytes(b"")
    predict(run)
    assert_undisturbed(run, tmp_path / "undisturbed")


def test_what_another_process_writes_now_is_left_alone(tmp_path: Path) -> None:
    run = RunDirectory.open(cut(graph_job(tmp_path / "data"), tmp_path / "run", 3))
    with run.lock():
        (run.path / STRAYS[0]).write_bytes(b"\x10\x00")
        with refused(RunError, key=tmp_path / "run"):
            resume(run.path)
        assert unfinished(run.path) == [run.path / STRAYS[0]]


@pytest.mark.parametrize("old", [None, b"the old content"])
def test_a_cut_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None) -> None:
    def cut_off(descriptor: int) -> None:
        raise CutError

    path = tmp_path / "model.safetensors"
    if old is not None:
        write_whole(path, old)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", cut_off)
        with pytest.raises(CutError):
            write_whole(path, b"the new content, or rather a part of it")
    assert (path.read_bytes() if path.exists() else None) == old


def test_where_nothing_can_be_removed_the_error_is_of_the_file_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a read-only disk, where it named a temporary file."""

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(FileNotFoundError) as error:
        write_whole(tmp_path / "no folder" / "job.yaml", b"")
    assert error.value.filename == str(tmp_path / "no folder" / "job.yaml")


def test_a_model_of_an_earlier_session_is_not_mixed_with_a_later_ones(tmp_path: Path) -> None:
    """A has its part of the model, and B dies before it has; when the run goes on, A dies before and B after that."""
    settings = graph_job(tmp_path / "data")
    with as_training_leaves_it():
        whole = train(settings, tmp_path / "run").path
    (whole / "summary.json").unlink()
    PartyStore(whole / "parties" / "B").model_path.unlink()
    for party in ("A", "B", SERVER):
        PartyStore(whole / "parties" / party).checkpoints.path(12).unlink()
    with cut_at(12), pytest.raises(CutError):
        resume(whole)
    assert not RunDirectory.open(whole).trained()
    resume(whole)
    assert_undisturbed(whole, tmp_path / "undisturbed")


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("role", "name"),
    [
        (OTHER, "graph.safetensors"),
        (LABEL_HOLDER, "tables.sha256"),
        pytest.param(LABEL_HOLDER, "alignment.json", marks=nightly),
        (LABEL_HOLDER, "metrics.jsonl"),
        (SERVER, "epoch-000004.safetensors"),
        pytest.param(OTHER, "model.safetensors", marks=nightly),
        pytest.param(LABEL_HOLDER, "predictions.safetensors", marks=nightly),
    ],
)
def test_killed_in_the_middle_of_a_write(tmp_path: Path, host: Host, role: PartyId, name: str) -> None:
    run = tmp_path / "run"
    outcome = host.do(Order(table_job(tmp_path / "data"), run, dies=(role, name)))
    assert outcome.message.startswith(f"{role}'s process was killed by signal 9")
    assert [path.name.rpartition(".")[0] for path in unfinished(run)] == [f".{name}"]
    outcome = host.do(Order(None, run))
    assert outcome.error == "", outcome
    assert_undisturbed(run, tmp_path / "undisturbed")
