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

    def one(link: Link) -> Result:
        leads = link.party == "A"
        part = first if leads or second is None else second
        return part(Peer(wrapped(link), "B" if leads else "A", leads=leads))

    return linked(one)


def linked(part: Callable[[Link], Result], timeout_s: float = 60) -> tuple[Result, Result]:
    """What the part of both parties gives, of A and of B, each with its link; the first cause if one fails."""
    hub = MemoryHub(("A", "B"), timeout_s)

    def one(party: str) -> Result:
        try:
            return part(hub.link(party))
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
