"""Random jobs over pairs of sessions: ``python -m tests.pairs [--paradigm NAME] [--jobs N] [--first SEED]``."""

import argparse
import logging
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

from tests.pairs.drawn import PARADIGMS
from tests.pairs.playing import one
from veilgraph.core.errors import VeilgraphError
from veilgraph.protocol import preset

_TOLD_EVERY = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paradigm", choices=list(PARADIGMS), action="append")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    said = parser.parse_args()
    torch.set_num_threads(1)
    preset.DEFAULT = preset.PAPER  # as in the other tests
    os.umask(0o077)
    os.fsync = os.fstat  # type: ignore[assignment]  # nobody pulls the plug
    failed = 0
    logging.getLogger("veilgraph").setLevel(logging.ERROR)
    for paradigm in said.paradigm or PARADIGMS:
        kinds, began = Counter[str](), time.monotonic()
        for seed in range(said.first, said.first + said.jobs):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XDG_STATE_HOME"] = f"{folder}/state"
                try:
                    kind, found = one(paradigm, seed, Path(folder) / "pair")
                except (VeilgraphError, AssertionError):  # a finding: the next job goes on
                    kind, found = "failed", [traceback.format_exc()]
            kinds[kind] += 1
            failed += bool(found)
            for each in found:
                _say(f"{paradigm} {seed} {kind}: {each}")
            if sum(kinds.values()) % _TOLD_EVERY == 0:
                _say(f"{paradigm}: {sum(kinds.values())} pairs, {time.monotonic() - began:.0f} s")
        _say(f"{paradigm}: {dict(kinds)}, {time.monotonic() - began:.0f} s, {failed} with findings so far")
    return min(failed, 1)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
