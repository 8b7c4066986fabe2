"""Two parties in threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from veilgraph.core.types import Link
from veilgraph.link.factory import MemoryHub
from veilgraph.mpc.pair.peer import Peer

Result = TypeVar("Result")


def both(
    first: Callable[[Peer], Result],
    second: Callable[[Peer], Result] | None = None,
    wrapped: Callable[[Link], Link] = lambda link: link,
) -> tuple[Result, Result]:
    """What the first and the second party's part give; ``second`` is the first's by default."""
    hub = MemoryHub(("A", "B"), 60)

    def one(party: str) -> Result:
        part = first if party == "A" or second is None else second
        try:
            return part(Peer(wrapped(hub.link(party)), "B" if party == "A" else "A", leads=party == "A"))
        except BaseException as error:
            hub.fail(party, error)
            raise

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(one, party) for party in ("A", "B")]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None and type(error).__name__ != "PeerFailed":
                raise error
        left, right = (future.result() for future in futures)
    return left, right
