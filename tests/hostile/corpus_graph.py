"""Faults of the graph executor's JSON."""

from __future__ import annotations

from typing import Any

from tests.hostile.corpus import add, encoded, packed, set_at
from tests.hostile.good_archives import GRAPH, graph_files


def _without(key: str) -> Any:
    return {name: value for name, value in GRAPH.items() if name != key}


_MANY = 7_800

BROKEN: dict[str, tuple[Any, str]] = {
    "graph_cycle": (set_at(GRAPH, "nodes/2/inputs/1", [4, 0, 0]), "nodes.*2.*4"),
    "graph_node_reads_itself": (set_at(GRAPH, "nodes/3/inputs/0", [3, 0, 0]), "nodes.*3"),
    "graph_input_beyond_the_nodes": (set_at(GRAPH, "nodes/3/inputs/0", [99, 0, 0]), "99"),
    "graph_input_of_node_2_to_the_32": (set_at(GRAPH, "nodes/3/inputs/0", [2**32, 0, 0]), "4.?294.?967.?296"),
    "graph_negative_input": (set_at(GRAPH, "nodes/3/inputs/0", [-1, 0, 0]), "-1"),
    "graph_output_index_beyond_the_node": (set_at(GRAPH, "nodes/3/inputs/0", [2, 7, 0]), "7"),
    "graph_input_that_is_no_list": (set_at(GRAPH, "nodes/3/inputs/0", "2"), "inputs"),
    "graph_head_beyond_the_nodes": (set_at(GRAPH, "heads/0", [5, 0, 0]), "head"),
    "graph_without_heads": (set_at(GRAPH, "heads", []), "0 outputs"),
    "graph_arg_node_beyond_the_nodes": (set_at(GRAPH, "arg_nodes", [0, 1, 99]), "arg_nodes"),
    "graph_arg_node_that_is_an_operator": (set_at(GRAPH, "arg_nodes", [0, 1, 2]), "arg_nodes"),
    "graph_arg_node_missing": (set_at(GRAPH, "arg_nodes", [0]), "arg_nodes"),
    "graph_row_ptr_falls": (set_at(GRAPH, "node_row_ptr", [0, 1, 2, 1, 4, 5]), "node_row_ptr"),
    "graph_row_ptr_too_short": (set_at(GRAPH, "node_row_ptr", [0, 1, 2]), "node_row_ptr"),
    "graph_row_ptr_starts_late": (set_at(GRAPH, "node_row_ptr", [1, 2, 3, 4, 5, 6]), "node_row_ptr"),
    "graph_row_ptr_huge": (set_at(GRAPH, "node_row_ptr/5", 2**62), "node_row_ptr"),
    "graph_entries_without_shape": (set_at(GRAPH, "attrs/shape/1", [[1, 4]]), "shape"),
    "graph_huge_shape": (set_at(GRAPH, "attrs/shape/1/2", [2**31 - 1] * 8), "shape"),
    "graph_huge_shape_behind_a_zero": (set_at(GRAPH, "attrs/shape/1/2", [0, 2**62]), "shape"),
    "graph_negative_shape": (set_at(GRAPH, "attrs/shape/1/2", [1, -4]), "shape"),
    "graph_shape_of_text": (set_at(GRAPH, "attrs/shape/1/2", ["1", "4"]), "shape"),
    "graph_unknown_dtype": (set_at(GRAPH, "attrs/dltype/1/2", "complex99"), "complex99"),
    "graph_wrong_tag": (set_at(GRAPH, "attrs/dltype/0", "list_int"), "dltype"),
    "graph_negative_storage": (set_at(GRAPH, "attrs/storage_id/1/2", -1), "storage"),
    "graph_huge_storage_id": (set_at(GRAPH, "attrs/storage_id/1/2", 2**40), "storage"),
    "graph_unknown_op": (set_at(GRAPH, "nodes/2/op", "os_system"), "os_system"),
    "graph_unknown_key": (set_at(GRAPH, "nodes/2/command", "x"), "command"),
    "graph_function_name_of_a_megabyte": (set_at(GRAPH, "nodes/2/attrs/func_name", "x" * 10**6), r"func_name.{,300}$"),
    "graph_without_function": (set_at(GRAPH, "nodes/2/attrs", {"num_inputs": "2"}), "func_name"),
    "graph_lying_number_of_inputs": (set_at(GRAPH, "nodes/2/attrs/num_inputs", "9"), "num_inputs|9"),
    "graph_huge_number_of_outputs": (set_at(GRAPH, "nodes/2/attrs/num_outputs", "9" * 30), "num_outputs|999"),
    "graph_name_twice": (set_at(GRAPH, "nodes/1/name", "x"), "two inputs have the name"),
    **{f"graph_without_{key}": (_without(key), key) for key in GRAPH if key != "heads"},
    "graph_without_the_key_heads": (_without("heads"), "heads"),
    "graph_that_is_a_list": ([GRAPH], "object"),
}

