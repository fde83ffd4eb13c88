"""Libraries as TVM 0.14 builds them for its C target: TVM's generated code, with the exporter's parts written by hand.

The code is that of archives written by TVM. Tables, blobs and commands follow the description of TVM's formats and use
nothing of mlfc.
"""

from __future__ import annotations

import gzip
import io
import re
import struct
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import mlfc
from tests.conftest import need

INCLUDE = Path(mlfc.__file__).parent / "crt" / "include"

PACKED_HEAD = (
    "(TVMValue* args, int* type_code, int num_args, TVMValue* out_value, int* out_type_code, void* resource_handle)"
)
# signatures in the C++ runtime's code: operators are called with plain pointers, the entry with tensors
PACKED_MAIN = f"""
#include <tvm/runtime/c_runtime_api.h>
TVM_DLL int32_t tvmgen_kws___tvm_main_unpacked(int8_t* input, int8_t* output);
TVM_DLL int32_t tvmgen_kws___tvm_main__{PACKED_HEAD} {{
  if (num_args != 2 || type_code[0] != kTVMDLTensorHandle) return -1;
  return tvmgen_kws___tvm_main_unpacked(((DLTensor*)args[0].v_handle)->data, ((DLTensor*)args[1].v_handle)->data);
}}
"""
# the C runtime's entry with an unpacked interface inside and a packed one outside
PACKED_RUN = """
#include "tvm/runtime/c_runtime_api.h"
#ifdef __cplusplus
extern "C" {
#endif
TVM_DLL int32_t tvmgen_kws___tvm_main__(void* input_1,void* output0);
int32_t tvmgen_kws_run(void* args, void* type_code, int num_args, void* out_value, void* out_type_code, \
void* resource_handle) {
return tvmgen_kws___tvm_main__(((DLTensor*)(((TVMValue*)args)[0].v_handle))[0].data,\
((DLTensor*)(((TVMValue*)args)[1].v_handle))[0].data);
}
#ifdef __cplusplus
}
#endif
;
"""


def tables(
    symbol: str,
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    pools: Mapping[str, int] | None = None,
    constants: Mapping[str, tuple[int, bytes]] | None = None,
    *,
    module: str = "kws",
) -> str:
    """Return the C of tables of int8 tensors in the layout of TVM's metadata writer."""
    lines = [
        "#include <inttypes.h>",
        "#include <tvm/runtime/metadata_types.h>",
        "#include <tvm/runtime/c_runtime_api.h>",
    ]
    groups = {"inputs": (inputs, "{0, 8, 1}"), "outputs": (outputs, "{0, 8, 1}")}
    groups["workspace_pools"] = ({name: (size,) for name, size in (pools or {}).items()}, "{1, 8, 1}")
    for kind, (tensors, dtype) in groups.items():
        rows = []
        for index, (name, shape) in enumerate(tensors.items()):
            place = f"kTvmgenMetadata_{kind}_{index}_shape"
            lines.append(f"static const int64_t {place}[{len(shape)}] = {{\n{', '.join(f'{n}L' for n in shape)}}};")
            rows.append(f'{{\n"{name}" /* name*/, \n{place}, \n{len(shape)}L /* num_shape*/, \n{dtype} /* dtype*/}}\n')
        body = ", \n".join(rows)
        lines.append(f"static const struct TVMTensorInfo kTvmgenMetadata_{kind}[{len(rows)}] = {{\n{body}}};")
    stored = []
    for name, (offset, data) in (constants or {}).items():
        text = "".join(f"\\x{byte:02x}" for byte in data)
        stored.append(f'{{\n"{name}" /* name_hint*/, \n{offset}L /* byte_offset*/, \n{len(data)}, \n"{text}"\n}}\n')
    body = ", \n".join(stored)
    lines.append(f"static const struct TVMConstantInfo kTvmgenMetadata_constant_pools[{len(stored)}] = {{\n{body}}};")
    sizes = {**{kind: len(tensors) for kind, (tensors, _) in groups.items()}, "constant_pools": len(stored)}
    fields = [f"kTvmgenMetadata_{kind}, \n{size}L /* num_{kind}*/" for kind, size in sizes.items()]
    whole = ", \n".join(["1L /* version*/", *fields, f'"tvmgen_{module}" /* mod_name*/'])
    lines.append(f"static const struct TVMMetadata kTvmgenMetadata[1] = {{\n{{\n{whole}}}\n}};")
    lines += ["#ifdef __cplusplus", 'extern "C"', "#endif"]
    head = "TVMValue* arg_values, int* arg_tcodes, int num_args, TVMValue* ret_values, int* ret_tcodes"
    lines.append(f"TVM_DLL int32_t {symbol}({head}, void* resource_handle) {{")
    lines += ["    ret_values[0].v_handle = (void*) &kTvmgenMetadata;", "    ret_tcodes[0] = kTVMOpaqueHandle;"]
    return "\n".join([*lines, "    return 0;", "};", ""])


