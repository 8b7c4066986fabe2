"""The README's code blocks run: YAML blocks are valid jobs, Python blocks work one after another."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
import typer
import yaml

from docs import badges
from docs.pages import all_pages, find_page
from veilgraph.cli import app
from veilgraph.core.types import Kind
from veilgraph.protocol.job_file import parse_job

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *all_pages()]


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


JOBS = blocks("yaml", find_page("jobs.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("block", JOBS)
def test_yaml_blocks_are_jobs(block):
    job = parse_job({"name": "page", **yaml.safe_load(block)}, "docs/guides/jobs.md")
    assert job.data.from_tables == (block is not JOBS[0])


def test_it_is_read_in_a_few_minutes():
    assert len(README.splitlines()) <= 150
    first_screen = README.partition("| who has what |")[0]
    assert all(each in first_screen for each in ("make demo", "make test", "vg.fit", "run.audit", "veilgraph init"))
    assert README.index("**sealed") < README.index("pip install '.[") < README.index("## Who learns what")


def test_badges_are_true_and_pictures_small():
    assert badges.PICTURE.read_text(encoding="utf-8") == badges.draw(), "make docs draws them again"
    said = badges.badges()
    assert said["licence"] in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert min(said["python"].split(" | "), key=lambda each: int(each[2:])) == "3.11"
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert {path: (ROOT / path).stat().st_size < 150_000 for path in shown} == dict.fromkeys(
        ("docs/figures/badges.svg", "docs/figures/results.svg", "docs/figures/report.png"), True
    )


def test_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        namespace = {"__name__": "readme"}
        for block in blocks("python"):
            exec(compile(block, "README.md", "exec"), namespace)
    finally:
        torch.set_num_threads(threads)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"first"}


@pytest.mark.parametrize(
    ("name", "needs", "made"),
    [
        (
            "python.md",
            "veilgraph",
            {"curves.png", "runs/labels", "runs/relations", "runs/tables", "runs/custom", "runs/classifier"},
        ),
        ("tuning.md", "veilgraph_tuning", {"runs/tuned", "runs/best"}),
    ],
)
def test_a_pages_python_blocks_run_in_order(tmp_path, monkeypatch, name, needs, made):
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for block in blocks("python", find_page(name).read_text(encoding="utf-8")):
        exec(compile(block, f"docs/{name}", "exec"), namespace)
    assert {*tmp_path.glob("runs/*"), *tmp_path.glob("*.png")} == {tmp_path / each for each in made}


@cache
def command_line():
    """All commands; made once, for it takes a quarter of a second."""
    return typer.main.get_command(app)


def commands(page):
    """The commands in a page's code, without their comments; those in its sentences, too, as far as they go."""
    text = page.read_text(encoding="utf-8")
    yield from re.findall(r"^ {4}veilgraph +([a-z].*?)(?:  +#.*)?$", text, flags=re.MULTILINE)
    yield from re.findall(r"`veilgraph ([a-z][^`]*)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_there_under_these_names_with_these_options(page):
    for words in map(str.split, commands(page)):
        found = command_line()
        while (inner := getattr(found, "commands", None)) is not None:
            assert words, f"{found.name} is a group"
            name = words.pop(0).strip(",;:.")
            assert name in inner, f"{page.name}: {name}"
            found = inner[name]
        options = {option for each in found.params for option in each.opts}
        used = {word.partition("=")[0].rstrip(",;:.") for word in words if word.startswith("--")}
        assert used <= options, f"{page.name}: {found.name} has no {used - options}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["threat-model.md", "protocol.md"])
def test_every_kind_of_message_is_documented(page):
    text = find_page(page).read_text(encoding="utf-8")
    assert [kind.name for kind in Kind if f"| {kind.name} |" not in text and f"`{kind.name}`" not in text] == []
