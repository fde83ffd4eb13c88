"""Executables of TVM's Relax virtual machine, loaded by mlfc and run by TVM, which a stand-in replaces."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import ArchiveError, InputError, MlfcError, OptionError, RunError
from mlfc.library.export import export_library
from mlfc.runtime.executors.relax_module import RelaxModule
from mlfc.runtime.modules.tvm_kinds import SourceModule
from mlfc.support.stream import encode_string
from mlfc.support.tensor_info import Array, TensorInfo
from tests.shared_library import compile_shared

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

ADVICE = r"Run: pip install apache-tvm; or run it where TVM is installed: relax\.VirtualMachine\("
PRELOADED = "TVMBackendAnyListOfTests"
TVM = '''
"""Stand-in for TVM: ``main`` returns its arguments' sum and a tuple of their difference, ``one`` its argument."""
import ctypes
from types import SimpleNamespace

ctypes.CDLL(RUNTIME, ctypes.RTLD_GLOBAL)
loaded = []


class Tensor:
    def __init__(self, array):
        self.numpy = array.copy


class VirtualMachine:
    def __init__(self, library, device):
        self.module = SimpleNamespace(implements_function=["main", "one"].__contains__)
        self.inputs, self.outputs = {}, {}
        loaded.append((library, device))

    def set_input(self, name, *arrays):
        self.inputs[name] = arrays

    def invoke_stateful(self, name):
        if name == "one":
            (self.outputs[name],) = map(Tensor, self.inputs[name])
        else:
            x, y = self.inputs[name]
            self.outputs[name] = Tensor(x + y), (Tensor(x - y),)

    def get_outputs(self, name):
        return self.outputs[name]


def load_module(path):
    with open(path, "rb"):
        return path


