"""A certificate that vouches for itself, for services and for what no project has certified."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from veilgraph.deploy.authority import issue


def self_signed(host: str, folder: Path) -> tuple[Path, Path]:
    """Paths of a certificate for an address or a name, and of its key, in a folder that is made."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name, place = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)]), x509.DNSName(host)
    alternative: x509.GeneralName = place
    with suppress(ValueError):
        alternative = x509.IPAddress(ip_address(host))
    extensions = [x509.SubjectAlternativeName([alternative]), x509.BasicConstraints(ca=False, path_length=None)]
    certificate = issue(name, key.public_key(), name, key, extensions, now, now + timedelta(days=1))
    paths = folder / "certificate.pem", folder / "key.pem"
    folder.mkdir(exist_ok=True)
    paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    paths[1].chmod(0o600)
    return paths
