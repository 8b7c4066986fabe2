"""All that two parties compute together, from the shares that each has."""

from __future__ import annotations

from collections.abc import Sequence

from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import Link, PartyId


class Exchange:
    """One party's end."""

    def __init__(self, link: Link, holders: Sequence[PartyId], secrets: SecretSource) -> None:
        raise NotImplementedError
