"""One party's encryptions, and another party's answers: linear functions of the messages, less a share of its own.

Ring-LWE modulo q over degree N (Lyubashevsky, Peikert and Regev, 2010), with a ternary key s and messages in the
coefficients. The owner of the key encrypts m modulo t as

    c0 = e + ⌊q·m/t⌉ − c1·s,   c1 uniform from a public seed, e centred binomial (variance 10.5)

and sends c0. The other party computes Σ w·(c0, c1) for its polynomials w, adds an encryption of zero under the public
key (which is an encryption of zero by the owner), u·(c0', c1') + (0, e1), subtracts its share ⌊q·z/t⌉ and adds a flood
f, uniform in ±2^F, to the coefficients of c0 that are wanted; the others are not sent. Both parts are then rounded to
fewer bits: q to 2^b.

**What the owner learns.** The second part is uniform to whoever does not know u (ring-LWE with the secret u, and the
owner's e1 drowned below). The first part follows from it, from s, and from Σ w·m − z and the noise

    Σ w·(e + ε) + u·e' + e1·s + f,   |ε| ≤ 1/2 from rounding

of which f is drawn from a range 2^66 times as wide as all else: the statistical distance to f alone is below 2^-66 a
coefficient. So what the owner gets can be simulated from its uniform share. Distances add up: in a job of 2^26
coefficients the probability that the noise of any shows is below 2^-40.

**What the other party learns.** Nothing, as (c0, c1) is uniform to whoever does not know s (ring-LWE again).

**Bounds.** With Hoeffding's bound for sums of centred binomial numbers, |Σ w·e| ≤ T·√(10.5·Σw²) except with probability
2·exp(−T²/2) = 2^-71 for T = 10; likewise u·e' and e1·s, each of at most N summands of weight one. Σ w·ε is at most
Σ|w|/2. Their sum B fixes the flood, 2^F ≥ 2^66·B, and the modulus, q/t ≥ 4·2^F. Rounding to 2^b moves the result by
at most T·√(N/4) + 1 units of 2^-b·t, which b keeps below 2/9. The whole is below 1/4 + 2/9 + 2^-67 < 1/2, so that a
result is wrong only if a bound on the noise of rounding fails: 2^-71 a coefficient, below 2^-40 for a job of 2^31
coefficients.

**Halves.** Or the second part is sent alone, and nothing is flooded. The owner's share is ⌊t/2^b·(second part)·s⌉, the
other party's ⌊t/q·(first part)⌉ (Dodis, Halevi, Rothblum and Wichs, CRYPTO 2016, lemma 1; Boyle, Kohl and Scholl,
Eurocrypt 2019). They add up to m unless noise carries one of the two over a rounding's edge. As the second part is as
good as uniform, that has the probability E|noise|·t/q, and E|rounding|·t/2^b for what rounding adds: together below
2^-48 a coefficient, by the choice of q and b. The owner gets the second part, which says nothing, as above, and its
share follows from that: the simulator draws both at once.

**Security.** N = 8192 with q ≤ 2^218, or 4096 with q ≤ 2^109: 128 bits against classical attacks by the table of the
Homomorphic Encryption Standard (2018) for ternary keys and errors of deviation 3.2. Parties are semi-honest: the
owner's public key is taken to be well formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, log2, prod, sqrt
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.randomness import Keystream
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.mpc.pair import ntt
from veilgraph.mpc.pair.ntt import Words
from veilgraph.mpc.pair.packing import pack, packed_words, unpack
from veilgraph.mpc.pair.peer import Peer
from veilgraph.mpc.pair.polynomials import Ring, primes_below, ring, words

DEGREE: Final = 8192
"""N, where a product is not said to be of a smaller one."""
MODULUS_BITS: Final = {DEGREE: 218, DEGREE // 2: 109}
"""Most bits of q for 128 bits of security at each degree."""
FLOOD_BITS: Final = 66
"""log2 of how much wider the flood is than the noise that depends on data."""
VARIANCE: Final = 10.5
WORD_BITS: Final = 64
MISS_BITS: Final = 49
"""−log2 of the probability that the noise before rounding makes a coefficient of a half wrong; likewise rounding's."""
TAIL: Final = 10.0
"""T: deviations of a sum of noise that are exceeded with probability 2·exp(−T²/2) = 2^-71."""


