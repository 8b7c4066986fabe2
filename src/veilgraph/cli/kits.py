"""Start-up kits: their options, and where the passphrase of a private key comes from."""

from __future__ import annotations

import os
import sys
from functools import cache
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from veilgraph.cli.app import option
from veilgraph.core.errors import ConfigError

if TYPE_CHECKING:
    from veilgraph.deploy.key_file import Passphrase
    from veilgraph.deploy.kit import Kit

PassphraseFile = Annotated[
    Path | None,
    option(
        "Holds the private key's passphrase, should it have one; mode 600. Else from VEILGRAPH_PASSPHRASE, or a "
        "prompt.",
        "FILE",
        name="--passphrase-file",
    ),
]


def passphrase_source(file: Path | None, *, of: Path, fresh: bool = False) -> Passphrase:
    """Ask once, when it is first needed: a ``file``, else the environment, else a person who sees the folder's name
    (``of``).

    With ``fresh`` it will seal a key, so a person types it twice.
    """

    @cache
    def ask() -> bytes:
        if file is not None:
            return _from_file(file)
        from veilgraph.deploy.key_file import PASSPHRASE_VARIABLE

        if PASSPHRASE_VARIABLE in os.environ:
            return os.environb[PASSPHRASE_VARIABLE.encode()]
        if not at_a_terminal():
            raise ConfigError(
                f"the private key of {of} takes a passphrase, and nobody can type it here; give --passphrase-file, or "
                f"set {PASSPHRASE_VARIABLE}"
            )
        typed = getpass(f"{'New passphrase' if fresh else 'Passphrase'} for {of}: ")
        if fresh and typed != getpass("The same again: "):
            raise ConfigError("the two passphrases differ; begin anew")
        return typed.encode()

    return ask


def at_a_terminal() -> bool:
    """Whether somebody can type an answer."""
    return sys.stdin.isatty()


def _from_file(file: Path) -> bytes:
    try:
        mode, content = file.stat().st_mode, file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--passphrase-file {file}: cannot be read ({error.strerror}); give another") from error
    if mode & 0o077:
        raise ConfigError(
            f"--passphrase-file {file}: others can read it, too (mode {mode & 0o777:o}); chmod 600 {file}"
        )
    if not (first := content.splitlines()[:1]) or not first[0]:
        raise ConfigError(f"--passphrase-file {file}: its first line is empty; write the passphrase there")
    return first[0]


def open_kit(path: Path, passphrase_file: Path | None = None) -> Kit:
    """The kit in a folder; its passphrase is asked for when its key is needed."""
    from veilgraph.deploy.kit import Kit

    return Kit.open(path, passphrase_source(passphrase_file, of=path))
