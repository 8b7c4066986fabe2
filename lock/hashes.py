"""Add to an SBOM the hashes of the files that pip installed, which are not in the environment: `make sbom`.

    python lock/hashes.py VERSION BOM REPORT...

BOM is CycloneDX in JSON and is changed in place; REPORT is what `pip install --report` wrote. VERSION is the described
program's own, which the generator does not find where pyproject.toml computes it.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any


def normalized(name: str) -> str:
    """A distribution's name as indices compare them (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_hashes(report: dict[str, Any]) -> dict[tuple[str, str], str]:
    """SHA-256 of the file that each (name, version) of a pip report was installed from; none for folders."""
    found = {}
    for item in report["install"]:
        sha256 = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if sha256 is not None:
            found[normalized(item["metadata"]["name"]), item["metadata"]["version"]] = sha256
    return found


def add_hashes(bom: dict[str, Any], hashes: dict[tuple[str, str], str]) -> list[str]:
    """Put the hash of each component into `bom`; returns the names of those that have none."""
    without = []
    for component in bom["components"]:
        sha256 = hashes.get((normalized(component["name"]), component["version"]))
        if sha256 is None:
            without.append(component["name"])
            others = [each for each in component.get("externalReferences", []) if not each["url"].startswith("file:")]
            component["externalReferences"] = others  # the SBOM is handed on: no folders of this machine
        else:
            component["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    return without


def main(version: str, bom_path: Path, reports: list[Path]) -> None:
    """Complete the SBOM at `bom_path`, and say which components have no hash."""
    bom = json.loads(bom_path.read_text(encoding="utf-8"))
    hashes: dict[tuple[str, str], str] = {}
    for report in reports:
        hashes |= installed_hashes(json.loads(report.read_text(encoding="utf-8")))
    without = add_hashes(bom, hashes)
    bom["metadata"]["component"]["version"] = version
    bom_path.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    count = len(bom["components"])
    print(f"{bom_path}: {count} components; without a hash: {', '.join(without) or 'none'}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [Path(report) for report in sys.argv[3:]])
