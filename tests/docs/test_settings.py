"""The page of settings is made of the code, is current, and says what every key means."""

import re

from docs import settings
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.party_settings import PartySettings


def keys(model, prefix=""):
    for name, value in model.model_dump().items() if prefix else model().model_dump().items():
        yield prefix + name
        if isinstance(value, dict):
            yield from (f"{prefix}{name}.{inner}" for inner in value)


def test_it_is_current():
    assert settings.page() == settings.PAGE.read_text(encoding="utf-8"), "make docs"


def test_every_key_has_a_line_that_says_what_it_means():
    lines = re.findall(r"^\| `([^`|]+)` \| (.*) \| (.*) \| (.*) \|$", settings.page(), flags=re.MULTILINE)
    assert len(lines) > 150
    assert [key for key, *rest in lines if not all(part.strip() for part in rest)] == []
    found = {key for key, *_ in lines}
    groups = {key.rpartition(".")[0] for key in found} | {key.rpartition(".")[0].removesuffix("[]") for key in found}
    assert {key for key in keys(VerticalJob) if key not in found | groups | {"audit_limits"}} == set()
    assert {"nodes.file", "edges[].source", "limits.leakage", "consent.jobs", "machines.count"} <= found
    assert set(PartySettings.model_fields) <= found | groups | {group.partition(".")[0] for group in groups}
