"""Embeddings of a party file's tables, and the ledger of all that was ever released of these.

Asked for again and again the noise averages away. With that ledger the same embeddings are the same bytes, and others
end at the first release beyond the total.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import veilgraph_embeddings
import yaml
from sklearn.metrics import roc_auc_score
from torch import Tensor
from veilgraph_embeddings import making
from veilgraph_embeddings.aggregation import Sensitivity, aggregated
from veilgraph_embeddings.limits import lifetime_of_job
from veilgraph_embeddings.method import Tools
from veilgraph_embeddings.methods.plain import AutoencoderSettings
from veilgraph_embeddings.settings import EmbedJob, parse_embed_job
from veilgraph_embeddings.sources import world_of

from packages.embeddings.tests.worlds import QUICK
from tests import about
from tests.cli.commands import veilgraph as command
from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import BudgetSpent, ConfigError, RunError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import load_tensors, save_tensors
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.privacy.event import AggregationEvent, Event, GaussianEvent, Scope, Unit
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.protocol.plain_fitting import LedgerPlace
from veilgraph.runtime.store.lifetime import LIMITS_FILE, lifetime_at

NODES, REPEATS = 60, 40
COINS = torch.rand(NODES, generator=torch.Generator().manual_seed(1)) < 0.5
Changes = dict[str, Any]


@pytest.fixture(autouse=True)
def _plain_ones_are_trained_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report compares with them, which is not what is tested here."""
    monkeypatch.setattr(making, "plain_of", lambda method: AutoencoderSettings(name="plain", dim=method.dim, epochs=2))


@pytest.fixture
def party(tmp_path: Path) -> Path:
    """A shop whose only feature is 1 or -1 by a coin for each customer; the ids are not in order."""
    write(tmp_path, range(NODES))
    return limited(tmp_path / "party.yaml", max_epsilon=4.0)


def write(folder: Path, order: range, coins: Tensor = COINS) -> None:
    rows = [
        f"c{7 * place % NODES},{1 if coins[place] else -1},{'fm'[place % 2]},{'ab'[place // 30]}" for place in order
    ]
    (folder / "nodes.csv").write_text("\n".join(["id,coin,sex,group", *rows]), encoding="utf-8")
    edges = [f"c{place},c{(place * 7 + 3) % NODES}" for place in order]
    (folder / "edges.csv").write_text("\n".join(["a,b", *edges]), encoding="utf-8")


def limited(path: Path, **limits: Any) -> Path:
    settings = {
        "party": "shop",
        "nodes": {"file": "nodes.csv", "id": "id", "features": [{"columns": "coin"}]},
        "edges": [{"file": "edges.csv", "source": "a", "target": "b"}],
        "limits": {**({**about.NODES, "most_neighbours": NODES} if "max_epsilon" in limits else {}), **limits},
    }
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def job(party: Path, method: Changes | str | None = None, **changes: Any) -> EmbedJob:
    noise = {"name": "noise", "epsilon": 4.0, "dim": 4, **(method if isinstance(method, dict) else {})}
    return parse_embed_job(
        {
            "data": {"party": str(party)},
            "keep": "group",
            "hide": "sex",
            "method": method if isinstance(method, str) else noise,
            "evaluation": {"families": ["logistic"]},
            **changes,
        }
    )


def released(
    of: EmbedJob, folder: Path, *, lifetime: bool = True, source: Callable[[int], bytes] | None = None
) -> Tensor:
    """What a run of a job would publish, without the report; noise is fixed, and another in each folder."""
    folder.mkdir(parents=True, exist_ok=True)
    source = source or fixed_secrets("embeddings", folder.name)
    ledger, found = lifetime_of_job(of) if lifetime else None, world_of(of)
    tools = Tools(LearningStreams(of.seed, "embed"), making.door_of(of, found, folder, ledger, source), lambda *_: None)
    held = making.held_out(of, found)
    return of.method.kind.embed(making.given(found, held), of.method, tools).rows


def ledger_of(party: Path) -> Lifetime:
    found = lifetime_of_job(job(party))
    assert found is not None
    return found


def events(party: Path) -> list[Event]:
    ledger = ledger_of(party)
    with ledger.lines.held():
        return [entry.event for entry in ledger.lines.entries for _ in range(entry.count)]


