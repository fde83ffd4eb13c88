"""Whether the code defines what metadata and graphs call, in the sizes that they say, and its modules form a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from mlfc.archive.read.c_header import MAX_HEADER_BYTES, Header, parse_header
from mlfc.archive.read.layout import CODE, CODEGEN, header_path
from mlfc.archive.read.model import ModuleRecord, TensorRecord
from mlfc.archive.read.opening import Archive
from mlfc.archive.validate.parsed_files import C_ENDINGS, OBJECT_ENDING, ArchiveFault, ParsedFiles, fault_of_error
from mlfc.errors import MlfcError
from mlfc.memory.pools import DEFAULT_POOL, pool_array
from mlfc.runtime.executors.graph_json import COPY, NOP
from mlfc.runtime.modules.loaders import load_from_bytes
from mlfc.support.former_name import former
from mlfc.support.module_info import ImportedModule

_SHARED_WORKSPACE = "tvmgen_mlfc_shared_workspace"


def code_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    """Yield missing and doubled functions, and sizes in C that are not those of the metadata."""
    archive = parsed.archive
    defined = set[str]().union(*parsed.objects.values(), *(symbols.functions for symbols in parsed.c_code.values()))
    for path, error in parsed.errors.items():
        if path.endswith((OBJECT_ENDING, *C_ENDINGS)):
            yield fault_of_error("code", path, error)
    yield from _doubled(parsed)
    for place, function in _called(parsed):
        if function not in defined and not any(module.implements_function(function) for module in parsed.imports):
            yield ArchiveFault("code", place, f"the function {function} is not defined in the code")
    for name, module in archive.record.modules.items():
        yield from _header_faults(archive, name, module)
        yield from _workspace_faults(parsed, name, module)


def _doubled(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    owners: dict[str, str] = {}
    for path, found in parsed.c_code.items():
        for function, is_public in found.functions.items():
            if is_public and owners.setdefault(function, path) != path:
                yield ArchiveFault("code", path, f"the function {function} is defined in {owners[function]} too")


def _called(parsed: ParsedFiles) -> Iterator[tuple[str, str]]:
    """Yield each function that must be there once, with the place that says so."""
    archive = parsed.archive
    seen: set[str] = set()
    for name, module in archive.record.modules.items():
        place = f"{archive.metadata_path}: {name}"
        if module.executor == "vm" and module.files.objects:
            continue  # its functions are found by a table, and no others see them
        functions = [function.name for function in module.operator_functions] + list(module.operators)
        if module.details is not None:
            functions += [operator.function for operator in module.details.operators]
            functions += [module.details.entry] if module.details.entry else []
        for function in functions:
            if function not in seen and function != COPY:
                seen.add(function)
                yield place, function
    for path, graph in parsed.graphs.items():
        for node in graph.nodes:
            if node.function is not None and node.function not in (NOP, COPY) and node.function not in seen:
                seen.add(node.function)
                yield path, node.function
    shared = archive.record.details.shared if archive.record.details else None
    for function in shared.functions if shared else ():
        if function not in seen:
            seen.add(function)
            yield f"{archive.metadata_path}: shared", function


def _header_faults(archive: Archive, name: str, module: ModuleRecord) -> Iterator[ArchiveFault]:
    path = header_path(name)
    if path not in module.files.headers or not module.main:
        return
    if archive.tar.sizes[path] > MAX_HEADER_BYTES:
        yield ArchiveFault("code", path, f"a header of more than {MAX_HEADER_BYTES:,} bytes")
        return
    header = parse_header(bytes(archive.tar.view(path)).decode("utf-8", "replace"))
    prefix = PurePosixPath(path).stem
    main = module.main[0]
    said = {"WORKSPACE": main.workspace_bytes}
    if module.details is not None and module.details.states:
        said["STATE"] = module.details.memory.state_bytes
    for what, nbytes in said.items():
        macro = f"{prefix.upper()}_{what}_SIZE"
        if (found := header.macros.get(macro)) is not None and found != str(nbytes):
            yield ArchiveFault("code", path, f"{macro} is {found[:40]}, the metadata say {nbytes}")
    in_order = module.details is not None
    for kind, tensors in (("inputs", main.inputs), ("outputs", main.outputs)):
        for cause in _tensor_faults(header, prefix, kind, tensors, in_order=in_order):
            yield ArchiveFault("code", path, cause)


def _tensor_faults(
    header: Header, prefix: str, kind: str, tensors: tuple[TensorRecord, ...], *, in_order: bool
) -> Iterator[str]:
    """Yield how a struct of pointers and the macros of sizes beside it differ from the tensors of the metadata."""
    struct = f"{prefix}_{kind}"
    fields = header.structs.get(struct)
    if fields is None or not tensors:
        return
    if len(fields) != len(tensors):
        yield f"struct {struct} has {len(fields)} fields, the metadata {len(tensors)} {kind}"
        return
    macros = [f"{prefix}_{field.name}_SIZE".upper() for field in fields]
    sizes = [header.macros.get(macro) for macro in macros]
    expected = [str(tensor.nbytes) for tensor in tensors]
    if in_order:
        for macro, size, wanted in zip(macros, sizes, expected, strict=True):
            if size is not None and size != wanted:
                yield f"{macro} is {size[:40]}, the metadata say {wanted}"
    elif None not in sizes and sorted(map(str, sizes)) != sorted(expected):
        yield f"the sizes of {kind} are not those of the metadata: {', '.join(macros)[:200]}"


def _workspace_faults(parsed: ParsedFiles, name: str, module: ModuleRecord) -> Iterator[ArchiveFault]:
    """Yield a static workspace of another size than the metadata say; TVM's archives have none that could differ."""
    details = module.details
    if details is None or module.executor != "aot" or details.external_workspace or module.files.objects:
        return
    archive = parsed.archive.record.details
    shared = archive.shared if archive else None
    expected = {DEFAULT_POOL: details.memory.workspace_bytes}
    if shared and name in shared.workspace_modules:
        expected = {_SHARED_WORKSPACE: shared.workspace_bytes}
    elif details.pools:
        expected = {pool_array(pool.name): pool.nbytes for pool in details.pools}
    for array, nbytes in expected.items():
        sizes = {
            path: parsed.c_code[path].arrays[known]
            for path in module.files.sources
            for known in dict.fromkeys((array, former(array)))
            if path in parsed.c_code and known in parsed.c_code[path].arrays
        }
        if not sizes and nbytes:
            yield ArchiveFault("code", f"codegen/host/src: {name}", f"no array {array} of {nbytes} bytes is defined")
        for path, size in sizes.items():
            if size != nbytes:
                yield ArchiveFault("code", path, f"the array {array} has {size} bytes, the metadata say {nbytes}")


