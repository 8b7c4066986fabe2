import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tests import about
from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, Kind
from veilgraph.paradigms.vertical.settings import VerticalJob, vertical
from veilgraph.protocol import messages as revealed
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import (
    REASON_CHARACTERS,
    LimitSettings,
    delta_in_doubt,
    delta_too_large,
    joined,
    largest_epsilon,
    refusal,
    revelations,
    too_few,
)
from veilgraph.protocol.messages import TO_SERVER, MessageSpec, Revelation, all_revelations
from veilgraph.protocol.paradigm import PARADIGMS, paradigm_of
from veilgraph.runtime.store.lifetime import holders_without_ledger

DEFAULT = {"initial-embeddings", "embedding-sums", "output-embeddings", "training-rows"}


def job(holders: int = 2, **model: Any) -> JobSettings:
    return parse_job({"data": {"holders": holders}, "model": model})


def test_a_reason_whose_end_is_cut_off_shows_that() -> None:
    """A path of which the end is missing is another path."""
    assert joined(["one", None, "", "two"]) == "one; two"
    assert joined(["x" * REASON_CHARACTERS]) == "x" * REASON_CHARACTERS
    assert joined(["x" * REASON_CHARACTERS, "rm -r all"]) == "x" * (REASON_CHARACTERS - 1) + "…"


@pytest.mark.parametrize("paradigm", ["vertical", "horizontal", "averaging"])
def test_names_to_accept_are_whole(paradigm: str) -> None:
    """They are copied from the error."""
    content = {"paradigm": paradigm, "data": {"holders": ["a-bank-with-a-name-of-its-own", "b"]}}
    settings = parse_job(
        content | ({"model": {"rounds": 2, "combine": {"masked": False}}} if paradigm == "vertical" else {})
    )
    told = refusal(LimitSettings(leakage=()), settings, "b")
    assert told is not None
    assert "…" not in told
    assert all(f"{name} (" in told for name in revelations(settings, "b"))


WEAKER = {
    "rounds": (job(rounds=2), {"combined-embeddings"}),
    "unmasked": (job(combine={"masked": False}), {"single-embeddings"}),
    "concat": (job(combine={"strategy": "concat"}), {"single-embeddings"}),
    "degrees": (job(combine={"strategy": "degree-weighted"}), {"pooled-degrees"}),
    "degrees, unmasked": (
        job(combine={"strategy": "degree-weighted", "masked": False}),
        {"pooled-degrees", "single-degrees", "single-embeddings"},
    ),
    "secure-sum of two": (job(initial={"method": "secure-sum"}), {"initial-gradients", "single-initial-embeddings"}),
    "secure-sum of three": (job(3, initial={"method": "secure-sum"}), {"initial-gradients"}),
    "no server layers": (job(server={"layers": 0}), {"combined-as-output"}),
    "logit hops": (job(head={"logit_hops": 1}), {"label-holder-edges"}),
}


def test_every_name_has_a_statement_of_one_sentence() -> None:
    for statement in all_revelations().values():
        assert statement.endswith(".")
        assert statement.count(". ") == 0


def test_nobody_gives_another_meaning_to_a_name_that_parties_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Revelation[JobSettings]("embedding-sums", "The server hears that a toy hums.", lambda _: "every job")
    row = MessageSpec[JobSettings](Kind.MASKED, TO_SERVER, "a hum", "mask", "It hums.", (told,))
    monkeypatch.setattr(revealed, "PARADIGMS", {**PARADIGMS, "toy": SimpleNamespace(rows=(row,))})
    with refused(ConfigError, key="paradigm", value="toy"):
        all_revelations.__wrapped__()


def test_the_default_party_accepts_exactly_the_default_job() -> None:
    assert set(revelations(job())) == DEFAULT == set(LimitSettings().leakage)
    for party in ("A", "B", SERVER):
        assert refusal(LimitSettings(), job(), party) is None


def test_individual_embeddings_reveal_less() -> None:
    assert set(revelations(job(initial={"method": "individual"}))) == DEFAULT - {"initial-embeddings"}


