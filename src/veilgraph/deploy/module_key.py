"""A private key in a PKCS#11 module, as a hardware security module has, which signs there and never leaves it.

A URI names the key (RFC 7512): the module's library, the token, and the key in it by label or id. The module asks for a
PIN, which comes as passphrases do and is never part of the URI. Keys are RSA, or ECDSA on a NIST curve. The library
``python-pkcs11`` is loaded where a key is opened, and not before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import unquote_to_bytes

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_der_public_key

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.link.identity import MIN_RSA_BITS, PublicKey

SCHEME: Final = "pkcs11:"
MAX_URI_CHARACTERS: Final = 4096
CURVES: Final = ("secp256r1", "secp384r1", "secp521r1")
_PSS_SALT_BYTES: Final = 32
_PATH: Final = ("token", "serial", "object", "id", "type")
_QUERY: Final = ("module-path",)
_PIN: Final = re.compile("pin-(value|source) *=", re.IGNORECASE)
_SHAPE: Final = "pkcs11:token=TOKEN;object=LABEL?module-path=/PATH/TO/MODULE.so"

ModuleKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
"""What ``open_key`` returns: it signs as such a key of ``cryptography`` does, and has no numbers to show."""


@dataclass(frozen=True, slots=True)
class KeyUri:
    """Which key of which token of which module. ``text`` is the URI itself."""

    text: str
    module: str
    token: str | None
    serial: bytes | None
    object: str | None
    id: bytes | None

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a PKCS#11 URI (RFC 7512, 2.3); ``ConfigError`` where it is none, or names no one key."""
        if _PIN.search(text):  # before an error that would show it
            raise _uri_error(f"{SCHEME}…", "has a PIN, which is given as a passphrase is, by --passphrase-file")
        if not text.startswith(SCHEME) or len(text) > MAX_URI_CHARACTERS or not text.isascii():
            raise _uri_error(text, "is no PKCS#11 URI")
        path, _, query = text.removeprefix(SCHEME).partition("?")
        found = _attributes(text, path, ";", _PATH) | _attributes(text, query, "&", _QUERY)
        if found.pop("type", b"private") != b"private":
            raise _uri_error(text, "has another type than private")
        words = {name: _decoded(text, found[name]) for name in ("module-path", "token", "object") if name in found}
        if not words.get("module-path", "").startswith("/"):
            raise _uri_error(text, "has no module-path that begins with /")
        uri = cls(
            text, words["module-path"], words.get("token"), found.get("serial"), words.get("object"), found.get("id")
        )
        if (uri.object, uri.id) == (None, None) or (uri.token, uri.serial) == (None, None):
            raise _uri_error(text, "names no key by object or id, or no token by token or serial")
        return uri

    def __str__(self) -> str:
        return self.text


def _attributes(text: str, part: str, separator: str, known: tuple[str, ...]) -> dict[str, bytes]:
    found = dict[str, bytes]()
    for attribute in filter(None, part.split(separator)):
        name, _, value = attribute.partition("=")
        if name not in known or name in found or not value:
            raise _uri_error(text, f"has {attribute!r}, where each of {', '.join(known)} may stand once, with a value")
        found[name] = unquote_to_bytes(value)
    return found


def _decoded(text: str, value: bytes, what: str = "a value") -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:  # its words would show a part of a PIN
        raise _uri_error(text, f"has {what} that is not UTF-8") from None


def _uri_error(text: str, fault: str) -> ConfigError:
    shown = text[:200]
    return ConfigError(f"key {shown!r}: it {fault}; write {_SHAPE}", code="pkcs11-uri", key="key", value=shown)


class _Handle(Protocol):
    """A private key of ``python-pkcs11``."""

    def sign(self, data: bytes, *, mechanism: object, mechanism_param: object = None) -> bytes: ...


class _Signer:
    """What both kinds of key have: a session with the token, the private key's handle, and the public key."""

    def __init__(self, uri: KeyUri, handle: _Handle, public: PublicKey) -> None:
        self.uri, self._handle, self._public = uri, handle, public

    def public_key(self) -> PublicKey:
        """The public half, as an object of ``cryptography``."""
        return self._public


@rsa.RSAPrivateKey.register
class ModuleRsaKey(_Signer):
    """An RSA key in a module."""

    def sign(self, data: bytes, how: object, algorithm: object) -> bytes:
        """Sign with SHA-256 and PKCS #1 v1.5, or PSS with a salt of 32 bytes. Errors as ``open_key``."""
        mechanisms, mgf = _library(self.uri).Mechanism, _library(self.uri).MGF
        if not isinstance(algorithm, hashes.SHA256) or not isinstance(how, padding.PKCS1v15 | padding.PSS):
            raise UnsupportedAlgorithm(f"{type(how).__name__} with {type(algorithm).__name__}")
        with module_errors(self.uri):
            if isinstance(how, padding.PKCS1v15):
                return self._handle.sign(data, mechanism=mechanisms.SHA256_RSA_PKCS)
            salted = mechanisms.SHA256, mgf.SHA256, _PSS_SALT_BYTES
            return self._handle.sign(data, mechanism=mechanisms.SHA256_RSA_PKCS_PSS, mechanism_param=salted)


