"""Train the model of this folder: ``python examples/gesture/make_model.py``; requires PyTorch.

The model takes one sample at a time. The state of its LSTM is an input and an output.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from motion import GESTURES, move
from onnx import helper
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from onnx_file import save

UNITS, STEPS, PARTS = 16, 45, 4
UNSURE, TO_NOTICE = -100, 15
"""Label and number of the ambiguous samples after each change of gesture."""


def made(rng: np.random.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of several gestures, and the label of each sample."""
    labels = rng.integers(0, len(GESTURES), (count, PARTS))
    moves = [np.concatenate([move(GESTURES[label], STEPS, rng) for label in row]) for row in labels]
    wanted = np.repeat(labels, STEPS, axis=1)
    wanted.reshape(count, PARTS, STEPS)[:, :, :TO_NOTICE] = UNSURE
    return torch.from_numpy(np.stack(moves)), torch.from_numpy(wanted)


def from_pytorch(weights: np.ndarray) -> np.ndarray:
    """Reorder an LSTM's weights from PyTorch's gate order (i, f, c, o) to ONNX's (i, o, f, c)."""
    i, f, c, o = np.split(weights, 4)
    return np.concatenate([i, o, f, c])


def main() -> None:
    """Train on sequences of gestures, and write the model of one step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    moves, wanted = made(rng, 600)
    lstm, last = nn.LSTM(3, UNITS, batch_first=True), nn.Linear(UNITS, len(GESTURES))
    optimizer = torch.optim.Adam([*lstm.parameters(), *last.parameters()], 1e-2)
    for _ in range(40):
        for chosen in torch.randperm(len(moves)).split(30):
            optimizer.zero_grad()
            scores = last(lstm(moves[chosen])[0])
            nn.functional.cross_entropy(scores.flatten(0, 1), wanted[chosen].flatten(), ignore_index=UNSURE).backward()
            optimizer.step()
    fresh, expected = made(rng, 100)
    found = last(lstm(fresh)[0]).argmax(2)[expected != UNSURE]
    print(f"right: {(found == expected[expected != UNSURE]).float().mean():.1%} of new samples")
    state = {name: value.numpy() for name, value in lstm.state_dict().items()}
    weights = {
        "W": from_pytorch(state["weight_ih_l0"])[None], "R": from_pytorch(state["weight_hh_l0"])[None],
        "B": np.concatenate([from_pytorch(state["bias_ih_l0"]), from_pytorch(state["bias_hh_l0"])])[None],
        "w": last.weight.detach().numpy(), "b": last.bias.detach().numpy(), "flat": np.array([1, UNITS], np.int64),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("LSTM", ["sample", "W", "R", "B", "", "h_in", "c_in"], ["", "h_out", "c_out"], hidden_size=UNITS),
        node("Reshape", ["h_out", "flat"], ["hidden"]),
        node("Gemm", ["hidden", "w", "b"], ["logits"], transB=1),
        node("Softmax", ["logits"], ["gestures"]),
    ]
    inputs = {"sample": (1, 1, 3), "h_in": (1, 1, UNITS), "c_in": (1, 1, UNITS)}
    outputs = {"gestures": (1, len(GESTURES)), "h_out": (1, 1, UNITS), "c_out": (1, 1, UNITS)}
    save(Path(__file__).with_name("model.onnx"), nodes, weights, inputs, outputs)


if __name__ == "__main__":
    main()
