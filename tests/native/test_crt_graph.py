"""The C graph executor: graphs as the format is specified, forms that microTVM rejects, and invalid graphs."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native.crt_executor import Crt, CrtError, Node, graph_of, null, op, view

GRAPH_INVALID, LIMIT, MISMATCH, NO_FUNCTION, NO_INPUT, BAD_ARGUMENT = 0xA00, 0xA03, 0xA02, 0x100, 0x702, 0x803
X = np.array([[1.5, -2.0, 3.25, 0.0]], np.float32)
B = np.array([10.0, 20.0, 30.0, 40.0], np.float32)


@pytest.fixture(scope="module")
def crt(tmp_path_factory: pytest.TempPathFactory) -> Crt:
    return Crt(tmp_path_factory.mktemp("executor"))


def example() -> Node:
    """Return y = x + p0, the example of the format specification with our operator."""
    return graph_of([null("x"), null("p0"), op("add", [[0, 0, 0], [1, 0, 0]])], [[1, 4], [4], [1, 4]], [[2, 0, 0]])


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(example(), indent=2).replace(",\n", ", \n"),
        json.dumps(example(), separators=(",", ":")),
        json.dumps(dict(reversed(example().items()))),
        json.dumps(example()).replace("[2, 0, 0]", "[2, 0]") + "\r\n\t ",
    ],
    ids=["as TVM writes it", "compact", "keys in other order", "without versions"],
)
def test_every_form_of_text_runs(crt: Crt, text: str) -> None:
    with crt.create(text) as executor:
        assert executor.counts() == (2, 1)
        assert (executor.index("x"), executor.index("p0"), executor.index("y")) == (0, 1, -1)
        executor.set("x", X)
        executor.set("p0", B)
        for _ in range(2):
            executor.run()
            np.testing.assert_array_equal(executor.output(), X + B)


def test_unset_inputs_are_zero_and_own_tensors_can_be_filled(crt: Crt) -> None:
    with crt.create(example()) as executor:
        executor.run()
        np.testing.assert_array_equal(executor.output(), np.zeros_like(X))
        view(executor.input(0))[:] = X
        executor.run()
        np.testing.assert_array_equal(executor.output(), X)
        with pytest.raises(CrtError, match="2 inputs and parameters") as caught:
            executor.input(2)
        assert caught.value.code == NO_INPUT


def test_inputs_are_read_where_they_stand(crt: Crt) -> None:
    x = X.copy()
    with crt.create(example()) as executor:
        executor.set("x", x)
        assert executor.input(0).data == x.ctypes.data
        executor.run()
        x[:] = 7
        executor.run()
        np.testing.assert_array_equal(executor.output(), np.full_like(X, 7))


def test_inputs_that_the_graph_writes_over_are_copied(crt: Crt) -> None:
    x = B.copy()
    graph = graph_of([null("x"), op("add", [[0, 0], [0, 0]])], [[4], [4]], [[1, 0]], storage=[0, 0])
    with crt.create(graph) as executor:
        executor.set("x", x)
        executor.run()
        np.testing.assert_array_equal(executor.output(), 2 * B)
        np.testing.assert_array_equal(x, B)


def test_parameter_first_scalars_views_and_copies(crt: Crt) -> None:
    nodes = [
        null("p0"),
        null("x"),
        op("add", [[1, 0, 0], [0, 0, 0]]),
        {**op("__nop", [[2, 0, 0]]), "name": "reshape_nop"},
        op("__copy", [[3, 0, 0]]),
        op("summarize", [[4, 0, 0]], outputs=2),
        op("add", [[5, 1, 0], [0, 0, 0]]),
    ]
    shapes: list[list[int]] = [[], [2, 3], [2, 3], [3, 2], [3, 2], [], [], []]
    heads = [[4, 0, 0], [5, 0, 0], [6, 0, 0], [3, 0, 0]]
    with crt.create(graph_of(nodes, shapes, heads, storage=[0, 1, 2, 2, 3, 4, 5, 6])) as executor:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        executor.set("p0", np.array(0.5, np.float32))
        executor.set("x", x)
        executor.run()
        expected = (x + np.float32(0.5)).reshape(3, 2)
        np.testing.assert_array_equal(executor.output(0), expected)
        np.testing.assert_array_equal(executor.output(3), expected)
        assert executor.output(1) == expected.sum()
        assert executor.output(2) == np.float32(6.5)
        assert executor.output(1).shape == ()


@pytest.mark.parametrize(("flatten", "expected"), [(0, [2.0, 2.0]), (1, [1.0, 6.0])])
def test_flattened_arguments_have_one_dimension(crt: Crt, flatten: int, expected: list[float]) -> None:
    nodes = [null("x"), op("describe", [[0, 0, 0]], flatten=flatten), op("describe", [[0, 0, 0]])]
    with crt.create(graph_of(nodes, [[2, 3], [2], [2]], [[1, 0, 0], [2, 0, 0]])) as executor:
        executor.run()
        np.testing.assert_array_equal(executor.output(0), np.float32(expected))
        np.testing.assert_array_equal(executor.output(1), np.float32([2, 2]))


def test_storage_is_shared_by_id(crt: Crt) -> None:
    nodes = [null("x"), op("add", [[0, 0], [0, 0]]), op("add", [[1, 0], [0, 0]]), op("add", [[2, 0], [1, 0]])]
    with crt.create(graph_of(nodes, [[4]] * 4, [[3, 0, 0]], storage=[0, 1, 2, 1])) as executor:
        executor.set("x", B)
        executor.run()
        np.testing.assert_array_equal(executor.output(), 5 * B)


def test_own_tensor_of_an_input_can_be_set_as_that_input(crt: Crt) -> None:
    nodes = [null("x"), op("add", [[0, 0], [0, 0]])]
    with crt.create(graph_of(nodes, [[4], [4]], [[1, 0, 0]])) as executor:
        own = view(executor.input(0))
        own[...] = B
        for _ in range(2):
            executor.set("x", own)
            executor.run()
            np.testing.assert_array_equal(executor.output(), 2 * B)
        assert view(executor.input(0)).ctypes.data == own.ctypes.data


def test_keys_that_it_does_not_know_are_skipped(crt: Crt) -> None:
    graph = example()
    graph["attrs"]["storage_scope"] = ["list_str", ["global", "", "global"]]
    graph["attrs"]["mlfc_offsets"] = ["list_int", [0, 64, 128]]
    graph["nodes"][2] |= {"control_deps": [0], "note": {"deep": [[[{"er": [None, True, -1.5e-3, '\n"\\/']}]]]}}
    graph["nodes"][2]["attrs"] |= {"hash": "00ff", "out_layout": "NHWC"}
    graph["a_key_of_more_than_twenty_four_characters"] = {}
    with crt.create(graph) as executor:
        executor.set("x", X)
        executor.run()
        np.testing.assert_array_equal(executor.output(), X)


def test_graph_of_tvm_names_the_function_that_is_missing(crt: Crt, shared: Path) -> None:
    text = (shared / "fixtures/tvm-0.14/conv_graph.json").read_bytes()
    with pytest.raises(CrtError, match="does not have: tvmgen_default_fused_layout_transform") as caught:
        crt.create(text)
    assert caught.value.code == NO_FUNCTION


def test_operator_that_fails_ends_the_run(crt: Crt) -> None:
    nodes = [null("x"), op("add", [[0, 0], [0, 0]]), op("fail", [[1, 0]])]
    with crt.create(graph_of(nodes, [[4]] * 3, [[2, 0, 0]])) as executor:
        with pytest.raises(CrtError, match="operator 1 of the graph failed") as caught:
            executor.run()
        assert caught.value.code == -3


def test_nothings_are_refused(crt: Crt) -> None:
    library = crt.library
    with crt.create(example()) as executor:
        handle, nothing = executor.handle, None
        for status in (
            library.TVMGraphExecutor_SetInput(nothing, b"x", nothing),
            library.TVMGraphExecutor_SetInput(handle, nothing, nothing),
            library.TVMGraphExecutor_SetInput(handle, b"x", nothing),
            library.TVMGraphExecutor_GetInput(handle, 0, nothing),
            library.TVMGraphExecutor_GetOutput(nothing, 0, nothing),
            library.TVMGraphExecutor_GetOutput(handle, 0, nothing),
            library.TVMGraphExecutor_LoadParams(nothing, b"", 0),
            library.TVMGraphExecutor_LoadParams(handle, nothing, 8),
            library.TVMGraphExecutor_Run(nothing),
            library.TVMGraphExecutor_Create(nothing, nothing, nothing, nothing),
        ):
            assert status == BAD_ARGUMENT
        assert b"NULL" in library.TVMGetLastError()
        assert library.TVMGraphExecutor_Release(nothing) == 0


def test_error_texts_belong_to_their_threads(crt: Crt) -> None:
    def refused(name: str) -> str:
        graph = example()
        graph["nodes"][2]["attrs"]["func_name"] = name
        with pytest.raises(CrtError) as caught:
            crt.create(graph)
        together.wait(30)
        return crt.library.TVMGetLastError().decode() + str(caught.value)

    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        for name, text in zip("ab", pool.map(refused, "ab"), strict=True):
            assert text.count(f"does not have: {name}") == 2


@pytest.mark.parametrize(
    ("name", "array", "strides", "message"),
    [
        ("y", X, None, "no input y"),
        ("x", X.astype(np.float64), None, "64 bits"),
        ("x", X[:, :3], None, "another size"),
        ("x", X, (4, 2), "strides"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    crt: Crt, name: str, array: np.ndarray[Any, Any], strides: tuple[int, int] | None, message: str
) -> None:
    with crt.create(example()) as executor:
        with pytest.raises(CrtError, match=message):
            executor.set(name, array, strides)
        with pytest.raises(CrtError, match="1 outputs"):
            executor.output(1)


def broken(change: Callable[[Node], object]) -> str:
    """Return the example's text after a change."""
    graph = copy.deepcopy(example())
    change(graph)
    return json.dumps(graph)