def never(length: int) -> bytes:
    raise AssertionError


def repeats(of: Callable[[int], EmbedJob], folder: Path, *, lifetime: bool) -> Iterator[Tensor]:
    for repeat in range(REPEATS):
        yield released(of(repeat), folder / str(repeat), lifetime=lifetime)


def told(rows: list[Tensor], ids: tuple[str, ...]) -> float:
    """AUC of telling coins by the mean of what was released; the attacker knows the first customer's."""
    coins = torch.stack([COINS[(43 * int(each[1:])) % NODES] for each in ids])  # 43·7 is 1 modulo 60
    mean = torch.stack(rows).mean(dim=0)
    scores = (mean @ mean[0]) * (1 if coins[0] else -1)
    return float(roc_auc_score(coins[1:], scores[1:]))


def test_without_the_ledger_repeats_find_what_each_node_has(party: Path, tmp_path: Path) -> None:
    of = job(party, {"hops": 0})
    rows = list(repeats(lambda _: of, tmp_path / "runs", lifetime=False))
    assert told(rows[:1], world_of(of).ids) < 0.95
    assert told(rows, world_of(of).ids) > 0.99


def test_the_same_embeddings_are_the_same_release_however_often(party: Path, tmp_path: Path) -> None:
    of = job(party, {"hops": 0})
    rows = list(repeats(lambda _: of, tmp_path / "runs", lifetime=True))
    assert all(torch.equal(each, rows[0]) for each in rows)
    assert ledger_of(party).nodes == NODES
    assert told(rows, world_of(of).ids) < 0.95
    assert len(events(party)) == 1
    assert ledger_of(party).total() == pytest.approx(4.0, rel=1e-6)


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"method": {"dim": 5}}, {"method": {"epsilon": 3.9}}, {"evaluation": {"links": 0.5}}]
)
def test_others_end_at_the_first_release_beyond_the_total(party: Path, tmp_path: Path, changed: Changes) -> None:
    released(job(party), tmp_path / "first")
    with refused(BudgetSpent, code="lifetime", key="limits.max_epsilon", value=4.0):
        released(job(party, **changed), tmp_path / "second", source=never)
    assert len(events(party)) == 1
    assert ledger_of(party).total() <= 4.0 * (1 + 1e-12)


def test_two_runs_at_one_moment_publish_the_same_bytes_and_pay_once(party: Path, tmp_path: Path) -> None:
    """The second begins while the first draws its noise, which is paid for and not kept yet."""
    with ThreadPoolExecutor(1) as other:
        begun: list[Future[Tensor]] = []

        def drawn(length: int) -> bytes:
            if not begun:
                begun.append(other.submit(released, job(party), tmp_path / "second"))
                wait(begun, timeout=0.3)
            return system_secrets(length)

        first = released(job(party), tmp_path / "first", source=drawn)
        assert torch.equal(begun[0].result(), first)
    assert len(events(party)) == 1


def test_two_whole_runs_publish_the_same_bytes_and_pay_once(party: Path, tmp_path: Path) -> None:
    first, second = (veilgraph_embeddings.embed(job(party), out=tmp_path / name) for name in ("first", "second"))
    for name in ("embeddings.csv", "embeddings.safetensors", "card.json"):
        assert (first.path / "publish" / name).read_bytes() == (second.path / "publish" / name).read_bytes()
    assert [each.report["facts"]["released_before"] for each in (first, second)] == [False, True]
    assert first.report["ledger"] == second.report["ledger"]
    assert len(events(party)) == 1
    with refused(BudgetSpent, code="lifetime", key="limits.max_epsilon"):
        veilgraph_embeddings.embed(job(party, seed=1), out=tmp_path / "third")
    assert not (tmp_path / "third" / "publish").exists()
    shown = command("budget", "--party", party)
    assert shown.exit_code == 0
    assert "embeddings to" in shown.output


