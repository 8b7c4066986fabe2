"""Job files and the settings that they become: what is refused, by which key, and what a setting means."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from veilgraph_node_dp.settings import node_dp

from tests.errors import refused
from tests.roles.federation import merge
from veilgraph.core.errors import ConfigError
from veilgraph.paradigms.vertical.settings import VerticalJob, vertical
from veilgraph.protocol.job_file import parse_job, read_job

Content = dict[str, Any]
ANYTHING: Content = {
    "seed": 2**63 - 1,
    "timeout_s": 1.5,
    "data": {"graphs": {"bank": "a/bank.safetensors", "shop": "b/shop.safetensors"}, "label_holder": "shop"},
    "model": {
        "dim": 6,
        "initial": {"method": "secure-sum", "dropout": 0.5},
        "combine": {"strategy": "degree-weighted", "masked": False},
    },
    "train": {"patience": None},
}


def nested(key: str, value: object) -> Content:
    """{"a": {"b": value}} for "a.b"."""
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("content", [b"model: [1", b"\xff\xfe\x00", b"- 1\n- 2\n", b"hello", b"name: 2026-13-45"])
def test_a_file_that_is_no_job_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with refused(ConfigError, key=path) as caught:
        read_job(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with refused(ConfigError, key=path):
            read_job(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "a/b"),
        ("paradigm", "diagonal"),
        ("precision", "float16"),
        ("data.dataset", "corra"),
        ("data.holders", 257),
        ("data.holders", "two"),
        ("model.initial.learning_rate", float("nan")),
        ("model.local.model", "transformer"),
        ("model.combine.strategy", "median"),
        ("train.epochs", 0),
        ("train.learning_rate", "fast"),
        ("train.select_by", "f2"),
    ],
)
def test_a_bad_value_is_refused_by_key_and_value(key: str, value: object) -> None:
    """One of each kind of rule; docs/reference/settings.md has the bounds of every key."""
    with refused(ConfigError, key=key, value=value):
        parse_job(nested(key, value), "my.yaml")


@pytest.mark.parametrize("key", ["label_privacy.epsilon", "seed", "train.patience", "data.dataset"])
def test_a_truth_value_is_no_number_and_no_word(key: str) -> None:
    """``epsilon: yes`` would be an ε of 1."""
    with refused(ConfigError, key=key.rpartition(".")[2]):
        parse_job(nested(key, True))


def test_a_truth_value_is_taken_where_one_is_meant() -> None:
    assert parse_job({"data": {"split": [0.5, 0.2, 0.3], "stratify": False}}).data.stratify is False


@pytest.mark.parametrize("key", ["epoch", "data.holder", "model.initial.lr", "train.epoch"])
def test_an_unknown_key_is_refused_by_name_with_one_that_is_near(key: str) -> None:
    near = {"data.holder": "holders", "train.epoch": "epochs"}.get(key, "")
    with refused(ConfigError, key=key, value=3) as caught:
        parse_job(nested(key, 3))
    assert (f"did you mean {near}" in str(caught.value)) == bool(near)


@pytest.mark.parametrize("name", ["", ".", "../../elsewhere", "/tmp/elsewhere", "a\0b", "a\nb"])
def test_a_holder_name_that_is_no_file_name_is_refused(name: str) -> None:
    with refused(ConfigError, key="data.graphs", value=name):
        parse_job({"data": {"graphs": {"bank": "x", name: "y"}}})


@pytest.mark.parametrize("content", [{"name": "x" * 5_000}, {"x": "y" * 5_000}, {"seed": [[0] * 5_000]}])
def test_of_a_long_value_an_error_shows_the_beginning(content: Content) -> None:
    (key,) = content
    with refused(ConfigError, key=key) as caught:
        parse_job(content)
    assert len(str(caught.value)) < 400


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    *VerticalJob.model_fields,
    *(f"data.{key}" for key in ("holders", "graphs", "parties", "label_holder", "feature_proportions", "root")),
    *(f"model.{key}" for key in ("dim", "initial", "local", "combine", "combine.bits", "local.model")),
]


@settings(max_examples=60)
@given(key=st.sampled_from(KEYS), value=junk)
def test_whatever_stands_in_a_job_it_is_valid_or_a_config_error(key: str, value: object) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_job(nested(key, value)).hash()


# Settings that contradict each other, or that a job would ignore

PAIR = {"bank": "bank.safetensors", "shop": "shop.safetensors"}
CONTRADICTIONS: list[tuple[Content, str, str]] = [
    ({"data": {"feature_proportions": [1, 1, 1]}}, "data", "feature_proportions"),
    ({"data": {"edge_proportions": [1]}}, "data", "edge_proportions"),
    ({"data": {"holders": ["bank", "shop"], "feature_proportions": [1, 1]}}, "data", "already divided"),
    ({"data": {"holders": ["bank", "shop"], "edge_proportions": [1]}}, "data", "already divided"),
    ({"data": {"holders": 3, "feature_proportions": [1, 0, 1]}}, "data.feature_proportions.1", ""),
    ({"data": {"graphs": {"bank": "x"}}}, "data", "at least 2"),
    ({"data": {"graphs": {"bank": "x", "server": "y"}}}, "data", "server"),
    ({"data": {"label_holder": "C"}}, "label_holder", "A, B"),
    ({"data": {"graphs": PAIR, "label_holder": "A"}}, "label_holder", "bank, shop"),
    ({"model": {"combine": {"strategy": "concat", "masked": True}}}, "model.combine", ""),
    ({"model": {"rounds": 2, "combine": {"strategy": "concat"}}}, "model", "rounds"),
    ({"model": {"dim": 6, "local": {"model": "gat"}}}, "local.heads", ""),
    ({"data": {"partition": {"overlap": 0.2}}}, "data.partition", "horizontal"),
    ({"paradigm": "horizontal", "data": {"edge_proportions": [1, 2]}}, "data.edge_proportions", "vertical"),
    ({"paradigm": "horizontal", "data": {"partition": {"by": "labels", "overlap": 0.2}}}, "overlap", "edges"),
    ({"paradigm": "horizontal", "data": {"partition": {"mixed": 0.2}}}, "mixed", "labels"),
    ({"paradigm": "horizontal", "device": "auto"}, "device", "vertical"),
    ({"train": {"refresh_every": 3}}, "refresh_every", ""),
    ({"model": {"local": {"fanout": 3}}}, "model.local.fanout", "train.batch_size"),
    ({"train": {"batch_size": 8}, "model": {"rounds": 2}}, "model.rounds", "train.batch_size"),
    ({"model": {"rounds": 3}, "paradigm": "horizontal"}, "model.rounds", ""),
    ({"horizontal": {"dim": 3}}, "horizontal", ""),
    ({"privacy": {"unit": "edge", "epsilon_total": 4}}, "privacy", "paradigm: sealed"),
    ({"paradigm": "union", "dealer_checks": 0.5}, "dealer_checks", "trust: majority"),
    ({"paradigm": "union", "privacy": {"unit": "edge", "epsilon_total": 4}}, "privacy", "averaging"),
    ({"paradigm": "union", "release": "holders"}, "release", "leave release out"),
    (
        {"paradigm": "sealed", "privacy": {"unit": "node", "epsilon_total": 0.3}},
        "privacy.epsilon_total",
        "at least 0.5",
    ),
]


@pytest.mark.parametrize(("job", "key", "says"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused_with_the_way_out(job: Content, key: str, says: str) -> None:
    with refused(ConfigError, key=key) as caught:
        parse_job(job)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


LOCAL: Content = {"paradigm": "node-dp", "release": {"features": {"epsilon": 1}}}
LABELS = {"holder": "B", "epsilon": 2}


def on_edges(**privacy: object) -> Content:
    """LOCAL with noise on the learner's edges."""
    return {**LOCAL, "privacy": {"epsilon_total": 4, "unit": "edge", **privacy}}


