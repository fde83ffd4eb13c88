"""A small convolutional network in NumPy, sufficient to train the example model from scratch.

Tensors are NHWC, convolution kernels HWIO. Layers: convolution 3x3 (8), convolution 3x3 stride 2 (16), dense (10); both
convolutions use TFLite's SAME padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Weights = dict[str, Array]

STRIDES = {"conv1": 1, "conv2": 2}


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return TFLite's SAME padding before and after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def patches(x: Array, kernel: int, stride: int) -> Array:
    """Return every window of a padded batch: (N, H', W', kernel, kernel, C)."""
    pad = same_padding(x.shape[1], kernel, stride)
    padded = np.pad(x, ((0, 0), pad, pad, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))
    return windows[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)


def initial(rng: np.random.Generator) -> Weights:
    """Return He-scaled weights and zero biases."""
    shapes = {"conv1": (3, 3, 1, 8), "conv2": (3, 3, 8, 16), "dense": (256, 10)}
    weights: Weights = {}
    for name, shape in shapes.items():
        scale = np.sqrt(2 / np.prod(shape[:-1]))
        weights[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights[f"{name}_bias"] = np.zeros(shape[-1], np.float32)
    return weights


@dataclass
class Activations:
    """The values of one forward pass, for `backward` and calibration."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    logits: Array


def forward(weights: Weights, x: Array) -> Activations:
    """Run the network up to the logits."""
    inputs: dict[str, Array] = {}
    outputs: dict[str, Array] = {}
    for name, stride in STRIDES.items():
        inputs[name] = patches(x, 3, stride)
        x = np.maximum(np.einsum("nhwijc,ijco->nhwo", inputs[name], weights[name]) + weights[f"{name}_bias"], 0)
        outputs[name] = x
    inputs["dense"] = x.reshape(len(x), -1)
    return Activations(inputs, outputs, inputs["dense"] @ weights["dense"] + weights["dense_bias"])


def softmax(logits: Array) -> Array:
    """Return probabilities."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _spread(gradient: Array, size: int, stride: int) -> Array:
    """Scatter-add gradients of windows to the tensor from which they were taken."""
    before, after = same_padding(size, 3, stride)
    whole = np.zeros((len(gradient), size + before + after, size + before + after, gradient.shape[-1]), np.float32)
    rows, columns = gradient.shape[1:3]
    for i in range(3):
        for j in range(3):
            whole[:, i : i + rows * stride : stride, j : j + columns * stride : stride] += gradient[:, :, :, i, j]
    return whole[:, before : before + size, before : before + size]


def backward(weights: Weights, seen: Activations, labels: npt.NDArray[np.int64]) -> Weights:
    """Return the gradient of the mean cross-entropy."""
    error = softmax(seen.logits)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    gradient: Weights = {"dense": seen.inputs["dense"].T @ error, "dense_bias": error.sum(axis=0)}
    flow = (error @ weights["dense"].T).reshape(seen.outputs["conv2"].shape)
    for name in ("conv2", "conv1"):
        flow = flow * (seen.outputs[name] > 0)
        gradient[name] = np.einsum("nhwijc,nhwo->ijco", seen.inputs[name], flow)
        gradient[f"{name}_bias"] = flow.sum(axis=(0, 1, 2))
        if name == "conv2":
            windows = np.einsum("nhwo,ijco->nhwijc", flow, weights[name])
            flow = _spread(windows, seen.outputs["conv1"].shape[1], STRIDES[name])
    return gradient


def train(x: Array, labels: npt.NDArray[np.int64], *, epochs: int, seed: int) -> Weights:
    """Train with Adam on shuffled batches of 64."""
    rng = np.random.default_rng(seed)
    weights = initial(rng)
    mean = {name: np.zeros_like(value) for name, value in weights.items()}
    power = {name: np.zeros_like(value) for name, value in weights.items()}
    step = 0
    for epoch in range(epochs):
        rate = 2e-3 * (1 - epoch / epochs)
        order = rng.permutation(len(x))
        for start in range(0, len(x), 64):
            step += 1
            batch = order[start : start + 64]
            gradient = backward(weights, forward(weights, x[batch]), labels[batch])
            for name, value in gradient.items():
                mean[name] += 0.1 * (value - mean[name])
                power[name] += 0.001 * (value * value - power[name])
                update = (mean[name] / (1 - 0.9**step)) / (np.sqrt(power[name] / (1 - 0.999**step)) + 1e-8)
                weights[name] = (weights[name] - rate * update).astype(np.float32)
    return weights
