"""TVM's ``tvm.target``: target strings with a kind and a host."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

from mlfc.errors import OptionError, unknown
from mlfc.micro.board.board import boards

Given: TypeAlias = "str | Mapping[str, Any]"
# options of TVM's targets that do not select code in mlfc
_DROPPED = (
    "constant-byte-alignment", "executor", "interface-api", "libs", "link-params", "num-cores", "opt-level", "runtime",
    "system-lib", "unpacked-api", "workspace-byte-alignment",
)  # fmt: skip


class Target(str):
    """A target string without the options that do not apply to mlfc, such as ``--system-lib``.

    Attributes
    ----------
    kind : object
        Its ``name`` is the kind: ``llvm``.
    host : Target or None
        The target of the host's code beside a device's.
    executor : str or None
        The value of the option ``-executor``.
    """

    kind: SimpleNamespace
    host: Target | None
    executor: str | None
    _entered: ClassVar[list[Target]] = []

    def __new__(cls, target: Given, host: Given | None = None) -> Target:
        """Return the target of TVM's string or mapping."""
        if isinstance(target, Mapping):
            known = dict(target)
            host = host or known.pop("host", None)
            words = [str(known.pop("kind")), *(f"-{name}={_text(value)}" for name, value in known.items())]
        else:
            host = host or getattr(target, "host", None)
            words = shlex.split(target) or [""]
        pairs = [word.lstrip("-").partition("=") for word in words[1:]]
        kept = [shlex.quote(f"-{name}{sign}{value}") for name, sign, value in pairs if name not in _DROPPED]
        made = super().__new__(cls, " ".join([words[0], *kept]))
        made.kind = SimpleNamespace(name=words[0])
        made.host = None if host is None else Target(host)
        inherited = getattr(target, "executor", None)
        made.executor = next((value for name, _, value in pairs if name == "executor"), inherited)
        return made

    def __enter__(self) -> Target:
        self._entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop()

    @classmethod
    def current(cls) -> Target:
        """Return the innermost target of a ``with`` statement; raise OptionError if there is none."""
        if not cls._entered:
            raise OptionError("expected a target, got none", next_step="Pass target='llvm'")
        return cls._entered[-1]


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def cuda(model: str = "", arch: str | None = None, options: str | None = None) -> Target:
    """Return the target of CUDA devices."""
    del model, arch
    return Target(f"cuda {options or ''}")


def micro(model: str, options: str | None = None) -> Target:
    """Return the target of a board or chip, by a name of `mlfc boards` or TVM's name of the chip."""
    known = boards()
    plain, family = _plain(model), _plain(model).removesuffix("xx")
    for name in known:
        board = known.get(name)
        chip = _plain(board.chip)
        if plain in (_plain(name), chip) or (family != plain and chip.startswith(family)):
            return Target(f"{board.target} {options or ''}")
    raise OptionError(unknown("board", model, known), next_step="List all with: mlfc boards")


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


create = Target
target = sys.modules[__name__]
