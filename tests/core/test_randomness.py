import hashlib
import os
import threading

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from veilgraph.core import randomness
from veilgraph.core.randomness import PUBLIC_SEEDS, LearningStreams, expand, private_seed, seeded_global
from veilgraph.core.secrets import system_secrets

SEED = bytes(range(32))
purposes = st.text(max_size=20)


def keystream(seed, purpose, length):
    """AES-256-CTR in one call, with the key derived here."""
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose.encode()).derive(seed)
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return encryptor.update(bytes(length)) + encryptor.finalize()


@settings(max_examples=12)
@given(
    seed=st.binary(min_size=32, max_size=32),
    purpose=purposes,
    rows=st.integers(0, 40),
    columns=st.integers(0, 9),
)
def test_expand_is_the_keystream_of_aes_256_in_counter_mode(seed, purpose, rows, columns):
    expanded = expand(seed, purpose, (rows, columns))
    expected = np.frombuffer(keystream(seed, purpose, 8 * rows * columns), dtype=np.int64)
    assert expanded.shape == (rows, columns)
    assert expanded.dtype == torch.int64
    assert expanded.flatten().tolist() == expected.tolist()


def test_expand_of_a_fixed_seed_never_changes():
    # Both ends of a pair expand on their own. The values are those of Python's hmac and `openssl enc -aes-256-ctr`.
    assert expand(SEED, "U", (4,)).tolist() == [
        1391417875145612558,
        2434907886065757654,
        2228334857704533865,
        -4698756424264561707,
    ]


@pytest.fixture(params=[True, False], ids=["by GCM", "by CTR"])
def wide(request, monkeypatch):
    monkeypatch.setattr(randomness, "gcm_is_faster", lambda: request.param)
    return request.param


def test_what_makes_the_keystream_does_not_change_it(wide):
    sizes = [randomness.WIDE_BYTES + 5, 3, (1 << 20) + 1, 16]
    stream = randomness.Keystream(SEED, "U")
    taken = b"".join(stream.take(size).numpy().tobytes() for size in sizes)
    assert taken == keystream(SEED, "U", sum(sizes))


@pytest.mark.parametrize("first", [0, 8, 1 << 15])
def test_the_keystream_goes_on_where_gcm_ends(monkeypatch, wide, first):
    """It gives 64 GiB, and no stream of another size is as far from its counter's end."""
    assert randomness.GCM_BYTES == 2**36 - 32
    monkeypatch.setattr(randomness, "GCM_BYTES", 1 << 16)
    stream = randomness.Keystream(SEED, "U")
    taken = b"".join(stream.take(size).numpy().tobytes() for size in (first, 1 << 15, 40_007, 1 << 15))
    assert taken == keystream(SEED, "U", first + (1 << 16) + 40_007)


def test_seeds_and_purposes_give_unrelated_masks():
    names = ["U", "V/A/FORWARD/0", "V/A/FORWARD/1", "V/A/BACKWARD/0", "V/B/FORWARD/0", "", "U/"]
    masks = [expand(seed, name, (64,)) for seed in (SEED, SEED[::-1]) for name in names]
    seen = {int(element) for mask in masks for element in mask}
    assert len(seen) == 64 * len(masks)


def test_secrets_come_from_the_operating_system():
    assert system_secrets is os.urandom


# Learning streams


def test_a_stream_never_changes_between_versions():
    # A checkpoint is resumed with the streams of the version that resumes it.
    root = hashlib.sha256(b"veilgraph/7/A").digest()
    expected = int.from_bytes(hashlib.sha256(root + b"dropout/3").digest()[:8], "big") >> 1
    assert LearningStreams(7, "A").seed("dropout", 3) == expected


def test_the_global_generator_is_seeded_inside_and_restored_after():
    streams = LearningStreams(7, "A")
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with streams.global_generator("head"):
        inside = torch.rand(4)
    assert torch.equal(torch.rand(4), expected)
    torch.manual_seed(99)
    with streams.global_generator("head"):
        assert torch.equal(torch.rand(4), inside)
    with streams.global_generator("head", 1):
        assert not torch.equal(torch.rand(4), inside)


