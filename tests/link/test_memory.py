import time
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, LinkError, PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link.factory import MemoryHub

TAG = Tag(Kind.SHARE)


def test_tensors_pass_by_reference() -> None:
    hub = MemoryHub(["A", "B"], 1.0)
    tensor = torch.zeros(3)
    hub.link("A").send("B", TAG, tensor)
    assert hub.link("B").receive("A", TAG).data_ptr() == tensor.data_ptr()


def test_a_failed_party_ends_every_wait_of_the_others() -> None:
    hub = MemoryHub(["A", "B", "C"], 10.0)
    hub.link("C").send("B", Tag(Kind.SEED), torch.ones(1))
    cause = DataError("an own secret")
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(hub.link("B").receive, sender, TAG) for sender in ("A", "C")]
        time.sleep(0.05)
        hub.fail("A", cause)
        for wait in waits:
            with refused(PeerFailed, party="A") as caught:
                wait.result(timeout=30)
            assert "secret" not in str(caught.value)
            assert caught.value.__cause__ is not None
            assert caught.value.__cause__.__cause__ is cause
    assert hub.link("B").receive("C", Tag(Kind.SEED)).item() == 1
    with refused(PeerFailed, code="closed", key="share/step 0/round 0", party="A"):
        hub.link("B").send("A", TAG, torch.ones(1))
    with refused(LinkError, code="closed", key="share/step 0/round 0", party="B"):
        hub.link("A").send("B", TAG, torch.ones(1))


def test_names() -> None:
    with refused(ConfigError, key="parties"):
        MemoryHub(["A", "B", "A"], 1.0)
    hub = MemoryHub(["A", "B"], 1.0)
    with refused(ProtocolError, code="no-link", value="C", party="C"):
        hub.link("C")
    with refused(ProtocolError, code="no-link", value="C", party="C"):
        hub.fail("C", ValueError())
