"""The same job with the same seed is the same run, whatever carries the messages."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.faults.host import Host, Order
from tests.paradigms.horizontal import SECURE, assert_same
from tests.paradigms.horizontal import job as horizontal_job
from tests.paradigms.local import assert_same as assert_same_local
from tests.paradigms.runs import assert_same_run, model_bytes, saved_job
from tests.paradigms.traces import check_arrows, check_format, trace_of
from tests.roles.federation import OwnModel, Settings, small_job, small_parties
from tests.roles.local_parties import BY_NODE, PRIVATE_LABELS, local_job
from veilgraph.core.types import SERVER
from veilgraph.graph.builtin import synthetic_data
from veilgraph.mpc import ring
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.runtime.launch.jobs import RunOptions, load_result, predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

JOBS: dict[str, Settings] = {
    "collaborative": {},
    "individual, concat": {"model": {"initial": {"method": "individual"}, "combine": {"strategy": "concat"}}},
    "secure-sum, rounds": {
        "model": {"rounds": 2, "initial": {"method": "secure-sum"}, "combine": {"strategy": "degree-weighted"}}
    },
    "float64, lstm": {"precision": "float64", "model": {"local": {"model": "sage-lstm"}}},
    "sparsely evaluated": {"train": {"evaluate_every": 4, "patience": 1, "epochs": 30, "learning_rate": 0.2}},
}


HORIZONTAL: dict[str, Settings] = {"maximum in the clear": {}, "secure maximum": SECURE}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.cases(2)
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_twice_over_memory(tmp_path: Path, job: Settings) -> None:
    settings = saved_job(tmp_path / "data", job, holders=3)
    one, other = train(settings, tmp_path / "one"), train(settings, tmp_path / "other")
    assert_same_run(one, other)
    assert one.summary["sent_bytes"] == other.summary["sent_bytes"]
    ours, theirs = model_bytes(one.path), model_bytes(other.path)
    random = vertical(settings).model.initial.method == "collaborative"
    for party in (*settings.data.names, SERVER):
        assert (ours[party] == theirs[party]) == (party == SERVER or not random), party


def test_shares_are_fresh_in_every_session_and_weights_are_not(tmp_path: Path) -> None:
    settings = saved_job(tmp_path / "data")
    runs = [train(settings, tmp_path / name).path for name in ("one", "other")]
    parts = [load_tensors(RunDirectory.open(run).party("A").model_path)[0] for run in runs]
    assert parts[0].keys() == parts[1].keys()
    for name, tensor in parts[0].items():
        assert torch.equal(tensor, parts[1][name]) != name.startswith("initial.share/"), name
    for share in (parts[0]["initial.share/A"], parts[0]["initial.share/B"]):  # uniform over the whole ring
        assert float((share.double().abs() > 2.0**61).double().mean()) > 0.3


def test_processes_give_what_threads_give(tmp_path: Path, host: Host) -> None:
    settings = saved_job(tmp_path / "data")
    one = train(settings, tmp_path / "threads", profile=True)
    other = train(settings, tmp_path / "processes", options=RunOptions(processes=True), profile=True)
    assert_same_run(one, other)
    check_format(trace_of(other.path))
    check_arrows(trace_of(other.path))  # their clocks agree
    assert one.summary["sent_bytes"] == other.summary["sent_bytes"]
    assert model_bytes(one.path)[SERVER] == model_bytes(other.path)[SERVER]
    ours, theirs = (
        {party: load_tensors(RunDirectory.open(run.path).party(party).model_path) for party in "AB"}
        for run in (one, other)
    )
    for party in "AB":
        assert ours[party][0].keys() == theirs[party][0].keys()
        for name, tensor in ours[party][0].items():
            assert torch.equal(tensor, theirs[party][0][name]) or "share/" in name, name
    files = [
        sorted(str(file.relative_to(run.path)) for file in run.path.rglob("*") if file.is_file())
        for run in (one, other)
    ]
    assert files[0] == files[1]
    assert not [name for name in files[0] if Path(name).name.startswith(".")], "a temporary file was left"
    traffic = [json.loads((run.path / "traffic.json").read_text()) for run in (one, other)]
    assert traffic[0] == traffic[1]

    again = predict(one.path)
    assert torch.equal(again.probabilities, one.predictions.probabilities)
    (other.path / "parties" / "A" / "predictions.safetensors").unlink()
    outcome = host.do(Order(None, other.path, predicts=True))
    assert outcome.error == "", outcome
    assert torch.equal(load_result(other.path).predictions.probabilities, one.predictions.probabilities)


@pytest.mark.cases(1)
@pytest.mark.parametrize("variant", HORIZONTAL.values(), ids=HORIZONTAL.keys())
def test_horizontal_jobs_over_memory_and_over_sockets(tmp_path: Path, variant: Settings) -> None:
    settings = horizontal_job(3, variant, {"train": {"epochs": 3}})
    assert (horizontal(settings).model.message, horizontal(settings).model.aggregate) == ("linear", "max")
    assert horizontal(settings).model.edges == "may-overlap"
    one = train(settings, tmp_path / "one")
    other = train(settings, tmp_path / "other", options=RunOptions(link="sockets"))
    assert_same(one, other)
    assert other.summary["sent_bytes"] == one.summary["sent_bytes"]
    assert model_bytes(other.path) == model_bytes(one.path), "nothing in a model is of the session"
    assert torch.equal(
        predict(other.path, options=RunOptions(link="sockets")).probabilities, one.predictions.probabilities
    )


def test_a_local_job_over_memory_and_over_sockets(tmp_path: Path) -> None:
    """What is learnt hangs on what was released and on nothing else; all go on from one release."""
    settings = local_job(3, PRIVATE_LABELS, {"data": BY_NODE})
    first = train(settings, tmp_path / "first")
    runs = []
    for name in ("memory", "sockets"):
        run = tmp_path / name
        shutil.copytree(first.path, run)
        for done in ("summary.json", "metrics.jsonl", "parties/A/model.safetensors"):
            (run / done).unlink()
        shutil.rmtree(run / "parties" / "A" / "checkpoints")
        runs.append(resume(run, options=RunOptions(link=name)))
    for again in runs:
        assert_same_local(first, again)
        assert model_bytes(again.path) == model_bytes(first.path)
        assert again.summary["sent_bytes"] == runs[0].summary["sent_bytes"]
        ledgers = [(run.path / "parties" / "B" / "ledger.jsonl").read_bytes() for run in (first, again)]
        assert ledgers[0] == ledgers[1]
    over = train(settings, tmp_path / "over", options=RunOptions(link="sockets"))
    assert over.summary["sent_bytes"] == first.summary["sent_bytes"]
    assert torch.equal(
        predict(over.path, options=RunOptions(link="sockets")).probabilities, over.predictions.probabilities
    )


def test_jobs_at_once_in_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Own models draw from the process-wide generator, which all threads share."""
    jobs = {seed: small_job(2, {"seed": seed, "model": {"local": {"model": "custom"}}}) for seed in (1, 2)}
    with ThreadPoolExecutor(2) as pool:
        futures = {
            seed: pool.submit(
                train, settings, tmp_path / f"{seed}", parties=small_parties(2), options=RunOptions(custom=OwnModel)
            )
            for seed, settings in jobs.items()
        }
        together = {seed: future.result() for seed, future in futures.items()}
    for seed, settings in jobs.items():
        alone = train(
            settings, tmp_path / f"{seed} alone", parties=small_parties(2), options=RunOptions(custom=OwnModel)
        )
        assert_same_run(alone, together[seed])


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("method", "layout"),
    [
        ("collaborative", "sparse"),
        ("collaborative", "dense"),
        ("secure-sum", "dense"),
        ("secure-sum", "sparse"),
    ],
)
def test_the_number_of_cores_changes_nothing(
    tmp_path: Path, method: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run cut off on one machine may go on at another."""
    generator = torch.Generator().manual_seed(0)
    runs = []
    data = synthetic_data(1200, 40)
    if layout == "sparse":
        data.x = torch.where(torch.rand(1200, 40, generator=generator) < 0.05, data.x, 0.0)
    settings = small_job(
        2, {"model": {"initial": {"method": method}, "local": {"normalize": False}}, "train": {"epochs": 2}}
    )
    parties = small_parties(2, data=data)
    assert (parties[0].features.layout == torch.sparse_csr) == (layout == "sparse")
    for cores in (1, 3):
        monkeypatch.setattr(ring, "available_cores", lambda cores=cores: cores)
        runs.append(train(settings, tmp_path / f"{cores}", parties=parties))
    assert_same_run(*runs)