@pytest.mark.parametrize("name", WEAKER)
def test_what_reveals_more_is_refused_until_it_is_accepted_by_name(name: str) -> None:
    settings, more = WEAKER[name]
    found = revelations(settings)
    assert found == {name: all_revelations()[name] for name in DEFAULT | more}
    refusals = [refusal(LimitSettings(), settings, holder) for holder in settings.data.names]
    for revelation in more:
        assert any(reason and revelation in reason for reason in refusals)
    accepting = LimitSettings(leakage=tuple(found), max_rounds=vertical(settings).model.rounds)
    assert not any(refusal(accepting, settings, party) for party in (*settings.data.names, SERVER))


def test_a_party_is_asked_only_about_its_own_data() -> None:
    nothing = LimitSettings(leakage=())
    label_holder, other = (str(refusal(nothing, job(), holder)) for holder in "AB")
    assert "training-rows" in label_holder
    assert "training-rows" not in other
    assert "output-embeddings" not in label_holder
    assert "output-embeddings" in other
    assert refusal(nothing, job(), SERVER) is None


def test_a_reason_names_limit_value_cause_and_way_out() -> None:
    assert refusal(LimitSettings(), job(combine={"masked": False}), "B") == (
        "limits.leakage=[initial-embeddings, embedding-sums, output-embeddings, training-rows]: change the job, or "
        "add what your organisation accepts of what else the job reveals: single-embeddings "
        "(model.combine.masked=false)"
    )
    accepting = LimitSettings(leakage=tuple(revelations(job(rounds=3))), max_rounds=2)
    assert refusal(accepting, job(rounds=3), SERVER) == refusal(accepting, job(rounds=3), "A")
    assert refusal(accepting, job(rounds=3), "A") == (
        "limits.max_rounds=2 and model.rounds=3: lower the rounds or raise the limit"
    )


def test_who_declares_its_neighbours_refuses_to_tell_them() -> None:
    """A job without a bound has each holder tell the most edges of its nodes; where none has hops, nobody does."""
    declares, names = LimitSettings(most_neighbours=30, leakage=("predicted-classes",)), {"paradigm": "sealed"}
    untold, bounded, at_home = (parse_job({**names, "model": model}) for model in ({}, {"max_degree": 70}, AT_HOME))
    reason = str(refusal(declares, untold, "B"))
    assert reason.startswith("limits.most_neighbours=30 and model.max_degree=null")
    assert "say it in the job" in reason
    assert all("neighbours" not in str(refusal(declares, each, "B")) for each in (bounded, at_home))
    assert "neighbours" not in str(refusal(LimitSettings(), untold, "B"))


AT_HOME: dict[str, Any] = {"blocks": ["own", "neighbours"]}

# Differential privacy


def votes(epsilon: float = 4.0) -> JobSettings:
    """A job with noise on votes over B's edges: what is predicted of them is not all of it noise."""
    model = {"network": "linear", "edge_slots": 4096, "max_degree": 2000}
    return parse_job(
        {"paradigm": "sealed", "preset": "auto", "model": model, "train": {"select_by": "last"},
         "privacy": {"unit": "edge", "epsilon_total": epsilon}}
    )  # fmt: skip


def test_an_infinite_epsilon_is_over_every_limit() -> None:
    assert refusal(LimitSettings(max_epsilon=1e9, **about.EDGES), job(), "A") == (
        "limits.max_epsilon=1e+09 and the job's total ε is infinite, for a vertical job has no noise on what holders "
        "publish; sealed, for edges, has some, or remove the limit"
    )


NAMED = ("predicted-classes",)
"""What is predicted comes of noisy votes and of columns that no noise is on."""


def test_epsilon_may_reach_the_limit_and_no_more() -> None:
    limits = LimitSettings(leakage=NAMED, max_epsilon=8, **about.EDGES)
    assert refusal(limits, votes(), "B", epsilon=8.0) is None
    told = refusal(limits, votes(), "B", epsilon=8.001)
    assert told is not None
    assert told.startswith(
        "limits.max_epsilon=8 and the job can cost B a total ε of 8.001: lower it or raise the limit"
    )


def test_what_a_party_bounds_needs_no_name_and_what_is_never_noised_does() -> None:
    nothing = LimitSettings(leakage=(), max_epsilon=8, **about.EDGES)
    assert set(revelations(votes())) == {*NAMED, "noisy-votes"}
    reason = str(refusal(nothing, votes(), "B", epsilon=8))
    assert [name for name in all_revelations() if f"{name} (" in reason] == [*NAMED]
    accepting = nothing.model_copy(update={"leakage": NAMED})
    assert refusal(accepting, votes(), "B", epsilon=8) is None


