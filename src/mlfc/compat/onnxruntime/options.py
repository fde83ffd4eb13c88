"""Options of sessions and runs, and the providers that this machine has."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeAlias

from mlfc.errors import DeviceError, OptionError, unknown
from mlfc.runtime.devices.device import Device, known_kinds
from mlfc.runtime.devices.device import device as device_of
from mlfc.support.platforms import DEVICE_KINDS
from mlfc.support.text import Displayed

Provider: TypeAlias = "str | tuple[str, Mapping[str, Any]]"
ProviderOptions: TypeAlias = "Sequence[Mapping[str, Any]] | None"
CPU = "CPUExecutionProvider"
_PROVIDER = "ExecutionProvider"
_DEVICE = "device_id"
_THREADS = "intra_op_num_threads"


class GraphOptimizationLevel(IntEnum):
    """Levels of optimization, which change nothing: the compiler always optimizes."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Orders of operators: always one after another."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


# settings without effect here that need no warning: all values of those that only tune ONNX Runtime, else neutral ones
_TUNING = (
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_order", "graph_optimization_level",
    "log_severity_level", "log_verbosity_level", "logid", "profile_file_prefix", "use_deterministic_compute",
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "enable_profiling": (False,),
    "execution_mode": (ExecutionMode.ORT_SEQUENTIAL,),
    "inter_op_num_threads": (0, 1),
    "optimized_model_filepath": ("",),
    "use_per_session_threads": (True,),
}


class _Options(Displayed):
    """Attributes that users set, and entries by key."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _facts(self) -> Mapping[str, object]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set an entry, which has no effect."""
        self._entries[key] = value


class RunOptions(_Options):
    """Options of a run, which are accepted and have no effect."""


class SessionOptions(_Options):
    """Options of a session: ``intra_op_num_threads`` has an effect; others are accepted.

    A session warns once, by name, of settings that ONNX Runtime would follow and mlfc does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        vars(self).update({name: values[0] for name, values in _NEUTRAL.items()})

    add_session_config_entry = _Options.add_run_config_entry

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry; raise OptionError if it was not set."""
        if key not in self._entries:
            raise OptionError(unknown("entry", key, self._entries), place="sess_options")
        return self._entries[key]

    def register_custom_ops_library(self, path: str) -> None:
        """Raise OptionError: machine code for ONNX Runtime's operators cannot be called."""
        raise OptionError(
            "libraries of custom operators are not supported",
            place=path,
            next_step="Write the operator as a local function of the ONNX model",
        )


def threads_and_ignored(options: Any) -> tuple[int | None, list[str]]:
    """Return the thread count, and the settings without effect, of ONNX Runtime's options or `SessionOptions`."""
    if options is None:
        return None, []
    silent = (_THREADS, *_TUNING)
    names = [name for name in vars(options) if name[0] != "_"] if isinstance(options, SessionOptions) else _NEUTRAL
    given = {name: getattr(options, name) for name in names if name not in silent and hasattr(options, name)}
    ignored = [
        f"{name}={_plain(value)}"
        for name, value in given.items()
        if _plain(value) not in map(_plain, _NEUTRAL.get(name, ()))
    ]
    threads = getattr(options, _THREADS, None)
    return None if threads is None else int(threads), ignored


def _plain(value: Any) -> Any:
    # ONNX Runtime's enumerations are other types, with the same names
    return getattr(value, "name", value)


def warn_of(ignored: Sequence[str], stacklevel: int = 4) -> None:
    """Warn once of all settings without effect."""
    if ignored:
        warnings.warn(f"no effect in mlfc: {', '.join(ignored)}", stacklevel=stacklevel)


def _kinds() -> dict[str, str]:
    """Return the kinds of devices by ONNX Runtime's provider names."""
    return {f"{DEVICE_KINDS[kind][1]}{_PROVIDER}": kind for kind in known_kinds()}


def get_all_providers() -> list[str]:
    """Return the providers for which mlfc has drivers, with the CPU last."""
    return sorted(_kinds(), key=lambda name: (name == CPU, name))


def get_available_providers() -> list[str]:
    """Return the providers whose devices exist, with the CPU last."""
    kinds = _kinds()
    return [name for name in get_all_providers() if device_of(kinds[name], 0).exists]


def get_device() -> str:
    """Return ``GPU`` if a device other than the CPU exists, else ``CPU``."""
    return "CPU" if get_available_providers() == [CPU] else "GPU"


def set_default_logger_severity(severity: int) -> None:
    """Accept a severity, for compatibility: nothing is logged."""
    del severity


def chosen_provider(providers: Sequence[Provider] | None, options: ProviderOptions) -> tuple[str, Device, list[str]]:
    """Return the first provider whose device exists, the device, and its options without effect."""
    pairs = [(item, {}) if isinstance(item, str) else (item[0], dict(item[1])) for item in providers or (CPU,)]
    if options and len(options) != len(pairs):
        cause = f"expected options of {len(pairs)} providers, got {len(options)}"
        raise OptionError(cause, place="provider_options", next_step="Pass one mapping per provider")
    given = [(name, {**own, **more}) for (name, own), more in zip(pairs, options or [{}] * len(pairs), strict=True)]
    kinds = _kinds()
    for name, _ in given:
        if name not in kinds and not name.endswith(_PROVIDER):
            raise OptionError(unknown("provider", name, get_all_providers()), place="providers")
    names = [name for name, _ in given]
    for number, (name, own) in enumerate(given):
        index = int(own.pop(_DEVICE, 0))
        device = device_of(kinds[name], 0 if name == CPU else index) if name in kinds else None
        if device is not None and device.exists:
            if number:
                warnings.warn(f"{', '.join(names[:number])}: not available; the model runs on {name}", stacklevel=4)
            return name, device, [f"{name} {key}={value}" for key, value in own.items()]
    raise DeviceError(
        f"none of the providers is available: {', '.join(names)}", place="providers", next_step=f"Add '{CPU}'"
    )
