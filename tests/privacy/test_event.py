"""Events: what they say, what they refuse, and their way through JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.privacy.event import Event, GaussianEvent, LaplaceEvent, LocalEvent, from_json, to_json

POSITIVE = st.floats(1e-6, 1e6)
RELATIONS = st.sampled_from(["zero-out", "replacement"])
UNITS = st.sampled_from(["row", "edge", "node", "label"])


@given(
    st.builds(GaussianEvent, POSITIVE, RELATIONS, UNITS)
    | st.builds(LaplaceEvent, POSITIVE, RELATIONS, UNITS)
    | st.builds(LocalEvent, POSITIVE, st.sampled_from(["node", "label"]))
)
def test_an_event_survives_json(event: Event):
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "5", None])
@pytest.mark.parametrize(
    ("kind", "named"),
    [(GaussianEvent, "noise_multiplier"), (LaplaceEvent, "scale_multiplier"), (LocalEvent, "epsilon")],
)
def test_noise_that_is_no_positive_number_is_refused(kind, named, value):
    with refused(ConfigError, key=named):
        kind(value)


def test_unknown_relations_and_units_are_refused():
    with refused(ConfigError, key="neighbours", value="add"):
        GaussianEvent(1.0, "add")  # type: ignore[arg-type]
    with refused(ConfigError, key="unit", value="graph"):
        LaplaceEvent(1.0, "zero-out", "graph")  # type: ignore[arg-type]
    with refused(ConfigError, key="unit", value="row"):
        LocalEvent(1.0, "row")  # type: ignore[arg-type]


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
        {"kind": "local", "epsilon": 1.0},
        {"kind": "local", "epsilon": 1.0, "neighbours": "zero-out", "unit": "node"},
    ],
)
def test_what_is_no_known_event_is_refused(data):
    with pytest.raises(ConfigError, match=r"event|neighbours|noise_multiplier"):
        from_json(data)