def test_without_a_bound_of_its_own_a_party_is_asked_about_every_name() -> None:
    for epsilon in (None, 0.1):
        assert "noisy-votes (" in str(refusal(LimitSettings(leakage=NAMED), votes(), "B", epsilon=epsilon))


# Horizontal

SEALED_ALONE = {
    "predicted-classes",
    "predicted-margins",
    "named-classes",
    "named-margins",
    "answer-times",
    "noisy-votes",
    "record-scores",
    "node-bits",
    "released-weights",
    "sealed-scores",
}
UNION_ALONE = {
    *("own-classes", "own-margins", "own-named-classes", "own-named-margins"),
    *("union-scores", "confirmed-edges", "listed-nodes"),
}
AVERAGING_ALONE = {
    *("averaged-weights", "score-tallies", "single-updates", "task-tallies"),
    *("counterpart-symbols", "trained-counterparts"),
}
ELSEWHERE = SEALED_ALONE | UNION_ALONE | AVERAGING_ALONE
"""Of sealed, union and averaging jobs alone."""
VALUES = {"training-targets", "value-tallies", "target-sums"}
HORIZONTAL_ALONE = {
    "node-lists",
    "edge-lists",
    "embedding-maxima",
    "raw-features",
    "global-embeddings",
    "edge-gradients",
    "weight-gradients",
    "label-tallies",
    "single-summands",
    "column-statistics",
}
ALWAYS = {"training-rows", "node-lists", "global-embeddings", "weight-gradients", "label-tallies"}


def horizontal(holders: int = 3, **settings: Any) -> JobSettings:
    return parse_job({"paradigm": "horizontal", "data": {"holders": holders}, "model": settings})


def test_a_job_that_learns_numbers_reveals_these_and_needs_names_of_its_own() -> None:
    content = horizontal().model_dump(mode="json", exclude={"train"})
    classes = set(revelations(horizontal()))
    for bounds, needed in (({}, VALUES), ({"low": 0.0, "high": 1.0}, VALUES - {"target-sums"})):
        settings = parse_job({**content, "horizontal": {"task": {"name": "values", **bounds}}})
        found = set(revelations(settings))
        assert found == classes - {"training-rows", "label-tallies"} | needed
        accepting = LimitSettings(leakage=tuple(found), max_rounds=2)
        assert refusal(accepting, settings, "A") is None
        for name in needed:
            rest = accepting.model_copy(update={"leakage": tuple(found - {name} | classes)})
            assert name in str(refusal(rest, settings, "A"))


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        (horizontal(), {"embedding-maxima", "single-embeddings", "edge-gradients"}),
        (horizontal(combine="secure-max"), {"embedding-maxima", "edge-gradients"}),
        (horizontal(2, combine="secure-max", layers=1), {"embedding-maxima", "single-summands"}),
        (
            horizontal(aggregate="min", layers=1, message="none"),
            {"embedding-maxima", "single-embeddings", "raw-features"},
        ),
        (
            horizontal(aggregate="mean", edges="deduplicate", layers=1),
            {"embedding-sums", "single-embeddings", "pooled-degrees", "single-degrees", "edge-lists"},
        ),
        (horizontal(aggregate="sum", edges="disjoint", layers=1), {"embedding-sums", "single-embeddings"}),
    ],
    ids=["default", "secure-max", "secure-max of two", "raw features", "mean", "sum"],
)
def test_what_a_horizontal_job_reveals_concerns_every_holder(settings: JobSettings, more: set[str]) -> None:
    found = revelations(settings)
    assert set(found) == ALWAYS | more
    nothing = LimitSettings(leakage=(), max_rounds=9)
    for holder in settings.data.names:
        assert all(name in str(refusal(nothing, settings, holder)) for name in list(found)[:3])
    assert len({refusal(nothing, settings, holder) for holder in settings.data.names}) == 1
    accepting = LimitSettings(leakage=tuple(found), max_rounds=9)
    assert not any(refusal(accepting, settings, party) for party in (*settings.data.names, SERVER))