@ec.EllipticCurvePrivateKey.register
class ModuleEcKey(_Signer):
    """An ECDSA key in a module."""

    def sign(self, data: bytes, how: object) -> bytes:
        """Sign with ECDSA and SHA-256, which is computed here: not all modules do both. Errors as ``open_key``."""
        if not isinstance(how, ec.ECDSA) or not isinstance(how.algorithm, hashes.SHA256):
            raise UnsupportedAlgorithm(f"{type(how).__name__}, and not ECDSA with SHA-256")
        with module_errors(self.uri):
            both = self._handle.sign(sha256(data).digest(), mechanism=_library(self.uri).Mechanism.ECDSA)
        half = len(both) // 2
        return encode_dss_signature(int.from_bytes(both[:half], "big"), int.from_bytes(both[half:], "big"))


def open_key(uri: KeyUri, pin: bytes) -> ModuleKey:
    """Log in to a token with its PIN and find a key.

    Raises ``ConfigError``: ``python-pkcs11``, the module, the token or the key is not there, or several are;
    ``DataError``: the PIN is refused, or the key is of another kind than RSA or ECDSA.
    """
    pkcs11 = _library(uri)
    with module_errors(uri):
        token = pkcs11.lib(uri.module).get_token(token_label=uri.token, token_serial=uri.serial)
        try:
            session = token.open(user_pin=_decoded(uri.text, pin, "a PIN"))
        except pkcs11.UserAlreadyLoggedIn:  # by another key of this process: all sessions share the login
            session = token.open()
        named = {"label": uri.object, "id": uri.id}
        handle = session.get_key(object_class=pkcs11.ObjectClass.PRIVATE_KEY, **named)
        public = session.get_key(object_class=pkcs11.ObjectClass.PUBLIC_KEY, **named)
        kind, util = handle.key_type, pkcs11.util
        encoders = {
            pkcs11.KeyType.RSA: util.rsa.encode_rsa_public_key,
            pkcs11.KeyType.EC: util.ec.encode_ec_public_key,
        }
        encode = encoders.get(kind)
        if encode is None or public.key_type != kind:
            raise _kind_error(uri, kind.name)
        found = load_der_public_key(encode(public))
    if isinstance(found, rsa.RSAPublicKey) and found.key_size >= MIN_RSA_BITS:
        return cast(ModuleKey, ModuleRsaKey(uri, handle, found))
    if isinstance(found, ec.EllipticCurvePublicKey) and found.curve.name in CURVES:
        return cast(ModuleKey, ModuleEcKey(uri, handle, found))
    raise _kind_error(uri, f"{kind.name} of {getattr(found, 'key_size', 0)} bits")


def _library(uri: KeyUri) -> Any:  # noqa: ANN401 - the library's types are known where it is installed alone
    try:
        return import_module("pkcs11")
    except ImportError as error:
        words = f"key {uri}: needs python-pkcs11, which is not installed; pip install python-pkcs11"
        raise ConfigError(words, code="pkcs11-library") from error


def _kind_error(uri: KeyUri, kind: str) -> DataError:
    words = f"is {kind}; it must be RSA of at least {MIN_RSA_BITS} bits, or ECDSA on a NIST curve"
    return DataError(f"key {uri}: it {words}", code="pkcs11-kind")


@contextmanager
def module_errors(uri: KeyUri) -> Iterator[None]:
    """Say what a module refuses as one error about the key; errors as ``open_key`` and, at signing, the same."""
    pkcs11 = _library(uri)
    try:
        yield
    except pkcs11.NoSuchToken as error:
        raise _fault(uri, "token", f"{uri.module} has no such token; is it plugged in, and its label right?") from error
    except pkcs11.NoSuchKey as error:
        words = "the token has no such key, or only one half of the pair; a private and a public key are needed"
        raise _fault(uri, "key", words) from error
    except (pkcs11.MultipleTokensReturned, pkcs11.MultipleObjectsReturned) as error:
        raise _fault(uri, "several", "several fit; name its serial, or the key's id") from error
    except (pkcs11.PinIncorrect, pkcs11.PinInvalid, pkcs11.PinLenRange) as error:
        words = f"key {uri}: the token refuses the PIN; give the user's PIN, before it locks"
        raise DataError(words, code="pkcs11-pin") from error
    except pkcs11.PinLocked as error:
        words = f"key {uri}: the token is locked after too many wrong PINs; its security officer unlocks it"
        raise DataError(words, code="pkcs11-pin") from error
    except (pkcs11.MechanismInvalid, pkcs11.MechanismParamInvalid, pkcs11.FunctionNotSupported) as error:
        words = "the module does not sign with SHA-256 and PKCS #1 or PSS, or with ECDSA; take a key of the other kind"
        raise _fault(uri, "mechanism", words) from error
    except pkcs11.PKCS11Error as error:
        said = str(error) or type(error).__name__
        raise _fault(uri, "module", f"the module fails: {said}; see its own log") from error


def _fault(uri: KeyUri, code: str, words: str) -> ConfigError:
    return ConfigError(f"key {uri}: {words}", code=f"pkcs11-{code}", key="key", value=str(uri))
