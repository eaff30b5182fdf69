"""Torch modules come in through the same importer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from softhull.errors import ModelError
from softhull.formats.describe import describe
from softhull.formats.torch_module import from_torch

from ..graph.checks import assert_sound


class Encoder(nn.Module):
    """A small transformer: attention, residuals, layer normalisation, gelu, a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.norm = nn.LayerNorm(8)
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.mix = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        h = self.norm(x)
        q, k, v = (layer(h).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(mask, -torch.inf)
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + self.mix(x)
        return self.head(x.mean(1))


@pytest.mark.slow
def test_transformer():
    torch.manual_seed(0)
    module = Encoder().train()
    network = from_torch(module, torch.rand(1, 5, 3))
    assert module.training
    x = torch.rand(4, 1, 5, 3)
    module.eval()
    with torch.no_grad():
        expected = torch.stack([module(one) for one in x])
    torch.testing.assert_close(network.graph(x.double()).float(), expected, rtol=1e-4, atol=1e-5)
    kinds = [row.operator for row in describe(network)]
    assert kinds.count("Softmax") == 1
    assert kinds.count("Gelu") == 1
    assert kinds.count("Normalized") == 2
    assert_sound(network.graph, seed=1, radius=0.01)


@pytest.mark.slow
def test_convolutional_classifier():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU6(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 4),
        nn.Softmax(-1),
    )
    network = from_torch(module, torch.rand(1, 1, 8, 8))
    assert network.final == "softmax"
    assert network.logits.output_shape == (1, 4)
    assert_sound(network.graph, seed=1)


@pytest.mark.slow
class _Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(-1).values


class _LastOf(nn.Module):
    """The last answer of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)[0][:, -1]
        return found


class _Blind(nn.Module):
    """Attention whose second query may look at nothing; a boolean mask is exported as the lowest float."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        heads = x[:, None]
        return nn.functional.scaled_dot_product_attention(heads, heads, heads, self.mask).flatten(1)


SEEN = torch.tensor([[True, False], [False, False]])


@pytest.mark.parametrize(
    ("module", "example", "said"),
    [
        (_Sorted(), torch.rand(1, 4), r"torch module _Sorted: node .* \(TopK\)"),
        (_LastOf(nn.LSTM(3, 2, batch_first=True)), torch.rand(1, 4, 3), r"\(LSTM\).*nn\.LSTMCell in a loop"),
        (nn.Linear(4, 2).half(), torch.rand(1, 4).half(), r"single precision, with module\.float\(\)"),
        (nn.Conv2d(3, 2, 2), torch.rand(1, 5, 5, 3), r"another order: give x\.permute\(0, 3, 1, 2\)"),
        (_Blind(SEEN), torch.rand(1, 2, 3), r"\(Softmax\): all logits of a row are masked; leave one"),
        (_Blind(SEEN.float().log()), torch.rand(1, 2, 3), r"\(Softmax\): all logits of a row are masked; leave one"),
    ],
)
def test_what_cannot_be_used_is_named(module, example, said):
    with pytest.raises(ModelError, match=said):
        from_torch(module, example)


class Padded(nn.Module):
    """In evaluation mode torch leaves padding out, and zeros in its place; the exporter does not."""

    def __init__(self, shortcut: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=shortcut)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x, src_key_padding_mask=padding)
        return found.mean(1)


@pytest.mark.slow
def test_an_export_that_is_not_the_module_is_refused() -> None:
    torch.manual_seed(0)
    example = torch.randn(1, 3, 4), torch.tensor([[False, False, True]])
    with pytest.raises(ModelError, match=r"exports differs from the module by .*enable_nested_tensor=False"):
        from_torch(Padded(True), example)
    module = Padded(False).eval()
    network = from_torch(module, example)
    with torch.no_grad():
        expected = module(*example)
    torch.testing.assert_close(network.graph(example[0].double()[None])[0].float(), expected)
