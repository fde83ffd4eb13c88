"""Signatures of artifacts in the OpenSSF Model Signing format, with key pairs or, online, with sigstore."""

from __future__ import annotations

import base64
import binascii
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from mlfc.errors import ArchiveError, SignatureError
from mlfc.publish.subject import ArtifactSubject
from mlfc.support.atomic import check_writable, replaces_earlier, write_bytes
from mlfc.support.json_text import parse_json
from mlfc.support.plain_file import open_plain, read_small
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import shortened

SUFFIX = ".sig"
PASSWORD = "MLFC_KEY_PASSWORD"  # noqa: S105  # the name of a variable
MAX_SIGNATURE = 4 << 20
_MAX_KEY = 64 << 10
_SHOWN = 200
_MISMATCH = "Signature mismatch"  # start of the package's message, which continues with digests as bytes


def sign(artifact: Path, key: Path | None, output: Path | None = None, *, token: str | None = None) -> Path:
    """Sign an artifact and return the file with the signature.

    Parameters
    ----------
    artifact : path
        Any file.
    key : path or None
        An elliptic private key (P-256, P-384 or P-521) as PEM; the password of encrypted ones is in the environment
        variable ``MLFC_KEY_PASSWORD``. None: a key of sigstore, which is valid for minutes and whose use is recorded.
    output : path, optional
        Default: the artifact's name and ``.sig``.
    token : str, optional
        OpenID token for sigstore; default: that of the CI service, else a login in the browser.

    Raises
    ------
    SignatureError
        If a package or the key is missing, or sigstore rejects the request.
    """
    _require_file(artifact)
    target = output or artifact.with_name(artifact.name + SUFFIX)
    if output is None:
        replaces_earlier(target, b'"mediaType"')
    else:
        check_writable(target)
    with _explained(artifact, "the artifact cannot be signed", "Check the key, or the network"):
        from model_signing import signing

        config = signing.Config()
        if key is None:
            config.use_sigstore_signer(identity_token=token, use_ambient_credentials=token is None)
        else:
            is_encrypted = b"ENCRYPTED" in _read(key, _MAX_KEY, "the key")
            password = os.environ.get(PASSWORD) if is_encrypted else None
            if is_encrypted and password is None:
                raise SignatureError(
                    "the key is encrypted", place=str(key), next_step=f"Set {PASSWORD} to its password"
                )
            config.use_elliptic_key_signer(private_key=key, password=None if password is None else password.encode())
        with TemporaryFolder() as folder:
            made = Path(folder, "signature")
            config.sign(artifact.resolve(), made)
            data = made.read_bytes()
    write_bytes(target, data)
    return target


def verify_signature(
    artifact: Path,
    key: Path | None,
    signature: Path | None = None,
    *,
    identity: str | None = None,
    issuer: str | None = None,
) -> None:
    """Verify that an artifact was signed with a key, or by an identity that sigstore certifies.

    Parameters
    ----------
    artifact : path
    key : path or None
        The public key as PEM.
    signature : path, optional
        Default: the artifact's name and ``.sig``.
    identity, issuer : str, optional
        Instead of a key: the signer's identity at sigstore, and the OpenID provider that certifies it.

    Raises
    ------
    SignatureError
        If the signature is invalid, or cannot be verified.
    """
    _require_file(artifact)
    given = signature or artifact.with_name(artifact.name + SUFFIX)
    data = _read(given, MAX_SIGNATURE, "the signature")
    _check_form(data, given)
    with _explained(artifact, "the signature does not match", "Do not use it; get artifact and key from their author"):
        from model_signing import verifying

        config = verifying.Config()
        if key is not None:
            _read(key, _MAX_KEY, "the key")
            config.use_elliptic_key_verifier(public_key=key)
        else:
            config.use_sigstore_verifier(identity=identity, oidc_issuer=issuer)
        with TemporaryFolder() as folder:
            copy = Path(folder, "signature")
            copy.write_bytes(data)
            # it prints warnings
            with redirect_stdout(sys.stderr):
                config.verify(artifact.resolve(), copy)


def read_signature(subject: ArtifactSubject) -> bytes | None:
    """Return the signature beside an artifact, or None.

    Raises SignatureError if it is of another artifact. Only `verify_signature` checks the signer.
    """
    path = subject.path.with_name(subject.path.name + SUFFIX)
    if not path.exists():
        return None
    data = _read(path, MAX_SIGNATURE, "the signature")
    signed = _check_form(data, path)
    if signed != {("sha256", subject.digest.removeprefix("sha256:"))}:
        raise SignatureError(
            f"the signature does not match the content of {subject.path.name}",
            place=str(path),
            next_step=f"Sign it again, or remove {path.name}",
        )
    return data


def _check_form(data: bytes, path: Path) -> set[tuple[str, str]]:
    """Return algorithms and digests in a signature; raise SignatureError if it is invalid."""
    try:
        envelope: Any = parse_json(data, str(path))["dsseEnvelope"]
        payload: Any = parse_json(base64.b64decode(envelope["payload"], validate=True), str(path))
        resources = payload["predicate"]["resources"]
        return {(str(item["algorithm"]), str(item["digest"])) for item in resources}
    except (ArchiveError, KeyError, TypeError, ValueError, binascii.Error):
        raise SignatureError(
            "this is not a signature in the Model Signing format", place=str(path), next_step="Sign the artifact again"
        ) from None


@contextmanager
def _explained(artifact: Path, cause: str, next_step: str) -> Iterator[None]:
    """Convert exceptions of the package to SignatureError."""
    try:
        yield
    except SignatureError:
        raise
    except ImportError as error:
        raise SignatureError(
            f"the package {error.name} is missing",
            place=str(artifact),
            next_step='In a checkout of mlfc, run: pip install ".[signing]"',
        ) from error
    except Exception as error:  # it does not define an exception, and its dependencies raise dozens
        reason = shortened(" ".join(str(error).split()) or type(error).__name__, _SHOWN)
        if reason.startswith(_MISMATCH):
            reason = "it is of another artifact, or this one was changed"
        elif isinstance(error, AttributeError) and "curve" in reason:
            reason = "expected an elliptic key, P-256, P-384 or P-521"
        raise SignatureError(f"{cause}: {reason.rstrip('. ')}", place=str(artifact), next_step=next_step) from error


def _require_file(artifact: Path) -> None:
    try:
        open_plain(artifact).close()
    except OSError as error:
        raise ArchiveError(f"cannot be read: {error.strerror}", place=str(artifact)) from error


def _read(path: Path, limit: int, what: str) -> bytes:
    return read_small(path, limit, partial(SignatureError, place=str(path)), what)
