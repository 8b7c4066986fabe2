"""Rows of keys of their own, and numbers in fewer bytes."""

import hashlib

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from tests.mpc.sealed.faults import repeated
from tests.mpc.sealed.parties import of, run, secret
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.types import Kind, PartyId
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.sealed.kept_bytes import keep, kept_form, restore
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.row_keys import expand_rows, key_form
from veilgraph.mpc.sealed.wire import Summands, Wire


@given(st.integers(0, 5), st.integers(0, 9), st.integers(0, 2**31 - 1), st.sampled_from([torch.int32, torch.int64]))
def test_a_row_is_what_the_page_says_of_its_key(rows: int, columns: int, operation: int, dtype: torch.dtype) -> None:
    """Without the second ⊕ x a block would tell the key: AES under a fixed key can be undone."""
    keys = torch.randint(-(2**62), 2**62, (rows, 2), generator=torch.Generator().manual_seed(operation))
    found = expand_rows(keys, operation, torch.empty((1, columns), dtype=dtype))
    assert (tuple(found.shape), found.dtype) == ((rows, columns), dtype)
    cipher = Cipher(algorithms.AES128(hashlib.sha256(b"veilgraph rows").digest()[:16]), modes.ECB())
    for key, row in zip(keys.tolist(), found, strict=True):
        octets = b""
        for block in range(-(-columns * dtype.itemsize // 16)):
            x = b"".join(
                part.to_bytes(8, "little", signed=True) for part in (key[0], key[1] ^ ((operation << 32) + block))
            )
            octets += bytes(a ^ b for a, b in zip(cipher.encryptor().update(x), x, strict=True))
        assert row.numpy().tobytes() == octets[: columns * dtype.itemsize]


@pytest.mark.parametrize("piece_bytes", [1, 16, 80, 96])
@pytest.mark.parametrize("columns", [1, 4, 11])
def test_rows_are_the_same_in_pieces(piece_bytes: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, like = torch.randint(-(2**62), 2**62, (7, 2)), torch.empty((1, columns), dtype=torch.int32)
    whole = expand_rows(keys, 5, like)
    monkeypatch.setattr("veilgraph.mpc.sealed.row_keys.PIECE_BYTES", piece_bytes)
    assert torch.equal(expand_rows(keys, 5, like), whole)
    assert len({tuple(row) for row in whole.tolist()}) == 7


@pytest.mark.parametrize("new", [True, False])
def test_no_two_graphs_have_a_key_in_common(new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the owner could have been told, of one graph, the key of a head of the other."""
    links: dict[PartyId, RecordedLink] = {}
    if not new:
        repeated(lambda forms: list(forms) == [key_form(12)])(monkeypatch)

    def program(machine: Machine) -> None:
        for _ in range(2):
            machine.hidden_graph("A", of(machine, "A", torch.tensor([[0, 1], [1, 2]])), 3, 9)

    run(program, 2, links, keeps=True)
    one, two = (
        {tuple(key) for key in each.tensor.view(torch.int64).view(-1, 2).tolist()}
        for each in links["A"].transcript()
        if each.tag.kind == Kind.CORRELATION
    )
    assert len(one) == len(two) == 9
    assert (not one & two) == new


@given(st.lists(st.integers(-(2**61), 2**61), max_size=9), st.integers(0, 7))
def test_what_is_kept_is_rounded_to_the_nearest(values: list[int], dropped: int) -> None:
    low, count = 8 * dropped, 8 - dropped
    form = (len(values),), torch.int64
    octets = keep(torch.tensor(values, dtype=torch.int64), (low, count))
    assert (tuple(octets.shape), octets.dtype) == kept_form(form, (low, count))
    off = restore(octets, (low, count), form) - torch.tensor(values, dtype=torch.int64)
    assert all(abs(each) <= (1 << low) // 2 for each in off.tolist())


def test_noise_of_the_dealer_is_not_left_out_of_what_holders_could_open_by_themselves() -> None:
    def program(machine: Machine) -> Wire:
        negative = machine.negative(machine.put("A", of(machine, "A", torch.ones(400)), (400,), 4))
        return machine.open(machine.noised(machine.value(negative), 0.5))

    found = secret(run(program, 2, secrets=fixed_secrets("noise")))
    assert 100 < int((found != 0).sum()) < 400


def test_a_dealer_that_has_a_summand_of_what_is_said_to_be_of_holders_ends_the_job() -> None:
    def program(machine: Machine) -> Wire:
        split = machine.split(machine.put("A", of(machine, "A", torch.ones(4)), (4,), 4))
        return machine.open(Summands(split.part, split.bits, of_holders=True))

    with pytest.raises(ValueError) as raised:  # noqa: PT011 - its first word is looked at
        run(program, 2)
    assert str(raised.value).startswith("of_holders=True")
