"""Differential privacy in the federated job: the same noise in the plaintext network gives the same weights."""

import pytest
import torch

from tests.reference.twins import assert_twins
from tests.roles.federation import (
    Federation,
    Settings,
    dropout_everywhere,
    federate,
    small_job,
    small_parties,
    with_own_nodes,
)
from veilgraph.core.types import SERVER, Kind
from veilgraph.protocol.job import JobSettings

LAST: Settings = {"train": {"select_by": "last", "patience": None}}


def job(holders: int, *changes: Settings, precision: str = "float64") -> JobSettings:
    return small_job(holders, {"precision": precision}, LAST, *changes)


MECHANISMS = ["gaussian", "james-stein", "james-stein-plus", "laplace"]


@pytest.mark.cases(2)
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_weight_equals_the_twins(mechanism: str, rounds: int) -> None:
    number = MECHANISMS.index(mechanism) + rounds
    settings = job(
        2 + number % 2,
        dropout_everywhere(),
        {
            "model": {
                "rounds": rounds,
                "combine": {"strategy": ["mean", "regression"][number % 2], "masked": number % 3 == 0},
                "initial": {"method": ["collaborative", "individual", "secure-sum"][number % 3]},
            },
            "privacy": {
                "unit": "row",
                "schedule": "every-step",
                "mechanism": mechanism,
                "noise_multiplier": 0.3,
                "clip": 0.8,
                "gradient_clip": 0.02,
            },
        },
    )
    assert_twins(settings, small_parties(len(settings.data.names)), steps=8)


def test_with_nodes_that_only_one_holder_knows_and_concat() -> None:
    settings = job(
        3,
        {
            "model": {"combine": {"strategy": "concat"}},
            "privacy": {"unit": "row", "schedule": "every-step", "noise_multiplier": 0.2, "gradient_clip": 0.05},
        },
    )
    assert_twins(settings, with_own_nodes(small_parties(3), (5, 0, 4)), steps=6)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("holders", "colluding", "rounds"), [(3, 1, 1), (4, 1, 2), (5, 3, 1)])
def test_with_noise_that_is_made_jointly_every_weight_equals_the_twins(
    holders: int, colluding: int, rounds: int
) -> None:
    """Rows with a share each are summed as they are, and divided by the server; so are gradients of rounds."""
    noise = {"noise_multiplier": 0.3, "clip": 0.8, "gradient_clip": 0.02, "joint_noise": {"colluding": colluding}}
    settings = job(
        holders,
        dropout_everywhere(),
        {
            "model": {"rounds": rounds, "initial": {"method": "individual"}, "local": {"model": "sage-mean"}},
            "privacy": {"unit": "row", "schedule": "every-step", **noise},
        },
    )
    assert_twins(settings, with_own_nodes(small_parties(holders), (5, 0, 4, 1, 2)[:holders]), steps=6)


@pytest.mark.parametrize("joint", [None, {"colluding": 1}])
def test_with_next_to_no_noise_sums_give_what_the_job_without_noise_gives(joint: Settings | None) -> None:
    """The limiting case: who divides them, and by what, changes nothing."""
    model: Settings = {"model": {"rounds": 2, "initial": {"method": "individual"}, "combine": {"bits": 40}}}
    noise = {"noise_multiplier": 1e-7, "clip": 100, "gradient_clip": 100, **({"joint_noise": joint} if joint else {})}
    privacy: Settings = {"privacy": {"unit": "row", "schedule": "every-step", **noise}}
    plain, private = (federate(job(3, model, *more), small_parties(3), 0) for more in ((), (privacy,)))
    assert float((plain.label_holder.logits - private.label_holder.logits).abs().max()) < 1e-3


@pytest.mark.cases(2)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("rounds", [1, 2])
def test_infinite_epsilon_is_no_publisher_bit_for_bit(rounds: int, masked: bool) -> None:
    """No noise and a clip that no row reaches: same weights, same logits, and the very same messages."""
    model: Settings = {"model": {"rounds": rounds, "combine": {"masked": masked}, "initial": {"method": "individual"}}}
    open_door = job(2, dropout_everywhere("float32"), model, precision="float32")
    publisher = job(
        2,
        dropout_everywhere("float32"),
        model,
        {
            "privacy": {
                "unit": "row",
                "schedule": "every-step",
                "noise_multiplier": 0,
                "clip": 100,
                "gradient_clip": 100,
            }
        },
        precision="float32",
    )
    graphs = small_parties(2)
    without, with_it = federate(open_door, graphs, 5), federate(publisher, graphs, 5)
    assert torch.equal(without.label_holder.logits, with_it.label_holder.logits)
    ours, theirs = without.weights(), with_it.weights()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    if not masked:
        assert sent(without) == sent(with_it)


def sent(federation: Federation) -> list[tuple[object, bytes]]:
    """What the holders sent to the server, to the bit."""
    return sorted(
        ((message.sender, message.tag.kind, message.tag.step, message.tag.round), message.tensor.numpy().tobytes())
        for message in federation.transcripts[SERVER]
        if message.tag.kind in (Kind.EMBEDDING, Kind.GRADIENT) and message.receiver == SERVER
    )


def test_all_rows_of_a_gradient_are_noised_and_embeddings_are_within_reach_of_the_clip() -> None:
    """Without noise the server sees from the zero rows who is not trained on; with noise no row is zero."""
    graphs = small_parties(2)
    model: Settings = {"model": {"combine": {"masked": False}, "initial": {"method": "individual"}}}
    privacy: Settings = {
        "privacy": {
            "unit": "row",
            "schedule": "every-step",
            "noise_multiplier": 0.5,
            "clip": 0.25,
            "gradient_clip": 0.001,
        }
    }
    plain, private = federate(job(2, model), graphs, 2), federate(job(2, model, privacy), graphs, 2)
    train = graphs[0].train_mask
    assert train is not None
    for federation, expected in ((plain, int(train.sum())), (private, len(train))):
        gradients = [
            message.tensor
            for message in federation.transcripts[SERVER]
            if message.tag.kind is Kind.GRADIENT and message.receiver == SERVER
        ]
        assert len(gradients) == 2
        assert all(int(gradient.any(dim=1).sum()) == expected for gradient in gradients)
    for message in private.transcripts[SERVER]:
        if message.receiver == SERVER and message.tag.kind in (Kind.GRADIENT, Kind.EMBEDDING):
            # Both holders' pieces are halves (mean); noise of one entry: 0.5·C, tails beyond 8 deviations never come.
            clip = 0.001 if message.tag.kind is Kind.GRADIENT else 0.25 / 2
            length = message.tensor.norm(dim=1)
            assert float(length.max()) < clip * (1 + 0.5 * 8 * message.tensor.shape[1] ** 0.5)
            assert float(message.tensor.std()) > 0.4 * clip, "no noise of that size is in it"
