"""Train the model of this folder: ``python examples/anomaly_detection/make_model.py``; requires PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from machine import BANDS, spectrum
from onnx import helper
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from onnx_file import save, weights_of

LAYERS = (BANDS, 32, 6, 32, BANDS)


def nodes() -> list:
    """Return the nodes of an autoencoder; the output is the mean squared error of the reconstructed spectrum."""
    made, last = [], "spectrum"
    for index in range(len(LAYERS) - 1):
        made.append(helper.make_node("Gemm", [last, f"w{index}", f"b{index}"], [f"g{index}"], transB=1))
        last = f"g{index}"
        if index < len(LAYERS) - 2:
            made.append(helper.make_node("Relu", [last], [f"r{index}"]))
            last = f"r{index}"
    made.append(helper.make_node("Sub", [last, "spectrum"], ["difference"]))
    made.append(helper.make_node("Mul", ["difference", "difference"], ["squares"]))
    made.append(helper.make_node("ReduceMean", ["squares"], ["anomaly"], axes=[1], keepdims=1))
    return made


def main() -> None:
    """Train on a healthy machine, and write the model."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    normal = torch.from_numpy(np.stack([spectrum(rng) for _ in range(2000)]))
    layers: list[nn.Module] = []
    for index in range(len(LAYERS) - 1):
        layers += [nn.Linear(LAYERS[index], LAYERS[index + 1]), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(40):
        for chosen in torch.randperm(len(normal)).split(50):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(normal[chosen]), normal[chosen]).backward()
            optimizer.step()
    names = {f"{2 * index}.{kind}": f"{kind[0]}{index}" for index in range(4) for kind in ("weight", "bias")}
    shapes = {"spectrum": (1, BANDS)}, {"anomaly": (1, 1)}
    save(Path(__file__).with_name("model.onnx"), nodes(), weights_of(model, names), *shapes)


if __name__ == "__main__":
    main()
