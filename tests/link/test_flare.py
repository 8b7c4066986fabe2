"""The engine's link between processes over mutual TLS: whole messages arrive, and the relay reads none of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

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


def test_the_server_relays_ciphertext(kits, tmp_path):
    port, _ = free_ports()
    command = [sys.executable, "-m", "tests.link.cells", str(port), str(kits), str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as network:
        try:
            said, _ = network.communicate(timeout=120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(network.pid, signal.SIGKILL)
    assert network.returncode == 0, said
    relayed = (tmp_path / "relayed").read_bytes()
    assert len(relayed) > SEALED.numel() * 8, "what went between the holders was not relayed through the server"
    assert CLEAR[:4].numpy().tobytes() in relayed, "a message in the clear would be seen"
    assert SEALED[:4].numpy().tobytes() not in relayed
