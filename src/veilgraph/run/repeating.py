"""Learning seeds across organisations: secret, and the same again where the same job is repeated on the same tables.

Each party has a secret for life. Of it, the job and its tables it makes a mark, which tells others whether these are
those of an earlier run, and nothing else; its seed follows from the secret and from the marks of all. So a seed comes
again only where no party has changed anything, and then it only repeats what was computed before. Masks, shares, keys
and noise never follow from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from veilgraph.core.errors import RunError
from veilgraph.core.files import locked, private_folder, write_whole
from veilgraph.core.randomness import private_seed, seed_of
from veilgraph.core.secrets import SEED_BYTES, derive_key, system_secrets
from veilgraph.core.types import PartyId
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.organisation import Organisation

_FILE: Final = "secret"


def learning_secret(folder: Path) -> bytes:
    """The party's secret for life, drawn from the operating system at its first job.

    Raises:
        RunError: the file is damaged, or cannot be made.
    """
    path = folder / _FILE
    try:
        with locked(private_folder(folder), f"{folder} is in use; try again", wait_s=math.inf):
            if not path.is_file():
                write_whole(path, system_secrets(SEED_BYTES))
            secret = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be made or read ({error}); keep the kit where you may write") from error
    if len(secret) != SEED_BYTES:
        raise RunError(
            f"{path}: {len(secret)} bytes in place of {SEED_BYTES}; restore it, or delete it, and jobs that were run "
            "before give other results when they are repeated"
        )
    return secret


def mark(secret: bytes, job: JobSettings, organisation: Organisation | None) -> str:
    """What a party states of a job and its tables: 64 hexadecimal digits; none where its draws are to be new.

    Jobs that add noise are never repeated: the noise is new, and the same values under it twice would say more of them.
    Nor are jobs whose sums may lack holders: over other survivors the same values would show a single holder's.

    Args:
        secret: the party's.
        job: the job; its name does not count.
        organisation: the holder's own; None at the server.

    Raises:
        DataError: a table cannot be read.
    """
    if (
        adds_noise(job)
        or job.passes.tolerates_dropouts
        or (organisation is not None and organisation.settings.seed == "fresh")
    ):
        return ""
    tables = "" if organisation is None else organisation.digest()
    return derive_key(secret, f"mark/{_hash(job)}/{tables}").hex()


def learning_seed(
    secret: bytes, job: JobSettings, organisation: Organisation | None, marks: Mapping[PartyId, str]
) -> int:
    """The party's seed for a new run.

    Args:
        secret: the party's.
        job: the job.
        organisation: the holder's own; None at the server.
        marks: party → what it stated, in the job's order; where one stated none, the seed is new.
    """
    if organisation is not None and organisation.settings.seed == "job":
        return job.seed
    if not all(marks.values()):
        return private_seed()
    return seed_of(derive_key(secret, f"seed/{_hash(job)}/{json.dumps(list(marks.items()))}"))


def _hash(job: JobSettings) -> str:
    return job.model_copy(update={"name": ""}).hash()
