"""Every secret that protects is the system's, of its full length, new in every run, and not sent."""

from __future__ import annotations

import inspect
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from veilgraph_node_dp.mechanisms import MultiBit
from veilgraph_testing.sealed_link import SealedLink

from tests.link.certificates import Project, fresh_key
from tests.paradigms.exported import export, over
from tests.paradigms.local import edges
from tests.roles.federation import merge, small_job, small_parties
from tests.roles.local_parties import PRIVATE_LABELS, local_job, local_parties
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, Kind
from veilgraph.link.channel import ChannelContext
from veilgraph.link.factory import MemoryHub
from veilgraph.link.identity import encrypt_key
from veilgraph.link.view import read_view
from veilgraph.mpc.mask import SecretRounding
from veilgraph.privacy import noise
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.inputs import GivenParties
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_organisations


@dataclass(frozen=True)
class Draw:
    """One answer of the system's source: for what, in which part of the program, and the bytes."""

    by: str
    drawn: bytes


class Spy:
    """In place of the system's source: gives what it gives, and notes who asked."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []

    def __call__(self, length: int) -> bytes:
        caller = sys._getframe(1)
        module = str(caller.f_globals["__name__"]).removeprefix("veilgraph.")
        drawn = os.urandom(length)
        function = caller.f_code.co_qualname.split(".<locals>", 1)[0]
        self.draws.append(Draw(f"{module}.{function}", drawn))
        return drawn


@contextmanager
def spied() -> Iterator[Spy]:
    """The system's source wherever the program holds it, as a name or as a default, is the spy's inside the block."""
    spy = Spy()
    _replace(os.urandom, spy)
    try:
        yield spy
    finally:
        _replace(spy, os.urandom)


def _replace(old: Callable[[int], bytes], new: Callable[[int], bytes]) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("veilgraph"):
            for held, value in list(vars(module).items()):
                if value is old:
                    setattr(module, held, new)
            for function in _functions(module):
                if function.__defaults__ is not None:
                    function.__defaults__ = tuple(new if each is old else each for each in function.__defaults__)
                if function.__kwdefaults__ is not None:
                    named = function.__kwdefaults__.items()
                    function.__kwdefaults__ = {held: new if each is old else each for held, each in named}


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in list(vars(module).values()):
        of_class = list(vars(value).values()) if inspect.isclass(value) else []
        for each in (value, *of_class):
            if isinstance(each, FunctionType) and each.__module__ == module.__name__:
                yield each


Asked = dict[str, tuple[int, int]]
"""Part of the program → how often it asks, and for how many bytes."""


@dataclass(frozen=True)
class Case:
    """A job, its data, and all that its parties ask the source for; beside what every party does in every job."""

    settings: JobSettings
    parties: GivenParties | None
    asked: Asked


ONE: dict[str, Any] = {"train": {"epochs": 1, "checkpoint_every": 1}}
MASKS, NOISE = "mpc.mask.PairwiseMasks.agree", "privacy.noise.gaussian"
DRAWS, CANARIES = "core.secrets.random_name", "runtime.session.publishers.with_canaries"


def collaborative(folder: Path) -> Case:
    """From tables: ids are aligned under secret keys, h^0 is shared under the dealer's masks, embeddings are masked."""
    settings = small_job(3, ONE)
    paths = export_organisations(small_parties(3), folder, overlap=0.8, seed=1, job=settings)
    data = {"data": {"dataset": None, "parties": {name: str(path) for name, path in paths.items()}}}
    asked = {
        "mpc.curve25519._draw": ((2 + 3) * 3, 32),
        "mpc.intersect._Ring._send_own": (3, 32),
        MASKS: (3, 32),
        "mpc.product.Dealer.__init__": (3, 32),
    }
    return Case(parse_job(merge(settings.model_dump(mode="json", exclude={"data"}), data)), None, asked)


def summed(folder: Path) -> Case:
    """Noise on the learner's sums of two hops, beside what nodes perturb, some of them canaries."""
    settings = local_job(3, edges(), ONE, canaries=20)
    asked = {
        "veilgraph_node_dp.mechanisms.MultiBit._perturbed": (2, 32),
        CANARIES: (2, 32),
        NOISE: (2, 32),
        DRAWS: (3, 16),
    }
    return Case(settings, local_parties(settings), asked)


def perturbed(folder: Path) -> Case:
    settings = local_job(3, PRIVATE_LABELS, ONE)
    asked = {
        "veilgraph_node_dp.mechanisms.MultiBit._perturbed": (2, 32),
        "privacy.randomised_response.LabelResponse.release": (1, 32),
        DRAWS: (3, 16),
    }
    return Case(settings, local_parties(settings), asked)


def horizontal(folder: Path) -> Case:
    """From tables with statistics of all rows: keys and rounding for these, keys again for training."""
    settings = parse_job(
        {
            "paradigm": "horizontal",
            "data": {"dataset": "synthetic", "holders": 2, "feature_scaling": "standard"},
            "model": {"dim": 4, "layers": 1, "combine": "secure-max"},
            **ONE,
        }
    )
    asked = {
        MASKS: (2 * 2 + 2, 32),
        "paradigms.horizontal.paradigm._fresh_identity": (3, 32),
        "paradigms.horizontal.node_lists.share_secrets": (1, 32),
        "paradigms.horizontal.node_lists.send_places": (1, 8 * 400),
        "mpc.compare.MaxServer.__init__": (2, 32),
    }
    return Case(over(export(folder, settings), settings), None, asked)


