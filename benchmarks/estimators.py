"""Coverage of scikit-learn's estimators: ``python -m benchmarks.estimators [NAME ...]``.

All estimators that skl2onnx converts are fitted to small data, converted with default options (and without ZipMap),
compiled by LLVM and compared with ONNX Runtime on eight rows. ``--boosting`` adds those of LightGBM and XGBoost if they
and onnxmltools are installed.
"""

from __future__ import annotations

import argparse
import inspect
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

import mlfc
from mlfc.errors import MlfcError

ROWS = 8
_WRAPPING = {
    "OneVsRestClassifier", "OneVsOneClassifier", "CalibratedClassifierCV", "MultiOutputClassifier", "ClassifierChain",
    "RFE", "RFECV", "SelectFromModel", "BaggingClassifier", "SelfTrainingClassifier", "FixedThresholdClassifier",
    "TunedThresholdClassifierCV", "OutputCodeClassifier",
}  # fmt: skip
_POSITIVE = {
    "MultinomialNB", "ComplementNB", "NMF", "MiniBatchNMF", "LatentDirichletAllocation", "PowerTransformer",
    "GammaRegressor", "PoissonRegressor", "TweedieRegressor", "TfidfTransformer", "SelectKBest",
}  # fmt: skip
_CODES = {"CategoricalNB", "OrdinalEncoder", "OneHotEncoder", "TargetEncoder"}
_TWO_CLASSES = {"FixedThresholdClassifier", "TunedThresholdClassifierCV", "GaussianProcessClassifier", "TargetEncoder",
                "SelfTrainingClassifier"}  # fmt: skip
_OF_TEXT = {"CountVectorizer", "TfidfVectorizer", "DictVectorizer", "FeatureHasher", "HashingVectorizer"}
_FIXED: dict[str, dict[str, Any]] = {
    "KBinsDiscretizer": {"encode": "ordinal"}, "LocalOutlierFactor": {"novelty": True}, "SelectKBest": {"k": 3},
    "NearestNeighbors": {"radius": None}, "GaussianRandomProjection": {"n_components": 3},
    "RadiusNeighborsClassifier": {"radius": 20.0}, "RadiusNeighborsRegressor": {"radius": 20.0},
    "VotingClassifier": {"flatten_transform": False}, "RandomTreesEmbedding": {"sparse_output": False},
}  # fmt: skip


def _of(name: str) -> Any:
    module, item = name.rsplit(".", 1)
    return getattr(import_module(f"sklearn.{module}"), item)


def estimator(cls: type) -> Any:
    """Return an estimator of a class, as small as possible."""
    name, known = cls.__name__, inspect.signature(cls).parameters
    logistic, ridge = _of("linear_model.LogisticRegression"), _of("linear_model.Ridge")
    options: dict[str, Any] = {"random_state": 0, "n_estimators": 5, **_FIXED.get(name, {})}
    if "MLP" in name:
        options["max_iter"] = 30
    if name in _WRAPPING:
        options["estimator"] = logistic()
    elif name in ("MultiOutputRegressor", "RegressorChain", "RANSACRegressor", "CastRegressor"):
        options |= {"estimator": ridge(), "min_samples": 10}
    elif name.startswith(("Voting", "Stacking")):
        of_tree = _of(f"tree.DecisionTree{'Classifier' if 'Class' in name else 'Regressor'}")
        options["estimators"] = [("a", (logistic if "Class" in name else ridge)()), ("b", of_tree(max_depth=3))]
    elif name.endswith("SearchCV"):
        options |= {"estimator": logistic(), "param_grid": {"C": [0.1, 1]}, "param_distributions": {"C": [0.1, 1]}}
        options |= {"n_iter": 2}
    elif name == "Pipeline":
        options["steps"] = [("scale", _of("preprocessing.StandardScaler")()), ("model", logistic())]
    elif name == "FeatureUnion":
        parts = _of("preprocessing.StandardScaler")(), _of("decomposition.PCA")(2)
        options["transformer_list"] = [("a", parts[0]), ("b", parts[1])]
    elif name == "ColumnTransformer":
        parts = _of("preprocessing.StandardScaler")(), _of("preprocessing.MinMaxScaler")()
        options["transformers"] = [("a", parts[0], [0, 1]), ("b", parts[1], [2, 3, 4, 5])]
    elif name == "TransformedTargetRegressor":
        options["regressor"] = ridge()
    return cls(**{key: value for key, value in options.items() if key in known})


