"""Two machines of a holder as network namespaces, in a job of three organisations over the engine between them."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import nightly
from tests.paradigms.runs import lasting

ROOT = Path(__file__).parents[3]
HOME, FURTHER = "10.77.0.1", "10.77.0.2"
PARTY = """
party: A
nodes: {{file: nodes.csv, id: id, features: [{{columns: x}}]}}
machines: {{count: 2, address: "{home}:29500"}}
"""

pytestmark = nightly


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@contextmanager
def two_machines():
    """The names of two network namespaces, each with a loopback of its own, joined by one wire."""
    home, further = (f"veilgraph-{os.getpid()}-{number}" for number in (0, 1))
    if shutil.which("ip") is None:
        pytest.skip("there is no command ip")
    steps = [
        *(("netns", "add", name) for name in (home, further)),
        ("link", "add", "wire", "netns", home, "type", "veth", "peer", "name", "wire", "netns", further),
        *(("-n", name, "link", "set", link, "up") for name in (home, further) for link in ("lo", "wire")),
        *(("-n", name, "addr", "add", f"{at}/24", "dev", "wire") for name, at in ((home, HOME), (further, FURTHER))),
    ]
    try:
        for step in steps:
            if (done := ip(*step)).returncode:
                pytest.skip(f"this account may not make network namespaces and wires here: {done.stderr.strip()}")
        yield home, further
    finally:
        for name in (home, further):
            ip("netns", "delete", name)


def sent(name):
    """Bytes that a namespace put on the wire."""
    (link,) = json.loads(ip("-n", name, "-j", "-s", "link", "show", "wire").stdout)
    return int(link["stats64"]["tx"]["bytes"])


def within(name, *words, **options):
    return subprocess.Popen(["ip", "netns", "exec", name, sys.executable, *words], cwd=ROOT, text=True, **options)


def test_a_job_over_two_machines_that_share_a_wire_alone_is_that_of_one(tmp_path):
    (tmp_path / "party.yaml").write_text(PARTY.format(home=HOME))
    with two_machines() as (home, further):
        command = ("-m", "veilgraph", "net", "machine", "--party", str(tmp_path / "party.yaml"), "--rank", "1")
        worker = within(further, *command, stderr=subprocess.PIPE)
        try:
            site = within(home, "-m", "packages.machines.tests.home", str(tmp_path), f"{HOME}:29500")
            assert site.wait(300) == 0
            went = {name: sent(name) for name in (home, further)}
        finally:
            worker.terminate()
            _, said = worker.communicate(timeout=20)
    assert "the job is done" in said
    found = json.loads((tmp_path / "found.json").read_text())
    alone, several = found["alone"], found["several"]
    for one, other in zip(lasting(several["metrics"]), lasting(alone["metrics"]), strict=True):
        assert one == pytest.approx(other, abs=1e-9)
    for one, other in zip(several["probabilities"], alone["probabilities"], strict=True):
        assert one == pytest.approx(other, abs=1e-9)
    print(went)  # noqa: T201 - with -s
    assert min(went.values()) > 100_000, "rows, halos and gradients crossed the wire"
