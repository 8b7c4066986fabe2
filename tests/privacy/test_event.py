"""Events: what they say, what they refuse, and their way through JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.event import Event, GaussianEvent, LaplaceEvent, from_json, to_json

POSITIVE = st.floats(1e-6, 1e6)
RELATIONS = st.sampled_from(["zero-out", "replacement"])
UNITS = st.sampled_from(["row", "edge", "node", "label"])


def test_replacement_halves_the_multiplier_and_doubles_the_pure_epsilon():
    assert GaussianEvent(5.0).multiplier == 5.0
    assert GaussianEvent(5.0, "replacement").multiplier == 2.5
    assert LaplaceEvent(5.0).epsilon == 0.2
    assert LaplaceEvent(5.0, "replacement").epsilon == 0.4


@given(st.builds(GaussianEvent, POSITIVE, RELATIONS, UNITS) | st.builds(LaplaceEvent, POSITIVE, RELATIONS, UNITS))
def test_an_event_survives_json(event: Event):
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "5", None])
@pytest.mark.parametrize("kind", [GaussianEvent, LaplaceEvent])
def test_noise_that_is_no_positive_number_is_refused(kind, value):
    with pytest.raises(ConfigError, match="multiplier"):
        kind(value)


def test_unknown_relations_and_units_are_refused():
    with pytest.raises(ConfigError, match="neighbours='add'"):
        GaussianEvent(1.0, "add")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unit='graph'"):
        LaplaceEvent(1.0, "zero-out", "graph")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"kind": "cauchy", "noise_multiplier": 1.0, "neighbours": "zero-out", "unit": "row"},
        {"kind": ["gaussian"], "noise_multiplier": 1.0, "neighbours": "zero-out", "unit": "row"},
        {"kind": "gaussian", "noise_multiplier": 1.0, "neighbours": "zero-out"},
        {"kind": "gaussian", "noise_multiplier": 1.0, "neighbours": "zero-out", "unit": "row", "q": 0.1},
        {"kind": "laplace", "noise_multiplier": 1.0, "neighbours": "zero-out", "unit": "row"},
        {"kind": "gaussian", "noise_multiplier": "1", "neighbours": "zero-out", "unit": "row"},
        {"kind": "gaussian", "noise_multiplier": 1.0, "neighbours": ["zero-out"], "unit": "row"},
    ],
)
def test_what_is_no_known_event_is_refused(data):
    with pytest.raises(ConfigError, match=r"event|neighbours|noise_multiplier"):
        from_json(data)
