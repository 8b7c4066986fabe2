"""The authority's key in a PKCS#11 module: it signs what a file's key signs, and each thing that is amiss is said.

Each test runs on SoftHSM, where it and ``python-pkcs11`` are installed, and on a token that is made up.
"""

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from tests.cli.commands import one_error, veilgraph
from tests.deploy.tokens import FAULTS, PIN, SOFTHSM, WRONG, Key, Token, made_up, softhsm
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, RunError, VeilgraphError
from veilgraph.deploy.authority import Authority, revoke
from veilgraph.deploy.certificates import install_certificate, request_certificate, sign_certificate
from veilgraph.deploy.key_file import KeyFile, protect, unprotect
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.module_key import KeyUri, module_errors, open_key
from veilgraph.deploy.project import ProjectSettings, extend, provision
from veilgraph.deploy.revocation import install_list
from veilgraph.link.identity import check_signature, sign

PROJECT = {
    "name": "fraud",
    "server": {"host": "localhost"},
    "holders": ["bank", "shop"],
    "administrators": ["ops@example.org"],
}


def pin() -> bytes:
    return PIN


@pytest.fixture(scope="module", params=["SoftHSM", "made up"])
def a_token(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Token]:
    folder = tmp_path_factory.mktemp("token")
    if request.param == "made up":
        token, library = made_up(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "pkcs11", library)
            yield token
        return
    if SOFTHSM is None or importlib.util.find_spec("pkcs11") is None:
        pytest.skip("needs SoftHSM (softhsm2, or VEILGRAPH_SOFTHSM) and python-pkcs11")
    with softhsm(folder) as token:
        yield token


@pytest.fixture
def token(a_token: Token) -> Iterator[Token]:
    """A token to which nobody has logged in."""
    yield a_token
    a_token.log_out()


def opened(token: Token, key: str = "root") -> rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey:
    return open_key(KeyUri.read(token.uri(key)), PIN)


@pytest.mark.parametrize("key", ["root", "curve"])
def test_what_a_module_signs_is_what_a_files_key_signs(token: Token, key: str) -> None:
    found = opened(token, key)
    signature = sign(found, b"roles of a project")
    check_signature(found.public_key(), signature, b"roles of a project")
    with pytest.raises(InvalidSignature):
        check_signature(found.public_key(), signature, b"roles of another")
    assert not hasattr(found, "private_numbers")
    assert not hasattr(found, "private_bytes")


def test_other_ways_to_sign_are_refused(token: Token) -> None:
    root, curve = opened(token), opened(token, "curve")
    assert isinstance(root, rsa.RSAPrivateKey)
    assert isinstance(curve, ec.EllipticCurvePrivateKey)
    for bad in (
        lambda: root.sign(b"", padding.PKCS1v15(), hashes.SHA512()),
        lambda: root.sign(b"", padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None), hashes.SHA256()),
        lambda: curve.sign(b"", ec.ECDSA(hashes.SHA384())),
    ):
        with pytest.raises(UnsupportedAlgorithm):
            bad()


def provisioned_with(token: Token, key: str, out: Path) -> dict[str, Kit]:
    kits = provision(ProjectSettings.model_validate(PROJECT), out, opened(token, key))
    return {name: Kit.open(path) for name, path in kits.items()}


@pytest.mark.parametrize("key", ["root", "curve"])
def test_a_project_whose_root_is_in_a_module(token: Token, key: str, tmp_path: Path) -> None:
    """Provisioning, requests, roles, revocation: all that the root signs, each taken by a kit."""
    kits, now = provisioned_with(token, key, tmp_path / "out"), datetime.now(UTC)
    authority = Authority(tmp_path / "out" / "authority", pin)
    held = {path.name for path in authority.path.iterdir() if path.suffix in (".key", ".pkcs11")}
    assert held == {"rootCA.pkcs11", "brokersCA.key"}
    assert authority.key_file.exists
    bank, request, certificate = kits["bank"], tmp_path / "bank.csr", tmp_path / "bank.crt"
    message, signed = b"hello", bank.identity().sign(b"hello")
    kits["shop"].identity().verify_peer("bank", bank.identity().certificate_pem, signed, message, now)
    request_certificate(bank, request)
    sign_certificate(request, authority.path, certificate, now, 7, pin)
    assert (install_certificate(bank, certificate, now) - now).days <= 7
    made, _ = revoke(authority, "shop", now)
    (tmp_path / "revoked.pem").write_bytes(made.pem)
    assert install_list(bank.path, tmp_path / "revoked.pem").number == 1
    wider = ProjectSettings.model_validate(PROJECT | {"holders": ["bank", "shop", "post"]})
    assert list(extend(wider, Authority(authority.path, pin), tmp_path / "out")) == ["post"]
    assert Kit.open(tmp_path / "out" / "kits" / "post").identity().key is not None


