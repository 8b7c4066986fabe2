"""Who a party is: its certificate and private key, how it checks those of others, and what has been revoked.

A project has one root; it issues the certificate of every party directly, with the party's name as common name: that
of party ``server`` has the name of who deals, which every kit states, and an administrator's also has a role.
``deploy.authority`` makes them (``client.crt``, ``client.key``, ``rootCA.pem``), but any certificate authority can: RSA
of 2048 bits or more, ECDSA on a NIST curve, or Ed25519.

A private key is plain PEM, or sealed with a passphrase: an encrypted PKCS #8 file (RFC 5958) with PBES2, AES-256-CBC
under scrypt (RFC 7914), at one of the costs that OWASP's Password Storage Cheat Sheet gives. ``openssl pkey`` reads it.
The library reads it, too, but would write 2048 rounds of PBKDF2.

What is revoked is in an X.509 CRL (RFC 5280) that the root signed, with a rising number. Since the root signs it, a
list may reach a party by any way and from anybody. What nobody can do is to change one, or to take the place of a list
with an older one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.padding import PKCS7
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID, SignatureAlgorithmOID

from veilgraph.core.errors import ConfigError, DataError, Fault, ProtocolError
from veilgraph.core.files import os_errors_as
from veilgraph.core.secrets import SEED_BYTES, SecretSource, system_secrets
from veilgraph.core.types import SERVER, PartyId

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

COST, _BLOCK_SIZE, _PARALLEL = 1 << 14, 8, 5
"""16 MiB and a fifth of a second."""

_IV_BYTES: Final = 16
_BEGIN: Final = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
_END: Final = b"-----END ENCRYPTED PRIVATE KEY-----\n"
_INTEGER, _OCTETS, _OBJECT, _SEQUENCE = 0x02, 0x04, 0x06, 0x30
_PBES2: Final = bytes.fromhex("2a864886f70d01050d")  # 1.2.840.113549.1.5.13
_SCRYPT: Final = bytes.fromhex("2b06010401da47040b")  # 1.3.6.1.4.1.11591.4.11
_AES256_CBC: Final = bytes.fromhex("60864801650304012a")  # 2.16.840.1.101.3.4.1.42
_MALFORMED: Final = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    CryptographyDeprecationWarning,
)
"""What ``cryptography`` raises, at loading or at first use, of a certificate or a list that is none; the last, only
where Python is told to raise warnings: elsewhere such a certificate is read and its issuer checked."""


def read_key(path: Path, passphrase: bytes | None = None) -> PrivateKey:
    """Reads a private key, PEM; a passphrase is needed if it is sealed, and refused if not: then it protects nothing.

    Raises ``ConfigError``: the file cannot be read; ``DataError``: it holds no usable key, or not under this
    passphrase.
    """
    content = _read(path, "the party's private key")
    try:
        key = load_pem_private_key(content, passphrase)
    except TypeError as error:
        seal = "no passphrase, and one was given; seal it with veilgraph cert passphrase"
        wrong = "a passphrase; give it" if passphrase is None else seal
        raise DataError(f"{path}: the private key has {wrong}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        if passphrase is not None:  # nobody knows what a library says of a passphrase: without the cause
            raise DataError(f"{path} does not open: it has another passphrase, or is damaged") from None
        raise DataError(f"{path} does not hold a private key as PEM: {error}") from error
    if not isinstance(key, PrivateKey):
        raise DataError(f"{path}: the private key must be RSA, ECDSA on a NIST curve, or Ed25519")
    return key


def encrypt_key(key: PrivateKey, passphrase: bytes, secrets: SecretSource = system_secrets) -> bytes:
    """Encrypt a private key under a passphrase: PEM, as the content of a file that ``read_key`` opens with it."""
    salt, vector = secrets(SEED_BYTES), secrets(_IV_BYTES)
    secret = Scrypt(salt, algorithms.AES256.key_size // 8, COST, _BLOCK_SIZE, _PARALLEL).derive(passphrase)
    padder, encryptor = PKCS7(128).padder(), Cipher(algorithms.AES256(secret), modes.CBC(vector)).encryptor()
    plain = padder.update(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())) + padder.finalize()
    costs = (
        _der(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big"))
        for number in (COST, _BLOCK_SIZE, _PARALLEL)
    )
    derivation = _der(_SEQUENCE, _der(_OBJECT, _SCRYPT), _der(_SEQUENCE, _der(_OCTETS, salt), *costs))
    encryption = _der(_SEQUENCE, _der(_OBJECT, _AES256_CBC), _der(_OCTETS, vector))
    algorithm = _der(_SEQUENCE, _der(_OBJECT, _PBES2), _der(_SEQUENCE, derivation, encryption))
    sealed = _der(_SEQUENCE, algorithm, _der(_OCTETS, encryptor.update(plain) + encryptor.finalize()))
    return b"".join((_BEGIN, base64.encodebytes(sealed), _END))


def _der(tag: int, *parts: bytes) -> bytes:
    """Encode one DER element: tag, length and the joined parts (X.690, 8.1)."""
    content = b"".join(parts)
    if len(content) < 128:
        return bytes([tag, len(content)]) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


MAX_LIST_BYTES: Final = 48 << 10
"""Of a list as PEM, read before anything in it: some 700 certificates, and fits into a handshake."""

ROOT_SIGNATURES: Final = frozenset(
    {
        SignatureAlgorithmOID.RSA_WITH_SHA256,
        SignatureAlgorithmOID.RSA_WITH_SHA384,
        SignatureAlgorithmOID.RSA_WITH_SHA512,
        SignatureAlgorithmOID.ECDSA_WITH_SHA256,
        SignatureAlgorithmOID.ECDSA_WITH_SHA384,
        SignatureAlgorithmOID.ECDSA_WITH_SHA512,
        SignatureAlgorithmOID.ED25519,
    }
)
"""With which algorithm a root may have signed a certificate or a list."""

_BEGIN_LIST: Final = b"-----BEGIN X509 CRL-----"


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Which certificates the authority has revoked.

    Attributes:
        pem: the list as it was signed, and nothing else.
        number: rises by one with every list.
        next_update: when the authority will have made a newer one; the list goes on revoking afterwards.
        revoked: serial number → since when.
    """

    pem: bytes
    number: int
    next_update: datetime
    revoked: Mapping[int, datetime]

    @classmethod
    def read(cls, pem: bytes, roots: tuple[x509.Certificate, ...]) -> Self:
        """Reads a list and checks that one of the roots signed it, and that nothing in it is unknown and critical.

        Raises ``ProtocolError``: it is no list, or not of this project's authority.
        """
        if len(pem) > MAX_LIST_BYTES or not pem.startswith(_BEGIN_LIST):
            raise ProtocolError(
                f"a list of revoked certificates is PEM of at most {MAX_LIST_BYTES} bytes; here are {len(pem)} bytes "
                f"that begin with {pem[: len(_BEGIN_LIST)]!r}",
                code="not-a-list",
                value=len(pem),
            )
        try:
            crl = x509.load_pem_x509_crl(pem)
            if fault := fault_of_list(crl, roots):
                raise ProtocolError(f"the list of revoked certificates {fault}", code=fault.code)
            number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            next_update, alone = crl.next_update_utc, crl.public_bytes(Encoding.PEM)
            revoked = {entry.serial_number: entry.revocation_date_utc for entry in reversed(list(crl))}
        except (*_MALFORMED, x509.ExtensionNotFound) as error:
            raise ProtocolError(
                f"the list of revoked certificates cannot be read: {error}", code="unreadable"
            ) from error
        if next_update is None:
            raise ProtocolError("the list of revoked certificates does not say when the next one comes")
        return cls(alone, number, next_update, revoked)

    def fault(self, certificate: x509.Certificate) -> Fault | None:
        """What is wrong with a certificate that this list names; None if it does not."""
        since = self.revoked.get(certificate.serial_number)
        if since is None:
            return None
        return Fault(
            "revoked",
            f"(serial {certificate.serial_number:x}) was revoked on {since:%Y-%m-%d}; its owner makes a new key with "
            "veilgraph cert request, and has it signed",
        )

    def follows(self, other: RevocationList | None) -> bool:
        """Whether this list takes the place of ``other``; no list is followed by any.

        Raises ``ProtocolError``: the two cannot both be of one authority that does what it must.
        """
        if other is None or self.pem == other.pem:
            return other is None
        if self.number == other.number:
            raise ProtocolError(
                f"there are two lists of revoked certificates with number {self.number}: the authority must know the "
                "one that is installed before it makes another; give it startup/revoked.pem of this kit as revoked.pem",
                code="revocation-fork",
                value=self.number,
            )
        older, newer = sorted((self, other), key=lambda one: one.number)
        if missing := older.revoked.keys() - newer.revoked.keys():
            raise ProtocolError(
                f"list {newer.number} of revoked certificates no longer has serial {min(missing):x} of list "
                f"{older.number}; what was revoked stays so: revoke it again by --serial",
                code="revocation-undone",
                value=newer.number,
            )
        return self is newer


