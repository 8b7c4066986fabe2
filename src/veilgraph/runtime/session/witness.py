"""What each party keeps of a training whose messages are signed, for ``dispute``: all that it put in, drew and got.

    graph.safetensors        a holder's graph
    inputs-N.safetensors     of session N: the key of all that the party drew, and what it put in
    evidence-N.safetensors   digest and signature of every message that it took; as facts the job and all parties' keys

A session that goes on from a checkpoint comes beside those before it. What a party took until a checkpoint is written
before the checkpoint is, so a party that is killed has the evidence of all that the training goes on from.

Everything that a party draws in the session follows from one secret key. With what it puts in, it is committed to by
SHA-256 before anything is computed from it; the key keeps others from testing a guess. So nobody can explain a message
later by other inputs or another key.

Of messages there are digests alone. But with a party's folder its data are there, and with the folder of whoever deals
every mask.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import scipy
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.files import private_folder, run_errors
from veilgraph.core.randomness import Keystream
from veilgraph.core.secrets import SEED_BYTES, SecretSource, system_secrets
from veilgraph.core.settings import Exact
from veilgraph.core.tensor_file import load_tensors, save_tensors
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.link.channel import length_prefixed
from veilgraph.link.collectives import exchange
from veilgraph.link.identity import Identity
from veilgraph.link.signed import DIGEST_BYTES, SIGNATURE_BYTES, Signed, SignedLink, sign_messages
from veilgraph.link.statement import SessionKey
from veilgraph.protocol.agreement import MOST_POINTS, Point, Start
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.role import RoleContext, Witness
from veilgraph.runtime.store.session_log import installed_software

DISPUTE: Final = "dispute"
"""Name of the folder, in a party's part of a run."""
COMMITTED: Final = Tag(Kind.SIGNATURE, 0, (1 << 16) - 1)
"""Of the message with a party's commitment."""
_LABEL: Final = b"veilgraph inputs 1"
_GRAPH: Final = "graph.safetensors"
_SESSION: Final = re.compile(r"evidence-([0-9]{1,10})\.safetensors")
_PUT_IN, _KEY, _TAGS, _DIGESTS, _SIGNATURES = "in/", "key", "tags", "digests", "signatures"


def secrets_of(key: bytes) -> SecretSource:
    """Return the source of all that a party draws in a session."""
    stream = Keystream(key, "session")
    return lambda length: stream.take(length).numpy().tobytes()


def commit(link: Link, job: JobSettings, key: bytes, graph: bytes, tensors: Mapping[str, Tensor]) -> None:
    """Exchange commitments with all other parties of a session; ``graph`` is the digest of the graph's file."""
    parts = [_LABEL, link.party.encode(), key, graph]
    for name, tensor in sorted(tensors.items()):
        dense = tensor.contiguous()
        form = f"{name}/{dense.dtype}/{tuple(dense.shape)}"
        parts += [form.encode(), bytes(dense.view(-1).view(torch.uint8).numpy().data)]
    found = torch.frombuffer(bytearray(hashlib.sha256(length_prefixed(*parts)).digest()), dtype=torch.uint8)
    exchange(link, [party for party in (*job.data.names, SERVER) if party != link.party], COMMITTED, found)


class Recorder(Witness):
    """Keeps a party's part of a session in ``folder``; ``secrets`` is what it draws from."""

    def __init__(self, link: SignedLink, folder: Path, graph: PartyGraph | None, facts: SessionFacts) -> None:
        self._link, self._folder, self._graph, self._facts = link, folder, graph, facts
        self._key = system_secrets(SEED_BYTES)
        self._number: int | None = None
        self.secrets = secrets_of(self._key)

    @override
    def put_in(self, tensors: Mapping[str, Tensor], held: Sequence[Point], start: Start) -> Mapping[str, Tensor]:
        self._facts = self._facts.model_copy(update={"held": list(held), "session": start.session})
        folder = private_folder(self._folder)
        if not start.epoch:  # else what it goes on from follows from the evidence that is there
            for path in folder.glob("*-*.safetensors"):
                path.unlink()
            if self._graph is not None:
                save_party(self._graph, folder / _GRAPH)
        self._number = start.number
        _evidence(folder, start.number).unlink(missing_ok=True)  # of a session that was cut off, and had another key
        own = {_KEY: _rows([self._key], SEED_BYTES), **{f"{_PUT_IN}{name}": each for name, each in tensors.items()}}
        save_tensors(_inputs(folder, start.number), own, {})
        commit(self._link, parse_job(self._facts.job), self._key, _graph_digest(folder), tensors)
        return tensors

    @override
    def keep(self) -> None:
        """Write what this party has taken, if the session got as far as to commit."""
        if self._number is None:
            return
        received, names = self._link.received, [each.party for each in self._link.keys]
        tags = [[names.index(sender), tag.kind, tag.step, tag.round] for sender, tag in received]
        tensors = {
            _TAGS: torch.tensor(tags, dtype=torch.int64).reshape(-1, 4),
            _DIGESTS: _rows([each.digest for each in received.values()], DIGEST_BYTES),
            _SIGNATURES: _rows([each.signature for each in received.values()], SIGNATURE_BYTES),
        }
        save_tensors(_evidence(self._folder, self._number), tensors, self._facts.model_dump(mode="json"))


def software_here() -> dict[str, str]:
    """Return the versions, and the kind of machine, on which the last bit of a holder's own numbers may depend."""
    return {**installed_software(), "scipy": scipy.__version__, "machine": platform.machine()}


