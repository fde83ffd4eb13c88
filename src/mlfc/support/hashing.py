"""Content hashes."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

_CHUNK = 1 << 20


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_stream(stream: BinaryIO) -> str:
    """Return the SHA-256 of what is left in `stream`, read in pieces of one MiB."""
    digest = hashlib.sha256()
    while piece := stream.read(_CHUNK):
        digest.update(piece)
    return digest.hexdigest()
