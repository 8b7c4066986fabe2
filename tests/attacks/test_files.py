"""Nothing that is written can be read by another account, whatever the umask; what others may use is refused."""

import ast
import errno
import fcntl
import math
import os
import resource
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

import veilgraph
from tests.chance import fixed_chance
from tests.cli.commands import one_error
from tests.cli.commands import veilgraph as command
from tests.errors import refused
from tests.faults.runs import table_job
from tests.paradigms.horizontal import job as horizontal_job
from tests.paradigms.local import edges
from tests.paradigms.local import saved as local_job
from tests.paradigms.runs import saved_job
from veilgraph.core import files
from veilgraph.core.errors import RunError
from veilgraph.core.files import (
    append,
    appended_file,
    check_private,
    locked,
    new_file,
    private_folder,
    whole_file,
    write_whole,
)
from veilgraph.core.tensor_file import save_tensors
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings, write_job
from veilgraph.runtime.launch.jobs import load_result, predict, resume, train
from veilgraph.samples.organisations import export_dataset

SOURCE = Path(veilgraph.__file__).parent
SHORT = {"train": {"epochs": 2, "checkpoint_every": 1}}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def wide(folder: Path) -> list[str]:
    """What others may use of a folder and all in it."""
    return [str(path) for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & 0o077]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Folders held alone


def test_where_there_are_no_locks_it_says_so_and_not_that_somebody_else_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    for wait_s in (0.0, math.inf):
        with pytest.raises(RunError) as caught, locked(tmp_path, "another is there", wait_s=wait_s):
            pass
        assert "another" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)


