"""Two ends of a sealed link, and what becomes of a handshake."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from veilgraph_testing.sealed_link import SealedLink

from tests.link.altered import Alter, AlteredLink, unaltered
from tests.link.certificates import Project
from veilgraph.core.errors import LinkError
from veilgraph.link.channel import ChannelContext
from veilgraph.link.factory import MemoryHub
from veilgraph.link.identity import Identity

PROJECT = Project()


BANK, SHOP = PROJECT.identity("bank"), PROJECT.identity("shop")


PARTIES = ("bank", "shop", "server")


def outcome(link: SealedLink) -> LinkError | None:
    try:
        link.establish()
    except LinkError as error:
        return error
    return None


def outcomes(links: Iterable[SealedLink]) -> list[LinkError | None]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(outcome, links, timeout=30))


def pair(
    bank: Identity = BANK,
    shop: Identity = SHOP,
    jobs: tuple[str, str] = ("job", "job"),
    alter: Alter = unaltered,
    timeout_s: float = 5.0,
) -> tuple[SealedLink, SealedLink, AlteredLink, AlteredLink]:
    """The links of bank and shop, before the handshake, and what is below them; ``alter`` acts before the shop."""
    hub = MemoryHub(["bank", "shop", "server"], timeout_s)
    below = AlteredLink(hub.link("bank"), unaltered), AlteredLink(hub.link("shop"), alter)
    sessions = [ChannelContext(job, PARTIES) for job in jobs]
    return SealedLink(below[0], bank, ["shop"], sessions[0]), SealedLink(below[1], shop, ["bank"], sessions[1]), *below
