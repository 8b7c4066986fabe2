"""The noised method: what it pays for, when, about whom; what it reads; and what it adds."""

import json
from pathlib import Path

import pytest
import torch
from veilgraph_embeddings import Embeddings, embed
from veilgraph_embeddings.aggregation import Sensitivity, aggregated, first_rows_of
from veilgraph_embeddings.method import Embedded, Tools
from veilgraph_embeddings.methods.noise import Noise, NoiseSettings
from veilgraph_embeddings.release import CHANNEL, Door
from veilgraph_embeddings.world import World

from packages.embeddings.tests.worlds import crossed, job, world
from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import BudgetSpent, ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.ledger import Ledger

SETTINGS = NoiseSettings(name="noise", dim=4, epsilon=3.0, degree_bound=4)


def release(
    folder: Path,
    of: World,
    settings: NoiseSettings = SETTINGS,
    source: SecretSource = system_secrets,
    budget: float | None = None,
) -> Embedded:
    def ledger(delta: float, asked: float) -> Ledger:
        return Ledger.open(folder / "ledger.jsonl", delta, budget or asked, job="0" * 64)

    return Noise.embed(of, settings, Tools(LearningStreams(0, "embed"), Door(ledger, source=source), lambda *_: None))


def test_a_delta_of_one_edge_is_refused(tmp_path: Path) -> None:
    found = world()
    few = NoiseSettings(name="noise", dim=4, epsilon=3.0, degree_bound=4, delta=1 / found.pairs.shape[1])
    assert few.delta is not None
    assert few.delta * found.num_nodes < 1
    with refused(ConfigError, key="method.delta"):
        release(tmp_path, found, few)
    assert not (tmp_path / "ledger.jsonl").exists()
    release(tmp_path, found, few.model_copy(update={"delta": few.delta / 1.01}))


def entries(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def fixed(length: int) -> bytes:
    return bytes(length)


@pytest.fixture(scope="module")
def small() -> World:
    return world(crossed(60))


def test_the_ledger_has_both_units_at_the_noise_over_what_each_moves(tmp_path: Path, small: World) -> None:
    made = release(tmp_path, small)
    found = entries(tmp_path)
    deviation = float(str(made.facts["standard_deviation"]))
    moved = {unit: float(str(made.facts[f"sensitivity_{unit}"])) for unit in ("node", "edge")}
    assert {str(each["channel"]) for each in found} == {CHANNEL}
    assert [each["event"] for each in found] == [
        {
            "kind": "aggregation",
            "noise_multiplier": 2 * deviation / moved[unit],
            "neighbours": "replacement",
            "unit": unit,
        }
        for unit in ("node", "edge")
    ]
    exact = Sensitivity.of(2, 4)
    assert moved == pytest.approx({"node": exact.node, "edge": exact.edge}, rel=1e-3)
    totals = [each.total for each in made.paid]
    assert 0.999 * 3.0 < max(totals) <= 3.0
    event = GaussianEvent(2 * deviation / moved["node"], "replacement", "node")
    assert event.mu(1) == pytest.approx(moved["node"] / deviation)


def test_it_is_paid_for_before_noise_is_drawn(tmp_path: Path, small: World) -> None:
    seen = []

    def source(length: int) -> bytes:
        seen.append(len(entries(tmp_path)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(tmp_path, small, source=source)
    assert seen == [2]


def test_a_release_over_the_budget_is_not_made(tmp_path: Path, small: World) -> None:
    def never(length: int) -> bytes:
        raise AssertionError

    with refused(BudgetSpent, code="budget-spent"):
        release(tmp_path, small, source=never, budget=1.0)


def test_what_is_released_are_the_sums_and_the_noise_that_was_paid_for(tmp_path: Path, small: World) -> None:
    made = release(tmp_path, small, source=fixed_secrets("first"))
    sums = aggregated(first_rows_of(small.features, 4, LearningStreams(0, "embed")), small.pairs, 2, 4)
    added = made.rows.double() - sums
    assert float(added.std()) == pytest.approx(float(str(made.facts["standard_deviation"])), rel=0.2)
    (tmp_path / "again").mkdir()
    again = release(tmp_path / "again", small, source=fixed_secrets("second"))
    assert float((again.rows - made.rows).abs().min()) > 0  # no seed of the job is in it


def test_neither_attribute_is_read(tmp_path: Path, small: World) -> None:
    nobody = torch.ones(small.num_nodes, dtype=torch.bool)
    blind = world(crossed(60), keep=small.keep.without(nobody), hide=small.hide.without(nobody))
    rows = []
    for place, each in enumerate((small, blind)):
        folder = tmp_path / str(place)
        folder.mkdir()
        rows.append(release(folder, each, source=fixed).rows)
    assert torch.equal(*rows)


def test_without_hops_no_edge_is_read_or_paid_for(tmp_path: Path, small: World) -> None:
    made = release(tmp_path, small, SETTINGS.model_copy(update={"hops": 0}))
    assert [each.unit for each in made.paid] == ["node"]


def test_too_many_numbers_for_so_little_epsilon_are_refused(tmp_path: Path, small: World) -> None:
    with refused(ConfigError, key="method.epsilon"):
        release(tmp_path, small, NoiseSettings(name="noise", dim=4096, epsilon=1e-4, delta=1e-9))


def test_a_run_says_what_it_cost_and_publishes_only_that(tmp_path: Path) -> None:
    found = embed(job("noise", name="noised"), crossed(80), tmp_path / "run")
    assert [each["unit"] for each in found.report["ledger"]] == ["node", "edge"]
    card = json.loads((found.path / "publish" / "card.json").read_text(encoding="utf-8"))
    assert card["guarantee"]["epsilon"] == 8.0
    assert "columns_from_edges" not in card, "what they show of an edge is paid for"
    assert len(card["guarantee"]["about"]) == 2
    assert (found.path / "private" / "ledger.jsonl").is_file()
    costs = found.report["facts"]["epsilon_of_node_with_edges"]
    assert 8.0 < costs["1"] < costs["5"] < costs["20"]
    assert Embeddings(found.path).rows.shape == (80, 8)
