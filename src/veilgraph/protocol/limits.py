"""What an organisation accepts: which of a job's revelations come true, and the limits by which a party refuses one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import Settings, config_errors
from veilgraph.core.types import SERVER, PartyId
from veilgraph.privacy.event import Neighbours
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.messages import (
    PARADIGMS,
    RevelationName,
    bounded_revelations,
    revelation_causes,
    revelation_statements,
    wider_revelations,
)

REASON_CHARACTERS: Final = 2000  # no reason for a refusal is longer


class LimitSettings(Settings):
    """What a party accepts. The defaults accept the default job and nothing that reveals more."""

    leakage: tuple[RevelationName, ...] = ("initial-embeddings", "embedding-sums", "output-embeddings", "training-rows")
    """what a job may reveal of this party's data; replaces the default list"""
    trust: tuple[Literal["dealer", "majority"], ...] = ("dealer",)
    """who may know all masks of sealed and union jobs, by their setting of this name. dealer: the server, which reads
    everything with any holder; majority: a holder, which reads everything with any other. By nobody needs no leave
    """
    max_rounds: int = Field(1, ge=1, le=64)
    """largest R or number of layers; each more reveals more of the edges"""
    max_epsilon: float | None = Field(None, gt=0)
    """largest total ε of all releases of any node over all jobs, predictions and published embeddings in the ledger;
    leakage need not name what it bounds; null: no bound
    """
    max_delta: float = Field(1e-4, gt=0, lt=1)
    """δ of that total; a job with a larger one is refused, a smaller one changes nothing. Choose below 1/N, N the nodes
    or, with unit edge, the pairs with an edge
    """
    epsilon_unit: Literal["edge", "node", "node-edges", "label", "training-record"] | None = None
    """what max_epsilon protects; a job that protects something else is refused. label: labels only, which jobs do not
    reveal or label_privacy bounds
    """
    epsilon_neighbours: Neighbours | None = None
    """relation of neighbouring data, for max_epsilon; replacement for edges and labels"""
    min_colluding: int | None = Field(None, ge=0)
    """fewest colluding holders that joint noise (averaging.privacy.joint_noise), partly the others', must withstand;
    null: such jobs are refused
    """
    most_neighbours: int | None = Field(None, ge=1)
    """most neighbours of any node, by public knowledge, for max_epsilon of edges. Refused: jobs with a lower bound
    (privacy.degree_bound, the share of model.max_degree) or none, and all such jobs where a node has more. null: the
    tables check each job's bound; jobs with one bound after another reveal the largest degree
    """
    min_common_nodes: int = Field(2, ge=1)
    """fewest nodes common to all holders, in vertical jobs, which count them"""
    restart: bool = False
    """a training may go back or restart, replacing this party's part, if another lost its part or newest checkpoint, or
    tables or the release changed
    """
    allow_audit: bool = False
    """joins audits across organisations (net submit --work audit): records its messages in training, and tells other
    holders how attacks rank random pairs of their nodes
    """
    allow_check: bool = True
    """tells an administrator (check --net) if it would join a job, as refusing one does, and whether its tables break a
    rule
    """
    max_peer_ids: int | None = Field(None, ge=1)
    """most ids that another holder may align, which learns of each whether all others have it; null: any number"""

    @model_validator(mode="after")
    def _check_epsilon(self) -> Self:
        """Refuse ``max_epsilon`` without a unit and a relation or, where it is of edges, ``most_neighbours``."""
        missing = [key for key in ("epsilon_unit", "epsilon_neighbours") if getattr(self, key) is None]
        if self.max_epsilon is not None and missing:
            raise ValueError(
                f"max_epsilon={self.max_epsilon:g} needs {' and '.join(missing)}: a limit without them lets each job "
                "choose what ε protects. Give epsilon_unit (edge, node, node-edges, label or training-record) and "
                "epsilon_neighbours (replacement; zero-out if a node can be there or not)"
            )
        edges = self.max_epsilon is not None and self.epsilon_unit in ("edge", "node-edges")
        if edges and self.most_neighbours is None:
            raise ValueError(
                f"epsilon_unit={self.epsilon_unit} needs most_neighbours: without it, which jobs are refused would "
                "show the largest degree in your tables. Give the most neighbours that such a node can ever have, by "
                "what the data mean and not by these tables, as in 1000"
            )
        return self


