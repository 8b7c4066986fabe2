"""Two ends of a channel without a wire."""

from tests.link.certificates import Project
from veilgraph.link.channel import (
    Channel,
    ChannelContext,
)

PROJECT = Project()


BANK, SHOP = PROJECT.identity("bank"), PROJECT.identity("shop")


SESSION = ChannelContext("job", ("bank", "shop", "server"))


def pair(session: ChannelContext = SESSION, extra: bytes = b"") -> tuple[Channel, Channel]:
    """Both ends, after the handshake."""
    bank, shop = Channel(BANK, "bank", "shop", session, extra=extra), Channel(SHOP, "shop", "bank", session)
    assert bank.hear(shop.hello)
    assert shop.hear(bank.hello)
    shop.open(bank.confirmation())
    bank.open(shop.confirmation())
    return bank, shop