# valid JSON that would fail at execution, or that contradicts other files of the archive
WRONG: dict[str, tuple[Any, str]] = {
    "graph_storage_overlap": (set_at(GRAPH, "attrs/storage_id/1", [0, 1, 2, 2, 4]), "storage id 2"),
    "graph_storage_of_a_parameter_written": (set_at(GRAPH, "attrs/storage_id/1", [0, 1, 2, 1, 4]), "storage id 1"),
    "graph_storage_of_an_input_written": (set_at(GRAPH, "attrs/storage_id/1", [0, 1, 2, 3, 0]), "storage id 0"),
    "graph_storage_not_in_the_metadata": (set_at(GRAPH, "attrs/storage_id/1/4", 9), "storage.* 9"),
    "graph_function_not_in_the_code": (
        set_at(GRAPH, "nodes/3/attrs/func_name", "tvmgen_hand_only_declared"),
        "tvmgen_hand_only_declared",
    ),
    "graph_function_in_a_comment": (
        set_at(GRAPH, "nodes/3/attrs/func_name", "tvmgen_hand_only_in_a_comment"),
        "tvmgen_hand_only_in_a_comment",
    ),
    "graph_function_in_a_string": (
        set_at(GRAPH, "nodes/3/attrs/func_name", "tvmgen_hand_only_in_a_string"),
        "tvmgen_hand_only_in_a_string",
    ),
    "graph_input_of_another_name": (set_at(GRAPH, "nodes/0/name", "y"), "input"),
}


def _add(name: str, graph: Any, expected: str) -> None:
    add(name, expected, lambda: packed(graph_files(graph=encoded(graph))), refused=False)


for _name, (_graph, _expected) in {**BROKEN, **WRONG}.items():
    _add(_name, _graph, _expected)


def _add_text(name: str, text: bytes, expected: str) -> None:
    add(name, expected, lambda: packed(graph_files(graph=text)), refused=False)


_add_text("graph_empty_file", b"", "not JSON")
_add_text("graph_nested_deeply", b'{"nodes": ' + b"[" * 100_000, "deep")
_add_text("graph_with_huge_number", encoded(GRAPH).replace(b"[\n    0,", b"[\n    " + b"9" * 100_000 + b","), "graph")
_add_text("graph_not_utf8", b'{"nodes": "\xff"}', "not JSON")
_add_text("graph_with_a_key_twice", encoded(GRAPH)[:-1] + b', "nodes": []}', "twice")


def graph_with_many_nodes() -> bytes:
    """Return a chain whose nodes all share one storage, so that comparing all pairs would never end."""
    nodes = [GRAPH["nodes"][0]]
    attrs = {"func_name": "tvmgen_hand_negative", "num_inputs": "1", "num_outputs": "1", "flatten_data": "0"}
    for index in range(_MANY):
        nodes.append({"op": "tvm_op", "name": f"n{index}", "inputs": [[0, 0, 0]], "attrs": attrs})
    count = len(nodes)
    graph = {
        "nodes": nodes,
        "arg_nodes": [0],
        "heads": [[index, 0, 0] for index in range(1, count)],
        "attrs": {
            "dltype": ["list_str", ["float32"] * count],
            "shape": ["list_shape", [[1, 4]] * count],
            "storage_id": ["list_int", [0, *[2] * (count - 1)]],
            "device_index": ["list_int", [1] * count],
        },
        "node_row_ptr": list(range(count + 1)),
    }
    return packed(graph_files(graph=encoded(graph)))


add("graph_many_tensors_in_one_storage", "storage id 2", graph_with_many_nodes, refused=False)
