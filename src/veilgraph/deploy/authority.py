"""The authority's folder: the project's root, its key, what it certified, and what of that it has revoked.

It is kept off line. What it makes are certificates and the list of revoked ones, which are no secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from veilgraph.core.errors import ConfigError, DataError, ProtocolError, RunError
from veilgraph.core.files import locked, os_errors_as, private_folder, write_whole
from veilgraph.deploy.key_file import KeyFile, Passphrase
from veilgraph.deploy.revocation import LIST_FILE
from veilgraph.link.identity import BACKDATED, MAX_LIST_BYTES, RevocationList

LIST_DAYS: Final = 360
ROOT: Final = "rootCA"
BROKERS_ROOT: Final = "brokersCA"
"""Stems of the files of the two roots, which certify participants and brokers."""
BROKER_UNIT: Final = "broker"
"""In the subject of a broker's certificate."""
_ROOT_DAYS: Final = 3650  # the participants' certificates are valid for 360 days, and renewed
_ROOT_BITS: Final = 3072
_LEFT: Final = x509.CRLReason(x509.ReasonFlags.cessation_of_operation)

IssuerKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Authority:
    """The folder that ``provision`` made, and the passphrase of its key, if it has one."""

    path: Path
    passphrase: Passphrase | None = field(default=None, repr=False, compare=False)
    _keys: dict[str, IssuerKey] = field(default_factory=dict, repr=False, compare=False)

    @property
    def key_file(self) -> KeyFile:
        """The file of the root key that signs participants' certificates."""
        return KeyFile(self.path, ROOT)

    @property
    def list_path(self) -> Path:
        """The newest list of revoked certificates: no secret, to be taken to a site."""
        return self.path / LIST_FILE

    def root(self, stem: str = ROOT) -> x509.Certificate:
        """The certificate of a root. Errors as ``read_certificate``."""
        return read_certificate(self.path / f"{stem}.pem")

    def key(self, stem: str = ROOT) -> IssuerKey:
        """A root's key, read once: each reading checks its primes, for a tenth of a second.

        Raises ``ConfigError``: it cannot be read, or is no authority's; ``DataError``: the passphrase does not open it,
        or it is not the key of the root's certificate; and as ``module_key.open_key``.
        """
        if stem in self._keys:
            return self._keys[stem]
        key = KeyFile(self.path, stem).read(self.passphrase)
        if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
            raise ConfigError(
                f"{self.path / f'{stem}.key'}: not an RSA or ECDSA key; give the folder that veilgraph net provision "
                "made"
            )
        if key.public_key() != self.root(stem).public_key():
            raise DataError(
                f"{self.path}: its key is not the one of {stem}.pem; name the key that this project was made with",
                code="key-pair",
            )
        return self._keys.setdefault(stem, key)

    def issued(self, stem: str = ROOT) -> list[x509.Certificate]:
        """All certificates kept here that a root has issued, in no order."""
        kept, root = sorted((self.path / "issued").glob("*.crt")), self.root(stem)
        return [each for each in map(read_certificate, kept) if each.issuer == root.subject]

    def keep(self, certificate: x509.Certificate) -> None:
        """Write a certificate to issued/ before it is handed out, so that it can be revoked by name."""
        file_certificate(self.path / "issued", certificate)

    def revoked(self) -> RevocationList | None:
        """The newest list; None before the first. Raises ``DataError``: the file is no list of this authority."""
        if not self.list_path.exists():
            return None
        try:
            return RevocationList.read(read_file(self.list_path), (self.root(),))
        except ProtocolError as error:
            raise DataError(f"{self.list_path}: {error}; take the newest one back from a site's startup/") from error

    def left(self) -> set[int]:
        """Serial numbers of the certificates of participants who have left for good."""
        return {
            each.serial_number
            for each in _crl_entries(self.revoked())
            if any(one.value == _LEFT for one in each.extensions)
        }


def make_authority(folder: Path, project: str, now: datetime, root_key: IssuerKey | None = None) -> Authority:
    """Makes the two roots of a project, with their keys: of its participants, and of its brokers; or ``OSError``.

    A participant's certificate is none of a broker's: with one it could join the brokers and read everything.
    ``root_key`` is the participants' root's, of a PKCS#11 module; without it one is made.
    """
    private_folder(folder)
    keys = dict[str, IssuerKey]()
    for stem, name in ((ROOT, project), (BROKERS_ROOT, f"{project} brokers")):
        made_elsewhere = root_key if stem == ROOT else None
        key = keys[stem] = made_elsewhere or rsa.generate_private_key(public_exponent=65537, key_size=_ROOT_BITS)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        extensions = [x509.BasicConstraints(True, None), usage]
        made = issue(subject, key.public_key(), subject, key, extensions, now, now + timedelta(days=_ROOT_DAYS))
        write_whole(folder / f"{stem}.pem", made.public_bytes(serialization.Encoding.PEM))
        KeyFile(folder, stem).write(key, None)
    return Authority(folder, _keys=keys)


