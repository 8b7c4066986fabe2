"""What the label holder of a sealed job makes of its output, beside what it makes of its own data alone."""

from dataclasses import replace

import numpy as np
import pytest

from tests import nightly
from tests.paradigms.sealed.programs import saved, small_graphs, small_job
from veilgraph.audit.attack import ATTACKS, AuditContext
from veilgraph.audit.audit import AuditPlan, audit, evidence_for
from veilgraph.audit.finding import Outcome
from veilgraph.audit.statistics import measure
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.view import Floats
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory

N = 120
QUICK = ("link-similarity",)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("output")
    job = small_job(2, {"model": {"network": "linear", "blocks": ["pooled.1"]}, "train": {"epochs": 2}})
    path = train(
        saved(folder / "data", job, small_graphs(nodes=N, training=30)), folder / "run", record_views=True
    ).path
    return RunDirectory.open(path)


def beside(run: RunDirectory) -> Evidence:
    (found,) = [each for each in evidence_for(run, "A") if each.sort == "beside"]
    return found


def mounted(run: RunDirectory, rows: Floats, attack: str = "link-similarity") -> Outcome:
    case = AuditContext(run, seed=0, shadows=2)
    return ATTACKS[attack].mount(case.beside_own(replace(beside(run), rows=rows), "A", "B"), case, "A", "B")


def gain(found: Outcome) -> float:
    assert found.without is not None
    return measure(found.scores, found.truth).auc - measure(found.without, found.truth).auc


@nightly
def test_the_output_is_in_the_label_holders_evidence_alone_and_what_it_adds_has_a_figure(run: RunDirectory) -> None:
    sorts = {
        party: {each.sort for each in evidence_for(run, party) if each.permitted} for party in ("server", "A", "B")
    }
    assert sorts == {"server": set(), "A": {"posteriors", "beside"}, "B": set()}
    result = audit(run.path, AuditPlan(("A",), QUICK, limits={"link-similarity": 0.51}))
    with_own = [each for each in result.findings if "its own data" in each.evidence]
    assert [each.attack for each in with_own] == ["link-similarity"]
    for each in with_own:
        assert each.target == "B"
        assert each.gain is not None
        assert each.without is not None
        assert abs(each.value.value - each.without.value - each.gain.value) < 1e-9
    assert with_own[0].passed is False
    silent = [each for each in result.findings if not each.permitted]
    assert len(silent) == 2
    assert all(each.value.low <= 0.55 and each.value.high >= 0.45 for each in silent)


def test_the_own_data_are_features_and_what_a_model_of_them_alone_predicts(run: RunDirectory) -> None:
    case = AuditContext(run, seed=0, shadows=2)
    own, other = case.own_rows("A", "B"), case.own_rows("B", "A")
    assert own is not None
    assert other is not None
    assert [own.shape[1], other.shape[1]] == [case.graph("A").features.shape[1] + 3, case.graph("B").features.shape[1]]
    labels = case.labels("A")[0]
    assert (own[:, -3:].argmax(axis=1) == labels).mean() > 0.5
    for block in (own[:, :-3], own[:, -3:]):
        assert abs((block**2).sum(axis=1).mean() - 1) < 1e-9


def test_an_output_that_tells_edges_is_seen_beside_the_own_data_and_one_that_tells_nothing_adds_nothing(
    run: RunDirectory,
) -> None:
    rows = np.eye(N)
    sources, targets = AuditContext(run, seed=0, shadows=2).graph("B").edge_index.numpy()
    np.add.at(rows, (targets, sources), 1.0)
    assert gain(mounted(run, rows)) > 0.05
    assert abs(gain(mounted(run, np.ones((N, 3))))) < 0.02
    features = AuditContext(run, seed=0, shadows=2).graph("B").features.numpy().astype(np.float64)
    assert gain(mounted(run, features, "attribute")) > 0.05
