"""Train the model of this folder: ``python examples/language_model/make_model.py``; requires PyTorch.

The model reads eight letters and writes forty. Each letter that it writes is the most likely one, and the input of the
next step, so a board needs one call for a sentence.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from onnx import helper
from text import ALPHABET, LENGTH, PROMPT, TEXT, numbers
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from onnx_file import save

UNITS, SIZE = 64, 12


def from_pytorch(weights: np.ndarray) -> np.ndarray:
    """Reorder a GRU's weights from PyTorch's gate order (r, z, h) to ONNX's (z, r, h)."""
    r, z, h = np.split(weights, 3)
    return np.concatenate([z, r, h])


def nodes() -> list:
    """Return the graph: the prompt as one sequence, then one step per letter."""
    node = helper.make_node
    gru = {"hidden_size": UNITS, "linear_before_reset": 1}
    made = [
        node("Gather", ["table", "prompt"], ["read"]),
        node("Unsqueeze", ["read", "one"], ["sequence"]),
        node("GRU", ["sequence", "W", "R", "B"], ["", "h0"], **gru),
    ]
    for step in range(LENGTH):
        made += [
            node("Reshape", [f"h{step}", "flat"], [f"f{step}"]),
            node("Gemm", [f"f{step}", "w", "b"], [f"s{step}"], transB=1),
            node("ArgMax", [f"s{step}"], [f"l{step}"], axis=1, keepdims=0),
        ]
        if step < LENGTH - 1:
            made += [
                node("Gather", ["table", f"l{step}"], [f"e{step}"]),
                node("Unsqueeze", [f"e{step}", "one"], [f"q{step}"]),
                node("GRU", [f"q{step}", "W", "R", "B", "", f"h{step}"], ["", f"h{step + 1}"], **gru),
            ]
    return [*made, node("Concat", [f"l{step}" for step in range(LENGTH)], ["written"], axis=0)]


def main() -> None:
    """Train on the text, and write the model."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table, gru, last = nn.Embedding(len(ALPHABET), SIZE), nn.GRU(SIZE, UNITS), nn.Linear(UNITS, len(ALPHABET))
    read = torch.from_numpy(numbers(TEXT))
    window = 64
    starts = np.random.default_rng(0)
    optimizer = torch.optim.Adam([*table.parameters(), *gru.parameters(), *last.parameters()], 5e-3)
    for _ in range(600):
        places = torch.from_numpy(starts.integers(0, len(read) - window - 1, 16))
        taken = torch.stack([read[place : place + window + 1] for place in places], 1)
        scores = last(gru(table(taken[:-1]))[0])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), taken[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss of a letter: {loss.item():.2f}")
    state = {name: value.numpy() for name, value in gru.state_dict().items()}
    weights = {
        "W": from_pytorch(state["weight_ih_l0"])[None], "R": from_pytorch(state["weight_hh_l0"])[None],
        "B": np.concatenate([from_pytorch(state["bias_ih_l0"]), from_pytorch(state["bias_hh_l0"])])[None],
        "table": table.weight.detach().numpy(), "w": last.weight.detach().numpy(), "b": last.bias.detach().numpy(),
        "flat": np.array([1, UNITS], np.int64), "one": np.array([1], np.int64),
    }  # fmt: skip
    shapes = {"prompt": (PROMPT,)}, {"written": (LENGTH,)}
    save(Path(__file__).with_name("model.onnx"), nodes(), weights, *shapes, integers=("prompt", "written"))


if __name__ == "__main__":
    main()
