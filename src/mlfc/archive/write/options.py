"""Export options."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.errors import OptionError
from mlfc.support.keywords import option

FORMAT_VERSIONS = (5, 6, 7)
PARAMS_FORMS = ("params", "json", "bson")


@dataclass(frozen=True)
class ExportOptions:
    """Options of an archive."""

    timestamp: int | None = option(
        None, "Seconds since 1970 for the times in the archive. Default: SOURCE_DATE_EPOCH of the environment, else 0."
    )
    source_params: bool = option(
        True, "Keep the model's own weights (default), so that the archive can be compiled again."
    )
    runtime: bool = option(True, "Include the C runtime and its templates (default).")
    test_vectors: int = option(
        0, "Random inputs of each module with their outputs, for the demo to check. Default: none."
    )
    seed: int = option(0, "Seed of these inputs. Default: 0.")
    format_version: int = option(7, "7 (default), or 5 or 6 for older readers, which support one module per archive.")
    rfc: bool = option(False, "The layout of the format's first proposal of 2021 instead of TVM's.")
    params_forms: tuple[str, ...] = option(
        ("params",), "The forms of parameters to write: ``params``, which is always written, ``json`` and ``bson``."
    )
    share_workspace: bool = option(False, "One workspace for several modules that never run together.")
    share_weights: bool = option(False, "Keep equal constants of several modules once.")
    system_lib: bool = option(
        False,
        "In archives: add aot modules to the C runtime's table of functions too, for hosts that drive microTVM's "
        "projects. In static libraries and tars: the files of TVM's exporter for programs with its C runtime.",
    )

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
                f"parameters cannot be written as {', '.join(unknown)}", next_step=f"Use {', '.join(PARAMS_FORMS)}"
            )
        if self.test_vectors < 0 or self.seed < 0:
            raise OptionError("the number of test vectors and the seed must not be negative")
