"""Errors for missing packages: those of an extra, or the compiler if only ``mlfc-runtime`` is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlfc.errors import InstallationError

_OURS = "mlfc"


@contextmanager
def required_for(what: str, place: str | None = None) -> Iterator[None]:
    """Raise InstallationError, naming the feature `what`, if the block imports a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package != _OURS:
            reason = f"{what} requires the package {package}, which is not installed"
            raise InstallationError(reason, place=place, next_step=f"Run: pip install {package}") from error
        raise InstallationError(
            f"{what} requires mlfc's compiler, got an installation that only runs models",
            place=place,
            next_step="Run in a checkout of mlfc: pip install .",
        ) from error
