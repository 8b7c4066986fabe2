"""First drafts: of a party file, guessed from tables (``veilgraph data init``), and of a job (``veilgraph init``)."""

from __future__ import annotations

from typing import Literal

Protected = Literal["edge", "node", "node-edges", "label", "training-record"]
"""What somebody may ask to be protected in a first draft of a job or of a party file."""
