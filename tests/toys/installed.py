"""Installs a module of this folder as a package of its own, and runs what uses it in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import veilgraph

_HERE = Path(__file__).parent


def install(site: Path, module: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Puts a module and its entry points where a Python that has the folder on its path finds them.

    Args:
        site: a folder.
        module: file of this folder, without its suffix; installed as ``toy_<module>``.
        points: group → name → attribute of the module.
    """
    name = f"toy_{module}"
    facts = site / f"{name}-1.0.dist-info"
    facts.mkdir(parents=True)
    (site / f"{name}.py").write_text((_HERE / f"{module}.py").read_text(encoding="utf-8"), encoding="utf-8")
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = [
        line
        for group, parts in points.items()
        for line in (f"[{group}]", *(f"{part} = {name}:{attribute}" for part, attribute in parts.items()))
    ]
    (facts / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_with(site: Path, script: str, folder: Path) -> None:
    """Runs a script in a folder, with veilgraph, what is installed in ``site``, and what tests share."""
    path = os.pathsep.join([str(site), str(Path(veilgraph.__file__).parents[1]), str(_HERE.parents[1])])
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