def parse_limits(data: object, source: str) -> LimitSettings:
    """Validate limits from YAML or a dictionary; raises ``ConfigError`` for the first broken key."""
    if data is not None and not isinstance(data, Mapping):
        raise ConfigError(f"{source}: limits are a mapping, not {type(data).__name__}; see docs/guides/tables.md")
    with config_errors(source):
        return LimitSettings.model_validate({} if data is None else dict(data))


def revelations(job: JobSettings, party: PartyId | None = None) -> dict[str, str]:
    """What a job reveals of its holders' data, or of one party's own, name → statement; with privacy it is noisy."""
    known = revelation_statements(job)
    return {name: known[name] for name in revelation_causes(job, party)}


def trust_of(job: JobSettings) -> Literal["dealer", "majority"] | None:
    """Return who knows all masks of a job: the server, a holder, or None where no party does."""
    if job.duties.dealing is None:
        return None
    return "dealer" if job.duties.dealing == SERVER else "majority"


def largest_epsilon(job: JobSettings, party: PartyId, nodes: int | None = None) -> float:
    """The largest total ε that a job can cost a holder, against all others; infinite where something goes unnoised."""
    found: float = PARADIGMS[job.paradigm].privacy.largest_epsilon(job, party, nodes)
    return found


def refusal(
    limits: LimitSettings,
    job: JobSettings,
    party: PartyId,
    common_nodes: int | None = None,
    *,
    epsilon: float | None = None,
    besides: Mapping[str, str] | None = None,
) -> str | None:
    """Why a party does not accept a job, at what the job can cost it; None when it does.

    A holder is asked only about what is revealed of its own data; what comes of noisy releases alone needs no name
    where its ``max_epsilon`` holds. ``common_nodes`` is known once aligned. ``besides`` is what the party's own
    settings reveal in this job, and which of them do.

    Gives all reasons in one line of at most ``REASON_CHARACTERS``. Raises ``ConfigError``: the job has no such party.
    """
    parties = (*job.data.names, SERVER)
    if party not in parties:
        raise ConfigError(f"party={party!r} is not in the job, whose parties are {', '.join(parties)}; mend the name")
    if epsilon is None and party == SERVER:
        epsilon = math.inf
    elif epsilon is None:
        of_all = job.privacy or job.noise.feature_release or job.training_plan
        if limits.epsilon_unit == "label" and not of_all:
            epsilon = float(PARADIGMS[job.paradigm].privacy.label_epsilon(job, party))
        else:
            epsilon = largest_epsilon(job, party, common_nodes)
    return joined(_reasons(limits, job, party, epsilon, common_nodes, besides or {})) or None


def joined(reasons: Iterable[str | None]) -> str:
    """Reasons for a refusal in one line of at most ``REASON_CHARACTERS``, which shows where its end was cut off."""
    text = "; ".join(reason for reason in reasons if reason)
    return text if len(text) <= REASON_CHARACTERS else text[: REASON_CHARACTERS - 1] + "…"


def too_few(limits: LimitSettings, common_nodes: int) -> str | None:
    """Why a party does not accept an alignment with so many common nodes; None when it does."""
    if common_nodes >= limits.min_common_nodes:
        return None
    return (
        f"limits.min_common_nodes={limits.min_common_nodes} and the holders have {common_nodes} in common: write the "
        "ids alike at every holder, or lower the limit"
    )