def test_statistics_of_columns_are_revealed_by_scaled_tables_and_by_what_a_party_says_of_its_own() -> None:
    data = {"holders": ["A", "B"], "feature_scaling": "standard"}
    scaled = parse_job({"paradigm": "horizontal", "data": data})
    assert "column-statistics" in revelations(scaled)
    for changes in ({"feature_scaling": "row"}, {"holders": 2, "graphs": {"A": "a.safetensors", "B": "b.safetensors"}}):
        assert "column-statistics" not in revelations(parse_job({"paradigm": "horizontal", "data": data | changes}))
    plain = horizontal(2)
    accepting = LimitSettings(leakage=tuple(revelations(plain)), max_rounds=2)
    assert refusal(accepting, plain, "B") is None
    reason = refusal(accepting, plain, "B", besides={"column-statistics": "missing=mean"})
    assert str(reason).endswith("what else the job reveals: column-statistics (missing=mean)")


def test_layers_are_rounds_and_nothing_bounds_a_horizontal_job() -> None:
    accepting = LimitSettings(leakage=tuple(all_revelations()))
    assert refusal(accepting, horizontal(layers=3), "B") == (
        "limits.max_rounds=1 and model.layers=3: lower the layers or raise the limit"
    )
    bounded = LimitSettings(leakage=tuple(all_revelations()), max_rounds=2, max_epsilon=8, **about.EDGES)
    assert refusal(bounded, horizontal(), "B") == (
        "limits.max_epsilon=8 and the job's total ε is infinite, for paradigm=horizontal has no differential privacy "
        "but label_privacy's: take that, or node-dp, or remove the limit"
    )


# Local

PERTURBED = {"perturbed-features", "perturbed-labels"}


LABELS = parse_job({"label_privacy": {"epsilon": 2.0}})


def test_who_accepts_what_gradients_tell_accepts_it_with_perturbed_labels() -> None:
    assert set(revelations(LABELS)) == DEFAULT | {"training-nodes"}
    assert refusal(LimitSettings(), LABELS, "A") is None
    without = tuple(DEFAULT - {"training-rows"})
    reason = str(refusal(LimitSettings(leakage=without), LABELS, "A"))
    assert "training-rows (every job)" in reason
    assert "training-nodes (label_privacy.epsilon=2)" in reason
    assert "training" not in str(refusal(LimitSettings(leakage=()), LABELS, "B")), "it has no labels there"


def test_a_bound_on_labels_bounds_nothing_else() -> None:
    limits = LimitSettings(leakage=(), max_epsilon=2, **about.LABELS)
    reason = str(refusal(limits, LABELS, "A", epsilon=2.0))
    assert {name for name in all_revelations() if f"{name} (" in reason} == {
        "initial-embeddings",
        "embedding-sums",
        "training-nodes",
    }
    accepting = limits.model_copy(update={"leakage": ("initial-embeddings", "embedding-sums", "training-nodes")})
    assert refusal(accepting, LABELS, "A", epsilon=2.0) is None
    assert "total ε of 2.5" in str(refusal(accepting, LABELS, "A", epsilon=2.5))
    for unit in ("edge", "node"):
        other = accepting.model_copy(update={"epsilon_unit": unit})
        assert f"limits.epsilon_unit={unit} and the job's ε is about label" in str(
            refusal(other, LABELS, "A", epsilon=2.0)
        )
    assert "is about edge" in str(refusal(accepting, votes(), "B", epsilon=2.0))


def test_what_a_label_costs_in_every_paradigm() -> None:
    vertically = paradigm_of(LABELS)
    assert [vertically.privacy.label_epsilon(LABELS, party) for party in "AB"] == [2.0, 0.0]
    assert [vertically.privacy.label_epsilon(job(), party) for party in "AB"] == [math.inf, 0.0]
    for settings in (local(private="B"), parse_job({"paradigm": "horizontal"})):
        assert paradigm_of(settings).privacy.label_epsilon(settings, "B") == math.inf


def local(holders: int = 3, *, private: str | None = None, **network: Any) -> JobSettings:
    labels = None if private is None else {"holder": private, "epsilon": 2.5}
    release = {"features": {"epsilon": 1.5}, "labels": labels}
    return parse_job({"paradigm": "node-dp", "data": {"holders": holders}, "release": release, "model": network})