@dataclass(frozen=True)
class Scheme:
    """Degree N, plaintext modulus t, L primes of so many bits, and F: floods are uniform in ±2^F.

    ``miss_bits``: answers are halves, that are wrong with such a probability; 0: they are whole, with floods.
    """

    degree: int
    modulus: int
    prime_bits: int
    primes: int
    flood_bits: int
    miss_bits: int = 0

    @property
    def ring(self) -> Ring:
        """Z_q[x]/(x^N + 1)."""
        return ring(self.degree, self.prime_bits, self.primes)

    @cached_property
    def answer_bits(self) -> int:
        """b: answers are rounded to multiples of q/2^b."""
        if self.miss_bits:
            return _half_bits(self.modulus, self.miss_bits, self.degree)
        return ceil(log2(self.modulus) + log2(4.5 * (TAIL * sqrt(self.degree / 4) + 1)))

    @cached_property
    def small_ring(self) -> Ring:
        """As many of the primes as hold products of the key and an answer: up to N·2^b in magnitude."""
        needed = self.answer_bits + log2(self.degree) + 1
        primes = primes_below(self.prime_bits, self.primes, self.degree)
        count = next(count for count in range(1, self.primes + 1) if log2(prod(primes[:count])) > needed)
        return ring(self.degree, self.prime_bits, count)

    def wire_bytes(self, fresh: int, kept: int, answers: int, places: int) -> float:
        """Bytes of so many ciphertexts both ways, up to a few words: to compare costs."""
        sent = fresh * kept * self.primes * self.prime_bits
        return (sent + answers * (self.degree + self.first_places(places)) * self.answer_bits) / 8

    def first_places(self, places: int) -> int:
        """Coefficients of an answer's first part that are sent, of so many that are wanted."""
        return 0 if self.miss_bits else places

    def fresh_words(self, count: int, kept: int | None = None) -> int:
        """Words of a message of ``count`` ciphertexts of which ``kept`` coefficients are sent."""
        return packed_words(count * self.primes * (self.degree if kept is None else kept), self.prime_bits)

    def answer_words(self, count: int, places: int) -> int:
        """Words of a message of ``count`` answers with so many wanted coefficients."""
        firsts = count * self.first_places(places)
        return _wide_words(count * self.degree, self.answer_bits) + _wide_words(firsts, self.answer_bits)