def module_tree_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    """Yield entries of import trees that are wrong, and files of devices that belong to none."""
    archive = parsed.archive
    claimed: set[str] = set()
    for name, module in archive.record.modules.items():
        tree = module.details.module_tree if module.details else ()
        place = f"{archive.metadata_path}: {name}: module_tree"
        for index, cause in _tree_faults(tree, archive.tar.sizes):
            yield ArchiveFault("modules", f"{place}[{index}]", cause)
        for entry in tree[1:]:
            yield from (fault for path in entry.files for fault in _content_faults(archive, entry, path))
        claimed.update(path for entry in tree for path in entry.files)
    for path in archive.tar.sizes:
        if path.startswith(f"{CODEGEN}/") and not path.startswith(f"{CODE}/") and path not in claimed:
            yield ArchiveFault("modules", path, "no module_tree of the metadata has this file")


def _tree_faults(tree: Sequence[ImportedModule], present: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    for index, entry in enumerate(tree):
        parent = entry.parent
        if index == 0 and parent is not None:
            yield index, f"the first entry is the root; its parent must be null, not {parent}"
        # parents stand before their children, so there can be no cycle
        if index > 0 and not (parent is not None and 0 <= parent < index):
            yield index, f"its parent must be an entry before it, not {parent}"
        for path in entry.files:
            if path not in present:
                yield index, f"the archive has no file {path[:200]!r}"
            elif index > 0 and not path.startswith(f"{CODEGEN}/{entry.type_key}/"):
                yield index, f"a file of '{entry.type_key}' cannot be {path[:200]!r}"


def _content_faults(archive: Archive, entry: ImportedModule, path: str) -> Iterator[ArchiveFault]:
    """Yield what the loader of the kind says of a file; kinds without a loader here are kept as they are."""
    if path not in archive.tar.sizes:
        return
    try:
        load_from_bytes(entry.type_key, bytes(archive.tar.view(path)), PurePosixPath(path).suffix[1:])
    except MlfcError as error:
        yield fault_of_error("modules", path, error)