def test_what_is_noised_of_the_learners_edges_is_held_to_its_limits_and_not_to_the_others() -> None:
    """The learner's ε is of edges at its δ, the others' of their nodes at theirs."""
    release = {"mechanism": "gaussian", "epsilon": 1.5, "delta": 1e-6}
    noise = {"epsilon_total": 3, "unit": "edge", "delta": 1e-5}
    settings = parse_job({"paradigm": "node-dp", "release": {"features": release}, "privacy": noise})
    paradigm = paradigm_of(settings)
    assert [paradigm.privacy.largest_epsilon(settings, party) for party in "AB"] == pytest.approx([3.0, 1.5])
    plain = parse_job({"paradigm": "node-dp", "release": {"features": release}})
    assert [paradigm.privacy.largest_epsilon(plain, party) for party in "AB"] == [0.0, 1.5]
    everything = tuple(all_revelations())

    def refuses(party: str, **limits: Any) -> str:
        epsilon = paradigm.privacy.largest_epsilon(settings, party)
        return refusal(LimitSettings(leakage=everything, **limits), settings, party, epsilon=epsilon) or ""

    assert refuses("A", max_epsilon=3, **about.EDGES, max_delta=1e-5) == ""
    assert refuses("B", max_epsilon=3, **about.NODES, max_delta=1e-6) == ""
    assert "the job's ε is about edge" in refuses("A", max_epsilon=3, **about.NODES)
    assert "the job's ε is about node" in refuses("B", max_epsilon=3, **about.EDGES)
    assert "a total ε of 3" in refuses("A", max_epsilon=2.9, **about.EDGES)
    assert refuses("A", max_epsilon=3, **about.EDGES, max_delta=1e-6).startswith(
        "limits.max_delta=1e-06 and privacy.delta=1e-05"
    )
    assert refuses("B", max_epsilon=3, **about.NODES, max_delta=1e-7).startswith(
        "limits.max_delta=1e-07 and release.features.delta"
    )
    assert delta_too_large(settings, 200_000).startswith("privacy.delta=1e-05 with 200000 common nodes")
    assert delta_in_doubt(settings).startswith("privacy.delta=1e-05 is refused from 100,000 common nodes on")


def test_a_local_job_reveals_what_nodes_perturbed_of_who_releases() -> None:
    assert set(revelations(local())) == {"perturbed-features"}
    assert set(revelations(local(private="C"))) == PERTURBED
    nothing = LimitSettings(leakage=())
    for settings in (local(), local(private="C", hops=128)):
        assert refusal(nothing, settings, "A") is None, "nothing leaves who learns"
        assert refusal(nothing, settings, SERVER) is None
        reason = str(refusal(nothing, settings, "B"))
        assert "of what else the job reveals: perturbed-features (release.features.epsilon=1.5); or, in place" in reason
    both = "perturbed-features (release.features.epsilon=1.5), perturbed-labels (release.labels.epsilon=2.5)"
    assert both in str(refusal(nothing, local(private="C"), "C"))
    accepting = LimitSettings(leakage=("perturbed-features",))
    assert refusal(accepting, local(private="C"), "B") is None
    assert "perturbed-labels" in str(refusal(accepting, local(private="C"), "C"))


def test_a_bound_accepts_what_it_bounds_of_a_local_job() -> None:
    limits = LimitSettings(leakage=(), max_epsilon=4, **about.NODES)
    assert refusal(limits, local(private="C"), "C", epsilon=4.0) is None
    assert refusal(limits, local(private="C"), "C", epsilon=4.001) == (
        "limits.max_epsilon=4 and the job can cost C a total ε of 4.001: lower it or raise the limit; "
        "limits.leakage=[]: change the job, or add what your organisation accepts of what else the job reveals: "
        "perturbed-features (release.features.epsilon=1.5), perturbed-labels (release.labels.epsilon=2.5)"
    )


@pytest.mark.parametrize(
    ("settings", "epsilons"),
    [
        (local(), {"A": 0.0, "B": 1.5, "C": 1.5}),
        (local(private="C"), {"A": 0.0, "B": 1.5, "C": 4.0}),
        (local(2), {"A": 0.0, "B": 1.5}),
    ],
)
def test_the_largest_epsilon_is_of_one_release(settings: JobSettings, epsilons: dict[str, float]) -> None:
    assert {holder: largest_epsilon(settings, holder) for holder in settings.data.names} == epsilons


