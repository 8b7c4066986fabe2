"""The processes of a site on this machine."""

from __future__ import annotations

from pathlib import Path


def processes_of(kit: Path) -> dict[int, list[str]]:
    """Process ids of a site and its jobs, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if str(kit) in command and any("veilgraph" in word for word in command[:4]):
                found[int(entry.name)] = command
    return found
