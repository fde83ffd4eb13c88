"""Train the model of this folder in a minute: ``python examples/keyword_spotting/make_model.py``; requires PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from onnx import helper
from speech import RATE, WINDOW, WORDS, say
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from onnx_file import save, weights_of

BANDS, TAPS, HOP = 24, 192, 96


def filters() -> np.ndarray:
    """Return windowed cosines and sines for each auditory band; they replace a spectrum."""
    edges = np.geomspace(150, 3800, BANDS)
    times = np.arange(TAPS) / RATE
    waves = np.concatenate([np.cos(2 * np.pi * edges[:, None] * times), np.sin(2 * np.pi * edges[:, None] * times)])
    return (waves * np.hanning(TAPS) / TAPS * 8)[:, None].astype(np.float32)


class Model(nn.Module):
    """Band energies over time, then two convolutions and an average."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", torch.from_numpy(filters()))
        self.first = nn.Conv1d(BANDS, 24, 5, stride=2)
        self.second = nn.Conv1d(24, 32, 5, stride=2)
        self.last = nn.Linear(32, len(WORDS))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """Return scores of the words."""
        waves = nn.functional.conv1d(sound, self.filters, stride=HOP)
        energy = torch.log(waves[:, :BANDS] ** 2 + waves[:, BANDS:] ** 2 + 1e-4)
        hidden = torch.relu(self.second(torch.relu(self.first(energy))))
        return self.last(hidden.amax(2))


def nodes() -> list:
    """Return the graph."""
    node = helper.make_node
    return [
        node("Conv", ["sound", "filters"], ["waves"], strides=[HOP]),
        node("Mul", ["waves", "waves"], ["squares"]),
        node("Split", ["squares"], ["cosines", "sines"], axis=1),
        node("Add", ["cosines", "sines"], ["sums"]),
        node("Add", ["sums", "least"], ["energy"]),
        node("Log", ["energy"], ["bands"]),
        node("Conv", ["bands", "w1", "b1"], ["c1"], strides=[2]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], strides=[2]),
        node("Relu", ["c2"], ["r2"]),
        node("ReduceMax", ["r2"], ["most"], axes=[2], keepdims=0),
        node("Gemm", ["most", "w3", "b3"], ["logits"], transB=1),
        node("Softmax", ["logits"], ["words"]),
    ]


def main() -> None:
    """Train and write the model."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    labels = np.arange(3000) % len(WORDS)
    sounds = torch.from_numpy(np.stack([say(WORDS[label], rng) for label in labels])[:, None])
    wanted = torch.from_numpy(labels)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(14):
        for chosen in torch.randperm(len(labels)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(sounds[chosen]), wanted[chosen]).backward()
            optimizer.step()
    fresh = torch.from_numpy(np.stack([say(WORDS[label], rng) for label in labels[:500]])[:, None])
    right = (model(fresh).argmax(1) == wanted[:500]).float().mean()
    print(f"right: {right:.1%} of 500 new sounds")
    names = {
        "filters": "filters", "first.weight": "w1", "first.bias": "b1", "second.weight": "w2", "second.bias": "b2",
        "last.weight": "w3", "last.bias": "b3",
    }  # fmt: skip
    weights = {**weights_of(model, names), "least": np.float32(1e-4)}
    save(
        Path(__file__).with_name("model.onnx"), nodes(), weights, {"sound": (1, 1, WINDOW)}, {"words": (1, len(WORDS))}
    )


if __name__ == "__main__":
    main()
