"""Whose publications depend on a holder's data: each of them is in that holder's ledger."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.privacy.jobs import make_graphs, private_job, run_job
from veilgraph.core.errors import BudgetSpent
from veilgraph.mpc.ring import MAX_DETECTED_BITS
from veilgraph.paradigms.vertical.settings import plan, vertical
from veilgraph.privacy.accountant import total
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.ledger import Ledger
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.job import JobSettings

NODE = 7
NOISE = 5.0


def private(holders: int, method: str, rounds: int = 1) -> JobSettings:
    return private_job(holders, {"noise_multiplier": NOISE}, initial={"method": method}, rounds=rounds)


def dependent(path: Path, settings: JobSettings, changed: str) -> set[str]:
    """Holders whose first publication, before any noise, is another when one node's features are others at one."""
    graphs = make_graphs(settings, 0)
    features = graphs[changed].features.clone()
    features[NODE] = 0
    others = graphs | {changed: replace(graphs[changed], features=features)}
    runs = [run_job(settings, each, path / name, secrets=0) for name, each in (("as it is", graphs), ("other", others))]
    first = [{holder: rows[0] for holder, rows in run.embeddings.items()} for run in runs]
    return {holder for holder in settings.data.names if not torch.equal(first[0][holder], first[1][holder])}


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", ["individual", "collaborative", "secure-sum"])
@pytest.mark.parametrize("holders", [2, 4])
def test_every_publication_that_depends_on_a_holders_data_is_paid_for_by_it(
    tmp_path: Path, holders: int, method: str
) -> None:
    settings = private(holders, method)
    for changed in settings.data.names[:2]:  # the label holder, and one that is not
        found = plan(settings, changed)
        assert found is not None
        depends = dependent(tmp_path / changed, settings, changed)
        assert changed in depends
        assert len(depends) == 1 + found.others
        each = found.step["embeddings"] + found.step.get("others", 0)
        assert each == len(depends)
        assert found.inference == len(depends)


@pytest.mark.cases(3)
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("method", ["individual", "collaborative", "secure-sum"])
def test_what_a_ledger_counts_is_what_all_holders_published(tmp_path: Path, method: str, rounds: int) -> None:
    """Of its own all, of others what h^0 is in: not the label holder's gradient of z_L."""
    settings = private(3, method, rounds)
    run = run_job(settings, make_graphs(settings, 0), tmp_path, secrets=0)
    published = {
        holder: Counter(embeddings=rounds * 4, gradients=3 * (rounds - 1 + (holder == run.label_party)))
        for holder in run.holders
    }
    for holder in run.holders:
        others = Counter[str]()
        if method != "individual":
            beside = [published[other] for other in run.holders if other != holder]
            others["others"] = sum(each.total() for each in beside) - 3 * (holder != run.label_party)
        assert run.paid[holder] == published[holder] + others
        found = plan(settings, holder)
        assert found is not None
        assert run.paid[holder].total() == found.releases
        assert found.epsilon_total == total({GaussianEvent(NOISE): found.releases}, found.delta)


def test_releases_together_are_paid_for_together_or_not_at_all(tmp_path: Path) -> None:
    event = GaussianEvent(NOISE)
    with Ledger.open(tmp_path / "ledger.jsonl", 1e-5, total({event: 5}, 1e-5), job="j") as ledger:
        ledger.spend(event, "others", 1, 3)
        with pytest.raises(BudgetSpent):
            ledger.spend(event, "others", 2, 3)
        assert ledger.summary()[0].releases == 3
        ledger.spend(event, "others", 2, 2)
        assert ledger.room(event) == 0


def test_features_say_nothing_by_their_fractional_bits(tmp_path: Path) -> None:
    """One value that needs more bits than all others would tell that it is there, without any noise."""
    settings = private(2, "collaborative")
    stated = []
    for value in (0.5, 1 / 1024):
        graphs = make_graphs(settings, 0)
        features = graphs["B"].features.round()
        features[NODE, 0] = value
        run = run_job(
            settings, graphs | {"B": replace(graphs["B"], features=features)}, tmp_path / str(value), secrets=0
        )
        hellos = [message.tensor for message in run.sent if message.sender == "B" and message.tag.kind.name == "HELLO"]
        stated += [Hello.model_validate_json(bytes(each.tolist())).feature_bits for each in hellos]
    assert set(stated) == {MAX_DETECTED_BITS}
    assert vertical(settings).feature_bits == MAX_DETECTED_BITS
    assert vertical(settings.model_copy(update={"privacy": None})).feature_bits is None
