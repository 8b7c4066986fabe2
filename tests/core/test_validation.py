"""Every setting with values that it cannot have: one error in our own words, not pydantic's."""

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import BaseModel
from veilgraph_embeddings.settings import EmbedJob

from tests.bad.settings import WRONG, keys
from tests.bad.settings import changed as with_value
from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import config_errors
from veilgraph.core.validation import rule_of
from veilgraph.deploy.project import ProjectSettings
from veilgraph.protocol.job_file import JOBS, parse_job
from veilgraph.protocol.party_settings import PartySettings, parse_party_settings

VALUES = 5
"""So many wrong values of each key, others at the next key."""


def _validated(model: type[BaseModel]) -> Callable[[Any], object]:
    def build(content: object) -> object:
        with config_errors("given"):
            return model.model_validate(content)

    return build


FILES: list[tuple[type[BaseModel], Mapping[str, object], Callable[[Any], object]]] = [
    *((JOBS[name], {"paradigm": name, "data": {"dataset": "synthetic"}}, parse_job) for name in JOBS),
    (EmbedJob, {}, _validated(EmbedJob)),
    (
        PartySettings,
        {"party": "A", "nodes": {"file": "nodes.csv", "id": "id", "features": [{"columns": ["x"]}]}, "edges": []},
        parse_party_settings,
    ),
    (
        ProjectSettings,
        {"name": "f", "server": {"host": "h"}, "holders": ["a", "b"], "administrators": ["ops@example.org"]},
        _validated(ProjectSettings),
    ),
]


@pytest.mark.parametrize(("model", "base", "build"), FILES, ids=[*JOBS, "embed", "party", "project"])
def test_each_setting_is_refused_in_our_own_words(
    model: type[BaseModel], base: Mapping[str, object], build: Callable[[Any], object]
) -> None:
    paths = list(dict.fromkeys(keys(model)))
    places = {".".join(map(str, path[:end])) for path in paths for end in range(1, len(path) + 1)}
    refused = 0
    for turn, path in enumerate(paths):
        for shift in range(VALUES):
            content = with_value(copy.deepcopy(dict(base)), path, WRONG[(VALUES * turn + shift) % len(WRONG)])
            if (error := _refusal(build, content)) is not None:
                refused += 1
                said, key = str(error), re.sub(r"\.\d+", ".0", error.key or "")
                assert re.search(r"Input|should|pydantic|Extra|Field", said) is None, said
                assert key in places or key.rpartition(".")[0] in places or "." not in key, said
    assert refused > len(paths), "few values were wrong"


def _refusal(build: Callable[[Any], object], content: object) -> ConfigError | None:
    try:
        build(content)
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"preset": "Auto"}, "preset='Auto': must be 'auto' or 'paper'; choose one (did you mean 'auto'?)"),
        ({"train": {"epochs": 2.5}}, "train.epochs=2.5: must be a whole number; write one, as in 3"),
        ({"train": {"learning_rate": "x"}}, "train.learning_rate='x': must be a number; write one, as in 0.5"),
        ({"train": {"epochs": 0}}, "train.epochs=0: must be at least 1; raise it"),
        ({"train": {"learning_rate": 0.0}}, "train.learning_rate=0.0: must be more than 0; raise it"),
        ({"train": 5}, "train=5: must be names with values; write them as in {name: value}"),
        ({"label_privacy": {}}, "label_privacy.epsilon is needed; add it"),
        ({"name": "a b"}, "name='a b': must have letters, digits, '.', '_' and '-' alone, at most 64, a letter"),
        ({"paradigm": "sealed", "privacy": 3}, "privacy=3: must be names with values"),
        ({"paradigm": "union", "model": {"edge_weights": 1}}, "model.edge_weights=1: must be false; write that"),
        (
            {"paradigm": "averaging", "averaging": {"rule": {"name": "x"}}},
            "averaging.rule.name='x': must be 'fedavg', 'fedprox'",
        ),
        (
            {"preset": "auto", "data": {"dataset": ["cora"]}},
            "data.dataset=['cora']: must be text; write it between quotes",
        ),
    ],
)
def test_rule_and_way_out_of_a_kind_of_value(content: Mapping[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_job(content)
    assert str(caught.value).startswith(f"job: {said}")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "format=5: must be text or a list; write one of these"),
        (["%d"], "format=['%d']: must have at least 2 entries; add some"),
        (["%d", 5], "format.1=5: must be text; write it between quotes"),
        (["x", "%d"], "format.0='x': is no format of strptime"),
    ],
)
def test_a_value_of_a_union_must_be_of_one_of_its_kinds(value: object, said: str) -> None:
    date = {"columns": "d", "date": {"days_since": "2024-01-01", "format": value}}
    with pytest.raises(ConfigError) as caught:
        parse_party_settings({"party": "A", "nodes": {"file": "nodes.csv", "id": "id", "features": [date]}})
    assert str(caught.value).startswith(f"party: nodes.features.0.date.{said}")


def test_what_is_said_of_others_messages_shows_none_of_their_values() -> None:
    for kind in ("literal_error", "string_pattern_mismatch", "int_parsing", "union_tag_invalid", "new_in_pydantic"):
        context = {"expected": "'a' or 'b'", "pattern": "^x$", "expected_tags": "'a'", "tag": "SECRET"}
        said = rule_of({"type": kind, "loc": ("x",), "msg": "Input should be it", "input": "SECRET", "ctx": context})
        assert "SECRET" not in said
        assert "should" not in said