def too_many(limits: LimitSettings, party: PartyId, ids: Mapping[PartyId, int]) -> str | None:
    """Why a party does not align with others that bring so many ids, as stated and held to; None when it does."""
    most = limits.max_peer_ids
    if most is None:
        return None
    others = [f"{holder} brings {count}" for holder, count in ids.items() if holder != party and count > most]
    if not others:
        return None
    return f"limits.max_peer_ids={most} and {', '.join(others)}: let it bring fewer, or raise the limit"


def delta_too_large(job: JobSettings, nodes: int) -> str:
    """Why a job's δ is too large for so many common ``nodes``, N: it is 1/N or more; empty where it is less."""
    for name, delta, *_ in _all_claims(job, nodes):
        if delta is not None and delta * nodes >= 1:
            return (
                f"{name}={delta:g} with {nodes} common nodes: where δ is 1/N or more, a node can be published as it is "
                f"within any ε; set {name} well below {1 / nodes:.3g}"
            )
    return ""


def delta_in_doubt(job: JobSettings, most: int | None = None) -> str:
    """Say from how many common nodes on a job's δ is refused; empty if δ follows from their number or fits ``most``."""
    name, delta, *_ = max(_all_claims(job), key=lambda claim: claim.delta or 0.0)
    if delta is None or (most is not None and delta * most < 1):
        return ""
    there = "" if most is None else f", and there may be {most:,}"
    follows = name == "privacy.delta"
    way_out = f"; lower {name}, or leave it out and it follows from their number" if follows else ""
    return f"{name}={delta:g} is refused from {math.ceil(1 / delta):,} common nodes on (δ ≥ 1/N){there}{way_out}"


class _Claim(NamedTuple):
    """What a holder's ε protects; ``delta``, of ``setting``, is None where there is no δ, or it is not known yet."""

    setting: str
    delta: float | None
    unit: str
    relation: str


def _claim(job: JobSettings, party: PartyId, nodes: int | None = None) -> _Claim:
    """Return what a holder's ε protects in a job, by the noise that it uses; ``nodes``: common ones, if known."""
    privacy, plan, release = job.privacy, job.training_plan, job.noise.feature_release
    if privacy is not None and party not in job.duties.releasing:  # a releasing holder's nodes perturb their own values
        delta = privacy.stated_delta if nodes is None else privacy.delta_of(nodes)
        return _Claim("privacy.delta", delta or None, privacy.unit, privacy.relation)
    if plan is not None:
        return _Claim("averaging.privacy.delta", plan.delta, plan.event.unit, plan.event.neighbours)
    if release is not None:
        return _Claim(f"{release.setting}.delta", release.delta, "node", "replacement")
    return _Claim("label_privacy.epsilon", None, "label", "replacement")


def _all_claims(job: JobSettings, nodes: int | None = None) -> list[_Claim]:
    return list(dict.fromkeys(_claim(job, party, nodes) for party in job.data.names))


def is_noised(job: JobSettings, party: PartyId) -> bool:
    """Whether a holder's releases have noise of its own, so that its δ counts even where ε is 0."""
    own_noise = job.privacy is not None and party not in job.duties.releasing
    return party in job.duties.noising and (own_noise or job.training_plan is not None)


def _unlike_claim(limits: LimitSettings, job: JobSettings, party: PartyId, nodes: int | None) -> str | None:
    """Why a job's δ, unit or relation does not fit a holder's limits on ε; None where they do."""
    name, delta, unit, relation = _claim(job, party, nodes)
    if delta is not None and delta > limits.max_delta:
        return f"limits.max_delta={limits.max_delta:g} and {name}={delta:g}: lower it or raise the limit"
    for limit, found in (("epsilon_unit", unit), ("epsilon_neighbours", relation)):
        if (wanted := getattr(limits, limit)) not in (None, found):
            return f"limits.{limit}={wanted} and the job's ε is about {found}: change the job, or the limit"
    return None