def local(**changes: object) -> Content:
    """LOCAL with more: data__split=… for "data.split"."""
    return merge(LOCAL, *(nested(key.replace("__", "."), value) for key, value in changes.items()))


RETIRED = {"schedule": "every-step", "aggregation": {"hops": 2}, "noise_multiplier": 1.0, "epsilon_step": 1.0}
LOCAL_CONTRADICTIONS: list[tuple[Content, str]] = [
    ({"paradigm": "node-dp"}, "paradigm"),
    (local(data__feature_scaling="row"), "data.feature_scaling"),
    (local(data__feature_scaling="standard"), "data.feature_scaling"),
    (local(release__labels={**LABELS, "holder": "A"}), "release.labels.holder"),
    (local(release__labels={**LABELS, "holder": "C"}), "release.labels.holder"),
    (local(release__labels=LABELS, train__class_weights="balanced"), "train.class_weights"),
    (local(privacy__epsilon_total=4, privacy__unit="row"), "privacy.unit"),
    (on_edges(unit="node"), "privacy.unit"),
    (on_edges(unit="node-edges"), "unit"),
    (on_edges(degree_bound=4), "degree_bound"),
    (on_edges(sum_clip=1.0), "sum_clip"),
    (on_edges(unit="node-edges", degree_bound=4, sum_clip=4.5), "sum_clip"),
    (on_edges(neighbours="zero-out"), "unit"),
    (on_edges(hops=0), "privacy.hops"),
    *[(on_edges(**{gone: value}), f"privacy.{gone}") for gone, value in RETIRED.items()],
    ({**on_edges(), "model": {"hops": 3}}, "model.hops"),
    ({**on_edges(), "model": {"aggregate": "mean"}}, "model.aggregate"),
    (merge(on_edges(), {"release": {"labels": LABELS}}), "release.labels"),
    (local(horizontal__dim=3), "horizontal"),
    ({**LOCAL, "paradigm": "vertical"}, "release"),
    (local(data__edge_proportions=[1, 2]), "data.edge_proportions"),
    (local(data__partition={"overlap": 0.1}), "data.partition"),
    (local(release__features={"low": 1}), "low"),
    (local(release__features={"mechanism": "gaussian"}), "delta"),
    (local(release__features={"delta": 1e-5}), "delta"),
    (local(release__features={"sampled": 3, "mechanism": "laplace"}), "sampled"),
    (local(data__split=[0.5, 0.5, 0.1]), "split"),
    (local(data__split=[0.5, 0.2, 0.3], data__graphs=PAIR), "split"),
]


