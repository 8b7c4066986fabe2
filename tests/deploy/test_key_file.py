"""Private keys with a passphrase: what lies on the disk, who can read it, and what a wrong passphrase says."""

import base64
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.files import locked, write_whole
from veilgraph.deploy import key_file as keys
from veilgraph.deploy.authority import Authority, revoke
from veilgraph.deploy.certificates import install_certificate, request_certificate, sign_certificate
from veilgraph.deploy.key_file import KeyFile, protect, unprotect
from veilgraph.deploy.kit import Kit
from veilgraph.link import identity as private_key
from veilgraph.link.identity import PrivateKey, encrypt_key

WORDS = b"four words of a dictionary"
WRONG = b"four words of a dictionari"
SCRYPT, PBKDF2 = bytes.fromhex("2b06010401da47040b"), bytes.fromhex("2a864886f70d01050c")
NOW = datetime.now(UTC) + timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The derivation's real cost is a test of its own."""
    monkeypatch.setattr(private_key, "COST", 16)


def words() -> bytes:
    return WORDS


def wrong() -> bytes:
    return WRONG


@pytest.fixture
def consortium(provisioned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(provisioned, tmp_path / "consortium"))


@pytest.fixture
def bank(consortium: Path) -> Kit:
    return Kit.open(consortium / "kits" / "bank", words)


@pytest.fixture
def key(bank: Kit) -> PrivateKey:
    return bank.identity().key


def numbers(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def in_the_clear(folder: Path, key: PrivateKey) -> list[Path]:
    """Files on the disk with a line of the key's PEM."""
    body = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).splitlines()[4]
    assert len(body) == 64
    return [
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and body in path.read_bytes()
    ]


def test_a_protected_key_lies_nowhere_in_the_clear(bank: Kit, key: PrivateKey) -> None:
    assert in_the_clear(bank.path, key) == [bank.key_file.plain], "until it is protected"
    protect(bank.key_file, bank.path, words)
    assert in_the_clear(bank.path, key) == []
    assert bank.key_file.sealed.stat().st_mode & 0o077 == 0
    assert numbers(bank.identity().key) == numbers(key)
    unprotect(bank.key_file, bank.path, words)
    assert in_the_clear(bank.path, key) == [bank.key_file.plain]
    assert bank.key_file.plain.stat().st_mode & 0o077 == 0
    assert numbers(Kit.open(bank.path).identity().key) == numbers(key)


def test_guessing_a_passphrase_costs_memory_at_every_try(key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """One derivation, by scrypt, and nothing beside it that would tell a right guess for less."""

    def der(pem: bytes) -> bytes:
        return base64.b64decode(b"".join(pem.splitlines()[1:-1]))

    monkeypatch.undo()
    sealed = encrypt_key(key, WORDS)
    assert SCRYPT in der(sealed)
    assert PBKDF2 not in der(sealed)
    assert sealed != encrypt_key(key, WORDS), "a salt of its own"
    library = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(WORDS))
    assert PBKDF2 in der(library), "what the library would have written"
    assert b"\x02\x02\x40\x00\x02\x01\x08\x02\x01\x05" in der(sealed), "N = 16384, r = 8, p = 5"
    opened = load_pem_private_key(sealed, WORDS)
    assert opened.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()) == numbers(key)


def test_a_wrong_passphrase_is_one_error_that_does_not_repeat_it(bank: Kit) -> None:
    protect(bank.key_file, bank.path, words)
    with refused(DataError, key=Path("client.sealed.key")) as caught:
        Kit.open(bank.path, wrong).identity()
    assert caught.value.__cause__ is None
    assert WRONG.decode() not in f"{caught.getrepr(showlocals=False)}"
    assert "words" not in repr(Kit.open(bank.path, wrong))
    with refused(ConfigError, key=Path("client.sealed.key")):
        Kit.open(bank.path).identity()
    content = bytearray(bank.key_file.sealed.read_bytes())
    content[300] ^= 1
    bank.key_file.sealed.write_bytes(content)
    with refused(DataError, key=Path("client.sealed.key")):
        bank.identity()


def test_what_cannot_be_protected_or_unprotected(bank: Kit, key: PrivateKey) -> None:
    with refused(ConfigError, key="passphrase"):
        protect(bank.key_file, bank.path, lambda: b"eleven char")
    with refused(RunError, key=Path("client.key")):
        unprotect(bank.key_file, bank.path, words)
    with locked(bank.path, "held"), refused(RunError, key=Path("bank")):
        protect(bank.key_file, bank.path, words)
    assert in_the_clear(bank.path, key) == [bank.key_file.plain]
    protect(bank.key_file, bank.path, words)
    with refused(RunError, key=Path("client.sealed.key")):
        protect(bank.key_file, bank.path, words)
    with refused(DataError, key=Path("client.sealed.key")):
        unprotect(bank.key_file, bank.path, wrong)


