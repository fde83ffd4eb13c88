"""How long an operator takes, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from mlfc.runtime.devices.device import Device


def timed_call(device: Device, call: Callable[[], int]) -> tuple[int, Callable[[], int]]:
    """Run an operator; return its status and what gives its nanoseconds once the device is done with it.

    Parameters
    ----------
    device : Device
        Where it runs. The CPU is done when the call ends; other devices mark its start and end in their queues.
    call : callable
        Runs the operator and returns its status.
    """
    if device.kind == "cpu":
        start = time.perf_counter_ns()
        status = call()
        passed = time.perf_counter_ns() - start
        return status, lambda: passed
    api = device.api
    first = api.mark()
    status = call()
    last = api.mark()
    return status, lambda: api.nanoseconds(first, last)
