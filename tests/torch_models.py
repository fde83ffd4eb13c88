"""Small networks of PyTorch with seeded random weights, and modules that cannot be compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of quantized programs
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)


@contextmanager
def one_registry() -> Iterator[None]:
    """Cache the exporter's operator registry: reading its five hundred functions takes a second per model."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


class Cnn(nn.Module):
    """Plain and depthwise convolutions with the layers that usually follow them; left in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, stride=2),
            nn.BatchNorm2d(8),
            nn.ReLU6(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.Hardswish(),
            nn.MaxPool2d(2),
        )
        self.drop = nn.Dropout()
        self.head = nn.Linear(8, 10)

    def forward(self, image: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.drop(self.features(image).mean((2, 3)))), -1)


class Vit(nn.Module):
    """A vision transformer with a class token."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True, activation="gelu", norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Gru(nn.Module):
    """Two bidirectional layers; returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 8, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor, h: Tensor) -> dict[str, Tensor]:
        y, h = self.rnn(x, h)
        return {"scores": self.head(y), "h": h}


class Decoder(nn.Module):
    """One decoder block with a KV cache in buffers: it maps a token to the scores of the next token."""

    LENGTH, VOCABULARY = 12, 20

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(self.VOCABULARY, width)
        self.position = nn.Parameter(torch.randn(self.LENGTH, width))
        self.norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, self.VOCABULARY)
        self.register_buffer("keys", torch.zeros(1, heads, self.LENGTH, width // heads))
        self.register_buffer("values", torch.zeros(1, heads, self.LENGTH, width // heads))
        self.register_buffer("bias", torch.full((1, 1, 1, self.LENGTH), -10.0))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, token: Tensor) -> Tensor:
        x = self.embed(token) + self.position[self.count]
        query, key, value = self.qkv(self.norm(x)).view(1, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, self.count, key)
        self.values.index_copy_(2, self.count, value)
        self.bias.index_fill_(3, self.count, 0.0)
        mixed = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=self.bias)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, -1))
        self.count.add_(1)
        return self.head(x)[0, 0]


class Generator(nn.Module):
    """The decoder with greedy decoding: the likeliest token is the input of the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder()
        self.register_buffer("token", torch.zeros(1, 1, dtype=torch.int64))

    def forward(self, first: Tensor) -> Tensor:
        given = first.clamp(0, Decoder.VOCABULARY - 1)
        token = torch.where(self.decoder.count == 0, given, self.token)
        following = self.decoder(token).argmax().view(1, 1)
        self.token.copy_(following)
        return following


class Quantized(nn.Module):
    """Convolutions between fake quantizations, as after quantization-aware training."""

    STEP = 0.03  # of the output

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def quantized(self, x: Tensor, scale: float, zero_point: int) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, -128, 127)

    def forward(self, x: Tensor) -> Tensor:
        x, weight = self.quantized(x, 0.05, 3), self.quantized(self.conv.weight, 0.01, 0)
        return self.quantized(torch.relu(F.conv2d(x, weight, self.conv.bias)), self.STEP, -128)


class QuantizedPt2e(Quantized):
    """The same network with the operators of PyTorch 2 Export quantization."""

    def quantized(self, x: Tensor, scale: float, zero_point: int) -> Tensor:
        operators = torch.ops.quantized_decomposed
        integers = operators.quantize_per_tensor(x, scale, zero_point, -128, 127, torch.int8)
        return operators.dequantize_per_tensor(integers, scale, zero_point, -128, 127, torch.int8)


class Names(nn.Module):
    """Tensors that are returned unchanged or twice, nested results, and names that clash."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), 2.0))
        self.output = nn.Parameter(torch.full((3,), 5.0))

    def forward(self, w: Tensor, *, factor: int = 2, bias: Tensor | None = None) -> dict[str, Any]:
        return {
            "w": w * self.w * factor,
            "same": w,
            "weight": self.w,
            "sum": w + self.output,
            "nested": [w + 1, (w + bias,)],
            "none": None,
            "again": w,
            "w_out": w - 1,
        }


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # the line that messages name
            return x
        return x + 1


class UsesNumpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy())


class SingularValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x)


class Positions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.nonzero()


class WritesInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2


class ReturnsText(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return x, "text"


def after_linear(inner: nn.Module) -> nn.Module:
    """Return a module with `inner` as its submodule ``1``."""
    return nn.Sequential(nn.Linear(3, 3), inner)


def seeded(make: Callable[[], nn.Module]) -> Any:
    """Return a module with random weights and non-default batch statistics."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make()
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)
        return module