def test_the_same_job_publishes_the_same_bytes_whatever_has_changed(
    party: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Embeddings that follow a change tell with certainty that there was one."""
    first = released(job(party), tmp_path / "first")
    write(party.parent, range(NODES)[::-1])
    assert torch.equal(released(job(party), tmp_path / "second", source=never), first)
    assert not caplog.records
    write(party.parent, range(NODES), COINS.logical_xor(torch.arange(NODES) == 3))
    assert torch.equal(released(job(party), tmp_path / "third", source=never), first)
    assert "the data have changed" in caplog.text
    with refused(BudgetSpent, key="limits.max_epsilon"):
        released(job(party, name="february"), tmp_path / "fourth", source=never)
    limited(party, max_epsilon=20.0)
    changed = released(job(party, name="february"), tmp_path / "fifth")
    assert float((changed - first).abs().min()) > 0
    assert torch.equal(released(job(party), tmp_path / "sixth", source=never), first)
    assert len(events(party)) == 2


def test_other_nodes_with_the_same_values_are_another_release_and_pay_for_themselves(
    party: Path, tmp_path: Path
) -> None:
    first = released(job(party), tmp_path / "first")
    for name in ("nodes.csv", "edges.csv"):
        text = (party.parent / name).read_text(encoding="utf-8")
        (party.parent / name).write_text(text.replace("c", "d").replace("doin", "coin"), encoding="utf-8")
    assert float((released(job(party), tmp_path / "second") - first).abs().min()) > 0
    assert ledger_of(party).nodes == 2 * NODES
    write(party.parent, range(NODES))
    assert torch.equal(released(job(party), tmp_path / "third", source=never), first)


def test_ordered_by_id_every_node_keeps_what_it_has(party: Path) -> None:
    ordered, as_read = world_of(job(party)), world_of(job(party, "plain"))
    assert list(ordered.ids) == sorted(as_read.ids) != list(as_read.ids)
    order = torch.tensor([as_read.ids.index(each) for each in ordered.ids])
    assert torch.equal(ordered.features, as_read.features[order])
    assert torch.equal(ordered.keep.codes, as_read.keep.codes[order])
    assert torch.equal(ordered.hide.codes, as_read.hide.codes[order])
    ends = [{frozenset((of.ids[a], of.ids[b])) for a, b in of.pairs.T.tolist()} for of in (ordered, as_read)]
    assert ends[0] == ends[1]


def test_it_is_paid_for_before_noise_is_drawn_and_again_where_a_kill_came_between(party: Path, tmp_path: Path) -> None:
    limited(party, max_epsilon=20.0)

    def killed(length: int) -> bytes:
        assert len(events(party)) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        released(job(party), tmp_path / "first", source=killed)
    rows = released(job(party), tmp_path / "second")
    assert len(events(party)) == 2
    assert torch.equal(released(job(party), tmp_path / "third", source=never), rows)


def test_what_was_kept_without_a_payment_or_is_gone_is_released_anew_and_paid_for(party: Path, tmp_path: Path) -> None:
    limited(party, max_epsilon=20.0)
    first = released(job(party), tmp_path / "first")
    (kept,) = (party.parent / "ledger" / "released").glob("*/*.safetensors")
    tensors, facts = load_tensors(kept)
    save_tensors(kept, tensors, {**facts, "paid": "0" * 64})
    second = released(job(party), tmp_path / "second")
    assert float((second - first).abs().min()) > 0
    kept.unlink()
    third = released(job(party), tmp_path / "third")
    assert float((third - second).abs().min()) > 0
    assert len(events(party)) == 3
    assert set(facts) == {"paid", "of"}
    save_tensors(kept, tensors, {})
    with refused(RunError, key=kept):
        released(job(party), tmp_path / "fourth")


@pytest.mark.parametrize(
    ("limits", "unit"),
    [
        ({}, "node"),
        ({"epsilon_unit": "node"}, "node"),
        ({"epsilon_unit": "edge"}, "edge"),
        ({"epsilon_unit": "edge", "epsilon_neighbours": "zero-out"}, "edge"),
        ({"epsilon_neighbours": "replacement"}, "node"),
    ],
)
def test_it_is_booked_as_the_cost_about_the_unit_of_the_ledger(
    party: Path, tmp_path: Path, limits: Changes, unit: str
) -> None:
    limited(party, max_epsilon=4.0, **limits)
    found = veilgraph_embeddings.embed(job(party), out=tmp_path / "run")
    (event,) = events(party)
    assert (event.kind, event.unit, event.neighbours) == ("aggregation", unit, "replacement")
    facts = found.report["facts"]
    assert event.mu(1) == pytest.approx(facts[f"sensitivity_{unit}"] / facts["standard_deviation"])
    cost = next(each["total"] for each in found.report["ledger"] if each["unit"] == unit)
    assert ledger_of(party).total() == pytest.approx(cost, rel=1e-6)


@pytest.mark.parametrize(("unit", "method"), [("node-edges", {}), ("label", {}), ("edge", {"hops": 0})])
def test_a_total_about_what_it_does_not_bound_refuses_it(
    party: Path, tmp_path: Path, unit: str, method: Changes
) -> None:
    limited(party, max_epsilon=100.0, epsilon_unit=unit)
    with refused(BudgetSpent, code="lifetime", key="limits.max_epsilon", value=100.0):
        released(job(party, method), tmp_path / "run", source=never)
    assert not events(party)


@pytest.mark.parametrize(
    ("made", "hide", "refuses"),
    [
        (["coin"], "sex", True),
        (["c*"], "sex", True),
        ([], "sex", False),
        (["x"], "sex", False),
        (["coin"], "coin", False),
    ],
)
def test_features_made_of_edges_are_refused_where_an_epsilon_of_an_edge_is_stated(
    party: Path, made: list[str], hide: str, refuses: bool
) -> None:
    """A number of edges in the rows shows each edge to whoever knows all others; what is hidden is in no row."""
    content = yaml.safe_load(party.read_text(encoding="utf-8"))
    content["nodes"]["columns_from_edges"] = made
    party.write_text(yaml.safe_dump(content), encoding="utf-8")
    settings = job(party, hide=hide)
    if refuses:
        with refused(ConfigError, key="nodes.columns_from_edges"):
            lifetime_of_job(settings)
    else:
        assert lifetime_of_job(settings) is not None


def test_neither_cost_bounds_a_row_or_a_node_with_its_edges() -> None:
    """So neither may be booked as them: rows, and a hub that loses its edges, move further than what is paid for."""
    bound = 16
    moved = Sensitivity.of(1, bound)
    leaves = torch.arange(1, bound + 1)
    star = torch.stack([torch.zeros_like(leaves), leaves])
    first = torch.ones(bound + 1, 1, dtype=torch.float64)
    lost = aggregated(first, star, 1, bound) - aggregated(first, star[:, :0], 1, bound)
    assert float(lost.norm()) > max(moved.node, moved.edge) + 0.4
    assert max(moved.node, moved.edge) < 2.0  # a row of length 1 turned round
    units: dict[Unit, float] = {"node": moved.node, "edge": moved.edge}
    for unit, by in units.items():
        cost = AggregationEvent(2 / by, "replacement", unit)
        assert [other for other in get_args(Unit) if Scope(other, "replacement").bounds(cost)] == [unit]


def test_jobs_and_embeddings_pay_from_one_total_by_the_ids(party: Path, tmp_path: Path) -> None:
    limited(party, max_epsilon=5.0, epsilon_unit="node")
    ledger = ledger_of(party)
    costly = GaussianEvent(2.0, "replacement", "node")
    ledger.charge(costly, "embeddings", 1, ledger.keys(["somebody else"]), delta=1e-4, run="0" * 64, job="job")
    released(job(party), tmp_path / "first")
    before = ledger.total_with(costly, 1)
    with refused(BudgetSpent, code="lifetime"):
        ledger.charge(costly, "embeddings", 1, ledger.keys(["c3"]), delta=1e-4, run="0" * 64, job="job")
    assert before > 5.0


def test_embeddings_about_another_unit_than_earlier_jobs_are_refused(party: Path, tmp_path: Path) -> None:
    ledger = ledger_of(limited(party, leakage=["output-embeddings"]))
    ledger.charge(GaussianEvent(50.0), "embeddings", 1, ledger.keys(["c3"]), delta=1e-5, run="0" * 64, job="job")
    limited(party, max_epsilon=4.0)
    with refused(BudgetSpent, code="lifetime", key="limits.max_epsilon"):
        released(job(party), tmp_path / "run", source=never)


@pytest.mark.parametrize("method", ["plain", "apge"])
def test_without_noise_a_limit_on_epsilon_refuses_them(party: Path, tmp_path: Path, method: str) -> None:
    with refused(ConfigError, key="limits.max_epsilon", value=4.0):
        veilgraph_embeddings.embed(job(party, method), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_limits_on_what_is_revealed_and_on_delta_hold(party: Path, tmp_path: Path) -> None:
    limited(party, leakage=[])
    for method in ("plain", None):
        with refused(ConfigError, key="limits.leakage", value=()):
            veilgraph_embeddings.embed(job(party, method), out=tmp_path / "run")
    limited(party, leakage=[], max_epsilon=4.0, max_delta=1e-6)
    with refused(ConfigError, key="limits.max_delta", value=1e-6):
        released(job(party), tmp_path / "run", source=never)
    released(job(party, {"delta": 1e-7}), tmp_path / "allowed")
    assert ledger_of(party).delta == 1e-6, "the party's own"
    limited(party, leakage=[], max_epsilon=4.0, max_delta=1 / NODES)
    with refused(ConfigError, key="limits.max_delta", value=1 / NODES):
        released(job(party), tmp_path / "many", source=never)
    limited(party, leakage=["output-embeddings"])
    quick = parse_embed_job({**job(party, "plain").model_dump(), "method": {"name": "plain", **QUICK, "epochs": 1}})
    veilgraph_embeddings.embed(quick, out=tmp_path / "plain")
    with refused(ConfigError, key="method.delta", value=0.02):
        released(job(party, {"delta": 0.02}), tmp_path / "wide", source=never)


def test_ids_beside_a_party_file_are_refused(party: Path) -> None:
    with refused(ConfigError, key="ids"):
        veilgraph_embeddings.embed(job(party), ids=range(NODES))


# Of graphs


def graph_of(party: Path, folder: Path, ids: bool = True) -> Path:
    """The shop's customers as a saved graph, by their rows; the private and the useful value are its last features."""
    found = world_of(job(party, "plain"))
    features = torch.cat(
        [found.features.to_dense(), found.keep.codes[:, None], found.hide.codes[:, None]], dim=1
    ).float()
    graph = PartyGraph("shop", features, torch.cat([found.pairs, found.pairs.flip(0)], dim=1))
    folder.mkdir(parents=True, exist_ok=True)
    save_party(graph, folder / "shop.safetensors", found.ids if ids else None)
    return folder / "shop.safetensors"


def graph_job(data: Changes, **method: Any) -> EmbedJob:
    noise = {"name": "noise", "epsilon": 4.0, "dim": 4, **method}
    return parse_embed_job(
        {"data": data, "keep": 1, "hide": 2, "method": noise, "evaluation": {"families": ["logistic"], "links": 0.0}}
    )


@pytest.mark.parametrize("ids", [True, False])
def test_a_saved_graph_pays_for_life(party: Path, tmp_path: Path, ids: bool) -> None:
    path = graph_of(party, tmp_path / "graphs", ids)
    folder = tmp_path / "graphs" / "ledger" / "shop"
    folder.mkdir(parents=True)
    (folder / LIMITS_FILE).write_text(
        "{max_epsilon: 4.0, epsilon_unit: node, epsilon_neighbours: replacement}\n", encoding="utf-8"
    )
    of = graph_job({"graph": str(path)})
    first, second = (veilgraph_embeddings.embed(of, out=tmp_path / name) for name in ("first", "second"))
    assert torch.equal(first.rows, second.rows)
    assert first.report["ledger_note"] == ""
    ledger = lifetime_at(LedgerPlace(folder, "shop"))
    assert ledger.nodes == (NODES if ids else 0)
    assert ledger.total() == pytest.approx(4.0, rel=1e-6)
    with refused(BudgetSpent, code="lifetime", key="limits.max_epsilon"):
        veilgraph_embeddings.embed(graph_job({"graph": str(path)}, dim=5), out=tmp_path / "third")
    with refused(ConfigError, key="limits.max_epsilon"):
        quick = parse_embed_job({**of.model_dump(), "method": {"name": "plain", **QUICK, "epochs": 1}})
        veilgraph_embeddings.embed(quick, out=tmp_path / "plain")
    assert ledger.total() == pytest.approx(4.0, rel=1e-6)


def test_a_graph_from_memory_pays_for_life_where_a_ledger_is_named(party: Path, tmp_path: Path) -> None:
    graph = load_party(graph_of(party, tmp_path / "graphs"))
    alone = veilgraph_embeddings.embed(graph_job({}), graph, tmp_path / "alone")
    assert "run alone" in alone.report["ledger_note"]
    assert "run alone" in alone.page.read_text(encoding="utf-8")
    folder = tmp_path / "ledger of the shop"
    told = {"folder": folder, **about.NODES, "max_epsilon": 4.0}
    first = veilgraph_embeddings.embed(graph_job({}), graph, tmp_path / "first", ledger=told)
    again = veilgraph_embeddings.embed(graph_job({}), graph, tmp_path / "again", ledger=str(folder))
    assert torch.equal(first.rows, again.rows)
    assert not torch.equal(first.rows, alone.rows)
    assert "run alone" not in first.page.read_text(encoding="utf-8")
    with refused(BudgetSpent, code="lifetime", key="limits.max_epsilon"):
        veilgraph_embeddings.embed(graph_job({}, dim=5), graph, tmp_path / "third", ids=range(NODES), ledger=folder)
    said: Any
    for said in (3, {}, {"folder": folder, **about.NODES, "max_epsilon": 9.0}):
        with refused(ConfigError, key="ledger"):
            veilgraph_embeddings.embed(graph_job({}), graph, tmp_path / "x", ledger=said)


def test_a_ledger_is_not_named_beside_a_party_file_or_a_data_set(party: Path, tmp_path: Path) -> None:
    with refused(ConfigError, key="ledger"):
        veilgraph_embeddings.embed(job(party), out=tmp_path / "x", ledger=tmp_path / "ledger")
    with refused(ConfigError, key="ledger"):
        data = {"data": {"dataset": "synthetic"}, "hide": 3, "method": {"name": "noise", "epsilon": 4.0}}
        veilgraph_embeddings.embed(data, out=tmp_path / "x", ledger=tmp_path / "ledger")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["path", "limits"])
