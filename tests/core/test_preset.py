"""What a job leaves out comes from its preset, and what it says stays."""

import json
import sys
from pathlib import Path
from subprocess import run
from typing import Any, Self

import pytest
import yaml
from pydantic import BaseModel, ValidationError, model_validator

from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.job import write_job
from veilgraph.protocol.job_file import JOBS, parse_job, parse_with_choices, read_job
from veilgraph.protocol.limits import revelations
from veilgraph.protocol.preset import AUTO, PAPER, Choice, resolved
from veilgraph.samples.shipped import with_overrides

NODES = {"features": {"epsilon": 1}}
TABLES = {"holders": ["bank", "shop"]}
WORDS = {"dataset": "cora"}
OF_FIRST_MODELS = {f"model.local.{key}" for key in ("start", "teleport", "heads")}
OF_THE_CHOSEN_MODEL = {"model.local.correlation", "averaging.rule.mu"}
LAST = {"select_by": "last", "patience": None}

OF_OWN_NODES = {"horizontal", "averaging"}
"""Jobs whose columns are standardised over all holders' rows, of which these learn the sums."""

VALID: dict[str, dict[str, Any]] = {
    "nothing": {},
    "tables": {"data": TABLES},
    "words": {"data": WORDS},
    "words as they are": {"data": {**WORDS, "feature_scaling": "none"}},
    "another local model": {"data": WORDS, "model": {"local": {"model": "gat"}}},
    "individual": {"data": WORDS, "model": {"initial": {"method": "individual"}}},
    "large steps": {"data": WORDS, "model": {"initial": {"weight_decay": 0.4, "learning_rate": 2}}},
    "shrinking": {"data": WORDS, "model": {"initial": {"weight_decay": 0.2}}},
    "last": {"train": LAST},
    "no patience": {"train": {"patience": None}},
    "batches": {"train": {"batch_size": 64}},
    "rounds": {"model": {"rounds": 3, "combine": {"strategy": "degree-weighted"}}},
    "labels": {"label_privacy": {"epsilon": 2}},
    "horizontal": {"paradigm": "horizontal", "data": TABLES},
    "averaging": {"paradigm": "averaging", "data": TABLES},
    "node-dp": {"paradigm": "node-dp", "release": NODES},
    "node-dp, edges": {"paradigm": "node-dp", "release": NODES, "privacy": {"unit": "edge", "epsilon_total": 4}},
    "node-dp, labels": {"paradigm": "node-dp", "release": {**NODES, "labels": {"holder": "B", "epsilon": 2}}},
    "sealed": {"paradigm": "sealed", "data": TABLES},
    "sealed, noised": {
        "paradigm": "sealed",
        "data": TABLES,
        "model": {"network": "linear", "edge_slots": 4096},
        "train": {"select_by": "last"},
        "privacy": {"unit": "edge", "epsilon_total": 4},
    },
    "sealed, checked": {"paradigm": "sealed", "dealer_checks": 0.5, "train": {"select_by": "last"}},
    "sealed, words": {"paradigm": "sealed", "data": WORDS},
}
"""Kind → a job that is valid with the papers' defaults."""


def at(settings: BaseModel, key: str) -> Any:
    place: Any = settings
    for name in key.split("."):
        place = getattr(place, name)
    return place


