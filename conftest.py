from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import HealthCheck, settings

from tests.sampled_cases import cases_left_out
from veilgraph.link import identity
from veilgraph.protocol import preset

if TYPE_CHECKING:
    from tests.faults.host import Host
    from tests.forks import Forks

# Most tests are about one mechanism, in the network of its paper: its figures stay, whatever presets come to choose.
preset.DEFAULT = preset.PAPER
HERE = Path(__file__).parent / "tests"
_MACHINES = count()
KEYS = 16
"""So many keys of a size are made in a process before the first comes again."""
MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes that must be free there."""
AS_USERS = ("cli", "docs")
"""Rooms of tests that leave the default as it is."""

# An example that is the first to import something takes seconds, and any takes long on a busy machine. Examples are the
# same in every run: new ones are looked for in ``make nightly``, where what they find holds nobody up.
EXPLORES = not os.environ.keys().isdisjoint({"VEILGRAPH_NIGHTLY", "VEILGRAPH_FUZZ_CASES"})
settings.register_profile(
    "veilgraph", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not EXPLORES
)
settings.load_profile("veilgraph")


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Keep the files of tests in memory: a run renames dozens of files, and ext4 waits for the disk at each."""
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ and os.access(MEMORY, os.W_OK):
        there = os.statvfs(MEMORY)
        if there.f_bavail * there.f_frsize >= ROOM and not there.f_flag & os.ST_NOEXEC:
            os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is imported and collected by now stays: garbage is looked for in what tests make, and not at every turn."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every worker begins with another room, so that what one compiles, on a fresh clone, the others read."""
    report = yield
    workers = getattr(collector.config, "workerinput", None)
    if workers and collector.path == HERE:
        first = len(report.result) * int(workers["workerid"].removeprefix("gw")) // workers["workercount"]
        report.result = [*report.result[first:], *report.result[:first]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give all workers the same order. ``make test`` plays as many cases as a mark says, ``make nightly`` all."""
    items.sort(key=lambda item: item.path)
    if "VEILGRAPH_NIGHTLY" in os.environ:
        return
    later = cases_left_out(items)
    config.hook.pytest_deselected(items=[item for item in items if item in later])
    items[:] = [item for item in items if item not in later]


@pytest.fixture(autouse=True, scope="session")
def _files_of_tests_are_private() -> Iterator[None]:
    """What tests themselves write into runs and kits; ``tests/attacks/test_files.py`` sets every umask it needs."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture(autouse=True, scope="session")
def _temporary_files_are_removed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Libraries and killed processes leave files in the temporary folder: pytest removes it with its own."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_is_kept_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What an account has seen of lifetime ledgers; for the processes that tests start as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _every_test_is_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test's account has seen of ids is another's people. The folder is made where a ledger is."""
    monkeypatch.setenv("XDG_STATE_HOME", f"{os.environ['XDG_STATE_HOME']}/{next(_MACHINES)}")


@pytest.fixture(autouse=True, scope="session")
def _nothing_waits_for_the_disk() -> Iterator[None]:
    """Nobody pulls the plug here. Tests of what is on the disk, and when, watch ``os.fsync`` themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which fails for the same descriptors
        yield


@pytest.fixture(autouse=True, scope="session")
def _keys_that_are_made_here_are_primes() -> Iterator[None]:
    """To check that again at each reading of a kit takes a tenth of a second, of an authority's two."""
    read = partial(serialization.load_pem_private_key, unsafe_skip_rsa_key_validation=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "load_pem_private_key", read)
        yield


@pytest.fixture(autouse=True, scope="session")
def _keys_come_again() -> Iterator[Callable[[], None]]:
    """A project has at most ten, a key takes a tenth of a second, and hundreds are asked for.

    Those that were made until the fixture's value is called do not come again.
    """
    make = rsa.generate_private_key
    pools: dict[int, list[rsa.RSAPrivateKey]] = {}
    turns: dict[int, Iterator[rsa.RSAPrivateKey]] = {}

    def key(public_exponent: int, key_size: int) -> rsa.RSAPrivateKey:
        pool = pools.setdefault(key_size, [])
        if len(pool) < KEYS:
            pool.append(make(public_exponent, key_size))
            return pool[-1]
        return next(turns.setdefault(key_size, cycle(pool)))

    def forget() -> None:
        pools.clear()
        turns.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rsa, "generate_private_key", key)
        yield forget


@pytest.fixture(autouse=True)
def _the_usual_preset(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.parent.name in AS_USERS:
        monkeypatch.setattr(preset, "DEFAULT", preset.AUTO)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """A launcher whose parties start at once, for all tests: it takes seconds to start."""
    from tests.faults.host import Host  # noqa: PLC0415  (seconds to import)

    started = Host()
    yield started
    started.close()


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Real processes that start at once with torch, for all tests: it takes seconds to import."""
    from tests.forks import forks as served  # noqa: PLC0415

    with served(tmp_path_factory.mktemp("forks"), "veilgraph.runtime.launch.processes", "tests.leaving") as server:
        yield server


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory: pytest.TempPathFactory, _keys_come_again: Callable[[], None]) -> Path:
    """The kits and the authority of a bank and a shop, to be copied: it takes seconds to make their keys."""
    from tests.deploy.small_project import bank_and_shop  # noqa: PLC0415  (seconds to import)

    out = tmp_path_factory.mktemp("provisioned") / "consortium"
    bank_and_shop(out)
    _keys_come_again()  # else a renewed certificate could be for the key that it takes the place of
    return out
