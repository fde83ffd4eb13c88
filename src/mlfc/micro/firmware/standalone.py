"""The main function of firmware that runs its model once: inputs from the host, outputs and measures to the host."""

from __future__ import annotations

from mlfc.archive.templates.subject import described_subject, given_pools
from mlfc.codegen.c_interface import field_names
from mlfc.micro.render import render
from mlfc.support.module_info import ModuleInterface

INPUTS, OUTPUTS, REPORT, ERROR = "inputs.bin", "outputs.bin", "report.txt", "error.bin"


def standalone_main(name: str, details: ModuleInterface) -> str:
    """Return the C file that feeds the model, runs it, and reports."""
    subject, num_inputs = described_subject(name, details), len(details.inputs)
    pools, mapped = given_pools(subject), subject.maps_tensors
    # the fields' names as the header has them: made of all tensors' names together
    fields = field_names(details)
    # in the workspace, tensors are found by the structs of pointers
    buffers = [f"tensor_{field}" for field in fields]
    if mapped:
        buffers = [f"{'inputs' if index < num_inputs else 'outputs'}.{field}" for index, field in enumerate(fields)]
    tensors = [
        (buffer, f"TVMGEN_{name.upper()}_{field.upper()}_SIZE") for buffer, field in zip(buffers, fields, strict=True)
    ]
    arguments = [*([] if mapped else ["&inputs", "&outputs"]), *(["&pools"] if pools else [])]
    return render(
        "application/main_board.c",
        name=name,
        inputs=tensors[:num_inputs],
        outputs=tensors[num_inputs:],
        pools=pools,
        mapped=mapped,
        call=", ".join(arguments),
        reset=subject.reset_call("&pools") if subject.keeps_state else None,
        paths=(INPUTS, OUTPUTS, REPORT),
    ).decode()