cpu = "cpu".strip
runtime = SimpleNamespace(load_module=load_module)
'''


def stored(*parameters: str) -> bytes:
    """Return data with the texts of an executable about the parameters of ``main``."""
    texts = [
        f"ErrorContext(fn=main, loc=param[{index}], param={text}) ".encode() for index, text in enumerate(parameters)
    ]
    return b"".join(map(encode_string, [b"0.14", *texts]))


TWO = stored(
    'x, annotation=R.Tensor((n, T.int64(3)), dtype="float32")', 'y, annotation=R.Tensor((n, 3), dtype="float32")'
)


def written(path: Path, data: bytes = TWO, code: str = "int unused;\n") -> Path:
    root = RelaxModule(data)
    root.import_module(SourceModule(code))
    return export_library(root, path)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("relax") / "executable.so")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package of the stand-in."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "tvm").mkdir()
    runtime = compile_shared({"runtime.c": f"int {PRELOADED}(void) {{ return 5; }}\n".encode()}, folder / "runtime.so")
    (folder / "tvm/__init__.py").write_text(TVM.replace("RUNTIME", repr(str(runtime))))
    (folder / "tvm/relax.py").write_text("from tvm import VirtualMachine\n")
    return folder


@pytest.fixture
def tvm(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the stand-in."""
    monkeypatch.syspath_prepend(package)
    for name in ("tvm", "tvm.relax"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]


@pytest.fixture
def no_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make TVM unavailable."""
    monkeypatch.setitem(sys.modules, "tvm.relax", None)


def two() -> tuple[Array, Array]:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    return x, np.full_like(x, 2)


@pytest.mark.usefixtures("tvm")
def test_tvm_runs_executables(library: Path) -> None:
    module, (x, y) = mlfc.load_module(library), two()
    assert module.inputs == tuple(TensorInfo(name, ("n", 3), "float32") for name in "xy")
    assert (module.outputs, module.model.extents["n"][0]) == ((), 0)
    for found in (module.run(x, y), module.run({"y": y, "x": x}), mlfc.load(library).run(x, y)):
        assert list(found) == ["output0", "output1"]
        np.testing.assert_array_equal(found["output0"], x + y)
        np.testing.assert_array_equal(found["output1"], x - y)
    assert module.outputs == tuple(TensorInfo(name, (2, 3), "float32") for name in ("output0", "output1"))
    assert [str(item) for item in sys.modules["tvm"].loaded] == [f"('{library}', 'cpu')"] * 2


@pytest.mark.usefixtures("tvm")
def test_functions_of_executables_take_and_return_arrays(library: Path) -> None:
    module, (x, y) = mlfc.load_module(library), two()
    total, difference = module["main"](x, y)
    np.testing.assert_array_equal(total, x + y)
    np.testing.assert_array_equal(difference, x - y)
    np.testing.assert_array_equal(module["one"](y), [y])
    with pytest.raises(OptionError, match="unknown function 'two'"):
        module["two"]
    with pytest.raises(RunError, match=r"main: TVM failed: not enough values to unpack \(expected 2, got 1\)"):
        module["main"](x)


@pytest.mark.usefixtures("tvm")
def test_bound_executables_write_to_given_outputs(library: Path) -> None:
    model, (x, y) = mlfc.load(library), two()
    call = model.bind([x, y])
    x += 1
    assert call() == 0
    np.testing.assert_array_equal(call.outputs["output0"], x + y)
    outputs = [np.zeros_like(x), np.zeros_like(x)]
    assert model.bind({"x": x, "y": y}, outputs)() == 0
    np.testing.assert_array_equal(outputs, [x + y, x - y])
    with pytest.raises(InputError, match=r"output1: .*dtype is float64, not float32"):
        model.bind([x, y], [outputs[0], outputs[1].astype(np.float64)])()


WRONG: dict[str, tuple[Sequence[Any], str]] = {
    "count": ([], r"the model has 2 inputs, not 0\. It has: x: float32\[n, 3\]"),
    "columns": ([two()[0][:, :2], two()[1]], r"x: .*its shape is \(2, 2\), not \('n', 3\)"),
    "dtype": ([two()[0], np.ones((2, 3))], "y: .*its dtype is float64, not float32"),
}


@pytest.mark.usefixtures("no_tvm")
@pytest.mark.parametrize("wrong", WRONG)
def test_inputs_are_checked_without_tvm(library: Path, wrong: str) -> None:
    inputs, message = WRONG[wrong]
    with pytest.raises(InputError, match=message):
        mlfc.load(library).run(*inputs)


@pytest.mark.usefixtures("no_tvm")
def test_executables_name_the_package_that_runs_them(library: Path) -> None:
    module = mlfc.load_module(library)
    for run in (lambda: module["main"], lambda: module.run(*two())):
        with pytest.raises(ArchiveError, match=f"executable of TVM's Relax virtual machine, and TVM .*{ADVICE}"):
            run()
    assert module.save_to_bytes() == TWO
    assert mlfc.load_module(module.export_library(library.with_name("copy.so"))).save_to_bytes() == TWO


@pytest.mark.usefixtures("tvm")
def test_executables_in_memory_are_to_be_in_files(library: Path) -> None:
    with pytest.raises(MlfcError, match=r"TVM does not load the library: .*Load it from a file"):
        mlfc.load_module(library.read_bytes()).run(*two())


def compiled(path: Path, function: str) -> Path:
    """Return a library whose code calls a function of TVM's runtime."""
    return written(path, code=f"int {function}(void);\nint five(void) {{ return {function}(); }}\n")


@pytest.mark.usefixtures("no_tvm")
def test_compiled_executables_name_the_package_that_they_call(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=f"compiled.so: the library contains an executable of .*{ADVICE}"):
        mlfc.load_module(compiled(tmp_path / "compiled.so", "TVMBackendAnyListOfNobody"))


@pytest.mark.usefixtures("tvm")
def test_compiled_executables_call_the_runtime_of_tvm(tmp_path: Path) -> None:
    path = compiled(tmp_path / "compiled.so", PRELOADED)
    module = mlfc.load_module(path)
    assert ctypes.CDLL(str(path)).five() == 5
    assert list(module.run(*two())) == ["output0", "output1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('R.Tensor((), dtype="int64")', TensorInfo("p", (), "int64")),
        ('R.Tensor((T.int64(4),), dtype="bool")', TensorInfo("p", (4,), "bool")),
        ('R.Tensor((n, n + 1, T.max(n, 2) * T.int64(2)), dtype="int8")',
         TensorInfo("p", ("n", "n + 1", "T.max(n, 2) * 2"), "int8")),
        ('R.Tensor(dtype="float32", ndim=2)', TensorInfo("p", ("?", "?"), "float32")),
    ],
)  # fmt: skip
def test_parameters_are_described_by_the_executable(text: str, expected: TensorInfo) -> None:
    assert RelaxModule(stored(f"p, annotation={text}")).inputs == (expected,)


@pytest.mark.parametrize("text", ['T.Tuple(R.Tensor((2,), dtype="int8"))', 'R.Tensor((2,), dtype="")', "R.Shape([n])"])
def test_other_parameters_than_tensors_are_refused(text: str) -> None:
    with pytest.raises(ArchiveError, match=r"expected tensors as parameters of main, got ErrorContext.*\['main'\]"):
        _ = RelaxModule(stored(f"p, annotation={text}")).inputs


IN_TVM = """
import sys
import mlfc, numpy, tvm
from tvm import relax
from tvm.script import relax as R
n = tvm.tirx.Var("n", "int64")
x, y = (relax.Var(name, R.Tensor((n, 3), "float32")) for name in "xy")
builder = relax.BlockBuilder()
with builder.function("main", [x, y]):
    with builder.dataflow():
        results = builder.emit_output((builder.emit(relax.op.add(x, y)), builder.emit(relax.op.subtract(x, y))))
    builder.emit_func_output(results)
arrays = numpy.arange(6, dtype="float32").reshape(2, 3), numpy.ones((2, 3), "float32")
for mode in ("bytecode", "compiled"):
    path = f"{sys.argv[1]}/{mode}.so"
    relax.build(builder.get(), "llvm", exec_mode=mode).export_library(path)
    model = mlfc.load_module(path)
    found = model.run(*arrays)
    numpy.testing.assert_array_equal(found["output0"], arrays[0] + arrays[1])
    numpy.testing.assert_array_equal(found["output1"], arrays[0] - arrays[1])
    print(mode, *model.inputs)
"""


@pytest.mark.skipif(find_spec("tvm") is None, reason='pip install "apache-tvm>=0.27,<0.28"')
def test_tvm_itself_runs_what_it_exported(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", IN_TVM, tmp_path], capture_output=True, text=True, check=False)
    inputs = "x: float32[n, 3] y: float32[n, 3]"
    assert result.stdout == f"bytecode {inputs}\ncompiled {inputs}\n", result.stderr
