"""What ``veilgraph net join`` notes of its site while it looks after it, for who watches."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

STUCK_S: Final = 60.0
"""``net join`` looks after its site several times a second; without a look for so long it is stuck."""


@dataclass
class SiteWatch:
    """What ``net join`` notes of its site while it looks after it.

    Attributes:
        is_up: the site is connected with the broker.
        restarts: how often the broker was started again, at the server.
        looked: when it was last looked after.
    """

    is_up: bool = False
    restarts: int = 0
    looked: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """The site is looked after."""
        self.looked = time.monotonic()
