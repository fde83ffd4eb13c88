"""Functions of the classic packed convention, and the tables by which TVM's executors know a module."""

from __future__ import annotations

from mlfc.codegen.abi.entry import AotEntry, c_dtype
from mlfc.codegen.c_host import packed_head
from mlfc.codegen.c_interface import InterfaceTensor
from mlfc.codegen.host.aot import main_function_name
from mlfc.codegen.writer import Writer, c_string
from mlfc.support.c_names import names_in_tables

_LONGEST_NAME = 1000


def classic_entries(entry: AotEntry, *, alone: bool) -> str:
    """Return the packed function of a module and the one that returns its tables.

    The packed function has two names: TVM's, which in other libraries is also that of functions with other arguments,
    and one that only this function has. If the module is `alone` in its library, names without a module's are this
    one's.
    """
    main = main_function_name(entry.prefix)
    writer = Writer()
    for name in (main, f"mlfc_packed_{entry.unit.module}"):
        with writer.block(f"TVM_DLL {packed_head(name)}"):
            writer.line(f"const DLTensor *tensors[{entry.slots}];")
            writer.line(f"void *data[{entry.slots}];")
            writer.lines(["(void)out_ret_value;", "(void)out_ret_tcode;", "(void)resource_handle;"])
            writer.line("return mlfc_classic_entry(&function, args, type_codes, num_args, tensors, data);")
        writer.line()
    if entry.keeps_state:
        with writer.block(f"TVM_DLL {packed_head(f'mlfc_packed_{entry.unit.module}_state_reset')}"):
            writer.lines(["const DLTensor *tensors[1];", "void *data[1];"])
            writer.lines(["(void)out_ret_value;", "(void)out_ret_tcode;", "(void)resource_handle;"])
            writer.line("return mlfc_classic_entry(&reset_function, args, type_codes, num_args, tensors, data);")
        writer.line()
    _tables(writer, entry)
    names = [f"{entry.prefix}_get_c_metadata", *(["get_c_metadata"] if alone else [])]
    for name in names:
        with writer.block(f"TVM_DLL {packed_head(name)}"):
            writer.lines(["(void)args;", "(void)type_codes;", "(void)num_args;", "(void)resource_handle;"])
            with writer.block("if (out_ret_value == NULL || out_ret_tcode == NULL)"):
                writer.line(f'TVMAPISetLastError("{name}: the result is expected to be a pointer, not NULL");')
                writer.line("return -1;")
            writer.line("out_ret_value->v_handle = (void *)(uintptr_t)&metadata;")
            writer.line("*out_ret_tcode = kTVMOpaqueHandle;")
            writer.line("return 0;")
        writer.line()
    if alone:
        writer.line("/* the function that calling the library itself calls */")
        writer.line(f"extern TVM_DLL const char __tvm_main__[{len(main) + 1}];")
        writer.line(f"const char __tvm_main__[{len(main) + 1}] = {c_string(main, len(main))};")
    return writer.text()


def _tables(writer: Writer, entry: AotEntry) -> None:
    inputs, outputs = entry.tensors
    groups = (("inputs", inputs, 0), ("outputs", outputs, len(inputs)))
    for kind, group, first in groups:
        with writer.block(f"static const TVMTensorInfo {kind}_info[{max(1, len(group))}] =", "};"):
            own = names_in_tables(tensor.value.name for tensor in group)
            # TVM's tables give outputs numbers
            names = own if kind == "inputs" else [f"output{index}" for index in range(len(group))]
            infos = zip(names, group, range(first, first + len(group)), strict=True)
            writer.lines([_tensor_info(name, tensor, index) for name, tensor, index in infos])
            if not group:
                writer.line("{NULL, NULL, 0, {0, 0, 0}},")
    with writer.block("static const TVMMetadata metadata =", "};"):
        writer.line(f"TVM_METADATA_VERSION, inputs_info, {len(inputs)}, outputs_info, {len(outputs)},")
        writer.line(f"NULL, 0, NULL, 0, {c_string(entry.prefix)},")
    writer.line()


def _tensor_info(name: str, tensor: InterfaceTensor, index: int) -> str:
    value = tensor.value
    return f"{{{c_string(name, _LONGEST_NAME)}, shape_{index}, {len(value.shape)}, {c_dtype(value.dtype)}}},"
