"""Train the ensembles of `benchmarks.trees`, and write them as ONNX and as C by emlearn and m2cgen.

A Python with these packages runs this file by its path; it imports nothing of mlfc.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 40
TOP = 32767

_HARD = """
#include <stdint.h>
{code}
void predict(const void *x, void *out) {{ *({kind} *)out = model_predict((const {feature} *)x, {features}); }}
"""
_SOFT = """
#include <stdint.h>
{code}
void predict(const void *x, void *out) {{
  model_predict_proba((const {feature} *)x, {features}, (float *)out, {classes});
}}
"""


def datasets() -> dict[str, tuple[Any, Any]]:
    """Return features and targets by name."""
    from sklearn.datasets import load_breast_cancer, load_digits, make_friedman1

    cancer, digits = load_breast_cancer(return_X_y=True), load_digits(return_X_y=True)
    return {"two classes": cancer, "ten classes": digits, "regression": make_friedman1(1500, 10, random_state=0)}


def models() -> dict[str, tuple[str, Callable[[], Any]]]:
    """Return the data's name and a function that makes the estimator, by the model's name."""
    from lightgbm import LGBMClassifier, LGBMRegressor
    from sklearn import ensemble, tree

    made: dict[str, tuple[str, Callable[[], Any]]] = {}

    def add(title: str, data: str, cls: type, *, depth: int | None = None, trees: int | None = None) -> None:
        name = f"{title}, {data}, {f'{trees} x ' if trees else ''}{f'depth {depth}' if depth else 'no limit'}"
        options: dict[str, Any] = {"random_state": 0, "max_depth": depth or (-1 if "LGBM" in cls.__name__ else None)}
        if trees:
            options["n_estimators"] = trees
        if "LGBM" in cls.__name__:
            options |= {"verbose": -1, "n_jobs": 1}
        made[name] = (data, lambda: cls(**options))

    add("tree", "two classes", tree.DecisionTreeClassifier, depth=4)
    add("tree", "ten classes", tree.DecisionTreeClassifier)
    add("forest", "two classes", ensemble.RandomForestClassifier, depth=4, trees=10)
    add("forest", "two classes", ensemble.RandomForestClassifier, depth=8, trees=100)
    add("forest", "ten classes", ensemble.RandomForestClassifier, depth=8, trees=10)
    add("forest", "ten classes", ensemble.RandomForestClassifier, trees=30)
    add("extra trees", "regression", ensemble.ExtraTreesRegressor, depth=8, trees=10)
    add("forest", "regression", ensemble.RandomForestRegressor, depth=6, trees=30)
    add("boosting", "two classes", LGBMClassifier, depth=4, trees=100)
    add("boosting", "ten classes", LGBMClassifier, depth=4, trees=10)
    add("boosting", "regression", LGBMRegressor, depth=8, trees=100)
    return made


def write(folder: Path, name: str, data: str, make: Callable[[], Any], known: dict[str, tuple[Any, Any]]) -> None:
    """Write one model in every form, and rows of its data."""
    x, y = known[data]
    x = np.asarray(x, np.float32)
    folder.mkdir(parents=True)
    estimator = make().fit(x, y)
    low, high = x.min(0), x.max(0)
    codes = np.round((x - low) / np.maximum(high - low, 1e-9) * 2 * TOP - TOP).astype(np.int16)
    np.save(folder / "x.npy", x[:ROWS])
    np.save(folder / "codes.npy", codes[:ROWS])
    np.save(folder / "expected.npy", _expected(estimator, x[:ROWS]))
    (folder / "model.onnx").write_bytes(_onnx(estimator, x))
    ways = {"m2cgen": lambda: _m2cgen(estimator)}
    if "LGBM" not in type(estimator).__name__:  # emlearn does not convert boosting
        of_codes = make().fit(codes, y)
        ways |= {
            "emlearn int16 tables": lambda: _emlearn(of_codes, "loadable", "int16_t", 8),
            "emlearn int16 code": lambda: _emlearn(of_codes, "inline", "int16_t", 8),
            "emlearn float code": lambda: _emlearn(estimator, "inline", "float", 8),
        }
        if hasattr(estimator, "predict_proba"):
            ways |= {
                "emlearn int16 tables, votes": lambda: _emlearn(of_codes, "loadable", "int16_t", 0),
                "emlearn int16 code, votes": lambda: _emlearn(of_codes, "inline", "int16_t", 0),
            }
    for way, text in ways.items():
        (folder / f"{way}.c").write_text(text())
    facts = {"name": name, "nodes": _nodes(estimator)}
    (folder / "facts.json").write_text(json.dumps(facts))


def _expected(estimator: Any, x: Any) -> Any:
    return estimator.predict_proba(x) if hasattr(estimator, "predict_proba") else estimator.predict(x)


def _onnx(estimator: Any, x: Any) -> bytes:
    if "LGBM" in type(estimator).__name__:
        from onnxmltools import convert_lightgbm
        from onnxmltools.convert.common.data_types import FloatTensorType

        kind = [("X", FloatTensorType([1, x.shape[1]]))]
        return convert_lightgbm(estimator, initial_types=kind, zipmap=False).SerializeToString()
    from skl2onnx import to_onnx

    options = {"zipmap": False} if hasattr(estimator, "predict_proba") else None
    model = to_onnx(estimator, x[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})
    return model.SerializeToString()


def _emlearn(estimator: Any, method: str, feature: str, leaf_bits: int) -> str:
    """Return C that computes probabilities from 8-bit proportions, or from one vote per tree."""
    import emlearn

    classes = getattr(estimator, "n_classes_", 0)
    is_soft = bool(classes) and leaf_bits > 0
    options = {"leaf_bits": leaf_bits} if classes else {}
    code = emlearn.convert(estimator, method=method, dtype=feature, **options).save(name="model", format="c")
    kind = "int32_t" if classes else "float"
    text = _SOFT if is_soft else _HARD
    return text.format(code=code, kind=kind, feature=feature, features=estimator.n_features_in_, classes=classes)


def _m2cgen(estimator: Any) -> str:
    import m2cgen

    sys.setrecursionlimit(1 << 14)
    code = m2cgen.export_to_c(estimator)
    call = "score((double *)x, (double *)out)" if "void score" in code else "*(double *)out = score((double *)x)"
    return f"#include <math.h>\n{code}\nvoid predict(const void *x, void *out) {{ {call}; }}\n"


def _nodes(estimator: Any) -> int:
    if "LGBM" in type(estimator).__name__:
        return sum(tree["num_leaves"] - 1 for tree in estimator.booster_.dump_model()["tree_info"])
    trees = getattr(estimator, "estimators_", [estimator])
    return int(sum((each.tree_.children_left >= 0).sum() for each in trees))


def main() -> None:
    """Write all models into the folder given as the first argument."""
    warnings.simplefilter("ignore")
    import emlearn

    folder, known = Path(sys.argv[1]), datasets()
    for number, (name, (data, make)) in enumerate(models().items()):
        if not sys.argv[2:] or any(part in name for part in sys.argv[2:]):
            write(folder / f"{number:02}", name, data, make, known)
    shutil.copytree(Path(emlearn.__file__).parent, folder / "include", ignore=lambda _, names: [
        name for name in names if not name.endswith(".h")])  # fmt: skip
    packages = ("emlearn", "m2cgen", "scikit-learn", "skl2onnx", "lightgbm", "onnxmltools")
    (folder / "versions.json").write_text(json.dumps({name: version(name) for name in packages}))


if __name__ == "__main__":
    main()
