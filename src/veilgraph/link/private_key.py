"""A party's private key in a file: plain PEM, or sealed with a passphrase.

A sealed key is an encrypted PKCS #8 file (RFC 5958) with PBES2: AES-256-CBC under scrypt (RFC 7914), at one of the
costs that OWASP's Password Storage Cheat Sheet gives. ``openssl pkey`` reads it. The library reads it, too, but would
write 2048 rounds of PBKDF2.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.padding import PKCS7
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import SEED_BYTES, SecretSource, system_secrets

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


def read_key(path: Path, passphrase: bytes | None = None) -> PrivateKey:
    """Reads a private key.

    Args:
        path: a PEM file.
        passphrase: needed if the key is sealed, and refused if it is not: then it protects nothing.

    Raises:
        ConfigError: the file cannot be read.
        DataError: it holds no key of a usable kind, or not under this passphrase.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); give the path of the party's private key"
        ) from error
    try:
        key = load_pem_private_key(content, passphrase)
    except TypeError as error:
        wrong = "a passphrase; give it" if passphrase is None else "no passphrase; seal it with veilgraph cert protect"
        raise DataError(f"{path}: the private key has {wrong}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        if passphrase is not None:  # nobody knows what a library says of a passphrase: without the cause
            raise DataError(f"{path} does not open: it has another passphrase, or is damaged") from None
        raise DataError(f"{path} does not hold a private key as PEM: {error}") from error
    if not isinstance(key, PrivateKey):
        raise DataError(f"{path}: the private key must be RSA, ECDSA on a NIST curve, or Ed25519")
    return key


def sealed_key(key: PrivateKey, passphrase: bytes, secrets: SecretSource = system_secrets) -> bytes:
    """The content, PEM, of a file that ``read_key`` opens with the same passphrase.

    Args:
        key: to seal.
        passphrase: what opens it.
        secrets: gives salt and initial vector.
    """
    salt, vector = secrets(SEED_BYTES), secrets(_IV_BYTES)
    secret = Scrypt(salt, algorithms.AES256.key_size // 8, COST, _BLOCK_SIZE, _PARALLEL).derive(passphrase)
    padder, encryptor = PKCS7(128).padder(), Cipher(algorithms.AES256(secret), modes.CBC(vector)).encryptor()
    plain = padder.update(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())) + padder.finalize()
    costs = (_der(_INTEGER, _integer(number)) for number in (COST, _BLOCK_SIZE, _PARALLEL))
    derivation = _der(_SEQUENCE, _der(_OBJECT, _SCRYPT), _der(_SEQUENCE, _der(_OCTETS, salt), *costs))
    encryption = _der(_SEQUENCE, _der(_OBJECT, _AES256_CBC), _der(_OCTETS, vector))
    algorithm = _der(_SEQUENCE, _der(_OBJECT, _PBES2), _der(_SEQUENCE, derivation, encryption))
    sealed = _der(_SEQUENCE, algorithm, _der(_OCTETS, encryptor.update(plain) + encryptor.finalize()))
    return b"".join((_BEGIN, base64.encodebytes(sealed), _END))


def _der(tag: int, *parts: bytes) -> bytes:
    """One element in the encoding of X.690, 8.1."""
    content = b"".join(parts)
    if len(content) < 128:
        return bytes([tag, len(content)]) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _integer(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big")