def test_another_ledger_than_a_saved_graph_s_own_is_refused(party: Path, tmp_path: Path, kind: str) -> None:
    path = graph_of(party, tmp_path / "graphs")
    own, of = tmp_path / "graphs" / "ledger" / "shop", graph_job({"graph": str(path)})
    if kind == "limits":
        own.mkdir(parents=True)
        (own / LIMITS_FILE).write_text(
            "{max_epsilon: 4.0, epsilon_unit: node, epsilon_neighbours: replacement}\n", encoding="utf-8"
        )
    else:
        veilgraph_embeddings.embed(of, out=tmp_path / "first")
    with refused(ConfigError, code="another-ledger", key="ledger"):
        veilgraph_embeddings.embed(of, out=tmp_path / "x", ledger=tmp_path / "other")
    assert veilgraph_embeddings.embed(of, out=tmp_path / "its own", ledger=own).path.is_dir()


def test_ten_embeddings_from_the_command_line_pay_from_the_ledger_that_is_named(party: Path, tmp_path: Path) -> None:
    path, folder = tmp_path / "job.yaml", tmp_path / "ledger of the shop"
    settings = graph_job({"graph": str(graph_of(party, tmp_path / "graphs"))}).model_dump(mode="json")
    path.write_text(json.dumps(settings), encoding="utf-8")
    folder.mkdir()
    (folder / LIMITS_FILE).write_text(
        "{max_epsilon: 4.0, epsilon_unit: node, epsilon_neighbours: replacement}\n", encoding="utf-8"
    )

    def asked(number: int) -> bool:
        rows = ("--set", f"method.dim={number + 2}", "--out", tmp_path / str(number), "--ledger", folder)
        return command("embed", path, *rows).exit_code == 0

    assert [asked(number) for number in range(10)] == [True] + [False] * 9
    assert lifetime_at(LedgerPlace(folder, "shop")).total() == pytest.approx(4.0, rel=1e-6)
    assert not (tmp_path / "graphs" / "ledger").exists()
