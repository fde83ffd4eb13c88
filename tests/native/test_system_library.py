"""Models that are linked into the process itself."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.runtime import register_system_symbol, system_library
from tests.conftest import need
from tests.native.extracted import imported

pytestmark = pytest.mark.usefixtures("quick_builds")

KINDS = {"aot": "AotExecutorFactory", "graph": "GraphExecutorFactory"}
PROGRAM = """
import ctypes, sys
import numpy
import mlfc

library = ctypes.CDLL(sys.argv[1], {mode})
{register}
root = mlfc.runtime.system_library({prefix!r})
print(root.type_key)
executor = root["default"](mlfc.cpu(0))
executor.set_input(0, numpy.full((1, 1), 7, numpy.int8))
executor.run()
print(int(executor.get_output(0)[0, 0]))
"""
REGISTER = """
for name in {names}:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    mlfc.runtime.register_system_symbol({prefix!r} + name, address)
"""


@pytest.fixture(scope="module", params=["aot", "graph"])
def factory(request: pytest.FixtureRequest, models: Path) -> Factory:
    return imported(models / "hello_world_int8.tflite", "hello", executor=request.param)


def said(program: str, library: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program, library], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def expected(factory: Factory) -> list[str]:
    (output,) = factory.runtime.run(np.full((1, 1), 7, np.int8)).values()
    return [KINDS[factory.executor], str(int(output[0, 0]))]


def test_what_a_program_shows_to_all_is_found(factory: Factory, tmp_path: Path) -> None:
    static = factory.export_library(tmp_path / "hello.a")
    embedding = tmp_path / "embedding.so"
    whole = ["-Wl,--whole-archive", str(static), "-Wl,--no-whole-archive"]
    subprocess.run([need("gcc", "gcc"), "-shared", "-Wl,-Bsymbolic", *whole, "-lm", "-o", str(embedding)], check=True)
    program = PROGRAM.format(mode="ctypes.RTLD_GLOBAL", register="", prefix="")
    assert said(program, embedding) == expected(factory)


def test_what_an_extension_registers_is_found_under_its_prefix(models: Path, tmp_path: Path) -> None:
    graph = imported(models / "hello_world_int8.tflite", "hello", executor="graph")
    names = ["__tvm_dev_mblob", "mlfc_description", *graph.code.function_names.values()]
    register = REGISTER.format(names=names, prefix="my_")
    program = PROGRAM.format(mode="ctypes.RTLD_LOCAL", register=register, prefix="my_")
    assert said(program, graph.export_library(tmp_path / "hello.so")) == expected(graph)


def test_a_process_without_models_has_functions_alone() -> None:
    root = system_library("no_such_prefix_")
    assert (root.type_key, root.imported_modules) == ("system_lib", ())
    assert not root.implements_function("no_such_function")


def test_a_name_stands_for_one_thing() -> None:
    memory = ctypes.create_string_buffer(16)
    register_system_symbol("test_of_one_thing", ctypes.addressof(memory))
    register_system_symbol("test_of_one_thing", ctypes.addressof(memory))
    with pytest.raises(OptionError, match="test_of_one_thing"):
        register_system_symbol("test_of_one_thing", ctypes.addressof(memory) + 8)
    with pytest.raises(OptionError):
        register_system_symbol("", 1)
