"""What gets around a budget for life: the same data asked for again and again, and ledgers that are put back.

Each succeeds without the lifetime ledger, or without what keeps it, and is refused or comes to nothing with it.
"""

import itertools
import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from veilgraph_node_dp import publisher as perturbing
from veilgraph_node_dp.publisher import LocalPublisher

import veilgraph.runtime.session.party
from tests import nightly
from tests.attacks.histories import learners, seen, summing
from tests.attacks.machines import Sites, made
from tests.chance import fixed_chance
from tests.errors import refused
from tests.roles.local_parties import local_job
from veilgraph.core.errors import BudgetSpent, RunError
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import load_tensors
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.ledger_files import FILE, Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Aligned
from veilgraph.runtime.session.exchange import PeerHeads
from veilgraph.runtime.session.party import Session
from veilgraph.runtime.session.publishers import LifetimeAccount, publisher_of, with_canaries
from veilgraph.runtime.store.run_directory import PartyStore
from veilgraph.samples.shipped import with_overrides

REPEATS = 100


@pytest.fixture
def fixed(request: pytest.FixtureRequest) -> Iterator[None]:
    """The attacker sees the same noise every time, and other noise in each release."""
    with fixed_chance(request.node.name):
        yield


def releasing(epsilon: float = 1.0, **features: Any) -> JobSettings:
    """A job whose nodes release one value from 0 to 1."""
    return local_job(3, mechanism="laplace", low=0.0, high=1.0, epsilon=epsilon, **features)


@pytest.fixture
def settings() -> JobSettings:
    return releasing()


@pytest.fixture
def graph(settings: JobSettings) -> PartyGraph:
    nodes = 4000
    return PartyGraph("B", torch.zeros(nodes, 1), torch.empty(2, 0, dtype=torch.int64))


def secret_rows(graph: PartyGraph) -> tuple[Tensor, Tensor]:
    """Values that are 1 or 0 by a coin each, which is what their ε is about."""
    torch.manual_seed(1)
    coins = torch.rand(graph.common) < 0.5
    return coins.double()[:, None], coins


def repeats(
    settings: JobSettings,
    graph: PartyGraph,
    rows: Tensor,
    folder: Path,
    ledger: bool,
    *,
    anew: bool = False,
    named: bool = True,
) -> Iterator[Tensor]:
    """What new runs of a job release of the same rows.

    ``anew``: each of a snapshot of its own; ``named``: nodes have ids.
    """
    for repeat in range(REPEATS):
        yield one_release(settings, graph, rows, folder, repeat, ledger, anew, named)


def one_release(
    settings: JobSettings,
    graph: PartyGraph,
    rows: Tensor,
    folder: Path,
    repeat: int,
    ledger: bool,
    anew: bool,
    named: bool,
) -> Tensor:
    ids = [f"c{node}" for node in range(graph.num_nodes)] if named else None
    if anew:
        settings = with_overrides(settings, {"snapshot": f"repeat-{repeat}"})
    lasting = None
    if ledger:
        lasting = LifetimeAccount(Lifetime(folder / "ledger", "B", Budget(1.0, 1e-5), Marks(folder / "marks")), ids)
    store = PartyStore(folder / f"{repeat}")
    store.path.mkdir(parents=True, exist_ok=True)
    with_canaries(store, settings, graph, begun=False)
    with publisher_of(store, settings, graph, 1.0, begun=False, lasting=lasting) as door:
        assert isinstance(door, LocalPublisher)
        return door.features(rows)


def found(released: list[Tensor], coins: Tensor) -> float:
    """AUC with which the coins are told by the mean of all that was released."""
    scores = torch.stack(released).mean(dim=0)[:, 0]
    return float(roc_auc_score(coins.numpy(), scores.numpy()))


@nightly
@pytest.mark.usefixtures("fixed")
def test_without_a_lifetime_ledger_repeats_find_every_row(
    settings: JobSettings, graph: PartyGraph, tmp_path: Path
) -> None:
    rows, coins = secret_rows(graph)
    released = list(repeats(settings, graph, rows, tmp_path, ledger=False))
    assert found(released[:1], coins) < 0.78
    assert found(released, coins) > 0.93


NAMED = pytest.mark.parametrize("named", [True, False], ids=["with ids", "without ids"])


