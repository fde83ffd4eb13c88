"""Model Library Format archives: written, read, described, checked, loaded."""

from mlforge.archive.diff import diff
from mlforge.archive.export import code_files, export_model_library_format, export_shared_library, object_files
from mlforge.archive.inspect import inspect
from mlforge.archive.load import load, load_module
from mlforge.archive.migrate import migrate
from mlforge.archive.profile import load_profiled
from mlforge.archive.validate import validate

__all__ = [
    "code_files",
    "diff",
    "export_model_library_format",
    "export_shared_library",
    "inspect",
    "load",
    "load_module",
    "load_profiled",
    "migrate",
    "object_files",
    "validate",
]
