"""Model Library Format archives: written, read, described, checked, loaded. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfc.support.lazy import make_lazy

if TYPE_CHECKING:
    from mlfc.archive.compare.diff import diff as diff
    from mlfc.archive.describe.inspect import inspect as inspect
    from mlfc.archive.describe.memory_map import memory_map as memory_map
    from mlfc.archive.describe.profile import load_profiled as load_profiled
    from mlfc.archive.loading import load as load
    from mlfc.archive.loading import load_module as load_module
    from mlfc.archive.validate.validate import validate as validate
    from mlfc.archive.write.export import code_files as code_files
    from mlfc.archive.write.export import export_model_library_format as export_model_library_format
    from mlfc.archive.write.export import object_files as object_files
    from mlfc.archive.write.export import source_folder as source_folder
    from mlfc.archive.write.older import migrate as migrate
    from mlfc.archive.write.rebuild import rebuild as rebuild
    from mlfc.archive.write.rebuild import recorded_options as recorded_options

_HOMES = {
    "code_files": "mlfc.archive.write.export",
    "diff": "mlfc.archive.compare.diff",
    "export_model_library_format": "mlfc.archive.write.export",
    "inspect": "mlfc.archive.describe.inspect",
    "load": "mlfc.archive.loading",
    "load_module": "mlfc.archive.loading",
    "load_profiled": "mlfc.archive.describe.profile",
    "memory_map": "mlfc.archive.describe.memory_map",
    "migrate": "mlfc.archive.write.older",
    "object_files": "mlfc.archive.write.export",
    "rebuild": "mlfc.archive.write.rebuild",
    "recorded_options": "mlfc.archive.write.rebuild",
    "source_folder": "mlfc.archive.write.export",
    "validate": "mlfc.archive.validate.validate",
}

make_lazy(__name__)