def test_too_few_common_nodes() -> None:
    limits = LimitSettings(min_common_nodes=50)
    assert too_few(limits, 50) is None
    assert refusal(limits, job(), "A", 50) is None
    reason = too_few(limits, 49)
    assert reason is not None
    assert "limits.min_common_nodes=50 and the holders have 49 in common" in reason
    assert refusal(limits, job(), "A", 49) == reason


def test_all_reasons_are_given_and_the_line_is_bounded() -> None:
    worst = job(
        rounds=3,
        initial={"method": "secure-sum"},
        combine={"strategy": "degree-weighted", "masked": False},
        server={"layers": 0},
        head={"logit_hops": 2},
    )
    assert set(revelations(worst)) == set(all_revelations()) - HORIZONTAL_ALONE - VALUES - PERTURBED - ELSEWHERE - {
        "training-nodes",
    }
    for names in itertools.chain(
        itertools.islice(itertools.combinations(all_revelations(), 2), 0, None, 11), [tuple(all_revelations())[::2], ()]
    ):
        reason = refusal(LimitSettings(leakage=names, max_epsilon=2, **about.EDGES, min_common_nodes=9), worst, "A", 3)
        assert reason is not None
        assert len(reason) <= REASON_CHARACTERS
        assert reason.isprintable()
        for limit in ("max_rounds", "max_epsilon", "min_common_nodes", "leakage"):
            assert f"limits.{limit}=" in reason


def test_a_party_that_is_not_in_the_job() -> None:
    with refused(ConfigError, key="party", value="C"):
        refusal(LimitSettings(), job(), "C")


@pytest.mark.parametrize(
    "wrong",
    [
        {"leakage": ["everything"]},
        {"max_rounds": 0},
        {**about.NODES, "max_epsilon": 0},
        {**about.NODES, "max_epsilon": float("inf")},
        {"max_epsilon": 1},
        {"max_epsilon": 1, "epsilon_unit": "node"},
        {**about.NODES, "max_epsilon": 1, "epsilon_unit": "row"},
        {"max_epsilon": 1, "epsilon_neighbours": "zero-out"},
        {**about.EDGES, "max_epsilon": 1, "most_neighbours": None},
        {**about.WITH_EDGES, "max_epsilon": 1, "most_neighbours": None},
        {"min_common_nodes": 0},
        {"min_colluding": -1},
        {"max_round": 2},
    ],
)
def test_wrong_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LimitSettings.model_validate(wrong)


def summed(delta: float | None = 1e-5, **privacy: Any) -> JobSettings:
    """A job whose learner, A, releases noisy sums over its edges to itself."""
    return parse_job(
        {
            "paradigm": "node-dp",
            "release": {"features": {"epsilon": 1}},
            "privacy": {"unit": "edge", "epsilon_total": 1, "delta": delta, **privacy},
        }
    )


def trained(delta: float = 1e-5, **privacy: Any) -> JobSettings:
    apart = {"paradigm": "averaging", "preset": "auto", "data": {"holders": ["A", "B"]}}
    given = {"epsilon_total": 1, "batch": 9, "degree_bound": 7, "delta": delta, **privacy}
    return parse_job({**apart, "averaging": {"privacy": given}})


OF_NODES: dict[str, Any] = {**about.WITH_EDGES, "most_neighbours": 7}


@pytest.mark.parametrize(
    ("limits", "settings", "reason"),
    [
        ({}, trained(), None),
        ({}, trained(1e-4), None),
        (
            {},
            trained(0.9999),
            "limits.max_delta=0.0001 and averaging.privacy.delta=0.9999: lower it or raise the limit",
        ),
        ({"max_delta": 1e-6}, trained(), "limits.max_delta=1e-06 and averaging.privacy.delta=1e-05: "),
        ({"epsilon_unit": "edge"}, trained(), "limits.epsilon_unit=edge and the job's ε is about node-edges: "),
        (about.EDGES, votes(), None),
        (about.NODES, votes(), "limits.epsilon_unit=node and the job's ε is about edge: "),
        ({"epsilon_neighbours": "replacement"}, trained(), "limits.epsilon_neighbours=replacement and the job's ε"),
        ({"epsilon_neighbours": "replacement"}, trained(neighbours="replacement"), None),
    ],
)
def test_an_epsilon_is_nothing_without_its_delta_unit_and_relation(
    limits: dict[str, Any], settings: JobSettings, reason: str | None
) -> None:
    """A small ε at a δ near 1 bounds nothing, and stands for no name in ``leakage``."""
    named = NAMED if settings.paradigm == "sealed" else ()
    said = refusal(LimitSettings(leakage=named, max_epsilon=1, **{**OF_NODES, **limits}), settings, "B", epsilon=1.0)
    if reason is None:
        assert said is None
    else:
        assert said is not None
        assert said.startswith(reason)
        assert f"limits.leakage=[{', '.join(named)}]" in said
    assert refusal(LimitSettings(leakage=tuple(all_revelations()), **limits), settings, "B", epsilon=1.0) is None, (
        "without max_epsilon nothing is asked"
    )


