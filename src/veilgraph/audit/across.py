"""An audit across organisations: who has seen something attacks at home, and who is attacked scores it at home.

Nobody has everybody's data. Every holder asks every other party about pairs of nodes that it has drawn at random, from
a secret of its own and from nothing of its data. The other mounts the attacks that need nothing but what its link has
recorded, and answers with the order in which these rank what is asked. The holder alone knows which of the answers are
true, and keeps what comes of it.

    AUDIT_QUESTION  target → adversary  round 0: facts; round 1: pairs [M, 2] int64
    AUDIT_ANSWER    adversary → target  round 0: which attacks, on what; for answer k of step k: round 1: targets
                                        [T, 2] int64, where the adversary had to choose them; round 2: ranks [T] float32
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from scipy.stats import rankdata

from veilgraph.audit.attack import ALIKE, ATTACKS, AuditContext, Nodes, Parts, load_view
from veilgraph.audit.finding import (
    FALSE_ALARM_RATE,
    Finding,
    Outcome,
    Secret,
    Skipped,
    judge_findings,
    limits_of,
    measure_outcome,
    save_audit,
)
from veilgraph.audit.pairs import KnownPairs, Pairs, pair_codes, pair_products, random_pairs
from veilgraph.audit.statistics import Truth
from veilgraph.core.errors import DataError, ProtocolError, RunError
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.settings import Exact
from veilgraph.core.text import printable
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.features import to_numbers
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.link.collectives import receive_as, receive_model, text_tensor
from veilgraph.protocol.agreement import one_line
from veilgraph.protocol.evidence import Evidence, evidence_of
from veilgraph.protocol.view import Floats
from veilgraph.runtime.session.preparation import kept_identity
from veilgraph.runtime.store.run_directory import RunDirectory

MOST_PAIRS: Final = 500_000
"""That are asked about; of fewer nodes all pairs. Ranks of as many are whole numbers in single precision."""

_SCORED: Final = 1000  # true and other pairs, each, that a figure is made of
_FEWEST: Final = 20
_MOST_CLASSMATES: Final = 1000
_MOST_ANSWERS: Final = 200
_WORDS: Final = 300
_MOST_BYTES: Final = 1 << 20  # of a question or an answer without its pairs
MOST_COMPARED: Final = 20_000
"""Nodes that are compared each with each."""

log = logging.getLogger("veilgraph")

EVERYBODYS: Final = ATTACKS.own
"""The attacks that every party knows; those of other packages are mounted on one machine."""


def _everybodys(name: str) -> str:
    if name not in EVERYBODYS:
        raise ValueError(f"choose one of {', '.join(map(repr, EVERYBODYS))}")
    return name


_Name = Annotated[str, AfterValidator(_everybodys)]
_Line = Annotated[str, Field(max_length=_WORDS), AfterValidator(one_line)]


class Question(Exact):
    """What a holder asks about: its number of nodes, whether it has labels, and the alignment of its tables."""

    nodes: Annotated[int, Field(ge=2, le=2**32)]
    labels: bool
    alignment: Annotated[str, Field(max_length=128, pattern=r"^[0-9a-z]*$")] = ""


class Answer(Exact):
    """One attack on one kind of evidence."""

    attack: _Name
    evidence: _Line


class Unanswered(Exact):
    """An attack that the adversary did not mount."""

    attack: _Name
    why: _Line
    raised: bool = False


class Answers(Exact):
    """The attacks that an adversary has mounted and has not, sent before any ranks."""

    answers: Annotated[list[Answer], Field(max_length=_MOST_ANSWERS)] = Field(default_factory=list)
    unanswered: Annotated[list[Unanswered], Field(max_length=_MOST_ANSWERS)] = Field(default_factory=list)


def audit_across(run: RunDirectory, party: PartyId, link: Link, secrets: SecretSource = system_secrets) -> None:
    """One party's part: it answers every holder, and scores what it is answered; writes ``audit.json`` at a holder.

    The parties on ``link`` allow the audit; questions are of ``secrets``. ``RunError``: this party's part is damaged.
    """
    others = [name for name in (SERVER, *run.settings.data.names) if name != party]
    target = None if party == SERVER else _AskingHolder(run, party, secrets)
    if target is not None:
        for other in others:
            link.send(other, Tag(Kind.AUDIT_QUESTION), text_tensor(target.question.model_dump_json()))
            link.send(other, Tag(Kind.AUDIT_QUESTION, 0, 1), torch.from_numpy(target.pairs))
    for other in others:
        if other != SERVER:
            question = receive_model(link, other, Tag(Kind.AUDIT_QUESTION), Question, _MOST_BYTES)
            asked = receive_as(link, other, Tag(Kind.AUDIT_QUESTION, 0, 1), (None, 2), torch.int64).numpy()
            _check_pairs(asked, question.nodes, other)
            _answer(run, party, link, other, question, asked)
    if target is None:
        return
    found = [each for other in others for each in target.receive_findings(link, other)]
    result = judge_findings(run.settings, 0, found, limits_of(run.settings.audit_limits, {}))
    save_audit(run.path, result)
    count, failed = len(result.findings), f", of which {len(result.failed)} do not pass" if result.failed else ""
    log.info("the audit has %d findings on the data here%s: veilgraph audit %s", count, failed, run.path)


def _answer(run: RunDirectory, party: PartyId, link: Link, target: PartyId, question: Question, asked: Pairs) -> None:
    """Mount blind attacks on a holder's question; send it which were mounted, and how they rank what is asked."""
    found, unanswered = list[tuple[Answer, Pairs | None, Floats]](), list[Unanswered]()
    case = _BlindCase(run, question, asked)
    try:
        evidence = _permitted_evidence(run, party, target, question)
    except RunError as error:
        log.warning("the audit: %s is not answered: %s", target, error)
        why = "it has no recorded view of a training on these tables"  # the error names files of ours
        evidence, unanswered = [], [_unanswered(name, why) for name in EVERYBODYS]
    for each in evidence:
        for name in EVERYBODYS:
            attack = ATTACKS[name]
            if each.sort not in attack.sorts or (attack.of_labels and not question.labels):
                continue
            try:
                if not attack.blind:
                    raise DataError("it is granted a part of the truth, or needs everybody's data")
                if attack.of_all_pairs and question.nodes > MOST_COMPARED:
                    raise DataError(f"it compares each node with each, of at most {MOST_COMPARED:,}")
                log.info("the audit: %s on %s, from %s", name, target, each.words)
                each.check_rows(question.nodes)
                outcome = attack.mount(each, case, party, target)
            except DataError as error:
                unanswered.append(_unanswered(name, error))
                continue
            except Exception:
                # The error may quote this party's data, so its words stay here.
                log.exception("the audit: %s on %s ended with an error", name, target)
                why = "it ended with an error at the party that mounted it, whose log names it"
                unanswered.append(Unanswered(attack=name, why=why, raised=True))
                continue
            chosen = case.chosen if _ASKED[attack.secret] == "chosen" else None
            found.append((Answer(attack=name, evidence=each.words[:_WORDS]), chosen, outcome.scores))
    distinct = {(each.attack, each.why): each for each in unanswered}.values()
    answers = [answer for answer, _, _ in found]
    said = Answers(answers=answers[:_MOST_ANSWERS], unanswered=[*distinct][:_MOST_ANSWERS])
    link.send(target, Tag(Kind.AUDIT_ANSWER), text_tensor(said.model_dump_json()))
    for step, (_, chosen, scores) in enumerate(found[:_MOST_ANSWERS]):
        if chosen is not None:
            link.send(target, Tag(Kind.AUDIT_ANSWER, step, 1), torch.from_numpy(chosen))
        ranks = rankdata(scores, method="dense").astype(np.float32)
        link.send(target, Tag(Kind.AUDIT_ANSWER, step, 2), torch.from_numpy(ranks))


