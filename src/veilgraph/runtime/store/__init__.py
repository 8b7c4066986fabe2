"""What a run keeps on disk, and names of its files.

The names stand here because a site reads these files, and its process has no torch.
"""

from __future__ import annotations

from typing import Final

LEDGER: Final = "ledger.jsonl"
"""The privacy ledger (``privacy.ledger``)."""

DRIFT: Final = "drift.json"
"""How the tables of the newest prediction have moved since training (``session.preparation``)."""

SENDING: Final = "sending.json"
"""What a session has sent so far, while it lasts (``store.session_log``)."""


LEDGER_SUMMARY: Final = "ledger.json"
"""What the privacy ledger comes to."""


ALONE: Final = "alone.json"
"""What a holder of own nodes reaches with the others, and by itself."""