def text(value: str | bytes) -> bytes:
    """Return a string in stream format."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def numbers(*values: int) -> bytes:
    """Return a list of numbers in stream format."""
    return struct.pack(f"<{len(values) + 1}Q", len(values), *values)


def tensor(shape: Sequence[int], code: int, bits: int, data: bytes) -> bytes:
    """Return the stored form of a tensor."""
    head = struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, len(shape), code, bits, 1)
    return head + struct.pack(f"<{len(shape)}qq", *shape, len(data)) + data


def blob(factory: str, body: bytes, *, between: bool) -> bytes:
    """Return a blob whose root is a factory that imports the library, optionally through a ``metadata_module``."""
    parts = [text(factory) + body, *([text("metadata_module")] if between else []), text("_lib")]
    rows = [*range(len(parts)), len(parts) - 1]
    stream = struct.pack("<Q", len(parts) + 1) + b"".join(parts) + text("_import_tree")
    stream += numbers(*rows) + numbers(*range(1, len(parts)))
    return struct.pack("<Q", len(stream)) + stream


def blob_source(data: bytes) -> str:
    """Return the file ``devc.c`` of a blob."""
    rows = "".join(
        "\n  " + "".join(f"0x{byte:02x}," for byte in data[start : start + 20]) for start in range(0, len(data), 20)
    )
    return f"""#ifdef _WIN32
#define TVM_EXPORT __declspec(dllexport)
#else
#define TVM_EXPORT
#endif
#ifdef __cplusplus
extern "C" {{
#endif
TVM_EXPORT extern const unsigned char __tvm_dev_mblob[];
const unsigned char __tvm_dev_mblob[{len(data)}] = {{{rows}
}};
#ifdef __cplusplus
}}
#endif
"""


def member(archive: Path, name: str) -> bytes:
    """Return a file from an archive of the fixtures."""
    with tarfile.open(archive) as tar:
        file = tar.extractfile(next(found for found in tar if found.name.removeprefix("./") == name))
        assert file is not None
        return file.read()


def unpacked_main(code: bytes) -> str:
    """Return a module's code with the pointer entry renamed."""
    return re.sub(r"tvmgen_kws___tvm_main__\b", "tvmgen_kws___tvm_main_unpacked", code.decode())


def linked(files: Mapping[str, str], path: Path, *flags: str) -> Path:
    """Link C to a library, or to one object, as users of TVM do; TVM runtime symbols stay undefined."""
    folder = path.with_suffix(".files")
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    kind = ["-r", "-nostdlib"] if path.suffix == ".o" else ["-shared", "-lm"]
    command = [need("gcc", "gcc"), *sorted(files), *kind, "-fPIC", "-O0", "-w", f"-I{INCLUDE}", *flags, "-o", str(path)]
    subprocess.run(command, cwd=folder, check=True)
    return path


def tar(files: Mapping[str, str], path: Path) -> Path:
    """Write a tar of sources as TVM's exporter does."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as written:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content.encode())
            written.addfile(info, io.BytesIO(content.encode()))
    path.write_bytes(gzip.compress(buffer.getvalue()))
    return path
