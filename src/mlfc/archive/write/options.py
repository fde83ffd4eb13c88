"""What an export may be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.errors import OptionError

FORMAT_VERSIONS = (5, 6, 7)
PARAMS_FORMS = ("params", "json", "bson")


@dataclass(frozen=True)
class ExportOptions:
    """Options of an archive.

    Attributes
    ----------
    timestamp : int or None
        Seconds since 1970 for the archive's times; default SOURCE_DATE_EPOCH of the environment, else 0.
    source_params : bool
        Keep the model's own weights beside the Relay text: with both, the archive can be compiled again.
    runtime : bool
        Carry the C runtime and its templates.
    test_vectors : int
        So many inputs of each module with the outputs that its code gives, for the demo to check.
    seed : int
        Of these inputs.
    format_version : int
        7, or 5 or 6 for readers of that age, which know one module an archive.
    rfc : bool
        The layout of the proposal of 2021 instead of TVM's.
    params_forms : tuple of str
        Of `PARAMS_FORMS`: the forms of parameters to write. ``params`` is always among them.
    share_workspace : bool
        Modules that never run together: one workspace for all.
    share_weights : bool
        Equal constants of several modules are kept once.
    system_lib : bool
        Modules compiled ahead of time are in the C runtime's table of functions too, so that hosts can drive them.
    """

    timestamp: int | None = None
    source_params: bool = True
    runtime: bool = True
    test_vectors: int = 0
    seed: int = 0
    format_version: int = 7
    rfc: bool = False
    params_forms: tuple[str, ...] = ("params",)
    share_workspace: bool = False
    share_weights: bool = False
    system_lib: bool = False

    def __post_init__(self) -> None:
        if self.format_version not in FORMAT_VERSIONS:
            raise OptionError(
                f"archives of version {self.format_version} cannot be written",
                place="format version",
                next_step=f"Use one of: {', '.join(map(str, FORMAT_VERSIONS))}",
            )
        unknown = sorted(set(self.params_forms) - set(PARAMS_FORMS))
        if unknown:
            raise OptionError(
                f"parameters cannot be written as {', '.join(unknown)}",
                next_step=f"Use {', '.join(PARAMS_FORMS)}",
            )
        if self.test_vectors < 0 or self.seed < 0:
            raise OptionError("the number of test vectors and their seed count from 0")