def test_a_delta_of_one_node_in_n_is_no_protection() -> None:
    assert delta_too_large(summed(1e-3), 999) == ""
    said = delta_too_large(summed(1e-3), 1000)
    assert said.startswith(
        "privacy.delta=0.001 with 1000 common nodes: where δ is 1/N or more, a node can be published"
    )
    assert said.endswith("set privacy.delta well below 0.001")
    assert delta_too_large(VerticalJob(), 10**9) == ""
    assert delta_too_large(summed(None), 10**9) == ""
    release = {"mechanism": "gaussian", "epsilon": 1, "delta": 0.5}
    local = parse_job({"paradigm": "node-dp", "release": {"features": release}})
    assert delta_too_large(local, 2).startswith("release.features.delta=0.5")


def test_a_delta_that_is_left_out_fits_the_number_of_nodes() -> None:
    """At most a tenth of 1/N, and never above 1e-4."""
    settings = summed(None)
    assert settings.privacy is not None
    for nodes, delta in ((1, 1e-4), (1000, 1e-4), (1001, 1e-5), (2708, 1e-5), (10_000, 1e-5), (19_717, 1e-6)):
        assert settings.privacy.delta_of(nodes) == delta, nodes
        assert delta * nodes <= 0.1 * (1 + 1e-9)
    assert settings.privacy.delta_of(None) == 1e-4
    limits = LimitSettings(max_epsilon=1, **about.EDGES, max_delta=1e-5)
    assert refusal(limits, settings, "A", epsilon=1.0) is None, "not known yet"
    assert refusal(limits, settings, "A", 1001, epsilon=1.0) is None
    said = refusal(limits, settings, "A", 1000, epsilon=1.0)
    assert said is not None
    assert said.startswith("limits.max_delta=1e-05 and privacy.delta=0.0001: ")


def test_an_epsilon_of_0_is_nothing_without_its_delta_either() -> None:
    # With so much noise that δ alone is left, 0.009 of 100 nodes: that is ε = 0.1 at the δ that the party asks for.
    settings = summed(9e-3, epsilon_total=1e-320)
    epsilon = largest_epsilon(settings, "A", 100)
    assert epsilon == 0
    for limits, reason in (
        (
            LimitSettings(max_epsilon=0.01, max_delta=1e-6, **about.EDGES),
            "limits.max_delta=1e-06 and privacy.delta=0.009: ",
        ),
        (LimitSettings(max_epsilon=0.01, max_delta=0.01, **about.NODES), "limits.epsilon_unit=node and the job"),
    ):
        said = refusal(limits, settings, "A", 100, epsilon=epsilon)
        assert said is not None
        assert said.startswith(reason)
    assert holders_without_ledger(settings, ["B"]) == ["A"], "it pays from a ledger all the same"
    assert holders_without_ledger(settings, ["A", "B"]) == []
    asked = LimitSettings(leakage=tuple(all_revelations()), max_epsilon=1, **about.EDGES)
    assert (refusal(asked, trained(), "A", epsilon=0) or "").startswith("limits.epsilon_unit=edge and the job's ε is")