def _too_costly(
    limits: LimitSettings, job: JobSettings, party: PartyId, epsilon: float, nodes: int | None
) -> str | None:
    """Why a holder's ``epsilon`` breaks its limits on ε; None where it does not, or there are none."""
    if limits.max_epsilon is None:
        return None
    limit = f"limits.max_epsilon={limits.max_epsilon:g}"
    if epsilon <= limits.max_epsilon:
        return _unlike_claim(limits, job, party, nodes) if epsilon > 0 or is_noised(job, party) else None
    if math.isfinite(epsilon):
        return f"{limit} and the job can cost {party} a total ε of {epsilon:.6g}: lower it or raise the limit"
    if limits.epsilon_unit == "label" and not adds_noise(job):
        return (
            f"{limit} is for labels, and this job protects none: set label_privacy.epsilon "
            "(paradigms vertical, horizontal and averaging), or remove the limit"
        )
    why = PARADIGMS[job.paradigm].guarantee.unbounded(job)
    return f"{limit} and the job's total ε is infinite, for {why}, or remove the limit"


def _reasons(
    limits: LimitSettings,
    job: JobSettings,
    party: PartyId,
    epsilon: float,
    nodes: int | None,
    besides: Mapping[str, str],
) -> Iterator[str | None]:
    """Yield every reason for which ``refusal`` refuses a job, None for some that do not hold."""
    if job.passes.exchanges is not None and job.passes.exchanges[1] > limits.max_rounds:
        name, rounds = job.passes.exchanges
        lower = f"lower the {name.split('.')[1]} or raise the limit"
        yield f"limits.max_rounds={limits.max_rounds} and {name}={rounds}: {lower}"
    trust = trust_of(job)
    if trust is not None and trust not in limits.trust and party != SERVER:
        yield (
            f"limits.trust=[{', '.join(limits.trust)}] and trust={trust}, by which {job.duties.dealing} knows all "
            f"masks: add {trust} to limits.trust if your organisation trusts that it works with no other, or change "
            "the job"
        )
    yield (costly := _too_costly(limits, job, party, epsilon, nodes))
    if job.noise.shared is not None and party in job.duties.publishing:
        key, colluding = job.noise.shared
        least = limits.min_colluding
        if least is None or colluding < least:
            yield (
                f"limits.min_colluding={'null' if least is None else least} and {key}.colluding={colluding}, and ε "
                "counts on other holders' noise: raise colluding, leave joint_noise out, or set the limit to how many "
                "may collude"
            )
    rule = job.inputs.degree_rules.get(party)
    if rule is not None and limits.most_neighbours is not None and (rule[1] or 0) < limits.most_neighbours:
        untold = "null, by which each holder tells the most edges of its nodes, rounded up: say it in the job"
        says = untold if rule[1] is None else f"{rule[1]}: raise the latter"
        yield f"limits.most_neighbours={limits.most_neighbours} and {rule[0]}={says}"
    yield None if nodes is None else too_few(limits, nodes)
    # The longest last: its end is what may be cut off.
    accepted, contained, by_noise = {*limits.leakage}, wider_revelations(job), bounded_revelations(job)
    if limits.max_epsilon is not None and costly is None:
        accepted |= by_noise
    causes = {
        name: cause for name, cause in {**besides, **revelation_causes(job, party)}.items() if name not in accepted
    }
    new = [f"{name} ({cause})" for name, cause in causes.items() if contained.get(name) not in limits.leakage]
    if not new:
        return
    told = (
        f"limits.leakage=[{', '.join(limits.leakage)}]: change the job, or add what your organisation accepts of "
        f"what else the job reveals: {', '.join(new)}"
    )
    by_epsilon = [name for name in causes if name in by_noise]
    if limits.max_epsilon is None and 0 < epsilon < math.inf and by_epsilon:
        *_, unit, relation = _claim(job, party)
        told += (
            f"; or, in place of {', '.join(by_epsilon)}, limits.max_epsilon, which veilgraph data init --protect "
            f"--epsilon writes: the job costs {party} a total ε of {epsilon:.3g} (unit {unit}, {relation})"
        )
    yield told