def test_who_waits_long_for_a_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its holder may be stopped, and nothing would ever be said."""
    monkeypatch.setattr(files, "SLOW_LOCK_S", 0.02)
    with ThreadPoolExecutor(1) as other, locked(tmp_path, "held"):
        waiting = other.submit(held_for_a_moment, tmp_path)
        assert not wait([waiting], timeout=0.3).done
        assert [str(tmp_path) in message for message in caplog.messages] == [True]
        with pytest.raises(RunError) as caught, locked(tmp_path, "held"):
            pass
        assert str(caught.value) == "held"
    waiting.result()


def test_who_waits_for_a_moment_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "SLOW_LOCK_S", 0.2)
    with ThreadPoolExecutor(1) as other:
        with locked(tmp_path, "held"):
            waiting = other.submit(held_for_a_moment, tmp_path)
            assert not wait([waiting], timeout=0.05).done
        waiting.result()
    threading.Event().wait(0.25)
    assert caplog.messages == []


def held_for_a_moment(folder: Path) -> None:
    with locked(folder, "held", wait_s=math.inf):
        pass


# The one door


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_whatever_is_made_is_private_from_the_first_moment(
    tmp_path: Path, mask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_than_it_becomes(descriptor: int, mode: int) -> None:
        assert not os.fstat(descriptor).st_mode & 0o077, "others could have read it before"
        chmod(descriptor, mode)

    chmod = os.fchmod
    monkeypatch.setattr(os, "fchmod", no_more_than_it_becomes)
    with umask(mask):
        made = private_folder(tmp_path / "a" / "b")
        write_whole(made / "whole", b"1")
        append(made / "appended", b"2")
        with new_file(made / "new") as file:
            file.write(b"3")
        with appended_file(made / "unbuffered") as raw:
            raw.write(b"4")
        with whole_file(made / "streamed") as file:
            file.write(b"5")
            (beside,) = made.glob(".streamed.*")
            assert mode(beside) == 0o600
    assert [mode(path) for path in (tmp_path / "a", made)] == [0o700, 0o700]
    assert {path.name: mode(path) for path in made.iterdir()} == dict.fromkeys(
        ("whole", "appended", "new", "unbuffered", "streamed"), 0o600
    )


@pytest.mark.parametrize("write", [write_whole, append], ids=["whole", "append"])
def test_a_wide_file_that_is_written_again_is_wide_no_more(tmp_path: Path, write: Callable[..., None]) -> None:
    path = tmp_path / "seed.json"
    path.write_bytes(b"1")
    path.chmod(0o644)
    write(path, b"2")
    assert mode(path) == 0o600


def test_a_link_in_the_place_of_a_file_leads_nobody_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of what is not whole yet cannot be foreseen, and were it: what stands there is not written through."""
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"untouched")
    for name in (f".seed.json.{os.getpid()}", "linked", "new"):
        (tmp_path / name).symlink_to(foreign)
    write_whole(tmp_path / "seed.json", b"1")
    with pytest.raises(OSError, match="linked"):
        append(tmp_path / "linked", b"2")
    with pytest.raises(FileExistsError):
        new_file(tmp_path / "new")
    monkeypatch.setattr(secrets, "token_hex", lambda _size: "foreseen")
    (tmp_path / ".seed.json.foreseen").symlink_to(foreign)
    with suppress(FileExistsError):
        write_whole(tmp_path / "seed.json", b"3")
        raise AssertionError("it was written through a link")
    write_whole(tmp_path / "linked", b"4")
    assert not (tmp_path / "linked").is_symlink(), "the link itself is replaced"
    assert foreign.read_bytes() == b"untouched"


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="is no file"):
        write_whole(tmp_path / "pipe", b"1")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_write_that_fails_leaves_nothing_beside(tmp_path: Path) -> None:
    write_whole(tmp_path / "model", b"old")
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "model") as file:
        file.write(b"%d" % (1 // 0))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").read_bytes() == b"old"


@pytest.mark.parametrize(
    "write",
    [lambda path: write_whole(path, b"x" * 100), lambda path: save_tensors(path, {"x": torch.zeros(100)}, {})],
)
def test_a_full_disk_is_told_with_the_file_that_did_not_fit(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """The system names none where a write fails, and of another failure the temporary file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(OSError) as failed:  # noqa: PT011 - the file it names is the point
            write(tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert failed.value.filename == str(tmp_path / "model")
    assert failed.value.errno == errno.EFBIG
    assert not [*tmp_path.iterdir()]
    with pytest.raises(OSError) as failed:  # noqa: PT011
        write(tmp_path / "missing" / "model")
    assert failed.value.filename == str(tmp_path / "missing" / "model")


MAKING = {"mkdir", "makedirs", "write_text", "write_bytes", "touch", "mkfifo", "symlink_to", "hardlink_to", "savez"}
MAKING |= {"NamedTemporaryFile", "mkstemp", "mkdtemp", "copyfile", "copy", "copy2", "copytree", "to_csv", "to_parquet"}
IN_A_PRIVATE_FOLDER = {"deploy/key_file.py", "testing/attack.py"}
"""They write in a ``TemporaryDirectory`` (0700) alone, or in memory."""


def makes(call: ast.Call) -> bool:
    """Whether a call may make a file or a folder."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = getattr(call.func.value, "id", "") if isinstance(call.func, ast.Attribute) else ""
    values = [*call.args, *(word.value for word in call.keywords)]
    texts = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    if name in ("open", "FileIO", "fdopen"):
        by_flags = owner == "os" and name == "open" and "O_RDONLY" not in ast.dump(call)
        return by_flags or any(set(text) & set("wax") and len(text) < 4 for text in texts)
    if name in ("copy", "copy2"):
        return owner == "shutil"
    return name in MAKING


def test_nothing_is_made_but_through_the_one_door() -> None:
    """Every call in the package that could make a file or a folder; a new one fails here."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and makes(node):
                found.add(str(path.relative_to(SOURCE)))
    assert found - IN_A_PRIVATE_FOLDER == {"core/files.py"}


# Real jobs


def vertical(folder: Path) -> JobSettings:
    return saved_job(folder, SHORT)


JOBS: dict[str, Callable[[Path], JobSettings]] = {
    "vertical": vertical,
    "vertical, from tables": lambda folder: table_job(folder, SHORT),
    "vertical, perturbed labels": lambda folder: saved_job(folder, SHORT, {"label_privacy": {"epsilon": 1.0}}),
    "horizontal": lambda folder: horizontal_job(2, SHORT),
    "local": lambda folder: local_job(folder, SHORT, edges(), canaries=4),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("make", JOBS.values(), ids=JOBS.keys())
def test_every_file_of_a_run_is_private_whatever_the_umask(tmp_path: Path, make: Callable[[Path], JobSettings]) -> None:
    settings = make(tmp_path / "data")
    with umask(0):
        run = train(settings, tmp_path / "above" / "run", record_views=True, profile=True).path
        predict(run)
        assert command("report", run).exit_code == 0
        assert command("predict", run, "--out", run.parent / "predictions.csv").exit_code == 0
    names = {path.name for path in run.rglob("*")}
    assert {"seed.json", "model.safetensors", "000-train.messages", "metrics.jsonl", "report.html"} <= names
    assert wide(run.parent) == []


def test_commands_write_private_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project's own folder of runs, the exported tables, curves and audits."""
    monkeypatch.chdir(private_folder(tmp_path / "project"))
    write_job(saved_job(tmp_path / "data", SHORT), Path("job.yaml"))
    with umask(0), fixed_chance("files"):
        assert command("train", "job.yaml", "--record-views").exit_code == 0
        (run,) = Path("runs").iterdir()
        assert command("audit", run, "--attack", "uniformity").exit_code == 0
        assert command("data", "export", "digits", "--out", "tables").exit_code == 0
        export_dataset(DataSettings(dataset="synthetic"), Path("parquet"), 0.8, 0, "parquet")
    assert {"curves.png", "audit.json"} <= {path.name for path in run.iterdir()}
    assert wide(Path()) == []


def test_what_other_libraries_write_for_a_command_is_private() -> None:
    script = "import os, sys; from veilgraph import cli; cli.app = lambda: print(oct(os.umask(0))); cli.main()"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "0o77"


# What others may use


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return train(saved_job(folder / "data", SHORT), folder / "run").path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.cases(8)
@pytest.mark.parametrize("words", [("resume",), ("predict",), ("audit",), ("report",)], ids=lambda w: w[0])
@pytest.mark.parametrize(
    ("name", "mode"),
    [("", 0o755), ("", 0o770), ("", 0o701), ("parties/A", 0o750), ("parties/B/seed.json", 0o640), ("job.yaml", 0o604)],
)
def test_a_run_that_others_may_use_is_refused_with_the_command_that_mends_it(
    run: Path, words: tuple[str, ...], name: str, mode: int
) -> None:
    (run / name).chmod(mode)
    error = one_error(command(*words, run))
    assert str(run / name) in error
    assert f"(mode {mode:03o})" in error
    mends = error.partition("mend it with: ")[2]
    assert mends == f"chmod -R go= {run}"
    if words == ("report",):
        subprocess.run(mends.split(), check=True)
        assert wide(run) == []
        assert command(*words, run).exit_code == 0


def test_the_folder_of_a_new_run_must_be_private_and_what_is_above_it_need_not(tmp_path: Path) -> None:
    settings = saved_job(tmp_path / "data", SHORT)
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    empty = above / "empty"
    empty.mkdir()
    empty.chmod(0o755)
    with pytest.raises(RunError, match=f"chmod -R go= {empty}"):
        train(settings, empty)
    assert list(empty.iterdir()) == []
    assert mode(empty) == 0o755, "who made it wide may have had a reason"
    linked = above / "linked"
    linked.symlink_to(private_folder(tmp_path / "large disk"))
    assert wide(train(settings, linked).path.resolve()) == []
    load_result(linked)


def test_a_path_with_spaces_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "my run"
    path.mkdir()
    path.chmod(0o755)
    with refused(RunError, key="run"):
        check_private(path)


def test_a_folder_of_another_account_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: run.stat().st_uid + 1)
    with pytest.raises(RunError, match=rf"belongs to another account .*chown -R \d+ {run}"):
        resume(run)


def test_a_link_out_of_a_run_is_refused(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (run / "parties" / "A").rename(elsewhere)
    (run / "parties" / "A").symlink_to(elsewhere)
    with pytest.raises(RunError, match=r"parties/A is a link, which leads out of"):
        resume(run)


def test_the_attack_succeeds_without_the_check(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control."""
    from veilgraph.runtime.store import run_directory  # noqa: PLC0415

    (run / "parties" / "B" / "seed.json").chmod(0o644)
    monkeypatch.setattr(run_directory, "check_private", lambda path: None)
    assert load_result(run).path == run


# Kits


def test_kits_are_private_and_wide_ones_do_not_join(tmp_path: Path) -> None:
    from veilgraph.deploy.certificates import request_certificate, sign_certificate  # noqa: PLC0415
    from veilgraph.deploy.https import make_token_file  # noqa: PLC0415
    from veilgraph.deploy.join import join  # noqa: PLC0415
    from veilgraph.deploy.kit import Kit, SiteFile  # noqa: PLC0415
    from veilgraph.deploy.project import ProjectSettings, provision  # noqa: PLC0415

    content = {"name": "fraud", "server": {"host": "localhost"}, "holders": ["bank", "shop"]}
    project = ProjectSettings.model_validate({**content, "administrators": ["ops@example.org"]})
    with umask(0):
        kits = provision(project, tmp_path / "consortium")
        server = Kit.open(kits["server"])
        server.prepare(SiteFile(runs=server.runs))
        request_certificate(server, server.path / "request.csr")
        authority = tmp_path / "consortium" / "authority"
        sign_certificate(server.path / "request.csr", authority, server.path / "new.crt", _later())
        make_token_file(server.path / "token")
    assert wide(tmp_path / "consortium") == []

    def joining(runs: Path | None) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("veilgraph.deploy.join.await_earlier_processes", None)  # nothing is to be started
            with pytest.raises(RunError) as refused:
                join(server, None, runs, report=lambda line: None)
        return str(refused.value)

    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o755)
    assert joining(runs).endswith(f"mend it with: chmod -R go= {runs}")
    (server.path / "startup" / "server.key").chmod(0o640)
    error = joining(None)
    assert "server.key: others than its owner may use it (mode 640)" in error
    assert error.endswith(f"mend it with: chmod -R go= {server.path}")


def _later():  # the authority's own certificate is made while the test runs
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415

    return datetime.now(UTC) + timedelta(hours=1)
