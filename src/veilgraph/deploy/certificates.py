"""A participant's own key: made where it is used, signed by the project's authority, renewed before it expires.

Provisioning makes every first key in one place. A participant that requests a certificate for a key of its own, before
or after, holds a key that nobody else has ever had.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.files import locked, os_errors_as, write_whole
from veilgraph.deploy.authority import BROKERS_ROOT, ROOT, Authority, common_name, issue, read_certificate, read_file
from veilgraph.deploy.key_file import Passphrase
from veilgraph.deploy.kit import Kit, admit
from veilgraph.deploy.revocation import installed_list
from veilgraph.deploy.roles import ROLES, Roles, newer_roles

DAYS: Final = 360
KEY_BITS: Final = 2048


@dataclass(frozen=True)
class Fingerprint:
    """Whose key it is, and the SHA-256 of the public key: what two people compare over another channel."""

    name: str
    sha256: str


def request_certificate(
    kit: Kit, out: Path, passphrase: Passphrase | None = None, *, broker: bool = False
) -> Fingerprint:
    """Makes a key in the kit and, at ``out``, a request for a certificate of it, of the same name; or of its broker's.

    ``passphrase`` seals the new key; without it the kit's own does, if its key is sealed. Raises ``RunError``: a file
    cannot be written; ``ConfigError``: no certificate can be read, the passphrase is too short, or there is no broker.
    """
    if broker and not kit.has_broker:
        raise ConfigError(f"--broker: the kit of {kit.name} runs no broker; give the server's, or a broker's")
    own = kit.broker if broker else kit.certified
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    old = read_certificate(own.certificate)
    request = x509.CertificateSigningRequestBuilder().subject_name(old.subject)
    if passphrase is None and own.key.is_sealed:
        own.key.read(kit.passphrase)  # the same passphrase, not a mistyped one
        passphrase = kit.passphrase
    with os_errors_as(RunError, f"{out}: cannot be written", "choose another --out"):
        own.requested.write(key, None if passphrase is None else passphrase())
        write_whole(out, request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return Fingerprint(_owner(old), _fingerprint(key.public_key()))


def sign_certificate(
    request: Path, authority: Path, out: Path, now: datetime, days: int = DAYS, passphrase: Passphrase | None = None
) -> Fingerprint:
    """Signs a participant's request with the authority's key, to be valid for so many days.

    Only names that were provisioned are signed, each with what an earlier certificate says of it, and only keys that
    were never revoked. Raises ``ConfigError``: a file cannot be read; ``DataError``: the request is not one, not of a
    participant, or of one whose key was revoked or who left.
    """
    wanted = _read_request(request)
    signer = Authority(authority, passphrase)
    public = wanted.public_key()
    if not isinstance(public, rsa.RSAPublicKey) or public.key_size < KEY_BITS:
        raise DataError(f"{request}: its key is not RSA of at least {KEY_BITS} bits; make it with veilgraph")
    first = _earlier_issued(signer, wanted, request)
    stem = BROKERS_ROOT if _is_of_broker(first) else ROOT
    root, key = signer.root(stem), signer.key(stem)
    kept = (x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier)
    extensions = [each.value for each in first.extensions if not isinstance(each.value, kept)]
    until = min(now + timedelta(days=days), root.not_valid_after_utc)
    certificate = issue(first.subject, public, root.subject, key, extensions, now, until)
    with os_errors_as(RunError, f"{out}: cannot be written", "choose another --out"):
        signer.keep(certificate)  # first: what is not kept could not be revoked by name
        write_whole(out, certificate.public_bytes(serialization.Encoding.PEM))
    return Fingerprint(_owner(first), _fingerprint(public))


def install_certificate(kit: Kit, certificate: Path, now: datetime) -> datetime:
    """Puts a signed certificate and the key that was made for it in the place of the kit's, or of its broker's.

    A running broker takes its own at once. Returns until when it is valid. Raises ``DataError``: it is not for this
    kit's new key, of another project, revoked, or not valid now; ``RunError``: the site is running, or nothing was
    requested.
    """
    new = read_certificate(certificate)
    own = kit.broker if kit.has_broker and _is_of_broker(new) else kit.certified
    old, requested = read_certificate(own.certificate), own.requested
    if not requested.exists:
        raise RunError(f"{kit.path}: no certificate was requested with this kit; begin with veilgraph cert request")
    key = requested.read(kit.passphrase)
    if new.public_key() != key.public_key():
        raise DataError(f"{certificate}: is not for the key that this kit requested it for; sign the newest request")
    if new.subject != old.subject:
        raise DataError(f"{certificate}: is for {new.subject.rfc4514_string()!r}, not for {_owner(old)}; give its own")
    _check_issued(own.root, new, certificate)
    if not new.not_valid_before_utc <= now <= new.not_valid_after_utc:
        raise DataError(
            f"{certificate}: is valid from {new.not_valid_before_utc:%Y-%m-%d} to {new.not_valid_after_utc:%Y-%m-%d}, "
            f"and here it is {now:%Y-%m-%d}; compare the clocks, or have it signed anew"
        )
    revoked = installed_list(kit.path)
    if revoked is not None and (fault := revoked.fault(new)):
        raise DataError(f"{certificate}: {fault}", code=fault.code)
    if own.key.is_sealed and not requested.is_sealed:
        raise RunError(f"{kit.path}: its key has a passphrase now, and the requested one has none; request it anew")
    passphrase = kit.passphrase if requested.is_sealed else None
    in_use = f"{kit.path} is in use: stop its site first, and start it again afterwards"
    with nullcontext() if own.key == kit.broker.key and not own.key.is_sealed else locked(kit.path, in_use):
        # Key and certificate cannot change in one step. A kill in between leaves two that do not belong together,
        # which join refuses; the new key stays until both are in place, so that installing again mends it. The
        # certificate comes last: when it has changed, a running broker reads both.
        own.key.write(key, None if passphrase is None else passphrase())
        write_whole(own.certificate, new.public_bytes(serialization.Encoding.PEM))
        requested.remove()
        if kit.has_broker and not _is_of_broker(new):
            admit(kit.path, new)
    return new.not_valid_after_utc


def admit_certificate(kit: Kit, certificate: Path) -> str | None:
    """Have a kit's broker admit another participant; return its name, None for the kit's own or without a broker.

    Raises ``ConfigError``: it cannot be read; ``DataError``: of another project; ``RunError``: the kit is read-only.
    """
    new = read_certificate(certificate)
    if not kit.has_broker or common_name(new) == kit.certified_name:
        return None
    _check_issued(kit.path / "startup" / f"{ROOT}.pem", new, certificate)
    with os_errors_as(RunError, f"{kit.path}: cannot be written", "mend its owner and mode"):
        admit(kit.path, new)
    return common_name(new)


def install_roles(kit: Kit, file: Path) -> Roles:
    """Install newer roles from a file; the kit's broker, if any, admits its certificates. Errors as ``newer_roles``."""
    roles, named = newer_roles(kit.path / "startup", file)
    with os_errors_as(RunError, f"{kit.path}: cannot be written", "mend its owner and mode"):
        for each in named if kit.has_broker else ():
            _check_issued(kit.path / "startup" / f"{ROOT}.pem", each, file)
            admit(kit.path, each)
        write_whole(kit.path / "startup" / ROLES, file.read_bytes())  # last: whoever is killed before does it again
    return roles


