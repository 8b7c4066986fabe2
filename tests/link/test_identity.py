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
        "rsa1024": rsa.generate_private_key(65537, 1024),
        "p224": ec.generate_private_key(ec.SECP224R1()),
        "k256": ec.generate_private_key(ec.SECP256K1()),
    }


def verify(verifier: Identity, signer: Identity, party: str = "shop", message: bytes = MESSAGE) -> None:
    verifier.verify_peer(party, signer.certificate_pem, signer.sign(MESSAGE), message, NOW)


def is_refused(
    project: Project, certificate: bytes, key: PrivateKey, rule: str, signature: bytes | None = None
) -> None:
    signer = Identity(project.root, key, ())
    with refused(ProtocolError, code=rule, party="shop"):
        project.identity("bank").verify_peer("shop", certificate, signature or signer.sign(MESSAGE), MESSAGE, NOW)


@pytest.mark.parametrize("kind", ["rsa", "p256", "p384", "ed25519"])
def test_every_kind_of_key_signs_and_issues(tmp_path: Path, keys: dict[str, PrivateKey], kind: str) -> None:
    project = Project(keys[kind])
    shop = load_identity(*write_kit(tmp_path, project.identity("shop", keys[kind])))
    verify(project.identity("bank"), shop)
    with refused(ProtocolError, code="signature", party="shop"):
        verify(project.identity("bank"), shop, message=b"what was not said")
    with refused(ProtocolError, code="signature", party="shop"):
        shop.verify_peer("shop", shop.certificate_pem, b"", MESSAGE, NOW)


def test_a_key_of_another_does_not_sign(project: Project) -> None:
    certificate = project.identity("shop").certificate_pem
    is_refused(project, certificate, fresh_key(), "signature")


def test_the_wrong_party(project: Project) -> None:
    with refused(ProtocolError, code="other-name", party="shop"):
        verify(project.identity("bank"), project.identity("bank"))
    with refused(ProtocolError, code="other-name", party="shop"):
        verify(project.identity("bank"), project.identity(None))


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


def test_another_project_of_the_same_name(project: Project) -> None:
    with refused(ProtocolError, code="other-project", party="shop"):
        verify(project.identity("bank"), Project().identity("shop"))


def test_a_party_cannot_issue(project: Project) -> None:
    shop = project.identity("shop")
    false = Project(shop.key)
    false.root = shop.certificate
    with refused(ProtocolError, code="other-project", party="shop"):
        verify(project.identity("bank"), false.identity("shop"))


def test_outside_of_its_time(project: Project) -> None:
    old = project.identity("shop", start=NOW - 3 * DAY, end=NOW - 2 * DAY)
    with refused(ProtocolError, code="expired", party="shop"):
        verify(project.identity("bank"), old)
    with refused(ProtocolError, code="not-yet", party="shop"):
        verify(project.identity("bank"), project.identity("shop", start=NOW + DAY / 2))
    late = Project(start=NOW - 3 * DAY, end=NOW - 2 * DAY)
    with refused(ProtocolError, code="expired", party="shop"):
        verify(late.identity("bank"), late.identity("shop"))


@pytest.mark.parametrize(
    ("extension", "rule"),
    [
        (x509.BasicConstraints(True, None), "authority"),
        (AGREEING_ONLY, "not-for-signing"),
        (UNKNOWN, "extension"),
    ],
)
def test_a_certificate_for_something_else(project: Project, extension: x509.ExtensionType, rule: str) -> None:
    key = fresh_key()
    is_refused(project, pem(project.certificate("shop", key, extension)), key, rule)


def test_a_certificate_for_signing(project: Project) -> None:
    key = fresh_key()
    shop = Identity(project.certificate("shop", key, SIGNING_ONLY, x509.BasicConstraints(False, None)), key, ())
    verify(project.identity("bank"), shop)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [("rsa1024", "short-key"), ("p224", "curve"), ("k256", "curve")],
)
def test_weak_keys(project: Project, keys: dict[str, PrivateKey], kind: str, rule: str) -> None:
    is_refused(project, pem(project.certificate("shop", keys[kind])), keys[kind], rule)


def test_a_weak_hash(project: Project) -> None:
    key = fresh_key()
    is_refused(project, pem(project.certificate("shop", key, algorithm=hashes.SHA224())), key, "weak-signature")


@pytest.mark.parametrize("content", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_no_certificate(project: Project, content: bytes) -> None:
    is_refused(project, content, fresh_key(), "unreadable")


def test_one_of_several_roots(tmp_path: Path, project: Project) -> None:
    other = Project()
    shop = project.identity("shop")
    both = Identity(shop.certificate, shop.key, (other.root, project.root))
    loaded = load_identity(*write_kit(tmp_path, both))
    verify(loaded, other.identity("bank"), "bank")
    verify(loaded, project.identity("bank"), "bank")


def test_a_chain_of_which_the_first_is_the_partys(tmp_path: Path, project: Project) -> None:
    shop = project.identity("shop")
    paths = write_kit(tmp_path, shop)
    paths[0].write_bytes(shop.certificate_pem + pem(project.root))
    assert load_identity(*paths).certificate_pem == shop.certificate_pem


def test_the_key_is_not_shown(project: Project) -> None:
    assert "key" not in repr(project.identity("shop"))


def test_missing_files_are_named(tmp_path: Path, project: Project) -> None:
    paths = write_kit(tmp_path, project.identity("shop"))
    for path in paths:
        content = path.read_bytes()
        path.unlink()
        with refused(ConfigError, key=path):
            load_identity(*paths)
        path.write_bytes(content)


def test_files_that_hold_something_else_are_named(tmp_path: Path, project: Project) -> None:
    paths = write_kit(tmp_path, project.identity("shop"))
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(b"something else")
        with refused(DataError, key=path):
            load_identity(*paths)
        path.write_bytes(content)


def test_files_that_do_not_belong_together(tmp_path: Path, project: Project, keys: dict[str, PrivateKey]) -> None:
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
    root.write_bytes(pem(Project(keys["rsa1024"]).root))
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
