"""Ports for sites on this machine."""

import socket

import pytest

from veilgraph.deploy.demo import free_port


def test_a_port_is_free_and_below_those_that_the_system_gives() -> None:
    port = free_port()
    assert 20_000 <= port < 32_000
    with socket.socket() as held:
        held.bind(("localhost", port))


def test_where_none_of_these_is_free_it_takes_what_the_system_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = socket.socket.bind

    def taken(self: socket.socket, address: tuple[str, int]) -> None:
        if address[1]:
            raise OSError
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", taken)
    assert free_port()


def test_without_localhost_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(self: socket.socket, address: tuple[str, int]) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket.socket, "bind", unknown)
    with pytest.raises(socket.gaierror):
        free_port()
