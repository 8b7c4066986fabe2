"""The page of settings is made of the code, is current, and says what every key means."""

import re
from collections import Counter
from functools import cache

from docs import settings
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.party_settings import PartySettings

page = cache(settings.page)
"""It takes a second to make."""


def keys(model, prefix=""):
    for name, value in model.model_dump().items() if prefix else model().model_dump().items():
        yield prefix + name
        if isinstance(value, dict):
            yield from (f"{prefix}{name}.{inner}" for inner in value)


def test_it_is_current():
    assert page() == settings.PAGE.read_text(encoding="utf-8"), "make docs"


ROW = r"^\| `([^`|]+)` \| (.*) \| (.*) \|$"


def listed_keys(text):
    """Keys with their groups: those of shared tables once for each group that the heading names."""
    for part in re.split(r"^##+ ", text, flags=re.MULTILINE):
        heading = part.partition("\n")[0]
        groups = re.findall(r"`([^`]+)`", heading) if " and " in heading else []
        for key, *_ in re.findall(ROW, part, flags=re.MULTILINE):
            yield from (f"{group}.{key}" for group in groups) if groups else [key]


def test_every_key_has_a_line_that_says_what_it_means():
    lines = re.findall(ROW, page(), flags=re.MULTILINE)
    assert len(lines) > 300
    assert [key for key, *rest in lines if not all(part.strip() for part in rest)] == []
    found = set(listed_keys(page()))
    groups = {".".join(parts[:end]) for parts in (key.split(".") for key in found) for end in range(1, len(parts))}
    groups |= {group.removesuffix("[]") for group in groups}
    assert {key for key in keys(VerticalJob) if key not in found | groups | {"audit_limits"}} == set()
    assert {"nodes.file", "edges[].source", "limits.leakage", "consent.jobs", "machines.count"} <= found
    assert {"nodes.label.delimiter", "edges[].numbers.unit", "brokers[].port"} <= found
    assert set(PartySettings.model_fields) <= found | groups


def test_what_paradigms_or_groups_share_stands_once():
    jobs = page().partition("## An embedding job")[0]
    rows = [line for line in jobs.splitlines() if re.match(ROW, line)]
    assert [row for row, times in Counter(rows).items() if times > 1] == []
    assert (
        "| `model.local.hops` |"
        in jobs.partition("## A job of paradigm `vertical` or `averaging`")[2].partition("\n## ")[0]
    )