def _permitted_evidence(run: RunDirectory, party: PartyId, target: PartyId, question: Question) -> list[Evidence]:
    """A party's evidence about a holder that it is meant to have; ``RunError``: tables were aligned anew since."""
    if kept_identity(run.party(party)) != question.alignment:
        raise RunError("the tables were aligned anew since it trained")
    found = evidence_of(load_view(run, party))
    return [each for each in found if each.permitted and each.sort != "beside" and target in each.about]


class _BlindCase(AuditContext):
    """A case without truth, and without the adversary's own data, which its scores would give away."""

    def __init__(self, run: RunDirectory, question: Question, asked: Pairs) -> None:
        super().__init__(run, seed=0, shadows=0)
        self._question, self._asked = question, KnownPairs(asked, np.zeros(len(asked), dtype=np.bool_))
        self.chosen: Pairs | None = None
        """The pairs that the last attack on labels chose among nodes with a gradient."""

    def graph(self, party: PartyId) -> PartyGraph:
        raise DataError(f"it needs data of {party}, which go into no answer")

    def own_parts(self, adversary: PartyId, target: PartyId) -> Parts:
        return ()

    def own_edges(self, adversary: PartyId) -> Nodes:
        return np.empty((2, 0), dtype=np.int64)

    def pooled_rows(self, target: PartyId, without: Sequence[int] = ()) -> Floats | None:
        return None

    def links(self, target: PartyId, adversary: PartyId) -> KnownPairs:
        return self._asked

    def alike(self, target: PartyId) -> KnownPairs:
        return self._asked

    def members(self, target: PartyId) -> NDArray[np.bool_]:
        return np.zeros(self._question.nodes, dtype=np.bool_)

    def classmates(self, target: PartyId, steps: Sequence[Floats]) -> tuple[Nodes, KnownPairs]:
        """At most 1,000 nodes with a nonzero gradient, and all pairs of places among them, without truth."""
        nodes = np.flatnonzero(np.sum([np.abs(step).sum(axis=1) for step in steps], axis=0))
        if len(nodes) > _MOST_CLASSMATES:
            nodes = np.sort(np.random.default_rng(self.seed).choice(nodes, size=_MOST_CLASSMATES, replace=False))
        places = np.stack(np.triu_indices(len(nodes), k=1), axis=1)
        self.chosen = nodes[places]
        return nodes, KnownPairs(places, np.zeros(len(places), dtype=np.bool_))

    def class_names(self, target: PartyId, nodes: Nodes) -> None:
        return None