def fault_of_list(crl: x509.CertificateRevocationList, roots: tuple[x509.Certificate, ...]) -> Fault | None:
    """Return why a list is refused: its algorithm, its signer or a critical extension; None if nothing is wrong."""
    if fault := _fault_of_algorithm(crl):
        return fault
    if not any(_is_signed_by(crl, root) for root in roots):
        return Fault("other-project", "is of another project: the root certificate did not sign it")
    entries = ((entry.extensions, f" for serial {entry.serial_number:x}") for entry in crl)
    for extensions, where in ((crl.extensions, ""), *entries):
        for extension in extensions:
            if extension.critical:
                name = extension.oid.dotted_string
                return Fault("extension", f"demands the extension {name}{where}, which is not known here")
    return None


def _fault_of_algorithm(signed: x509.Certificate | x509.CertificateRevocationList) -> Fault | None:
    if signed.signature_algorithm_oid in ROOT_SIGNATURES:
        return None
    name = signed.signature_algorithm_oid.dotted_string
    return Fault("weak-signature", f"is signed with {name}; use SHA-256 or better, or Ed25519")


def _is_signed_by(crl: x509.CertificateRevocationList, root: x509.Certificate) -> bool:
    key = root.public_key()
    if crl.issuer != root.subject or not isinstance(key, PublicKey):
        return False
    try:
        return crl.is_signature_valid(key)
    except _MALFORMED:
        return False


