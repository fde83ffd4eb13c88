"""Train the model of this folder and quantize it: ``python examples/person_detection/make_model.py``.

Requires PyTorch and ONNX Runtime.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from onnx import helper
from scenes import KINDS, SIDE, centered, draw
from torch import nn

import mlfc

sys.path.insert(0, str(Path(__file__).parents[1]))
from onnx_file import save, weights_of


class Model(nn.Module):
    """A small network in the style of MobileNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.depth1 = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.point1 = nn.Conv2d(8, 16, 1)
        self.depth2 = nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16)
        self.point2 = nn.Conv2d(16, 32, 1)
        self.depth3 = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.point3 = nn.Conv2d(32, 32, 1)
        self.last = nn.Linear(32, 2)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return the scores for no person and for a person."""
        hidden = torch.relu(self.first(picture))
        hidden = torch.relu(self.point1(torch.relu(self.depth1(hidden))))
        hidden = torch.relu(self.point2(torch.relu(self.depth2(hidden))))
        hidden = torch.relu(self.point3(torch.relu(self.depth3(hidden))))
        return self.last(hidden.amax((2, 3)))


LAYERS = {"first": (2, 1), "depth1": (2, 8), "point1": (1, 1), "depth2": (2, 16), "point2": (1, 1), "depth3": (1, 32),
          "point3": (1, 1)}  # fmt: skip
"""Stride and groups of the convolutions."""


def nodes() -> list:
    """Return the graph."""
    node = helper.make_node
    made, last = [], "picture"
    for name, (stride, groups) in LAYERS.items():
        pads = [0 if name.startswith("point") else 1] * 4
        inputs = [last, f"{name}.weight", f"{name}.bias"]
        made.append(node("Conv", inputs, [f"{name}.sum"], strides=[stride] * 2, pads=pads, group=groups))
        made.append(node("Relu", [f"{name}.sum"], [last := f"{name}.out"]))
    made.append(node("GlobalMaxPool", [last], ["pooled"]))
    made.append(node("Flatten", ["pooled"], ["flat"]))
    made.append(node("Gemm", ["flat", "last.weight", "last.bias"], ["scores"], transB=1))
    return made


def main() -> None:
    """Train, quantize and write the model."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    kinds = rng.choice([0, 0, 0, 1, 2, 3, 4], 4500)
    pictures = torch.from_numpy(np.stack([centered(draw(KINDS[kind], rng)) for kind in kinds])[:, None])
    wanted = torch.from_numpy((kinds == 0).astype(np.int64))
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(14):
        for chosen in torch.randperm(4000).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pictures[chosen]), wanted[chosen]).backward()
            optimizer.step()
    right = (model(pictures[4000:]).argmax(1) == wanted[4000:]).float().mean()
    print(f"float: right on {right:.1%} of 500 new pictures")
    names = {f"{layer}.{kind}": f"{layer}.{kind}" for layer in (*LAYERS, "last") for kind in ("weight", "bias")}
    weights = weights_of(model, names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save(path, nodes(), weights, {"picture": (1, 1, SIDE, SIDE)}, {"scores": (1, 2)})
        samples = [{"picture": picture[None].numpy()} for picture in pictures[:200]]
        mlfc.quantize(path, samples, Path(__file__).with_name("model.onnx"))
    print(f"int8: {Path(__file__).with_name('model.onnx').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