def test_it_works_by_commands(token: Token, tmp_path: Path) -> None:
    (tmp_path / "project.yaml").write_text(
        "name: fraud\nserver: {host: localhost}\nholders: [bank, shop]\nadministrators: [ops@example.org]\n"
    )
    (tmp_path / "pin").write_bytes(PIN + b"\n")
    (tmp_path / "pin").chmod(0o600)
    out, secret = tmp_path / "out", ("--passphrase-file", tmp_path / "pin")
    made = ("net", "provision", tmp_path / "project.yaml", "--out", out, "--root-key", token.uri())
    assert "give --passphrase-file" in one_error(veilgraph(*made))
    assert not out.exists()
    said = veilgraph(*made, *secret)
    assert said.exit_code == 0, said.output
    request = veilgraph("cert", "request", out / "kits" / "bank", "--out", tmp_path / "bank.csr")
    signed = ("cert", "sign", tmp_path / "bank.csr", "--authority", out / "authority", "--out", tmp_path / "bank.crt")
    assert request.stdout.splitlines()[0] == veilgraph(*signed, *secret).stdout.splitlines()[0]
    assert "installed" in veilgraph("cert", "install", out / "kits" / "bank", tmp_path / "bank.crt").stdout
    assert "give --passphrase-file" in one_error(veilgraph(*signed))
    assert "whose PIN protects it" in one_error(veilgraph("cert", "passphrase", out / "authority", *secret))
    again = veilgraph(*made, "--add", *secret)
    assert "--root-key: with --add the project has its root" in one_error(again)


@pytest.mark.parametrize(
    ("uri", "code", "error"),
    [
        (lambda it: it.uri(token="nobody"), "pkcs11-token", ConfigError),
        (lambda it: it.uri("absent"), "pkcs11-key", ConfigError),
        (lambda it: it.uri("twice"), "pkcs11-several", ConfigError),
        (lambda it: it.uri("short"), "pkcs11-kind", DataError),
        (lambda it: it.uri("odd"), "pkcs11-kind", DataError),
        (lambda it: it.uri().replace(it.module, "/nowhere/module.so"), "pkcs11-module", ConfigError),
    ],
    ids=["token", "key", "several", "short", "curve", "module"],
)
def test_what_is_not_there_is_named(token: Token, uri, code: str, error: type[VeilgraphError]) -> None:
    with refused(error, code=code):
        open_key(KeyUri.read(uri(token)), PIN)


def test_a_wrong_pin_is_said_and_not_shown(token: Token) -> None:
    with refused(DataError, code="pkcs11-pin") as caught:
        open_key(KeyUri.read(token.uri()), WRONG)
    assert WRONG.decode() not in str(caught.value)


def test_a_pin_that_is_no_text_is_refused_and_not_shown(token: Token) -> None:
    with refused(ConfigError, code="pkcs11-uri") as caught:
        open_key(KeyUri.read(token.uri()), PIN + b"\xff")
    assert PIN.decode() not in str(caught.value)


def test_a_second_key_of_a_process_shares_the_login(token: Token) -> None:
    assert opened(token).public_key() == opened(token).public_key() != opened(token, "curve").public_key()


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_of_a_module_is_one_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, library = made_up(tmp_path)
    monkeypatch.setitem(sys.modules, "pkcs11", library)
    with pytest.raises((ConfigError, DataError), match="pkcs11:token"), module_errors(KeyUri.read(token.uri())):
        raise library.__dict__[name]


def test_a_module_that_does_not_sign_so_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, library = made_up(tmp_path)
    monkeypatch.setitem(sys.modules, "pkcs11", library)
    key = opened(token)

    def refuse(*_: object, **__: object) -> bytes:
        raise library.__dict__["MechanismInvalid"]

    monkeypatch.setattr(Key, "sign", refuse)
    with refused(ConfigError, code="pkcs11-mechanism"):
        sign(key, b"")


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pkcs11", None)
    with refused(ConfigError, code="pkcs11-library") as caught:
        open_key(KeyUri.read("pkcs11:token=a;object=b?module-path=/module.so"), PIN)
    assert "pip install python-pkcs11" in str(caught.value)


# Where a file was


