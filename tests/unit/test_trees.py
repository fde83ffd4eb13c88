"""Decision trees: the operator's rule, and ONNX's ensembles against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import mlfc
from mlfc.errors import MlfcError, TypeCheckError
from mlfc.ops.evaluate import evaluate
from mlfc.relay import ir
from tests.ml_cases import FEATURES, ml_cases, random_tables, rows
from tests.ml_models import compare, ml_model
from tests.operator_cases import Case
from tests.relay_run import operators, run_main

Array = np.ndarray[Any, Any]
MODES = {"le": b"BRANCH_LEQ", "lt": b"BRANCH_LT", "ge": b"BRANCH_GTE", "gt": b"BRANCH_GT", "eq": b"BRANCH_EQ",
         "ne": b"BRANCH_NEQ"}  # fmt: skip
NUMBERS = {name: number for number, name in enumerate((*MODES, "member"))}


@pytest.mark.parametrize("case", ml_cases(), ids=str)
def test_rule(case: Case) -> None:
    result = evaluate(ir.call(case.operator, [ir.const(np.asarray(value)) for value in case.args], case.attrs))
    assert result is not None
    case.check(result)


TABLES = random_tables(0)


@pytest.mark.parametrize(
    ("args", "attrs", "message"),
    [
        ([rows(0), *TABLES], {"comparisons": ("le", "lt")}, "2 comparisons does not take 7 tensors"),
        ([rows(0), *TABLES], {"comparisons": ("less",)}, "expected comparison"),
        ([rows(0), *TABLES], {"aggregate": "mean"}, "expected aggregate"),
        ([rows(0).astype(np.float64), *TABLES], {}, "do not mix"),
        ([rows(0), *TABLES[:1], TABLES[1][:-1], *TABLES[2:]], {}, "do not fit"),
        ([rows(0), *TABLES[:4], TABLES[4][:-1], *TABLES[5:]], {}, "do not fit"),
        ([rows(0), *TABLES[:5], TABLES[5][:0]], {}, "a table is empty"),
        ([rows(0), TABLES[0].astype(np.float32), *TABLES[1:]], {}, "integer"),
        ([rows(0)[0], *TABLES], {}, "do not fit"),
    ],
)
def test_tables_that_contradict_each_other_are_refused(args: list[Array], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeCheckError, match=message):
        ir.call("ml.tree_ensemble", [ir.const(value) for value in args], attrs)


def listed(tables: list[Array], comparisons: list[str], tracks: list[int], kind: str) -> dict[str, Any]:
    """Return tables as the attributes of TreeEnsembleRegressor (`kind` "target") or -Classifier ("class")."""
    feature, threshold, following, root, _, score = tables
    inner = len(feature)
    trees: list[tuple[int, int]] = []  # tree and node of each entry
    for tree, start in enumerate(root):
        waiting = [int(start)]
        while waiting:
            at = waiting.pop(0)
            trees.append((tree, at))
            waiting += [int(after) for after in following[at]] if at < inner else []
    rows_ = [at for _, at in trees]
    is_leaf = [at >= inner for at in rows_]
    attrs: dict[str, Any] = {
        "nodes_treeids": [tree for tree, _ in trees],
        "nodes_nodeids": rows_,
        "nodes_featureids": [0 if at >= inner else int(feature[at]) for at in rows_],
        "nodes_values": [0.0 if at >= inner else float(threshold[at]) for at in rows_],
        "nodes_modes": [b"LEAF" if leaf else MODES[comparisons[at]] for leaf, at in zip(is_leaf, rows_, strict=True)],
        "nodes_truenodeids": [0 if at >= inner else int(following[at, 1]) for at in rows_],
        "nodes_falsenodeids": [0 if at >= inner else int(following[at, 0]) for at in rows_],
        "nodes_missing_value_tracks_true": [0 if at >= inner else tracks[at] for at in rows_],
    }
    entries = [(tree, at, k) for tree, at in trees if at >= inner for k in range(score.shape[1])]
    attrs |= {
        f"{kind}_treeids": [tree for tree, _, _ in entries],
        f"{kind}_nodeids": [at for _, at, _ in entries],
        f"{kind}_ids": [k for _, _, k in entries],
        f"{kind}_weights": [float(score[at - inner, k]) for _, at, k in entries],
    }
    return attrs


def ensemble(op: str, attrs: dict[str, Any], data: Array, outputs: int = 1, version: int = 1) -> onnx.ModelProto:
    return ml_model(op, attrs, {"x": data}, outputs, version)


@pytest.mark.parametrize("seed", range(len(MODES)))
@pytest.mark.parametrize("is_mixed", [False, True])
def test_regressors_equal_onnx_runtime(seed: int, is_mixed: bool) -> None:
    tables, data = random_tables(seed), rows(seed)
    rng, names = np.random.default_rng(seed), list(MODES)
    count = len(tables[0])
    modes = [names[int(k)] if is_mixed else names[seed] for k in rng.integers(0, len(names), count)]
    tracks = rng.integers(0, 2, count).tolist() if is_mixed else [seed % 2] * count
    attrs = {**listed(tables, modes, tracks, "target"), "n_targets": 2}
    attrs["aggregate_function"] = ("SUM", "AVERAGE", "MIN", "MAX")[seed % 4]
    if seed % 2:
        attrs["base_values"] = [0.25, -0.5]
    compare(ensemble("TreeEnsembleRegressor", attrs, data), {"x": data})


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("is_probability", [False, True])
def test_classifiers_equal_onnx_runtime(transform: str, targets: int, is_probability: bool) -> None:
    tables, data = random_tables(1, targets=targets), rows(1)
    if is_probability:
        tables[5] = np.abs(tables[5]) / 8
    count = len(tables[0])
    attrs = listed(tables, ["le"] * count, [0] * count, "class")
    labels = list(range(10, 10 + max(targets, 2)))
    attrs |= {"classlabels_int64s": labels, "post_transform": transform}
    if targets == 3:
        attrs["base_values"] = [0.1, 0.2, -0.3]
    compare(ensemble("TreeEnsembleClassifier", attrs, data, 2), {"x": data})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ensembles_of_the_newest_kind_equal_onnx_runtime(dtype: str) -> None:
    feature, threshold, following, root, _, score = random_tables(3, targets=1, dtype=dtype)
    inner, leaves = len(feature), len(score)
    modes = np.arange(inner) % len(NUMBERS)
    members = [value for mode in modes if mode == NUMBERS["member"] for value in (1.0, 2.0, 7.0, np.nan)]
    attrs = {
        "nodes_featureids": feature.tolist(),
        "nodes_splits": numpy_helper.from_array(threshold),
        "nodes_modes": numpy_helper.from_array(modes.astype(np.uint8)),
        "nodes_missing_value_tracks_true": (np.arange(inner) % 2).tolist(),
        "tree_roots": root.tolist(),
        "leaf_targetids": [leaf % 3 for leaf in range(leaves)],
        "leaf_weights": numpy_helper.from_array(score[:, 0]),
        "membership_values": numpy_helper.from_array(np.asarray(members, dtype)),
        "n_targets": 3,
    }
    for index, side in enumerate(("false", "true")):
        ends = following[:, index].astype(int)
        attrs[f"nodes_{side}leafs"] = (ends >= inner).astype(int).tolist()
        attrs[f"nodes_{side}nodeids"] = np.where(ends >= inner, ends - inner, ends).tolist()
    data = rows(3, dtype=dtype)
    compare(ensemble("TreeEnsemble", attrs, data, version=5), {"x": data})


@pytest.mark.parametrize("aggregate", ["SUM", "MIN", "MAX"])
def test_leaves_that_lack_targets_equal_onnx_runtime(aggregate: str) -> None:
    tables, data = random_tables(4, targets=3), rows(4)
    count = len(tables[0])
    attrs = {**listed(tables, ["le"] * count, [0] * count, "target"), "n_targets": 4, "aggregate_function": aggregate}
    # no leaf has the last target; some have another one twice, and some lack it
    lacks = np.random.default_rng(4).random(len(attrs["target_ids"])) < 0.5
    attrs["target_ids"] = [0 if lack else each for lack, each in zip(lacks, attrs["target_ids"], strict=True)]
    compare(ensemble("TreeEnsembleRegressor", attrs, data), {"x": data})


@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("transform", range(5))
def test_the_newest_kind_aggregates_as_onnx_runtime_does(aggregate: int, transform: int) -> None:
    attrs = {
        "nodes_featureids": [0, 1], "nodes_splits": numpy_helper.from_array(np.asarray([0.5, -0.5], np.float32)),
        "nodes_modes": numpy_helper.from_array(np.asarray([0, 3], np.uint8)), "tree_roots": [0, 1],
        "nodes_falseleafs": [1, 1], "nodes_falsenodeids": [0, 2], "nodes_trueleafs": [1, 1],
        "nodes_truenodeids": [1, 3], "leaf_targetids": [0, 1, 1, 2], "n_targets": 3,
        "leaf_weights": numpy_helper.from_array(np.asarray([0.25, 0.5, 0.375, 0.75], np.float32)),
        "aggregate_function": aggregate, "post_transform": transform,
    }  # fmt: skip
    if transform == 4:  # it is NaN or infinite for numbers that are not probabilities
        attrs["leaf_targetids"], attrs["n_targets"] = [0, 0, 0, 0], 1
        attrs["leaf_weights"] = numpy_helper.from_array(np.asarray([0.25, 0.5, 0.125, 0.375], np.float32))
    model, data = ensemble("TreeEnsemble", attrs, rows(4), version=5), rows(4)
    if transform not in (1, 2):
        compare(model, {"x": data})
        return
    # SOFTMAX is 1 and LOGISTIC 2 in ONNX; ONNX Runtime swaps them
    module, params = mlfc.import_model(model)
    other = ensemble("TreeEnsemble", {**attrs, "post_transform": 3 - transform}, data, version=5)
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'mlfc[verify]'")
    expected = onnxruntime.InferenceSession(other.SerializeToString()).run(None, {"x": data})
    np.testing.assert_allclose(run_main(module, {"x": data, **params})[0], expected[0], rtol=1e-6)


def test_trees_of_one_leaf() -> None:
    attrs = {
        "nodes_treeids": [0, 1], "nodes_nodeids": [0, 0], "nodes_featureids": [0, 0], "nodes_values": [0.0, 0.0],
        "nodes_modes": [b"LEAF", b"LEAF"], "nodes_truenodeids": [0, 0], "nodes_falsenodeids": [0, 0],
        "target_treeids": [0, 1], "target_nodeids": [0, 0], "target_ids": [0, 0], "target_weights": [1.5, 2.0],
        "n_targets": 1,
    }  # fmt: skip
    compare(ensemble("TreeEnsembleRegressor", attrs, rows(0)), {"x": rows(0)})


GOOD = {**listed(TABLES, ["le"] * len(TABLES[0]), [0] * len(TABLES[0]), "target"), "n_targets": 2}
FIRST_TRUE = GOOD["nodes_truenodeids"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes_nodeids": [0] * len(GOOD["nodes_nodeids"])}, "two nodes have the same id"),
        ({"nodes_values": [0.0]}, "differ in length"),
        ({"nodes_modes": [b"BRANCH"] * len(GOOD["nodes_modes"])}, "unknown mode 'BRANCH'"),
        ({"nodes_truenodeids": [9999, *FIRST_TRUE[1:]]}, "has no node 9999"),
        ({"nodes_truenodeids": [0, *FIRST_TRUE[1:]]}, "cannot be reached from the root"),
        ({"nodes_featureids": [FEATURES, *GOOD["nodes_featureids"][1:]]}, "reads feature 5, but the input has 5"),
        ({"nodes_featureids": [-1, *GOOD["nodes_featureids"][1:]]}, "feature"),
        ({"target_ids": [2, *GOOD["target_ids"][1:]]}, "must be below 2"),
        ({"target_nodeids": [0, *GOOD["target_nodeids"][1:]]}, "has no leaf 0"),
        ({"target_weights": [0.5]}, "do not fit"),
        ({"aggregate_function": "MEAN"}, "MEAN is not known"),
        ({"post_transform": "TANH"}, "unknown post_transform 'TANH'"),
        ({"base_values": [1.0, 2.0, 3.0]}, "3 base values do not fit 2 scores"),
    ],
)
def test_broken_ensembles_are_refused(changed: dict[str, Any], message: str) -> None:
    model = ensemble("TreeEnsembleRegressor", {**GOOD, **changed}, rows(0))
    with pytest.raises(MlfcError, match=message) as caught:
        mlfc.import_model(model)
    assert "'treeensembleregressor'" in str(caught.value)


def test_a_tree_that_comes_back_to_itself_is_refused() -> None:
    attrs: dict[str, Any] = {
        "nodes_featureids": [0, 0], "nodes_splits": numpy_helper.from_array(np.zeros(2, np.float32)),
        "nodes_modes": numpy_helper.from_array(np.zeros(2, np.uint8)), "tree_roots": [0],
        "nodes_falseleafs": [0, 0], "nodes_falsenodeids": [1, 0], "nodes_trueleafs": [1, 1],
        "nodes_truenodeids": [0, 0], "leaf_targetids": [0],
        "leaf_weights": numpy_helper.from_array(np.ones(1, np.float32)), "n_targets": 1,
    }  # fmt: skip
    with pytest.raises(MlfcError, match="a tree has a cycle"):
        mlfc.import_model(ensemble("TreeEnsemble", attrs, rows(0), version=5))


def test_what_results_have_in_common_is_computed_once() -> None:
    attrs = {**listed(TABLES, ["le"] * len(TABLES[0]), [0] * len(TABLES[0]), "class")}
    attrs |= {"classlabels_int64s": [3, 5], "post_transform": "SOFTMAX"}
    module, _ = mlfc.import_model(ensemble("TreeEnsembleClassifier", attrs, rows(0), 2))
    assert operators(module).count("ml.tree_ensemble") == 1
    del attrs["post_transform"]  # the scores that label and output depend on are an output, too
    module, _ = mlfc.import_model(ensemble("TreeEnsembleClassifier", attrs, rows(0), 2))
    assert operators(module).count("ml.tree_ensemble") == 1


def test_labels_that_are_strings_are_refused() -> None:
    attrs = {**listed(TABLES, ["le"] * len(TABLES[0]), [0] * len(TABLES[0]), "class")}
    attrs["classlabels_strings"] = [b"a", b"b"]
    with pytest.raises(MlfcError, match=r"labels that are strings.*Train with integer labels"):
        mlfc.import_model(ensemble("TreeEnsembleClassifier", attrs, rows(0), 2))
