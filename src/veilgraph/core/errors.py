"""Every error veilgraph raises on purpose, in one tree.

Each message names the argument, the value, the rule it broke and the way out, and each error has these apart: a code, a
key, a value. The command line prints the message of a ``VeilgraphError`` on one line and exits non-zero; anything else
is a defect of ours.

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

import json
import re
from typing import Final, Self

from veilgraph.core.text import printable_lines

_BEGINNING: Final = 500  # characters of a message that are read for its key
_SUBJECT: Final = re.compile(
    r"(?:party '(?P<party>[^']*)': |(?P<refuser>[\w.-]+) refuses the job: |(?:job|party): )?"
    r"(?:(?P<file>\S*(?:/\S*?|\.(?:csv|jsonl?|parquet|safetensors|ya?ml)))(?:(?:, line (?P<line>\d+))?: |,? ))?"
    r"(?:(?P<option>--[a-z-]+)(?: (?P<given>[^\s:]+))?"
    r"|column '(?P<column>[^']*)'(?:, row (?P<row>\d+))?"
    r"|(?P<key>[A-Za-z_][\w.-]*)=(?P<value>'[^']*'|\"[^\"]*\"|\[[^]]*]|\S+?(?=[,;:]?(?:\s|$)))"
    r"|(?P<bare>[a-z_]\w*(?:(?:\.\w+)+(?=:? )|(?=: ))))?"
)


class VeilgraphError(Exception):
    """Root of the tree; catching it catches every error that has a message for the user.

    What is not given apart is read from the message, as far as it begins ``key=value``, ``key:`` or ``dotted.key``,
    after the party or the file that it is about.

    Args:
        message: key, value, rule and way out, on one line.
        code: which rule was broken, for programs; the class's own where it says enough.
        key: dotted path of the setting, name of the argument, or the file; None where the error is about none.
        value: what was found there; after it came from another process, as JSON has it.
        party: whose setting, data or message it is.
    """

    code: str = "error"
    key: str | None
    value: object
    party: str | None

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        key: object = None,
        value: object = None,
        party: str | None = None,
    ) -> None:
        message = printable_lines(message)  # it quotes data, which others read in a terminal
        super().__init__(message)
        if code is not None:
            self.code = code
        said = _SUBJECT.match(message[:_BEGINNING])
        assert said is not None  # every part is optional
        if key is None:
            bare = said["bare"] if said["bare"] != party else None
            key = said["option"] or said["column"] or said["key"] or bare or said["file"]
            if value is None and (shown := said["value"] or said["given"] or said["row"] or said["line"]):
                value = _plain(shown)
        self.key, self.value = None if key is None else str(key), value
        named = said["refuser"] if said["party"] is None else said["party"]
        self.party = named if party is None else party

    def told(self, message: str, party: str | None = None) -> Self:
        """Copy the error with another message, and with ``party`` where it names none; code, key and value stay."""
        return type(self)(message, code=self.code, key=self.key, value=self.value, party=self.party or party)

    def to_json(self) -> str:
        """Serialise the error as JSON text, which ``error_of_json`` reads in another process."""
        kind = next(kind.__name__ for kind in type(self).__mro__ if KINDS.get(kind.__name__) is kind)
        parts = {"code": self.code, "key": self.key, "value": self.value, "party": self.party}
        return json.dumps({"kind": kind, "message": str(self), **parts}, default=str)


class Fault(str):
    """Words of what is wrong, to go into an error's message, with the ``code`` of the broken rule."""

    code: str

    def __new__(cls, code: str, words: str) -> Self:  # noqa: D102
        made = super().__new__(cls, words)
        made.code = code
        return made


def _plain(text: str) -> object:
    """Parse a value that a message shows: quoted text without its quotes, else JSON, else the text as it is."""
    if text[0] in "'\"":
        return text[1:-1]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def error_of_json(text: str | bytes) -> VeilgraphError | None:
    """The error that ``to_json`` wrote; None where the text is no error."""
    try:
        parts = json.loads(text)
        message, kind = parts.pop("message"), KINDS[parts.pop("kind")]
        return kind(" ".join(message.split()), **parts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


class ConfigError(VeilgraphError):
    """A setting is unknown, malformed or contradicts another."""

    code = "config"


class DataError(VeilgraphError):
    """A party's features, edges, labels or masks break a rule."""

    code = "data"


class RunError(VeilgraphError):
    """A run directory, a checkpoint or an output path cannot be used."""

    code = "run"


class RangeOverflow(VeilgraphError):
    """A value does not fit the fixed-point range of Z_2^64; the message names the scale to change."""

    code = "range-overflow"


class BudgetSpent(VeilgraphError):
    """The next release would take the total ε past the budget; it was not made."""

    code = "budget-spent"


class LinkError(VeilgraphError):
    """The exchange of messages between parties failed."""

    code = "link"


class ProtocolError(LinkError):
    """A message has the wrong tag, dtype, shape or content for this point of the protocol."""

    code = "protocol"


class PeerFailed(LinkError):
    """Another party stopped before the job was done."""

    code = "peer-failed"


class LinkTimeout(LinkError):
    """An expected message did not arrive within the timeout."""

    code = "link-timeout"


KINDS: Final[dict[str, type[VeilgraphError]]] = {
    name: kind for name, kind in globals().items() if isinstance(kind, type) and issubclass(kind, VeilgraphError)
}
"""Every class of the tree by its name."""