@pytest.mark.cases(1)
@pytest.mark.usefixtures("fixed")
@NAMED
def test_the_same_rows_are_the_same_release_however_often(
    settings: JobSettings, graph: PartyGraph, tmp_path: Path, named: bool
) -> None:
    rows, coins = secret_rows(graph)
    released = list(itertools.islice(repeats(settings, graph, rows, tmp_path, ledger=True, named=named), 50))
    assert all(torch.equal(each, released[0]) for each in released)
    assert found(released, coins) < 0.78


@pytest.mark.usefixtures("fixed")
@NAMED
def test_other_snapshots_of_the_same_nodes_end_at_the_first_release_beyond_the_total(
    settings: JobSettings, graph: PartyGraph, tmp_path: Path, named: bool
) -> None:
    rows, coins = secret_rows(graph)
    asked = repeats(settings, graph, rows, tmp_path, ledger=True, anew=True, named=named)
    released = [next(asked)]
    with refused(BudgetSpent, key="limits.max_epsilon", value=1.0):
        next(asked)
    assert found(released, coins) < 0.78
    ledger = Lifetime(tmp_path / "ledger", "B", Budget(1.0, 1e-5), Marks(tmp_path / "marks"))
    assert ledger.total() == pytest.approx(1.0, rel=1e-8)
    assert ledger.total() <= 1.0 * (1 + 1e-12)


@pytest.mark.cases(1)
@NAMED
@pytest.mark.parametrize("times", [12, pytest.param(REPEATS, marks=nightly)])
def test_separate_processes_end_at_the_first_release_beyond_the_total(
    settings: JobSettings, graph: PartyGraph, tmp_path: Path, named: bool, times: int
) -> None:
    """Each asks once, of other rows; without the ledger all are given, and their mean tells the coins."""
    rows, coins = secret_rows(graph)
    given, refusals = tmp_path / "given", 0
    given.mkdir()
    for first in range(0, times, 2):
        asking = [asked_once(settings, graph, rows, tmp_path, repeat, named) for repeat in (first, first + 1)]
        refusals += sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == _REFUSED for pid in asking)
    (one,) = given.iterdir()
    assert refusals == times - 1
    assert found([torch.from_numpy(np.load(one))], coins) < 0.78
    ledger = Lifetime(tmp_path / "ledger", "B", Budget(1.0, 1e-5), Marks(tmp_path / "marks"))
    assert ledger.total() == pytest.approx(1.0, rel=1e-8)
    assert ledger.total() <= 1.0 * (1 + 1e-12)


_REFUSED = 7


