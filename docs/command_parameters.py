"""Parameters of a command, from the annotations that define it, for the pages of commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer import Context
from typer.models import ArgumentInfo, OptionInfo

from mlfc.cli.options import with_options


def parameters(function: Callable[..., Any]) -> Iterator[tuple[str, ArgumentInfo | OptionInfo, str]]:
    """Yield each parameter as users write it, with its annotation and the text of its default."""
    declared = with_options(function)
    hints = get_type_hints(declared, include_extras=True)
    for name, parameter in inspect.signature(declared).parameters.items():
        hint = hints[name]
        if hint is Context:  # typer's own
            continue
        if get_origin(hint) is not Annotated:
            # a default of None makes older Pythons wrap the annotation: Optional[Annotated[...]]
            hint = next(item for item in get_args(hint) if get_origin(item) is Annotated)
        kind, info = get_args(hint)
        default = parameter.default
        shown = f"`{default}`" if isinstance(default, (str, int)) and default is not False else ""
        yield _spelled(name, kind, info, default), info, shown


def _spelled(name: str, kind: Any, info: ArgumentInfo | OptionInfo, default: Any) -> str:
    if isinstance(info, ArgumentInfo):
        text = info.metavar or name.upper()
        text = f"{text}..." if list in {get_origin(kind), *map(get_origin, get_args(kind))} else text
        return text if default is inspect.Parameter.empty else f"[{text}]"
    # in annotations typer takes the first flag for a default, as in its older style
    given = [flag for flag in (info.default, *(info.param_decls or ())) if isinstance(flag, str)]
    flags = ", ".join(given or [f"--{name.replace('_', '-')}"])
    kinds = get_args(kind) or (kind,)
    if bool in kinds:
        return flags
    value = info.metavar or ("PATH" if Path in kinds else "N" if int in kinds else "TEXT")
    return f"{flags} {value}"
