"""Files of an archive: those of each module with its imports, and those for all modules together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from mlfc.archive.details import VM, constants
from mlfc.archive.read import layout
from mlfc.archive.read.source import source_files
from mlfc.archive.templates.documents import build_plan, cmake_lists, demo_files, makefile, readme
from mlfc.archive.templates.subject import Vector, shapes_at, subject
from mlfc.archive.write.metadata import utc
from mlfc.archive.write.options import ExportOptions
from mlfc.codegen import LinkedCode
from mlfc.crt import crt_files
from mlfc.errors import OptionError
from mlfc.factory import Factory, link
from mlfc.runtime.modules.module import Module
from mlfc.runtime.tensor.arrays import fill
from mlfc.support.c_names import bounded
from mlfc.support.content import Data, sha256_of
from mlfc.support.dims import symbols_of
from mlfc.support.executable import encode
from mlfc.support.module_info import ImportedModule
from mlfc.support.params import params_content
from mlfc.support.tensor_info import TensorInfo
from mlfc.target.features import AUTO

_TEMPLATES = "templates"
_CODE = (".c", ".h", ".S", ".o")
_README, _MAKEFILE, _CMAKE = "README.md", "Makefile", "CMakeLists.txt"
_HOST = "host"
_PART_OF_A_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def linked_code(factories: Sequence[Factory], options: ExportOptions) -> LinkedCode:
    """Return the linked code of all modules; the code of a single one is already linked."""
    if len(factories) == 1 and not options.system_lib:
        return LinkedCode((factories[0].code,), factories[0].code.files)
    sharing = {"share_workspace": options.share_workspace, "share_weights": options.share_weights}
    return link(factories, **sharing, system_lib=options.system_lib)


def require_one_processor(factories: Sequence[Factory]) -> None:
    """Raise OptionError for code that selects kernels at run time: it cannot be built for a chosen processor."""
    for factory in factories:
        if factory.unit.target.mcpu == AUTO:
            raise OptionError(
                f"exported sources require a target with one processor, got '{factory.unit.target}'",
                place=factory.module_name,
                next_step=f"Compile for '{factory.unit.target.kind}', for all processors, or make a library: --emit so",
            )


def archive_members(
    factories: Sequence[Factory], options: ExportOptions, timestamp: int
) -> tuple[dict[str, Data], list[tuple[ImportedModule, ...]], LinkedCode]:
    """Return all files but the metadata, by path in version 7, the tree of each module, and the linked code.

    Raises ToolchainError if test vectors are requested and the code does not compile.
    """
    _check_options(factories, options)
    linked = linked_code(factories, options)
    files: dict[str, Data] = {f"{layout.CODE}/{path}": data for path, data in linked.files.items()}
    trees = []
    for factory, code in zip(factories, linked.modules, strict=True):
        paths = [f"{layout.CODE}/{path}" for path in code.files]
        tree = import_tree(factory.module_name, factory.lib.type_key, paths, factory.lib.imported_modules)
        trees.append(tree.entries)
        files.update(tree.files)
        files.update(source_files(factory, params=options.source_params))
        # the constants of AOT modules are in their code, so executors load an empty dictionary
        files[layout.params_path(factory.module_name)] = params_content(factory.params)
        files.update(executor_files(factory))
    runtime = layout.layout_of(layout.VERSION).runtime
    for path, data in crt_files().items() if options.runtime else ():
        # templates are where microTVM's tools expect them
        files[path if path.startswith(f"{_TEMPLATES}/") else f"{runtime}/{path}"] = data
    files.update(_documents(factories, linked, files, options, timestamp))
    check_tree(files)
    return files, trees, linked


def _check_options(factories: Sequence[Factory], options: ExportOptions) -> None:
    if not factories:
        raise OptionError("no module to export", next_step="Pass the result of mlfc.build")
    others = [factory.module_name for factory in factories if factory.executor == VM]
    if others and (options.rfc or options.format_version != layout.VERSION):
        raise OptionError(
            f"archives of older versions cannot contain modules of the virtual machine, got '{others[0]}'",
            place="format version",
            next_step=f"Write version {layout.VERSION}",
        )
    if options.test_vectors and not _are_programs(factories):
        raise OptionError(
            "test vectors are checked by a demo on the C runtime, which has no devices, no modules of other kinds, and "
            "no memory for dynamic dimensions without a bound",
            place="test vectors",
            next_step="Export without test vectors; mlfc verify compares the model with its reference",
        )
    if options.test_vectors and not options.runtime and _uses_runtime(factories):
        raise OptionError(
            "a demo of modules for an executor needs the C runtime in the archive",
            place="test vectors",
            next_step="Export with the runtime, or without test vectors",
        )


def _uses_runtime(factories: Sequence[Factory]) -> bool:
    return any(factory.graph_json or factory.executor == VM for factory in factories)


def _are_programs(factories: Sequence[Factory]) -> bool:
    """Return True if C and the C runtime suffice to run these modules, without a heap."""
    return not any(
        factory.code.device
        or any(part.is_module for part in factory.code.external)
        or (factory.code.executable is not None and factory.code.executable.work_bytes is None)
        for factory in factories
    )


def executor_files(factory: Factory) -> dict[str, Data]:
    """Return a module's files that its executor loads beside code: a graph with its parameters, or a description."""
    name = factory.module_name
    files: dict[str, Data] = {}
    if factory.graph_json:
        files[layout.graph_path(name)] = factory.graph_json.encode()
        files[layout.params_path(name)] = params_content(factory.params)
    if factory.code.executable is not None:
        files[layout.vm_path(name)] = encode(factory.code.executable)
    return files


