"""Every door through which data are published with noise pays for life: however often it is asked, the total stays."""

import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from veilgraph_tuning import Tuning, tune

import veilgraph as vg
from tests import about, nightly
from tests.cli.commands import usage_error
from tests.cli.commands import veilgraph as command
from tests.errors import refused
from tests.faults.runs import table_job
from tests.paradigms.graph_ledgers import (
    IDS,
    JOB,
    NODES,
    QUICK,
    QUIET,
    anew,
    frames,
    graphs,
    job,
    ledger,
    limited,
    saved,
)
from tests.paradigms.private import LABEL_HOLDER, OTHER
from veilgraph.core.errors import ConfigError, VeilgraphError
from veilgraph.core.tensor_file import load_tensors
from veilgraph.graph.party import save_party
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.inputs import gather_inputs, holders_with_ledger

TIMES = 4
BY_ACCURACY: dict[str, Any] = {"train": {"epochs": 2, "patience": None, "select_by": "accuracy"}}
RANGES: dict[str, Any] = {"release.features.high": [20.0 + number / 100 for number in range(TIMES)]}
"""What was released with one is of no use for another."""


def times(ask: Callable[[int], object]) -> int:
    """How many of so many are not refused."""
    done = 0
    for number in range(TIMES):
        with suppress(VeilgraphError):
            ask(number)
            done += 1
    return done


def tuned(out: Path, parties: Any, of: Mapping[str, Any] = JOB, **options: Any) -> Tuning:
    return tune({**of, **BY_ACCURACY}, out, parties=parties, **options)


# Tuning


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["memory", "saved", "tables"])
def test_ten_trials_pay_as_ten_jobs(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "shop"
    holder = "shop" if kind == "tables" else OTHER
    brought: Any = {"memory": graphs, "saved": lambda: saved(tmp_path / "data", None), "tables": frames}[kind]()
    if kind == "saved":
        folder = tmp_path / "data" / "ledger" / OTHER
    limited(folder, max_epsilon=1.0)
    named: Any = {} if kind == "saved" else {"ledgers": {holder: folder}}
    found = tuned(tmp_path / "out", brought, trials=TIMES, vary=RANGES, **named)
    endings = {trial.settings.get("release.features.high", 20.0): trial.ending for trial in found.trials}
    assert endings.pop(20.0) == "complete"
    assert endings
    assert set(endings.values()) == {"failed"}
    assert ledger(folder, holder).total() == pytest.approx(1.0, rel=1e-8)


def test_without_a_ledger_no_trial_publishes(tmp_path: Path) -> None:
    with refused(ConfigError, code="not-paid", key="tune", party=OTHER):
        tuned(tmp_path / "out", graphs(), vary=RANGES)
    with refused(ConfigError, code="not-paid", key="tune", party=OTHER):
        tuned(tmp_path / "out", graphs(), vary=RANGES, ledgers={"A": tmp_path / "a"})
    assert not (tmp_path / "out").exists()


def test_who_may_choose_no_epoch_may_choose_no_settings(tmp_path: Path) -> None:
    """The best of several trials tells what ``select_by: last`` is to keep; so of a trial that varies it."""
    named = {OTHER: tmp_path / "b"}
    with refused(ConfigError, code="not-to-be-chosen", key="tune"):
        tune(JOB, tmp_path / "out", parties=graphs(), ledgers=named, vary=RANGES)
    quick = {**JOB, "train": {"epochs": 2, "patience": None}}
    choice = {"train.select_by": ["accuracy", "last"]}
    found = tune(quick, tmp_path / "out", parties=graphs(), ledgers=named, vary=choice, trials=5)
    endings = {trial.settings.get("train.select_by", "accuracy"): trial.ending for trial in found.trials}
    assert endings == {"accuracy": "complete", "last": "failed"}


def test_a_tuning_is_within_a_ledger_s_limits_and_names_as_a_training_does(tmp_path: Path) -> None:
    limited(tmp_path / "b", max_epsilon=1.0)
    rate = {"train.learning_rate": [0.01, 0.1]}
    with refused(ConfigError, code="refused", party=OTHER):
        tuned(tmp_path / "out", graphs(), QUIET, ledgers={OTHER: tmp_path / "b"}, vary=rate)
    with refused(ConfigError, key="ledgers", value="C"):
        tuned(tmp_path / "out", graphs(), ledgers={"C": tmp_path / "b"}, vary=rate)
    with refused(ConfigError, key="ledgers", value=["A"]):
        tune({**QUICK, "data": {"dataset": "synthetic"}}, tmp_path / "out", ledgers={"A": "a"}, vary=rate)
    assert not (tmp_path / "out").exists()


def test_who_has_a_party_file_has_a_ledger_for_life(tmp_path: Path) -> None:
    """And is tuned as one whose is named."""
    parties = table_job(tmp_path / "data").data.parties or {}
    data = {"parties": {name: str(path) for name, path in parties.items()}, "label_holder": LABEL_HOLDER}
    settings = parse_job({**JOB, **BY_ACCURACY, "data": data})
    for path in (settings.data.parties or {}).values():
        said = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**said, "limits": {**about.NODES, "max_epsilon": 2.0}}))
    found = gather_inputs(settings, None, None, tmp_path / "x")
    assert holders_with_ledger(found, None) == list(settings.data.names)
    assert not found.passing
    given = gather_inputs(vg.Job(**{**JOB, "data": {"holders": ["bank", "shop"]}}), frames(), None, tmp_path / "x")
    assert holders_with_ledger(given, None) == []
    assert holders_with_ledger(given, {"shop": "s"}) == ["shop"]


