"""Tuning: what is chosen follows from validation nodes, seeds and trials alone, in however many sessions."""

import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import pytest
import veilgraph_tuning
from veilgraph_tuning import trying
from veilgraph_tuning.allowed import check_paid, check_space
from veilgraph_tuning.proposing import propose
from veilgraph_tuning.report import failures
from veilgraph_tuning.space import Options, Space, Span, read_choice
from veilgraph_tuning.spaces import space_of
from veilgraph_tuning.trials import Trial
from veilgraph_tuning.trying import Tuning, tune

import veilgraph as vg
from tests.errors import refused
from tests.paradigms.averaging import private_jobs as private_averaging
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.jobs import train
from veilgraph.samples.organisations import export_dataset
from veilgraph.samples.shipped import with_overrides

SPACE: Space = {"train.learning_rate": Span(1e-4, 0.1, log=True), "model.dim": Options((4, 8))}


def small(**train_settings: Any) -> JobSettings:
    return parse_job(
        {
            "name": "small",
            "data": {"dataset": "synthetic"},
            "model": {"dim": 4},
            "train": {"epochs": 3, "patience": None, **train_settings},
        }
    )


def told(found: Tuning) -> list[tuple[object, ...]]:
    return [(trial.number, trial.settings, trial.ending, trial.values, trial.curve) for trial in found.trials]


# Choices


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("a.b=1..3", Span(1, 3, whole=True)),
        ("a.b=0.1..3", Span(0.1, 3)),
        ("a.b = 1e-4..1 log", Span(1e-4, 1, log=True)),
        ("a.b=-2..-1", Span(-2, -1, whole=True)),
        ("a.b=16,32,16", Options((16, 32))),
        ("a.b=relu, tanh", Options(("relu", "tanh"))),
        ("a.b=true,false", Options((True, False))),
    ],
)
def test_choices_are_read(text: str, choice: object) -> None:
    assert read_choice(text) == ("a.b", choice)


@pytest.mark.parametrize(
    "text", ["a", "a=", "=1,2", "a=1", "a=1,1", "a=3..1", "a=0..1 log", "a=x..y", "a=1..inf", "a=1,2 log"]
)
def test_what_is_no_choice_is_refused(text: str) -> None:
    with refused(ConfigError, key="vary", value="a" if text.startswith("a=") and len(text) > 2 else text):
        read_choice(text)


def test_every_paradigms_own_space_is_of_settings_that_its_jobs_have() -> None:
    for name in PARADIGMS:
        job = parse_job({"paradigm": name, "data": {"dataset": "digits"}} | NEEDS.get(name, {}))
        check_space(job, space_of(job))


NEEDS: dict[str, dict[str, Any]] = {"node-dp": {"release": {"features": {"mechanism": "multi-bit", "epsilon": 1}}}}


def test_what_is_learnt_from_is_not_varied(tmp_path: Path) -> None:
    with refused(ConfigError, key="vary", value="data.holders"):
        tune(small(), tmp_path / "out", space={"data.holders": Options((2, 3))})
    with refused(ConfigError, key="model.dim", value=0):
        tune(small(), tmp_path / "out", space={"model.dim": Span(0, 8, whole=True)})
    assert not (tmp_path / "out").exists()


# Trials


def test_cut_off_and_continued_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tune(small(), tmp_path / "whole", trials=5, space=SPACE)
    calls = 0

    def cut(*arguments: Any, **named: Any) -> jobs.TrainResult:
        nonlocal calls
        calls += 1
        result = train(*arguments, **named)
        if calls == 3:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(trying, "train", cut)
    with pytest.raises(KeyboardInterrupt):
        tune(small(), tmp_path / "parts", trials=5, space=SPACE)
    (tmp_path / "parts" / "run").mkdir()  # what a killed one leaves
    assert told(tune(small(), tmp_path / "parts", trials=4, space=SPACE)) == told(whole)[:4]
    assert told(tune(small(), tmp_path / "parts", trials=5, space=SPACE)) == told(whole)
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"best.yaml", "trials.jsonl"}


def test_the_first_trial_is_the_job_and_the_best_is_what_its_job_reaches(tmp_path: Path) -> None:
    job = small()
    found = tune(job, tmp_path / "out", trials=4, seeds=2, space=SPACE)
    first, best = found.trials[0], found.ranked()[0]
    assert first.settings == {}
    assert best.value == max(trial.value for trial in found.trials if trial.ending == "complete") >= first.value
    for trial, settings in ((first, job), (best, found.best)):
        reached = [
            train(with_overrides(settings, {"seed": seed}), tmp_path / f"{trial.number}-{seed}").summary["val_accuracy"]
            for seed in (0, 1)
        ]
        assert list(trial.values) == reached
    assert read_job(tmp_path / "out" / "best.yaml") == found.best == with_overrides(job, best.settings)


def test_from_python_as_from_the_command_line(tmp_path: Path) -> None:
    found = veilgraph_tuning.tune(
        small().model_dump(mode="json"),
        tmp_path / "out",
        trials=3,
        vary={"train.learning_rate": "1e-4..0.1 log", "model.dim": [4, 8]},
    )
    assert found.space == SPACE
    assert found.best == vg.read_job(tmp_path / "out" / "best.yaml")


