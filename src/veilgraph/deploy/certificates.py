"""A participant's own key: made where it is used, signed by the project's authority, renewed before it expires.

Provisioning makes every first key in one place. A participant that requests a certificate for a key of its own, before
or after, holds a key that nobody else has ever had.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.files import locked, private_folder, write_whole
from veilgraph.deploy.kit import Kit

DAYS: Final = 360
_KEY_BITS: Final = 2048
_CLOCK_SKEW: Final = timedelta(minutes=5)
_NEW_KEY: Final = "new.key"


@dataclass(frozen=True)
class Fingerprint:
    """Whose key it is, and the SHA-256 of the public key: what two people compare over another channel."""

    name: str
    sha256: str


def request_certificate(kit: Kit, out: Path) -> Fingerprint:
    """Makes a key in the kit and a request for a certificate of it, with the name of the kit's certificate.

    Raises:
        RunError: the request or the key cannot be written.
        ConfigError: the kit's certificate cannot be read.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
    request = x509.CertificateSigningRequestBuilder().subject_name(_certificate(kit).subject)
    try:
        _write_private(kit.path / "startup" / _NEW_KEY, key)
        write_whole(out, request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    return Fingerprint(kit.name, _fingerprint(key.public_key()))


def sign_certificate(request: Path, authority: Path, out: Path, now: datetime, days: int = DAYS) -> Fingerprint:
    """Signs a participant's request with the authority's key.

    Only names that were provisioned are signed, each with what its first certificate says of it.

    Args:
        request: as ``request_certificate`` wrote it.
        authority: the folder that ``provision`` made.
        out: the certificate to write.
        now: with a time zone.
        days: for how long it is valid.

    Raises:
        ConfigError: a file cannot be read.
        DataError: the request is not one, or not of a participant.
    """
    wanted = _read_request(request)
    root = _read_certificate(authority / "rootCA.pem")
    key = serialization.load_pem_private_key(_read(authority / "rootCA.key"), None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ConfigError(f"{authority / 'rootCA.key'}: not an RSA key; give the folder that veilgraph provision made")
    first = next((old for old in _issued(authority) if old.subject == wanted.subject), None)
    if first is None:
        raise DataError(
            f"{request}: {wanted.subject.rfc4514_string()!r} is no participant of this project; requests are made with "
            "a kit of the project"
        )
    public = wanted.public_key()
    if not isinstance(public, rsa.RSAPublicKey) or public.key_size < _KEY_BITS:
        raise DataError(f"{request}: its key is not RSA of at least {_KEY_BITS} bits; make it with veilgraph")
    builder = (
        x509.CertificateBuilder()
        .subject_name(first.subject)
        .issuer_name(root.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(min(now + timedelta(days=days), root.not_valid_after_utc))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    kept = (x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier)
    for extension in first.extensions:
        if not isinstance(extension.value, kept):
            builder = builder.add_extension(extension.value, extension.critical)
    try:
        write_whole(out, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    return Fingerprint(_name(first), _fingerprint(public))


def install_certificate(kit: Kit, certificate: Path, now: datetime) -> datetime:
    """Puts a signed certificate and the key that was made for it in the place of the kit's.

    Returns:
        Until when it is valid.

    Raises:
        DataError: it is not for this kit's new key, of another project, or not valid now.
        RunError: the site is running, or nothing was requested.
    """
    startup = kit.path / "startup"
    new = _read_certificate(certificate)
    old = _certificate(kit)
    if not (startup / _NEW_KEY).is_file():
        raise RunError(f"{kit.path}: no certificate was requested with this kit; begin with request-certificate")
    key = serialization.load_pem_private_key(_read(startup / _NEW_KEY), None)
    if new.public_key() != key.public_key():
        raise DataError(f"{certificate}: is not for the key that this kit requested it for; sign the newest request")
    if new.subject != old.subject:
        raise DataError(f"{certificate}: is for {new.subject.rfc4514_string()!r}, not for {kit.name}; give its own")
    try:
        new.verify_directly_issued_by(_read_certificate(startup / "rootCA.pem"))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise DataError(f"{certificate}: is of another project; have this project's authority sign it") from error
    if not new.not_valid_before_utc <= now <= new.not_valid_after_utc:
        raise DataError(
            f"{certificate}: is valid from {new.not_valid_before_utc:%Y-%m-%d} to {new.not_valid_after_utc:%Y-%m-%d}, "
            f"and here it is {now:%Y-%m-%d}; compare the clocks, or have it signed anew"
        )
    stem = "server" if kit.kind == "server" else "client"
    with locked(kit.path, f"{kit.path} is in use: stop its site first, and start it again afterwards"):
        # Key and certificate cannot change in one step. A kill in between leaves two that do not belong together,
        # which join refuses; the new key stays until both are in place, so that installing again mends it.
        write_whole(startup / f"{stem}.crt", new.public_bytes(serialization.Encoding.PEM))
        _write_private(startup / f"{stem}.key", key)
        (startup / _NEW_KEY).unlink()
    return new.not_valid_after_utc


def keep_issued(kits: dict[str, Path], authority: Path) -> None:
    """Keeps what was certified of whom, so that requests can be compared with it: certificates only, no keys."""
    folder = authority / "issued"
    private_folder(folder)
    for number, kit in enumerate(kits.values()):
        opened = Kit.open(kit)
        write_whole(folder / f"{number:02d}.crt", _certificate(opened).public_bytes(serialization.Encoding.PEM))


def _issued(authority: Path) -> list[x509.Certificate]:
    return [_read_certificate(path) for path in sorted((authority / "issued").glob("*.crt"))]


def _certificate(kit: Kit) -> x509.Certificate:
    return _read_certificate(kit.path / "startup" / ("server.crt" if kit.kind == "server" else "client.crt"))


def _name(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def _fingerprint(key: rsa.RSAPublicKey) -> str:
    content = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(content)
    return digest.finalize().hex(":", 2)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give the file, or folder, that veilgraph made") from error


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise DataError(f"{path}: is no certificate ({error}); give a PEM file") from error


def _read_request(path: Path) -> x509.CertificateSigningRequest:
    try:
        request = x509.load_pem_x509_csr(_read(path))
    except ValueError as error:
        raise DataError(f"{path}: is no certificate request ({error}); make one with request-certificate") from error
    if not request.is_signature_valid:
        raise DataError(f"{path}: is not signed with its own key; make it anew with request-certificate")
    return request


def _write_private(path: Path, key: object) -> None:
    if not isinstance(key, rsa.RSAPrivateKey):
        raise DataError(f"{path}: not an RSA key; make it with request-certificate")
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    write_whole(path, content)