def issue(
    subject: x509.Name,
    public: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    key: IssuerKey,
    extensions: Sequence[x509.ExtensionType],
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    """Sign a certificate of ``public`` with the issuer's ``key``; adds both key identifiers to ``extensions``."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, hashes.SHA256())


def revoke(
    authority: Authority,
    name: str | None,
    now: datetime,
    *,
    serials: Sequence[int] = (),
    leaves: bool = False,
    days: int = LIST_DAYS,
) -> tuple[RevocationList, list[x509.Certificate]]:
    """Signs the next list of revoked certificates, until there is a newer one so many days on.

    It revokes what was certified of ``name`` up to now, or of that only ``serials``, also such as are not kept here;
    None: the list is only made anew. With ``leaves`` this participant gets no new certificate, until it is revoked once
    more without.

    Gives the list, also in the authority's folder, and those of the certificates that are kept here.

    Raises:
        ConfigError: a file cannot be read, or ``serials`` or ``leaves`` without a name.
        DataError: nothing was certified of this name, or a serial number is another participant's.
        RunError: the folder is in use, or cannot be written, or the list would be too long.
    """
    if name is None and (serials or leaves):
        raise ConfigError("--serial, --leaves: whose? Give the participant's name, too")
    with locked(authority.path, f"{authority.path} is in use: another command is signing; wait for it"):
        root, key, before = authority.root(), authority.key(), authority.revoked()
        chosen = [] if name is None else _chosen_certificates(authority, name, serials)
        numbers = {certificate.serial_number for certificate in chosen} | set(serials)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(root.subject)
            .last_update(now - BACKDATED)
            .next_update(now + timedelta(days=days))
            .add_extension(x509.CRLNumber(1 if before is None else before.number + 1), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        )
        since = {} if before is None else dict(before.revoked)
        for entry in _crl_entries(before):
            if entry.serial_number not in numbers:
                builder = builder.add_revoked_certificate(entry)
        for number in sorted(numbers):
            revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(since.get(number, now))
            builder = builder.add_revoked_certificate(
                (revoked.add_extension(_LEFT, critical=False) if leaves else revoked).build()
            )
        pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        if len(pem) > MAX_LIST_BYTES:
            raise RunError(f"{authority.list_path}: the list is full ({MAX_LIST_BYTES} bytes); provision a new project")
        with os_errors_as(RunError, f"{authority.list_path}: cannot be written", "mend its owner and mode"):
            write_whole(authority.list_path, pem)
    return RevocationList.read(pem, (root,)), chosen


def file_certificate(folder: Path, certificate: x509.Certificate) -> None:
    """Writes a certificate into a folder, made at need, under its serial number; or ``OSError``."""
    path = private_folder(folder) / f"{certificate.serial_number:040x}.crt"
    write_whole(path, certificate.public_bytes(serialization.Encoding.PEM))


def common_name(certificate: x509.Certificate) -> str:
    """The common name in a certificate's subject."""
    return str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def read_file(path: Path) -> bytes:
    """Read a file's bytes. Raises ``ConfigError``: it cannot be read."""
    with os_errors_as(ConfigError, f"{path}: cannot be read", "give the file, or folder, that veilgraph made"):
        return path.read_bytes()


def read_certificate(path: Path) -> x509.Certificate:
    """Read a PEM certificate. Raises ``ConfigError``: the file cannot be read; ``DataError``: it is no certificate."""
    content = read_file(path)
    with os_errors_as(DataError, f"{path}: is no certificate", "give a PEM file", ValueError):
        return x509.load_pem_x509_certificate(content)


def _chosen_certificates(authority: Authority, name: str, serials: Sequence[int]) -> list[x509.Certificate]:
    """Certificates of ``name``, of these ``serials`` if any; ``DataError``: none, or another participant's."""
    issued = authority.issued()
    named = [certificate for certificate in issued if common_name(certificate) == name]
    if not named:
        names = ", ".join(sorted({common_name(certificate) for certificate in issued})) or "nobody"
        raise DataError(f"NAME={name!r} is no participant of this project; certified were {names}")
    if not serials:
        return named
    for certificate in issued:
        if certificate.serial_number in serials and certificate not in named:
            raise DataError(
                f"--serial {certificate.serial_number:x}: is a certificate of {common_name(certificate)}, not of {name}"
            )
    return [certificate for certificate in named if certificate.serial_number in serials]


def _crl_entries(revoked: RevocationList | None) -> list[x509.RevokedCertificate]:
    return [] if revoked is None else list(x509.load_pem_x509_crl(revoked.pem))