def asked_once(settings: JobSettings, graph: PartyGraph, rows: Tensor, folder: Path, repeat: int, named: bool) -> int:
    """A process that asks once, and keeps what it is given; who it is."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        released = one_release(settings, graph, rows, folder, repeat, ledger=True, anew=True, named=named)
        np.save(folder / "given" / f"{repeat}.npy", released.numpy())
        code = 0
    except BudgetSpent:
        code = _REFUSED
    finally:
        os._exit(code)


@pytest.mark.parametrize("hops", [False, True], ids=["row by row", "as a whole"])
def test_two_jobs_at_one_moment_send_the_same_and_pay_once(
    settings: JobSettings, graph: PartyGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hops: bool
) -> None:
    """The second begins while the first draws its noise: it would keep another draw than the one that is paid for."""
    rows, affordable = secret_rows(graph)[0], dict[str, int | None]()
    summed = summing("edge")

    def release(folder: str) -> Tensor:
        if hops:
            released, room, _ = seen(summed, learners(summed), tmp_path, folder)
            affordable[folder] = room
            return released
        ids = [f"c{node}" for node in range(graph.num_nodes)]
        lasting = LifetimeAccount(Lifetime(tmp_path / "ledger", "B", Budget(1.0, 1e-5), Marks(tmp_path / "marks")), ids)
        store = PartyStore(tmp_path / folder)
        store.path.mkdir(exist_ok=True)
        with publisher_of(store, settings, graph, 1.0, begun=False, lasting=lasting) as door:
            assert isinstance(door, LocalPublisher)
            affordable[folder] = door.room()
            return door.features(rows)

    with ThreadPoolExecutor(1) as other:
        begun: list[Future[Tensor]] = []

        def drawn(length: int) -> bytes:
            if not begun:
                begun.append(other.submit(release, "second"))
                wait(begun, timeout=0.3)
            return system_secrets(length)

        monkeypatch.setattr(perturbing, "system_secrets", drawn)
        first = release("first")
        assert torch.equal(begun[0].result(), first)
    assert torch.equal(release("third"), first), "and what is kept is what was paid for"
    assert affordable.pop("first"), "there was room"
    assert affordable == {"second": None, "third": None}, "and the others knew that it is free for them"


def test_canaries_are_no_way_to_a_second_release_for_nothing(graph: PartyGraph, tmp_path: Path) -> None:
    """A job with canaries makes a release of its own, for which all pay; nobody else is ever sent any of it."""
    plain, audited = (releasing(0.2, canaries=count) for count in (0, 10))
    rows, released = secret_rows(graph)[0], list[Tensor]()
    for repeat, settings in enumerate((plain, audited, audited, plain, plain)):
        released.append(one_release(settings, graph, rows, tmp_path, repeat, True, False, True))
    again = [torch.equal(released[0], each) for each in released]
    assert again == [True, False, False, True, True]
    assert all(bool((one != other).any(dim=1).all()) for one, other in itertools.combinations(released[:3], 2))
    ledger = Lifetime(tmp_path / "ledger", "B", Budget(1.0, 1e-5), Marks(tmp_path / "marks"))
    with ledger.lines.held():
        paid = [len(ledger.lines.cohort(entry.cohort)) for entry in ledger.lines.entries]
    assert paid == [graph.common] * 3


@pytest.mark.cases(1)
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=nightly)])
@NAMED
def test_processes_that_are_killed_have_paid_for_all_that_they_sent(
    settings: JobSettings, graph: PartyGraph, tmp_path: Path, named: bool, kills: int
) -> None:
    """Each releases other rows one after the other, and says which draw went out; it is killed at some moment."""
    rows, small = secret_rows(graph)[0], releasing(0.0005)
    draw, sent = random.Random(f"{kills} {named}"), set[str]()
    for kill in range(kills):
        pid, end = endless(small, graph, rows, tmp_path, 1000 * kill, named)
        with os.fdopen(end, "rb") as said:
            first = said.readline() if kill % 2 else b""  # of half of them surely something went out
            threading.Event().wait(draw.uniform(0.0, 0.05))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            sent |= {line.decode().strip() for line in first.splitlines() + said.read().splitlines() if len(line) >= 32}
    ledger = Lifetime(tmp_path / "ledger", "B", Budget(1.0, 1e-5), Marks(tmp_path / "marks"))
    with ledger.lines.held():
        paid = [entry.content for entry in ledger.lines.entries]
    assert len(sent) >= kills // 2
    assert sent <= set(paid), "every release that was sent is in the ledger"
    assert len(paid) == len(set(paid)) <= len(sent) + kills, "and at most one more for each kill"
    assert ledger.total() <= 1.0 * (1 + 1e-12)


def endless(
    settings: JobSettings, graph: PartyGraph, rows: Tensor, folder: Path, first: int, named: bool
) -> tuple[int, int]:
    """A process that releases until the budget is spent or it is killed: who it is, and where it says what it sent."""
    end, said = os.pipe()
    if pid := os.fork():
        os.close(said)
        return pid, end
    try:
        keys = np.arange(graph.common, dtype=np.uint64)
        ids = [f"c{node}" for node in range(graph.num_nodes)]
        for repeat in itertools.count(first):
            lifetime = Lifetime(folder / "ledger", "B", Budget(1.0, 1e-5), Marks(folder / "marks"))
            if named:
                keys = lifetime.each_key(ids)[: graph.common]
            store = PartyStore(folder / f"{repeat}")
            store.path.mkdir(parents=True, exist_ok=True)
            lasting = LifetimeAccount(lifetime, ids if named else None)
            job = with_overrides(settings, {"snapshot": f"repeat-{repeat}"})
            with publisher_of(store, job, graph, 1.0, begun=False, lasting=lasting) as door:
                assert isinstance(door, LocalPublisher)
                released = door.features(rows)
            path = max((folder / "ledger" / "released").glob("*.safetensors"), key=lambda each: each.stat().st_mtime_ns)
            kept, facts = load_tensors(path)
            if torch.equal(kept["rows"], released[torch.from_numpy(np.argsort(keys))]):
                (batch,) = facts["batches"]
                os.write(said, f"{batch['content']}\n".encode())
    finally:
        os._exit(0)


# Across machines


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """After a training; ``before`` has what was there without it."""
    folder = tmp_path_factory.mktemp("machines")
    sites = made(folder, 20.0)
    shutil.copytree(folder / "data", folder / "fresh")
    sites.session("train")
    shutil.copytree(sites.folder, folder / "trained")
    shutil.copytree(sites.data, folder / "paid")
    anew(sites, "second")
    return sites


@pytest.fixture
def sites(begun: Sites, tmp_path: Path) -> Sites:
    shutil.copytree(begun.folder, tmp_path / "now")
    shutil.copytree(begun.data, tmp_path / "data")
    return Sites(tmp_path / "now", tmp_path / "data", begun.project, begun.identities)


def anew(sites: Sites, name: str = "another") -> None:
    """The same sites with a job of another name, which no run knows, and another snapshot, which is paid for."""
    sites.settings = sites.settings.model_copy(update={"name": name, "snapshot": name})
    sites.session("train")


def forget(sites: Sites, begun: Sites, party: str, *, back: str | None, runs: bool = True) -> None:
    """Whoever has a machine puts back its ledger, its marks, and its runs with all that these have heard."""
    folder = begun.folder.parent
    shutil.rmtree(sites.data / party / "ledger")
    if back is not None:
        shutil.copytree(folder / back / party / "ledger", sites.data / party / "ledger")
    if runs:
        shutil.rmtree(sites.folder / party)
        if back is not None:
            shutil.copytree(folder / "trained" / party, sites.folder / party)


def test_a_job_of_another_name_pays_from_the_same_ledger(sites: Sites) -> None:
    before = count(sites, "B")
    anew(sites)
    assert count(sites, "B") > before


@pytest.mark.parametrize("back", ["paid", None])
def test_a_machine_that_forgets_is_reminded_by_the_others(sites: Sites, begun: Sites, back: str | None) -> None:
    forget(sites, begun, "B", back=back)
    with refused(RunError, code="refused") as told:
        anew(sites)
    assert str(sites.folder.parent) not in str(told.value), "where a party keeps its files is no matter of the others"
    assert not (sites.folder / "A" / "another" / "parties" / "A" / "ledger.jsonl").exists()


@pytest.mark.cases(2)
@pytest.mark.parametrize("back", ["paid", None])
@pytest.mark.parametrize("silent", ["fault_of", "fault_of_memory"])
def test_the_others_notice_without_the_one_who_forgot_and_it_does_without_them(
    sites: Sites, begun: Sites, back: str | None, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever changed its own program is refused all the same; of another ledger it cannot know that it was its own."""
    forget(sites, begun, "B", back=back)
    monkeypatch.setattr(PeerHeads, silent, lambda *_: "")
    if (back, silent) == (None, "fault_of"):
        anew(sites)
        return
    with refused(RunError, code="refused"):
        anew(sites)


