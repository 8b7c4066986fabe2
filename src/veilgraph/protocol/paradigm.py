"""A paradigm: one way to train together. All that differs from one to another is asked of it.

A package adds its own by two entry points of one name: of the group ``veilgraph.paradigms``, an instance of a subclass
of ``Paradigm``, and of ``veilgraph.jobs``, its jobs' settings.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import Registry
from veilgraph.core.types import PartyId
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import PARADIGMS as _REGISTERED
from veilgraph.protocol.messages import MessageSpec

if TYPE_CHECKING:
    from veilgraph.graph.party import PartyGraph
    from veilgraph.protocol.agreement import Hello
    from veilgraph.protocol.costs import Costs, PartySizes
    from veilgraph.protocol.organisation import Aligned, Preparation, Prepared
    from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
    from veilgraph.protocol.role import LocalPart, Role, RoleContext
    from veilgraph.tables.column_settings import CategoricalFeatures, NumericFeatures

J = TypeVar("J", bound=JobSettings)

Range = tuple[int, int]
NO_NUMBERS: Final[Mapping[str, Range]] = dict.fromkeys(
    (
        *("nodes", "rows", "features", "edges", "edge_columns", "neighbours", "training", "validation", "classes"),
        *("feature_bits", "release", "steps", "asked"),
    ),
    (0, 0),
)
"""Field of a hello → the smallest and largest number that the server may state: none."""
MAX_NODES: Final = 2**32
MAX_STEPS: Final = 2**32
MAX_FEATURES: Final = 2**20
MAX_CLASSES: Final = 2**12
"""Every evaluation of a horizontal job opens C² numbers."""


LABELS_ALONE: Final = "label_privacy bounds labels alone: set limits.epsilon_unit to label if these are meant"
"""Why a job's ε of all else is infinite."""


