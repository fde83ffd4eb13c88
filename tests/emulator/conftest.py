"""What every test under an emulator needs."""

from __future__ import annotations

import pytest

from tests.conftest import need


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("qemu-system-arm", "qemu-system-arm")
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
