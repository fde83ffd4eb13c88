"""What `mlfc run --profile` shows beyond times: the machine's peaks, and files for browsers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mlfc.errors import ToolchainError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.library.peaks import Peaks
    from mlfc.runtime import Profile
    from mlfc.runtime.devices.device import Device


def known_peaks(devices: Sequence[Device]) -> Peaks | None:
    """Return what this machine can do at most; None for a device, and without a C compiler to measure it."""
    from mlfc.library.peaks import machine_peaks
    from mlfc.runtime.threads import get_num_threads, pool_function

    if any(device.kind != "cpu" for device in devices):
        return None
    with stage("measuring this machine, once"):
        try:
            # without a pool, no code that is loaded shares its work
            return machine_peaks(1 if pool_function() is None else get_num_threads())
        except ToolchainError as error:
            typer.echo(f"shares of the machine's peak are not known: {error}", err=True)
            return None


def write_profile(page: Path | None, trace: Path | None, model: str, profile: Profile, peaks: Peaks | None) -> None:
    """Write the files that a user wants of a profile."""
    from mlfc.archive.describe.profile_page import profile_page
    from mlfc.archive.describe.profile_rows import trace_text
    from mlfc.support.atomic import atomic_file

    for path, make in ((page, profile_page), (trace, trace_text)):
        if path is not None:
            with atomic_file(path) as file:
                file.write(make(model, profile, peaks).encode())