def test_a_smaller_loss_is_better(tmp_path: Path) -> None:
    found = tune(small(select_by="loss"), tmp_path / "out", trials=3, space=SPACE)
    result = train(small(select_by="loss"), tmp_path / "run")
    losses = {record["epoch"]: record["val_loss"] for record in result.metrics}
    assert found.trials[0].values == (-losses[result.summary["best_epoch"]],)
    assert found.trials[0].value == -min(losses.values())


def test_a_trial_that_cannot_be_is_told_of_and_the_others_go_on(tmp_path: Path) -> None:
    found = tune(small(), tmp_path / "out", trials=6, space={"train.learning_rate": Options((1e30, 0.01))})
    ends = {trial.settings.get("train.learning_rate", 0.01): (trial.ending, bool(trial.why)) for trial in found.trials}
    assert ends == {1e30: ("failed", True), 0.01: ("complete", False)}


def trial(number: int, rate: float, value: float, curve: dict[int, float] | None = None) -> Trial:
    return Trial(number, {"train.learning_rate": rate, "model.dim": 8}, "complete", (value,), curve or {})


def test_trials_follow_those_that_reached_most() -> None:
    """After thirty whose best are at one end, most proposals are there; from the same trials the same."""
    before = [trial(number, 10 ** -(1 + number / 10), number / 30) for number in range(30)]
    proposed = [propose(SPACE, before, seed, 10).settings for seed in range(20)]
    assert sum(float(each["train.learning_rate"]) < 10**-2.5 for each in proposed) >= 14
    assert proposed == [propose(SPACE, before, seed, 10).settings for seed in range(20)]
    assert propose(SPACE, before[:29], 0, 10).settings != proposed[0]


def test_a_trial_below_the_median_is_given_up() -> None:
    before = [
        trial(number, 0.01, 0.8, {epoch: epoch / 10 + number / 100 for epoch in range(1, 9)}) for number in range(5)
    ]
    proposal = propose(SPACE, before, 0, 8)
    assert [proposal.falls_behind(epoch, 0.0) for epoch in (1, 2, 3)] == [False, True, True]
    ahead = propose(SPACE, before, 0, 8)
    assert not any(ahead.falls_behind(epoch, epoch / 10 + 0.03) for epoch in range(1, 9))


def test_another_job_or_another_directory_is_refused(tmp_path: Path) -> None:
    tune(small(), tmp_path / "out", trials=1, space=SPACE)
    for job, seeds in ((small(epochs=4), 1), (small(), 2)):
        with refused(RunError, key=PurePath("trials.jsonl")):
            tune(job, tmp_path / "out", trials=2, seeds=seeds, space=SPACE)
    path = tmp_path / "out" / "trials.jsonl"
    for text in ("", "nonsense\n", json.dumps({"job": 1}) + "\n[1]\n"):
        path.write_text(text, encoding="utf-8")
        with refused(RunError, key=PurePath("trials.jsonl")):
            tune(small(), tmp_path / "out", trials=2, space=SPACE)
        assert path.read_text(encoding="utf-8") == text
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with refused(RunError, key=PurePath("other")):
        tune(small(), tmp_path / "other", trials=1, space=SPACE)


# Tables


@pytest.fixture
def tables(tmp_path: Path) -> Callable[..., JobSettings]:
    files = export_dataset(DataSettings(dataset="synthetic", holders=2), tmp_path / "tables", overlap=0.9, seed=1)
    data = {"parties": {name: str(path) for name, path in files.items()}, "label_holder": "A"}

    def job(**settings: Any) -> JobSettings:
        return parse_job(
            {"name": "tables", "data": data, "model": {"dim": 4}, "train": {"epochs": 2, "patience": None}} | settings
        )

    return job


def test_tables_are_aligned_once_and_no_trial_is_beyond_their_limits(
    tables: Callable[..., JobSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aligned = list[Path]()

    def align(job: JobSettings, out: Path, **named: Any) -> object:
        aligned.append(out)
        return jobs.align(job, out, **named)

    monkeypatch.setattr(trying, "align", align)
    job = tables()
    found = tune(job, tmp_path / "out", trials=4, space={"model.rounds": Options((1, 2))})
    ends = {trial.settings.get("model.rounds", 1): trial.ending for trial in found.trials}
    assert len(aligned) == 1
    assert ends == {1: "complete", 2: "failed"}  # party files accept one round
    ((why, numbers),) = failures(found).items()
    assert "model.rounds" in why
    assert numbers == [trial.number for trial in found.trials if trial.settings.get("model.rounds") == 2]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"best.yaml", "trials.jsonl"}


def test_nobodys_own_data_are_published_in_every_trial(tables: Callable[..., JobSettings], tmp_path: Path) -> None:
    job = tables(label_privacy={"epsilon": 1.0}, train={"select_by": "last", "patience": None})
    with refused(ConfigError, key="tune"):
        tune(job, tmp_path / "out", trials=2, space=SPACE)
    assert not (tmp_path / "out").exists()


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"paradigm": "node-dp", "release": {"features": {"mechanism": "multi-bit", "epsilon": 1.0}}},
        private_averaging.BASE,
    ],
    ids=["node-dp", "gradients"],
)
def test_nor_anything_else_that_has_noise(settings: dict[str, Any]) -> None:
    """Of each trial's new noise the mean of all trials has the less."""
    own = {"data": {"parties": {name: f"{name}.yaml" for name in "ABC"}, "label_holder": "A"}}
    with refused(ConfigError, key="tune"):
        check_paid(parse_job(settings | own), [])
