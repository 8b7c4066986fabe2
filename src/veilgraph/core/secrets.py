"""Secret bytes and keys, without torch: a site's own process needs no more of ``randomness``."""

from __future__ import annotations

import os
from collections.abc import Callable

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SEED_BYTES = 32
_NAME_BYTES = 16

SecretSource = Callable[[int], bytes]
"""Returns that many secret bytes. ``os.urandom`` in every job; tests inject a fixed one."""

system_secrets: SecretSource = os.urandom


def new_name() -> str:
    """A name that nothing else has."""
    return system_secrets(_NAME_BYTES).hex()


def derive_key(secret: bytes, purpose: str) -> bytes:
    """HKDF-SHA256 of ``secret`` for ``purpose``: 32 bytes."""
    return HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=None, info=purpose.encode()).derive(secret)
