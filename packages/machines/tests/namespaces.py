"""Two machines as network namespaces, each with a loopback of its own, joined by one wire."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
HOME, FURTHER = "10.77.0.1", "10.77.0.2"


def ip(*words: str) -> str:
    """What the command ip says; ``OSError``: there is none, or this account may not do that."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"this account may not make network namespaces and wires here: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """The names of both namespaces, at ``HOME`` and ``FURTHER``."""
    home, further = (f"veilgraph-{os.getpid()}-{number}" for number in (0, 1))
    try:
        for name in (home, further):
            ip("netns", "add", name)
        ip("link", "add", "wire", "netns", home, "type", "veth", "peer", "name", "wire", "netns", further)
        for name, at in ((home, HOME), (further, FURTHER)):
            for link in ("lo", "wire"):
                ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "addr", "add", f"{at}/24", "dev", "wire")
        yield home, further
    finally:
        for name in (home, further):
            with suppress(OSError):
                ip("netns", "delete", name)


def sent(name: str) -> int:
    """Bytes that a namespace put on the wire."""
    (link,) = json.loads(ip("-n", name, "-j", "-s", "link", "show", "wire"))
    return int(link["stats64"]["tx"]["bytes"])


def within(name: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    """Python with these words, in a namespace."""
    return subprocess.Popen(["ip", "netns", "exec", name, sys.executable, *words], cwd=ROOT, text=True, **options)
