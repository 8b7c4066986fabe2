"""The methods by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from veilgraph.paradigms.vertical.initial.collaborative import Collaborative
from veilgraph.paradigms.vertical.initial.individual import Individual
from veilgraph.paradigms.vertical.initial.method import EmbeddingSession, InitialEmbedding
from veilgraph.paradigms.vertical.initial.own_nodes import OWN_NODES, WithOwnNodes
from veilgraph.paradigms.vertical.initial.secure_sum import SecureSum

METHODS: Final[dict[str, type[Individual] | type[Collaborative]]] = {
    "individual": Individual,
    "secure-sum": SecureSum,
    "collaborative": Collaborative,
}


def build_embedding(session: EmbeddingSession) -> InitialEmbedding:
    """The method that the job names, set up for this session (may exchange messages)."""
    joint = METHODS[session.settings.method if session.settings.is_joint else "individual"](session)
    if session.own is None:
        return joint
    own = Individual(replace(session, matrix=session.own, own=None), OWN_NODES)
    return WithOwnNodes(joint, own, common=session.matrix.shape[0])
