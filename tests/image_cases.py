"""Image operators in both layouts, with ONNX Runtime's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.operator_cases import Array, Case, integers, normal, ort

METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
SIZES = [((5, 7), (10, 14)), ((5, 7), (8, 3)), ((6, 4), (6, 11)), ((3, 9), (1, 1)), ((4, 4), (9, 13))]
MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resized(x: Array, size: tuple[int, ...], **attrs: Any) -> Callable[[], Array]:
    """Return a function that runs ONNX Resize on the axes after the first two."""
    return ort("Resize", x, None, None, np.asarray((*x.shape[:2], *size), np.int64), opset=13, **attrs)


def _both_layouts(x: Array, expected: Callable[[], Array], case: Callable[..., Case], letters: str) -> list[Case]:
    last = letters[0] + letters[2:] + "C"
    moved = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    return [case([x], expected, letters), case([moved], lambda: np.moveaxis(expected(), 1, -1), last)]


def resize_cases() -> list[Case]:
    """Return resizes with every method, coordinate mode and rounding."""
    cases = []
    for (rows, columns), size in SIZES:
        x = normal(1, 3, rows, columns)
        for method, onnx_mode in METHODS.items():
            for mode in MODES:
                for rounding in ROUNDINGS if method == "nearest_neighbor" else ("round_prefer_floor",):
                    onnx: dict[str, Any] = {"mode": onnx_mode, "coordinate_transformation_mode": mode}
                    if method == "nearest_neighbor":
                        onnx["nearest_mode"] = rounding
                    attrs = {"size": size, "method": method, "coordinate_transformation_mode": mode,
                             "rounding_method": rounding, "cubic_alpha": -0.75}  # fmt: skip
                    cases += _resize_pair(
                        x, resized(x, size, **onnx), attrs, f"{rows}x{columns}-{size[0]}x{size[1]}-{method}-{rounding}"
                    )
    return cases + _special_resizes()


def _resize_pair(x: Array, expected: Callable[[], Array], attrs: dict[str, Any], label: str) -> list[Case]:
    relative = 0.0 if attrs["method"] == "nearest_neighbor" else 1e-6
    mode = attrs["coordinate_transformation_mode"]

    def case(args: list[Array], run: Callable[[], Array], layout: str) -> Case:
        given = {**attrs, "layout": layout}
        return Case("image.resize2d", args, run, given, relative=relative, label=f"{label}-{mode}-{layout}")

    return _both_layouts(x, expected, case, "NCHW")


def _special_resizes() -> list[Case]:
    x, byte = normal(1, 2, 6, 5), integers(-128, 128, 1, 2, 3, 3, dtype="int8")
    line, volume = normal(2, 3, 9), normal(1, 2, 3, 4, 5)
    roi = np.asarray([0, 0, 0.2, -0.4, 1, 1, 0.9, 1.3], np.float32)
    cropped = ort("Resize", x, roi, None, np.asarray((1, 2, 4, 7), np.int64), opset=13, mode="linear",
                  coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.5)  # fmt: skip
    return [
        Case("image.resize2d", [x], resized(x, (4, 9), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
             {"size": (4, 9), "method": "cubic", "cubic_exclude": 1}, relative=1e-6, label="exclude-outside"),
        Case("image.resize2d", [x], cropped,
             {"size": (4, 7), "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5,
              "roi": tuple(map(float, roi[[2, 3, 6, 7]]))}, relative=1e-6, label="crop"),
        Case("image.resize2d", [byte], lambda: byte.repeat(2, 2).repeat(3, 3),
             {"size": (6, 9), "method": "nearest_neighbor", "rounding_method": ""}, label="int8"),
        Case("image.resize1d", [line], resized(line, (14,), mode="linear"), {"size": (14,)}, relative=1e-6),
        Case("image.resize3d", [volume], resized(volume, (5, 4, 9), mode="linear"), {"size": (5, 4, 9)}, relative=1e-6),
        Case("nn.upsampling", [x], lambda: x.repeat(2, 2).repeat(3, 3), {"scale_h": 2.0, "scale_w": 3}),
        Case("nn.upsampling", [x],
             resized(x, (12, 10), mode="linear", coordinate_transformation_mode="align_corners"),
             {"scale_h": 2, "scale_w": 2, "method": "bilinear", "align_corners": True}, relative=1e-6, label="linear"),
    ]  # fmt: skip


def block_cases() -> list[Case]:
    """Return depth-to-space and space-to-depth cases."""
    x, y = normal(2, 12, 3, 5), normal(2, 3, 6, 4)
    cases: list[Case] = []
    for mode in ("DCR", "CRD"):

        def deep(args: list[Array], run: Callable[[], Array], layout: str, mode: str = mode) -> Case:
            attrs = {"block_size": 2, "layout": layout, "mode": mode}
            return Case("nn.depth_to_space", args, run, attrs, label=f"{mode}-{layout}")

        cases += _both_layouts(x, ort("DepthToSpace", x, blocksize=2, mode=mode), deep, "NCHW")

    def flat(args: list[Array], run: Callable[[], Array], layout: str) -> Case:
        return Case("nn.space_to_depth", args, run, {"block_size": 2, "layout": layout}, label=layout)

    cases += _both_layouts(y, ort("SpaceToDepth", y, blocksize=2), flat, "NCHW")
    back = ort("DepthToSpace", x, blocksize=2, mode="CRD")
    return [
        *cases,
        Case("nn.space_to_depth", [back()], lambda: x, {"block_size": 2, "mode": "CRD"}, label="CRD-inverse"),
    ]