# The estimator


def test_ten_fits_of_the_estimator_pay_as_ten_jobs(tmp_path: Path) -> None:
    ledgers: Any = {OTHER: {"folder": tmp_path / "b", **about.NODES, "max_epsilon": 1.0}}

    def ask(number: int) -> None:
        made = vg.FederatedNodeClassifier(
            anew(number), out=tmp_path / str(number), ids={OTHER: IDS}, ledgers=ledgers
        ).fit(graphs())
        made.predict()

    assert times(ask) == 1
    assert ledger(tmp_path / "b").nodes == NODES
    assert ledger(tmp_path / "b").total() == pytest.approx(1.0, rel=1e-8)


# The command line


def test_ten_trainings_from_the_command_line_pay_from_the_ledger_that_is_named(tmp_path: Path) -> None:
    path, folder = tmp_path / "job.yaml", tmp_path / "b"
    path.write_text(yaml.safe_dump(job(tmp_path / "data").model_dump(mode="json")))
    limited(folder, max_epsilon=1.0)

    def asked(number: int) -> bool:
        rows = ("--set", f"release.features.high={20 + number / 100}", "--set", f"name=n{number}")
        named = ("--out", tmp_path / str(number), "--ledger", f"{OTHER}={folder}")
        return command("train", path, *rows, *named).exit_code == 0

    assert [asked(number) for number in range(TIMES)] == [True] + [False] * (TIMES - 1)
    assert ledger(folder).total() == pytest.approx(1.0, rel=1e-8)
    assert not (tmp_path / "data" / "ledger" / OTHER).exists()


@pytest.mark.parametrize("said", [["B"], ["=b"], ["B="], ["B=b", "B=c"]])
def test_what_names_no_ledger_is_a_wrong_call(tmp_path: Path, said: list[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("{}")
    options = [word for each in said for word in ("--ledger", each)]
    assert "--ledger" in usage_error(command("train", path, "--out", tmp_path / "run", *options))


# What goes on with a run, and what evades a ledger that is there


def test_ten_folders_named_in_place_of_a_graph_s_own_are_refused(tmp_path: Path) -> None:
    files = saved(tmp_path / "data", IDS)
    own = tmp_path / "data" / "ledger" / OTHER
    limited(own, max_epsilon=1.0)
    asked: list[Any] = [{OTHER: tmp_path / f"ledger {number}"} for number in range(TIMES)]
    assert times(lambda number: vg.fit(anew(number), files, tmp_path / str(number), ledgers=asked[number])) == 0
    with refused(ConfigError, code="another-ledger", key=f"ledgers.{OTHER}"):
        vg.fit(QUIET, files, tmp_path / "quiet", ledgers=asked[0])
    vg.fit(JOB, files, tmp_path / "its own", ledgers={OTHER: own})
    assert ledger(own).total() == pytest.approx(1.0, rel=1e-8)
    own.rename(tmp_path / "moved")
    limited(tmp_path / "moved", max_epsilon=1.0)
    with suppress(VeilgraphError):
        vg.fit(anew(1), files, tmp_path / "after", ledgers={OTHER: tmp_path / "moved"})
    assert ledger(tmp_path / "moved").total() == pytest.approx(1.0, rel=1e-8)


def test_two_graphs_saved_under_one_name_are_told_apart_by_one_ledger_that_is_named(tmp_path: Path) -> None:
    """One's own, beside it, is the other's there."""
    for name, graph in graphs().items():
        save_party(replace(graph, party="same"), tmp_path / f"{name}.safetensors")
    files = {name: tmp_path / f"{name}.safetensors" for name in "AB"}
    limited(tmp_path / "ledger" / "same", max_epsilon=3.0)
    for number in range(2):
        vg.fit(JOB, files, tmp_path / str(number), ledgers={OTHER: tmp_path / "of B"})
    assert ledger(tmp_path / "of B").total() == pytest.approx(1.0, rel=1e-8)


@nightly
def test_tables_that_are_aligned_first_keep_the_ledger_that_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "veilgraph"):
        jobs.align(vg.Job(**{**JOB, "data": {"holders": ["bank", "shop"]}}), tmp_path / "x", parties=frames())
    assert [record for record in caplog.records if record.message.startswith("shop: ")]

    def ask(number: int) -> None:
        of = vg.Job(**{**anew(number), "data": {"holders": ["bank", "shop"]}})
        out = tmp_path / str(number)
        jobs.align(of, out, parties=frames(), ledgers={"shop": tmp_path / "shop"})
        assert jobs.resume(out).summary["privacy"]["shop"]["lasting"] is True

    assert times(ask) == 1
    assert ledger(tmp_path / "shop", "shop").total() == pytest.approx(1.0, rel=1e-8)


def test_ten_copies_of_a_run_that_is_not_trained_yet_pay_once(tmp_path: Path) -> None:
    out = tmp_path / "aligned"
    of = vg.Job(**{**JOB, "data": {"holders": ["bank", "shop"]}})
    jobs.align(of, out, parties=frames(), ledgers={"shop": tmp_path / "shop"})
    released = []

    def ask(number: int) -> None:
        copy = shutil.copytree(out, tmp_path / str(number))
        jobs.resume(copy)
        released.append(load_tensors(copy / "parties" / "bank" / "release.safetensors")[0]["features/shop"])

    assert times(ask) == TIMES
    assert all((each == released[0]).all() for each in released)
    assert ledger(tmp_path / "shop", "shop").total() == pytest.approx(1.0, rel=1e-8)
