"""Ports for sites on this machine."""

from __future__ import annotations

import socket

import pytest

from veilgraph.deploy.demo import free_ports


def test_two_ports_are_free_and_below_those_that_the_system_gives() -> None:
    ports = free_ports()
    assert len(set(ports)) == 2
    assert all(20_000 <= port < 32_000 for port in ports)
    for port in ports:
        with socket.socket() as held:
            held.bind(("localhost", port))


def test_where_none_of_these_is_free_it_takes_what_the_system_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = socket.socket.bind

    def taken(self: socket.socket, address: tuple[str, int]) -> None:
        if address[1]:
            raise OSError
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", taken)
    assert all(free_ports())


def test_without_localhost_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(self: socket.socket, address: tuple[str, int]) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket.socket, "bind", unknown)
    with pytest.raises(socket.gaierror):
        free_ports()
