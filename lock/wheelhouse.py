"""Print the requirements file of a wheelhouse, with the hash of every wheel: `make wheelhouse`.

    .venv-locked/bin/python -m lock.wheelhouse FOLDER REPORT...

FOLDER has the wheels built from the checkout. REPORT is what `pip install --report` wrote of the others. Run it with
the Python of `make install-locked`: the file names what is installed there, as the SBOM does.
"""

import json
import platform
import sys
import sysconfig
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path

from lock.hashes import installed_hashes, normalized

Release = tuple[str, str]
"""A distribution's normalized name, and its version."""


def built_hashes(folder: Path) -> dict[Release, str]:
    """Return the SHA-256 of each wheel in the folder."""
    found = {}
    for wheel in folder.glob("*.whl"):
        name, version = wheel.name.split("-")[:2]
        found[normalized(name), version] = sha256(wheel.read_bytes()).hexdigest()
    return found


def requirements(installed: set[Release], hashes: dict[Release, str]) -> list[str]:
    """Return a line for each installed distribution. Raises SystemExit if one has no hash."""
    if lacking := sorted(name for name, version in installed - hashes.keys()):
        sys.exit(f"Without a hash: {', '.join(lacking)}. Run make install-locked, then make wheelhouse again.")
    return [f"{name}=={version} --hash=sha256:{hashes[name, version]}" for name, version in sorted(installed)]


if __name__ == "__main__":
    known = built_hashes(Path(sys.argv[1]))
    for report in sys.argv[2:]:
        known |= installed_hashes(json.loads(Path(report).read_text(encoding="utf-8")))
    there = {(normalized(each.metadata["Name"]), each.version) for each in distributions()}
    print(f"# For CPython {platform.python_version()} on {sysconfig.get_platform()}")  # noqa: T201
    print("\n".join(requirements({each for each in there if each[0] != "pip"}, known)))  # noqa: T201
