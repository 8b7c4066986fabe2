"""The authority's list of revoked certificates: an X.509 CRL (RFC 5280) that its root signed, with a rising number.

Since the root signs it, a list may reach a party by any way and from anybody. What nobody can do is to change one, or
to take the place of a list with an older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import SignatureAlgorithmOID

from veilgraph.core.errors import Fault, ProtocolError

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

_BEGIN: Final = b"-----BEGIN X509 CRL-----"
_MALFORMED: Final = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What ``cryptography`` raises, at loading or at first use, of a list that is none."""


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

        Raises:
            ProtocolError: it is no list, or not of this project's authority.
        """
        if len(pem) > MAX_LIST_BYTES or not pem.startswith(_BEGIN):
            raise ProtocolError(
                f"a list of revoked certificates is PEM of at most {MAX_LIST_BYTES} bytes; here are {len(pem)} bytes "
                f"that begin with {pem[: len(_BEGIN)]!r}",
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

        Raises:
            ProtocolError: the two cannot both be of one authority that does what it must.
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
    """What is wrong with a list; None if nothing is."""
    if crl.signature_algorithm_oid not in ROOT_SIGNATURES:
        name = crl.signature_algorithm_oid.dotted_string
        return Fault("weak-signature", f"is signed with {name}; use SHA-256 or better, or Ed25519")
    if not any(_signed(crl, root) for root in roots):
        return Fault("other-project", "is of another project: the root certificate did not sign it")
    for extension in crl.extensions:
        if extension.critical:
            name = extension.oid.dotted_string
            return Fault("extension", f"demands the extension {name}, which is not known here")
    for entry in crl:
        for of_entry in entry.extensions:
            if of_entry.critical:
                name = of_entry.oid.dotted_string
                return Fault("extension", f"demands the extension {name} for serial {entry.serial_number:x}")
    return None


def _signed(crl: x509.CertificateRevocationList, root: x509.Certificate) -> bool:
    key = root.public_key()
    if crl.issuer != root.subject or not isinstance(
        key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
    ):
        return False
    try:
        return crl.is_signature_valid(key)
    except _MALFORMED:
        return False
