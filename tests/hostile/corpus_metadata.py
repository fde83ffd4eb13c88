"""Well-formed metadata with wrong content: files, sizes, types, names, versions and the memory plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.hostile.corpus import add, encoded, fault, packed, set_at, with_manifest
from tests.hostile.good_archives import compiled_files, compiled_metadata, graph_files, graph_metadata

_HAND = "modules/hand"
_MAIN = f"{_HAND}/memory/functions/main/0"

# in the graph archive, which has only TVM's keys: (path of the value, its value, expected message)
BROKEN: dict[str, tuple[str, Any, str]] = {
    "metadata_version_8": ("version", 8, "version 8"),
    "metadata_version_0": ("version", 0, "version 0"),
    "metadata_version_of_text": ("version", "7", "version"),
    "metadata_version_true": ("version", True, "version"),
    "metadata_version_huge": ("version", 10**300, "version"),
    "metadata_no_module": ("modules", {}, "expected at least one module"),
    "metadata_modules_that_are_a_list": ("modules", [], "expected object"),
    "metadata_module_name_with_a_path": ("modules", {"../../hand": graph_metadata()["modules"]["hand"]}, "match"),
    "metadata_module_name_with_a_slash": ("modules", {"a/b": graph_metadata()["modules"]["hand"]}, "match"),
    "metadata_module_name_with_a_line_break": ("modules", {"hand\n": graph_metadata()["modules"]["hand"]}, "match"),
    "metadata_module_that_is_null": (_HAND, None, "expected object"),
    "metadata_other_model_name": (f"{_HAND}/model_name", "other", "model_name"),
    "metadata_unknown_executor": (f"{_HAND}/executors", ["jit"], "executors"),
    "metadata_no_executor": (f"{_HAND}/executors", [], "executors"),
    "metadata_unknown_style": (f"{_HAND}/style", "half-model", "style"),
    "metadata_target_that_is_a_number": (f"{_HAND}/target", [7], "target"),
    "metadata_time_that_is_none": (f"{_HAND}/export_datetime", "yesterday", "export_datetime"),
    "metadata_negative_size": (f"{_MAIN}/workspace_size_bytes", -1, "less than 0"),
    "metadata_size_with_a_fraction": (f"{_MAIN}/workspace_size_bytes", 1.5, "expected integer"),
    "metadata_size_beyond_all_memory": (f"{_MAIN}/workspace_size_bytes", 2**200, "is more than"),
    "metadata_size_of_text": (f"{_MAIN}/inputs/x/size", "16", "expected integer"),
    "metadata_size_true": (f"{_MAIN}/inputs/x/size", True, "expected integer"),
    "metadata_unknown_dtype": (f"{_MAIN}/inputs/x/dtype", "object", "dtype"),
    "metadata_sids_that_are_text": (f"{_HAND}/memory/sids", "all", "sids"),
    "metadata_negative_storage_id": (f"{_HAND}/memory/sids/0/storage_id", -1, "storage_id"),
    "metadata_very_long_name": (f"{_HAND}/memory/functions/operator_functions/0/function_name", "x" * 10**6, "long"),
}

# contradictions that the schema does not detect
WRONG: dict[str, tuple[str, Any, str]] = {
    "metadata_function_not_in_the_code": (
        f"{_HAND}/memory/functions/operator_functions/0/function_name",
        "tvmgen_hand_only_declared",
        "tvmgen_hand_only_declared",
    ),
    "metadata_function_in_a_comment": (
        f"{_HAND}/memory/functions/operator_functions/0/function_name",
        "tvmgen_hand_only_in_a_comment",
        "tvmgen_hand_only_in_a_comment",
    ),
    "metadata_storage_twice": (f"{_HAND}/memory/sids/1/storage_id", 0, "twice"),
    "metadata_input_of_another_size": (f"{_MAIN}/inputs/x/size", 15, "input x"),
    "metadata_input_of_another_dtype": (f"{_MAIN}/inputs/x/dtype", "int32", "input x"),
    "metadata_input_that_the_graph_lacks": (
        f"{_MAIN}/inputs",
        {"y": {"dtype": "float32", "size": 16}},
        "input y",
    ),
    "metadata_too_many_outputs": (
        f"{_MAIN}/outputs/other",
        {"dtype": "float32", "size": 16},
        "outputs",
    ),
}

# in the archive that mlfc compiles
_DIGITS = "modules/digits"
_OURS = f"{_DIGITS}/mlfc"
LIES: dict[str, tuple[str, Any, str]] = {
    "lie_shape_larger_than_the_size": (f"{_OURS}/inputs/0/shape", [1, 8, 8, 2], "do not give the size|input"),
    "lie_shape_beyond_memory": (f"{_OURS}/inputs/0/shape", [2**31 - 1] * 8, "do not give the size|input"),
    "lie_negative_extent": (f"{_OURS}/inputs/0/shape", [1, -8, -8, 1], "less than 0"),
    "lie_extent_of_text": (f"{_OURS}/inputs/0/shape", ["64"], "expected a static dimension"),
    "lie_too_many_extents": (f"{_OURS}/inputs/0/shape", [1] * 1000, "too long"),
    "lie_unknown_dtype": (f"{_OURS}/inputs/0/dtype", "complex64", "expected"),
    "lie_input_of_another_name": (f"{_OURS}/inputs/0/name", "picture", "names"),
    "lie_entry_that_is_no_symbol": (f"{_OURS}/entry", "system; rm", "does not match"),
    "lie_entry_that_is_not_in_the_code": (f"{_OURS}/entry", "system", "system"),
    "lie_workspace": (f"{_OURS}/memory/workspace_bytes", 1, "workspace"),
    "lie_io_size": (f"{_DIGITS}/memory/functions/main/0/io_size_bytes", 7, "io_size_bytes"),
    "lie_function_of_an_operator": (f"{_OURS}/operators/0/function", "tvmgen_digits_other", "tvmgen_digits_other"),
    "lie_peak_in_another_function": (f"{_OURS}/peak/function", "tvmgen_digits_other", "peak"),
}
REFUSED_LIES = {
    "lie_negative_extent", "lie_extent_of_text", "lie_too_many_extents", "lie_unknown_dtype",
    "lie_entry_that_is_no_symbol", "lie_shape_larger_than_the_size", "lie_shape_beyond_memory",
    "lie_input_of_another_name", "lie_workspace", "lie_io_size",
}  # fmt: skip


def _hand(path: str, value: Any) -> Callable[[], bytes]:
    return lambda: packed(graph_files(metadata=set_at(graph_metadata(), path, value)))


def _ours(path: str, value: Any, executor: str = "aot") -> Callable[[], bytes]:
    return lambda: packed(with_manifest(compiled_files(executor), set_at(compiled_metadata(executor), path, value)))


for _name, (_path, _value, _expected) in BROKEN.items():
    add(_name, _expected, _hand(_path, _value))
for _name, (_path, _value, _expected) in WRONG.items():
    add(_name, _expected, _hand(_path, _value), refused=False)
for _name, (_path, _value, _expected) in LIES.items():
    add(_name, _expected, _ours(_path, _value), refused=_name in REFUSED_LIES)


_SIDS = f"{_DIGITS}/memory/sids"
GRAPH_LIES: dict[str, tuple[str, Any, str]] = {
    "lie_size_of_a_storage": (f"{_SIDS}/0/size_bytes", 63, "storage id 0 needs 64 bytes"),
    "lie_input_in_a_storage": (f"{_SIDS}/0/input_binding", "picture", "storage id 0 holds 'image'"),
    "lie_storage_added": (f"{_SIDS}/0/storage_id", 999, "storage id 999"),
    "lie_executor": (f"{_DIGITS}/executors", ["aot"], "executor"),
    "lie_hash_of_a_parameter": (f"{_OURS}/constants/0/sha256", "0" * 64, r"'p0'.*SHA-256 differs"),
    "lie_shape_of_an_output_in_the_graph": (f"{_OURS}/outputs/0/shape", [10, 1, 1], "output probabilities|outputs"),
}
for _name, (_path, _value, _expected) in GRAPH_LIES.items():
    add(_name, _expected, _ours(_path, _value, "graph"), refused=False)


def _plan(*blocks: tuple[int, int, int, int, int | None], at: str = "") -> list[dict[str, Any]]:
    names = ("bytes", "offset", "first", "last", "reuses")
    return [{"name": f"{at}{index}", **dict(zip(names, block, strict=True))} for index, block in enumerate(blocks)]


PLANS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "plan_overlap": (_plan((64, 0, 0, 1, None), (64, 32, 1, 2, None)), "plan.*'0'.*'1'|plan.*'1'.*'0'"),
    "plan_overlap_of_one_byte": (_plan((64, 0, 0, 1, None), (64, 63, 1, 2, None)), "plan.*'1'"),
    "plan_overlap_inside": (_plan((64, 0, 0, 3, None), (8, 16, 1, 1, None)), "plan.*'1'"),
    "plan_reuse_of_what_is_still_needed": (_plan((64, 0, 0, 3, None), (64, 0, 1, 3, 0)), "plan.*'1'"),
    "plan_two_take_one_place": (
        _plan((64, 0, 0, 1, None), (64, 0, 1, 2, 0), (64, 0, 1, 2, 0)),
        "plan.*'2'",
    ),
    "plan_reuse_of_no_block": (_plan((64, 0, 0, 1, 99)), "plan.*99"),
    "plan_beyond_the_workspace": (_plan((64, 2**40, 0, 1, None)), "plan.*workspace"),
    "plan_of_calls_that_are_not": (_plan((64, 0, 0, 99, None)), "plan.*call"),
    "plan_that_ends_before_it_begins": (_plan((64, 0, 2, 1, None)), "plan.*call"),
}
for _name, (_blocks, _expected) in PLANS.items():
    add(_name, _expected, _ours(f"{_OURS}/plan", _blocks), refused=False)
add(
    "plan_of_many_blocks_in_one_place",
    "plan",
    _ours(f"{_OURS}/plan", _plan(*[(64, 0, 0, 3, None)] * 19_000)),
    refused=False,
)


def _with_device_module(data: bytes, type_key: str = "onnxruntime") -> Callable[[], bytes]:
    """Return an archive with a module that imports a device module with this content."""
    path = f"codegen/{type_key}/digits_mod0.bin"

    def build() -> bytes:
        document = compiled_metadata()
        document["modules"]["digits"]["mlfc"]["module_tree"].append(
            {"type_key": type_key, "files": [path], "parent": 0}
        )
        return packed(with_manifest({**compiled_files(), path: data}, document))

    return build


DEVICE_MODULES: dict[str, bytes] = {
    "modules_onnxruntime_empty": b"",
    "modules_onnxruntime_garbage": b"\xff" * 100,
    "modules_onnxruntime_lying_length": b"\xff" * 7 + b"\x7f" + b"main",
    "modules_onnxruntime_bytes_behind": b"\4" + bytes(7) + b"main" + bytes(8) + b"x",
}
for _name, _data in DEVICE_MODULES.items():
    add(_name, "onnxruntime", _with_device_module(_data), refused=False)


@fault("ELF", refused=False)
def files_object_that_is_none() -> bytes:
    return _files({"codegen/host/lib/digits_lib0.o": b"\x7fELF\2\1\1" + b"\xff" * 200})


@fault("ELF", refused=False)
def files_object_with_tables_beyond_the_end() -> bytes:
    head = b"\x7fELF\2\1\1" + bytes(9) + bytes(24) + b"\xf0" * 8 + bytes(10) + b"\x40\0\xff\xff\0\0"
    return _files({"codegen/host/lib/digits_lib0.o": head})


def _files(changes: dict[str, bytes | None], *, listed: bool = True) -> bytes:
    files = {name: data for name, data in {**compiled_files(), **changes}.items() if data is not None}
    return packed(with_manifest(files, compiled_metadata()) if listed else files)


_LIB1 = "codegen/host/src/digits_lib1.c"
_HEADER = "codegen/host/include/tvmgen_digits.h"


@fault("the file is missing", refused=False)
def files_one_missing() -> bytes:
    return _files({_LIB1: None}, listed=False)


@fault("not in the list of files", refused=False)
def files_one_added() -> bytes:
    return _files({"codegen/host/src/evil.c": b"int x;"}, listed=False)


@fault("SHA-256 differs", refused=False)
def files_one_changed() -> bytes:
    return _files({_LIB1: compiled_files()[_LIB1][:-1] + b" "}, listed=False)


@fault("declares .* bytes, but it has", refused=False)
def files_one_longer() -> bytes:
    return _files({_LIB1: compiled_files()[_LIB1] + b" "}, listed=False)


@fault("does not match", refused=True)
def files_hash_that_is_none() -> bytes:
    document = compiled_metadata()
    document["mlfc"]["files"][_LIB1]["sha256"] = "0" * 63 + "\n"
    return packed({**compiled_files(), "metadata.json": encoded(document)})


@fault("parameters/0.params: no module of the metadata has this file", refused=False)
def files_of_no_module_by_the_thousand() -> bytes:
    return packed({**graph_files(), **{f"parameters/{index}.params": b"" for index in range(7_900)}})


@fault(r"tvmgen_digits\.h", refused=False)
def files_no_header() -> bytes:
    return _files({_HEADER: None})


@fault("digits.*source|_lib0.c|no code", refused=False)
def files_no_code() -> bytes:
    return _files({_LIB1: None, "codegen/host/src/digits_lib0.c": None})


@fault("TVMGEN_DIGITS_WORKSPACE_SIZE", refused=False)
def files_header_with_another_workspace() -> bytes:
    header = compiled_files()[_HEADER].replace(b"WORKSPACE_SIZE ", b"WORKSPACE_SIZE 9")
    return _files({_HEADER: header})


@fault("TVMGEN_DIGITS_IMAGE_SIZE", refused=False)
def files_header_with_another_input_size() -> bytes:
    return _files({_HEADER: compiled_files()[_HEADER].replace(b"IMAGE_SIZE 64", b"IMAGE_SIZE 63")})


@fault("global_workspace", refused=False)
def files_workspace_array_of_another_size() -> bytes:
    path = "codegen/host/src/digits_lib0.c"
    return _files({path: compiled_files()[path].replace(b"global_workspace[", b"global_workspace[1")})


@fault("tvmgen_digits_fused_qnn_softmax", refused=False)
def files_a_function_lost() -> bytes:
    return _files({_LIB1: compiled_files()[_LIB1].replace(b"fused_qnn_softmax", b"fused_qnn_hardmax")})


@fault("tvmgen_digits_run", refused=False)
def files_a_comment_that_never_ends() -> bytes:
    path = "codegen/host/src/digits_lib0.c"
    return _files({path: b"/* " * 300_000 + compiled_files()[path].replace(b"*/", b"")})


@fault("tvmgen_digits_run.*defined", refused=False)
def files_a_function_defined_twice() -> bytes:
    code = compiled_files()["codegen/host/src/digits_lib0.c"]
    return _files({"codegen/host/src/digits_lib9.c": code})


@fault("module_tree|devices|codegen/npu", refused=False)
def modules_file_of_no_module() -> bytes:
    return _files({"codegen/npu/digits_mod0.bin": b"x"})


TREES: dict[str, tuple[Any, str]] = {
    "modules_cycle": (
        [{"type_key": "c", "files": [], "parent": 1}, {"type_key": "x", "files": [], "parent": 0}],
        "parent",
    ),
    "modules_own_parent": ([{"type_key": "c", "files": [], "parent": 0}], "parent"),
    "modules_parent_that_is_not": (
        [{"type_key": "c", "files": [], "parent": None}, {"type_key": "x", "files": [], "parent": 99}],
        "parent",
    ),
    "modules_two_roots": (
        [{"type_key": "c", "files": [], "parent": None}, {"type_key": "x", "files": [], "parent": None}],
        "parent|root",
    ),
    "modules_missing_file": (
        [
            {"type_key": "c", "files": [], "parent": None},
            {"type_key": "onnxruntime", "files": ["codegen/onnxruntime/digits_mod0.bin"], "parent": 0},
        ],
        "digits_mod0.bin",
    ),
    "modules_file_with_a_path": (
        [
            {"type_key": "c", "files": [], "parent": None},
            {"type_key": "onnxruntime", "files": ["../../etc/passwd"], "parent": 0},
        ],
        "passwd",
    ),
    "modules_type_key_with_a_path": ([{"type_key": "../c", "files": [], "parent": None}], "type_key"),
}  # fmt: skip
for _name, (_tree, _expected) in TREES.items():
    add(_name, _expected, _ours(f"{_OURS}/module_tree", _tree), refused=False)
