"""Directories that are no run, or one of which a part is missing, half written, foreign or not for others' eyes."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import yaml

from tests.bad.case import Arguments, Case, Material, copied

Spoil = Callable[[Path], object]


def _half(name: str) -> Spoil:
    def spoil(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: len(content) // 2])

    return spoil


def _gone(name: str) -> Spoil:
    return lambda run: shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()


def _is(name: str, content: bytes) -> Spoil:
    return lambda run: (run / name).write_bytes(content)


def _folder(name: str) -> Spoil:
    def spoil(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return spoil


def _open(name: str) -> Spoil:
    return lambda run: (run / name).chmod(0o755)


def _linked(name: str) -> Spoil:
    def spoil(run: Path) -> None:
        (run / name).rename(run.parent / "elsewhere")
        (run / name).symlink_to(run.parent / "elsewhere")

    return spoil


def _job(**changes: object) -> Spoil:
    def spoil(run: Path) -> None:
        job = yaml.safe_load((run / "job.yaml").read_text(encoding="utf-8"))
        (run / "job.yaml").write_text(yaml.safe_dump({**job, **changes}), encoding="utf-8")

    return spoil


def _facts(name: str, **changes: object) -> Spoil:
    """Another header of a file of tensors: how a newer version, or somebody else, might have written it."""

    def spoil(run: Path) -> None:
        content = (run / name).read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        header["__metadata__"] = {key: str(value) for key, value in changes.items()}
        changed = json.dumps(header).encode()
        (run / name).write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])

    return spoil


def _instead(make: Spoil) -> Spoil:
    """Something else in the place of the run."""

    def spoil(run: Path) -> None:
        shutil.rmtree(run)
        make(run)

    return spoil


def _others(run: Path) -> None:
    run.mkdir()
    (run / "mine.txt").write_text("mine", encoding="utf-8")


ALL: Final[dict[str, Spoil]] = {
    "a file": _instead(lambda run: run.write_text("mine")),
    "not there": shutil.rmtree,
    "empty": _instead(Path.mkdir),
    "of something else": _instead(_others),
    "without job.yaml": _gone("job.yaml"),
    "with half of job.yaml": _half("job.yaml"),
    "with an empty job.yaml of no mapping": _is("job.yaml", b"[]\n"),
    "with a folder job.yaml": _folder("job.yaml"),
    "with a binary job.yaml": _is("job.yaml", bytes(range(256))),
    "of a newer version": _job(quantum={"qubits": 3}),
    "of a paradigm that there is not": _job(paradigm="quantum"),
    "for others to read": _open("parties"),
    "with a part elsewhere": _linked("parties/A"),
}
"""Of every command that opens a run."""
SUMMARY: Final[dict[str, Spoil]] = {
    "that is not complete": _gone("summary.json"),
    "with half of summary.json": _half("summary.json"),
    "with an empty summary.json": _is("summary.json", b""),
    "with a list as summary.json": _is("summary.json", b"[1, 2]"),
    "with a binary summary.json": _is("summary.json", bytes(range(256))),
    "with a summary.json of lists of two": _is("summary.json", b'[["a", 1]]'),
}
MODEL: Final[dict[str, Spoil]] = {
    f"with {words} {name.rpartition('/')[2]} of {name.split('/')[1]}": spoil(name)
    for name in (
        "parties/A/model.safetensors",
        "parties/server/model.safetensors",
        "parties/B/graph.safetensors",
        "parties/A/graph.safetensors",
    )
    for words, spoil in (
        ("no", _gone),
        ("half of", _half),
        ("an empty", lambda name: _is(name, b"")),
        ("a binary", lambda name: _is(name, bytes(range(256)) * 9)),
        ("other facts in", lambda name: _facts(name, version="99")),
        ("a folder", _folder),
    )
} | {
    "with no seed": _gone("parties/B/seed.json"),
    "with half a seed": _is("parties/B/seed.json", b"{"),
    "without B": _gone("parties/B"),
    "without the server": _gone("parties/server"),
}


def _unfinished(spoil: Spoil) -> Spoil:
    """The same in a run that was cut off."""

    def cut(run: Path) -> None:
        (run / "summary.json").unlink()
        spoil(run)

    return cut


CUT: Final[dict[str, Spoil]] = {
    "without B's checkpoints": _gone("parties/B/checkpoints"),
    "with half a seed": _is("parties/B/seed.json", b"{"),
    "without B": _gone("parties/B"),
    "with half of B's graph": _half("parties/B/graph.safetensors"),
    "without A's graph": _gone("parties/A/graph.safetensors"),
}


def _broken_checkpoints(run: Path) -> None:
    for path in run.glob("parties/B/checkpoints/*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])


COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "predict": ("predict",),
    "resume": ("resume",),
    "compare": ("compare",),
    "audit": ("audit",),
    "report": ("report",),
    "verify": ("report", "--verify"),
}


def run_cases(material: Material) -> Iterator[Case]:
    """Every fault of a directory for each command that opens one and must notice it."""

    def case(command: str, sort: str, spoil: Spoil, *more: str, source: Path = material.run) -> Case:
        def prepare(folder: Path) -> Arguments:
            run = copied(source, folder / "run")
            spoil(run)
            return [*COMMANDS[command], run, *more]

        return Case(f"{command} of a run {sort}", prepare, changes="run")

    for command in COMMANDS:
        for sort, spoil in ALL.items():
            yield case(command, sort, spoil)
    for command in ("predict", "compare", "audit", "resume"):
        for sort, spoil in SUMMARY.items():
            if (command, sort) != ("resume", "that is not complete"):
                yield case(command, sort, spoil)
    for sort, spoil in MODEL.items():
        yield case("predict", sort, spoil)
    for sort, spoil in (CUT | {"with half of B's checkpoints": _broken_checkpoints}).items():
        yield case("resume", sort, _unfinished(spoil))
    for command in ("report", "resume"):
        yield case(command, "with binary metrics", _is("metrics.jsonl", bytes(range(256)) + b"\n"))
    yield case("predict", "with a list that is a folder", lambda run: None, "--nodes-file", ".")
    yield case("predict", "with a list of ids that is not there", lambda run: None, "--ids-file", "nowhere")
    yield case("predict", "into a folder", lambda run: None, "--out", ".")
    yield case("predict", "into nowhere", lambda run: None, "--out", "nowhere/predictions.csv")
    yield case("predict", "on an unknown link", lambda run: None, "--link", "telepathy")
    yield case("audit", "without views", lambda run: None)
    yield case("audit", "by nobody", lambda run: None, "--adversary", "nobody")
    yield case("audit", "with an unknown attack", lambda run: None, "--attack", "nonsense")
    yield case("audit", "with a limit of no attack", lambda run: None, "--limit", "nonsense=1")
    yield case("audit", "with a limit of no number", lambda run: None, "--limit", "link-similarity=much")
    yield case("resume", "with machines of nobody", _gone("summary.json"), "--machines", "Z=2")
    yield case("report", "into a folder that is not there", lambda run: None, "--out", "no/where/report.html")
    yield Case("begin with a run of another paradigm", lambda folder: _begin(folder, material.run), "out", says="begin")


def _begin(folder: Path, run: Path) -> Arguments:
    (folder / "job.yaml").write_text("paradigm: averaging\ndata: {dataset: synthetic}\n", encoding="utf-8")
    return ["train", folder / "job.yaml", "--out", folder / "out", "--begin-with", copied(run, folder / "run")]


UNFINISHED: Final = re.compile(r"\.[^.]+\..+\.[0-9a-f]{16}")
"""A file that ``core.files.whole_file`` has not renamed."""


def state_of(folder: Path, but: str | None) -> dict[str, object]:
    """What lies in a folder, links not followed: name → content, target or None; ``but`` what is in one of them."""
    found: dict[str, object] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            inside = path.relative_to(folder)
            if but is None or inside.parts[0] != but:
                found[str(inside)] = (
                    path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
                )
    return found