def of_every_party(parties: int) -> Asked:
    return {
        "core.randomness.private_seed": (parties, 32),
        "runtime.session.exchange.RecordExchange.__init__": (parties, 32),
        "protocol.role.RoleContext.nonce": (parties, 16),
    }


TOLD: dict[str, Kind] = {
    "protocol.role.RoleContext.nonce": Kind.HELLO,
    "paradigms.horizontal.paradigm._fresh_identity": Kind.HELLO,
    "mpc.product.Dealer.__init__": Kind.SEED,
    "mpc.compare.MaxServer.__init__": Kind.SEED,
    "paradigms.horizontal.node_lists.share_secrets": Kind.NODE_KEY,
}
"""What is drawn to be told, and the one kind of message that tells it. Nothing else that is drawn is ever sent."""


@pytest.mark.parametrize("make", [collaborative, summed, perturbed, horizontal])
def test_all_that_protects_is_drawn_from_the_system_whole_and_anew(
    make: Callable[[Path], Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the seeds of other generators are; and neither sent nor used for two things."""
    case = make(tmp_path / "tables")
    names = (*case.settings.data.names, SERVER)
    everything: list[bytes] = []
    rounding: list[bytes] = []  # keys, of both runs
    keyed = SecretRounding.__init__

    def noted(self: SecretRounding, key: bytes) -> None:
        rounding.append(key)
        keyed(self, key)

    monkeypatch.setattr(SecretRounding, "__init__", noted)
    for name in ("one", "two"):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        with spied() as spy:
            path = train(
                case.settings, tmp_path / name, parties=case.parties, private_seeds=True, record_views=True
            ).path
        asked = Counter((draw.by, len(draw.drawn)) for draw in spy.draws)
        expected = case.asked | of_every_party(len(names))
        assert asked == Counter({(by, length): count for by, (count, length) in expected.items()})
        run = RunDirectory.open(path)
        assert {run.party(party).seed() for party in names} == {
            1 << 256 | int.from_bytes(draw.drawn, "big") for draw in spy.draws if draw.by.endswith("private_seed")
        }
        kept = [canaries.key for party in names if (canaries := run.party(party).canaries()) is not None]
        assert sorted(kept) == sorted(draw.drawn for draw in spy.draws if draw.by.endswith(CANARIES))
        of_seeds = {LearningStreams(run.party(party).seed(), party).secret("rounding") for party in names}
        drawn = {draw.drawn for draw in spy.draws if draw.by == MASKS}
        assert set(rounding) <= of_seeds | drawn | set(everything)
        everything += of_seeds
        assert len(set(rounding)) == len(rounding), "a holder's alone, in one run"
        assert_not_sent(run, names, spy.draws)
        everything += [draw.drawn for draw in spy.draws]
    assert len(set(everything)) == len(everything)


def assert_not_sent(run: RunDirectory, names: tuple[str, ...], draws: list[Draw]) -> None:
    """But what is drawn to be told: to whom it is for."""
    receivers: dict[bytes, set[str]] = {}
    for party in names:
        (view,) = run.party(party).views()
        for message in read_view(view):
            content = message.tensor().contiguous().numpy().tobytes() if message.sender == party else b""
            for draw in draws:
                if draw.drawn[:16] in content or draw.drawn[:16].hex().encode() in content:
                    assert TOLD.get(draw.by) is message.tag.kind, f"{message.tag} of {party} has a secret of {draw.by}"
                    receivers.setdefault(draw.drawn, set()).add(message.receiver)
    for draw in draws:
        if draw.by in TOLD:
            told = receivers.get(draw.drawn, set())
            assert TOLD[draw.by] is not Kind.SEED or len(told) == 1, "each holder has a seed of its own"
            assert TOLD[draw.by] is not Kind.NODE_KEY or SERVER not in told


def test_a_channel_and_a_sealed_key_ask_the_system() -> None:
    project, session = Project(), ChannelContext("job", ("bank", "shop"))
    hub = MemoryHub(["bank", "shop"], 5.0)
    drawn: set[bytes] = set()
    for _ in range(2):
        with spied() as spy:
            for name, peer in (("bank", "shop"), ("shop", "bank")):
                SealedLink(hub.link(name), project.identity(name), [peer], session)
            encrypt_key(fresh_key(), b"correct horse")
        assert Counter((draw.by, len(draw.drawn)) for draw in spy.draws) == {
            ("link.channel.Channel.__init__", 32): 2,
            ("link.channel.Channel.__init__", 64): 2,
            ("link.identity.encrypt_key", 32): 1,
            ("link.identity.encrypt_key", 16): 1,
        }
        drawn |= {draw.drawn for draw in spy.draws}
    assert len(drawn) == 12


PERTURBING: dict[str, Callable[[SecretSource], torch.Tensor]] = {
    "gaussian": lambda source: noise.gaussian((9,), 1.0, source),
    "laplace": lambda source: noise.laplace((9,), 1.0, source),
    "multi-bit": lambda source: MultiBit(1.0, 0.0, 1.0, 40, 20).release(torch.full((9, 40), 0.5), source),
    "labels": lambda source: LabelResponse(0.1, 50).release(torch.zeros(99, dtype=torch.int64), source),
}


@pytest.mark.parametrize("name", PERTURBING)
def test_every_part_of_a_seed_counts(name: str) -> None:
    """A seed that were cut short before it is expanded could be found by trying all that there are."""
    seeds = [bytes(place == other for other in range(32)) for place in range(33)]
    found = [PERTURBING[name](lambda length, seed=seed: seed[:length]) for seed in seeds]  # type: ignore[misc]
    assert len({each.numpy().tobytes() for each in found}) == len(seeds)
