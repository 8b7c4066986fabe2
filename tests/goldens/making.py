"""Makes goldens in a process of their own, with one thread, and keeps them in a file."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.goldens.reading import Pinned

ROOT: Final = Path(__file__).parents[2]
FILE: Final = Path(__file__).with_name("goldens.json")

Goldens = dict[str, Any]
"""``environment``, ``reasons``: texts by the hashes in rows of disclosures, and ``cases``."""


def make(tree: Path, names: Sequence[str]) -> Goldens:
    """Runs cases of this tree's table with the package of a tree, which may be another commit's.

    Raises:
        RuntimeError: a command of a case failed.
    """
    kept = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "VEILGRAPH_DATA")}
    fixed = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "160", "TERM": "dumb", "PYTHONUTF8": "1"}
    paths = {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(ROOT)])}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "goldens.json"
        command = [sys.executable, "-m", "tests.goldens.running", str(tree), str(out), *names]
        done = subprocess.run(
            command, env=kept | fixed | paths, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode or not out.exists():
            raise RuntimeError(f"the goldens of {tree} could not be made:\n{done.stderr}")
        made: Goldens = json.loads(out.read_text(encoding="utf-8"))
    return made


def case_of(goldens: Goldens, name: str) -> Pinned:
    """What is pinned of one case; nothing of one that is not there."""
    found: Pinned = goldens["cases"].get(name, {})
    return found


def read_goldens() -> Goldens:
    """The goldens that are kept."""
    found: Goldens = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write_goldens(goldens: Goldens) -> None:
    """Keeps goldens in place of those there are."""
    text = json.dumps(goldens, indent=1, sort_keys=True, ensure_ascii=False)
    FILE.write_text(text + "\n", encoding="utf-8")
