"""Where a private key lies: in the clear, sealed with a passphrase and then in memory alone, or in a PKCS#11 module."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import locked, os_errors_as, write_whole
from veilgraph.deploy.module_key import KeyUri, ModuleEcKey, ModuleRsaKey, open_key
from veilgraph.link.identity import PrivateKey, encrypt_key, read_key

PASSPHRASE_VARIABLE: Final = "VEILGRAPH_PASSPHRASE"  # noqa: S105  (a name, no secret)
SHORTEST_PASSPHRASE: Final = 12

Passphrase = Callable[[], bytes]
"""Asks for a passphrase; called only where one is needed."""

_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_IN_MEMORY: Final = "veilgraph-key"


@dataclass(frozen=True)
class KeyFile:
    """A private key that lies in ``folder`` as ``<stem>.key``, or sealed as ``<stem>.sealed.key``.

    Or a PKCS#11 module has it, and ``<stem>.pkcs11`` holds its URI.
    """

    folder: Path
    stem: str

    @property
    def plain(self) -> Path:
        """The file in the clear; while a site with a sealed key runs, a link to its memory."""
        return self.folder / f"{self.stem}.key"

    @property
    def sealed(self) -> Path:
        """The file under a passphrase."""
        return self.folder / f"{self.stem}.sealed.key"

    @property
    def module(self) -> Path:
        """The file with the URI of a key in a PKCS#11 module; no secret."""
        return self.folder / f"{self.stem}.pkcs11"

    @property
    def is_sealed(self) -> bool:
        """Whether it takes a passphrase to read it. Where a kill left both files, the sealed one counts."""
        return self.sealed.is_file()

    @property
    def exists(self) -> bool:
        """Whether there is a key at all."""
        return self.is_sealed or self.plain.is_file() or self.module.is_file()

    def found(self, passphrase: Passphrase | None) -> tuple[Path, bytes | None]:
        """The file to read, and its passphrase or None; ``ConfigError``: one is needed, and it is None, or no file."""
        if self.module.is_file():
            raise ConfigError(
                f"{self.module}: this key must be a file, because TLS reads it; have a file, and let the authority's "
                "key, in a module, certify it for a short time (cert sign --days)",
                code="pkcs11-tls",
            )
        if not self.is_sealed or self._is_open():
            return self.plain, None
        if passphrase is None:
            raise ConfigError(f"{self.sealed}: the private key has a passphrase; give --passphrase-file")
        return self.sealed, passphrase()

    def read(self, passphrase: Passphrase | None) -> PrivateKey:
        """Read the key, or find it in its module; errors as ``found``, ``read_key`` and ``module_key.open_key``."""
        if self.module.is_file():
            return self._in_module(passphrase)
        return read_key(*self.found(passphrase))

    def write(self, key: PrivateKey, passphrase: bytes | None) -> None:
        """Replace the key, sealed with a passphrase if given; ``ConfigError``: that is too short; or ``OSError``.

        Of a key in a module the URI alone is written.
        """
        if isinstance(key, ModuleRsaKey | ModuleEcKey):
            write_whole(self.module, f"{key.uri}\n".encode())
            return
        if passphrase is None:
            write_whole(self.plain, _unencrypted_pem(key))
            self.sealed.unlink(missing_ok=True)
            return
        if len(passphrase) < SHORTEST_PASSPHRASE:
            raise ConfigError(
                f"passphrase: it has {len(passphrase)} bytes, and at least {SHORTEST_PASSPHRASE} are needed: a thief "
                "of the file can try as many as there are; take several words"
            )
        write_whole(self.sealed, encrypt_key(key, passphrase))
        self.plain.unlink(missing_ok=True)

    def remove(self) -> None:
        """Deletes the key."""
        self.plain.unlink(missing_ok=True)
        self.sealed.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the link to a sealed key that a killed site left; the caller holds the folder's lock."""
        if self.is_sealed:
            self.plain.unlink(missing_ok=True)

    @contextmanager
    def opened(self, passphrase: Passphrase | None) -> Iterator[None]:
        """Let programs without the passphrase read a sealed key from memory, for a block; the caller locks it."""
        if not self.is_sealed:
            yield
            return
        with in_memory(self.read(passphrase)) as path:
            link = self.plain.with_name(f".{self.plain.name}")
            link.unlink(missing_ok=True)
            link.symlink_to(path)
            link.replace(self.plain)
            try:
                yield
            finally:
                self.plain.unlink(missing_ok=True)

    def _in_module(self, pin: Passphrase | None) -> PrivateKey:
        if self.is_sealed or self.plain.is_file():
            left = self.sealed if self.is_sealed else self.plain
            raise ConfigError(
                f"{self.module}: names the key of a module, but {left.name} is here as well; delete the one you do not "
                "use",
                code="pkcs11-beside",
            )
        what, way_out = f"{self.module}: cannot be read", "have it hold one line, the URI of the key"
        with os_errors_as(ConfigError, what, way_out, UnicodeDecodeError):
            uri = KeyUri.read(self.module.read_text(encoding="ascii").strip())
        if pin is None:
            raise ConfigError(f"{self.module}: the module asks for a PIN; give --passphrase-file")
        return open_key(uri, pin())

    def _is_open(self) -> bool:
        """Whether the file in the clear is another process's memory, and not what a killed one left behind."""
        try:
            return _IN_MEMORY in str(self.plain.readlink().readlink())
        except OSError:
            return False


