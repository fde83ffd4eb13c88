"""Classical machine learning in ONNX: its operators, and scikit-learn estimators converted by skl2onnx."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import mlfc
from mlfc.errors import MlfcError
from tests.ml_models import compare, ml_model

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 3)).astype(np.float32)
HOLES = X.copy()
HOLES[::2, 1] = np.nan
CODES = RNG.integers(0, 5, (6, 3))
VECTORS = RNG.standard_normal((4, 3)).astype(np.float32)
SVM = {
    "coefficients": [0.5, -1.0, 0.25, 0.75], "kernel_params": [0.5, 0.25, 3.0], "n_supports": 4, "rho": [0.125],
    "support_vectors": VECTORS.ravel().tolist(),
}  # fmt: skip
LISTS = {"keys_int64s": [3, 1, 4], "values_floats": [0.5, 1.5, 2.5], "default_float": -7.0}
OF_NAN = {"keys_floats": [np.nan, float(X[0, 0]), 2.0], "values_int64s": [9, 8, 7], "default_int64": 3}

TREE: dict[str, Any] = {
    "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3, "nodes_values": [0.1, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip
LEAVES: dict[str, Any] = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, 0], "weights": [0.1, 0.7]}
# on both sides of the float32 threshold, and equal to it in float32
NEAR = np.float64(np.float32(0.1)) + np.array([[-1e-10, 0, 0], [0, 0, 0], [1e-10, 0, 0], [np.nan, 0, 0]])
SIGNED = np.array([[0, 0, 0], [-1, -2, -3], [-5, 1, 2]], np.float32)

CASES: dict[str, tuple[str, dict[str, Any], Array, int]] = {
    "tree of float64": (
        "TreeEnsembleRegressor", {"n_targets": 1, **TREE, **{f"target_{key}": value for key, value in LEAVES.items()}},
        NEAR, 3,
    ),
    "largest of a row": ("Normalizer", {"norm": "MAX"}, SIGNED, 1),
    "sum of a row": ("Normalizer", {"norm": "L1"}, SIGNED, 1),
    "length of a row": ("Normalizer", {"norm": "L2"}, SIGNED, 1),
    "binarizer": ("Binarizer", {"threshold": 0.25}, X, 1),
    "imputer of NaN": ("Imputer", {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": np.nan}, HOLES, 1),
    "imputer of a value": ("Imputer", {"imputed_value_int64s": [9], "replaced_value_int64": 2}, CODES, 1),
    "one-hot": ("OneHotEncoder", {"cats_int64s": [0, 3, 1]}, CODES, 1),
    "one-hot of floats": ("OneHotEncoder", {"cats_int64s": [0, 3, 1], "zeros": 1}, CODES.astype(np.float32), 1),
    "labels to floats": ("LabelEncoder", LISTS, CODES, 2),
    "labels to labels": ("LabelEncoder", {"keys_int64s": [0, 1, 1], "values_int64s": [5, 6, 7]}, CODES, 2),
    "floats to labels": ("LabelEncoder", OF_NAN, HOLES, 2),
    "NaN to a label": ("LabelEncoder", OF_NAN, HOLES, 4),
    "tensors of labels": (
        "LabelEncoder",
        {"keys_tensor": numpy_helper.from_array(np.asarray([1, 2])),
         "values_tensor": numpy_helper.from_array(np.asarray([1.5, 2.5], np.float32)),
         "default_tensor": numpy_helper.from_array(np.asarray([-1.5], np.float32))},
        CODES, 4,
    ),
    "svm, linear": ("SVMRegressor", {**SVM, "kernel_type": "LINEAR"}, X, 1),
    "svm, rbf": ("SVMRegressor", {**SVM, "kernel_type": "RBF"}, X, 1),
    "svm, poly": ("SVMRegressor", {**SVM, "kernel_type": "POLY"}, X, 1),
    "svm, sigmoid": ("SVMRegressor", {**SVM, "kernel_type": "SIGMOID"}, X, 1),
    "svm, one class": ("SVMRegressor", {**SVM, "kernel_type": "RBF", "one_class": 1}, X, 1),
    "svm without vectors": (
        "SVMRegressor",
        {"coefficients": [0.5, -1.0, 0.25], "rho": [0.5], "kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]},
        X, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators_equal_onnx_runtime(name: str) -> None:
    op, attrs, data, version = CASES[name]
    compare(ml_model(op, attrs, {"x": data}, version=version), {"x": data})


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_classifiers_of_one_score_and_their_dtypes(transform: str) -> None:
    linear = {"classlabels_ints": [4, 5], "coefficients": [0.1, 0.2, 0.3], "intercepts": [-0.2]}
    compare(ml_model("LinearClassifier", {**linear, "post_transform": transform}, {"x": X}, 2), {"x": X})
    trees = {**TREE, "classlabels_int64s": [4, 5], **{f"class_{key}": value for key, value in LEAVES.items()}}
    model = ml_model("TreeEnsembleClassifier", {**trees, "post_transform": transform}, {"x": NEAR}, 2, 3)
    compare(model, {"x": NEAR})


def test_inputs_become_one_vector() -> None:
    inputs = {"a": X[:1], "b": X[:1, :2].copy()}
    compare(ml_model("FeatureVectorizer", {"inputdimensions": [3, 2]}, inputs), inputs)


@pytest.mark.parametrize(
    ("op", "attrs", "data", "message"),
    [
        ("Imputer", {"imputed_value_floats": [1.0, 2.0]}, X, "2 values do not fit 3 features"),
        ("OneHotEncoder", {"cats_strings": ["a"]}, CODES, "strings.*integer categories"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, CODES, "strings.*outside of the model"),
        ("LabelEncoder", {"keys_int64s": [1, 2], "values_int64s": [1]}, CODES, "2 keys and 1 values do not fit"),
        ("LabelEncoder", {"keys_int64s": [1], "values_int64s": [1]}, X, "do not fit an input of float32"),
        ("ZipMap", {"classlabels_strings": ["a", "b", "c"]}, X, "zipmap': False"),
        ("ZipMap", {"classlabels_int64s": [1, 2]}, X, "2 labels do not fit"),
        ("FeatureVectorizer", {"inputdimensions": [2]}, X, "do not fit the inputs"),
        ("SVMRegressor", {**SVM, "kernel_type": "CHI"}, X, "unknown kernel_type 'CHI'"),
        ("SVMRegressor", {**SVM, "n_supports": 5}, X, "do not fit 3 features"),
        ("SVMRegressor", {**SVM, "n_supports": 0}, X, "4 coefficients do not fit 3 features"),
        ("SVMRegressor", {**SVM, "post_transform": "TANH"}, X, "unknown post_transform"),
    ],
)
def test_what_contradicts_itself_is_refused(op: str, attrs: dict[str, Any], data: Array, message: str) -> None:
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(ml_model(op, attrs, {"x": data}, version=2 if op == "LabelEncoder" else 1))


def test_maps_of_scores_become_their_matrix() -> None:
    model = mlfc.compile(ml_model("ZipMap", {"classlabels_int64s": [5, 6, 7]}, {"x": X}), "llvm")
    np.testing.assert_array_equal(next(iter(model.model.run({"x": X}).values())), X)


def _of(name: str) -> Any:
    """Return a part of scikit-learn, whose import takes two seconds: longer than collecting all tests."""
    return import_module(f"sklearn.{name}")


def _chained(*steps: Any) -> Any:
    return _of("pipeline").make_pipeline(*steps)


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "tree": lambda: _of("tree").DecisionTreeClassifier(random_state=0),
    "forest": lambda: _of("ensemble").RandomForestClassifier(8, random_state=0),
    "boosted trees": lambda: _of("ensemble").GradientBoostingClassifier(n_estimators=5, random_state=0),
    "forest of regression": lambda: _of("ensemble").RandomForestRegressor(8, random_state=0),
    "extra trees": lambda: _of("ensemble").ExtraTreesRegressor(5, random_state=0),
    "isolation forest": lambda: _of("ensemble").IsolationForest(n_estimators=5, random_state=0),
    "ada": lambda: _of("ensemble").AdaBoostClassifier(n_estimators=4, random_state=0),
    "logistic": lambda: _of("linear_model").LogisticRegression(),
    "ridge": lambda: _of("linear_model").Ridge(),
    "linear svm": lambda: _of("svm").LinearSVC(),
    "svm of regression": lambda: _of("svm").SVR(),
    "one class": lambda: _of("svm").OneClassSVM(),
    "svm": lambda: _of("svm").SVC(),
    "svm with probabilities": lambda: _of("svm").SVC(kernel="poly", probability=True, random_state=0),
    "bayes": lambda: _of("naive_bayes").GaussianNB(),
    "neural network": lambda: _of("neural_network").MLPClassifier((8,), max_iter=20, random_state=0),
    "discriminant": lambda: _of("discriminant_analysis").LinearDiscriminantAnalysis(),
    "neighbours": lambda: _of("neighbors").KNeighborsClassifier(3),
    "neighbours of regression": lambda: _of("neighbors").KNeighborsRegressor(3, weights="distance"),
    "process": lambda: _of("gaussian_process").GaussianProcessRegressor(random_state=0),
    "clusters": lambda: _of("cluster").KMeans(3, n_init=1, random_state=0),
    "components": lambda: _of("decomposition").PCA(2),
    "polynomials": lambda: _chained(_of("preprocessing").PolynomialFeatures(2), _of("linear_model").Ridge()),
    "scaled": lambda: _chained(_of("preprocessing").StandardScaler(), _of("linear_model").LogisticRegression()),
    "imputed": lambda: _chained(
        _of("impute").SimpleImputer(), _of("preprocessing").MinMaxScaler(), _of("linear_model").LogisticRegression()
    ),
    "bins": lambda: _chained(
        _of("preprocessing").KBinsDiscretizer(3, encode="onehot-dense"), _of("linear_model").Ridge()
    ),
}


@pytest.mark.parametrize("name", [*ESTIMATORS, "svm of two classes"])
@pytest.mark.filterwarnings("ignore")
def test_estimators_of_scikit_learn_equal_onnx_runtime(name: str) -> None:
    from skl2onnx import to_onnx
    from sklearn.datasets import make_classification

    classes = 2 if name == "svm of two classes" else 3
    name = "svm" if name == "svm of two classes" else name
    x, y = make_classification(90, 6, n_informative=5, n_redundant=0, n_classes=classes, random_state=0)
    data = x.astype(np.float32)
    estimator = ESTIMATORS[name]().fit(data, y)
    options = {"zipmap": False} if hasattr(estimator, "predict_proba") or name == "svm" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = to_onnx(estimator, data[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})
    compare(model, {model.graph.input[0].name: data[:12]}, rtol=1e-4)
