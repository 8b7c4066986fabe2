from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ObjectIdentifier

from tests.errors import refused
from tests.link.certificates import DAY, NOW, Project, fresh_key, key_pem, pem, write_kit
from veilgraph.core.errors import ConfigError, DataError, ProtocolError
from veilgraph.link.identity import Identity, PrivateKey, load_identity

MESSAGE = b"what was said"
SIGNING_ONLY = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
AGREEING_ONLY = x509.KeyUsage(False, False, False, False, True, False, False, False, False)
UNKNOWN = x509.UnrecognizedExtension(ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00")


@pytest.fixture(scope="module")
def project() -> Project:
    return Project()


@pytest.fixture(scope="module")
def keys() -> dict[str, PrivateKey]:
    return {
        "rsa": rsa.generate_private_key(65537, 2048),
        "p256": fresh_key(),
        "p384": ec.generate_private_key(ec.SECP384R1()),
        "ed25519": ed25519.Ed25519PrivateKey.generate(),
    }


def verify(verifier: Identity, signer: Identity, party: str = "shop", message: bytes = MESSAGE) -> None:
    verifier.verify_peer(party, signer.certificate_pem, signer.sign(MESSAGE), message, NOW)


@pytest.mark.parametrize("kind", ["rsa", "p256", "p384", "ed25519"])
def test_every_kind_of_key_signs_and_issues(tmp_path: Path, keys: dict[str, PrivateKey], kind: str) -> None:
    project = Project(keys[kind])
    shop = load_identity(*write_kit(tmp_path, project.identity("shop", keys[kind])))
    verify(project.identity("bank"), shop)
    with refused(ProtocolError, code="signature", party="shop"):
        verify(project.identity("bank"), shop, message=b"what was not said")
    with refused(ProtocolError, code="signature", party="shop"):
        shop.verify_peer("shop", shop.certificate_pem, b"", MESSAGE, NOW)


def test_the_server_is_who_has_its_hosts_name(project: Project) -> None:
    """Whatever a participant's own certificate, it passes for nobody else."""
    bank = project.identity("bank")
    bank = Identity(bank.certificate, bank.key, bank.roots, "host.example.org")
    server = project.identity("host.example.org")
    verify(bank, server, "server")
    for false, rule in (
        (project.identity("shop"), {"code": "other-name", "party": "server"}),
        (project.identity("server"), {"code": "other-name", "party": "server"}),
        (project.identity("host.example.org", role="project_admin"), {"code": "administrator", "party": "server"}),
    ):
        with refused(ProtocolError, **rule):
            verify(bank, false, "server")
    with refused(ProtocolError, code="other-name", party="shop"):
        verify(bank, server, "shop")
    with refused(ProtocolError, code="servers", party="host.example.org"):
        verify(bank, server, "host.example.org")
    with refused(ProtocolError, code="administrator", party="shop"):
        verify(bank, project.identity("shop", role="lead"), "shop")


def issued_by_a_party(project: Project) -> Identity:
    shop = project.identity("shop")
    false = Project(shop.key)
    false.root = shop.certificate
    return false.identity("shop")


def with_extension(project: Project, *extensions: x509.ExtensionType) -> Identity:
    key = fresh_key()
    return Identity(project.certificate("shop", key, *extensions), key, ())


def with_key(project: Project, key: PrivateKey) -> Identity:
    return Identity(project.certificate("shop", key), key, ())


def with_a_weak_hash(project: Project) -> Identity:
    key = fresh_key()
    return Identity(project.certificate("shop", key, algorithm=hashes.SHA224()), key, ())


@pytest.mark.parametrize(
    ("code", "signer"),
    [
        ("signature", lambda project: Identity(project.identity("shop").certificate, fresh_key(), ())),
        ("other-name", lambda project: project.identity("bank")),
        ("other-name", lambda project: project.identity(None)),
        ("other-project", lambda _: Project().identity("shop")),
        ("other-project", issued_by_a_party),
        ("expired", lambda project: project.identity("shop", start=NOW - 3 * DAY, end=NOW - 2 * DAY)),
        ("not-yet", lambda project: project.identity("shop", start=NOW + DAY / 2)),
        ("authority", lambda project: with_extension(project, x509.BasicConstraints(True, None))),
        ("not-for-signing", lambda project: with_extension(project, AGREEING_ONLY)),
        ("extension", lambda project: with_extension(project, UNKNOWN)),
        ("short-key", lambda project: with_key(project, rsa.generate_private_key(65537, 1024))),
        ("curve", lambda project: with_key(project, ec.generate_private_key(ec.SECP224R1()))),
        ("curve", lambda project: with_key(project, ec.generate_private_key(ec.SECP256K1()))),
        ("weak-signature", with_a_weak_hash),
    ],
)
def test_who_is_not_the_shop_is_refused(project: Project, code: str, signer: Callable[[Project], Identity]) -> None:
    with refused(ProtocolError, code=code, party="shop"):
        verify(project.identity("bank"), signer(project))


def test_a_certificate_of_a_root_that_has_expired_and_one_for_signing(project: Project) -> None:
    late = Project(start=NOW - 3 * DAY, end=NOW - 2 * DAY)
    with refused(ProtocolError, code="expired", party="shop"):
        verify(late.identity("bank"), late.identity("shop"))
    verify(project.identity("bank"), with_extension(project, SIGNING_ONLY, x509.BasicConstraints(False, None)))


@pytest.mark.parametrize("content", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_no_certificate(project: Project, content: bytes) -> None:
    bank = project.identity("bank")
    with refused(ProtocolError, code="unreadable", party="shop"):
        bank.verify_peer("shop", content, bank.sign(MESSAGE), MESSAGE, NOW)


def test_one_of_several_roots_and_the_first_of_a_chain(tmp_path: Path, project: Project) -> None:
    other, shop = Project(), project.identity("shop")
    paths = write_kit(tmp_path, Identity(shop.certificate, shop.key, (other.root, project.root)))
    paths[0].write_bytes(shop.certificate_pem + pem(project.root))
    loaded = load_identity(*paths)
    assert loaded.certificate_pem == shop.certificate_pem
    verify(loaded, other.identity("bank"), "bank")
    verify(loaded, project.identity("bank"), "bank")


def test_files_that_are_missing_or_hold_something_else_are_named(tmp_path: Path, project: Project) -> None:
    paths = write_kit(tmp_path, project.identity("shop"))
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(b"something else")
        with refused(DataError, key=path):
            load_identity(*paths)
        path.unlink()
        with refused(ConfigError, key=path):
            load_identity(*paths)
        path.write_bytes(content)


def test_files_that_do_not_belong_together(tmp_path: Path, project: Project) -> None:
    certificate, key, root = write_kit(tmp_path, project.identity("shop"))
    own = key.read_bytes()
    key.write_bytes(key_pem(fresh_key()))
    with refused(DataError, code="key-pair", key=key):
        load_identity(certificate, key, root)
    key.write_bytes(own)
    root.write_bytes(pem(Project().root))
    with refused(DataError, code="other-project", key=certificate):
        load_identity(certificate, key, root)
    root.write_bytes(certificate.read_bytes())
    with refused(DataError, code="no-authority", key=root):
        load_identity(certificate, key, root)
    root.write_bytes(pem(Project(rsa.generate_private_key(65537, 1024)).root))
    with refused(DataError, code="short-key", key=root):
        load_identity(certificate, key, root)


def test_keys_that_cannot_be_used(tmp_path: Path, project: Project) -> None:
    certificate, key, root = write_kit(tmp_path, project.identity("shop"))
    key.write_bytes(
        fresh_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    )
    with refused(DataError, key=key):
        load_identity(certificate, key, root)
    foreign = dsa.generate_private_key(1024).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    key.write_bytes(foreign)
    with refused(DataError, key=key):
        load_identity(certificate, key, root)