def put(graph: Node, value: object, *path: str | int) -> None:
    """Set the value at a path."""
    at: Any = graph
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value


BROKEN: dict[str, tuple[str, int, str]] = {
    "empty": ("", GRAPH_INVALID, "byte 0: {"),
    "cut": (json.dumps(example())[:-20], GRAPH_INVALID, "expected"),
    "trailing": (json.dumps(example()) + "]", GRAPH_INVALID, "end of the text"),
    "list": ("[]", GRAPH_INVALID, "{ is expected"),
    "no nodes": ("{}", GRAPH_INVALID, "no nodes"),
    "cycle": (broken(lambda g: put(g, 2, "nodes", 2, "inputs", 0, 0)), GRAPH_INVALID, "earlier node"),
    "input of the future": (broken(lambda g: put(g, 9, "nodes", 2, "inputs", 0, 0)), GRAPH_INVALID, "earlier node"),
    "output index": (broken(lambda g: put(g, 1, "nodes", 2, "inputs", 0, 1)), GRAPH_INVALID, "earlier node"),
    "negative id": (broken(lambda g: put(g, -1, "nodes", 2, "inputs", 0, 0)), GRAPH_INVALID, "not negative"),
    "float id": (broken(lambda g: put(g, 0.5, "nodes", 2, "inputs", 0, 0)), GRAPH_INVALID, "an integer"),
    "huge id": (broken(lambda g: put(g, 2**40, "heads", 0, 0)), GRAPH_INVALID, "too large"),
    "head": (broken(lambda g: put(g, 3, "heads", 0, 0)), GRAPH_INVALID, "head"),
    "no heads": (broken(lambda g: put(g, [], "heads")), GRAPH_INVALID, "no heads"),
    "entry of one number": (broken(lambda g: put(g, [2], "heads", 0)), GRAPH_INVALID, "not 1 numbers"),
    "arg node": (broken(lambda g: put(g, [0, 2], "arg_nodes")), GRAPH_INVALID, "arg_nodes"),
    "arg node twice": (broken(lambda g: put(g, [0, 0], "arg_nodes")), GRAPH_INVALID, "arg_nodes"),
    "row pointers": (broken(lambda g: put(g, [0, 1, 3, 3], "node_row_ptr")), GRAPH_INVALID, "node_row_ptr"),
    "fewer row pointers": (broken(lambda g: put(g, [0, 1, 2], "node_row_ptr")), GRAPH_INVALID, "node_row_ptr"),
    "fewer shapes": (broken(lambda g: g["attrs"]["shape"][1].pop()), GRAPH_INVALID, "for each entry"),
    "no dtypes": (broken(lambda g: g["attrs"].pop("dltype")), GRAPH_INVALID, "for each entry"),
    "storage id": (broken(lambda g: put(g, 3, "attrs", "storage_id", 1, 0)), GRAPH_INVALID, "storage id"),
    "device": (broken(lambda g: put(g, 2, "attrs", "device_index", 1, 0)), GRAPH_INVALID, "no device but"),
    "dtype": (broken(lambda g: put(g, "floot", "attrs", "dltype", 1, 0)), GRAPH_INVALID, '"floot"'),
    "bits": (broken(lambda g: put(g, "int999", "attrs", "dltype", 1, 0)), GRAPH_INVALID, '"int999"'),
    "long dtype": (broken(lambda g: put(g, "f" * 99, "attrs", "dltype", 1, 0)), LIMIT, "STRLEN_DLTYPE"),
    "dimensions": (broken(lambda g: put(g, [1] * 17, "attrs", "shape", 1, 0)), LIMIT, "MAX_NDIM"),
    "shape overflow": (broken(lambda g: put(g, [2**40] * 2, "attrs", "shape", 1, 0)), GRAPH_INVALID, "more bytes"),
    "attr without list": (broken(lambda g: put(g, ["list_int"], "attrs", "shape")), GRAPH_INVALID, "a tag and a list"),
    "operation": (broken(lambda g: put(g, "tvm_opp", "nodes", 2, "op")), GRAPH_INVALID, "the op null or tvm_op"),
    "no name": (broken(lambda g: g["nodes"][0].pop("name")), GRAPH_INVALID, "needs a name"),
    "inputs of a null": (broken(lambda g: put(g, [[0, 0, 0]], "nodes", 1, "inputs")), GRAPH_INVALID, "null has inputs"),
    "no func_name": (broken(lambda g: g["nodes"][2]["attrs"].pop("func_name")), GRAPH_INVALID, "needs func_name"),
    "input count": (broken(lambda g: put(g, "3", "nodes", 2, "attrs", "num_inputs")), GRAPH_INVALID, "num_inputs"),
    "count of words": (broken(lambda g: put(g, "two", "nodes", 2, "attrs", "num_inputs")), GRAPH_INVALID, '"two"'),
    "no truth value": (broken(lambda g: put(g, "5", "nodes", 2, "attrs", "flatten_data")), GRAPH_INVALID, '"5"'),
    "many outputs": (
        broken(lambda g: put(g, "4000000000", "nodes", 2, "attrs", "num_outputs")), LIMIT, "TVM_CRT_MAX_ARGS",
    ),
    "many arguments": (
        json.dumps(graph_of([null("x"), op("add", [[0, 0]] * 256)], [[4], [4]], [[1, 0]])), LIMIT, "TVM_CRT_MAX_ARGS",
    ),
    "no such function": (broken(lambda g: put(g, "sub", "nodes", 2, "attrs", "func_name")), NO_FUNCTION, "have: sub"),
    "long function": (broken(lambda g: put(g, "f" * 2000, "nodes", 2, "attrs", "func_name")), LIMIT, "FUNCTION_NAME"),
    "long input": (broken(lambda g: put(g, "x" * 2000, "nodes", 0, "name")), LIMIT, "FUNCTION_NAME"),
    "nop in other storage": (
        json.dumps(graph_of([null("x"), op("__nop", [[0, 0]])], [[4], [4]], [[1, 0]])), GRAPH_INVALID, "__nop",
    ),
    "copy of another size": (
        json.dumps(graph_of([null("x"), op("__copy", [[0, 0]])], [[4], [5]], [[1, 0]])), GRAPH_INVALID, "__copy",
    ),
    "deep": ('{"key": ' + "[" * 99, GRAPH_INVALID, "nested too deep"),
    "unicode escape": (broken(lambda g: put(g, "\u00e4", "nodes", 0, "name")), GRAPH_INVALID, "escapes"),
    "line in a string": (broken(lambda g: g).replace('"x"', '"x\n"'), GRAPH_INVALID, "end of a string"),
    "nodes twice": ('{"nodes": [' + json.dumps(null("x")) + '], "nodes": []}', GRAPH_INVALID, "twice"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_graph_is_refused_with_a_reason(crt: Crt, fault: str) -> None:
    text, code, message = BROKEN[fault]
    with pytest.raises(CrtError) as caught:
        crt.create(text)
    assert message in str(caught.value)
    assert caught.value.code == code


def test_every_cut_of_the_text_is_refused(crt: Crt) -> None:
    text = json.dumps(example())
    for length in range(len(text)):
        with pytest.raises(CrtError):
            crt.create(text[:length])
