"""What an organisation brings to a job, what it accepts of it, and what it has once its tables are read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import Link, PartyId
from veilgraph.graph.build import BuiltGraph
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.agreement import Hello, agree_with_people
from veilgraph.protocol.consent import Consent
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import LimitSettings, joined, refusal
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.party_settings import MachineSettings, PartySettings, party_folder, read_party_settings
from veilgraph.tables.edge_settings import (
    NO_EDGE_FEATURES,
    EdgeSettings,
    beyond_own_edge,
    says_hops,
    says_weights,
    shared_values,
)
from veilgraph.tables.encode import FeatureEncoding
from veilgraph.tables.feature_settings import beyond_own_row, declared_values, scaled_twice

OF_OTHER_TASKS: Final = "is for task values (averaging, horizontal) or graphs (averaging); choose that, or leave it out"
_NODE_KEYS: Final = {"targets": "target", "membership": "graph"}

if TYPE_CHECKING:
    from veilgraph.protocol.feature_release import Releases

_BEFORE: Final = 1
"""Round of the first agreement; that on shapes and checkpoints is 0."""


@dataclass(frozen=True)
class Organisation:
    """What one organisation brings.

    Attributes:
        settings: of its party file.
        folder: where the party file is; the tables' paths start there.
        consent: to this job, where jobs are counted: across organisations.
    """

    settings: PartySettings
    folder: Path
    consent: Consent | None = None

    @classmethod
    def read(cls, path: Path, party: PartyId) -> Organisation:
        """Reads the party file of ``party``.

        Raises:
            ConfigError: it cannot be read, breaks a rule, or is of another party.
        """
        settings = read_party_settings(path)
        if settings.party != party:
            raise ConfigError(
                f"{path}: party={settings.party!r}, and this party of the job is {party!r}; give its file"
            )
        return cls(settings, party_folder(path))

    @property
    def machines(self) -> MachineSettings | None:
        """Several of its own, where its party file names them."""
        machines = self.settings.machines
        return None if machines is None else machines.within(self.folder)

    def digest(self) -> str:
        """SHA-256 of how its tables are read and of the tables themselves: another one where anything has changed.

        Raises:
            DataError: a table cannot be read.
        """
        found = hashlib.sha256(self.settings.hashed().encode())
        for name in self.settings.files:
            path = self.folder / name
            try:
                with path.open("rb") as file:
                    found.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error}); give the path of a table") from error
        return found.hexdigest()

    def refusal(self, job: JobSettings, nodes: int | None = None, *, named: bool = False) -> str | None:
        """Why it does not accept a job, by its limits or by how its tables become features; None when it does.

        Args:
            job: validated.
            nodes: common to all holders, where that is known; a limit on them, and what follows from them, is asked
                about then.
            named: with the names of its columns, which are not for others to see.
        """
        party = self.settings.party
        if self.settings.machines is not None and (reason := paradigm_of(job).unspreadable(job)) is not None:
            return reason
        if reason := _of_edges(job, party, self.settings.edges) or self._of_nodes(job, named=named):
            return reason
        features, scaling = self.settings.nodes.features, job.data.feature_scaling
        if reason := scaled_twice(features, scaling, named=named) or self._outside(job):
            return reason
        if party in job.per_node and (reasons := beyond_own_row(features, scaling, named=named)):
            why = "ε is of one node's features, which must be made of that node's own row alone: "
            return joined([why + "; ".join(reasons)])
        besides = paradigm_of(job).told_by_tables(job, features)
        return refusal_of_limits(self.settings.limits, job, party, nodes, besides)

    def _of_nodes(self, job: JobSettings, *, named: bool) -> str | None:
        """Return why a job does not suit the columns of the party's nodes, or None."""
        nodes = self.settings.nodes
        if self.settings.party in job.protects_edges and (made := nodes.features_from_edges):
            which = f" ({', '.join(made)})" if named else ""
            return (
                f"nodes.features has {len(made)} of nodes.columns_from_edges{which}, which show edges at any ε, and "
                "this job's ε protects edges: leave them out of nodes.features"
            )
        for name, key in _NODE_KEYS.items():
            if name not in job.takes_of_nodes and getattr(nodes, key) is not None:
                return f"nodes.{key} {OF_OTHER_TASKS}"
        return None

    def _outside(self, job: JobSettings) -> str:
        """Why its nodes do not perturb values of the job's range, where its party file says which they can have; or "".

        Then rows are not looked at: jobs of one range after another would find the largest value there is.
        """
        release, values = job.feature_release, declared_values(self.settings.nodes.features)
        if release is None or self.settings.party not in job.releasing or values is None:
            return ""
        if job.data.feature_scaling != "none" and values != (0.0, 1.0):  # of a row that is scaled, more than its own
            return ""
        if release.low <= values[0] and values[1] <= release.high:
            return ""
        return (
            f"{job.release_setting}: low={release.low:g} to high={release.high:g} does not hold all values that its "
            "features can have by what its party file declares, whatever is in the tables: set low to 0 and high to 1, "
            "or lower and higher where it fills in more for values that are missing"
        )