ADMINISTRATOR: Final = "project_admin"
"""The role in an administrator's certificate."""
MIN_RSA_BITS: Final = 2048
BACKDATED: Final = timedelta(days=1)
"""Every certificate and revocation list is valid from one day before its making.

A peer with a slow clock, or with a clock in another time zone, accepts it at once. Nothing was signed before the key
existed, so the earlier start allows nothing."""

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey

_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


@dataclass(frozen=True, slots=True)
class Identity:
    """A party's certificate and private key, the roots it trusts, the server's name, and what roots have revoked."""

    certificate: x509.Certificate
    key: PrivateKey = field(repr=False)
    roots: tuple[x509.Certificate, ...]
    server_name: str = SERVER
    revoked: RevocationList | None = None

    @property
    def certificate_pem(self) -> bytes:
        """The party's own certificate, without others that its file may hold."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def revocation_list_pem(self) -> bytes:
        """The newest list that the party has, to be shown to its peers; empty if it has none."""
        return b"" if self.revoked is None else self.revoked.pem

    def sign(self, message: bytes) -> bytes:
        """Signs with RSA-PSS (MGF1 and salt of SHA-256), ECDSA with SHA-256, or Ed25519, as the key is."""
        return sign(self.key, message)

    def verify_peer(self, party: PartyId, certificate: bytes, signature: bytes, message: bytes, now: datetime) -> None:
        """Check as ``Trust.check`` that ``party`` signed a message, by this party's roots and revocation list."""
        Trust(self.roots, self.revoked, self.server_name).check(party, certificate, signature, message, now)