def said(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for key, value in content.items():
        inner = said(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        found.update(inner)
    return found


@pytest.mark.parametrize("kind", VALID)
def test_a_valid_job_stays_valid_and_says_what_it_said(kind: str) -> None:
    parse_job({**VALID[kind], "preset": PAPER})
    job, choices = parse_with_choices({**VALID[kind], "preset": AUTO})
    for choice in choices:
        assert choice.key not in said(VALID[kind])
        assert at(job, choice.key) == choice.value
        assert choice.why
    for key, value in said(VALID[kind]).items():
        found = at(job, key)
        assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize("kind", VALID)
def test_paper_chooses_nothing_and_auto_nothing_else_than_it_says(kind: str) -> None:
    paper, nothing = parse_with_choices({**VALID[kind], "preset": PAPER})
    auto, choices = parse_with_choices({**VALID[kind], "preset": AUTO})
    assert nothing == []
    changed = {"preset": AUTO, **{choice.key: choice.value for choice in choices}}
    as_paper = said(paper.model_dump(mode="json"))
    has = said(auto.model_dump(mode="json"))
    expected = {**as_paper, **changed}
    assert has == {key: expected.get(key, value if key in OF_THE_CHOSEN_MODEL else None) for key, value in has.items()}
    assert {key for key in as_paper if key not in has} <= OF_FIRST_MODELS


@pytest.mark.parametrize("kind", VALID)
def test_what_is_chosen_reveals_no_more(kind: str) -> None:
    paper, auto = (parse_job({**VALID[kind], "preset": preset}) for preset in (PAPER, AUTO))
    opened = {"column-statistics"} if kind in OF_OWN_NODES else set()
    assert set(revelations(auto)) == set(revelations(paper)) | opened
    assert auto.passes.exchanges == paper.passes.exchanges
    assert (auto.passes.is_masked, auto.passes.evaluates) == (paper.passes.is_masked, paper.passes.evaluates)


@nightly
@pytest.mark.parametrize("kind", VALID)
def test_a_stored_job_read_again_is_the_same_job(kind: str, tmp_path: Path) -> None:
    job = parse_job({**VALID[kind], "preset": AUTO})
    write_job(job, tmp_path / "job.yaml")
    again = read_job(tmp_path / "job.yaml")
    assert again == job
    assert again.hash() == job.hash()
    content = yaml.safe_load((tmp_path / "job.yaml").read_text(encoding="utf-8"))
    assert parse_with_choices(content)[1] == []


def test_what_perturbs_leaves_all_as_it_is() -> None:
    for kind in ("node-dp", "node-dp, edges", "node-dp, labels"):
        assert parse_with_choices({**VALID[kind], "preset": AUTO})[1] == [], kind


def keys(job: dict[str, Any]) -> set[str]:
    return {choice.key for choice in parse_with_choices({**job, "preset": AUTO})[1]}


def test_large_steps_on_w_are_for_rows_that_sum_to_one() -> None:
    """With words as they are, or columns of variance 1, they would leave the ring."""
    large = "model.initial.learning_rate"
    assert large in keys({"data": WORDS})
    assert large in keys({"data": {**TABLES, "feature_scaling": "row"}})
    assert large not in keys({"data": TABLES})
    for scaling in ("none", "standard"):
        assert large not in keys({"data": {**WORDS, "feature_scaling": scaling}})


def test_slow_hops_are_chosen_where_they_start_from_the_mean() -> None:
    both = {"model.local.start", "model.local.learning_rate"}
    for model in LOCAL_MODELS:
        chosen = keys({"data": WORDS, "model": {"local": {"model": model}}})
        assert both & chosen == (both if model in ("sage-mean", "relational") else set()), model


def test_patience_and_what_it_counts_are_chosen_together() -> None:
    both = {"train.patience", "train.evaluate_every"}
    assert both <= keys({})
    for key, value in (("patience", 7), ("evaluate_every", 3)):
        assert not both & keys({"train": {key: value}})


def test_what_does_not_fit_is_left_out_and_the_rest_stays() -> None:
    """Steps of 10 and a decay of 0.2 would turn W around."""
    all_fit = keys({"data": WORDS, "model": {"initial": {"weight_decay": 0.01}}})
    assert keys(VALID["shrinking"]) == all_fit - {"model.initial.learning_rate"}


def test_a_job_that_breaks_a_rule_says_its_own() -> None:
    with refused(ConfigError, key="model", value=3):
        parse_job({"preset": AUTO, "model": 3})
    with refused(ConfigError, key="train.epochs", value=0):
        parse_job({"preset": AUTO, "train": {"epochs": 0}})
    with refused(ConfigError, key="preset", value="best"):
        parse_job({"preset": "best"})


class Toy(BaseModel):
    """A job that is valid with what its preset chooses, or says something that nothing mends."""

    own: int = 0
    group: dict[str, int] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        has = "chosen" in self.group
        if self.own == 1:
            raise ValueError("group.chosen does not fit" if has else "own=1 is no value")
        if self.own == 2:
            raise ValueError("own=2 is too small" if has else "group.chosen is needed")
        return self


@pytest.mark.parametrize(("own", "said"), [(1, "own=1 is no value"), (2, "own=2 is too small")])
def test_what_is_wrong_is_said_of_the_job_and_not_of_a_choice(own: int, said: str) -> None:
    """Of the two errors, with what was chosen and without, the one that names no setting that the job leaves out."""
    choice = Choice("group.chosen", 3, "it fits")
    assert resolved({"own": 0}, [choice], Toy.model_validate).group == {"chosen": 3}
    with pytest.raises(ValidationError) as caught:
        resolved({"own": own}, [choice], Toy.model_validate)
    assert said in str(caught.value)
    assert caught.value.__suppress_context__


def test_settings_made_in_python_are_resolved_too_and_groups_of_them_say_all() -> None:
    job = VerticalJob(preset="auto")
    assert job == parse_job({"preset": AUTO})
    train = parse_job({"preset": PAPER}).train
    assert VerticalJob(preset="auto", train=train).train == train


def test_a_preset_is_no_longer_changed_once_a_job_says_every_key() -> None:
    job = parse_job({"preset": AUTO})
    with refused(ConfigError, key="preset", value=PAPER):
        with_overrides(job, {"preset": PAPER})
    assert with_overrides(job, {"preset": AUTO}) == job


def test_jobs_of_one_hash_have_one_meaning() -> None:
    auto, paper = (parse_job({"preset": preset}) for preset in (AUTO, PAPER))
    assert auto.hash() != paper.hash()
    spelt = parse_job({**json.loads(auto.model_dump_json()), "preset": PAPER})
    assert spelt.hash() == auto.hash()


def test_paradigms_that_choose_nothing() -> None:
    needs = {"node-dp": {"release": NODES}}
    chosen = {name: keys({"paradigm": name, "data": TABLES, **needs.get(name, {})}) for name in JOBS}
    assert {name for name, found in chosen.items() if not found} == {"node-dp"}
    of_data = {"data.feature_scaling", "train.select_by", "train.class_weights"}
    of_columns = {"model.update", "model.server.dropout", "train.learning_rate", "train.weight_decay"}
    assert chosen["horizontal"] == {*of_data, "model.server.batch_norm", *of_columns}
    assert keys({"paradigm": "horizontal", "data": WORDS}) == {*of_data, "model.server.batch_norm"}
    assert chosen["averaging"] == {*of_data, "averaging.rule.name"}
    for name in ("horizontal", "averaging"):
        assert parse_job({"paradigm": name, "data": WORDS, "preset": AUTO}).data.feature_scaling == "row"
        perturbed = {"paradigm": name, "data": TABLES, "label_privacy": {"epsilon": 1.0}}
        assert "train.class_weights" not in keys(perturbed)
    values = {"paradigm": "horizontal", "data": TABLES, "horizontal": {"task": {"name": "values"}}}
    assert keys(values) == {"data.feature_scaling", "model.server.batch_norm"}
    assert chosen["sealed"] == of_data
    assert keys({"paradigm": "sealed", "data": WORDS}) == {
        "train.class_weights",
        "train.epochs",
        "train.evaluate_every",
    }
    many = {name: {"paradigm": "sealed", "data": {"dataset": name}} for name in ("facebook", "github")}
    assert keys(many["facebook"]) == {"train.class_weights"}
    assert keys(many["github"]) == {"train.class_weights", "train.select_by"}


@nightly
def test_a_users_job_has_auto() -> None:
    code = "import veilgraph as vg; print(vg.Job().preset, vg.Job().model.server.activation)"
    made = run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True)
    assert made.stdout.split() == [AUTO, "relu"]


@pytest.mark.parametrize(
    ("says", "update", "dropout", "rate", "decay"),
    [
        ({"data": {"dataset": "digits"}}, "concat", 0.7, 3e-3, 1e-2),
        ({"data": {"dataset": "digits"}, "label_privacy": {"epsilon": 2.0}}, "concat", 0.7, 3e-3, 5e-4),
        ({"data": {"dataset": "digits"}, "model": {"update": "gated"}}, "gated", 0.7, 3e-3, 1e-2),
        ({"data": {"dataset": "cora"}}, "sum", 0.5, 1e-2, 5e-4),
        ({"data": {"dataset": "digits"}, "preset": "paper"}, "sum", 0.5, 1e-2, 5e-4),
    ],
    ids=["columns", "private labels", "what the job says", "words", "paper"],
)
def test_horizontal_jobs_of_columns_learn_by_settings_of_their_own(
    says: dict[str, Any], update: str, dropout: float, rate: float, decay: float
) -> None:
    found = parse_job({"paradigm": "horizontal", "preset": AUTO, **says}).model_dump()
    model, train = found["model"], found["train"]
    assert (model["update"], model["server"]["dropout"]) == (update, dropout)
    assert (train["learning_rate"], train["weight_decay"]) == (rate, decay)
