"""What a run keeps of its canaries: the same in all of its sessions, of fresh coins, and never drawn anew."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tests.errors import refused
from tests.roles.local_parties import local_job, local_parties
from veilgraph.core.errors import RunError
from veilgraph.runtime.session.publishers import with_canaries
from veilgraph.runtime.store.run_directory import PartyStore

COUNT = 30


def test_canaries_are_kept_for_all_sessions_of_a_run(tmp_path: Path) -> None:
    settings = local_job(3, canaries=COUNT)
    graph, store = local_parties(settings)[1], PartyStore(tmp_path)
    assert store.canaries() is None

    def planted(*, begun: bool) -> Tensor:
        made, _ = with_canaries(store, settings, graph, begun=begun)
        kept = store.canaries()
        assert kept is not None
        assert (kept.count, kept.nodes) == (COUNT, graph.common)
        return made.features.to_dense()

    first = planted(begun=False)
    assert int((first != graph.features.to_dense()).any(dim=1).sum()) == COUNT
    content = store.canaries_path.read_bytes()
    assert torch.equal(planted(begun=True), first)
    store.checkpoints.save(1, {}, {"judgement": {}, "stopped": False})
    assert torch.equal(planted(begun=True), first)
    assert store.canaries_path.read_bytes() == content
    for damage in (lambda path: path.write_bytes(content[:40]), Path.unlink):
        damage(store.canaries_path)
        with refused(RunError, key=store.canaries_path):
            planted(begun=True)


def test_a_run_is_not_gone_on_with_over_other_nodes_than_its_canaries_were_drawn_for(tmp_path: Path) -> None:
    """They would be at other nodes, and an audit would hold the run against coins that were never in its data."""
    settings = local_job(3, canaries=COUNT)
    graph, store = local_parties(settings)[1], PartyStore(tmp_path)
    with_canaries(store, settings, graph, begun=False)
    fewer = replace(graph, num_common=graph.common - 1)
    with refused(RunError, key="canaries", value=fewer.common):
        with_canaries(store, settings, fewer, begun=True)


def test_another_run_has_other_coins_in_the_same_places(tmp_path: Path) -> None:
    """Places follow from the job, which is no secret; coins from the operating system's random source."""
    settings = local_job(3, canaries=COUNT)
    graph, made = local_parties(settings)[1], []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(with_canaries(PartyStore(tmp_path / name), settings, graph, begun=False)[0].features.to_dense())
    changed = [(each != graph.features.to_dense()).any(dim=1) for each in made]
    assert torch.equal(*changed)
    assert not torch.equal(*made), "wrong once in 2^30 runs"
