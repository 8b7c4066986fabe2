"""What of the comparison with SPU needs no SPU: its figures are read, its absence and its failures are named."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from benchmarks import secure_max
from tests.errors import refused
from veilgraph.core.errors import ConfigError, RunError

VALUES = [torch.zeros(3, 2), torch.ones(3, 2)]


def _interpreter(folder: Path, script: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def spu_script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``benchmarks/spu/maximum.py`` without SPU: only what is plain Python in it works."""
    for name in ("jax", "jax.numpy", "spu", "spu.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("Io", "Runtime", "libspu"):
        monkeypatch.setattr(sys.modules["spu"], name, None, raising=False)
    monkeypatch.setattr(sys.modules["spu.utils"], "frontend", None, raising=False)
    monkeypatch.delitem(sys.modules, "benchmarks.spu.maximum", raising=False)
    return importlib.import_module("benchmarks.spu.maximum")


def test_figures_are_the_last_line_of_what_the_script_prints(tmp_path: Path) -> None:
    python = _interpreter(
        tmp_path, """echo '[info] a thread pool'; echo "{\\"seconds\\": $6.5, \\"sent_bytes\\": $(wc -c < "$2")}" """
    )
    figures = secure_max.measure_spu(python, "SEMI2K", VALUES, 3)
    assert (figures.seconds, figures.online_seconds, figures.dealer_bytes) == (3.5, None, 0)
    assert figures.holder_bytes > 2 * 3 * 2 * 4


@pytest.mark.parametrize("script", ["exit 3", "true", "echo hello", "echo 7", "echo '{}'"])
def test_a_script_without_figures_is_an_error_that_names_the_interpreter(tmp_path: Path, script: str) -> None:
    python = _interpreter(tmp_path, script)
    with refused(RunError, code="no-figures", key=python):
        secure_max.measure_spu(python, "SEMI2K", VALUES, 1)


def test_an_interpreter_that_is_not_there_is_refused_with_the_way_to_one(tmp_path: Path) -> None:
    with refused(ConfigError, key="--spu"):
        secure_max.spu_python(tmp_path / "none")


def test_without_the_environment_spu_is_left_out_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(secure_max, "SPU_PYTHON", tmp_path / "none")
    monkeypatch.setattr(sys, "argv", ["secure_max", "--rows", "5", "--columns", "2", "--repeats", "1"])
    secure_max.main()
    printed = capsys.readouterr().out
    assert printed.count("veilgraph |") == len(secure_max.HOLDERS)
    assert printed.count("make bench-spu") == 1
    assert "SEMI2K" not in printed


def test_the_environment_is_used_where_it_is_and_aby3_only_with_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = _interpreter(tmp_path, """echo '{"seconds": 1, "sent_bytes": 2000000}'""")
    monkeypatch.setattr(secure_max, "SPU_PYTHON", python)
    assert secure_max.spu_python(None) == python
    rows = [line for line in secure_max.table(python, 5, 2, 1) if "SPU" in line]
    assert rows == [
        "| 2 | SPU SEMI2K | 1.000 | – | 2.0 | – |",
        "| 3 | SPU SEMI2K | 1.000 | – | 2.0 | – |",
        "| 3 | SPU ABY3 | 1.000 | – | 2.0 | – |",
        "| 4 | SPU SEMI2K | 1.000 | – | 2.0 | – |",
    ]


def test_bytes_come_from_the_last_run_in_the_log(spu_script: ModuleType) -> None:
    line = "[info] [api.cc:233] Link details: total send bytes {}, recv bytes 7, send actions 8, recv actions 8\n"
    assert spu_script.runtime_bytes("[info] HLO profiling\n" + line.format(5) + line.format(12478464)) == 12478464
    with pytest.raises(RuntimeError, match="no link details"):
        spu_script.runtime_bytes("[info] HLO profiling\n")


def test_results_are_checked_to_the_fixed_points_precision(spu_script: ModuleType) -> None:
    lowest = np.float32(spu_script.LOWEST)
    values = [np.array([[1.0, lowest]], np.float32), np.array([[2.0, lowest]], np.float32)]
    maximum, wins = np.array([[2.0, lowest]]), [np.array([[False, True]]), np.array([[True, False]])]
    spu_script.check(values, maximum + 2.0**-18, wins)
    with pytest.raises(RuntimeError, match="maximum is off"):
        spu_script.check(values, maximum + 2.0**-16, wins)
    with pytest.raises(RuntimeError, match="one winner"):
        spu_script.check(values, maximum, [wins[0], ~wins[1]])
    with pytest.raises(RuntimeError, match="where it did not"):
        spu_script.check(values, maximum, wins[::-1])
