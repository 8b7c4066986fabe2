from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import About, refused
from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link.collectives import (
    Shape,
    broadcast,
    exchange,
    gather,
    gather_present,
    receive_as,
    tensor_text,
    text_tensor,
)
from veilgraph.link.factory import MemoryHub

TAG = Tag(Kind.EMBEDDING, 2)
PARTIES = ["A", "B", "C"]


@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        *((shape, torch.float32, True) for shape in [(2, 3), (None, 3), (2, None), (None, None)]),
        *((shape, torch.float32, False) for shape in [(3, 2), (None,), (2, 3, None)]),
        ((2, 3), torch.float64, False),
    ],
)
def test_a_message_of_the_shape_and_dtype_alone_is_received(shape: Shape, dtype: torch.dtype, fits: bool) -> None:
    hub = MemoryHub(PARTIES, 1.0)
    hub.link("A").send("B", TAG, torch.ones(2, 3))
    if fits:
        assert torch.equal(receive_as(hub.link("B"), "A", TAG, shape, dtype), torch.ones(2, 3))
        return
    with refused(ProtocolError, code="shape", key="embedding/step 2/round 0", value="[2, 3] torch.float32", party="A"):
        receive_as(hub.link("B"), "A", TAG, shape, dtype)


def test_broadcast_and_gather() -> None:
    hub = MemoryHub(PARTIES, 1.0)
    broadcast(hub.link("A"), ["B", "C"], TAG, torch.tensor([7]))
    for name in ("B", "C"):
        assert hub.link(name).receive("A", TAG).item() == 7
        hub.link(name).send("A", TAG, text_tensor(name))
    gathered = gather(hub.link("A"), ["C", "B"], TAG, (1,), torch.uint8)
    assert [(name, tensor_text(tensor)) for name, tensor in gathered.items()] == [("C", "C"), ("B", "B")]


def test_exchange_of_different_shapes() -> None:
    hub = MemoryHub(PARTIES, 5.0)

    def run(party: str) -> dict[str, str]:
        peers = [name for name in PARTIES if name != party]
        got = exchange(hub.link(party), peers, TAG, text_tensor(party * ord(party)), (None,))
        return {name: tensor_text(tensor) for name, tensor in got.items()}

    with ThreadPoolExecutor(3) as pool:
        for party, got in zip(PARTIES, pool.map(run, PARTIES), strict=True):
            assert got == {name: name * ord(name) for name in PARTIES if name != party}


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_text_round_trip(text: str) -> None:
    assert tensor_text(text_tensor(text)) == text


@pytest.mark.parametrize(
    ("tensor", "rule"),
    [
        (torch.zeros(2), {"code": "shape"}),
        (torch.zeros(1, 1, dtype=torch.uint8), {"code": "shape"}),
        (torch.tensor([0xC3, 0x28], dtype=torch.uint8), {"code": "not-utf-8", "value": 2}),
    ],
)
def test_what_is_not_a_text(tensor: torch.Tensor, rule: About) -> None:
    with refused(ProtocolError, **rule):
        tensor_text(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 12, -1])
def test_a_number_that_is_not_finite_is_refused_with_its_sender(dtype: torch.dtype, value: float, place: int) -> None:
    hub = MemoryHub(PARTIES, 1.0)
    x = torch.full((5, 5), torch.finfo(dtype).max, dtype=dtype)
    hub.link("A").send("B", TAG, x)
    assert torch.equal(receive_as(hub.link("B"), "A", TAG, (5, 5), dtype), x)
    hub.link("A").send("B", Tag(Kind.EMBEDDING, 3), x.flatten().index_fill(0, torch.tensor([place % 25]), value))
    with refused(ProtocolError, code="not-finite", key="embedding/step 3/round 0", party="A"):
        receive_as(hub.link("B"), "A", Tag(Kind.EMBEDDING, 3), (25,), dtype)


def test_who_is_there_in_time_is_gathered_and_who_is_gone_or_late_is_left_out() -> None:
    hub = MemoryHub([*PARTIES, "D"], 20.0)
    for name in "BC":
        hub.link(name).send("A", TAG, text_tensor(name))
    hub.link("C").close()
    assert list(gather_present(hub.link("A"), ["B", "C", "D"], TAG, (1,), torch.uint8, 0.02)) == ["B", "C"]
    hub.link("D").send("A", TAG, text_tensor("D"))
    late = Tag(Kind.EMBEDDING, 3)
    assert gather_present(hub.link("A"), ["C"], late, (1,), torch.uint8, 20.0) == {}
    with refused(ProtocolError, code="shape", party="D"):
        gather_present(hub.link("A"), ["D"], TAG, (2,), torch.uint8, 20.0)
