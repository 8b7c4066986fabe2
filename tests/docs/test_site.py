"""The site: every page has a place, staged pages are what Python-Markdown understands, and nothing is fetched."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import veilgraph
from docs import search
from docs.pages import DOCS, all_pages, find_page
from docs.search import FIRST, FIRST_OR_SECOND
from docs.site import PAGES, faults, names, stage, staged_text
from tests import nightly
from tests.cli.commands import veilgraph as called
from tests.messy.export import export
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.job_file import JOBS, SCHEMAS, job_schema, party_schema

ROOT = Path(__file__).parents[2]


class Plain(yaml.SafeLoader):
    """As editors read YAML: a date is text, and nothing is made of tags."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own declaration
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


Plain.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def read(text: str) -> Any:
    return yaml.load(text, Plain)


def named(nav: Any) -> Iterator[str]:
    """Pages of a navigation."""
    for each in nav:
        for found in each.values():
            yield from [found] if isinstance(found, str) else named(found)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pages = tmp_path_factory.mktemp("site") / "pages"
    stage(pages)
    return pages


def test_every_page_has_one_place_in_the_navigation(staged: Path) -> None:
    config = read((ROOT / "docs" / "site.yml").read_text(encoding="utf-8"))
    assert sorted(named(config["nav"])) == sorted(str(path.relative_to(staged)) for path in staged.rglob("*.md"))
    assert (config["strict"], config["theme"]["font"]) == (True, False)
    assert set(config["validation"].values()) == {"warn"}


def test_links_of_staged_pages_lead_to_files_of_the_site(staged: Path) -> None:
    for path in staged.glob("*.md"):
        text = re.sub(r"`[^`]*`", "", path.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (staged / target).exists(), f"{path.name}: {target}"


def test_a_page_is_as_the_site_has_it() -> None:
    readme, sealed, deploy = ROOT / "README.md", find_page("sealed.md"), ROOT / "deploy" / "README.md"
    for source, text, staged in (
        (readme, "[a](docs/guides/jobs.md#c) [d](jobs)", "[a](jobs.md#c) [d](jobs.md)"),
        (sealed, "[a](../../README.md) [d](../../jobs/cora.yaml)", "[a](index.md) [d](jobs/cora.yaml)"),
        (sealed, "[a](../guides/jobs.md) ![b](../figures/scale.svg) [c](#d)", "[a](jobs.md) ![b](scale.svg) [c](#d)"),
        (sealed, "[a](../../deploy/README.md) `x[0](gone)`", "[a](deploy/README.md) `x[0](gone)`"),
        (deploy, "[a](../docs/guides/runbook.md#b) [c](compose.yaml)", "[a](../runbook.md#b) [c](compose.yaml)"),
        (
            readme,
            "A word:\n- one\n  goes on\n- two\n   - in\n1. x",
            "A word:\n\n- one\n  goes on\n- two\n    - in\n1. x",
        ),
        (readme, "```\na\n- b\n  - c\n```\n- d", "```\na\n- b\n  - c\n```\n\n- d"),
    ):
        assert staged_text(text + "\n", source) == staged + "\n"


def test_pages_are_in_four_folders_under_names_that_no_other_has() -> None:
    names = [path.name for path in all_pages()]
    assert len(set(names)) == len(names)
    assert {path.parent.name for path in all_pages()} == {"docs", "tutorial", "guides", "reference", "explanation"}
    assert [path.name for path in DOCS.glob("*.md")] == ["README.md"]


def test_sections_of_the_navigation_are_the_folders() -> None:
    nav = read((DOCS / "site.yml").read_text(encoding="utf-8"))["nav"]
    homes = {path.name: path.parent.name for path in all_pages()}
    placed = {name: title.lower() for each in nav for title, inside in each.items() for name in named([{"": inside}])}
    assert {name: placed[name] for name in homes if name in placed} == {
        name: home for name, home in homes.items() if name in placed
    }


def test_every_public_name_is_looked_up() -> None:
    wanted = [name for name in veilgraph.__all__ if not name.startswith("_")]
    found = re.findall(r"^::: veilgraph(?:\.\w+)*\.(\w+)$", names(), flags=re.MULTILINE)
    assert found == wanted


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.html", '<script src="https://cdn.example.org/x.js"></script>', "a.html fetches https://cdn.example.org/x.js"),
        ("a.html", '<link href="//fonts.example.org/x" rel="stylesheet">', "a.html fetches //fonts.example.org/x"),
        ("a.html", '<link rel=stylesheet href=https://e.org/x>', "a.html fetches https://e.org/x"),
        ("s.css", "@import 'https://e.org/x.css';", "s.css fetches https://e.org/x.css"),
        ("s.css", "a { background: url(//e.org/x.png) }", "s.css fetches //e.org/x.png"),
        ("a.html", '<a href="https://e.org">out</a><link rel="canonical" href="https://e.org"><img src="x.svg">', None),
    ],
)  # fmt: skip
def test_what_a_page_fetches_from_elsewhere_is_a_fault(
    tmp_path: Path, name: str, content: str, fault: str | None
) -> None:
    site, pages = tmp_path / "site", tmp_path / "pages"
    site.mkdir()
    pages.mkdir()
    (pages / "a.md").touch()
    (site / "a.html").touch()
    (site / name).write_text(content, encoding="utf-8")
    assert faults(site, pages) == ([] if fault is None else [fault])
    (site / "a.html").unlink()
    assert "a.md is no page of the site" in faults(site, pages)


# Schemas