def test_without_what_the_others_keep_it_would_go_on(sites: Sites, begun: Sites) -> None:
    forget(sites, begun, "B", back="paid")
    for party in ("A", "server"):
        shutil.rmtree(sites.folder / party / "ledgers" / "heard")
    forgotten = count(begun, "B") - count(sites, "B")
    anew(sites)
    assert forgotten > 0


def test_one_machine_that_remembers_is_enough(sites: Sites, begun: Sites) -> None:
    forget(sites, begun, "B", back="paid")
    shutil.rmtree(sites.folder / "A" / "ledgers" / "heard")
    with refused(RunError, code="refused"):
        anew(sites)


def test_marks_alone_notice_a_ledger_that_is_put_back(sites: Sites, begun: Sites) -> None:
    forget(sites, begun, "B", back="paid", runs=False)
    with refused(RunError, key=sites.data / "B" / "ledger" / FILE):
        anew(sites)


def test_two_copies_that_go_on_by_themselves_are_noticed(sites: Sites, begun: Sites, tmp_path: Path) -> None:
    """A longer copy is another one where its lines are others."""
    aside = {"ledger": sites.data / "B" / "ledger", "runs": sites.folder / "B"}
    for name, path in aside.items():
        shutil.copytree(path, tmp_path / "aside" / name)
    anew(sites)
    for name, path in aside.items():
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "aside" / name, path)
    ledger = Lifetime(sites.data / "B" / "ledger", "B", Budget(), Marks(sites.folder / "B" / "ledgers"))
    for number in range(20):
        charged(ledger, number)
    with refused(RunError, code="refused"):
        anew(sites, "third")


