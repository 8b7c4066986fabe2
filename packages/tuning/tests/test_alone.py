"""The label holder alone is tuned by its validation nodes, at home, and nothing of others is needed."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import pytest
import torch
from veilgraph_tuning import alone as module
from veilgraph_tuning import trying, tune_alone
from veilgraph_tuning.space import Options, Space

import veilgraph as vg
from tests import nightly
from tests.cli.commands import veilgraph
from tests.errors import refused
from veilgraph.comparison import study
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import Inputs
from veilgraph.samples.organisations import export_dataset
from veilgraph.samples.shipped import with_overrides

SPACE: Space = {"train.learning_rate": Options((0.3, 1e-6))}


def small(**changes: Any) -> JobSettings:
    content: dict[str, Any] = {
        "name": "small",
        "data": {"dataset": "synthetic"},
        "model": {"dim": 4},
        "train": {"epochs": 3, "patience": None},
    }
    return vg.Job(**{**content, **changes})


def test_each_trial_reaches_what_the_label_holder_reaches_alone(tmp_path: Path) -> None:
    job, shown = small(), list[str]()

    def stage(name: str, epochs: int) -> Any:
        shown.append(name)
        return nullcontext(lambda records: None)

    found = module.tune_alone(job, tmp_path / "out", trials=3, seeds=2, space=SPACE, stage=stage)
    assert set(shown) == {f"A alone, trial {number}" for number in range(3)}
    assert found.best.data == job.data
    for trial in found.trials:
        if trial.ending == "complete":
            for place, reached in enumerate(trial.values):
                settings = with_overrides(job, {**trial.settings, "seed": job.seed + place})
                inputs = paradigm_of(settings).data.load(settings)
                mine = paradigm_of(settings).baselines.alone(inputs, "A", lambda records: None)
                assert mine is not None
                assert mine.summary["val_accuracy"] == reached
    again = module.tune_alone(job, tmp_path / "out", trials=4, seeds=2, space=SPACE)
    assert again.trials[:3] == found.trials
    with refused(RunError, key=PurePath("trials.jsonl")):  # these trials were alone
        trying.tune(job, tmp_path / "out", trials=5, seeds=2, space=SPACE)


def test_neither_test_nodes_nor_others_data_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = module.tune_alone(small(), tmp_path / "first", trials=4, space=SPACE)
    whole = study.inputs_of

    def changed(job: JobSettings, seeds: Sequence[int], party: Path | None) -> Any:
        for seed, inputs in whole(job, seeds, party):
            own, *others = inputs.graphs
            assert own.labels is not None
            assert own.test_mask is not None
            own = replace(own, labels=torch.where(own.test_mask, 1 - own.labels.clamp(max=1), own.labels))
            others = [replace(each, features=torch.zeros(each.num_nodes, 2)) for each in others]
            yield seed, Inputs(inputs.settings, [own, *others])

    monkeypatch.setattr(module, "inputs_of", changed)
    second = module.tune_alone(small(), tmp_path / "second", trials=4, space=SPACE)
    assert [trial.values for trial in first.trials] == [trial.values for trial in second.trials]


def test_at_home_the_label_holders_tables_are_enough(tmp_path: Path) -> None:
    files = export_dataset(DataSettings(dataset="synthetic", holders=2), tmp_path / "tables", overlap=0.9, seed=1)
    job = small(data={"holders": list(files), "label_holder": "A"})
    tunes = partial(tune_alone, job, tmp_path / "out", party=files["A"], trials=2, vary={"model.dim": [4, 8]})
    found = tunes()
    assert tunes() == found
    assert {trial.ending for trial in found.trials} <= {"complete", "pruned"}
    compared = study.compare_job(job, tmp_path / "study", party=files["A"], alone=found.best)
    assert {line.name for line in compared.ways} >= {"A alone", "A alone, own settings"}
    table = next(path for path in files["A"].parent.glob("*.csv") if "edge" not in path.name)
    head, first, *rest = table.read_text(encoding="utf-8").splitlines(keepends=True)
    table.write_text("".join([head, *rest, first.replace(".", "1.", 1)]), encoding="utf-8")
    with refused(RunError, key=PurePath("trials.jsonl")):  # those trials were of other data
        tunes()


def test_jobs_of_holders_with_nodes_of_their_own_are_refused(tmp_path: Path) -> None:
    with refused(ConfigError, key="alone", value="averaging"):
        tune_alone({"paradigm": "averaging", "data": {"dataset": "synthetic"}}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@nightly
def test_the_commands_end_in_a_comparison(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "{data: {dataset: synthetic}, model: {dim: 4}, train: {epochs: 2, patience: null}}", encoding="utf-8"
    )
    out, rate = tmp_path / "tuned", "train.learning_rate=0.3,0.000001"
    tuned = veilgraph("tune", job, "--alone", "--trials", "2", "--vary", rate, "--out", out)
    assert tuned.exit_code == 0, tuned.output
    assert f"veilgraph compare {job} --alone {out / 'best.yaml'}" in tuned.output.replace("\n", "")
    compared = veilgraph("compare", job, "--alone", out / "best.yaml", "--out", tmp_path / "compared")
    assert compared.exit_code == 0, compared.output
    assert "A alone, own settings" in (tmp_path / "compared" / "comparison.json").read_text(encoding="utf-8")