@pytest.fixture
def authority(provisioned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(provisioned / "authority", tmp_path / "authority"))


def test_another_key_than_the_roots_signs_nothing(token: Token, authority: Path) -> None:
    (authority / "rootCA.key").unlink()
    (authority / "rootCA.pkcs11").write_text(f"{token.uri()}\n")
    with refused(DataError, code="key-pair"):
        revoke(Authority(authority, pin), None, datetime.now(UTC))
    assert not (authority / "revoked.pem").exists()


def test_a_file_left_beside_a_module_is_refused(authority: Path) -> None:
    (authority / "rootCA.pkcs11").write_text("pkcs11:token=a;object=b?module-path=/module.so\n")
    with refused(ConfigError, code="pkcs11-beside"):
        Authority(authority, pin).key()


@pytest.mark.parametrize("content", [b"\xff\n", b"", b"a key\n"])
def test_a_file_that_holds_no_uri(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "root.pkcs11").write_bytes(content)
    with pytest.raises(ConfigError, match=r"pkcs11:token=TOKEN|the URI of the key"):
        KeyFile(tmp_path, "root").read(pin)


def test_a_module_wants_its_pin(tmp_path: Path) -> None:
    (tmp_path / "root.pkcs11").write_text("pkcs11:token=a;object=b?module-path=/module.so\n")
    with pytest.raises(ConfigError, match="--passphrase-file"):
        KeyFile(tmp_path, "root").read(None)
    for change in (protect, unprotect):
        with pytest.raises(RunError, match="whose PIN protects it"):
            change(KeyFile(tmp_path, "root"), tmp_path, pin)


def test_a_sites_key_must_be_a_file(provisioned: Path, tmp_path: Path) -> None:
    bank = Path(shutil.copytree(provisioned / "kits" / "bank", tmp_path / "bank"))
    (bank / "startup" / "client.pkcs11").write_text("pkcs11:token=a;object=b?module-path=/module.so\n")
    kit = Kit.open(bank, pin)
    for use in (kit.identity, kit.brokers):
        with refused(ConfigError, code="pkcs11-tls"):
            use()


# URIs


def test_a_uri_names_module_token_and_key() -> None:
    text = "pkcs11:token=My%20token;object=root%3bkey;id=%01%02;type=private?module-path=/opt/a%20module.so"
    uri = KeyUri.read(text)
    assert (uri.token, uri.object, uri.id, uri.module) == ("My token", "root;key", b"\1\2", "/opt/a module.so")
    assert str(uri) == text
    assert KeyUri.read("pkcs11:serial=a1;id=%02?module-path=/m").serial == b"a1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rootCA.key",
        "PKCS11:token=a;object=b?module-path=/m",
        "pkcs11:",
        "pkcs11:token=a;object=b",
        "pkcs11:token=a;object=b?module-path=m.so",
        "pkcs11:token=a?module-path=/m",
        "pkcs11:object=b?module-path=/m",
        "pkcs11:token=a;object=b;slot-id=1?module-path=/m",
        "pkcs11:token=a;token=a;object=b?module-path=/m",
        "pkcs11:token=;object=b?module-path=/m",
        "pkcs11:token=a;object=b;type=cert?module-path=/m",
        "pkcs11:token=a;object=b?module-path=/m&module-name=m",
        "pkcs11:token=%ff;object=b?module-path=/m",
        "pkcs11:token=\N{LATIN SMALL LETTER E WITH ACUTE};object=b?module-path=/m",
        "pkcs11:token=a;object=b?module-path=/" + 4096 * "m",
    ],
)
def test_a_uri_that_names_no_one_key(text: str) -> None:
    with refused(ConfigError, code="pkcs11-uri", key="key"):
        KeyUri.read(text)


@pytest.mark.parametrize(
    "text",
    [
        "pkcs11:token=a;object=b?module-path=/m&pin-value=135790",
        "pkcs11:token=a;object=b?module-path=/m&pin-source=/135790",
        "pkcs11:token=a;object=b;pin-value=135790?module-path=/m",
        "pkcs11:token=a;slot-id=1;object=b?module-path=/m&pin-value=135790",
        "PKCS11:token=a;object=b?module-path=/m&PIN-VALUE=135790",
    ],
)
def test_a_uri_with_a_pin_is_refused_and_not_repeated(text: str) -> None:
    with refused(ConfigError, code="pkcs11-uri") as caught:
        KeyUri.read(text)
    assert "has a PIN" in str(caught.value)
    assert "135790" not in str(caught.value)
