"""Tokens with keys in them for tests: SoftHSM's, where it is installed, and one that is made up here.

Both hold an RSA key ``root``, an ECDSA key ``curve``, one on a curve of Bitcoin's, ``odd``, one of RSA of 1024 bits,
``short``, and two of one label, ``twice``. ``python-pkcs11`` drives SoftHSM; of the other the library itself is made
up, as far as it is called.
"""

import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

PIN, WRONG = b"135790", b"246813"
LABEL = "consortium"
SOFTHSM = next(
    (
        path
        for path in (
            Path(os.environ.get("VEILGRAPH_SOFTHSM", "/usr/lib/softhsm/libsofthsm2.so")),
            Path("/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so"),
            Path("/usr/lib64/pkcs11/libsofthsm2.so"),
        )
        if path.is_file() and shutil.which("softhsm2-util")
    ),
    None,
)
"""SoftHSM's module, or None."""


@dataclass(frozen=True)
class Token:
    """Where a token is, and how to log everybody out of it."""

    module: str
    log_out: Callable[[], None]

    def uri(self, key: str = "root", token: str = LABEL) -> str:
        return f"pkcs11:token={token};object={key};type=private?module-path={self.module}"


@contextmanager
def softhsm(folder: Path) -> Iterator[Token]:
    """A token of SoftHSM in a folder."""
    pkcs11: Any = import_module("pkcs11")  # of an extra

    def end() -> None:
        gc.collect()  # what is left of a search would call a module that has ended
        pkcs11.lib(module).finalize()

    module, tokens, config = str(SOFTHSM), folder / "tokens", folder / "softhsm2.conf"
    tokens.mkdir()
    config.write_text(f"directories.tokendir = {tokens}\nobjectstore.backend = file\n", encoding="utf-8")
    before, os.environ["SOFTHSM2_CONF"] = os.environ.get("SOFTHSM2_CONF"), str(config)
    command = ["softhsm2-util", "--module", module, "--init-token", "--free", "--label", LABEL]
    subprocess.run([*command, "--pin", PIN.decode(), "--so-pin", "9753108642"], check=True, capture_output=True)
    try:
        with pkcs11.lib(module).get_token(token_label=LABEL).open(rw=True, user_pin=PIN.decode()) as session:
            for bits, label in ((2048, "root"), (1024, "short"), (2048, "twice"), (2048, "twice")):
                session.generate_keypair(pkcs11.KeyType.RSA, bits, store=True, label=label)
            for curve, label in (("secp256r1", "curve"), ("secp256k1", "odd")):
                named = {pkcs11.Attribute.EC_PARAMS: pkcs11.util.ec.encode_named_curve_parameters(curve)}
                parameters = session.create_domain_parameters(pkcs11.KeyType.EC, named, local=True)
                parameters.generate_keypair(store=True, label=label)
        end()
        yield Token(module, end)
    finally:
        if before is None:
            del os.environ["SOFTHSM2_CONF"]
        else:
            os.environ["SOFTHSM2_CONF"] = before


class Failure(RuntimeError):
    """``pkcs11.PKCS11Error``."""


FAULTS = (
    *("NoSuchToken", "NoSuchKey", "MultipleTokensReturned", "MultipleObjectsReturned", "PinIncorrect", "PinInvalid"),
    *("PinLenRange", "PinLocked", "MechanismInvalid", "MechanismParamInvalid", "FunctionNotSupported"),
    *("UserAlreadyLoggedIn", "DeviceRemoved"),
)
Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


class Named(Enum):
    """Everything that the library has a name for."""

    RSA = "RSA"
    EC = "EC"
    PRIVATE_KEY = "private"
    PUBLIC_KEY = "public"
    SHA256 = "SHA-256"
    SHA256_RSA_PKCS = "PKCS #1"
    SHA256_RSA_PKCS_PSS = "PSS"
    ECDSA = "ECDSA"


class Key:
    """A key, or its public half, as the library gives it."""

    def __init__(self, key: Private) -> None:
        self.key = key
        self.key_type = Named.RSA if isinstance(key, rsa.RSAPrivateKey) else Named.EC

    def sign(self, data: bytes, *, mechanism: Named, mechanism_param: Any = None) -> bytes:
        if isinstance(self.key, rsa.RSAPrivateKey):
            if mechanism is Named.SHA256_RSA_PKCS:
                return self.key.sign(data, padding.PKCS1v15(), hashes.SHA256())
            assert (mechanism, mechanism_param) == (Named.SHA256_RSA_PKCS_PSS, (Named.SHA256, Named.SHA256, 32))
            return self.key.sign(data, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())
        assert mechanism is Named.ECDSA
        both = decode_dss_signature(self.key.sign(data, ec.ECDSA(Prehashed(hashes.SHA256()))))
        return b"".join(number.to_bytes(32, "big") for number in both)


def encoded(key: Key) -> bytes:
    public = key.key.public_key()
    kind = PublicFormat.PKCS1 if isinstance(public, rsa.RSAPublicKey) else PublicFormat.SubjectPublicKeyInfo
    return public.public_bytes(Encoding.DER, kind)


def made_up(folder: Path) -> tuple[Token, ModuleType]:
    """A token that is made up, and the library ``pkcs11`` that knows it."""
    made = {bits: rsa.generate_private_key(public_exponent=65537, key_size=bits) for bits in (1024, 2048)}
    keys: Mapping[str, list[Private]] = {
        "root": [made[2048]],
        "short": [made[1024]],
        "twice": [made[2048], made[2048]],
        "curve": [ec.generate_private_key(ec.SECP256R1())],
        "odd": [ec.generate_private_key(ec.SECP256K1())],
    }
    library = ModuleType("pkcs11")
    faults = {name: type(name, (Failure,), {}) for name in FAULTS}
    logged_in = [False]

    class Session:
        def get_key(self, *, object_class: Named, label: str | None, **rest: bytes | None) -> Key:
            assert object_class in (Named.PRIVATE_KEY, Named.PUBLIC_KEY)
            found = keys.get(label or "", []) if rest == {"id": None} else []
            if len(found) != 1:
                raise faults["MultipleObjectsReturned" if found else "NoSuchKey"]
            return Key(found[0])

    class OneToken:
        def open(self, user_pin: str | None = None) -> Session:
            if logged_in[0] and user_pin is not None:
                raise faults["UserAlreadyLoggedIn"]
            if user_pin is not None and user_pin.encode() != PIN:
                raise faults["PinIncorrect"]
            assert logged_in[0] or user_pin is not None
            logged_in[0] = True
            return Session()

    class Library:
        def get_token(self, *, token_label: str | None, token_serial: bytes | None) -> OneToken:
            if token_label != LABEL or token_serial is not None:
                raise faults["NoSuchToken"]
            return OneToken()

    module = folder / "module.so"
    module.touch()

    def lib(path: str) -> Library:
        if path != str(module):
            raise Failure(f"OS exception while loading {path}")
        return Library()

    util = SimpleNamespace(
        rsa=SimpleNamespace(encode_rsa_public_key=encoded), ec=SimpleNamespace(encode_ec_public_key=encoded)
    )
    library.__dict__.update(faults, PKCS11Error=Failure, lib=lib, util=util)
    library.__dict__.update(dict.fromkeys(("KeyType", "ObjectClass", "Mechanism", "MGF"), Named))
    return Token(str(module), lambda: logged_in.__setitem__(0, False)), library