@dataclass(frozen=True)
class Certified:
    """A certificate of a kit, its private key, and that of its issuer: PEM files."""

    certificate: Path
    key: KeyFile
    root: Path

    @property
    def requested(self) -> KeyFile:
        """The key of the certificate that was requested in its place, until that is installed."""
        return KeyFile(self.key.folder, "new")


@contextmanager
def in_memory(key: PrivateKey) -> Iterator[Path]:
    """Yield a path by which this account's processes read a key from memory; ``ConfigError``: not on this system."""
    what, way_out = "a key with a passphrase needs Linux with memfd_create", "see cert passphrase --remove"
    with os_errors_as(ConfigError, what, way_out, AttributeError):
        descriptor = os.memfd_create(_IN_MEMORY, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(_unencrypted_pem(key))
        os.fchmod(descriptor, 0o400)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        with os_errors_as(
            ConfigError, "a key with a passphrase needs /proc", "mount it, or see cert passphrase --remove"
        ):
            path.read_bytes()
        yield path
    finally:
        os.close(descriptor)


def protect(key_file: KeyFile, folder: Path, passphrase: Passphrase) -> None:
    """Seal a key of the kit ``folder``. ``ConfigError``: short passphrase; ``RunError``: sealed, in use, unwritable."""
    _check_is_file(key_file)
    if key_file.is_sealed:
        raise RunError(
            f"{key_file.sealed}: has a passphrase already; for another, begin with veilgraph cert passphrase --remove"
        )
    key = read_key(key_file.plain)
    _rewrite_key(key_file, folder, key, passphrase())


def unprotect(key_file: KeyFile, folder: Path, passphrase: Passphrase) -> None:
    """Writes a key in the clear again. Arguments and errors as ``protect``; ``DataError``: it does not open."""
    _check_is_file(key_file)
    if not key_file.is_sealed:
        raise RunError(f"{key_file.plain}: has no passphrase; there is nothing to take off")
    key = read_key(key_file.sealed, passphrase())
    _rewrite_key(key_file, folder, key, None)


def _check_is_file(key_file: KeyFile) -> None:
    if key_file.module.is_file():
        raise RunError(f"{key_file.module}: the key is in a module, whose PIN protects it; there is no file to seal")


def _rewrite_key(key_file: KeyFile, folder: Path, key: PrivateKey, passphrase: bytes | None) -> None:
    with (
        os_errors_as(RunError, f"{key_file.folder}: cannot be written", "mend its owner and mode"),
        locked(folder, f"{folder} is in use: stop its site first, and start it again afterwards"),
    ):
        key_file.write(key, passphrase)


def _unencrypted_pem(key: PrivateKey) -> bytes:
    ed = isinstance(key, ed25519.Ed25519PrivateKey)
    encoding = PrivateFormat.PKCS8 if ed else PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(Encoding.PEM, encoding, NoEncryption())
