"""The engine's link between processes over mutual TLS: whole messages arrive, and the relay reads none of them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

from tests.link.cells import CLEAR, SEALED
from veilgraph.deploy.demo import free_ports
from veilgraph.deploy.project import ProjectSettings, provision


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    project = ProjectSettings.model_validate(
        {
            "name": "relayed",
            "server": {"host": "localhost"},
            "holders": ["bank", "shop"],
            "administrators": ["ops@example.org"],
        }
    )
    out = tmp_path_factory.mktemp("project") / "consortium"
    provision(project, out)
    return out / "kits"


def start(party: str, port: int, kits: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.link.cells", party, str(port), str(kits), str(out)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_server_relays_ciphertext(kits, tmp_path):
    port, _ = free_ports()
    server = start("server", port, kits, tmp_path)
    holders = []
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "up").exists():
            assert server.poll() is None, server.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        holders = [start(party, port, kits, tmp_path) for party in ("bank", "shop")]
        said = [holder.communicate(timeout=120)[0] for holder in holders]
        assert all("whole" in text for text in said), said
    finally:
        for process in (server, *holders):
            process.kill()
            process.communicate()
    relayed = (tmp_path / "relayed").read_bytes()
    assert len(relayed) > SEALED.numel() * 8, "what went between the holders was not relayed through the server"
    assert CLEAR[:4].numpy().tobytes() in relayed, "a message in the clear would be seen"
    assert SEALED[:4].numpy().tobytes() not in relayed