def test_shipped_jobs_are_of_the_schema_and_misspelt_ones_are_not() -> None:
    validator = jsonschema.Draft202012Validator(job_schema())
    jobs = {path.name: read(path.read_text(encoding="utf-8")) for path in (ROOT / "jobs").glob("*.yaml")}
    assert {name: [each.message for each in validator.iter_errors(job)] for name, job in jobs.items()} == {
        name: [] for name in jobs
    }
    misspelt: tuple[dict[str, Any], ...] = (
        {"trian": {}},
        {"paradigm": "diagonal"},
        {"train": {"epochs": "many"}},
        {"paradigm": "sealed", "model": {"dim": 4}},
        {"paradigm": "vertical", "output": "classes"},
        {"output": "classes"},
    )
    for wrong in misspelt:
        assert not validator.is_valid(wrong), wrong
    assert validator.is_valid({"paradigm": "sealed", "output": "classes"})


def test_the_schema_has_every_key_of_every_paradigm() -> None:
    found = job_schema()["$defs"]
    for name in JOBS:
        assert set(found[JOBS[name].__name__]["properties"]) == set(JOBS[name].model_fields)
    assert set(found[VerticalJob.__name__]["properties"]) > {"train", "data", "model", "privacy"}


def test_party_files_are_of_the_schema_and_misspelt_ones_are_not(tmp_path: Path) -> None:
    validator = jsonschema.Draft202012Validator(party_schema())
    for party, files in export(tmp_path / "exports", customers=200).items():
        out = tmp_path / f"{party}.yaml"
        options = ("--as-of", "2024-04-15", "--accept", "horizontal", "--ids", "strip")
        assert called("data", "init", *files, "--out", out, *options).exit_code == 0
        content = read(out.read_text(encoding="utf-8"))
        assert [each.message for each in validator.iter_errors(content)] == []
        assert not validator.is_valid({**content, "egdes": []})
        assert not validator.is_valid({**content, "limits": {"max_rounds": "few"}})
    text = find_page("tables.md").read_text(encoding="utf-8")
    example = re.findall(r"^```yaml\n(party:.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)[0]
    assert [each.message for each in validator.iter_errors(read(example))] == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_command_prints_the_schema_of_the_site(name: str, staged: Path) -> None:
    result = called("schema", name)
    assert result.exit_code == 0
    assert result.stdout == (staged / "schema" / f"{name}.json").read_text(encoding="utf-8")


def test_questions_whose_page_is_found_first_stand_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = {words.lower(): target for words, target in re.findall(r"\[([^]]+)\]\((\S+?)\)", readme)}
    links |= {title.lower(): "index.html" for title in re.findall("^## (.+)$", readme, flags=re.MULTILINE)}
    for question, page in FIRST.items():
        assert Path(links[question.lower()]).with_suffix(".html").name == page, question
    assert {*FIRST.values(), *FIRST_OR_SECOND.values()} <= {"index.html"} | {
        f"{path.stem}.html" for path in all_pages()
    }


def test_a_page_too_far_down_fails_the_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for before, question, is_fault in (
        ((), "Is it worth it?", False),
        (("CHANGELOG.html",), "Is it worth it?", True),
        (("CHANGELOG.html",), "gpu", False),
        (("CHANGELOG.html", "api.html"), "gpu", True),
    ):
        found = {each: [page] for each, page in (FIRST | FIRST_OR_SECOND).items()}
        found[question] = [*before, *found[question]]
        monkeypatch.setattr(search, "answers", lambda site, questions, found=found: found.items())
        assert bool(search.main()) == is_fault, question
        found[question] = []
        assert search.main()
        assert f"none  {question}" in capsys.readouterr().out


def test_pages_that_name_everything_are_found_after_those_that_explain(staged: Path) -> None:
    boosted = {
        path.name for path in staged.glob("*.md") if path.read_text(encoding="utf-8").startswith("---\nsearch:\n")
    }
    assert {"CHANGELOG.md", "api.md", "claims.md"} <= boosted
    assert not boosted & {Path(page).with_suffix(".md").name for page in (FIRST | FIRST_OR_SECOND).values()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, subprocess.CompletedProcess[str]]:
    """Programs that build the site, the site, and what its build said: as ``make docs`` does, apart."""
    home = tmp_path_factory.mktemp("built")
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    bin_, site = home / "venv" / "bin", home / "site"
    subprocess.run([bin_ / "python", "-m", "pip", "install", "-q", "-r", DOCS / "requirements.txt"], check=True)
    stage(PAGES)
    build: list[str | Path] = [bin_ / "mkdocs", "build", "--config-file", DOCS / "site.yml", "--site-dir", site]
    clean = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return bin_, site, subprocess.run(build, capture_output=True, text=True, check=False, env=clean)


@nightly
@pytest.mark.timeout(900)
def test_the_site_is_built_without_a_warning(built: tuple[Path, Path, subprocess.CompletedProcess[str]]) -> None:
    _, site, done = built
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    assert faults(site, PAGES) == []
    assert "FederatedNodeClassifier" in (site / "api.html").read_text(encoding="utf-8")


@nightly
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_the_site_finds_what_newcomers_ask(built: tuple[Path, Path, subprocess.CompletedProcess[str]]) -> None:
    bin_, site, _ = built
    asked: list[str | Path] = [bin_ / "python", "-m", "docs.search", site]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def anchors(text: str) -> set[str]:
    """Of a page's headings, as GitHub and the site make them."""
    lines = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
    heads = [
        re.sub(r"\[([^]]*)\]\([^)]*\)|<!--.*?-->", r"\1", line).strip("# ").lower() for line in lines if line[:1] == "#"
    ]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


def test_links_lead_to_headings_that_are_there(staged: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in staged.rglob("*.md")}
    lost = [
        f"{path.name}: {target}#{anchor}"
        for path, text in pages.items()
        for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text)
        if anchor not in anchors(pages[(path.parent / target).resolve() if target else path])
    ]
    assert lost == []
