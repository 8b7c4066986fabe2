"""Certificates made at run time: a project's root and what it issues, laid out as in a kit."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from veilgraph.link.identity import Identity, PrivateKey

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def fresh_key() -> PrivateKey:
    """The quickest kind to make that is not the simplest to use."""
    return ec.generate_private_key(ec.SECP256R1())


class Project:
    """A root certificate and its key."""

    def __init__(self, key: PrivateKey | None = None, start: datetime = NOW - DAY, end: datetime = NOW + DAY) -> None:
        self.key = key or fresh_key()
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "project")])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        self.root = self.sign(self.name, self.key, start, end, x509.BasicConstraints(True, None), usage)

    def certificate(
        self,
        name: str | None,
        key: PrivateKey,
        *extensions: x509.ExtensionType,
        start: datetime = NOW - DAY,
        end: datetime = NOW + DAY,
        algorithm: hashes.SHA224 | None = None,
        role: str | None = None,
    ) -> x509.Certificate:
        """A party's certificate; without a name it has no common name, with a role it is an administrator's."""
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "org")]
        if role is not None:
            subject.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
        if name is not None:
            subject.insert(0, x509.NameAttribute(NameOID.COMMON_NAME, name))
        alternative = x509.SubjectAlternativeName([x509.DNSName(name or "none")])
        return self.sign(x509.Name(subject), key, start, end, alternative, *extensions, algorithm=algorithm)

    def plain(
        self, name: str, key: PrivateKey, start: datetime = NOW - DAY, end: datetime = NOW + DAY
    ) -> x509.Certificate:
        """A certificate with a common name and no other."""
        return self.sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, start, end)

    def identity(
        self,
        name: str | None,
        key: PrivateKey | None = None,
        start: datetime = NOW - DAY,
        end: datetime = NOW + DAY,
        role: str | None = None,
    ) -> Identity:
        """What a party of this project loads."""
        key = key or fresh_key()
        return Identity(self.certificate(name, key, start=start, end=end, role=role), key, (self.root,))

    def sign(
        self,
        subject: x509.Name,
        key: PrivateKey,
        start: datetime,
        end: datetime,
        *extensions: x509.ExtensionType,
        algorithm: hashes.SHA224 | None = None,
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder(subject_name=subject, issuer_name=self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=not isinstance(extension, x509.SubjectAlternativeName))
        ed = isinstance(self.key, ed25519.Ed25519PrivateKey)
        return builder.sign(self.key, None if ed else algorithm or hashes.SHA256())


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def key_pem(key: PrivateKey) -> bytes:
    ed = isinstance(key, ed25519.Ed25519PrivateKey)
    return key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8 if ed else PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )


def write_kit(folder: Path, identity: Identity) -> tuple[Path, Path, Path]:
    """Writes ``client.crt``, ``client.key`` and ``rootCA.pem``."""
    paths = folder / "client.crt", folder / "client.key", folder / "rootCA.pem"
    contents = identity.certificate_pem, key_pem(identity.key), b"".join(map(pem, identity.roots))
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths
