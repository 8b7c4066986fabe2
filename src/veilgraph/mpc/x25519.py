"""X25519 (RFC 7748) of many points under one scalar, in two ways: OpenSSL's and, eight points at a time, Intel's.

Intel's library crypto_mb is in the package ``ipp-crypto``, and what it links to in ``intel-cmplr-lib-rt`` (the extra
``alignment``). It needs AVX-512 IFMA and the system's libcrypto.so.3, and takes a sixth of the time.

crypto_mb is right on random points, and wrong on some that are made for it. It keeps numbers below 2^255 + 2^220, while
its subtraction adds p once at most: a − b is wrong where b ≥ p + a, for two random numbers with probability 2^-70. A
party that chooses u makes such numbers in early steps of the ladder, at certain first bits of the scalar.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from importlib import metadata
from typing import Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from veilgraph.core.errors import RunError
from veilgraph.mpc.hash_to_curve import POINT_BYTES

Points: TypeAlias = NDArray[np.uint8]
"""The u-coordinate of each point, little-endian: uint8 [n, 32], below p."""
Multiply: TypeAlias = Callable[[bytes, Points], Points]
"""(scalar, points) → products; ``ValueError``: one of them is 0."""

_LANES: Final = 8
_BELOW_2_TO_255: Final = np.array([0xFF] * 31 + [0x7F], np.uint8)
_X25519: Final = 4  # enum MBX_ALGO in crypto_mb/cpu_features.h
_LOW_ORDER: Final = 4  # crypto_mb/status.h: four bits for each lane
PACKAGES: Final = ("ipp-crypto", "intel-cmplr-lib-rt")
_LINKED: Final = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so")
"""What crypto_mb asks the loader for by name: it takes libraries of these names that are loaded already."""

log = logging.getLogger("veilgraph")


def multiply_by_openssl(scalar: bytes, points: Points) -> Points:
    """Multiply one point after another: a ``Multiply``."""
    key, sent = X25519PrivateKey.from_private_bytes(scalar), points.tobytes()
    products = bytearray()
    for start in range(0, len(sent), POINT_BYTES):
        products += key.exchange(X25519PublicKey.from_public_bytes(sent[start : start + POINT_BYTES]))
    return np.frombuffer(products, np.uint8).reshape(-1, POINT_BYTES)


@cache
def fast_multiply() -> Multiply | None:
    """Load crypto_mb; None where it is not installed, or, with a warning, cannot be used or multiplies wrongly."""
    try:
        metadata.version(PACKAGES[0])
    except metadata.PackageNotFoundError:
        return None
    try:
        files = {path.name: str(path.locate()) for name in PACKAGES for path in metadata.files(name) or ()}
        # Their symbols stay theirs, which RTLD_GLOBAL would not do: libimf has functions of libm's names.
        for name in _LINKED:
            ctypes.CDLL(files[name])
        library = ctypes.CDLL(files["libcrypto_mb.so"])
        library.mbx_get_algo_info.restype = ctypes.c_uint64
        library.mbx_x25519_mb8.restype = ctypes.c_uint32
        library.mbx_x25519_mb8.argtypes = [ctypes.c_void_p] * 3
        lacks = "" if library.mbx_get_algo_info(_X25519) & _LANES else "it needs a processor with AVX-512 IFMA"
    except (metadata.PackageNotFoundError, KeyError, OSError, AttributeError) as error:
        lacks = f"pip install ipp-crypto intel-cmplr-lib-rt ({error})"
    if lacks:
        log.warning("crypto_mb cannot be used, so alignments go without it: %s; or uninstall ipp-crypto", lacks)
        return None
    multiply = partial(_multiply_by_crypto_mb, library.mbx_x25519_mb8)
    scalar, *some = [sha256(bytes([number])).digest() for number in range(2 + _LANES)]
    points = np.frombuffer(b"".join(some), np.uint8).reshape(-1, POINT_BYTES) & _BELOW_2_TO_255
    try:
        is_right = np.array_equal(multiply(scalar, points), multiply_by_openssl(scalar, points))
    except ValueError:  # none of these products is 0
        is_right = False
    if not is_right:
        log.warning("crypto_mb multiplies wrongly, so alignments go without it; install another ipp-crypto")
        return None
    return multiply


def _multiply_by_crypto_mb(function: Callable[[int, int, int], int], scalar: bytes, points: Points) -> Points:
    """Multiply by mbx_x25519_mb8(products, scalars, points), which takes three arrays of eight addresses each."""
    rows = len(points)
    points = np.resize(points, (rows + -rows % _LANES, POINT_BYTES))  # whole eights, by the first points again
    products, key = np.zeros_like(points), np.frombuffer(scalar, np.uint8)
    offsets = np.arange(0, points.size, POINT_BYTES, dtype=np.uint64)
    sources, targets = offsets + np.uint64(points.ctypes.data), offsets + np.uint64(products.ctypes.data)
    keys = np.full(_LANES, key.ctypes.data, np.uint64)
    for start in range(0, offsets.nbytes, _LANES * offsets.itemsize):
        status = function(targets.ctypes.data + start, keys.ctypes.data, sources.ctypes.data + start)
        if status:
            lanes = {status >> shift & 0xF for shift in range(0, 4 * _LANES, 4)}
            if lanes <= {0, _LOW_ORDER}:
                raise ValueError("a product is 0")
            raise RunError(
                f"crypto_mb answers status {status:#x} to X25519; uninstall ipp-crypto, to align without it",
                code="crypto-mb",
                key="ipp-crypto",
                value=status,
            )
    return products[:rows]
