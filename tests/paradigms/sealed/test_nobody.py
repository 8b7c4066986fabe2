"""Jobs of two holders to whom nobody deals: as the twin has them, gone on with after kills, and counted to the byte."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.chance import fixed_chance
from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from tests.faults.host import Host, Order
from tests.faults.kills import Moment, assert_stopped_cleanly, run_and_kill
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.sealed.private import voting
from tests.paradigms.sealed.programs import layers, numbers, saved, scaled, small_graphs, small_job
from tests.roles.federation import Settings
from veilgraph.audit.attack import load_view
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.mpc.sealed.pair_stocks import Passes, Stocks
from veilgraph.paradigms.sealed.roles import SealedDealer
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import chosen_twin
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings, refusal, trust_of
from veilgraph.protocol.messages import rows_of
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import TrainResult, predict, resume, train
from veilgraph.runtime.store.checkpoints import Checkpoints
from veilgraph.runtime.store.run_directory import RunDirectory

NOBODY: Settings = {"trust": "nobody", "timeout_s": 120}
MLP: Settings = {"model": {"blocks": ["own", "each.2"]}, "train": {"batch_size": 3, "epochs": 3}}
JUDGED: Settings = {
    "model": {"network": None, "blocks": ["neighbours", "pooled.2"]},
    "train": {"select_by": "auc", "epochs": 4, "evaluate_every": 2, "learning_rate": 0.25},
}
ROUNDING = 1e-3


@pytest.mark.parametrize(
    ("base", "changes", "key"),
    [
        (3, {}, "trust"),
        (2, {"dealer_checks": 0.5}, "trust"),
        (2, voting(epsilon_total=4), "trust"),
    ],
)
def test_what_needs_a_dealer_is_refused(base: int, changes: Settings, key: str) -> None:
    with refused(ConfigError, key=key, value="nobody"):
        parse_job({**small_job(base).model_dump(mode="json"), **NOBODY, **changes})


def test_who_lacks_the_compiler_reads_so_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = small_job(2, NOBODY)
    monkeypatch.setitem(sys.modules, "numba", None)
    with refused(ConfigError, code="not-installed"):
        train(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "job.yaml").write_text(job.model_dump_json(), encoding="utf-8")
    assert "pip install numba" in one_error(veilgraph("check", tmp_path / "job.yaml"))
    assert not small_job(2).passes.lacks


def test_no_limit_is_needed_where_nobody_knows_all_masks() -> None:
    job = small_job(2, NOBODY)
    assert (job.dealing_party, job.duties.dealing, trust_of(job)) == ("", None, None)
    assert job.computing == job.data.names
    for trust in ("dealer", "majority"):
        limits = LimitSettings(leakage=("predicted-classes",), trust=(trust,))
        assert all(refusal(limits, job, party) is None for party in ("A", "B"))


def test_words_say_that_nobody_deals() -> None:
    job = small_job(2, NOBODY)
    words = paradigm_of(job).words
    assert "Nobody deals" in " ".join(words.describe(job))
    assert words.collusion(job) == (
        "The server learns nothing more with either holder, and no holder anything by itself."
    )
    assert words.server_part(job) == "relays messages; has no data"
    assert {words.part_of(job, party) for party in "AB"} == {"label holder", "holder"}


@pytest.fixture(scope="module", params=[MLP, pytest.param(JUDGED, marks=nightly)], ids=["mlp", "judged"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[SealedJob, TrainResult]:
    folder = tmp_path_factory.mktemp("nobody")
    job = saved(folder / "data", small_job(2, NOBODY, request.param), small_graphs(2))
    with fixed_chance("whole"):
        return job, train(job, folder / "run", record_views=True)


def test_a_run_is_what_the_twin_makes_of_all_data_together(whole: tuple[SealedJob, TrainResult]) -> None:
    job, run = whole
    twin = chosen_twin(job, scaled(job, small_graphs(2)))
    for weight, expected in zip(layers(run.path), numbers(twin), strict=True):
        assert float((weight - expected).abs().max()) < 3e-3
    predicted = twin.predict()
    assert predicted is not None
    assert (run.predictions.classes == predicted[:, 0]).sum() >= len(predicted) - 1
    again = predict(run.path)
    assert (again.classes == predicted[:, 0]).sum() >= len(predicted) - 1


@pytest.mark.parametrize("whole", [MLP], ids=["mlp"], indirect=True)
def test_nothing_is_predicted_without_numba(
    whole: tuple[SealedJob, TrainResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with refused(ConfigError, code="not-installed"):
        predict(whole[1].path)


def test_every_message_has_a_row_and_the_server_gets_none_of_the_program(whole: tuple[SealedJob, TrainResult]) -> None:
    job, run = whole
    seen = set()
    for party in (*job.data.names, SERVER):
        for entry in json.loads((run.path / "parties" / party / "traffic.json").read_text()):
            ends = (party, entry["peer"]) if entry["direction"] == "sent" else (entry["peer"], party)
            assert entry["kind"] in {row.kind.name.lower() for row in rows_of(job, *ends)}, (entry["kind"], *ends)
            seen.add((entry["kind"], *ends))
    server = {kind for kind, *ends in seen if SERVER in ends}
    assert server <= {"hello", "ready", "control", "audit_question", "audit_answer"}
    between = {kind for kind, *ends in seen if SERVER not in ends}
    assert {"correlation", "seed", "mask_share"} <= between
    assert not between & {"masked_wire", "masked_bits", "placement", "masked_rows"}


def test_a_plan_says_what_is_sent(whole: tuple[SealedJob, TrainResult]) -> None:
    job, run = whole
    graphs = {graph.party: graph for graph in scaled(job, small_graphs(2))}
    sizes = {party: size_of(graph, job.inputs) for party, graph in graphs.items()}
    costs = paradigm_of(job).session.costs(job, 30, sizes)
    assert costs is not None
    for party in graphs:
        log = json.loads((run.path / "parties" / party / "traffic.json").read_text())
        counted = {"mask_share", "control", "seed", "correlation"}
        sent = sum(row["bytes"] for row in log if row["direction"] == "sent" and row["kind"] in counted)
        if not job.passes.evaluates:
            assert sent == costs.sent()[party], party
        else:  # what is taken may be cheaper to predict with than the costliest of the trials
            assert 0.9 * costs.sent()[party] < sent <= costs.sent()[party], party


@pytest.mark.parametrize("whole", [MLP], ids=["mlp"], indirect=True)
def test_gone_on_with_it_ends_where_it_would_have_ended(whole: tuple[SealedJob, TrainResult], tmp_path: Path) -> None:
    job, run = whole
    with fixed_chance("resumed"):
        with cut_at(3), pytest.raises(CutError):
            train(job, tmp_path / "cut")
        resumed = resume(tmp_path / "cut")
    assert resumed.summary["started_at"] == 2
    apart = zip(layers(run.path), layers(resumed.path), strict=True)
    assert max(float((one - other).abs().max()) for one, other in apart) < ROUNDING


Forecasts = list[tuple[Stocks, Sequence[int]]]


@pytest.fixture
def forecasts(monkeypatch: pytest.MonkeyPatch) -> Forecasts:
    """Of each machine that two holders run: its stocks, and the columns that it foresaw."""
    found, made = Forecasts(), Stocks.__init__

    def kept(stocks: Stocks, passes: Passes, draw: Callable[..., Tensor], foresee: Callable[[], Sequence[int]]) -> None:
        def keep() -> Sequence[int]:
            found.append((stocks, foresee()))
            return found[-1][1]

        made(stocks, passes, draw, keep)

    monkeypatch.setattr(Stocks, "__init__", kept)
    return found


@pytest.mark.parametrize("whole", [MLP], ids=["mlp"], indirect=True)
def test_a_prediction_and_a_session_that_goes_on_foresee_all_that_they_multiply(
    whole: tuple[SealedJob, TrainResult], forecasts: Forecasts, tmp_path: Path
) -> None:
    job, run = whole
    predict(run.path)
    assert len([multiplied for _, multiplied in forecasts if multiplied]) == 2, "both holders"
    assert all(stocks.asked == multiplied for stocks, multiplied in forecasts if multiplied)
    with cut_at(3), pytest.raises(CutError):
        train(job, tmp_path / "cut")
    forecasts.clear()
    resume(tmp_path / "cut")
    assert len([multiplied for _, multiplied in forecasts if multiplied]) == 2
    assert all(stocks.asked == multiplied for stocks, multiplied in forecasts if multiplied)


@pytest.mark.parametrize("slow", ["A", "B", SERVER])
def test_nobody_is_ahead_of_the_others_by_more_than_a_checkpoint(slow: PartyId, tmp_path: Path) -> None:
    """The server has nothing to do, and no pass needs it; each party keeps two checkpoints."""
    save, apart, parties = Checkpoints.save, list[int](), tmp_path / "run" / "parties"
    job = small_job(2, NOBODY, {"train": {"epochs": 6, "checkpoint_every": 1}})
    job = saved(tmp_path / "data", job, small_graphs(2))

    def late(self: Checkpoints, epoch: int, tensors: Any, facts: Any) -> None:
        if self.path(epoch).parents[1].name == slow:
            time.sleep(0.1)
            found = [int(file.stem.removeprefix("epoch-")) for file in parties.rglob("epoch-*.safetensors")]
            apart.append(max(found, default=0) - epoch)
        save(self, epoch, tensors, facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", late)
        train(job, tmp_path / "run")
    assert len(apart) == 6
    assert max(apart) <= 0, "who has saved one more would lack what the slow party has"


def test_a_server_that_ends_while_it_is_behind_leaves_a_common_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_up = SealedDealer.catch_up

    def ends(self: SealedDealer, epoch: int | None) -> None:
        if epoch == 4:
            time.sleep(1)  # in which holders would make the steps that are left
            raise CutError
        catch_up(self, epoch)

    job = small_job(2, NOBODY, {"train": {"epochs": 8, "checkpoint_every": 1}})
    job = saved(tmp_path / "data", job, small_graphs(2))
    monkeypatch.setattr(SealedDealer, "catch_up", ends)
    with pytest.raises(CutError):
        train(job, tmp_path / "run")
    monkeypatch.undo()
    assert resume(tmp_path / "run").summary["started_at"] == 3


@nightly
@pytest.mark.parametrize("role", ["A", "B", SERVER])
def test_a_party_that_is_killed_ends_all_at_once_and_the_run_goes_on(role: PartyId, tmp_path: Path, host: Host) -> None:
    job = saved(tmp_path / "data", small_job(2, NOBODY, {"train": {"epochs": 20}}), small_graphs(2))
    outcome = run_and_kill(host, Order(job, tmp_path / "run"), role, Moment(write=12))
    assert_stopped_cleanly(outcome, role)
    resumed = host.do(Order(None, tmp_path / "run"))
    assert resumed.error == "", resumed


def of_pair(run: Path, party: PartyId) -> list[Tensor]:
    """What a holder was sent to compute together with the other."""
    view = load_view(RunDirectory.open(run), party)
    return [message.tensor() for message in view.messages if message.tag.kind is Kind.CORRELATION]


@pytest.mark.parametrize("whole", [MLP], ids=["mlp"], indirect=True)
def test_two_runs_of_the_same_data_have_no_message_in_common(
    whole: tuple[SealedJob, TrainResult], tmp_path: Path
) -> None:
    """Keys, masks and seeds are of one session: nothing that was sent before comes again."""
    job, run = whole
    again = train(job, tmp_path / "again", record_views=True)
    for party in "AB":
        one, other = of_pair(run.path, party), of_pair(again.path, party)
        assert [each.shape for each in one[: len(other)]] == [each.shape for each in other]
        assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=False) if a.numel() > 16)