def charged(ledger: Lifetime, number: int) -> None:
    keys = np.arange(3, dtype=np.uint64)
    ledger.charge(GaussianEvent(100.0), "embeddings", 1, keys, delta=1e-5, run="cd" * 32, job=f"job {number}")


def test_what_is_heard_at_the_beginning_of_a_session_that_fails_is_remembered(
    sites: Sites, begun: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B paid in jobs with others; a session with A begins, and ends before anybody says how far ledgers are."""
    ledger = Lifetime(sites.data / "B" / "ledger", "B", Budget(), Marks(sites.folder / "B" / "ledgers"))
    charged(ledger, 0)

    def cut(sitting: Session, aligned: Aligned) -> None:
        raise RunError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(veilgraph.runtime.session.party, "compute", cut)
        with pytest.raises(RunError):
            anew(sites)
    forget(sites, begun, "B", back=None)
    shutil.copytree(begun.folder / "B", sites.folder / "B")
    shutil.copytree(begun.data / "B" / "ledger", sites.data / "B" / "ledger")
    with refused(RunError, code="refused"):
        anew(sites, "third")


def test_of_two_sessions_at_once_neither_takes_the_other_s_news_for_a_rollback_nor_forgets_them(tmp_path: Path) -> None:
    """What B says in one session may be older by the time than what it says in another, which pays in between."""
    own = Lifetime(tmp_path / "ledger", "B", Budget(), Marks(tmp_path / "marks"))
    said = PeerHeads("B", own, None, releases=True)

    def session() -> PeerHeads:
        return PeerHeads("A", None, tmp_path / "of A", releases=True)

    before = said.own()
    session().keep({"B": before})
    one, other = session(), session()
    assert one.heard("B") == other.heard("B") == before, "both look as they begin"
    own.charge(GaussianEvent(1.0), "embeddings", 1, own.keys(["c"]), delta=1e-5, run="0" * 64, job="job")
    after = said.own()
    other.keep({"B": after})
    assert one.fault_of("B", before) == ""
    one.keep({"B": before})
    assert session().heard("B") == after
    assert "older copy" in session().fault_of("B", before), "and in the next session it is one"
    other_ledger = Lifetime(tmp_path / "other", "B", Budget(), Marks(tmp_path / "marks"))
    for _ in range(3):
        other_ledger.charge(GaussianEvent(1.0), "rows", 1, own.keys(["c"]), delta=1e-5, run="0" * 64, job="job")
    session().keep({"B": PeerHeads("B", other_ledger, None, releases=True).own()})
    assert session().heard("B") == after, "nor is it forgotten for another ledger"


def test_other_data_are_let_in_by_the_one_who_heard_of_the_former(sites: Sites, begun: Sites) -> None:
    forget(sites, begun, "B", back=None)
    for party in ("A", "server"):
        (sites.folder / party / "ledgers" / "heard" / "B.json").unlink()
    anew(sites)
    assert count(sites, "B") > 0


def count(sites: Sites, party: str) -> int:
    return len((sites.data / party / "ledger" / FILE).read_bytes().splitlines()) - 1


def test_it_says_nothing_of_who_is_in_it_to_the_others(sites: Sites) -> None:
    """They hear its id, how many lines it has, and a head under a salt that stays at home."""
    heard = (sites.folder / "A" / "ledgers" / "heard" / "B.json").read_text()
    own = (sites.data / "B" / "ledger" / FILE).read_text()
    salt = own.split('"salt": "')[1][:64]
    assert salt not in heard
    assert set(json.loads(heard)) == {"ledger", "lines", "head"}
    assert json.loads(heard)["lines"] == len(own.splitlines())