class _AskingHolder:
    """A holder's side of the audit: its question, the pairs that it asks about, and how it scores answers."""

    def __init__(self, run: RunDirectory, party: PartyId, secrets: SecretSource) -> None:
        self._settings, self._party = run.settings, party
        self._graph = load_party(run.party(party).graph_path).common_part()
        nodes, own = self._graph.num_nodes, run.party(party)
        self.question = Question(nodes=nodes, labels=self._graph.labels is not None, alignment=kept_identity(own))
        self._random = np.random.default_rng(int.from_bytes(secrets(32)))
        if nodes * (nodes - 1) // 2 <= MOST_PAIRS:
            self.pairs = np.stack(np.triu_indices(nodes, k=1), axis=1).astype(np.int64)
        else:
            self.pairs = random_pairs(nodes, MOST_PAIRS, self._random)

    def receive_findings(self, link: Link, adversary: PartyId) -> list[Finding | Skipped]:
        """Receive an adversary's answers and score them; ``ProtocolError``: they do not answer what was asked."""
        said = receive_model(link, adversary, Tag(Kind.AUDIT_ANSWER), Answers, _MOST_BYTES)
        found = list[Finding | Skipped]()
        for step, answer in enumerate(said.answers):
            attack = ATTACKS[answer.attack]
            if not attack.blind:
                raise ProtocolError(
                    f"got an answer of {answer.attack} from {adversary}, which nobody can mount blindly",
                    code="unasked",
                    key="attack",
                    value=answer.attack,
                    party=adversary,
                )
            what, asked = _ASKED[attack.secret], self.pairs
            if what == "chosen":
                asked = receive_as(link, adversary, Tag(Kind.AUDIT_ANSWER, step, 1), (None, 2), torch.int64).numpy()
                _check_pairs(asked, self.question.nodes, adversary)
            count = self.question.nodes if what == "nodes" else len(asked)
            ranks = receive_as(link, adversary, Tag(Kind.AUDIT_ANSWER, step, 2), (count,), torch.float32).numpy()
            try:
                outcome = self._outcome_of_ranks(attack.secret, asked, ranks.astype(np.float64))
                found.append(
                    Finding(
                        adversary, self._party, attack.secret, answer.attack, answer.evidence, permitted=True,
                        **measure_outcome(outcome, seed=0, level=FALSE_ALARM_RATE),
                    )
                )  # fmt: skip
            except DataError as error:
                found.append(Skipped(adversary, f"{answer.attack} on {self._party}", str(error), answer.attack))
        return found + [
            Skipped(adversary, f"{each.attack} on {self._party}", each.why, each.attack, raised=each.raised)
            for each in said.unanswered
        ]

    def _outcome_of_ranks(self, secret: Secret, asked: Pairs, ranks: Floats) -> Outcome:
        """Ranks and truth of a sample of what was asked; ``DataError``: fewer than 20 are true, or false."""
        truth, told = _truth(secret, self._graph, asked)
        kinds = [np.flatnonzero(told & (truth == value)) for value in (True, False)]
        fewest = min(map(len, kinds))
        if fewest < _FEWEST:
            raise DataError(f"of what was asked {fewest} are of one kind, and a figure needs {_FEWEST}")
        if _ASKED[secret] != "nodes":
            kinds = [self._random.choice(kind, size=min(_SCORED, fewest), replace=False) for kind in kinds]
        kept = np.concatenate(kinds)
        return Outcome(
            ranks[kept],
            truth[kept],
            note="Computed at the adversary's site from its messages alone, without its own data, and scored here.",
        )


