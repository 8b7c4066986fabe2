import contextlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from veilgraph_node_dp.settings import node_dp

from tests.errors import refused
from tests.roles.federation import merge
from veilgraph.core.errors import ConfigError
from veilgraph.paradigms.vertical.settings import VerticalJob, vertical
from veilgraph.protocol.job import passes_cost
from veilgraph.protocol.job_file import parse_job, read_job

ANYTHING = {
    "name": "trial-1",
    "seed": 2**63 - 1,
    "precision": "float64",
    "timeout_s": 1.5,
    "data": {
        "graphs": {"bank": "a/bank.safetensors", "shop": "b/shop.safetensors"},
        "label_holder": "shop",
        "feature_scaling": "row",
    },
    "model": {
        "dim": 6,
        "rounds": 3,
        "initial": {"method": "secure-sum", "init_std": 0.1, "feature_bits": 0, "activation": "tanh", "dropout": 0.5},
        "local": {"model": "gat", "hops": 0, "heads": 3, "normalize": False},
        "combine": {"strategy": "degree-weighted", "masked": False, "bits": 44},
        "server": {"layers": 0, "activation": "none", "dropout": 0},
        "head": {"logit_hops": 4, "logit_teleport": 1, "dropout": 0.1},
    },
    "train": {"epochs": 1, "patience": None, "evaluate_every": 3, "checkpoint_every": 7},
}