def _of_edges(job: JobSettings, party: PartyId, edges: Sequence[EdgeSettings]) -> str | None:
    """Why a job is not for a party's tables of edges; None where it is."""
    if not job.is_relational and (reason := says_hops(edges)) is not None:
        return reason
    if not job.takes_weights and (place := says_weights(edges)) is not None:
        way_out = "leave it out" if job.privacy else "set model.edge_weights: true, or leave it out"
        return f"{place} gives edges weights, and model.edge_weights=false says that all count alike; {way_out}"
    if not job.takes_edge_features and any(each.features for each in edges):
        return f"edges.features: {NO_EDGE_FEATURES}"
    if party in job.per_edge and (reasons := beyond_own_edge(edges)):
        why = "ε is of one edge, whose weight must be made of that edge's own row alone: "
        return joined([why + "; ".join(reasons)])
    if (party in job.protects_edges or party in job.per_node) and (reasons := shared_values(edges)):
        return joined(["ε is of edges that one node's rows make alone: " + "; ".join(reasons)])
    return None


def refusal_of_limits(
    limits: LimitSettings,
    job: JobSettings,
    party: PartyId,
    nodes: int | None = None,
    besides: Mapping[str, str] | None = None,
) -> str | None:
    """Why a holder does not accept a job by its limits, at what the job can cost it; None when it does.

    Args:
        limits: the holder's.
        job: validated.
        party: its name in the job.
        nodes: common to all holders, where that is known.
        besides: as for ``limits.refusal``.
    """
    epsilon = largest_epsilon(job, party, nodes)
    if limits.epsilon_unit == "label" and not (job.privacy or job.feature_release or job.training_plan):
        epsilon = paradigm_of(job).label_epsilon(job, party)
    return refusal(limits, job, party, nodes, epsilon=epsilon, besides=besides)


@dataclass(frozen=True)
class Preparation:
    """What a party makes its graph of.

    Attributes:
        link: of the party.
        job: the job.
        streams: of the party: the same in every session of a run.
        organisation: the holder's own; None at the server.
        encoding: fitted on earlier tables; None: fitted on these, horizontal: on all holders' together.
    """

    link: Link
    job: JobSettings
    streams: LearningStreams
    organisation: Organisation | None = None
    encoding: FeatureEncoding | None = None


@dataclass(frozen=True)
class Prepared:
    """What reading the tables anew gives a party.

    Attributes:
        identity: the same at all parties and in no other session.
        facts: to keep beside it.
        built: None at the server.
    """

    identity: str
    facts: Mapping[str, object]
    built: BuiltGraph | None = None


@dataclass(frozen=True)
class Aligned:
    """What a party brings to a job once its tables are aligned or, in paradigm horizontal, collected.

    Attributes:
        identity: of the alignment or collection, the same at all parties; empty where there was none.
        graph: None at the server.
        ids: of the graph's rows; vertical: where they came from tables.
        class_names: at a holder with labels, where they came from tables.
        refuses: why this party does not go on with what the alignment gave; empty when it does.
        releases: what nodes perturbed, where the job begins with its release.
    """

    identity: str = ""
    graph: PartyGraph | None = None
    ids: Sequence[str] | None = None
    class_names: tuple[str, ...] | None = None
    refuses: str = ""
    releases: Releases | None = None


def agree_on_job(
    link: Link,
    settings: JobSettings,
    party: PartyId,
    organisation: Organisation | None,
    refuses: str = "",
    stated: Mapping[str, Any] = MappingProxyType({}),
) -> dict[PartyId, Hello]:
    """Before anything of the data is sent: the same release, the same job, accepted by every party.

    Where jobs are counted, this one is from here on, unless a party refuses; where a person is asked, it waits here.

    Args:
        link: of this party.
        settings: the job.
        party: its name.
        organisation: what it accepts; None at the server, or where a simulation has no party files.
        refuses: a reason of its own not to take part.
        stated: further fields of this party's ``Hello``.

    Returns:
        Party → what it stated.

    Raises:
        ConfigError: a party refuses, at every party with the same reason.
    """
    reasons = [refuses]
    if organisation is not None:
        reasons.append(organisation.refusal(settings) or "")
    mine = Hello(job=settings.hash(), refuses=joined(reasons), **stated)
    consent = None if organisation is None else organisation.consent
    if consent is None or mine.refuses:
        return agree_with_people(link, settings.data.names, mine, _nobody, settings.timeout_s, _BEFORE)
    with consent.job() as used_up:
        mine = mine.model_copy(update={"refuses": used_up, "waits": consent.asks and not used_up})
        return agree_with_people(link, settings.data.names, mine, consent.answer, settings.timeout_s, _BEFORE)


def _nobody(_wait_s: float) -> str:
    return ""


def largest_epsilon(job: JobSettings, party: PartyId, nodes: int | None = None) -> float:
    """The largest total ε that a job can cost a holder, against all others; infinite where something goes unnoised.

    Args:
        job: validated.
        party: a holder.
        nodes: common to all holders, where that is known.

    Raises:
        ConfigError: the job's noise cannot be computed.
    """
    return paradigm_of(job).largest_epsilon(job, party, nodes)
