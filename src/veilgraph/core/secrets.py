"""Secret bytes and keys, without torch: a site's own process needs no more of ``randomness``."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from veilgraph.core.errors import RunError
from veilgraph.core.files import locked, os_errors_as, private_folder, write_whole

SEED_BYTES = 32
_NAME_BYTES = 16

SecretSource = Callable[[int], bytes]
"""Returns that many secret bytes. ``os.urandom`` in every job; tests inject a fixed one."""

system_secrets: SecretSource = os.urandom


def random_name() -> str:
    """Draw a random name of 32 hexadecimal digits."""
    return system_secrets(_NAME_BYTES).hex()


def kept_secret(path: Path, loss: str) -> bytes:
    """Read 32 secret bytes from a file, drawn at first use; ``RunError``, which ends in ``loss``, if it is damaged."""
    with (
        os_errors_as(RunError, f"{path}: cannot be made or read", "have it where you may write"),
        locked(private_folder(path.parent), f"{path.parent} is in use", wait_s=math.inf),
    ):
        if not path.is_file():
            write_whole(path, system_secrets(SEED_BYTES))
        secret = path.read_bytes()
    if len(secret) != SEED_BYTES:
        raise RunError(f"{path}: {len(secret)} bytes in place of {SEED_BYTES}; restore it, or delete it, and {loss}")
    return secret


def derive_key(secret: bytes, purpose: str) -> bytes:
    """HKDF-SHA256 of ``secret`` for ``purpose``: 32 bytes."""
    return HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=None, info=purpose.encode()).derive(secret)
