"""What a command may be given to run: an archive, a library, or a model that is compiled first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlfc.cli.options import parse_shapes
from mlfc.errors import OptionError

if TYPE_CHECKING:
    from mlfc.factory import Factory


def is_code(artifact: Path) -> bool:
    """Tell whether a file is a library in any form: shared, static, an object, a tar of objects."""
    from mlfc.archive.read.load import artifact_kind

    return artifact_kind(artifact) in ("library", "objects")


def is_compiled(artifact: Path, module: str | None, shape: list[str] | None) -> bool:
    """Tell an archive or library from a model, and refuse options of the other kind."""
    from mlfc.archive.read.load import artifact_kind

    if artifact_kind(artifact) != "model":
        if shape:
            raise OptionError("option --shape requires a model; the shapes of an archive are fixed")
        return True
    if module is not None:
        raise OptionError("option --module requires an archive or a shared library; a model is a single module")
    return False


def compiled_model(model: Path, shape: list[str] | None, target: str = "c", executor: str | None = None) -> Factory:
    """Compile a model file as a module named after it."""
    from mlfc.compiler import build
    from mlfc.frontend import import_model

    mod, params = import_model(model, shapes=parse_shapes(shape))
    return build(mod, target, params, executor=executor)
