"""What functions of compiled code have in common, whichever convention calls them."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from mlfc.errors import RunError
from mlfc.support.display import Displayed

Frame = TypeVar("Frame")
# without types of arguments, calls take what frames hold as it is
_STATUS = ctypes.CFUNCTYPE(ctypes.c_int32)


class NativeFunc(Displayed, Generic[Frame]):
    """A function of compiled code, with the frames of earlier calls, which later calls fill again.

    Parameters
    ----------
    address : int
        Of the code.
    name : str
        For messages.
    last_error : callable, optional
        Returns the text of the last failure of this thread, and the exception behind it if it came from Python.
    owner : object
        What keeps the code loaded.
    reads : int
        It writes to none of so many first arguments.
    """

    def __init__(
        self,
        address: int,
        name: str,
        *,
        last_error: Callable[[], tuple[str, BaseException | None]] | None = None,
        owner: object = None,
        reads: int = 0,
    ) -> None:
        self.name = name
        self.address = address
        self._function = _STATUS(address)
        self._last_error = last_error
        self._owner = owner
        self._reads = reads
        self._frames: defaultdict[int, list[Frame]] = defaultdict(list)

    def _facts(self) -> Mapping[str, object]:
        return {"name": self.name}

    def _reported(self, status: int) -> RunError:
        """Return the error of a call that returned `status`, with what the library says of it."""
        text, cause = self._last_error() if self._last_error is not None else ("", None)
        if cause is not None and not isinstance(cause, Exception):  # an interrupt is the caller's
            raise cause
        error = RunError(f"it failed with status {status}{': ' + text if text else ''}", place=self.name)
        error.__cause__ = cause
        return error
