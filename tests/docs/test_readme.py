"""The README's code blocks run: YAML blocks are valid jobs, Python blocks work one after another."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from veilgraph.core.types import Kind
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.job_file import parse_job

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def keys(settings, prefix=""):
    for name, value in settings.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")


@pytest.mark.parametrize("block", blocks("yaml"))
def test_yaml_blocks_are_jobs(block):
    parse_job(yaml.safe_load(block), "README.md")


def test_the_first_job_names_every_setting_but_those_of_other_purposes():
    named = set(keys(yaml.safe_load(blocks("yaml")[0])))
    other = {"paradigm", "data.root", "data.parties", "data.block_model", "data.parts"}
    other |= {"privacy", "limits"}
    nested = ("data.parts.",)
    left = {key for key in keys(VerticalJob().model_dump()) if not key.startswith(nested)} - named
    assert left == other


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
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"first", "bank-and-shop", "custom"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["threat-model.md", "protocol.md"])
def test_every_kind_of_message_is_documented(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [kind.name for kind in Kind if f"| {kind.name} |" not in text and f"| `{kind.name}` |" not in text] == []
