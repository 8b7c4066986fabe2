"""Runs cases in this process through the command line, one after the other; ``making.py`` starts it.

python -m tests.goldens.running TREE OUT.json CASE...
"""

import hashlib
import io
import json
import os
import random
import re
import runpy
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

from tests.goldens.cases import CASES, Case

_KEEP_THE_SYSTEMS_SOURCE: Final = (random, secrets)
"""Imported before the source is replaced: they name temporary files."""

_SAYS: Final = frozenset({"budget", "check", "report"})
"""Commands whose output is the same on every machine."""
_ANSWERS: Final = frozenset({"demo", "predict"})
"""Commands whose output is made of results."""
_PLACES: Final = ("run ", "curves ", "trace ", "page ", "predict with", "wrote ")
_FRAMES: Final = tuple("┌├└┏┡┠┗╞")
_BARS: Final = re.compile("[│┃]")
_SECONDS: Final = re.compile(r" \| \d+\.\d{3}$")
_AUDIT_FAILED: Final = 3


class Source:
    """Stands in for ``os.urandom``: the system's own, or the same bytes at every call.

    The same, so that neither the order of calls nor their number nor the threads that make them count: a draw that runs
    ahead may be cancelled. That every release has noise of its own is for ``tests/privacy`` to see. Put in place before
    veilgraph is imported.
    """

    def __init__(self) -> None:
        self._system = os.urandom
        self.fixed, self.draws = False, 0

    def of_the_system(self, size: int, /) -> bytes:
        """Whatever is fixed."""
        return self._system(size)

    def __call__(self, size: int, /) -> bytes:
        if not self.fixed:
            return self._system(size)
        self.draws += 1
        return hashlib.shake_256(b"veilgraph goldens").digest(size)


def run_case(case: Case, tree: Path, source: Source) -> tuple[dict[str, Any], dict[str, str]]:
    """What is pinned of one case, and texts by their hashes.

    Raises:
        RuntimeError: a command failed, or the source that was to be fixed is not what the job draws from.
    """
    from tests.goldens.reading import read_run  # noqa: PLC0415  (after the source is in place)

    _as_papers_have_it()
    _stays()
    _ledgers_are_apart(source)
    said: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder), _fixed(source, case):
        os.environ["XDG_STATE_HOME"] = folder  # what this account has seen of ledgers is nobody's business here
        if case.job:
            Path("job.yaml").write_text(case.job, encoding="utf-8")
        if case.custom:
            _train_custom()
        for command in case.commands:
            said[command] = _veilgraph(command.format(jobs=tree / "jobs").split())
            if command == case.commands[0]:
                _edit(case)
        pinned, reasons = read_run(Path("run")) if Path("run").exists() else ({}, {})
    for section, commands in (("said", _SAYS), ("answers", _ANSWERS)):
        if found := {command: lines for command, lines in said.items() if command.split()[0] in commands}:
            pinned[section] = found
    return pinned, reasons


def _as_papers_have_it() -> None:
    """Cases are about the papers' defaults, which trees from before there were presets have without a word."""
    if find_spec("veilgraph.protocol.preset") is not None:
        preset = import_module("veilgraph.protocol.preset")
        preset.DEFAULT = preset.PAPER  # type: ignore[attr-defined]


def _stays() -> None:
    """A command leaves by ``SystemExit``, and not the process with all the cases after it."""
    if find_spec("veilgraph.core.threads") is not None:
        leaving = import_module("veilgraph.core.threads")
        leaving.leave = sys.exit  # type: ignore[attr-defined]


def _ledgers_are_apart(source: Source) -> None:
    """Two ledgers for life with one name are copies of each other, and refused; nothing of them is pinned."""
    if find_spec("veilgraph.privacy.ledger_files") is not None:
        lines = import_module("veilgraph.privacy.ledger_files")
        lines.system_secrets = source.of_the_system  # type: ignore[attr-defined]


def _edit(case: Case) -> None:
    for name, changes in case.edits.items():
        content = yaml.safe_load(Path(name).read_text(encoding="utf-8")) | yaml.safe_load(changes)
        Path(name).write_text(yaml.safe_dump(content), encoding="utf-8")


@contextmanager
def _fixed(source: Source, case: Case) -> Iterator[None]:
    source.fixed, source.draws = bool(case.fixed), 0
    try:
        yield
    finally:
        source.fixed = False
    if case.fixed and not source.draws:
        raise RuntimeError(
            f"{case.name}: nothing was drawn from os.urandom; give tests/goldens/running.py the source that there is"
        )


def _veilgraph(arguments: list[str]) -> list[str]:
    """What ``veilgraph`` prints: cells of tables without their frames, no lines that name files, no seconds."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["veilgraph", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            runpy.run_module("veilgraph", run_name="__main__")
    except SystemExit as left:
        if left.code not in (0, None, _AUDIT_FAILED):
            raise RuntimeError(f"veilgraph {' '.join(arguments)} failed: {err.getvalue()}") from left
    finally:
        sys.argv = before
    lines = [line for line in out.getvalue().splitlines() if not line.startswith((*_PLACES, *_FRAMES))]
    plain = [" | ".join(cell.strip() for cell in _BARS.split(line.strip("│┃"))) for line in lines]
    return [_SECONDS.sub("", line) if arguments[0] == "demo" else line for line in plain]


def _train_custom() -> None:
    """By the package's own interface: the command line has no way to name a module."""
    import torch  # noqa: PLC0415

    from veilgraph.protocol.job_file import read_job  # noqa: PLC0415
    from veilgraph.runtime.launch.jobs import RunOptions, train  # noqa: PLC0415

    class Own(torch.nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2 * dim, dim)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            source, target = edge_index
            pooled = torch.zeros_like(x).index_add(0, target, x[source])
            result: torch.Tensor = self.linear(torch.cat([x, pooled], dim=1)).tanh()
            return result

    train(read_job(Path("job.yaml")), Path("run"), options=RunOptions(custom=Own))


def environment() -> dict[str, str]:
    """What the bits of floating-point results depend on besides the code."""
    import numpy as np  # noqa: PLC0415
    import scipy  # noqa: PLC0415
    import sklearn  # noqa: PLC0415
    import torch  # noqa: PLC0415

    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "threads": str(torch.get_num_threads()),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").is_file() else []
    named = {key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}
    return " ".join(named.get(key, "?") for key in ("vendor_id", "cpu family", "model"))


def main() -> None:
    """Runs the cases that are named and writes what is pinned of them."""
    tree, out, *names = sys.argv[1:]
    source = Source()
    os.urandom = source
    if hasattr(os, "sched_setaffinity"):  # parties share the cores that there are: one, so that sums have one order
        os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
    import veilgraph  # noqa: PLC0415

    if not Path(veilgraph.__file__).is_relative_to(tree):
        raise RuntimeError(f"{veilgraph.__file__} is not of {tree}")
    cases: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name in names:
        began = time.monotonic()
        cases[name], texts = run_case(CASES[name], Path(tree), source)
        reasons |= texts
        sys.stderr.write(f"{name}: {time.monotonic() - began:.1f} s\n")
    made = {"environment": environment(), "cases": cases, "reasons": reasons}
    Path(out).write_text(json.dumps(made), encoding="utf-8")


if __name__ == "__main__":
    main()
