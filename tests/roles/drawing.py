"""A party that draws from every generator that there is; all have been drawn from before it was born."""

import json
import os
import random
import secrets
import ssl
import sys
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

importer = os.getpid()
asked: list[str] = []
"""What of CUDA was asked for before the birth; it could not be used any more."""


def _asking(name: str) -> bool:
    asked.append(name)
    return False


for _name in ("is_available", "device_count", "_lazy_init"):
    setattr(torch.cuda, _name, partial(_asking, _name))

import veilgraph.runtime.launch.worker  # noqa: E402, F401  (what a party of a job has imported when it is born)
from veilgraph.core.randomness import private_seed  # noqa: E402
from veilgraph.core.secrets import system_secrets  # noqa: E402
from veilgraph.nn.layers import Adam  # noqa: E402

GENERATORS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "numpy": np.random.rand,
    "numpy's new": lambda: np.random.default_rng().random(),
    "torch": lambda: torch.rand(1, dtype=torch.float64).item(),
    "system": lambda: os.urandom(16).hex(),
    "secrets": secrets.token_hex,
    "shares": lambda: system_secrets(16).hex(),
    "seeds": private_seed,
    "uuid": lambda: str(uuid.uuid4()),
    "tempfile": lambda: Path(tempfile.mktemp()).name,
    "ssl": lambda: ssl.RAND_bytes(16).hex(),
    "AES": lambda: AESGCM.generate_key(256).hex(),
    "X25519": lambda: X25519PrivateKey.generate().private_bytes_raw().hex(),
}


def drawn() -> dict[str, Any]:
    return {name: draw() for name, draw in GENERATORS.items()}


def trains() -> list[str]:
    """A step with several threads; returns what it still had to import."""
    before = set(sys.modules)
    torch.set_num_threads(2)
    weight = torch.ones(1 << 20, requires_grad=True)
    optimizer = Adam([weight])
    (weight * weight).sum().backward()
    optimizer.step()
    return sorted(set(sys.modules) - before)


def main(arguments: list[str]) -> int:
    assert importer == os.getppid(), "each party has imported by itself"
    tasks = Path(f"/proc/{importer}/task").glob("*/comm")
    threads = [name for task in tasks if (name := task.read_text().strip()) != "jemalloc_bg_thd"]
    assert len(threads) == 1, "a thread does not survive a fork"
    assert asked == [], "CUDA does not survive a fork"
    told = {"name": Path("/proc/self/comm").read_text().strip(), "drawn": drawn(), "imported": trains()}
    Path(arguments[0]).write_text(json.dumps(told), encoding="utf-8")
    return 0


drawn()