def data_for(name: str) -> tuple[Any, Any]:
    """Return features and targets that suit a class of estimators."""
    x, y = _of("datasets.make_classification")(
        120, 6, n_informative=5, n_redundant=0, n_classes=2 if name in _TWO_CLASSES else 3, random_state=0
    )
    x = x.astype(np.float32)
    real = (2 * x[:, 0] + x[:, 1]).astype(np.float32)
    if name in _POSITIVE:
        x, real = np.abs(x), np.abs(real) + np.float32(0.1)
    if name in _CODES:
        x = np.clip(np.round(np.abs(x)), 0, 3).astype(np.int64)
    if name == "BernoulliNB":
        x = (x > 0).astype(np.float32)
    if name in ("LabelEncoder", "LabelBinarizer"):
        return y.astype(np.int64), y
    if name in ("MultiOutputClassifier", "ClassifierChain"):
        return x, np.stack([y > 0, y > 1], 1).astype(int)
    if "MultiTask" in name or name in ("MultiOutputRegressor", "RegressorChain") or "PLS" in name:
        return x, np.stack([real, x[:, 2] - 2 * real], 1)
    if name == "IsotonicRegression":
        return x[:, :1], real
    if name == "KernelCenterer":
        return (x @ x.T).astype(np.float32), y
    is_regression = "Regress" in name and "Logistic" not in name
    return x, real if is_regression or name in ("Ridge", "Lasso", "ElasticNet", "SVR", "NuSVR", "LinearSVR") else y


def converted(fitted: Any, x: Any) -> Any:
    """Return the ONNX model of an estimator, without ZipMap if the converter has that option."""
    from skl2onnx import to_onnx

    for options in ({id(fitted): {"zipmap": False}}, None):
        try:
            return to_onnx(fitted, x[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})
        except Exception:
            if options is None:
                raise
    return None


def differences(model: Any, x: Any) -> str:
    """Return the outputs in which compiled code and ONNX Runtime differ, as text.

    Raises
    ------
    MlfcError
        If mlfc does not support the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (given,) = session.get_inputs()
    x = x[:, None] if len(given.shape) == 2 and x.ndim == 1 else x
    expected = session.run(None, {given.name: x})
    module, params = mlfc.import_model(model, shapes={given.name: x.shape})
    found = mlfc.build(module, "llvm", params, module_name="estimator").runtime.run({given.name: x})
    wrong = []
    for (name, ours), theirs in zip(found.items(), map(np.asarray, expected), strict=True):
        largest = max(1.0, float(np.abs(theirs).max(initial=0)))
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-4, atol=1e-4 * largest, equal_nan=True):
            wrong.append(name)
    return ", ".join(wrong)


def outcome(name: str, make: Any, data: tuple[Any, Any]) -> tuple[str, str]:
    """Return the outcome for an estimator, and the reason."""
    x, y = data
    if name in _OF_TEXT:
        return "of text", "Generated code has no strings"
    try:
        fitted = make().fit(x, y)
    except Exception as error:
        return "not fitted", _first(error)
    try:
        model = converted(fitted, x)
    except Exception as error:
        return "not converted", _first(error)
    try:
        wrong = differences(model, x[:ROWS])
    except MlfcError as error:
        return "refused", _first(error)
    except Exception as error:
        if "ONNXRuntimeError" in str(error):
            return "not run by ONNX Runtime", _first(error)
        raise
    return ("differs", wrong) if wrong else ("agrees", "")


def _first(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def boosting() -> Iterator[tuple[str, Any, Any]]:
    """Yield names, estimators and conversions of LightGBM and XGBoost."""
    from lightgbm import LGBMClassifier, LGBMRegressor
    from onnxmltools import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    from xgboost import XGBClassifier, XGBRegressor

    kind = [("X", FloatTensorType([None, 6]))]
    for cls in (LGBMClassifier, LGBMRegressor):
        fitted = cls(n_estimators=20, verbose=-1, n_jobs=1)
        yield cls.__name__, fitted, lambda model: convert_lightgbm(model, initial_types=kind, zipmap=False)
    for cls in (XGBClassifier, XGBRegressor):
        yield cls.__name__, cls(n_estimators=20, n_jobs=1), lambda model: convert_xgboost(model, initial_types=kind)


def main() -> None:
    """Print the estimators that do not compile, and the number of those that do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--boosting", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from skl2onnx._supported_operators import build_sklearn_operator_name_map

    found: dict[str, str] = {}
    for cls in sorted(build_sklearn_operator_name_map(), key=lambda each: each.__name__):
        name = cls.__name__
        if not options.names or name in options.names:
            found[name], why = outcome(name, lambda cls=cls: estimator(cls), data_for(name))
            if why:
                print(f"{name}: {found[name]}: {why}")
    for name, fitted, convert in boosting() if options.boosting else ():
        x, y = data_for(name)
        wrong = differences(convert(fitted.fit(x, y)), x[:ROWS])
        found[name] = "differs" if wrong else "agrees"
        print(f"{name}: {found[name]} {wrong}")
    counts = Counter(found.values())
    tried = len(found) - counts["not fitted"] - counts["not converted"] - counts["not run by ONNX Runtime"]
    print(f"{counts['agrees']} of {tried} compile and agree with ONNX Runtime; {dict(counts)}")


if __name__ == "__main__":
    main()
