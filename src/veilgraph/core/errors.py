"""Every error veilgraph raises on purpose, in one tree.

Each message names the argument, the value, the rule it broke and the way out. The command line prints the
message of a ``VeilgraphError`` on one line and exits non-zero; anything else is a defect of ours.

    VeilgraphError
    ├── ConfigError        a setting of the job
    ├── DataError          a party's own data
    ├── RunError           a run directory, checkpoint or output path
    ├── RangeOverflow      a number does not fit the ring's fixed-point range
    ├── BudgetSpent        a release that the privacy budget does not allow
    └── LinkError          the exchange between parties
        ├── ProtocolError  a message that the protocol does not allow here
        ├── PeerFailed     another party stopped
        └── LinkTimeout    a message did not come in time
"""

from __future__ import annotations


class VeilgraphError(Exception):
    """Root of the tree; catching it catches every error that has a message for the user."""


class ConfigError(VeilgraphError):
    """A setting is unknown, malformed or contradicts another."""


class DataError(VeilgraphError):
    """A party's features, edges, labels or masks break a rule."""


class RunError(VeilgraphError):
    """A run directory, a checkpoint or an output path cannot be used."""


class RangeOverflow(VeilgraphError):
    """A value does not fit the fixed-point range of Z_2^64; the message names the scale to change."""


class BudgetSpent(VeilgraphError):
    """The next release would take the total ε past the budget; it was not made."""


class LinkError(VeilgraphError):
    """The exchange of messages between parties failed."""


class ProtocolError(LinkError):
    """A message has the wrong tag, dtype, shape or content for this point of the protocol."""


class PeerFailed(LinkError):
    """Another party stopped before the job was done."""


class LinkTimeout(LinkError):
    """An expected message did not arrive within the timeout."""
