"""What our messages are called among FLARE's: apart from the link, which a site's own process does not need."""

from __future__ import annotations

from typing import Final

CHANNEL: Final = "veilgraph"
HELLO, FRAME = "hello", "frame"
TOPICS: Final = (HELLO, FRAME)
"""All that parties say to each other during a job comes on these topics of ``CHANNEL``."""
FROM_HEADER: Final = "veilgraph-from"
"""Header with the certified name of the connection that a message came through, where a guard writes one: for the log
alone."""
