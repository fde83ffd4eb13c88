"""Dynamic dimensions in generated C: readable names, and each one computed once."""

from __future__ import annotations

import re

import pytest

import mlfc
from mlfc.support.c_names import KEYWORDS
from mlfc.support.dim_walk import MOST_CHARS, name_of
from mlfc.support.dims import Symbol, maximum, minimum
from tests.open_models import convolutions

N, M = Symbol("n").dim, Symbol("m").dim


@pytest.mark.parametrize(
    ("extent", "name"),
    [
        (N, "n"),
        (N // 2 + 1, "n_div_2_plus_1"),
        ((N + 1) // 2, "n_plus_1_div_2"),
        (2 * N + 1, "n_times_2_plus_1"),
        (N - 3, "n_minus_3"),
        (N * M % 8, "m_times_n_mod_8"),
        (minimum(N, 7), "min_of_7_and_n"),
        (maximum(M, N), "max_of_m_and_n"),
        (4096 // (N * 2), "extent_4096_div_n_times_2"),
        (Symbol("batch size").dim + 1, "batch_size_plus_1"),
        (Symbol("int").dim, "int_"),
    ],
)
def test_names_say_what_an_extent_is(extent: object, name: str) -> None:
    assert name_of(extent) == name
    assert name.isidentifier()
    assert name not in KEYWORDS


def functions(target: str) -> dict[str, str]:
    """Return the C functions of two convolutions with dynamic sides, by name."""
    shapes = {"x": (1, 3, mlfc.Dim("h", 8, 32), mlfc.Dim("w", 8, 32))}
    module, params = mlfc.import_model(convolutions(), shapes=shapes)
    factory = mlfc.build(module, target, params, module_name="net")
    text = bytes(factory.code.files["src/net_lib1.c"]).decode()
    found = re.findall(r"^int32_t (tvmgen_net_\w+)\([^;]*?\) \{\n(.*?)^\}$", text, re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.mark.parametrize("target", ["c", "c -mcpu=cortex-m4"])
def test_code_names_what_it_computes_of_extents_and_computes_it_once(target: str) -> None:
    found = functions(target)
    body = found["tvmgen_net_fused_nn_conv2d"]
    assert body.count("(w + 1) / 2") == body.count("(h + 1) / 2") == 1
    assert "const int32_t w_plus_1_div_2 = (w + 1) / 2;" in body
    main = found["tvmgen_net_vm_run"]
    assert main.count("(h + 1) / 2") == 1
    assert re.search(r"h = inputs\[0\]\.extents\[2\];", main)
    names = [name for text in found.values() for name in re.findall(r"int(?:32|64)_t (\w+) =", text)]
    assert not [name for name in names if re.fullmatch(r"(size|e|d)_?\d+", name)]
    assert max(map(len, names)) <= MOST_CHARS + len("extent_")


def test_symbols_with_the_names_of_the_main_functions_own_variables_are_told_apart() -> None:
    shapes = {"x": (1, 3, mlfc.Dim("numbers", 8, 32), mlfc.Dim("arena", 8, 32))}
    module, params = mlfc.import_model(convolutions(), shapes=shapes)
    text = bytes(mlfc.build(module, "c", params, module_name="net").code.files["src/net_lib1.c"]).decode()
    assert "numbers_1 = inputs[0].extents[2];" in text
    assert "arena_1 = inputs[0].extents[3];" in text