@pytest.mark.parametrize(("job", "key"), LOCAL_CONTRADICTIONS)
def test_a_local_job_that_cannot_be_is_refused(job: Content, key: str) -> None:
    with refused(ConfigError, key=key):
        parse_job(job)


@pytest.mark.parametrize("privacy", [{"epsilon_total": 4}, {"epsilon_total": 4, "unit": None}])
def test_a_job_with_privacy_names_what_its_epsilon_protects(privacy: Content) -> None:
    """The default was one published row, with which the record of a hub has 29 times the ε."""
    with refused(ConfigError, key="privacy.unit"):
        parse_job({**LOCAL, "privacy": privacy})


# What settings mean


def test_the_hash_is_of_the_content_and_of_all_of_it() -> None:
    job = parse_job(ANYTHING)
    base = job.hash()
    assert job.model_copy(update={"seed": 1}).hash() == parse_job({**ANYTHING, "seed": 1}).hash()
    assert parse_job(dict(reversed(ANYTHING.items()))).hash() == base
    changes = {
        "seed": 1,
        "timeout_s": 2,
        "data.label_holder": "bank",
        "model.initial.dropout": 0.25,
        "model.combine.masked": True,
        "train.patience": 3,
    }
    assert base not in {parse_job(merge(ANYTHING, nested(key, value))).hash() for key, value in changes.items()}
    assert len(base) == 64


def test_holders_are_named_by_letters_or_by_their_files() -> None:
    lettered, named = parse_job({"data": {"holders": 26}}).data, parse_job(ANYTHING).data
    assert lettered.names == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert lettered.label_party == "A"
    assert (named.names, named.label_party) == (("bank", "shop"), "shop")


@pytest.mark.parametrize(
    ("strategy", "masked", "found"),
    [("mean", None, True), ("degree-weighted", False, False), ("regression", True, True), ("concat", None, False)],
)
def test_what_is_linear_is_masked_unless_told_otherwise(strategy: str, masked: bool | None, found: bool) -> None:
    combine = vertical(parse_job({"model": {"combine": {"strategy": strategy, "masked": masked}}})).model.combine
    assert (combine.linear, combine.is_masked) == (strategy != "concat", found)


def test_who_sums_over_its_edges_with_noise() -> None:
    three = {"holders": 3, "label_holder": "B"}
    plain, private = parse_job({**LOCAL, "data": three}), parse_job({**on_edges(), "data": three})
    assert (plain.duties.summing, plain.inputs.per_edge, plain.duties.publishing) == ((), (), ())
    assert (private.duties.summing, private.inputs.per_edge, private.duties.publishing) == (("B",), ("B",), ())
    assert private.duties.releasing == ("A", "C")
    assert parse_job({}).duties.summing == ()
    replaced = parse_job(on_edges(unit="node-edges", degree_bound=5))
    assert [node_dp(each).uses_own_columns for each in (plain, private, replaced)] == [True, True, False]


def test_a_retired_release_is_refused_with_its_way_out_and_a_stored_null_is_read() -> None:
    release = {"epsilon": 2.0}
    with refused(ConfigError, key="model.initial.method", value="perturbed") as caught:
        parse_job({"model": {"initial": {"method": "perturbed", "release": release}}})
    assert "node-dp" in re.findall(r"[\w-]+", str(caught.value))
    with refused(ConfigError, key="model.initial.release", value=release):
        parse_job({"model": {"initial": {"method": "individual", "release": release}}})
    stored = {"model": {"initial": {"release": None}}}
    assert parse_job(stored) == parse_job({"model": {"initial": {}}})
