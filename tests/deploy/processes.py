"""The processes of a site on this machine."""

from collections.abc import Sequence
from contextlib import suppress
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


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def listening(processes: Sequence[int]) -> set[int]:
    """TCP ports on which the processes listen, on any interface."""
    sockets: set[str] = set()
    for pid in processes:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                sockets.add(str(link.readlink()))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            part = line.split()
            if part[3] == "0A" and f"socket:[{part[9]}]" in sockets:
                ports.add(int(part[1].rpartition(":")[2], 16))
    return ports
