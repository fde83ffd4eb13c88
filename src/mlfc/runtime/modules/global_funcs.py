"""Functions of this process that generated code finds by name, as TVM's global functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from mlfc.errors import OptionError, unknown
from mlfc.runtime.modules.module import Function

F = TypeVar("F", bound=Function)

SET_DEVICE = "__tvm_set_device"

_functions: dict[str, Function] = {}


@overload
def register_global_func(name: str, *, override: bool = False) -> Callable[[F], F]: ...
@overload
def register_global_func(name: str, function: F, *, override: bool = False) -> F: ...
def register_global_func(name: str, function: F | None = None, *, override: bool = False) -> F | Callable[[F], F]:
    """Let compiled code call a function of Python by its name.

    Parameters
    ----------
    name : str
    function : callable, optional
        Takes numbers, strings, bytes, None and arrays, which are views of memory that lives as long as the call;
        returns a number, a string or None. Without it, what is returned decorates it.
    override : bool
        Take the place of a function that has the name already.

    Raises
    ------
    OptionError
        If the name is taken.
    """
    if function is None:
        return lambda decorated: register_global_func(name, decorated, override=override)
    if not override and find_global_func(name) is not None:
        raise OptionError(f"global function '{name}' is already registered", next_step="Pass override=True")
    _functions[name] = function
    return function


def get_global_func(name: str) -> Function:
    """Return a global function; raise OptionError if there is none."""
    function = find_global_func(name)
    if function is None:
        raise OptionError(unknown("global function", name, _functions))
    return function


def find_global_func(name: str) -> Function | None:
    """Return a global function, None if there is none."""
    if name == SET_DEVICE and name not in _functions:
        from mlfc.runtime.devices.device import set_device

        _functions[SET_DEVICE] = set_device
    return _functions.get(name)