class SessionFacts(Exact):
    """What is said of a session beside its tensors."""

    party: Annotated[str, Field(min_length=1, max_length=256)]
    alignment: Annotated[str, Field(max_length=128)]
    restarts: bool
    """Whether the party would have begun again from nothing, as it told the others."""
    held: Annotated[list[tuple[int, int, str]], Field(max_length=MOST_POINTS)] = Field(default_factory=list)
    """Checkpoints that it stated; the session went on from the newest that all did."""
    session: Annotated[str, Field(max_length=64)] = ""
    """The session's id."""
    software: dict[str, str]
    """Where it ran, as ``software_here``."""
    keys: Annotated[list[SessionKey], Field(max_length=256)]
    """Of all parties, in the order of the job."""
    job: dict[str, Any]
    """Its settings."""


@contextmanager
def recorded(
    context: RoleContext, folder: Path, graph: PartyGraph | None, identity: Identity | None, server_name: str
) -> Iterator[RoleContext]:
    """Yield the context of a role whose messages are signed; its evidence is saved in a party's ``folder`` at the end.

    The end may be an error. Arguments and errors as of ``sign_messages``.
    """
    job = context.settings
    link = sign_messages(context.link, (*job.data.names, SERVER), job.hash(), identity, server_name)
    facts = SessionFacts(
        party=link.party,
        alignment=context.alignment,
        restarts=context.restarts,
        software=software_here(),
        keys=list(link.keys),
        job=job.model_dump(mode="json"),
    )
    recorder = Recorder(link, folder / DISPUTE, graph, facts)
    try:
        yield replace(context, link=link, secrets=recorder.secrets, witness=recorder)
    finally:
        recorder.keep()


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a party handed over of a session: see above."""

    facts: SessionFacts
    job: JobSettings
    key: bytes
    graph: PartyGraph | None
    graph_digest: bytes
    put_in: Mapping[str, Tensor]
    received: Mapping[tuple[PartyId, Tag], Signed]

    @property
    def party(self) -> PartyId:
        """Whose it is."""
        return self.facts.party

    @classmethod
    def read(cls, folder: Path) -> list[Evidence]:
        """Read a folder that ``Recorder`` wrote: the party's sessions, in their order.

        Raises ``RunError`` or ``DataError``: it is missing or damaged.
        """
        found = [_SESSION.fullmatch(path.name) for path in (folder.iterdir() if folder.is_dir() else ())]
        numbers = sorted(int(name.group(1)) for name in found if name is not None)
        if not numbers:
            raise RunError(
                f"{folder}: no evidence of a training; give the folder {DISPUTE} of a party's part of a run whose job "
                "has disputes: true"
            )
        graph = load_party(folder / _GRAPH) if (folder / _GRAPH).is_file() else None
        with run_errors(folder, "ask its party for a copy", "damaged"):
            return [cls._read(folder, number, graph) for number in numbers]

    @classmethod
    def _read(cls, folder: Path, number: int, graph: PartyGraph | None) -> Evidence:
        tensors, said = load_tensors(_evidence(folder, number))
        own, _ = load_tensors(_inputs(folder, number))
        facts = SessionFacts.model_validate_json(json.dumps(said))
        job = parse_job(facts.job, str(folder))
        names = (*job.data.names, SERVER)
        if [each.party for each in facts.keys] != list(names) or facts.party not in names:
            raise ValueError("its keys are not of the job's parties")
        if (facts.party == SERVER) == (graph is not None):
            fault = f"has a {_GRAPH}, and no data" if facts.party == SERVER else f"lacks its {_GRAPH}"
            raise ValueError(f"{facts.party} {fault}")
        if not job.passes.signed:
            raise ValueError("its job signs no messages")
        key, tags, digests, signatures = own.pop(_KEY), *(tensors.pop(name) for name in (_TAGS, _DIGESTS, _SIGNATURES))
        _check(key, (1, SEED_BYTES), torch.uint8)
        count = tags.numel() // 4
        _check(tags, (count, 4), torch.int64)
        if bool((tags < 0).any() or (tags[:, 0] >= len(names)).any()):
            raise ValueError("a message of no party")
        _check(digests, (count, DIGEST_BYTES), torch.uint8)
        _check(signatures, (count, SIGNATURE_BYTES), torch.uint8)
        received = {
            (names[sender], Tag(Kind(kind), step, round_)): Signed(bytes(digest), bytes(signature))
            for (sender, kind, step, round_), digest, signature in zip(
                tags.tolist(), digests.numpy(), signatures.numpy(), strict=True
            )
        }
        put_in = {name.removeprefix(_PUT_IN): each for name, each in own.items()}
        return cls(facts, job, bytes(key.numpy()), graph, _graph_digest(folder), put_in, received)


def _evidence(folder: Path, number: int) -> Path:
    return folder / f"evidence-{number}.safetensors"


def _inputs(folder: Path, number: int) -> Path:
    return folder / f"inputs-{number}.safetensors"


def _graph_digest(folder: Path) -> bytes:
    """SHA-256 of the graph's file; empty where there is none."""
    path = folder / _GRAPH
    return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""


def _rows(parts: list[bytes], size: int) -> Tensor:
    return torch.tensor(list(b"".join(parts)), dtype=torch.uint8).reshape(-1, size)


def _check(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ValueError(f"a tensor of {tuple(tensor.shape)} {tensor.dtype}, and not of {shape} {dtype}")