@lru_cache(256)
def scheme(modulus: int, weight: float, squares: float, miss_bits: int = 0, degree: int = DEGREE) -> Scheme:
    """Choose the smallest scheme of a degree for messages modulo t; ``miss_bits``: as of a scheme.

    ``weight``: bound of Σ|w| over all coefficients w of all polynomials that an answer sums up; ``squares``: of Σw².
    Raises ``ConfigError``: the modulus would be larger than is secure.
    """
    noise = TAIL * sqrt(VARIANCE) * (sqrt(squares) + 2 * sqrt(degree)) + weight / 2
    flood = 0 if miss_bits else FLOOD_BITS + ceil(log2(noise))
    needed = ceil(log2(modulus)) + flood + 2
    if miss_bits:  # and room for a half times the key
        room = _half_bits(modulus, miss_bits, degree) + ceil(log2(degree)) + 2
        needed = max(ceil(log2(modulus)) + ceil(log2(noise)) + miss_bits, room)
    primes = -(-needed // ntt.PRIME_BITS)
    prime_bits = -(-needed // primes)
    if primes * prime_bits > (most := MODULUS_BITS[degree]):
        raise ConfigError(
            f"a product needs a modulus of {primes * prime_bits} bits, above the {most} that are secure; "
            "compute it in smaller parts",
            code="modulus",
        )
    return Scheme(degree, modulus, prime_bits, primes, flood, miss_bits)


def _half_bits(modulus: int, miss_bits: int, degree: int) -> int:
    """B of halves: what rounding adds, times a ternary key, has a deviation of √(N·2/3/12) units of t/2^b."""
    return ceil(log2(modulus) + log2(sqrt(degree / 18) + 1) + miss_bits)


class Owner:
    """The owner of a key, which encrypts and decrypts."""

    def __init__(self, form: Scheme, secrets: SecretSource) -> None:
        self.scheme, self.seed = form, secrets(SEED_BYTES)
        self._public = Keystream(self.seed, "veilgraph/pair/lattice/public")
        self._own = Keystream(secrets(SEED_BYTES), "veilgraph/pair/lattice/owner")
        self._key = form.ring.transform(form.ring.ternary(self._own, 1))

    def begin(self, peer: Peer) -> None:
        """Send the seed and the public key: an encryption of zero, transformed."""
        peer.tell(torch.frombuffer(bytearray(self.seed), dtype=torch.uint8))
        self.send(peer, self.encrypt(np.zeros((1, self.scheme.degree), np.uint64)))

    def encrypt(self, messages: Words, *, transformed: bool = True, modulus: int | None = None) -> Words:
        """c0 of messages [count, N] modulo t: [count, L, N], transformed or not, as c1 is drawn then.

        ``modulus``: another t of the same size as the scheme's.
        """
        polynomials = self.scheme.ring
        body = polynomials.noise(self._own, len(messages))
        polynomials.add(body, polynomials.scaled(messages, modulus or self.scheme.modulus))
        second = polynomials.uniform(self._public, len(messages))
        if transformed:
            return polynomials.subtract(polynomials.transform(body), polynomials.multiply(second, self._key))
        product = polynomials.multiply(polynomials.transform(second), self._key)
        return polynomials.subtract(body, polynomials.untransform(product))

    def send(self, peer: Peer, first: Words) -> None:
        """Send c0 of ciphertexts."""
        peer.tell(_as_message(pack(first, self.scheme.prime_bits)))

    def receive(self, peer: Peer, count: int, places: Words) -> Words:
        """Receive answers and decrypt what is at the places: [count, places] modulo t."""
        form, wanted = self.scheme, len(places)
        heard = peer.hear((form.answer_words(count, wanted),), torch.int64).numpy().view(np.uint64)
        size = _wide_words(count * form.degree, form.answer_bits)
        second_hi, second_lo = _unpack_wide(heard[:size], form, (count, form.degree))
        first_hi, first_lo = _unpack_wide(heard[size:], form, (count, wanted))
        products = self._times_key(second_hi, second_lo)[:, :, places.astype(np.int64)]
        hi, lo = form.small_ring.integers(products)
        return ntt.messages(hi, lo, first_hi, first_lo, form.answer_bits, np.uint64(form.modulus % (1 << 64)))

    def receive_halves(self, peer: Peer, count: int, places: Words, modulus: int | None = None) -> Words:
        """Receive answers that are halves, and return this party's share of the places: [count, places] modulo t.

        ``modulus``: another t of the same size as the scheme's.
        """
        form = self.scheme
        heard = peer.hear((form.answer_words(count, len(places)),), torch.int64).numpy().view(np.uint64)
        products = self._times_key(*_unpack_wide(heard, form, (count, form.degree)))[:, :, places.astype(np.int64)]
        return _rounded(*form.small_ring.integers(products), form, modulus)

    def _times_key(self, hi: Words, lo: Words) -> Words:
        """Multiply what was received by the key: residues of the small ring, [count, L, N]."""
        small = self.scheme.small_ring
        products = small.transform(small.wide_residues(hi, lo, signed=False))
        return small.untransform(small.multiply(products, np.ascontiguousarray(self._key[:, : len(small.primes)])))


class Responder:
    """The party that computes on the other one's encryptions."""

    def __init__(self, form: Scheme, secrets: SecretSource, peer: Peer) -> None:
        self.scheme = form
        seed = bytes(peer.hear((SEED_BYTES,), torch.uint8).numpy())
        self._public = Keystream(seed, "veilgraph/pair/lattice/public")
        self._own = Keystream(secrets(SEED_BYTES), "veilgraph/pair/lattice/responder")
        self._zero = self.receive(peer, 1)

    def receive(self, peer: Peer, count: int, kept: int | None = None) -> tuple[Words, Words]:
        """Receive ciphertexts as c0 [count, L, kept] and c1 [count, L, N]; ``ProtocolError``: residues too large."""
        form = self.scheme
        shape = (count, form.primes, form.degree if kept is None else kept)
        heard = peer.hear((form.fresh_words(count, shape[2]),), torch.int64).numpy().view(np.uint64)
        first = unpack(heard, form.prime_bits, prod(shape)).reshape(shape)
        if (first >= np.array(form.ring.primes, np.uint64)[:, None]).any():
            raise ProtocolError(
                f"{peer.other} sent residues that are not below their prime; ask what it runs",
                code="residues",
                party=peer.other,
            )
        return first, form.ring.uniform(self._public, count)

    def draw(self, *shape: int) -> Words:
        """Draw this party's own share: uniform modulo 2^64."""
        return words(self._own, *shape)

    def answer(
        self,
        sums: tuple[Words, Words],
        places: Words,
        shares: Words,
        *,
        transformed: bool = True,
    ) -> Tensor:
        """Return the message of results at the places, less the shares [count, places] modulo t.

        ``sums``: Σ w·c0 and Σ w·c1 [count, L, N], transformed; or else coefficients, and then the first of them at the
        places only [count, L, places]. Both are overwritten.
        """
        polynomials = self.scheme.ring
        wanted, second = self._hidden(sums, places, transformed=transformed)
        polynomials.add(wanted, self._flood(*shares.shape))
        polynomials.subtract(wanted, polynomials.scaled(shares, self.scheme.modulus))
        bits = self.scheme.answer_bits
        parts = [_pack_wide(*polynomials.switched(part, bits), bits) for part in (second, wanted)]
        return _as_message(np.concatenate(parts))

    def halve(
        self, sums: tuple[Words, Words], places: Words, *, transformed: bool = True, modulus: int | None = None
    ) -> tuple[Tensor, Words]:
        """Return the message of a half of results, and this party's share of the places: [count, places] modulo t.

        ``sums``: as of ``answer``; ``modulus``: as of ``Owner.receive_halves``.
        """
        bits, polynomials = self.scheme.answer_bits, self.scheme.ring
        wanted, second = self._hidden(sums, places, transformed=transformed)
        message = _as_message(_pack_wide(*polynomials.switched(second, bits), bits))
        return message, _rounded(*polynomials.switched(wanted, bits), self.scheme, modulus)

    def _hidden(self, sums: tuple[Words, Words], places: Words, *, transformed: bool) -> tuple[Words, Words]:
        """Add an encryption of zero: coefficients of the first part at the places, and of the second part."""
        first, second = sums
        polynomials, at = self.scheme.ring, places.astype(np.int64)
        once = polynomials.transform(polynomials.ternary(self._own, len(second)))
        zeros = [polynomials.multiply(once, part) for part in self._zero]
        if transformed:
            polynomials.untransform(polynomials.add(first, zeros[0]))
            polynomials.untransform(polynomials.add(second, zeros[1]))
            wanted = np.ascontiguousarray(first[:, :, at])
        else:
            wanted = polynomials.add(first, np.ascontiguousarray(polynomials.untransform(zeros[0])[:, :, at]))
            polynomials.add(second, polynomials.untransform(zeros[1]))
        polynomials.add(second, polynomials.noise(self._own, len(second)))
        return wanted, second

    def _flood(self, *shape: int) -> Words:
        """Residues of uniform integers in ±2^F."""
        bits, polynomials = self.scheme.flood_bits, self.scheme.ring
        upper, *below = self.draw(bits // WORD_BITS + 1, *shape)
        upper = (upper.view(np.int64) >> (WORD_BITS - 1 - bits % WORD_BITS)).view(np.uint64)
        if not below:
            return polynomials.residues(upper)
        found = polynomials.wide_residues(upper, below[0], signed=True)
        for word in below[1:]:
            polynomials.by_constants(found, [1 << WORD_BITS] * len(polynomials.primes))
            polynomials.add(found, polynomials.wide_residues(np.zeros_like(word), word, signed=False))
        return found


class Keys:
    """A party's part in both directions: one key for each scheme, made and told when it is first used."""

    def __init__(self, peer: Peer, secrets: SecretSource) -> None:
        self.peer, self._secrets = peer, secrets
        self._owners: dict[Scheme, Owner] = {}
        self._responders: dict[Scheme, Responder] = {}

    def owner(self, form: Scheme) -> Owner:
        """The owner of this party's key, whose public part the other one has."""
        if form not in self._owners:
            self._owners[form] = Owner(form, self._secrets)
            self._owners[form].begin(self.peer)
        return self._owners[form]

    def responder(self, form: Scheme) -> Responder:
        """What answers under the other party's key."""
        if form not in self._responders:
            self._responders[form] = Responder(form, self._secrets, self.peer)
        return self._responders[form]


def key_messages(form: Scheme) -> list[int]:
    """Bytes of the messages by which a party tells its key for a scheme."""
    return [SEED_BYTES, 8 * form.fresh_words(1)]


def _rounded(hi: Words, lo: Words, form: Scheme, modulus: int | None) -> Words:
    """Return ⌊x·t/2^b⌉ modulo t of integers x of word pairs."""
    nothing = np.zeros_like(lo)
    return ntt.messages(hi, lo, nothing, nothing, form.answer_bits, np.uint64((modulus or form.modulus) % (1 << 64)))


def _wide_words(count: int, bits: int) -> int:
    return packed_words(count, min(bits, 64)) + packed_words(count, max(bits - 64, 0))


def _pack_wide(hi: Words, lo: Words, bits: int) -> Words:
    """Pack integers of word pairs: their low words, then what is above."""
    low = pack(lo, min(bits, 64))
    return low if bits <= 64 else np.concatenate([low, pack(hi, bits - 64)])


def _unpack_wide(heard: Words, form: Scheme, shape: tuple[int, int]) -> tuple[Words, Words]:
    """Undo ``_pack_wide``: high and low words."""
    bits, count = form.answer_bits, prod(shape)
    low = unpack(heard, min(bits, 64), count)
    above = np.zeros_like(low)
    if bits > 64:
        above = unpack(heard[packed_words(count, 64) :], bits - 64, count)
    return above.reshape(shape), low.reshape(shape)


def _as_message(packed: Words) -> Tensor:
    """Words as int64, to be sent."""
    return torch.from_numpy(packed.view(np.int64))
