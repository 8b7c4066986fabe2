import math
from fractions import Fraction

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import chisquare

from tests.errors import refused
from tests.mpc.sessions import agreed_masks, fixed_secrets, simulate
from veilgraph.core.errors import ProtocolError, RangeOverflow
from veilgraph.core.secrets import derive_key
from veilgraph.core.types import Kind, Tag
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.mask import PairwiseMasks, SecretRounding, integers_of, open_sum, ring_sum, sum_integers_among

HOLDERS = {2: ["A", "B"], 3: ["shop", "bank", "clinic"], 5: ["E", "A", "D", "B", "C"]}
MASKS = {count: agreed_masks(names) for count, names in HOLDERS.items()}
counts = pytest.mark.parametrize("count", HOLDERS)


@counts
def test_masks_cancel_in_the_sum_over_all_holders(count):
    masks = [holder.mask("h0", 3, (50, 7)) for holder in MASKS[count].values()]
    assert torch.equal(ring_sum(masks), torch.zeros(50, 7, dtype=torch.int64))


@counts
def test_masks_of_all_but_one_do_not_cancel(count):
    masks = {name: holder.mask("h0", 3, (200, 7)) for name, holder in MASKS[count].items()}
    for name in masks:
        rest = ring_sum([mask for other, mask in masks.items() if other != name])
        assert int((rest == 0).sum()) == 0
        assert byte_p_value(rest) > 1e-6


@counts
def test_a_single_mask_is_uniform_in_every_byte(count):
    for holder in MASKS[count].values():
        mask = holder.mask("h0", 0, (4000, 4))
        assert byte_p_value(mask) > 1e-6
        for position in range(8):
            column = mask.view(torch.uint8).reshape(-1, 8)[:, position]
            assert chisquare(torch.bincount(column.long(), minlength=256).numpy()).pvalue > 1e-6


def test_the_uniformity_test_sees_a_single_byte_that_is_not():
    mask = MASKS[2]["A"].mask("h0", 0, (4000, 4))
    assert byte_p_value(mask & ~0xFF) < 1e-6
    assert byte_p_value(mask >> 8) < 1e-6


def byte_p_value(tensor):
    counted = torch.bincount(tensor.contiguous().view(torch.uint8).flatten().long(), minlength=256)
    return float(chisquare(counted.numpy()).pvalue)


@counts
def test_the_largest_legal_values_of_all_holders_still_open(count):
    headroom = (count - 1).bit_length()
    largest = 2.0 ** (61 - headroom - 32)
    inside = torch.tensor([largest * (1 - 2**-40), -largest * (1 - 2**-40)], dtype=torch.float64)
    hidden = [holder.hide(inside, 32, "h0", 1, "change it") for holder in MASKS[count].values()]
    opened = open_sum(hidden, 32, torch.float64, "h0", "change it")
    assert bool(((opened - count * inside).abs() <= count * 2.0**-49 * largest).all())
    name, holder = next(iter(MASKS[count].items()))
    with refused(RangeOverflow, key=f"{name}'s h0", value=61 - headroom) as caught:
        holder.hide(inside * 2, 32, "h0", 1, "change it")
    assert f"2^{29 - headroom} " in str(caught.value)


def test_a_value_is_moved_by_another_part_of_its_last_place_in_every_use():
    """With one for all, two messages of a value at different bits would differ by what nobody's mask hides."""
    rounding, values = SecretRounding(bytes(32)), 1 + torch.rand(5000, generator=torch.Generator().manual_seed(1))
    moves = []
    for bits in (40, 41, 42, 40):
        moved = torch.zeros(5000, dtype=torch.int64)
        rounding.move(moved, values, bits)
        moves.append(moved.double())
    among = torch.corrcoef(torch.stack(moves[:3])) - torch.eye(3)
    assert float(among.abs().max()) < 0.1
    assert torch.equal(moves[3], moves[0]), "a value has one in each"


def test_a_value_is_moved_by_half_of_sixteen_last_places_at_most_wherever_it_stands():
    """Of values in [1, 2) a last place is 2^-23; a value moves alike in a long tensor and alone."""
    rounding, values = SecretRounding(bytes(32)), 1 + torch.rand(40_000, generator=torch.Generator().manual_seed(1))
    moved = torch.zeros(40_000, dtype=torch.int64)
    rounding.move(moved, values, 40)
    half = 2.0 ** (40 - 23 + 4 - 1)
    assert 0.99 * half < float(moved.double().abs().max()) <= half
    for start in (0, 32_768, 39_999):
        alone = torch.zeros(1, dtype=torch.int64)
        rounding.move(alone, values[start : start + 1], 40)
        assert alone[0] == moved[start]


OF_ALL_SIZES = [0.0, -0.0, 1.0, -1.5, 3.4e38, 2.0**-149, -(2.0**-126), 2.0**-82, 1e-30, 7e-6, -31.9, 2.0**20]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [8, 32, 50])
def test_a_value_is_moved_by_its_secret_part_of_sixteen_last_places_exactly(bits, dtype):
    key, values = bytes(range(32)), torch.tensor(OF_ALL_SIZES, dtype=dtype)
    values = values[values.abs() < 2.0 ** (60 - bits)]
    cipher = Cipher(algorithms.AES256(derive_key(key, "secret rounding")), modes.ECB()).encryptor()
    digits, words = (23, torch.int32) if dtype == torch.float32 else (52, torch.int64)
    expected = []
    for value, word in zip(values.tolist(), values.view(words).tolist(), strict=True):
        secret = cipher.update(word.to_bytes(8, "little", signed=True) + bits.to_bytes(8, "little"))
        uniform = float(int.from_bytes(secret[:8], "little", signed=True)) * 2.0**-64
        size = math.frexp(value)[1] - 1 if abs(value) >= torch.finfo(dtype).tiny else None  # zeros and denormals: none
        expected.append(0 if size is None else round(Fraction(uniform) * Fraction(2) ** (size - digits + 4 + bits)))
    moved = torch.zeros(len(values), dtype=torch.int64)
    SecretRounding(key).move(moved, values, bits)
    assert moved.tolist() == expected
    assert any(expected) == (bits > 8 or dtype == torch.float32)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_not_hidden(value):
    with refused(RangeOverflow, key="A's h0", value=60):
        MASKS[2]["A"].hide(torch.tensor([value]), 32, "h0", 1, "change it")