def test_an_open_key_is_in_memory_for_every_process_of_this_account_and_then_gone(bank: Kit, key: PrivateKey) -> None:
    protect(bank.key_file, bank.path, words)
    cat = ["cat", str(bank.key_file.plain)]
    with bank.key_file.opened(words):
        read = subprocess.run(cat, capture_output=True, check=True).stdout
        assert numbers(load_pem_private_key(read, None)) == numbers(key)  # type: ignore[arg-type]
        assert numbers(Kit.open(bank.path).identity().key) == numbers(key), "a job's process needs no passphrase"
        assert in_the_clear(bank.path, key) == []
        memory = bank.key_file.plain.readlink()
        assert memory.stat().st_mode & 0o777 == 0o400
        with pytest.raises(PermissionError):
            memory.write_bytes(b"x")
    assert not os.path.lexists(bank.key_file.plain)
    assert not memory.exists()


def test_what_a_killed_site_left_is_not_believed(bank: Kit, key: PrivateKey, tmp_path: Path) -> None:
    protect(bank.key_file, bank.path, words)
    (tmp_path / "planted").write_bytes(b"planted")
    with (tmp_path / "planted").open("rb") as other:  # its number went to another process, with another file
        bank.key_file.plain.symlink_to(f"/proc/{os.getpid()}/fd/{other.fileno()}")
        assert numbers(bank.identity().key) == numbers(key)
        with bank.key_file.opened(words):
            assert b"PRIVATE KEY" in bank.key_file.plain.read_bytes()
    # A kill between sealing and deleting: both are there, and the next start takes the one in the clear away.
    bank.key_file.plain.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    with bank.key_file.opened(words):
        assert in_the_clear(bank.path, key) == []


def test_a_new_key_with_a_passphrase_never_lies_in_the_clear(
    bank: Kit, consortium: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []

    def spy(path: Path, content: bytes) -> None:
        written.append(content)
        write_whole(path, content)

    monkeypatch.setattr(keys, "write_whole", spy)
    request_certificate(bank, tmp_path / "bank.csr", words)
    sign_certificate(tmp_path / "bank.csr", consortium / "authority", tmp_path / "bank.crt", NOW)
    with refused(DataError, key=consortium / "kits" / "bank" / "startup" / "new.sealed.key"):
        install_certificate(Kit.open(bank.path, wrong), tmp_path / "bank.crt", NOW)
    install_certificate(bank, tmp_path / "bank.crt", NOW)
    assert len(written) == 2
    assert all(content.startswith(b"-----BEGIN ENCRYPTED") for content in written)
    assert not list((bank.path / "startup").glob("new*"))
    assert not bank.key_file.plain.exists()
    assert in_the_clear(bank.path, bank.identity().key) == []


def test_a_protected_kit_gets_no_other_key(bank: Kit, consortium: Path, tmp_path: Path) -> None:
    request_certificate(Kit.open(bank.path), tmp_path / "bank.csr")
    sign_certificate(tmp_path / "bank.csr", consortium / "authority", tmp_path / "bank.crt", NOW)
    protect(bank.key_file, bank.path, words)
    with refused(RunError, key=consortium / "kits" / "bank"):
        install_certificate(bank, tmp_path / "bank.crt", NOW)
    with refused(DataError, key=consortium / "kits" / "bank" / "startup" / "client.sealed.key"):
        request_certificate(Kit.open(bank.path, wrong), tmp_path / "bank.csr")
    request_certificate(bank, tmp_path / "bank.csr")
    assert KeyFile(bank.path / "startup", "new").is_sealed


def test_the_authoritys_key_can_have_a_passphrase(consortium: Path, bank: Kit, tmp_path: Path) -> None:
    folder = consortium / "authority"
    protect(Authority(folder).key_file, folder, words)
    assert not (folder / "rootCA.key").exists()
    with refused(DataError, key=consortium / "authority" / "rootCA.sealed.key"):
        revoke(Authority(folder, wrong), "bank", NOW)
    made, _ = revoke(Authority(folder, words), "bank", NOW)
    assert made.number == 1
    request_certificate(bank, tmp_path / "bank.csr")
    sign_certificate(tmp_path / "bank.csr", folder, tmp_path / "bank.crt", NOW, passphrase=words)
    install_certificate(bank, tmp_path / "bank.crt", NOW)
