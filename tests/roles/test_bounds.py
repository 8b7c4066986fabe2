"""What a party states of itself is held to what the job allows, and whose doing it was is said."""

from collections.abc import Mapping
from typing import Any

import pytest
from veilgraph_node_dp.learner import Bystander

from tests.errors import refused
from tests.paradigms.averaging.private_jobs import job as private_job
from tests.roles.federation import small_job
from tests.roles.local_parties import local_job, session_of
from veilgraph.core.errors import BudgetSpent, ProtocolError
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.link.collectives import text_tensor
from veilgraph.link.factory import MemoryHub
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.bounds import MAX_RELEASES_APART, agree_and_check_bounds, check_bounds
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import MAX_CLASSES, MAX_FEATURES
from veilgraph.runtime.session.training import last_epoch

COLLABORATIVE = small_job()
BITS = small_job(2, {"model": {"initial": {"feature_bits": 20}}})
INDIVIDUAL = small_job(2, {"model": {"initial": {"method": "individual"}}})
PRIVATE = private_job({"data": {"holders": 2}, "train": {"epochs": 6}})
HORIZONTAL = parse_job({"paradigm": "horizontal", "data": {"dataset": "synthetic", "holders": 2}})


def stated(job: JobSettings, changes: Mapping[str, Any], party: PartyId = "B") -> dict[PartyId, Hello]:
    """Honest hellos, but for what one party changes."""
    joint = vertical(job).model.initial.is_joint
    usual: dict[str, Any] = {"nodes": 60, "features": 6 if joint else 0}
    if vertical(job).model.initial.method == "collaborative":
        bits = vertical(job).model.initial.feature_bits
        usual["feature_bits"] = 3 if bits is None else bits
    each: dict[PartyId, dict[str, Any]] = {"A": dict(usual), "B": dict(usual), SERVER: {}}
    each[party] |= changes
    return {name: Hello(job=job.hash(), **facts) for name, facts in each.items()}


def epoch_of(value: object) -> object:
    """What a refusal shows: of a checkpoint its epoch."""
    return value[1] if isinstance(value, tuple) else value


@pytest.mark.parametrize("job", [COLLABORATIVE, BITS, INDIVIDUAL])
def test_honest_parties_pass(job: JobSettings) -> None:
    check_bounds(job, stated(job, {}))
    check_bounds(job, stated(job, {"checkpoints": [(1, 2, "a"), (1, job.train.epochs, "a")]}))


@pytest.mark.parametrize(
    ("job", "changes", "allowed"),
    [
        (COLLABORATIVE, {"feature_bits": 64}, "from 0 to 12"),
        (COLLABORATIVE, {"feature_bits": 13}, "from 0 to 12"),
        (BITS, {"feature_bits": 12}, "20"),
        (INDIVIDUAL, {"feature_bits": 1}, "0"),
        (COLLABORATIVE, {"features": 0}, f"from 1 to {MAX_FEATURES}"),
        (COLLABORATIVE, {"features": 2**32}, f"from 1 to {MAX_FEATURES}"),
        (INDIVIDUAL, {"features": 6}, "0"),
        (COLLABORATIVE, {"nodes": 0}, "from 1 to 4294967296"),
        (COLLABORATIVE, {"classes": 2}, "0"),
        (COLLABORATIVE, {"release": 1}, "0"),
        (COLLABORATIVE, {"steps": 0}, "null"),
        (COLLABORATIVE, {"checkpoints": [(1, 1, "a"), (1, 7, "a")]}, "at most train.epochs=6"),
    ],
)
def test_what_a_job_does_not_allow_is_refused_with_party_field_and_value(
    job: JobSettings, changes: dict[str, Any], allowed: str
) -> None:
    ((field, value),) = changes.items()
    shown = epoch_of(max(value) if isinstance(value, list) else value)
    with refused(ProtocolError, code="stated", key=field, value=shown, party="B"):
        check_bounds(job, stated(job, changes))