def nested(key, value):
    """{"a": {"b": value}} for "a.b"."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def changed(key, value):
    job = json.loads(json.dumps(ANYTHING))
    *path, last = key.split(".")
    inside = job
    for part in path:
        inside = inside[part]
    inside[last] = value
    return job


# Reading and writing


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"model: [1", {"key": Path("job.yaml")}),
        (b"\xff\xfe\x00", {"key": Path("job.yaml")}),
        (b"- 1\n- 2\n", {"key": Path("job.yaml")}),
        (b"hello", {"key": Path("job.yaml")}),
        (b"!!python/object/apply:os.getcwd []", {"key": Path("job.yaml")}),
        (b"name: 2026-13-45", {"key": Path("job.yaml")}),
        (b"[" * 10_000, {"key": Path("job.yaml")}),
    ],
)
def test_a_file_that_is_no_job_is_refused_by_name(tmp_path, content, says):
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with refused(ConfigError, **says) as caught:
        read_job(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused_by_name(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with refused(ConfigError, key=path):
            read_job(path)


# What is refused, and how


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("name", "a/b", "match pattern"),
        ("name", "", "match pattern"),
        ("paradigm", "diagonal", "'vertical'"),
        ("seed", -1, "greater than or equal to 0"),
        ("seed", 2**63, "less than"),
        ("precision", "float16", "'float32' or 'float64'"),
        ("timeout_s", 0, "greater than 0"),
        ("data.dataset", "corra", "'cora'"),
        ("data.holders", 1, "give a number from 2 to 256"),
        ("data.holders", 257, "give a number from 2 to 256"),
        ("data.holders", "two", "give a number from 2 to 256"),
        ("data.feature_scaling", "minmax", "'none', 'row', 'length' or 'standard'"),
        ("model.dim", 0, "greater than or equal to 1"),
        ("model.rounds", 0, "greater than or equal to 1"),
        ("model.initial.method", "shared", "'collaborative'"),
        ("model.initial.learning_rate", 0, "greater than 0"),
        ("model.initial.learning_rate", math.nan, "finite number"),
        ("model.initial.momentum", 1, "less than 1"),
        ("model.initial.weight_decay", 0.6, "less than or equal to 0.5"),
        ("model.initial.init_std", 0, "greater than 0"),
        ("model.initial.dropout", 1, "less than 1"),
        ("model.initial.dropout", -0.1, "greater than or equal to 0"),
        ("model.initial.feature_bits", 25, "less than or equal to 24"),
        ("model.initial.gradient_bits", 41, "less than or equal to 40"),
        ("model.local.model", "transformer", "'sage-mean'"),
        ("model.local.hops", -1, "greater than or equal to 0"),
        ("model.local.teleport", 1.1, "less than or equal to 1"),
        ("model.combine.strategy", "median", "'mean'"),
        ("model.combine.bits", 45, "less than or equal to 44"),
        ("model.server.layers", 9, "less than or equal to 8"),
        ("model.head.logit_hops", -1, "greater than or equal to 0"),
        ("train.epochs", 0, "greater than or equal to 1"),
        ("train.patience", 0, "greater than or equal to 1"),
        ("train.class_weights", "even", "'none' or 'balanced'"),
        ("train.weight_decay", -1e-9, "greater than or equal to 0"),
        ("train.learning_rate", "fast", "number"),
    ],
)
def test_a_bad_value_is_refused_by_key_value_and_rule(key, value, rule):
    with pytest.raises(ConfigError) as caught:
        parse_job(nested(key, value), "my.yaml")
    message = str(caught.value)
    assert message.startswith(f"my.yaml: {key}={value!r}: ")
    assert rule in message


def test_what_nothing_is_judged_by_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_job(nested("train.select_by", "f2"), "my.yaml")
    assert "train.select_by='f2' is nothing" in str(caught.value)
    assert "choose one of accuracy, auc, ap, f1, loss, last" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("epoch", None),
        ("data.holder", "holders"),
        ("model.dims", "dim"),
        ("model.initial.lr", None),
        ("model.combine.mask", "masked"),
        ("train.e", None),
        ("train.epoch", "epochs"),
        ("devise", "device"),
    ],
)
def test_an_unknown_key_is_refused_by_name(key, near):
    with pytest.raises(ConfigError) as caught:
        parse_job(nested(key, 3))
    way_out = "remove it or mend its name" if near is None else f"did you mean {near}? Else remove it"
    assert str(caught.value) == f"job: {key} is not a setting (value 3); {way_out}"
    assert (caught.value.key, caught.value.value) == (key, 3)


PAIR = {"bank": "bank.safetensors", "shop": "shop.safetensors"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"data": {"feature_proportions": [1, 1, 1]}}, "feature_proportions has 3 numbers for holders=2"),
        ({"data": {"edge_proportions": [1]}}, "edge_proportions has 1 numbers for holders=2"),
        ({"data": {"holders": 3, "feature_proportions": [1, 0, 1]}}, "data.feature_proportions.1=0"),
        ({"data": {"graphs": {"bank": "x"}}}, "at least 2"),
        ({"data": {"graphs": {"bank": "x", "server": "y"}}}, "may not be called 'server'"),
        ({"data": {"label_holder": "C"}}, "label_holder='C' is not one of the holders A, B"),
        ({"data": {"graphs": PAIR, "label_holder": "A"}}, "label_holder='A' is not one of the holders bank, shop"),
        ({"model": {"combine": {"strategy": "concat", "masked": True}}}, "'concat' cannot be masked"),
        ({"model": {"rounds": 2, "combine": {"strategy": "concat"}}}, "set rounds to 1"),
        ({"model": {"dim": 6, "local": {"model": "gat"}}}, "local.heads=4 does not divide dim=6"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_the_way_out(data, says):
    with pytest.raises(ConfigError) as caught:
        parse_job(data)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "../../elsewhere", "/tmp/elsewhere", "a/b", "a\0b", "a\nb"])
def test_a_holder_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(ConfigError, match="graphs"):
        parse_job({"data": {"graphs": {"bank": "x", name: "y"}}})


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
def test_whatever_stands_in_a_job_it_is_valid_or_a_config_error(key, value):
    with contextlib.suppress(ConfigError):
        assert parse_job(nested(key, value)).hash()


# What settings mean


def test_the_hash_is_of_the_content_and_of_all_of_it():
    job = parse_job(ANYTHING)
    base = job.hash()
    assert job.model_copy(update={"seed": 1}).hash() == parse_job(changed("seed", 1)).hash()
    assert parse_job(dict(reversed(ANYTHING.items()))).hash() == base
    for key, value in {
        "seed": 1,
        "timeout_s": 2,
        "data.label_holder": "bank",
        "model.dim": 9,
        "model.initial.dropout": 0.25,
        "model.combine.masked": True,
        "train.patience": 3,
    }.items():
        assert parse_job(changed(key, value)).hash() != base
    assert len(base) == 64


def test_holders_are_named_by_letters_or_by_their_files():
    job = parse_job({"data": {"holders": 3}})
    assert job.data.names == ("A", "B", "C")
    assert job.data.label_party == "A"
    given_names = parse_job(ANYTHING)
    assert given_names.data.names == ("bank", "shop")
    assert given_names.data.label_party == "shop"
    assert parse_job({"data": {"holders": 26}}).data.names[-1] == "Z"


@pytest.mark.parametrize("strategy", ["mean", "regression", "degree-weighted", "concat"])
@pytest.mark.parametrize("masked", [None, False, True])
def test_what_is_linear_is_masked_unless_told_otherwise(strategy, masked):
    linear = strategy != "concat"
    if masked and not linear:
        return
    combine = vertical(parse_job({"model": {"combine": {"strategy": strategy, "masked": masked}}})).model.combine
    assert combine.linear == linear
    assert combine.is_masked == (linear if masked is None else masked)


ONCE = {"initial": {"method": "individual"}, "local": {"model": "appnp"}}


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        ({"data": {"partition": {"overlap": 0.2}}}, r"data\.partition divides a data set for paradigm='horizontal'"),
        (
            {"paradigm": "horizontal", "data": {"edge_proportions": [1, 2]}},
            "data.edge_proportions=.* with paradigm=horizontal: they divide a data set for paradigm=vertical",
        ),
        (
            {"paradigm": "horizontal", "data": {"partition": {"by": "labels", "overlap": 0.2}}},
            "overlap=0.2 is for by='edges'",
        ),
        ({"paradigm": "horizontal", "data": {"partition": {"mixed": 0.2}}}, "mixed=0.2 is for by='labels'"),
        (
            {"paradigm": "horizontal", "device": "auto"},
            "device='auto' with paradigm=horizontal: only paradigm=vertical",
        ),
        ({"train": {"refresh_every": 3}}, "refresh_every=3 counts batches"),
        ({"model": {"local": {"fanout": 3}}}, r"model\.local\.fanout=3 with train\.batch_size=null"),
        ({"train": {"batch_size": 8}, "model": {"rounds": 2}}, r"model\.rounds=2 with train\.batch_size"),
        ({"model": {"rounds": 3}, "paradigm": "horizontal"}, r"model\.rounds is not a setting"),
        ({"horizontal": {"dim": 3}}, "horizontal is not a setting"),
        (
            {"model": ONCE, "privacy": {"unit": "row", "schedule": "once", "epsilon_total": 4, "gradient_clip": 0.5}},
            "gradient_clip=0.5 is for schedule every-step",
        ),
    ],
)
def test_settings_that_would_be_ignored_are_refused(job, rule):
    with pytest.raises(ConfigError, match=rule):
        parse_job(job)


# Paradigm node-dp

LOCAL = {"paradigm": "node-dp", "release": {"features": {"epsilon": 1}}}
LABELS = {"holder": "B", "epsilon": 2}


def on_edges(**privacy):
    """LOCAL with noise on the learner's edges."""
    return {**LOCAL, "privacy": {"epsilon_total": 4, "unit": "edge", "aggregation": {}, **privacy}}


