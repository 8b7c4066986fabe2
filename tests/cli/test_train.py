import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests import nightly
from tests.cli.commands import one_error, usage_error, veilgraph
from veilgraph.cli.train import show_comparison, show_result
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.jobs import load_result
from veilgraph.runtime.store.results import Comparison
from veilgraph.runtime.store.run_directory import RunDirectory


def interrupted(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


@nightly
def test_training_ends_with_the_result_and_where_it_is(run: Path) -> None:
    result = veilgraph("resume", run)
    assert result.exit_code == 0
    for part in ("best epoch", "test accuracy", "seconds per step", "sent by A", "sent by B", "sent by server"):
        assert part in result.stdout
    assert f"run     {run}\n" in result.stdout
    assert f"curves  {run / 'curves.png'}\n" in result.stdout
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_test_auc_near_one_of_two_classes_is_called_a_likely_leak(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = load_result(run)
    for auc, precision, said in ((0.9949, 0.5, False), (0.995, 0.5, True), (None, None, False), (0.995, None, False)):
        show_result(replace(done, summary={**done.summary, "test_auc": auc, "test_ap": precision}))
        assert ("Likely leak: the test AUC is 0.995 of" in capsys.readouterr().out) == said


@pytest.mark.parametrize(("pooled", "said"), [(0.0, True), (1.0, False)])
def test_a_federation_above_its_pooled_reference_is_explained(
    run: Path, pooled: float, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    done = load_result(run)
    main = RunDirectory.open(run).settings.measures.main.name
    done = replace(done, summary={**done.summary, f"test_{main}": 0.5})
    show_comparison(done, Comparison(done.summary, {}, {**done.summary, f"test_{main}": pooled}))
    assert ("federated is better than pooled, which is the same network" in capsys.readouterr().out) == said


def test_what_is_judged_on_one_holders_nodes_is_not_ranked_with_what_is_on_all(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = load_result(run)
    here = {"A": done.summary, "B": done.summary}
    compared = Comparison(done.summary, here, done.summary, here, judge="A")
    assert list(compared.summaries()) == [
        "A alone",
        "federated, A's nodes",
        "B alone",
        "federated, B's nodes",
        "pooled",
    ]
    show_comparison(done, compared)
    assert "pooled is judged on all holders' nodes" in capsys.readouterr().out


@nightly
def test_settings_can_be_replaced(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = veilgraph(
        "train", job, "--out", out, "--set", "train.epochs=2", "--set", "model.local={model: gcn, hops: 1}"
    )
    assert result.exit_code == 0, result.output
    settings = RunDirectory.open(out).settings
    assert (settings.train.epochs, settings.train.checkpoint_every) == (2, 2)
    assert (vertical(settings).model.local.model, vertical(settings).model.local.hops) == ("gcn", 1)
    assert len((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@nightly
def test_without_out_the_run_is_named_after_job_and_time(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert veilgraph("train", job, "--set", "train.epochs=1").exit_code == 0
    (made,) = (tmp_path / "runs").glob("small-????????-??????")
    assert (made / "summary.json").is_file()


def test_a_profile_is_said_to_be_there(job: Path, run: Path, tmp_path: Path) -> None:
    result = veilgraph("train", job, "--set", "train.epochs=1", "--profile", "--out", tmp_path / "run")
    assert f"trace   {tmp_path / 'run' / 'trace.json'}: " in result.stdout
    assert json.loads((tmp_path / "run" / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert "trace" not in veilgraph("resume", run).stdout


def test_an_interrupt_says_how_to_go_on(job: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "run_threads", interrupted)
    out = tmp_path / "run"
    result = veilgraph("train", job, "--out", out)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == f"veilgraph: stopped; go on with: veilgraph resume {out}"
    monkeypatch.undo()
    assert veilgraph("resume", out).exit_code == 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.ronds=2", "model.ronds is not a setting"),
        ("model.rounds=0", "model.rounds=0"),
        ("model.rounds.more=2", "rounds is not a group of settings"),
        ("privacy.epsilon_total=4", "the job has no privacy: write all of it into the job file"),
        ("data.label_holder=Z", "label_holder='Z' is not one of the holders A, B"),
    ],
)
def test_a_bad_replacement_is_refused_as_in_a_job(job: Path, override: str, message: str) -> None:
    assert message in one_error(veilgraph("train", job, "--set", override))


def test_a_directory_in_use_is_refused(job: Path, run: Path) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    said = one_error(veilgraph("train", job, "--out", run))
    assert "choose another --out or remove it" in said
    assert f"veilgraph resume {run}" in said
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("option", [["--out", "x"], ["--set", "seed=1"], ["job.yaml"]])
def test_a_resumed_run_keeps_its_job_and_directory(run: Path, option: list[str]) -> None:
    assert option[0].removesuffix(".yaml") in usage_error(veilgraph("resume", run, *option))