class Data(ABC, Generic[J]):
    """Turns data into the graphs of a job on one machine, and refuses what does not fit before anything is sent."""

    @abstractmethod
    def load(self, job: J) -> Inputs:
        """The holders' graphs of a data set, divided among them, or of the files that the job names.

        Raises ``ConfigError`` where they are not what the job needs, ``DataError`` where they break a rule.
        """

    @abstractmethod
    def label_party(self, job: J, graphs: Sequence[PartyGraph]) -> PartyId:
        """Who has the labels, or reports, of graphs from Python; ``DataError`` where they are not one federation."""

    def labels_at(self, job: J, holders: Sequence[PartyId], labelled: Sequence[PartyId]) -> PartyId:
        """Who has the labels, or reports, of holders that bring tables, of which some are ``labelled``.

        Raises ``DataError`` where labels are not where they must be.
        """
        return job.data.label_holder or holders[0]

    @abstractmethod
    def accept(self, job: J, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        """Validate and scale graphs from Python; ``ids`` has holders' row ids, where rows are not the same nodes."""

    def check_tables(self, job: J) -> None:
        """Raise what parties would refuse in each other's tables, where all party files are on this machine."""

    def unknown_range(self, job: J) -> str:
        """Say which numbers may not fit, as ``check_tables`` cannot know; empty where it can."""
        return ""

    def check_graphs(self, job: J, graphs: Sequence[PartyGraph]) -> None:
        """Raise ``RangeOverflow`` where numbers of scaled graphs do not fit what parties compute with."""

    def fit_bounds_to(self, job: J, graphs: Sequence[PartyGraph]) -> J:
        """Return the job with the bounds that these graphs need, where it was not written for them."""
        return job


class Sessions(ABC, Generic[J]):
    """What parties state, prepare, release and do in a session, and what that costs."""

    has_costs: ClassVar[bool] = False

    def costs(self, job: J, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs | None:
        """What a job will send and take, from ``nodes`` common ones and every holder's sizes; None if unknown."""
        return None

    @abstractmethod
    def stated(self, job: J, party: PartyId, *, releases: bool) -> dict[str, Range]:
        """Field of a hello → range of numbers a holder may state, others 0; ``releases``: on perturbed features."""

    def unread_bytes(self, job: J, hellos: Mapping[PartyId, Hello]) -> int | None:
        """Bytes of one sender that can wait unread, from all parties' hellos; None: the role sets them itself."""
        return None

    def unspreadable(self, job: J) -> str | None:
        """Why no holder of a job can have several machines; None where all can."""
        return (
            "machines: only in vertical jobs that exchange embeddings in every pass does a holder have a local part "
            "that several machines can share; use one machine"
        )

    def local_part(self, role: Role) -> LocalPart | None:
        """What several machines of a holder can compute for it; None where its role has no such part."""
        return None

    @abstractmethod
    def prepare(self, own: Preparation) -> Prepared:
        """Read a holder's tables and build its graph. Called at all parties together."""

    def release(self, session: RoleContext, aligned: Aligned) -> Aligned:
        """Make the releases that precede training; gives what the party then works with. At all parties together.

        Raises ``BudgetSpent`` where a budget has no room for a needed release, ``ProtocolError`` where what came is
        none, and ``DataError`` for a feature outside the declared range.
        """
        return aligned

    @abstractmethod
    def role(self, session: RoleContext, aligned: Aligned) -> Role:
        """A party's role, not yet set up, of its data after ``release``; nothing is sent."""


class Privacy(ABC, Generic[J]):
    """How large a job's ε is, and what it protects."""

    has_privacy: ClassVar[bool] = True
    protects: ClassVar[tuple[str, ...]] = ()
    always: ClassVar[str] = ""
    """What every job protects, one of ``protects``; empty where jobs need no ε."""

    def disclosed_by_tables(self, job: J, features: Sequence[NumericFeatures | CategoricalFeatures]) -> dict[str, str]:
        """Return revelation → the entries of a party file, among its ``features``, that make a job reveal it."""
        return {}

    def plan(self, job: J, party: PartyId, nodes: int | None = None) -> Plan | None:
        """What a holder will publish with noise; None where nothing is."""
        return None

    @abstractmethod
    def largest_epsilon(self, job: J, party: PartyId, nodes: int | None = None) -> float:
        """The largest total ε that a job can cost a holder; infinite where something goes unnoised."""

    def most_edges_at_a_node(self, graph: PartyGraph) -> float:
        """Count the edges that ``InputRules.degree_rules`` bounds at the node of a holder's graph that has the most."""
        from veilgraph.privacy.aggregation import most_neighbours  # noqa: PLC0415 - loads torch

        return most_neighbours(graph.edge_index, graph.num_nodes)

    def protecting(self, unit: str, epsilon: float, *, joined: bool = False) -> dict[str, Any]:
        """Return the keys of a job that protects ``unit``, one of ``protects``, at a total ``epsilon``.

        ``joined``: holders' edges may end at nodes of others.
        """
        if unit == "label":
            return {"label_privacy": {"epsilon": epsilon}}
        return {"privacy": {"epsilon_total": epsilon, "unit": unit}}

    def label_epsilon(self, job: J, party: PartyId) -> float:
        """The largest ε that a job can cost one label of a holder, nothing else counted; infinite if unknown."""
        return math.inf if job.label_privacy is None else job.label_privacy.epsilon


class Guarantee(ABC, Generic[J]):
    """A job's ε in words: against whom, of whose noise, with which limits, or why there is none."""

    def way(self, job: J) -> str:
        """Name of the measured curve that the noise of a job like this one has; empty where none was measured."""
        return ""

    def protection(self, job: J, nodes: int | None) -> Any:  # noqa: ANN401 - a ``report.protection.Protection``
        """Show an ε that is of a kind of this paradigm's own; None where there is none."""
        return None

    def threat_model(self, job: J) -> str:
        """Against whom a holder's ε holds."""
        return "the server and all other holders"

    def noise_source(self, job: J) -> str:
        """Whose noise a holder's ε counts."""
        return "each holder's ε is about its own data and counts its own noise alone"

    def privacy_notes(self, job: J) -> list[str]:
        """What must be said beside a job's ε, a line each."""
        return []

    def expected_gain(self, job: J, nodes: int | None, sizes: Mapping[PartyId, PartySizes] | None = None) -> list[str]:
        """Say from public sizes what noise leaves of a job's gain, a line each."""
        return []

    def too_weak(self, job: J, sizes: Mapping[PartyId, PartySizes]) -> str:
        """Why a job is refused whose noise leaves nothing by public sizes; empty where it may leave something."""
        return ""

    def privacy_limits(self, job: J) -> list[str]:
        """What a job's ε does not cover, beyond what follows from its unit, a sentence each."""
        return []

    @abstractmethod
    def unbounded(self, job: J) -> str:
        """Why a job's ε is infinite, and the way out."""


class Baselines(ABC, Generic[J]):
    """What a job is compared with."""

    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult | None:
        """The job's network trained on one holder's data by itself; None where they have no labels.

        ``progress`` is called after every epoch. Raises ``ConfigError`` where there is no such training.
        """
        raise _incomparable(inputs.settings)

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        """The job's network trained on all holders' data in one place; as ``alone``."""
        raise _incomparable(inputs.settings)

    def one_graph(self, inputs: Inputs) -> PartyGraph | None:
        """All holders' own nodes and their edges in one graph, in the holders' turn; None where nodes are shared."""
        return None

    def beside(self, job: J) -> Mapping[str, Any] | None:
        """Return the keys to change for a job over the same data in another paradigm, or None."""
        return None


class Words(ABC, Generic[J]):
    """A job and its parts in sentences."""

    @abstractmethod
    def describe(self, job: J) -> list[str]:
        """A job in sentences: who has what, how the network is computed, and what that shows to whom."""

    def collusion(self, job: J) -> str:
        """What parties could find out that work together, in a sentence."""
        return (
            "The server and one holder together could undo masks and shares, and read what other holders hid with them."
        )

    def part_of(self, job: J, holder: PartyId) -> str:
        """What a holder is in a job, in a few words."""
        return "label holder" if holder == job.data.label_party else "holder"

    def server_part(self, job: J) -> str:
        """What the server does in a job, in a few words."""
        return "combines embeddings; has no data"

    def predicts(self, job: J, classes: int | None) -> str:
        """What its model predicts, in words; ``classes`` is how many there are, where that is known."""
        return "the class of a node" if classes is None else f"which of {classes} classes a node is of"

    @abstractmethod
    def verdict(self, job: J, what: str, nodes: str) -> str:
        """A finished training in a sentence: ``what`` is predicted of how many ``nodes``, both in words."""


@dataclass(frozen=True)
class Paradigm(Generic[J]):
    """One way to train together; ``rows`` are all that its jobs send, and what that reveals.

    ``begins_with_weights`` is whether a job can begin with those of an earlier run, which the server has.
    """

    title: str
    rows: tuple[MessageSpec[Any], ...]
    data: Data[J]
    session: Sessions[J]
    privacy: Privacy[J]
    guarantee: Guarantee[J]
    baselines: Baselines[J]
    words: Words[J]
    begins_with_weights: bool = False


def _incomparable(job: JobSettings) -> ConfigError:
    return ConfigError(
        f"paradigm={job.paradigm}: there is no training of this network in one place to compare with; see the report"
    )


PARADIGMS: Final[Registry[Paradigm[Any]]] = _REGISTERED
"""The paradigms by the name in a job."""


def paradigm_of(job: JobSettings) -> Paradigm[Any]:
    """The paradigm that a job names."""
    return PARADIGMS[job.paradigm]
