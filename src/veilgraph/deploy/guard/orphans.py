"""A job's process that has something to tell its site ends where that has ended.

The engine puts a job into a session of its own, which no signal to its site's group reaches. One that tells a site that
is gone that it has begun tells it again for ever, without a pause after the first seconds and with a line in
four logs each time (FLARE's ``ClientAppRunner.notify_job_status``): a core is busy, and more than a gigabyte of logs is
there in three quarters of an hour.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

SITE_VARIABLE: Final = "VEILGRAPH_SITE_PROCESS"
"""Of a job's environment: the id of its site's process, for a site may be gone before the job looks for it."""
GRACE_S: Final = 20.0
"""The engine itself tries for 15 seconds before it loses its patience."""
_EVERY_S: Final = 1.0


def name_site(environment: MutableMapping[str, str] = os.environ) -> None:
    """At a site, before it begins: its jobs, which inherit its environment, know whose they are."""
    environment[SITE_VARIABLE] = str(os.getpid())


@contextmanager
def ends_with_site(grace_s: float = GRACE_S, every_s: float = _EVERY_S) -> Iterator[None]:
    """In a job's process: while inside, the process ends so long after its site's has ended.

    Args:
        grace_s: in which what is inside may end by itself.
        every_s: how often it looks.
    """
    site, done = int(os.environ.get(SITE_VARIABLE, os.getppid())), Event()

    def watch() -> None:
        while os.getppid() == site:
            if done.wait(every_s):
                return
        if done.wait(grace_s):
            return
        sys.stderr.write(f"the site's process {site} has ended, and so does its job's: submit the job again\n")
        sys.stderr.flush()
        os._exit(1)

    watching = Thread(target=watch, name="site", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()


def limit_job(grace_s: float = GRACE_S, every_s: float = _EVERY_S) -> None:
    """At a holder's job, before the engine's program runs.

    Args:
        grace_s: of ``ends_with_site``.
        every_s: likewise.
    """
    from nvflare.private.fed.client.client_app_runner import ClientAppRunner  # noqa: PLC0415 - seconds to import

    tell = ClientAppRunner.notify_job_status

    @functools.wraps(tell)
    def limited(*arguments: Any, **named: Any) -> None:  # noqa: ANN401 - FLARE's
        with ends_with_site(grace_s, every_s):
            tell(*arguments, **named)

    ClientAppRunner.notify_job_status = limited
