"""Hold what `make dist` built to the repository: each archive has the files that it should, and no other.

    python lock/contents.py FOLDER

FOLDER has one wheel and one source distribution. Which files there are, git says: what it does not track is in neither.
"""

import posixpath
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

SOURCES = (
    *(
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "MANIFEST.in",
        "Makefile",
        "README.md",
        "SECURITY.md",
    ),
    *("constraints.txt", "pyproject.toml", "deploy/*", "docs/*.md", "docs/*.svg", "docs/*.png", "lock/*", "src/*"),
    *(
        f"packages/{name}/{part}"
        for name in ("averaging", "datasets", "machines", "node_dp", "testing", "wizard")
        for part in ("pyproject.toml", "src/*")
    ),
)
"""Patterns of the tracked files that a source distribution has."""

WRITTEN = {"PKG-INFO", "setup.cfg"}
EGG_INFO = "src/veilgraph.egg-info/"
DIST_INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}


def tracked(root: Path) -> list[str]:
    """Files that git tracks below `root`, and those behind a link to a folder there, relative to it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607
    names = [name for name in listed.stdout.split("\0") if name]
    found = []
    for name in names:
        path = root / name
        if path.is_symlink():
            folder = path.resolve().relative_to(root.resolve()).as_posix()
            found += [name + each.removeprefix(folder) for each in names if each.startswith(f"{folder}/")]
        else:
            found.append(name)
    return found


def of_wheel(files: Iterable[str], stem: str) -> set[str]:
    """What the wheel of a repository with these files should have."""
    package = {name.removeprefix("src/") for name in files if name.startswith("src/")}
    return package | {f"{stem}.dist-info/{name}" for name in DIST_INFO}


def of_source(files: Iterable[str], stem: str) -> set[str]:
    """What the source distribution should have, less what the build notes about itself (`EGG_INFO`)."""
    taken = {name for name in files if any(fnmatchcase(name, pattern) for pattern in (*SOURCES, "jobs/*.yaml"))}
    return {f"{stem}/{name}" for name in taken | WRITTEN}


def differences(archive: str, found: Iterable[str], expected: set[str]) -> list[str]:
    """What an archive lacks, and what it has that it should not."""
    names = list(found)
    twice = sorted({name for name in names if names.count(name) > 1})
    return [
        *(f"{archive} lacks {name}" for name in sorted(expected - set(names))),
        *(f"{archive} has {name}, which it should not" for name in sorted(set(names) - expected)),
        *(f"{archive} has {name} twice" for name in twice),
    ]


def wheel_faults(path: Path, files: Iterable[str]) -> list[str]:
    """What is wrong with a wheel."""
    stem = "-".join(path.name.split("-")[:2])
    with zipfile.ZipFile(path) as archive:
        return differences(path.name, archive.namelist(), of_wheel(files, stem))


def source_faults(path: Path, files: Iterable[str]) -> list[str]:
    """What is wrong with a source distribution; links within its pages must lead to a file of it."""
    stem = path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as archive:
        members = [member for member in archive if not member.isdir()]
        names = [member.name for member in members]
        pages = {
            member.name: stream.read().decode()
            for member in members
            if member.name.endswith(".md") and (stream := archive.extractfile(member)) is not None
        }
    faults = [f"{path.name} has {member.name}, which is no plain file" for member in members if not member.isreg()]
    known = [name for name in names if not name.startswith(f"{stem}/{EGG_INFO}")]
    faults += differences(path.name, known, of_source(files, stem))
    there = {*names, *(str(parent) for name in names for parent in PurePosixPath(name).parents)}
    return faults + [
        f"{path.name}: {page} links to {target}, which is not in it"
        for page, text in pages.items()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        if posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) not in there
    ]


def main(folder: Path) -> int:
    """Print what is wrong with the two archives, or how large they are; returns the exit status."""
    files = tracked(Path(__file__).parents[1])
    wheels, sources = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if (len(wheels), len(sources)) != (1, 1):
        counted = f"{len(wheels)} wheels and {len(sources)} source distributions"
        print(f"{folder} has {counted}, not one of each; run make dist")  # noqa: T201
        return 1
    faults = [*wheel_faults(wheels[0], files), *source_faults(sources[0], files)]
    for line in faults or [f"{path}: {path.stat().st_size / 1e6:.1f} MB" for path in (*wheels, *sources)]:
        print(line)  # noqa: T201
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