def test_the_global_generator_is_restored_when_the_block_fails():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    with pytest.raises(RuntimeError), seeded_global(1):
        torch.rand(2, 3) @ torch.rand(2)
    assert torch.equal(before, torch.random.get_rng_state())
    with seeded_global(1):  # and the lock is free again
        pass


def test_parties_in_threads_draw_what_they_would_draw_alone():
    def draw(seed):
        with seeded_global(seed):
            return torch.cat([torch.rand(1000) for _ in range(5)])

    alone = [draw(seed) for seed in range(4)]
    together = [torch.empty(0)] * 4

    def work(seed):
        together[seed] = draw(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_private_seed_is_all_of_32_bytes_of_the_system_above_every_public_one(monkeypatch):
    asked = []

    def source(length):
        asked.append(os.urandom(length))
        return asked[-1]

    monkeypatch.setattr(randomness, "system_secrets", source)
    seeds = [private_seed() for _ in range(20)]
    assert [len(drawn) for drawn in asked] == [32] * 20
    assert seeds == [2**256 + int.from_bytes(drawn, "big") for drawn in asked]
    assert min(seeds) >= PUBLIC_SEEDS
    assert len({seed % 2**64 for seed in seeds} | {seed >> 192 for seed in seeds}) == 40


def test_what_is_shared_of_a_private_seed_leads_to_no_stream_of_its_owner():
    """It is a hash of the seed, as long; neither the seed nor what else is drawn from it follows from it."""
    own = LearningStreams(seed := private_seed(), "A")
    shared = own.to_share()
    assert shared >= PUBLIC_SEEDS
    assert shared == LearningStreams(seed, "A").to_share() != LearningStreams(private_seed(), "A").to_share()
    told = [seed, *(own.seed(purpose) for purpose in ("local", "order", "rounding")), own.secret("rounding")]
    found = [LearningStreams(shared, "A"), LearningStreams(shared, "shared")]
    drawn = [each.seed(purpose) for each in found for purpose in ("local", "order", "rounding")]
    assert not {*told} & {shared, *drawn, *(each.secret("rounding") for each in found)}
    assert LearningStreams(5, "A").to_share() == 5, "a public one all have anyway"


def test_private_streams_use_more_than_the_32_bits_that_torch_keeps_of_a_seed():
    seed = private_seed()

    class SameLowBits(LearningStreams):
        def seed(self, purpose: str, *counters: int) -> int:
            return 7

    def draw(streams: LearningStreams) -> torch.Tensor:
        return torch.randn(1000, generator=streams.generator("W"))

    def draw_globally(streams: LearningStreams) -> torch.Tensor:
        with streams.global_generator("W"):
            return torch.randn(1000)

    for drawn in (draw, draw_globally):
        assert torch.equal(drawn(SameLowBits(0, "a")), drawn(SameLowBits(1, "a"))), "the test sees nothing"
        one, other = drawn(SameLowBits(seed, "a")), drawn(SameLowBits(seed + 1, "a"))
        assert torch.equal(one, drawn(SameLowBits(seed, "a")))
        assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 0.2
        assert abs(one.mean()) < 0.2
        assert 0.85 < one.std() < 1.15


def test_torch_keeps_the_twister_where_private_streams_fill_it():
    state = torch.Generator().manual_seed(5).get_state().view(torch.int64)
    words = [5]
    for index in range(1, 624):  # the published initialisation of MT19937
        words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + index) & 0xFFFFFFFF)
    assert state[3 : 3 + 624].tolist() == words


@pytest.mark.parametrize("in_use", [True, False])
def test_seeds_go_to_a_gpu_that_is_in_use_alone(monkeypatch: pytest.MonkeyPatch, in_use: bool) -> None:
    """For another torch would keep them all, each with a stack of calls."""
    told: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", told.append)
    with randomness.seeded_global(5):
        drawn = torch.rand(3)
    assert told == [5] * in_use
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))
