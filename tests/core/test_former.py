"""Files of version 0.1 are read, with a note of what each key is called now, and are the same jobs as before."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.core.former import FormerName, moved, moved_key
from veilgraph.protocol.former import present
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.party_settings import parse_party_settings
from veilgraph.run.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

GRAPHS = {"bank": "x.safetensors", "shop": "y.safetensors"}
FILES = {"bank": "x.yaml", "shop": "y.yaml"}
LOCAL = {"features": {"epsilon": 1}, "labels": {"holder": "B", "epsilon": 2}, "network": {"hops": 2}}
RELEASE = {"features": {"epsilon": 1}, "labels": {"holder": "B", "epsilon": 2}}
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any], set[str], str]] = {
    "default": ({}, {}, set(), "22fd18b0d767a013"),
    "names alone": (
        {"data": {"parties": ["bank", "shop"]}},
        {"data": {"holders": ["bank", "shop"]}},
        {"data.holders"},
        "0b944979d77c365c",
    ),
    "names alone, as a run kept them": (
        {"data": {"dataset": "digits", "holders": 2, "parties": {"bank": None, "shop": None}}},
        {"data": {"holders": ["bank", "shop"]}},
        {"data.holders"},
        "0b944979d77c365c",
    ),
    "saved graphs": (
        {"data": {"dataset": "digits", "parties": GRAPHS, "label_holder": "shop"}},
        {"data": {"graphs": GRAPHS, "label_holder": "shop"}},
        {"data.graphs"},
        "71c1eeeff56eee99",
    ),
    "party files": (
        {"data": {"parties": FILES, "feature_scaling": "standard"}},
        {"data": {"parties": FILES, "feature_scaling": "standard"}},
        set(),
        "8d6754848d45916e",
    ),
    "horizontal": (
        {
            "paradigm": "horizontal",
            "data": {"dataset": "cora", "holders": 3, "parts": {"overlap": 0.2}},
            "horizontal": {"layers": 3},
            "limits": {"reconstruction": 0.9},
        },
        {
            "paradigm": "horizontal",
            "data": {"dataset": "cora", "holders": 3, "partition": {"overlap": 0.2}},
            "model": {"layers": 3},
            "audit_limits": {"reconstruction": 0.9},
        },
        {"data.partition", "model", "audit_limits"},
        "20bb6d3efa05c487",
    ),
    "local": (
        {"paradigm": "local", "local": LOCAL},
        {"paradigm": "node-dp", "release": RELEASE, "model": {"hops": 2}},
        {"node-dp", "release.features", "release.labels", "model"},
        "3a3be97bf117ab7b",
    ),
}
"""Kind → a job as it was spelt, as it is, what the notes name, and the beginning of its hash in version 0.1."""

AS_THEN = {"preset": "paper"}
"""Version 0.1 had these defaults alone."""


def notes(said: pytest.WarningsRecorder) -> set[str]:
    assert all(each.category is FormerName for each in said)
    return {str(each.message).removesuffix(" now").rpartition(" is called ")[2] for each in said}


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_is_the_same_in_both_spellings(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    before, now, named, hashed = JOBS[kind]
    said = deepcopy({**before, **AS_THEN})
    old = parse_job(said, "job.yaml")
    assert said == {**before, **AS_THEN}, "what is read stays as it is"
    assert notes(recwarn) == named
    assert all(str(each.message).startswith("job.yaml: ") for each in recwarn)
    recwarn.clear()
    new = parse_job({**now, **AS_THEN})
    assert parse_job(new.model_dump(mode="json")) == new
    assert not list(recwarn)
    assert old == new
    assert new.hash()[:16] == old.hash()[:16] == hashed


def test_other_paradigms_networks_may_stand_in_a_job_as_long_as_they_say_nothing() -> None:
    all_three = {"horizontal": {"layers": 2, "server": {"dropout": 0.5}}, "local": {"features": None, "network": {}}}
    assert parse_job(all_three) == parse_job({})
    for key, said in {"horizontal": {"layers": 3}, "local": {"network": {"hops": 3}}}.items():
        with refused(ConfigError, code="config") as caught:
            parse_job({**all_three, key: said})
        assert f"{key} is not the network of paradigm='vertical'" in str(caught.value)
    with pytest.warns(FormerName):
        own = parse_job({"paradigm": "horizontal", "model": {"rounds": 1}, "horizontal": {"layers": 3}})
    assert own == parse_job({"paradigm": "horizontal", "model": {"layers": 3}})
    with refused(ConfigError, code="config"):
        parse_job({"paradigm": "horizontal", "model": {"rounds": 2}, "horizontal": {"layers": 3}})


@pytest.mark.filterwarnings("ignore::veilgraph.core.former.FormerName")
@pytest.mark.parametrize(
    "job",
    [
        {"limits": {}, "audit_limits": {}},
        {"data": {"parts": {}, "partition": {}}},
        {"paradigm": "local", "local": LOCAL, "model": {"hops": 3}},
        {"paradigm": "local", "local": LOCAL, "release": 3},
        {"data": {"parties": ["bank", "shop"], "holders": 3}},
        {"data": {"parties": {"bank": "x.yaml", "shop": "y.safetensors"}}},
        {"data": {"graphs": GRAPHS, "dataset": "cora"}},
        {"data": {"graphs": GRAPHS, "parties": FILES}},
        {"data": {"graphs": FILES}},
        {"data": {"holders": ["bank", "shop"], "dataset": "cora"}},
    ],
)
def test_what_is_said_twice_or_mixed_up_is_refused(job: dict[str, Any]) -> None:
    with refused(ConfigError, code="config"):
        parse_job(job)


def test_a_data_set_beside_tables_is_said_to_be_passed_over() -> None:
    with pytest.warns(FormerName, match="not used"):
        assert parse_job({"data": {"dataset": "cora", "parties": FILES}}) == parse_job({"data": {"parties": FILES}})


def test_what_is_no_setting_is_neither_moved_nor_lost() -> None:
    given = {"a": {"b": 1, "c": 2}, "d": [3]}
    assert moved(given, {"a.b": "e.f.g", "a.x": "y", "d.z": "z"}) == {"a": {"c": 2}, "d": [3], "e": {"f": {"g": 1}}}
    assert moved(given, {"a.b": "b", "a.c": "c"}) == {"b": 1, "c": 2, "d": [3]}
    assert given == {"a": {"b": 1, "c": 2}, "d": [3]}
    assert [moved_key(key, {"a.b": "c"}) for key in ("a.b", "a.b.d", "a.bd", "a")] == ["c", "c.d", "a.bd", "a"]


def test_what_is_moved_is_left_as_it_was() -> None:
    said = {"a": 1, "group": {"b": 2}, "other": {"inner": {"c": 3}}}
    before = deepcopy(said)
    assert moved(said, {"a": "group.a", "other.inner.c": "c"}) == {"group": {"a": 1, "b": 2}, "c": 3}
    assert said == before
    named = {"data": {"parties": ["bank", "shop"]}}
    with pytest.warns(FormerName):
        assert present(named, OwnJob, (), "job.yaml") == {"data": {"holders": ["bank", "shop"]}}
    assert named == {"data": {"parties": ["bank", "shop"]}}


class OwnJob(JobSettings):
    """Of a paradigm that version 0.1 did not have."""

    former: ClassVar[Mapping[str, str]] = {}


def test_single_settings_may_be_replaced_under_former_names() -> None:
    job = parse_job({"paradigm": "horizontal"})
    with pytest.warns(FormerName, match="horizontal.layers is called model.layers now"):
        assert with_overrides(job, {"horizontal.layers": 3}) == with_overrides(job, {"model.layers": 3})


def test_what_a_party_accepts_has_a_new_name() -> None:
    party = {"party": "bank", "nodes": {"file": "n.csv", "id": "id", "features": [{"columns": "x"}]}, "edges": []}
    with pytest.warns(FormerName, match=r"party.yaml: limits.may_reveal is called limits.leakage now"):
        old = parse_party_settings({**party, "limits": {"may_reveal": []}}, "party.yaml")
    assert old == parse_party_settings({**party, "limits": {"leakage": []}})


def test_a_command_notes_it_on_one_line_and_keeps_the_run_in_todays_words(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    content = {"data": {"dataset": "synthetic"}, "limits": {}, "train": {"epochs": 1}, "model": {"dim": 4}}
    job.write_text(yaml.safe_dump(content), encoding="utf-8")
    result = veilgraph("train", job, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert f"veilgraph: note: {job}: limits is called audit_limits now\n" in result.stderr
    assert "note" not in veilgraph("resume", tmp_path / "run").stderr
    settings: JobSettings = RunDirectory.open(tmp_path / "run").settings
    assert settings == parse_job({key: value for key, value in content.items() if key != "limits"})
    job.write_text("horizontal: {layers: 3}\n", encoding="utf-8")
    assert "is not the network" in one_error(veilgraph("check", job))
