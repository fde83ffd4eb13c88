"""From a reference to what keeps its artifacts."""

from __future__ import annotations

import time
from collections.abc import Callable

from mlfc.publish.reference import ArtifactReference
from mlfc.publish.store import ArtifactStore

TIMEOUT = 30.0
"""Seconds in which a registry has to send or take something."""


def open_store(
    reference: ArtifactReference,
    *,
    plain_http: bool = False,
    timeout: float = TIMEOUT,
    wait: Callable[[float], object] = time.sleep,
) -> ArtifactStore:
    """Return the store that a reference names; RegistryError where a package for it is missing.

    Parameters
    ----------
    reference : Reference
    plain_http : bool
        Allow requests without TLS to other machines.
    timeout : float
    wait : callable
        Waits for some seconds, before something is tried again.
    """
    if not reference.host:
        from mlfc.publish.layout import LayoutStore

        return LayoutStore(reference)
    from mlfc.publish.remote import RemoteStore

    return RemoteStore(reference, plain_http=plain_http, timeout=timeout, wait=wait)