def sign(key: PrivateKey, message: bytes) -> bytes:
    """Sign with a private key as ``Identity.sign`` does, where there is no certificate: for the project's root."""
    match key:
        case rsa.RSAPrivateKey():
            return key.sign(message, _PSS, hashes.SHA256())
        case ec.EllipticCurvePrivateKey():
            return key.sign(message, ec.ECDSA(hashes.SHA256()))
        case _:
            return key.sign(message)


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose signatures count: of whom the project's ``roots``, if any, have certified, and not revoked."""

    roots: tuple[x509.Certificate, ...] = ()
    revoked: RevocationList | None = None
    server_name: str = SERVER

    def check(self, party: PartyId, certificate: bytes, signature: bytes, message: bytes, now: datetime) -> None:
        """Checks that ``message`` was signed by the owner of the certificate, PEM, that the project gave ``party``.

        Raises ``ProtocolError``: says which check failed.
        """
        role = partial(fault_of_role, party=party, server_name=self.server_name)
        self._signer(party, role, certificate, signature, message, now)

    def administrator(self, certificate: bytes, signature: bytes, message: bytes, now: datetime) -> str:
        """Check that an administrator signed a message, and return the name in its certificate; errors as ``check``."""
        found = self._signer("an administrator", _fault_unless_administrator, certificate, signature, message, now)
        return str(found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    def _signer(
        self,
        who: str,
        role: Callable[[x509.Certificate], Fault | None],
        certificate: bytes,
        signature: bytes,
        message: bytes,
        now: datetime,
    ) -> x509.Certificate:
        """Check certificate, ``role`` and signature of a message, and return the certificate; errors as ``check``."""
        try:
            peer = x509.load_pem_x509_certificate(certificate)
            fault = _fault(peer, self.roots) or _fault_of_dates(peer, self.roots, now) or role(peer)
            if self.revoked is not None:
                fault = fault or self.revoked.fault(peer)
        except _MALFORMED as error:
            raise ProtocolError(f"{who}'s certificate cannot be read: {error}", code="unreadable", party=who) from error
        if fault:
            raise ProtocolError(f"{who}'s certificate {fault}", code=fault.code, party=who)
        try:
            check_signature(peer.public_key(), signature, message)
        except (InvalidSignature, ValueError) as error:
            words = f"{who}'s signature is not by the key of {who}'s certificate"
            raise ProtocolError(words, code="signature", party=who) from error
        return peer


def load_identity(
    certificate: Path, key: Path, root: Path, passphrase: bytes | None = None, server_name: str = SERVER
) -> Identity:
    """Reads a party's identity and checks that its parts belong together.

    Raises ``ConfigError``: a file cannot be read; ``DataError``: it holds something else, or the three do not fit.
    """
    roots = load_roots(root)
    own = _read_certificates(certificate, "the party's certificate")[0]
    private = read_key(key, passphrase)
    try:
        if own.public_key() != private.public_key():
            words = f"{key} is not the key of the certificate in {certificate}; take both from one startup kit"
            raise DataError(words, code="key-pair")
        fault = _fault(own, roots)
    except _MALFORMED as error:
        raise DataError(f"{certificate}: the certificate cannot be read: {error}", code="unreadable") from error
    if fault:
        raise DataError(f"{certificate}: the certificate {fault} (root: {root})", code=fault.code)
    return Identity(own, private, roots, server_name)


def load_roots(path: Path) -> tuple[x509.Certificate, ...]:
    """Read a project's root certificates; ``ConfigError``: unreadable file; ``DataError``: one is no root's."""
    roots = _read_certificates(path, "the project's root certificate")
    for one in roots:
        if fault := _fault_of_root(one):
            raise DataError(f"{path}: the root certificate {fault}", code=fault.code)
    return roots


def _read(path: Path, what: str) -> bytes:
    with os_errors_as(ConfigError, f"{path} cannot be read", f"give the path of {what}"):
        return path.read_bytes()


def _read_certificates(path: Path, what: str) -> tuple[x509.Certificate, ...]:
    content = _read(path, what)
    try:
        return tuple(x509.load_pem_x509_certificates(content))
    except _MALFORMED as error:
        raise DataError(f"{path} does not hold {what} as PEM: {error}") from error


def _fault(certificate: x509.Certificate, roots: tuple[x509.Certificate, ...]) -> Fault | None:
    """What is wrong with a party's certificate at any time and under any name; None if nothing is."""
    if fault := _fault_of_algorithm(certificate):
        return fault
    if not any(_is_issued_by(certificate, root) for root in roots):
        return Fault("other-project", "is of another project: the root certificate did not issue it")
    return _fault_of_key(certificate) or _fault_of_use(certificate)


def _fault_of_dates(certificate: x509.Certificate, roots: tuple[x509.Certificate, ...], now: datetime) -> Fault | None:
    issuer = next(root for root in roots if _is_issued_by(certificate, root))
    for one, whose in ((certificate, ""), (issuer, "was issued by a root certificate that ")):
        if now > one.not_valid_after_utc:
            end = f"{one.not_valid_after_utc:%Y-%m-%d}"
            return Fault("expired", f"{whose}expired on {end}; provision the project again")
        if now < one.not_valid_before_utc:
            start = one.not_valid_before_utc.isoformat()
            return Fault(
                "not-yet", f"{whose}is valid from {start}, and here it is {now.isoformat()}: compare the clocks"
            )
    return None


def fault_of_role(certificate: x509.Certificate, party: PartyId, server_name: str) -> Fault | None:
    """Return why a certificate is not this party's: an administrator's, another name's or the server's; else None."""
    roles = certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    if roles:
        return Fault("administrator", f"is an administrator's ({roles[0].value!r}), not a party's")
    names = [attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    expected = server_name if party == SERVER else party
    if names != [expected]:
        return Fault("other-name", f"is for {', '.join(map(repr, names)) or 'nobody'}, not {expected!r}")
    if party != SERVER and expected == server_name:
        return Fault("servers", f"is party {SERVER}'s, which is no holder; rename the holder {party!r}")
    return None


def _fault_unless_administrator(certificate: x509.Certificate) -> Fault | None:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    roles = certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    if [role.value for role in roles] != [ADMINISTRATOR] or len(names) != 1:
        return Fault("no-administrator", "is not an administrator's, who alone submits, stops and asks")
    return None


def _fault_of_key(certificate: x509.Certificate) -> Fault | None:
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        return Fault("short-key", f"has an RSA key of {key.key_size} bits; at least {MIN_RSA_BITS} are needed")
    if isinstance(key, ec.EllipticCurvePublicKey) and not isinstance(key.curve, _CURVES):
        return Fault("curve", f"has a key on the curve {key.curve.name}; use a NIST curve of 256 bits or more")
    if not isinstance(key, PublicKey):
        return Fault("key-kind", "has a key that is neither RSA, nor ECDSA, nor Ed25519")
    return None


def _fault_of_use(certificate: x509.Certificate) -> Fault | None:
    """Return why a party may not use a certificate to sign: its constraints or extensions; None if it may."""
    for extension in certificate.extensions:
        match extension.value:
            case x509.BasicConstraints(ca=True):
                return Fault("authority", "is a certificate authority's, not a party's")
            case x509.KeyUsage(digital_signature=False):
                return Fault("not-for-signing", "may not be used for signatures")
            case x509.UnrecognizedExtension() if extension.critical:
                return Fault("extension", f"demands the unknown extension {extension.oid.dotted_string}")
    return None


def _fault_of_root(root: x509.Certificate) -> Fault | None:
    try:
        constraints = (each.value for each in root.extensions if isinstance(each.value, x509.BasicConstraints))
        if not any(each.ca for each in constraints):
            return Fault("no-authority", "is not a certificate authority's")
        return _fault_of_key(root)
    except _MALFORMED as error:
        return Fault("unreadable", f"cannot be read: {error}")


def _is_issued_by(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (InvalidSignature, *_MALFORMED):
        return False
    return True


def check_signature(key: object, signature: bytes, message: bytes) -> None:
    """Verify a signature that ``sign`` made; raises ``InvalidSignature``, or ``ValueError`` where it is none."""
    match key:
        case rsa.RSAPublicKey():
            key.verify(signature, message, _PSS, hashes.SHA256())
        case ec.EllipticCurvePublicKey():
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        case ed25519.Ed25519PublicKey():
            key.verify(signature, message)
        case _:
            raise InvalidSignature
