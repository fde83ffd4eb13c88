"""What an export may be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.errors import OptionError

FORMAT_VERSIONS = (5, 6, 7)
PARAMS_FORMS = ("params", "json", "bson")


@dataclass(frozen=True)
class ExportOptions:
    """Options of an archive."""

    # seconds since 1970 for the archive's times; default SOURCE_DATE_EPOCH of the environment, else 0
    timestamp: int | None = None
    # keep the model's own weights beside the Relay text: with both, the archive can be compiled again
    source_params: bool = True
    runtime: bool = True  # carry the C runtime and its templates
    test_vectors: int = 0  # so many inputs of each module with the outputs that its code gives, for the demo to check
    seed: int = 0  # of these inputs
    format_version: int = 7  # 7, or 5 or 6 for readers of that age, which know one module an archive
    rfc: bool = False  # the layout of the proposal of 2021 instead of TVM's
    # of `PARAMS_FORMS`: the forms of parameters to write. ``params`` is always among them.
    params_forms: tuple[str, ...] = ("params",)
    share_workspace: bool = False  # modules that never run together: one workspace for all
    share_weights: bool = False  # equal constants of several modules are kept once
    # modules compiled ahead of time are in the C runtime's table of functions too, so that hosts can drive them
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