def _documents(
    factories: Sequence[Factory], linked: LinkedCode, files: Mapping[str, Data], options: ExportOptions, timestamp: int
) -> dict[str, Data]:
    """Return the description, the build files and the demo."""
    places = layout.layout_of(layout.VERSION)
    subjects = [
        subject(factory, code, places, _computed_vectors(factory, options))
        for factory, code in zip(factories, linked.modules, strict=True)
    ]
    name = bounded("_".join(factory.module_name for factory in factories))
    graphs = any(item.is_graph for item in subjects)
    documents: dict[str, Data] = {}
    # the C runtime supports neither devices nor ONNX Runtime, so a demo that needs them could not run
    if (options.runtime or not _uses_runtime(factories)) and _are_programs(factories):
        documents.update(demo_files(subjects))
        digest = sha256()  # of all code; for binary constants, of their known digests
        for path, data in sorted({**files, **documents}.items()):
            if path.endswith(_CODE):
                digest.update(f"{path}\0{sha256_of(data)}\0".encode())
        for constant in (constant for factory in factories for constant in constants(factory)):
            digest.update(f"{constant.name}\0{constant.sha256}\0".encode())
        built = [path for path in (*files, *documents) if options.runtime or path not in layout.REGISTRIES]
        runtime = places.runtime if graphs or (options.system_lib and options.runtime) else None
        plan = build_plan(name, built, runtime, digest.hexdigest())
        documents[_MAKEFILE] = makefile(plan).encode()
        documents[_CMAKE] = cmake_lists(plan).encode()
    library = f"lib{name}.a" if _MAKEFILE in documents else None
    documents[_README] = readme(subjects, [*files, *documents], library, utc(timestamp)).encode()
    return documents


def _computed_vectors(factory: Factory, options: ExportOptions) -> tuple[Vector, ...]:
    """Run the module on the requested number of random inputs; the first are those of `fill` with their seed."""
    if not options.test_vectors:
        return ()
    from mlfc.archive.read.load import load_factory

    module = load_factory(factory)
    vectors = []
    for index in range(options.test_vectors):
        values = factory.program.inputs
        symbols = symbols_of(extent for value in values for extent in value.shape)
        numbers = np.random.default_rng((options.seed, index))
        sizes = {}
        for symbol in symbols:  # minimum sizes in the first vector, maximum in the second
            drawn = int(numbers.integers(symbol.low, symbol.high, endpoint=True))
            sizes[symbol] = (symbol.low, symbol.high, drawn)[min(index, 2)]
        pairs = zip(values, shapes_at(values, sizes), strict=True)
        infos = [TensorInfo(value.name, shape, value.dtype) for value, shape in pairs]
        inputs = fill(infos, seed=options.seed + index)
        vectors.append(Vector(inputs, module.run(inputs)))
    return tuple(vectors)


def check_tree(paths: Iterable[str]) -> None:
    """Raise OptionError for names that differ only in case, or that are both a file and a folder."""
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in sorted(paths):
        folder = path
        while folder := folder.rpartition("/")[0]:
            if folders.setdefault(folder.lower(), folder) != folder:
                raise _clash(folder, folders[folder.lower()])
        if path.lower() in seen:
            raise _clash(path, seen[path.lower()])
        seen[path.lower()] = path
    for name in sorted(seen.keys() & folders.keys()):
        raise _clash(seen[name], folders[name])


def _clash(path: str, other: str) -> OptionError:
    return OptionError(
        f"the archive would contain both {path} and {other}, which clash on some file systems",
        next_step="Rename the module or the kind of device",
    )


@dataclass(frozen=True)
class ImportTree:
    """The modules that a module consists of."""

    entries: tuple[ImportedModule, ...]  # first the root, which is the generated code
    files: Mapping[str, Data]  # of all but the root, by path in the archive


def import_tree(name: str, type_key: str, code: Sequence[str], imports: Sequence[Module]) -> ImportTree:
    """Return the storable imports of a root with the files `code`; raise OptionError if one cannot be stored."""
    entries = [ImportedModule(type_key, tuple(sorted(code)), parent=None)]
    files: dict[str, Data] = {}
    counts: Counter[str] = Counter()
    stored: dict[int, str] = {}
    waiting = [(module, 0) for module in reversed(imports)]
    while waiting:
        module, parent = waiting.pop()
        path = stored.get(id(module))
        if path is None:
            path = stored[id(module)] = _path(name, module, counts)
            files[path] = module.save_to_bytes()
            waiting += [(child, len(entries)) for child in reversed(module.imported_modules)]
        # a module imported several times is stored once and listed once for each importer
        entries.append(ImportedModule(module.type_key, (path,), parent))
    return ImportTree(tuple(entries), files)


def _path(name: str, module: Module, counts: Counter[str]) -> str:
    key, suffix = module.type_key, module.format or "bin"
    if not module.is_binary_serializable:
        raise OptionError(
            f"an imported module of the kind '{key}' cannot be stored in an archive",
            place=name,
            next_step="Export without it, or implement save_to_bytes for its kind",
        )
    if key == _HOST or not _PART_OF_A_PATH.fullmatch(key) or not _PART_OF_A_PATH.fullmatch(suffix):
        raise OptionError(
            f"'{key}' and '{suffix}' are not valid names of a folder and files in an archive",
            place=name,
            next_step="Use letters, digits, underscores and hyphens in type keys and formats",
        )
    number = counts[key]
    counts[key] += 1
    return f"codegen/{key}/{name}_mod{number}.{suffix}"
