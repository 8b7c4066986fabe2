"""Names of files in a party's part of a run that a site reads, whose process has no torch; what writes them has."""

from __future__ import annotations

from typing import Final

LEDGER: Final = "ledger.jsonl"
"""The privacy ledger (``run.ledgers``)."""

DRIFT: Final = "drift.json"
"""How the tables of the newest prediction have moved since training (``run.drifting``)."""

SENDING: Final = "sending.json"
"""What a session has sent so far, while it lasts (``run.sending``)."""