def test_an_opened_sum_in_the_guard_bits_is_refused_with_the_remedy():
    with refused(RangeOverflow, key="the sum"):
        open_sum([torch.tensor([2**60]), torch.tensor([2**60])], 32, torch.float32, "the sum", "change it")


def test_purposes_steps_pairs_and_sessions_have_masks_of_their_own():
    holder = MASKS[3]["bank"]
    names = [("h0", 0), ("h0", 1), ("h0", 10), ("h0 gradient", 0), ("W/A", 0), ("h0/1", 0)]
    masks = [holder.mask(purpose, step, (16,)) for purpose, step in names]
    masks += [MASKS[3]["shop"].mask("h0", 0, (16,)), agreed_masks(HOLDERS[3], seed=1)["bank"].mask("h0", 0, (16,))]
    assert len({int(element) for mask in masks for element in mask}) == 16 * len(masks)
    assert torch.equal(holder.mask("h0", 0, (16,)), masks[0])


def test_whole_numbers_have_masks_of_their_own_in_every_step():
    """Rows, sums and squares are asked for one after another under one purpose: equal masks would show differences."""
    holder, same = MASKS[3]["bank"], [7] * 4
    names = [("column sums", 0), ("column sums", 1), ("column sums", 10), ("column sums/1", 0), ("h0", 0)]
    masks = [holder.mask_integers(purpose, step, 4) for purpose, step in names]
    masks += [MASKS[3]["shop"].mask_integers("column sums", 0, 4)]
    masks += [agreed_masks(HOLDERS[3], seed=1)["bank"].mask_integers("column sums", 0, 4)]
    assert len({element for mask in masks for element in mask}) == 4 * len(masks)
    sent = [among(dict.fromkeys(HOLDERS[3], same), step)[1] for step in (0, 1)]
    for name in HOLDERS[3]:
        first, second = (integers_of(messages[name][0].tensor) for messages in sent)
        assert not set(first) & set(second), f"{name} sums and squares under one mask"


@pytest.mark.parametrize(
    "key",
    [
        bytes(32),
        bytes([1]) + bytes(31),
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    ],
    ids=["zero", "one", "of order 8"],
)
def test_a_public_key_that_gives_everyone_the_same_secret_is_refused(key):
    def cheat(link):
        link.send("A", Tag(Kind.KEY), torch.frombuffer(bytearray(key), dtype=torch.uint8))

    def honest(link):
        return PairwiseMasks.agree(link, ["A", "B"], fixed_secrets("A"))

    with refused(ProtocolError, code="bad-public-key", party="B"):
        simulate({"A": honest, "B": cheat})


@pytest.mark.parametrize("key", [torch.zeros(31, dtype=torch.uint8), torch.zeros(32), torch.zeros(1, 32).byte()])
def test_a_public_key_of_another_form_is_refused(key):
    def honest(link):
        return PairwiseMasks.agree(link, ["A", "B"], fixed_secrets("A"))

    with refused(ProtocolError, code="shape", key="key/step 0/round 0", party="B"):
        simulate({"A": honest, "B": lambda link: link.send("A", Tag(Kind.KEY), key)})


def test_both_ends_of_a_pair_know_the_same_key_and_a_third_does_not():
    secrets = fixed_secrets("x")
    keys = [secrets(32) for _ in range(3)]
    shared = {
        name: PairwiseMasks(name, {"C" if name != "C" else "A": key}, bytes(32))
        for name, key in zip("ABC", keys, strict=True)
    }
    assert not torch.equal(shared["A"].mask("h0", 0, (8,)), -shared["B"].mask("h0", 0, (8,)))
    pair = agreed_masks(["A", "B"])
    assert torch.equal(pair["A"].mask("h0", 0, (8,)), -pair["B"].mask("h0", 0, (8,)))


def among(values, step=0):
    """Every holder's sums of whole numbers, and what each sent."""
    names, sent = list(values), {}

    def program(party):
        def work(link):
            recorded = RecordedLink(link, keep_transcript=True)
            masks = PairwiseMasks.agree(recorded, names, fixed_secrets(party), round_=1)
            others = [name for name in names if name != party]
            tag = Tag(Kind.COLUMN_SUMS, step)
            found = sum_integers_among(recorded, others, masks, values[party], tag, purpose="column sums")
            sent[party] = [one for one in recorded.transcript() if one.tag == tag and one.sender == party]
            return found

        return work

    return simulate({name: program(name) for name in names}), sent


def test_hidden_whole_numbers_are_uniform_in_every_byte():
    _, sent = among({name: [0] * 1500 for name in HOLDERS[3]})
    for messages in sent.values():
        assert byte_p_value(messages[0].tensor) > 1e-6
        assert byte_p_value(messages[0].tensor[:, -1]) > 1e-6


def test_whole_numbers_that_do_not_fit_are_refused():
    with refused(RangeOverflow, key="column sums", value=638, party="A"):
        sum_integers_among(
            MemoryHub(["A", "B"], 1).link("A"),
            ["B"],
            MASKS[2]["A"],
            [1 << 638],
            Tag(Kind.COLUMN_SUMS),
            purpose="column sums",
        )