def _check_issued(root: Path, new: x509.Certificate, path: Path) -> None:
    """Raise ``DataError`` unless ``root`` issued the certificate that was read from ``path``."""
    try:
        new.verify_directly_issued_by(read_certificate(root))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise DataError(
            f"{path}: is of another project; have this project's authority sign it", code="other-project"
        ) from error


def _earlier_issued(authority: Authority, wanted: x509.CertificateSigningRequest, request: Path) -> x509.Certificate:
    """A certificate issued before for a request's subject; ``DataError``: none, or it left, or the key was revoked."""
    issued = [*authority.issued(), *authority.issued(BROKERS_ROOT)]
    named = [old for old in issued if old.subject == wanted.subject]
    if not named:
        raise DataError(
            f"{request}: {wanted.subject.rfc4514_string()!r} is no participant of this project; requests are made with "
            "a kit of the project"
        )
    name, revoked = common_name(named[0]), authority.revoked()
    if any(old.serial_number in authority.left() for old in named):
        raise DataError(
            f"{request}: {name} has left the project; to take it back, first: veilgraph cert revoke {name}, without "
            "--leaves"
        )
    if any(
        revoked and old.serial_number in revoked.revoked and old.public_key() == wanted.public_key() for old in named
    ):
        raise DataError(
            f"{request}: the key in it was revoked; {name} makes a new one with veilgraph cert request", code="revoked"
        )
    return named[0]


def _is_of_broker(certificate: x509.Certificate) -> bool:
    return bool(certificate.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATIONAL_UNIT_NAME))


def _owner(certificate: x509.Certificate) -> str:
    name = common_name(certificate)
    return f"the broker at {name}" if _is_of_broker(certificate) else name


def _fingerprint(key: rsa.RSAPublicKey) -> str:
    content = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return sha256(content).digest().hex(":", 2)


def _read_request(path: Path) -> x509.CertificateSigningRequest:
    content = read_file(path)
    way_out = "make one with veilgraph cert request"
    with os_errors_as(DataError, f"{path}: is no certificate request", way_out, ValueError):
        request = x509.load_pem_x509_csr(content)
    if not request.is_signature_valid:
        raise DataError(f"{path}: is not signed with its own key; make it anew with veilgraph cert request")
    return request
