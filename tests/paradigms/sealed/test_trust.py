"""Jobs that one of the holders deals for: as the twin has them, gone on with after kills, and what nobody can read."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch import Tensor

import veilgraph as vg
from tests import nightly
from tests.chance import fixed_chance
from tests.errors import refused
from tests.faults.host import Host, Order
from tests.faults.kills import Moment, assert_stopped_cleanly, run_and_kill
from tests.paradigms.apart import apart
from tests.paradigms.cutting import CutError, cut_at, epochs_of
from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.private import voting
from tests.paradigms.sealed.programs import layers, numbers, saved, scaled, small_graphs, small_job, weights
from tests.paradigms.sealed.records import record_job
from tests.roles.federation import Settings, merge
from veilgraph.audit.attack import load_view
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.mpc.sealed.correlations import Stream
from veilgraph.paradigms.sealed.inputs import own_data
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import chosen_twin
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.messages import rows_of
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import LedgerPlace
from veilgraph.runtime.launch.jobs import TrainResult, load_result, predict, resume, train
from veilgraph.runtime.store.checkpoints import Checkpoints
from veilgraph.runtime.store.lifetime import check_limits
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors
from veilgraph.samples.organisations import export_organisations

MAJORITY: Settings = {"trust": "majority"}
MLP: Settings = {"model": {"blocks": ["own", "each.2"]}, "train": {"batch_size": 3, "epochs": 5}}
JUDGED: Settings = {
    "model": {"network": None, "blocks": ["neighbours", "pooled.2"]},
    "train": {"select_by": "auc", "epochs": 12, "evaluate_every": 2, "learning_rate": 0.25},
    **STANDARD,
}
ROUNDING = 1e-3


# Who deals


@pytest.mark.parametrize(
    ("changes", "dealing", "computing"),
    [
        ({}, "C", ("A", "B")),
        ({"data": {"label_holder": "C"}}, "B", ("A", "C")),
        ({"data": {"holders": 4}}, "D", ("A", "B", "C")),
        ({"paradigm": "union"}, "C", ("A", "B")),
        ({"paradigm": "union", "across": "B"}, "B", ("A", "C")),
        ({"paradigm": "union", "data": {"label_holder": "C"}}, "B", ("A", "C")),
    ],
)
def test_the_last_holder_that_does_not_report_deals_or_a_network(
    changes: Settings, dealing: PartyId, computing: tuple[PartyId, ...]
) -> None:
    base: Settings = {"paradigm": "sealed", "data": {"dataset": "synthetic", "holders": 3}}
    for trust, expected in (("majority", dealing), ("dealer", SERVER)):
        job = parse_job(merge(base, changes, {"trust": trust}))
        assert isinstance(job, SealedJob)
        assert (job.dealing_party, job.duties.dealing) == (expected, expected)
        assert job.computing == (computing if trust == "majority" else job.data.names)


@pytest.mark.parametrize("paradigm", ["sealed", "union"])
def test_two_holders_and_checked_dealings_are_refused(paradigm: str) -> None:
    two: Settings = {"paradigm": paradigm, "data": {"dataset": "synthetic", "holders": 2}, **MAJORITY}
    with refused(ConfigError, key="trust", value="majority"):
        parse_job(two)
    if paradigm == "sealed":
        with refused(ConfigError, key="dealer_checks", value=0.5):
            small_job(3, MAJORITY, {"dealer_checks": 0.5})


def test_a_holder_names_whom_it_trusts() -> None:
    dealt, joint = small_job(3), small_job(3, MAJORITY)
    everything = {"leakage": ("predicted-classes",)}
    usual, wide = LimitSettings(**everything), LimitSettings(**everything, trust=("dealer", "majority"))
    strict = LimitSettings(**everything, trust=("majority",))
    for party in "ABC":
        assert [refusal(limits, dealt, party) is None for limits in (usual, wide, strict)] == [True, True, False]
        assert [refusal(limits, joint, party) is None for limits in (usual, wide, strict)] == [False, True, True]
    assert "trust=majority, by which C knows all masks" in (refusal(usual, joint, "A") or "")
    assert refusal(usual, joint, SERVER) is None
    vertical = parse_job({"data": {"dataset": "synthetic", "holders": 3}})
    assert "trust" not in (refusal(strict, vertical, "A") or "")


def test_words_say_who_with_whom_reads_what() -> None:
    for job, pair in ((small_job(3, MAJORITY), False), (small_job(4, MAJORITY), True)):
        words, dealing = paradigm_of(job).words, job.dealing_party
        assert f"{dealing}, which deals, and one other holder together could read everything" in words.collusion(job)
        assert ("A and B together, its edges" in words.collusion(job)) == pair
        assert any(f"{dealing} deals random numbers for A" in sentence for sentence in words.describe(job))
        assert words.part_of(job, dealing) == "holder, and deals random numbers"
        assert "deals" not in words.server_part(job) + words.part_of(job, "A")
    private = small_job(3, MAJORITY, voting(epsilon_total=4))
    guarantee = paradigm_of(private).guarantee
    assert guarantee.threat_model(private) == ("every other holder by itself, not for who works with C, which deals")
    assert any("A and B together read what C has" in line for line in guarantee.privacy_limits(private))


# Whole runs


@pytest.fixture(scope="module", params=[MLP, JUDGED], ids=["mlp", "judged"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[SealedJob, TrainResult]:
    folder = tmp_path_factory.mktemp("majority")
    job = saved(folder / "data", small_job(3, MAJORITY, request.param), small_graphs(3))
    with fixed_chance("whole"):
        return job, train(job, folder / "run", record_views=True)


def test_a_run_is_what_the_twin_makes_of_all_data_together(whole: tuple[SealedJob, TrainResult]) -> None:
    job, run = whole
    twin = chosen_twin(job, scaled(job, small_graphs(3)))
    for weight, expected in zip(layers(run.path), numbers(twin), strict=True):
        assert float((weight - expected).abs().max()) < 3e-3
    predicted = twin.predict()
    assert predicted is not None
    assert (run.predictions.classes == predicted[:, 0]).sum() >= len(predicted) - 1
    again = predict(run.path)
    assert (again.classes == predicted[:, 0]).sum() >= len(predicted) - 1


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
    assert {("correlation", "C", "B"), ("masked_rows", "A", "C"), ("seed", "A", "B"), ("mask_share", "A", "C")} <= seen
    assert not any(kind in ("masked_wire", "masked_bits") and receiver == "C" for kind, _, receiver in seen)


COUNTED = {"masked_wire", "masked_bits", "placement", "masked_rows", "mask_share", "control", "seed", "correlation"}


def test_a_plan_says_what_is_sent(whole: tuple[SealedJob, TrainResult]) -> None:
    job, run = whole
    graphs = {graph.party: graph for graph in scaled(job, small_graphs(3))}
    sizes = {party: size_of(graph, job.inputs) for party, graph in graphs.items()}
    costs = paradigm_of(job).session.costs(job, 30, sizes)
    assert costs is not None
    for party in (*graphs, SERVER):
        log = json.loads((run.path / "parties" / party / "traffic.json").read_text())
        sent = sum(row["bytes"] for row in log if row["direction"] == "sent" and row["kind"] in COUNTED)
        if party == SERVER or not job.passes.evaluates:
            assert sent == costs.sent()[party], party
        else:  # what is taken may be cheaper to predict with than the costliest of the trials
            assert 0.9 * costs.sent()[party] < sent <= costs.sent()[party], party


def test_who_deals_saves_no_shares(whole: tuple[SealedJob, TrainResult]) -> None:
    _, run = whole
    shares = load_tensors(RunDirectory.open(run.path).party("C").model_path)[0]
    assert not any(share.any() for name, share in shares.items() if not name.endswith(".trial"))
    assert any(weight.any() for weight in weights(run.path).values())


@pytest.mark.parametrize("whole", [MLP, pytest.param(JUDGED, marks=nightly)], ids=["mlp", "judged"], indirect=True)
@pytest.mark.parametrize("epoch", [1, 3])
def test_gone_on_with_it_ends_where_it_would_have_ended(
    whole: tuple[SealedJob, TrainResult], tmp_path: Path, epoch: int
) -> None:
    job, run = whole
    with fixed_chance("resumed", epoch):
        with cut_at(epoch), pytest.raises(CutError):
            train(job, tmp_path / "cut")
        resumed = resume(tmp_path / "cut")
    assert resumed.summary["started_at"] == (0 if epoch == 1 else 2)
    apart = zip(layers(run.path), layers(resumed.path), strict=True)
    assert max(float((one - other).abs().max()) for one, other in apart) < ROUNDING


@pytest.mark.parametrize("slow", ["B", "C", SERVER])
def test_nobody_is_ahead_of_the_others_by_more_than_a_checkpoint(slow: PartyId, tmp_path: Path) -> None:
    """Who deals could deal for all that is left, the server has nothing to do, and nobody needs it: all keep two."""
    save, apart = Checkpoints.save, list[int]()
    job = small_job(3, MAJORITY, {"train": {"epochs": 8, "checkpoint_every": 1}})
    job = saved(tmp_path / "data", job, small_graphs(3))

    def late(self: Checkpoints, epoch: int, tensors: Any, facts: Any) -> None:
        if self.path(epoch).parents[1].name == slow:
            time.sleep(0.05)
            others = epochs_of(tmp_path / "run")
            apart.extend(max(others[party], default=0) - epoch for party in others if party != slow)
        save(self, epoch, tensors, facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", late)
        train(job, tmp_path / "run")
    assert len(apart) == 8 * 3
    assert max(apart) <= 0, "who has saved one more would lack what the slow party has"


@pytest.mark.parametrize("role", ["C", pytest.param("B", marks=nightly), pytest.param(SERVER, marks=nightly)])
def test_a_party_that_is_killed_ends_all_at_once_and_the_run_goes_on(role: PartyId, tmp_path: Path, host: Host) -> None:
    job = saved(tmp_path / "data", small_job(3, MAJORITY, {"train": {"epochs": 40}}), small_graphs(3))
    outcome = run_and_kill(host, Order(job, tmp_path / "run"), role, Moment(write=12))
    assert_stopped_cleanly(outcome, role)
    resumed = host.do(Order(None, tmp_path / "run"))
    assert resumed.error == "", resumed
    twin = chosen_twin(job, scaled(job, small_graphs(3)))
    for weight, expected in zip(layers(tmp_path / "run"), numbers(twin), strict=True):
        assert float((weight - expected).abs().max()) < 3e-2


NOISY: dict[str, Callable[[], SealedJob]] = {
    "votes": lambda: small_job(3, MAJORITY, voting(epsilon_total=4), {"train": {"epochs": 2}}),
    "records": lambda: record_job(3, MAJORITY),
}


@pytest.mark.parametrize("name", NOISY)
def test_jobs_with_noise_are_dealt_by_a_holder_too(name: str, tmp_path: Path) -> None:
    graphs = small_graphs(3, nodes=60, training=20)
    run = train(saved(tmp_path / "data", NOISY[name](), graphs), tmp_path / "run")
    for party in "BC":
        lines = (run.path / "parties" / party / "ledger.jsonl").read_text().splitlines()
        assert len(lines) == 2
    again = predict(run.path)
    assert (again.classes == run.predictions.classes).sum() >= 58


def test_organisations_that_accept_it_train_each_at_its_own_site(tmp_path: Path) -> None:
    """The party files of an export accept what its job reveals, and whom it trusts."""
    pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")
    files = export_organisations(
        small_graphs(3, nodes=40), tmp_path / "tables", overlap=1, seed=1, job=small_job(3, MAJORITY)
    )
    job = read_job(tmp_path / "tables" / "network-job.yaml")
    assert isinstance(job, SealedJob)
    runs = apart(tmp_path, files, job)
    assert len(load_result(runs["A"]).predictions.classes) == 40
    strict = yaml.safe_load(files["B"].read_text())
    strict["limits"]["trust"] = ["dealer"]
    files["B"].write_text(yaml.safe_dump(strict))
    with refused(ConfigError, code="refused"):
        apart(tmp_path / "again", files, job)


def test_graphs_and_tables_in_one_place_need_no_leave(tmp_path: Path) -> None:
    """Who runs all parties accepts the job: a ledger's limits are about what jobs cost."""
    limits = LimitSettings(leakage=("predicted-classes",))
    check_limits({"B": LedgerPlace(tmp_path, "B", limits=limits)}, small_job(3, MAJORITY))
    pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")
    rows, brought = np.arange(40), {}
    for party in "ABC":
        nodes = pd.DataFrame({"id": rows, "x": np.sin(rows), "y": np.where(rows % 2, "no", "yes")})
        if party == "A":
            nodes["split"] = np.array(["train", "val", "test"])[rows % 3]
        labelled: dict[str, Any] = {"label": "y", "split": "split"} if party == "A" else {}
        edges = pd.DataFrame({"source": rows[1:], "target": rows[:-1]})
        brought[party] = vg.Tables(nodes if party == "A" else nodes[["id", "x"]], edges, features=["x"], **labelled)
    run = vg.fit(
        {"paradigm": "sealed", **MAJORITY, "train": {"epochs": 3}, "model": {"blocks": ["own"]}},
        brought,
        tmp_path / "run",
    )
    assert len(run.predictions.classes) == 40


