"""What of the comparison with peers needs none: results are checked, figures read, limits kept, absence named."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import peer_runs, peers
from benchmarks.peer_runs import OURS, Peer
from benchmarks.product_check import TOLERANCE, PeerFigures, check, load
from tests.errors import refused
from tests.paradigms.cutting import wait_for
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.graph.party import PartyGraph

FIGURES = PeerFigures(2.0, 1.0, 400, 0, 0.001)
PRINTED = '{"seconds": 2, "online_seconds": 1, "sent_bytes": 400, "ahead_bytes": 0, "error": 0.001}'


def _interpreter(folder: Path, script: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _content(path: Path) -> bytes:
    """Nothing where the process has ended by now."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parties() -> list[PartyGraph]:
    generator = torch.Generator().manual_seed(0)
    no_edges = torch.empty(2, 0, dtype=torch.int64)
    return [
        PartyGraph(name, torch.rand(5, columns, generator=generator), no_edges)
        for name, columns in zip("AB", (3, 2), strict=True)
    ]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peer_runs, "ROOT", tmp_path)
    for peer in peer_runs.PEERS.values():
        monkeypatch.delenv(peer.variable, raising=False)


def test_saved_values_give_products_that_are_checked_to_the_tolerance(tmp_path: Path) -> None:
    path = tmp_path / "values.npz"
    peer_runs.save_values(_parties(), path)
    values = load(path)
    x = np.concatenate([values["x0"], values["x1"]], axis=1)
    h0, update = x @ values["w"], x.T @ (values["g0"] + values["g1"])
    assert check(values, h0 + 0.5 * TOLERANCE, update) == pytest.approx(0.5 * TOLERANCE, rel=1e-3)
    update[0, 0] += 2 * TOLERANCE
    with pytest.raises(RuntimeError, match="off by"):
        check(values, h0, update)


def test_a_peers_figures_are_the_last_line_it_prints(tmp_path: Path) -> None:
    python = _interpreter(
        tmp_path, f"echo '[info] native'; test \"$5 $6 $7 $8\" = 'values --repeats 3 --cached' && echo '{PRINTED}'"
    )
    peer = Peer("module", ("--cached",), "VARIABLE", "folder")
    assert peer_runs.measure_peer(python, peer, Path("values"), 3) == FIGURES


@pytest.mark.parametrize("script", ["exit 3", "true", "echo hello", "echo '{}'", f"echo '{PRINTED}'; exit 1"])
def test_a_program_without_figures_is_an_error_that_names_the_interpreter(tmp_path: Path, script: str) -> None:
    python = _interpreter(tmp_path, script)
    with refused(RunError, code="no-figures", key=python):
        peer_runs.measure_peer(python, peer_runs.PEERS["SPU"], Path("values"), 1)


def test_a_peer_that_takes_too_long_is_ended_with_its_parties(tmp_path: Path) -> None:
    def running() -> list[Path]:
        ours = str(tmp_path).encode()
        return [process for process in Path("/proc").glob("[0-9]*/cmdline") if ours in _content(process)]

    python = _interpreter(tmp_path, f"sh -c 'sleep 60; : {tmp_path}' > {os.devnull} & wait")
    assert peer_runs.measure_peer(python, peer_runs.PEERS["SPU"], Path("values"), 1, limit_s=0.2) is None
    wait_for(lambda: not running(), 20, "its party to end")


def test_a_named_interpreter_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VEILGRAPH_CRYPTEN_PYTHON", str(tmp_path / "none"))
    with refused(ConfigError, key=Path("none")):
        peer_runs.PEERS["CrypTen"].python()


@pytest.mark.usefixtures("nothing_installed")
def test_ours_alone_sends_what_the_formulas_say_and_absent_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (peer_runs, peers):
        monkeypatch.setattr(module, "holders", lambda shape: _parties())
    ours = peer_runs.measure("small", rounds=1)[OURS]
    assert ours is not None
    rows = 5 + 5 + 3  # masked gradient, share of h^0, and masked share of the other's weights
    assert ours.sent_bytes - 8 * 64 * rows in range(400)
    assert ours.ahead_bytes == 8 * 64 * (5 + 3 + 5 + 2)
    assert 0 < ours.online_seconds < ours.seconds
    page = "\n".join(peers.section({"small": 1}))
    assert page.count("make bench-peers` makes it") == 1
    assert "VEILGRAPH_SPU_PYTHON" in page
    assert "VEILGRAPH_CRYPTEN_PYTHON" in page


def test_ratios_are_with_the_better_peer_of_each_column(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        OURS: dataclasses.replace(FIGURES, seconds=0.5, online_seconds=0.01, sent_bytes=100),
        "SPU": FIGURES,
        "SPU, x cached": dataclasses.replace(FIGURES, seconds=3.0, sent_bytes=150),
        "CrypTen": dataclasses.replace(FIGURES, seconds=1.5, online_seconds=0.5, sent_bytes=1000),
    }
    monkeypatch.setattr(peers, "measure", lambda shape, rounds: given)
    monkeypatch.setattr(peers, "holders", lambda shape: _parties())
    assert "| small, 5 × 5, dense | 50 | 3.0 | 4.0 | 1.5 |" in peers.section({"small": 1})
    monkeypatch.setattr(peers, "measure", lambda shape, rounds: {OURS: FIGURES, "SPU": None})
    assert any("| SPU | not done in 180 s |" in line for line in peers.section({"small": 1}))