def test_a_bound_on_neighbours_is_asked_of_who_rests_on_it() -> None:
    learner = summed(unit="node-edges", degree_bound=5)
    rules = {
        (each.paradigm, party): each.inputs.degree_rules.get(party) for each in (learner, trained()) for party in "AB"
    }
    assert rules == {
        ("node-dp", "A"): ("privacy.degree_bound", 5),
        ("node-dp", "B"): None,
        ("averaging", "A"): ("averaging.privacy.degree_bound", 7),
        ("averaging", "B"): ("averaging.privacy.degree_bound", 7),
    }
    assert summed().inputs.degree_rules.get("A") is None
    for most, reason in ((None, ""), (5, ""), (6, "limits.most_neighbours=6 and privacy.degree_bound=5: raise the")):
        limits = LimitSettings(leakage=tuple(all_revelations()), most_neighbours=most)
        assert (refusal(limits, learner, "A", epsilon=1.0) or "").startswith(reason)
        assert reason or refusal(limits, learner, "A", epsilon=1.0) is None
        assert refusal(limits, learner, "B", epsilon=1.0) is None


def test_the_delta_of_a_release_is_held_to_the_limit_too() -> None:
    features = {"mechanism": "gaussian", "epsilon": 1, "delta": 1e-3}
    local = parse_job({"paradigm": "node-dp", "release": {"features": features}})
    said = refusal(
        LimitSettings(leakage=tuple(all_revelations()), max_epsilon=1, **about.NODES), local, "B", epsilon=1.0
    )
    assert said == "limits.max_delta=0.0001 and release.features.delta=0.001: lower it or raise the limit"


def test_who_may_be_refused_is_told_before_the_nodes_are_counted() -> None:
    assert delta_in_doubt(summed(1e-3), 999) == ""
    assert delta_in_doubt(summed(1e-3), 1000) == (
        "privacy.delta=0.001 is refused from 1,000 common nodes on (δ ≥ 1/N), and there may be 1,000; lower "
        "privacy.delta, or leave it out and it follows from their number"
    )
    assert delta_in_doubt(summed(None)) == delta_in_doubt(VerticalJob()) == ""
    release = {"mechanism": "gaussian", "epsilon": 1, "delta": 1e-6}
    local = parse_job({"paradigm": "node-dp", "release": {"features": release}})
    assert delta_in_doubt(local) == "release.features.delta=1e-06 is refused from 1,000,000 common nodes on (δ ≥ 1/N)"


def joint(colluding: int) -> JobSettings:
    """A job of four holders that make noise together."""
    return parse_job(
        {
            "paradigm": "averaging",
            "preset": "auto",
            "data": {"holders": 4, "split": [0.6, 0.2, 0.2], "stratify": False},
            "averaging": {
                "threshold": 4,
                "privacy": {"epsilon_total": 4, "batch": 9, "degree_bound": 7, "joint_noise": {"colluding": colluding}},
            },
        }
    )


@pytest.mark.parametrize(
    ("least", "colluding", "accepted"), [(None, 1, False), (1, 1, True), (0, 1, True), (2, 1, False)]
)
def test_who_relies_on_others_noise_says_how_many_may_collude(
    least: int | None, colluding: int, accepted: bool
) -> None:
    limits, settings = LimitSettings(min_colluding=least, max_epsilon=8, **OF_NODES), joint(colluding)
    reason = refusal(limits, settings, "B", epsilon=4)
    assert (reason is None) == accepted
    if reason is not None:
        assert reason.startswith(
            f"limits.min_colluding={'null' if least is None else least} and averaging.privacy.joint_noise."
        )
    assert refusal(LimitSettings(max_epsilon=8, **OF_NODES), settings, SERVER, epsilon=0) is None


def test_what_epsilon_would_bound_is_said_with_the_epsilon() -> None:
    """And what no noise is on is not among it."""
    epsilon = largest_epsilon(votes(), "B")
    told = refusal(LimitSettings(leakage=()), votes(), "B", epsilon=epsilon)
    assert told is not None
    _, _, bounded = told.partition("; or, in place of ")
    assert bounded.startswith("noisy-votes, limits.max_epsilon")
    assert told.endswith(": the job costs B a total ε of 4 (unit edge, replacement)")
    assert "data init --protect --epsilon" in told
    bound = LimitSettings(leakage=NAMED, max_epsilon=4.01, **about.EDGES)
    assert refusal(bound, votes(), "B", epsilon=epsilon) is None
    for limits, other in (
        (LimitSettings(leakage=()), job()),
        (LimitSettings(leakage=(), max_epsilon=3, **about.EDGES), votes()),
    ):
        assert "in place of" not in str(refusal(limits, other, "B", epsilon=largest_epsilon(other, "B")))
