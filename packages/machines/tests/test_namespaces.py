"""Two machines of a holder as network namespaces, in a job of three organisations over the engine between them."""

import json
import subprocess
from contextlib import ExitStack

import pytest

from packages.machines.tests.namespaces import HOME, sent, two_machines, within
from tests import nightly
from tests.paradigms.runs import lasting

PARTY = """
party: A
nodes: {{file: nodes.csv, id: id, features: [{{columns: x}}]}}
machines: {{count: 2, address: "{home}:29500"}}
"""

pytestmark = nightly


def test_a_job_over_two_machines_that_share_a_wire_alone_is_that_of_one(tmp_path):
    (tmp_path / "party.yaml").write_text(PARTY.format(home=HOME))
    with ExitStack() as stack:
        try:
            home, further = stack.enter_context(two_machines())
        except OSError as error:
            pytest.skip(str(error))
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
