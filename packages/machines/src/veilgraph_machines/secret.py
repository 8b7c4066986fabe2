"""The secret that a party's machines share, and what they make of it: certificates for TLS with one another.

From the secret every machine derives the same authority, and signs with it a certificate for a new key of its own. So
each end of a connection proves that it has the secret, in a fresh handshake, and neither shows it.
"""

from __future__ import annotations

import os
import secrets
import ssl
import stat
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from veilgraph.core.errors import ConfigError
from veilgraph.core.files import new_file, os_errors_as, write_whole

SECRET_BYTES: Final = 32

_AUTHORITY: Final = "veilgraph machines"
_MACHINE: Final = "veilgraph machine "
_LABEL: Final = b"veilgraph machines of one party 1"
_FROM, _TO = datetime(2000, 1, 1), datetime(9999, 12, 31)  # another secret is what ends them
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def new_secret() -> bytes:
    """A secret from the operating system."""
    return secrets.token_bytes(SECRET_BYTES)


def write_secret(path: Path) -> None:
    """Makes a new secret in a file that this account alone can read.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    try:
        file = new_file(path)
    except FileExistsError as error:
        raise ConfigError(
            f"machines.secret={path}: the file exists; delete it at all machines to have another secret"
        ) from error
    except OSError as error:
        raise ConfigError(f"machines.secret={path}: cannot be written ({error}); give another path") from error
    with file:
        file.write(f"{new_secret().hex()}\n".encode())


def read_secret(path: Path) -> bytes:
    """Reads what ``write_secret`` wrote.

    Raises:
        ConfigError: it cannot be read, others can read it, or it is no such secret.
    """
    with (
        os_errors_as(
            ConfigError,
            f"machines.secret={path}: cannot be read",
            "make it with: veilgraph net machine-secret PARTY.yaml, and copy it to all machines of the party",
        ),
        path.open("rb") as file,
    ):
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        content = file.read(2 * SECRET_BYTES + 2)
    if mode & _OTHERS:
        raise ConfigError(
            f"machines.secret={path}: others on this machine can read or change it (mode {mode:o}); "
            f"chmod 600 {path}, or have a new one where they may have read it"
        )
    try:
        secret = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"machines.secret={path}: is no line of {2 * SECRET_BYTES} hexadecimal digits; make it with: "
            "veilgraph net machine-secret PARTY.yaml"
        )
    return secret


def tls_context(secret: bytes, rank: int, purpose: int) -> ssl.SSLContext:
    """How machine ``rank`` speaks with the others: TLS 1.3, both ends with a certificate of the secret's authority.

    Args:
        secret: of the party.
        rank: of this machine; stands in its certificate.
        purpose: ``ssl.PROTOCOL_TLS_SERVER`` for who is connected to, ``ssl.PROTOCOL_TLS_CLIENT`` for who connects.
    """
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # machines are known by rank, which ``rank_of`` reads, and not by address
    context.verify_mode = ssl.CERT_REQUIRED
    if purpose == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nothing is resumed
    authority = Ed25519PrivateKey.from_private_bytes(
        HKDF(SHA256(), SECRET_BYTES, salt=None, info=_LABEL).derive(secret)
    )
    context.load_verify_locations(cadata=_certificate(_AUTHORITY, authority.public_key(), authority).decode("ascii"))
    key = Ed25519PrivateKey.generate()
    chain = _certificate(f"{_MACHINE}{rank}", key.public_key(), authority)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with tempfile.TemporaryDirectory() as folder:  # of this account alone; the key is of this process alone
        path = Path(folder) / "machine.pem"
        write_whole(path, private + chain)
        context.load_cert_chain(path)
    return context


def rank_of(connection: ssl.SSLSocket) -> int:
    """Which machine the certificate of the other end names, once the handshake is done.

    Raises:
        ssl.SSLError: none.
    """
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None:
        raise ssl.SSLError("the other end shows no certificate")
    (attribute,) = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(attribute.value)
    number = name.removeprefix(_MACHINE)
    if not name.startswith(_MACHINE) or not (number.isascii() and number.isdigit()):
        raise ssl.SSLError(f"a certificate for {name!r} names no machine")
    return int(number)


def _certificate(name: str, key: Ed25519PublicKey, authority: Ed25519PrivateKey) -> bytes:
    is_authority = name == _AUTHORITY
    named, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, _AUTHORITY))
    builder = x509.CertificateBuilder(
        issuer, named, key, 1 if is_authority else x509.random_serial_number(), _FROM, _TO
    )
    return (
        builder.add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, None)
        .public_bytes(Encoding.PEM)
    )