@pytest.mark.parametrize("field", ["nodes", "features", "feature_bits", "classes", "release", "steps"])
def test_a_server_states_nothing_of_data(field: str) -> None:
    with refused(ProtocolError, code="stated", key=field, value=1, party="server"):
        check_bounds(COLLABORATIVE, stated(COLLABORATIVE, {field: 1}, SERVER))


def test_a_horizontal_job_has_columns_and_classes_and_no_common_nodes() -> None:
    def hellos(**changes: Any) -> dict[PartyId, Hello]:
        facts: dict[PartyId, dict[str, Any]] = {"A": {"features": 6, "classes": 3}, "B": {"features": 6}, SERVER: {}}
        facts["B"] |= changes
        return {name: Hello(job=HORIZONTAL.hash(), **stated) for name, stated in facts.items()}

    check_bounds(HORIZONTAL, hellos(classes=MAX_CLASSES))
    for field, value in (("classes", MAX_CLASSES + 1), ("features", 2**32), ("nodes", 60), ("feature_bits", 3)):
        with refused(ProtocolError, code="stated", key=field, value=value, party="B"):
            check_bounds(HORIZONTAL, hellos(**{field: value}))


@pytest.mark.parametrize(("start", "last"), [(0, None), (1, 1), (4, 4)])
def test_whose_budget_ends_a_training_is_said(start: int, last: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """One party's ``steps: 0`` ends everybody's training: legal, for a budget may be spent, but not anonymous."""
    facts = {"features": 6, "classes": 3}
    each: dict[PartyId, dict[str, Any]] = {"A": {**facts, "steps": 40}, "B": {**facts, "steps": 0}, SERVER: {}}
    hellos = {name: Hello(job=PRIVATE.hash(), **said) for name, said in each.items()}
    check_bounds(PRIVATE, hellos)
    role = Bystander(session_of(PRIVATE, MemoryHub(["A", "B"], 1).link("A")))
    role.allow_steps(hellos)
    assert role.scarcest == ("B",)
    with caplog.at_level("INFO", "veilgraph"):
        if last is None:
            with refused(BudgetSpent, code="no-checkpoint"):
                last_epoch(role, start)
        else:
            assert last_epoch(role, start) == last
            assert (
                f"the privacy budget of B allows 0 more training steps: training ends after epoch {last}" in caplog.text
            )


@pytest.mark.parametrize("changes", [{"feature_bits": 64}, {"features": 2**31}, {"steps": 0}])
def test_a_role_hears_who_states_too_much_before_anything_is_set_aside(changes: dict[str, Any]) -> None:
    hub = MemoryHub(["A", "B", SERVER], 1)
    hellos = stated(COLLABORATIVE, changes)
    for sender in ("B", SERVER):
        hub.link(sender).send("A", Tag(Kind.HELLO), text_tensor(hellos[sender].model_dump_json()))
    ((field, value),) = changes.items()
    with refused(ProtocolError, code="stated", key=field, value=value, party="B"):
        agree_and_check_bounds(session_of(COLLABORATIVE, hub.link("A")), hellos["A"])


def test_a_release_is_not_numbered_far_ahead_of_all_others() -> None:
    job = local_job(2)
    learner, other = job.data.label_party, job.duties.releasing[0]

    def hellos(ahead: int) -> dict[PartyId, Hello]:
        facts: dict[PartyId, dict[str, Any]] = {
            learner: {"nodes": 60, "release": 7},
            other: {"nodes": 60, "features": 6, "release": ahead, "steps": 1},
            SERVER: {},
        }
        return {name: Hello(job=job.hash(), **stated) for name, stated in facts.items()}

    for ahead in (7, -7, 0, 7 + MAX_RELEASES_APART):
        check_bounds(job, hellos(ahead), releases=True)
    for ahead in (8 + MAX_RELEASES_APART, -(2**32)):
        with refused(ProtocolError, code="stated", key="release", value=ahead, party="B"):
            check_bounds(job, hellos(ahead), releases=True)
