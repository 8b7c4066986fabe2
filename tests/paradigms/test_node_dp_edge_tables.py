"""Noise on the learner's edges, from organisations' own tables: one ledger over jobs, alignments and orders of rows."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import about
from tests.errors import refused
from tests.paradigms.local import edges
from tests.paradigms.local_tables import COMMON, OWN, party_file, tables
from tests.paradigms.private import kinds_sent, paid, refused_by_all
from veilgraph.core.errors import BudgetSpent, ConfigError
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import all_revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.lifetime import lifetime_of
from veilgraph.samples.shipped import with_overrides

ONE = Counter(sums=1)


def ledger(settings: JobSettings, party: str = "A") -> Lifetime:
    return lifetime_of(Organisation.read(party_file(settings, party), party))


def table(settings: JobSettings, name: str) -> Path:
    return party_file(settings, "A").parent / name


def without_an_edge(settings: JobSettings) -> None:
    """Between two common nodes: of others nothing is summed."""
    header, *rows = table(settings, "edges.csv").read_text(encoding="utf-8").splitlines()
    gone = next(row for row in rows if all(each.startswith("n") for each in row.split(",")))
    table(settings, "edges.csv").write_text("\n".join([header, *(row for row in rows if row != gone)]) + "\n")


def test_the_same_tables_in_another_order_and_job_are_paid_for_once(tmp_path: Path) -> None:
    settings = tables(tmp_path, edges(), max_epsilon=90)
    path = party_file(settings, "A")
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "limits": {**content["limits"], "max_epsilon": 3.2}}))
    first = train(settings, tmp_path / "first").path
    assert "perturbed_features" not in kinds_sent(first, "A")
    for name in ("nodes.csv", "edges.csv"):
        header, *rows = table(settings, name).read_text(encoding="utf-8").splitlines()
        random.Random(7).shuffle(rows)
        table(settings, name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    again = train(with_overrides(settings, {"name": "again", "seed": 9}), tmp_path / "again").path
    assert paid(again, "A") == ONE, "in the ledger of that run"
    assert ledger(settings).total() == pytest.approx(3.0, rel=1e-6)
    assert len({entry.content for entry in ledger(settings).lines.entries if entry.channel == "sums"}) == 1
    without_an_edge(settings)
    train(with_overrides(settings, {"name": "third"}), tmp_path / "third")
    with refused((BudgetSpent, ConfigError), party="A"):
        train(with_overrides(settings, {"name": "fourth", "snapshot": "february"}), tmp_path / "fourth")
    assert ledger(settings).total() == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"max_epsilon": 2.9}, "the job can cost A a total ε of 3"),
        ({"epsilon_unit": "node"}, "limits.epsilon_unit=node and the job's ε is about edge"),
        ({"max_delta": 1e-5}, "limits.max_delta=1e-05 and privacy.delta=0.0001"),
    ],
)
def test_what_the_learner_does_not_accept(tmp_path: Path, limits: dict[str, Any], says: str) -> None:
    settings = tables(tmp_path, edges())
    path = party_file(settings, "A")
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "limits": {**content["limits"], **limits}}))
    with refused(ConfigError, code="refused") as caught:
        train(settings, tmp_path / "run")
    assert says in str(caught.value)


@pytest.mark.parametrize("declares", [False, True])
def test_too_many_neighbours_among_the_common_nodes_end_the_job_before_anything_is_released(
    tmp_path: Path, declares: bool
) -> None:
    made = tables(tmp_path, edges("node-edges"), learner=about.WITH_EDGES)
    settings, path = with_overrides(made, {"privacy.degree_bound": 3}), party_file(made, "A")
    if not declares:
        content = yaml.safe_load(path.read_text()) | {"limits": {"leakage": list(all_revelations())}}
        path.write_text(yaml.safe_dump(content))
    said = "neighbours than limits.most_neighbours" if declares else "more than privacy.degree_bound=3 neighbours"
    refused_by_all(lambda: train(settings, tmp_path / "run"), said)
    for party in "ABC":
        assert not paid(tmp_path / "run", party)


def test_weights_that_hang_on_other_edges_are_refused(tmp_path: Path) -> None:
    settings = tables(tmp_path, edges())
    path = party_file(settings, "A")
    content = yaml.safe_load(path.read_text())
    at = table(settings, "edges.csv")
    header, *rows = at.read_text(encoding="utf-8").splitlines()
    at.write_text("\n".join([f"{header},amount", *(f"{row},2" for row in rows)]) + "\n", encoding="utf-8")
    content["edges"][0] |= {"weight": "amount", "normalize": "mean"}
    path.write_text(yaml.safe_dump(content))
    with refused(ConfigError, code="refused") as caught:
        train(settings, tmp_path / "run")
    assert "ε is of one edge, whose weight must be made of that edge's own row alone" in str(caught.value)


def test_a_delta_of_one_node_in_n_is_refused_by_all_before_anything_is_released(tmp_path: Path) -> None:
    settings = tables(tmp_path, edges(delta=1 / COMMON))
    path = party_file(settings, "A")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"limits": {"leakage": list(all_revelations())}}))
    refused_by_all(lambda: train(settings, tmp_path / "run"), rf"privacy\.delta=.* with {COMMON} common nodes")
    for party in "ABC":
        assert not paid(tmp_path / "run", party)


def test_pairs_with_nodes_that_are_not_common_do_not_count_against_delta(tmp_path: Path) -> None:
    """Nothing is summed over them; they would tell the others of edges that a job has nothing to do with."""
    settings = tables(tmp_path, edges(delta=1 / 300))
    path = party_file(settings, "A")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"limits": {"leakage": list(all_revelations())}}))
    with table(settings, "edges.csv").open("a", encoding="utf-8") as file:
        file.writelines(f"A{own},n{node:02}\n" for own in range(OWN) for node in range(COMMON))
    assert paid(train(settings, tmp_path / "run").path, "A") == ONE
