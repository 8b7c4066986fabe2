"""What a dealer keeps of a session once it has dealt: in memory, and on disk."""

import gc
import weakref
from pathlib import Path

import pytest

from tests.paradigms.sealed.programs import saved, small_graphs, small_job
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.mpc.sealed.correlations import LinkedDealer, Stream
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.session.party import Session
from veilgraph.runtime.session.witness import Evidence


class Dealt:
    """What dealers drew in this process, and whether it is still there when their parties state their records."""

    def __init__(self) -> None:
        self.seeds: list[bytes] = []
        self.streams: list[weakref.ref[Stream]] = []
        self.left: list[int] = []

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        tell, make = Session.tell, LinkedDealer.__init__

        def watched(dealer: LinkedDealer, link: Link, holders: list[PartyId], secrets: SecretSource) -> None:
            def drawn(length: int) -> bytes:
                self.seeds.append(secrets(length))
                return self.seeds[-1]

            make(dealer, link, holders, drawn)
            self.streams += map(weakref.ref, dealer.streams.values())

        def told(session: Session) -> None:
            if session.part.party == self.party:
                gc.collect()
                self.left.append(sum(each() is not None for each in self.streams))
            tell(session)

        patch.setattr(LinkedDealer, "__init__", watched)
        patch.setattr(Session, "tell", told)

    party = SERVER


@pytest.fixture
def dealt(monkeypatch: pytest.MonkeyPatch) -> Dealt:
    found = Dealt()
    found.watch(monkeypatch)
    return found


@pytest.mark.parametrize(("holders", "trust"), [(2, "dealer"), (3, "majority")])
def test_a_dealers_streams_are_gone_before_it_states_that_it_has_ended(
    holders: int, trust: str, dealt: Dealt, tmp_path: Path
) -> None:
    job = saved(tmp_path / "data", small_job(holders, {"trust": trust}), small_graphs(holders))
    dealt.party = job.dealing_party
    run = train(job, tmp_path / "run")
    assert len(dealt.streams) == 3, "one for each holder that computes, one that nobody else has"
    assert dealt.left == [0]
    predict(run.path)
    assert len(dealt.streams) == 6, "each session has its own"
    assert dealt.left == [0, 0]


def test_no_file_of_anybody_has_a_seed_unless_views_or_evidence_are_asked_for(dealt: Dealt, tmp_path: Path) -> None:
    def kept(name: str, **options: object) -> set[str]:
        dealt.seeds.clear()
        job = saved(tmp_path / f"data {name}", small_job(2, {"disputes": name == "disputes"}), small_graphs())
        path = train(job, tmp_path / name, **options).path  # type: ignore[arg-type]
        files = [each for each in path.rglob("*") if each.is_file()]
        assert len(dealt.seeds) == 3
        return {str(each.relative_to(path)) for each in files for seed in dealt.seeds if seed in each.read_bytes()}

    assert kept("plain") == set()
    assert {Path(each).parts[1] for each in kept("views", record_views=True)} == {"A", "B", SERVER}
    assert kept("disputes") == set(), "what its seeds follow from is there instead"
    assert Evidence.read(tmp_path / "disputes" / "parties" / SERVER / "dispute")[0].key
