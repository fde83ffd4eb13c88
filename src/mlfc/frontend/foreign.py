"""Recognizing files of frameworks that are no models for mlfc, so that messages say what to do with them.

None of these files is opened: PyTorch's and Keras's readers can run code that a file contains.
"""

from __future__ import annotations

from mlfc.errors import ModelError

_ZIP, _PICKLE, _HDF5 = b"PK\x03\x04", b"\x80", b"\x89HDF\r\n\x1a\n"
_ORT = b"ORTM"  # the identifier of its flatbuffers
_PICKLE_PROTOCOLS = range(2, 6)
_SAFETENSORS_HEAD = 8
# where the names of a zip file's members are: the first is at the start, all are at the end
_HEAD, _TAIL = 4096, 1 << 20

_MODULE = "In Python, pass the module itself: mlfc.compile(module, example_inputs=(x,))"
_LOAD_WEIGHTS = f"Load them into their module, module.load_state_dict(weights). {_MODULE}"
_KERAS = "Export it from Keras: model.export('model.onnx', format='onnx')"
_MEMBERS = (
    (
        (b"/archive_format", b"/models/"),
        "a program that torch.export saved, which is not opened: reading one can run code that it contains",
        "If you trust it, load it in Python: mlfc.compile(torch.export.load('model.pt2'))",
    ),
    (
        (b"/code/__torch__",),
        "a TorchScript module, which torch.export does not take",
        f"Use the module that it was made from. {_MODULE}",
    ),
    ((b"/data.pkl",), "a file of torch.save: weights or pickled objects, without a graph", _LOAD_WEIGHTS),
    ((b"model.weights.h5",), "a Keras model", _KERAS),
)


def check_foreign(data: bytes, name: str) -> None:
    """Raise ModelError for the content of a file that a framework wrote for itself."""
    found = _recognized(data)
    if found is not None:
        what, step = found
        raise ModelError(f"expected a TFLite, ONNX or Relay text model, got {what}", place=name, next_step=step)


def _recognized(data: bytes) -> tuple[str, str] | None:
    if data.startswith(_ZIP):
        names = data[:_HEAD] + data[-_TAIL:]
        for marks, what, step in _MEMBERS:
            if all(mark in names for mark in marks):
                return what, step
        return "a zip file", "Unpack it, and use the model that it contains"
    if data.startswith(_PICKLE) and data[1:2] and data[1] in _PICKLE_PROTOCOLS:
        return "a Python pickle, which is not opened: reading one can run code that it contains", _LOAD_WEIGHTS
    if data.startswith(_HDF5):
        return "an HDF5 file, such as Keras writes", _KERAS
    if data[4:8] == _ORT:
        return "a model in ONNX Runtime's own format", "Use the ONNX model that it was converted from"
    length = int.from_bytes(data[:_SAFETENSORS_HEAD], "little")
    if data[_SAFETENSORS_HEAD : _SAFETENSORS_HEAD + 2] == b'{"' and length <= len(data) - _SAFETENSORS_HEAD:
        return "a safetensors file: weights without a graph", _LOAD_WEIGHTS
    return None