def local(**changes):
    """LOCAL with more: model={...} for "model"."""
    return merge(LOCAL, *(nested(key.replace("__", "."), value) for key, value in changes.items()))


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        (
            {"paradigm": "node-dp"},
            "paradigm='node-dp' needs release.features, which says how nodes release theirs; give at",
        ),
        (
            local(data__feature_scaling="row"),
            "data.feature_scaling='row' with paradigm=node-dp: nodes keep their values",
        ),
        (
            local(data__feature_scaling="standard"),
            "set release.features.low and high to their range; set data.feature_scaling to none",
        ),
        (
            local(release__labels={**LABELS, "holder": "A"}),
            "release.labels.holder='A' with release.labels: it is to be one of the holders",
        ),
        (local(release__labels={**LABELS, "holder": "C"}), "set release.labels.holder to B"),
        (
            local(release__labels=LABELS, train__class_weights="balanced"),
            "train.class_weights='balanced' with release.labels: the true labels' shares",
        ),
        (
            local(privacy__epsilon_total=4, privacy__unit="row"),
            "privacy.unit='row' with privacy in a job of paradigm node-dp: noise is on the",
        ),
        (on_edges(unit="node", degree_bound=3), "set privacy.unit to edge or node-edges"),
        (on_edges(schedule="every-step"), "schedule='every-step' with aggregation"),
        (
            on_edges(aggregation=None, degree_bound=3),
            "privacy.aggregation=null in a job of paradigm node-dp: its noise",
        ),
        (
            on_edges(aggregation={"dim": 8}),
            "privacy.aggregation.dim=8 in a job of paradigm node-dp: sums have a column",
        ),
        (
            on_edges(aggregation={"own_rows": "clear"}),
            "own_rows='clear' in a job of paradigm node-dp: no row of a node",
        ),
        (
            on_edges(unit="node-edges", degree_bound=4, aggregation={"own_share": 0.5}),
            "own_share=0.5 in a job of paradigm node-dp: no row of a node",
        ),
        (
            on_edges(canaries=3, canaries_in="data"),
            "privacy.canaries=3 with privacy in a job of paradigm node-dp: noth",
        ),
        (on_edges(degree_bound=4), "degree_bound=4 with aggregation and unit='edge'"),
        (
            {**on_edges(), "model": {"hops": 3}},
            "model.hops=3 with privacy in a job of paradigm node-dp: hops over edges",
        ),
        (
            {**on_edges(), "model": {"aggregate": "mean"}},
            "model.aggregate='mean' with privacy in a job of paradigm nod",
        ),
        (
            merge(on_edges(), {"release": {"labels": LABELS}}),
            "with privacy in a job of paradigm node-dp: they would be averaged over the learner's edges",
        ),
        (local(horizontal__dim=3), "horizontal is not a setting"),
        ({**LOCAL, "paradigm": "vertical"}, "release is not a setting"),
        (
            local(data__edge_proportions=[1, 2]),
            "for horizontal there is data.partition; leave data.edge_proportions out",
        ),
        (local(data__partition={"overlap": 0.1}), "data.partition divides a data set for paradigm='horizontal'"),
        (local(release__features={"low": 1}), "low=1.0 must be below high=1.0: features of one value need no release"),
        (local(release__features={"mechanism": "gaussian"}), "gaussian needs a δ; give one, or leave it out"),
        (local(release__features={"delta": 1e-5}), "delta=1e-05 with mechanism='multi-bit': multi-bit has none"),
        (
            local(release__features={"sampled": 3, "mechanism": "laplace"}),
            "sampled=3 is for mechanism multi-bit; leave",
        ),
        (local(data__split=[0.5, 0.5, 0.1]), "split=[0.5, 0.5, 0.1] divides a data set's nodes: shares with a sum of"),
        (local(data__split=[0.5, 0.2, 0.3], data__graphs=PAIR), "no holders that bring their own split"),
    ],
)
def test_a_local_job_that_cannot_be_is_refused_with_the_way_out(job, rule):
    with pytest.raises(ConfigError) as caught:
        parse_job(job)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