# What parties together read


def read(run: Path, together: str, victim: PartyId, shape: tuple[int, ...]) -> Tensor | None:
    """The attack: take what a pooled seed expands to off what the victim put in, wherever it stands in the stream."""
    views = [load_view(RunDirectory.open(run), party) for party in together.split("+")]
    seen = [message for view in views for message in view.messages]
    seeds = [message.tensor() for message in seen if message.tag.kind is Kind.SEED]
    masked = [m for m in seen if (m.sender, m.tag.kind, tuple(m.shape)) == (victim, Kind.MASKED_WIRE, shape)]
    count = 1 << 18
    for message in masked:
        words = message.tensor().reshape(-1)
        for begun in (each for seed in seeds for each in streams_of(seed.numpy().tobytes())):
            (stream,) = begun.draw([((count,), torch.int64)])
            first = np.lib.stride_tricks.sliding_window_view(stream.numpy(), 4)
            found = np.flatnonzero((np.abs(words[:4].numpy() - first) < 1 << 40).all(1))
            for place in found[:1].tolist():
                return (words - stream[place : place + len(words)]).reshape(shape).double()
    return None


def streams_of(seed: bytes) -> list[Stream]:
    """The stream of a seed, and those of the first parts that run side by side: three holders put in their columns."""
    return [Stream(seed), *Stream(seed).fork(3)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs by trust of jobs that put in columns as they are."""
    folder, runs = tmp_path_factory.mktemp("recorded"), {}
    for trust in ("dealer", "majority"):
        job = small_job(3, {"trust": trust, "model": {"network": "linear", "blocks": ["own"]}})
        saved_job = saved(folder / trust, job, small_graphs(3))
        runs[trust] = train(saved_job, folder / f"run {trust}", record_views=True).path
    return runs


@pytest.mark.parametrize(
    ("trust", "together", "reads"),
    [
        ("dealer", "server+A", "B"),
        ("dealer", "server+A", "C"),
        ("dealer", "A+C", ""),
        ("majority", "server+A", ""),
        ("majority", "C", ""),
        ("majority", "A+C", "B"),
    ],
)
def test_who_reads_the_columns_of_another(recorded: dict[str, Path], trust: str, together: str, reads: str) -> None:
    """The server and a holder read all where the server deals, and nothing where C does: it and a holder read all."""
    graphs = {graph.party: graph for graph in small_graphs(3)}
    for victim in reads or set("ABC") - set(together.split("+")):
        columns = own_data(small_job(3, {"model": {"blocks": ["own"]}}), graphs[victim]).columns["own"]
        found = read(recorded[trust], together, victim, tuple(columns.shape))
        if not reads:
            assert found is None
            continue
        assert found is not None
        assert torch.allclose(found * float(columns.abs().max() / found.abs().max()), columns.double(), atol=1e-4)


# Beside it


@pytest.mark.parametrize("paradigm", ["sealed", "union"])
def test_baselines_of_one_holder_have_nobody_to_deal_for(paradigm: str) -> None:
    content: Settings = {
        "paradigm": paradigm,
        "data": {"dataset": "synthetic", "holders": 3},
        "train": {"epochs": 2, "select_by": "last"},
        "model": {"blocks": ["own"]},
    }
    found = []
    for trust in ("dealer", "majority"):
        job = parse_job({**content, "trust": trust})
        inputs = paradigm_of(job).data.load(job)
        baselines = paradigm_of(job).baselines
        home = baselines.alone(inputs, "A", lambda _: None)
        assert home is not None
        found.append((home.output, baselines.pooled(inputs, lambda _: None).output))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