_ASKED: Final[Mapping[Secret, Literal["pairs", "nodes", "chosen"]]] = {
    "edges": "pairs",
    "features": "pairs",
    "membership": "nodes",
    "labels": "chosen",
}
"""What attacks on a secret are asked: the pairs of the question, all nodes, or pairs that the adversary chooses among
nodes with a gradient."""


def _truth(what: Secret, graph: PartyGraph, asked: Pairs) -> tuple[Truth, Truth]:
    """The true answers about a secret, [T] bool, and for which of them the truth is known, [T] bool."""
    nodes, every = graph.num_nodes, np.ones(len(asked), dtype=np.bool_)
    trained = np.zeros(nodes, dtype=np.bool_) if graph.train_mask is None else graph.train_mask.numpy()
    if what == "edges":
        return np.isin(pair_codes(asked, nodes), pair_codes(graph.edge_index.numpy().T, nodes)), every
    if what == "features":
        products = pair_products(to_numbers(graph.features), asked)
        return np.asarray(products > np.quantile(products, 1 - ALIKE)), every
    if what == "membership":
        return trained, np.ones(nodes, dtype=np.bool_)
    labels = np.full(nodes, -1) if graph.labels is None else graph.labels.numpy()
    known = trained & (labels >= 0)
    return np.asarray(labels[asked[:, 0]] == labels[asked[:, 1]]), np.asarray(known[asked].all(axis=1))


def _check_pairs(pairs: Pairs, nodes: int, sender: PartyId) -> None:
    most = max(MOST_PAIRS, _MOST_CLASSMATES * (_MOST_CLASSMATES - 1) // 2)
    if not 0 < len(pairs) <= most or pairs.min() < 0 or pairs.max() >= nodes or (pairs[:, 0] == pairs[:, 1]).any():
        raise ProtocolError(
            f"got {len(pairs)} pairs from {sender}, which are not 1 to {most} pairs of two nodes below {nodes}",
            code="pairs",
            value=len(pairs),
            party=sender,
        )


def _unanswered(name: str, why: object) -> Unanswered:
    return Unanswered(attack=name, why=printable(why, _WORDS))
