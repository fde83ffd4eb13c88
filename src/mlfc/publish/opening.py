"""From a reference to what keeps its artifacts."""

from __future__ import annotations

from mlfc.publish.reference import Reference
from mlfc.publish.store import Store

TIMEOUT = 30.0
"""Seconds in which a registry has to send or take something."""


def open_store(reference: Reference, *, plain_http: bool = False, timeout: float = TIMEOUT) -> Store:
    """Return the store that a reference names; RegistryError where a package for it is missing."""
    if not reference.host:
        from mlfc.publish.layout import LayoutStore

        return LayoutStore(reference)
    from mlfc.publish.remote import RemoteStore

    return RemoteStore(reference, plain_http=plain_http, timeout=timeout)
