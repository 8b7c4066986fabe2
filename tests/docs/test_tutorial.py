"""The tutorial's commands, read out of the page, on the export that it names: no file is edited in between."""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from docs.pages import find_page
from tests import nightly
from tests.cli.commands import veilgraph
from tests.messy.export import FILES, export
from veilgraph.protocol.party_settings import read_party_settings

ROOT = Path(__file__).parents[2]
PAGE = find_page("tutorial.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ {4}((?:veilgraph|python) .*)$", PAGE, flags=re.MULTILINE)
CPU_S = 2 * 600
"""Ten minutes of two cores, for everything: a machine that is busy with other work too takes longer."""


def test_the_page_has_every_step() -> None:
    steps = [" ".join(takewhile_words(command)) for command in COMMANDS]
    assert list(dict.fromkeys(steps)) == [
        "python", "veilgraph data init", "veilgraph data check", "veilgraph init", "veilgraph check",
        "veilgraph compare", "veilgraph train", "veilgraph predict", "veilgraph audit", "veilgraph report",
        "veilgraph net init", "veilgraph net provision", "veilgraph net join", "veilgraph net submit",
        "veilgraph net status",
    ]  # fmt: skip
    assert all(f"exports/bank/{name}" in PAGE for name in FILES["bank"])


def test_the_export_is_made_by_whoever_has_installed_what_the_page_says(tmp_path: Path) -> None:
    """Which has no pytest."""
    call = (
        "import runpy, sys; sys.modules['pytest'] = None; "
        f"sys.argv = ['export', {str(tmp_path / 'exports')!r}]; "
        "runpy.run_module('tests.messy.export', run_name='__main__')"
    )
    subprocess.run([sys.executable, "-c", call], cwd=ROOT, check=True, timeout=120)
    assert {path.name for path in (tmp_path / "exports" / "bank").iterdir()} == set(FILES["bank"])


def globbed(word: str) -> list[str]:
    """As a shell has it."""
    return sorted(map(str, Path().glob(word))) if "*" in word else []


def takewhile_words(command: str) -> Iterator[str]:
    """The command's name, without what it is given."""
    words = command.split()
    yield words[0]
    if words[0] == "veilgraph":
        yield from words[1 : 3 if words[1] in ("data", "net") else 2]


def test_tables_are_described_and_the_job_is_valid_without_an_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as goes in seconds; the whole of it is for the night."""
    monkeypatch.chdir(tmp_path)
    export(Path("exports"), customers=400)
    said = dict[str, str]()
    for command in COMMANDS[1 : next(place for place, each in enumerate(COMMANDS) if "compare" in each)]:
        words = [found for word in shlex.split(command)[1:] for found in (globbed(word) or [word])]
        result = veilgraph(*words)
        assert result.exit_code == 0, result.output
        said[command] = result.stdout
    first, second = (command for command in COMMANDS if "--party bank " in command)
    for decision in re.findall(r"^ {4}to decide: (.*)$", PAGE, flags=re.MULTILINE):
        told = re.sub(r"\d{4}-\d\d-\d\d", "", decision)
        assert told in re.sub(r"\d{4}-\d\d-\d\d", "", said[first])
    assert "to decide" not in said[second]
    assert all(read_party_settings(Path(f"{party}.yaml")).party == party for party in FILES)
    assert "job.yaml is a valid job" in said["veilgraph check job.yaml"]


@nightly
@pytest.mark.timeout(3 * CPU_S)
def test_every_command_of_the_page_in_order(tmp_path: Path) -> None:
    from veilgraph.deploy.demo import free_port  # noqa: PLC0415

    environment = with_the_command(tmp_path / "bin")
    work = tmp_path / "work"
    work.mkdir()
    port = free_port()
    outputs = dict[str, str]()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with joined() as sites:
        for command in COMMANDS:
            line = command
            if line.startswith("veilgraph net init"):
                line += f" --port {port}"
            if line.startswith("veilgraph net join"):
                with (work / f"site-{len(sites)}.log").open("wb") as log:
                    words = shlex.split(line)
                    sites.append(subprocess.Popen(words, cwd=work, env=environment, stdout=log, stderr=log))
                continue
            done = subprocess.run(
                ["bash", "-c", line], cwd=work, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
            outputs[command] = done.stdout
        assert all(site.poll() is None for site in sites)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < CPU_S
    check_comparison(work / "runs" / "comparison" / "comparison.json")
    assert "more than chance" in next(said for command, said in outputs.items() if "compare" in command)
    found = json.loads((work / "runs" / "fraud" / "audit.json").read_text(encoding="utf-8"))
    attacks = {each["attack"] for each in found["findings"]}
    assert {"link-similarity", "membership-confidence", "uniformity"} <= attacks
    for name in ("runs/fraud", "consortium/kits/bank/runs/fraud"):
        assert (work / name / "report.html").is_file()
    for name in ("predictions.csv", "bank-predictions.csv"):
        assert (work / name).read_text(encoding="utf-8").startswith("id,class,p_no,p_yes\nKD-")


def check_comparison(path: Path) -> None:
    """The table of the page is what was found; trainings differ a little from machine to machine."""
    lines = json.loads(path.read_text(encoding="utf-8"))["ways"]
    found = {line["name"]: [each["value"] for each in line["figures"].values()] for line in lines}
    told = re.findall(r"^ {4}(bank.*?|vertical|sealed|pooled) {3,}([\d. ]+?)(?:  [+-].*)?$", PAGE, flags=re.MULTILINE)
    assert len(told) == 5
    for name, figures in told:
        assert found[name][: len(figures.split())] == pytest.approx(list(map(float, figures.split())), abs=0.03)


def with_the_command(folder: Path) -> dict[str, str]:
    """An environment that finds this tree's ``veilgraph`` and ``python``."""
    folder.mkdir()
    for name, words in (("veilgraph", "-m veilgraph"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (folder / name).chmod(0o755)
    paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": f"{folder}:{os.environ['PATH']}"}
    return {**os.environ, **paths, "COLUMNS": "80"}


@contextmanager
def joined() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Sites that are ended afterwards."""
    sites: list[subprocess.Popen[bytes]] = []
    try:
        yield sites
    finally:
        for site in sites:
            site.send_signal(signal.SIGTERM)
        for site in sites:
            try:
                site.wait(30)
            except subprocess.TimeoutExpired:
                site.kill()
                site.wait()