def test_who_sums_over_its_edges_with_noise():
    three = {"holders": 3, "label_holder": "B"}
    plain, private = parse_job({**LOCAL, "data": three}), parse_job({**on_edges(), "data": three})
    assert (plain.duties.summing, plain.inputs.per_edge, plain.duties.publishing) == ((), (), ())
    assert (private.duties.summing, private.inputs.per_edge, private.duties.publishing) == (("B",), ("B",), ())
    assert (private.duties.releasing, passes_cost(private)) == (("A", "C"), False)
    assert parse_job({}).duties.summing == ()
    replaced = parse_job(on_edges(unit="node-edges", degree_bound=5))
    assert [node_dp(each).uses_own_columns for each in (plain, private, replaced)] == [True, True, False]


@pytest.mark.parametrize("change", [{"name": "x" * 5_000}, {"x": "y" * 5_000}, {"seed": [[0] * 5_000]}])
def test_of_a_long_value_an_error_shows_the_beginning(change):
    with pytest.raises(ConfigError) as caught:
        parse_job(change)
    assert " characters)" in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("privacy", [{"epsilon_total": 4}, {"epsilon_total": 4, "unit": None}])
def test_a_job_with_privacy_names_what_its_epsilon_protects(privacy):
    """The default was one published row, with which the record of a hub has 29 times the ε."""
    content = {"model": ONCE, "privacy": {"schedule": "once", **privacy}}
    with refused(ConfigError, key="privacy.unit"):
        parse_job(content)
