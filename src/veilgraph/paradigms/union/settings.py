"""A union job: a sealed one of holders that have nodes, labels and predictions of their own, and edges to others'."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.paradigms.sealed.settings import SealedJob, SealedModelSettings
from veilgraph.protocol.facets import Duties, InputRules
from veilgraph.protocol.job import JobSettings, job_of
from veilgraph.protocol.preset import Choice, JobContent


class UnionModelSettings(SealedModelSettings):
    """As of a sealed job; ``each`` goes over payments received and sent by themselves, where edges have a direction."""

    blocks: (
        tuple[
            Annotated[str, Field(pattern=r"^(own|neighbours|boosting|(pooled|each)\.([1-9]|[1-5][0-9]|6[0-4]))$")], ...
        ]
        | None
    ) = Field(None, min_length=1, max_length=16)
    """what rows contain. own: holders' columns; neighbours: their means, deviations and degrees over own nodes' edges;
    boosting: scores of trees that each boosts on its own data; pooled.K: columns and scores after K hops over all
    edges; each.K: over edges in one direction, for both; null: tries several
    """
    directed: bool = True
    """edges run from source to target, as payments; false: both ways, as is checked"""
    edge_weights: Literal[False] = False
    """hops count each pair of nodes once, unweighted; weights count in neighbours and boosting"""
    max_degree: None = None
    """each holder reveals its largest degree, rounded up to 2^k − 1"""
    edge_slots: None = None
    """each holder reveals its number of edges, rounded up by up to a quarter"""


_WITHOUT: Final = {
    "release": "weights of a union stay in shares",
    "privacy": "a union adds no noise, and paradigm averaging does, with averaging.symbols or averaging.privacy",
    "disputes": "a union's training cannot be run again by an auditor",
    "dealer_checks": "dealings of a union are not opened to be checked, and trust: majority needs no outsider to deal",
}
"""What sealed jobs have and unions do not, and what is there in its place."""


class UnionJob(SealedJob):
    """Nothing is opened but what every holder learns of its own nodes."""

    paradigm: Literal["union"] = "union"  # type: ignore[assignment]
    model: UnionModelSettings = UnionModelSettings()
    """the network of the union paradigm"""
    output: Literal["classes", "margins"] = "margins"
    """what a holder learns of its nodes; margins rank them, as in sealed jobs"""
    across: PartyId | None = None
    """the holder without nodes that has all edges between holders, such as a payment network; null: both ends have them
    """
    named_nodes: int | None = Field(None, ge=1)
    """null: each holder learns the predictions of all its nodes; a number: in all predictions of the run so many of its
    nodes, which it names and nobody else learns, and none after training
    """
    release: Literal["none"] = "none"
    """all weights stay in shares"""
    privacy: None = None
    """null: a union has no differential privacy"""
    dealer_checks: Literal[0] = 0
    """none in a union"""
    disputes: Literal[False] = False
    """none in a union"""

    @field_validator(*_WITHOUT, mode="before")
    @classmethod
    def _refuse_what_unions_lack(cls, said: object, field: ValidationInfo) -> object:
        assert field.field_name is not None
        if said not in (None, 0, "none"):
            raise ValueError(f"{_WITHOUT[field.field_name]}; leave {field.field_name} out")
        return said

    @classmethod
    @override
    def choices(cls, said: JobContent) -> Iterable[Choice]:
        """Preset choices of a sealed job; of a data set other than ``payments``, edges count both ways."""
        yield from super().choices(said)
        if said.get("data.dataset") is not None and said.get("data.dataset") != "payments":
            yield Choice("model.directed", False, "edges of this data set go both ways")

    @model_validator(mode="after")
    def _check_across(self) -> Self:
        if self.across is not None and self.across not in self.data.names:
            raise ValueError(
                f"across={self.across!r} is not one of the holders {', '.join(self.data.names)}; name one of them, or "
                "leave it out"
            )
        if self.across == self.data.label_party:
            raise ValueError(
                f"across={self.across!r} has no nodes, and is who says how well the model does: set data.label_holder "
                "to a holder that has labels"
            )
        if self.across is not None and len(self.data.names) < 3:
            raise ValueError(f"across={self.across!r} has edges between others' nodes: name two other holders or more")
        return self

    @property
    def owners(self) -> tuple[PartyId, ...]:
        """The holders that have nodes."""
        return tuple(name for name in self.data.names if name != self.across)

    @property
    @override
    def is_aligned(self) -> bool:
        return False

    @property
    @override
    def dealing_party(self) -> PartyId:
        """Who deals: the server or, with ``trust: majority``, ``across``, or the last holder that does not report."""
        return self.across if self.across is not None and self.trust == "majority" else super().dealing_party

    @property
    @override
    def duties(self) -> Duties:
        """All holders publish; those with nodes score."""
        return Duties(publishing=self.data.names, scoring=self.owners, dealing=self.dealing_party or None)

    @property
    @override
    def inputs(self) -> InputRules:
        rules: dict[PartyId, tuple[str, int | None]] = dict.fromkeys(self.data.names, ("model.max_degree", None))
        return InputRules(degree_rules=rules, joins_others=True, across=self.across)


def union(job: JobSettings) -> UnionJob:
    """Return ``job`` typed as a union job; ``ConfigError`` where it is of another paradigm."""
    return job_of(UnionJob, job)
