"""Layout and units of inputs: what is taken, what is refused with advice, what is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import softhull
from softhull.errors import InputWarning, InvalidInput, ModelError
from softhull.formats.inputs import fit_layout
from softhull.formats.network import Network
from softhull.formats.torch_module import from_torch
from softhull.regions import Perturbation

SHAPE = (1, 3, 4, 5)


@pytest.mark.parametrize("given", [(2, 1, 3, 4, 5), (2, 3, 4, 5), (2, 60), (2, 60, 1), (2, 3, 1, 4, 5)])
def test_equal_flat_and_singleton_layouts_are_taken(given: tuple[int, ...]) -> None:
    x = torch.arange(120.0).reshape(given)
    assert torch.equal(fit_layout(x, SHAPE, 2), torch.arange(120.0).reshape(2, *SHAPE))


def test_one_input_alone_is_taken():
    x = torch.rand(3, 4, 5)
    assert torch.equal(fit_layout(x, SHAPE, 1), x[None, None])


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ((2, 4, 5, 3), r"x.transpose\(0, 3, 1, 2\)"),
        ((2, 5, 4, 3), r"x.transpose\(0, 3, 2, 1\)"),
        ((2, 1, 4, 5, 3), r"x.transpose\(0, 4, 2, 3, 1\)"),
        ((2, 12, 5), r"give \[instances, 3, 4, 5\]"),
        ((3, 3, 4, 5), "3 inputs but 2 labels"),
        ((2, 3, 4, 6), r"x of shape \(2, 3, 4, 6\) does not fit the network's input \(1, 3, 4, 5\)"),
    ],
)
def test_other_layouts_are_refused_with_advice(given: tuple[int, ...], advice: str) -> None:
    with pytest.raises(InvalidInput, match=advice):
        fit_layout(torch.zeros(given), SHAPE, 2)


def test_the_advice_is_right():
    x = np.random.default_rng(0).random((2, 3, 4, 5))
    rows_first = x.transpose(0, 2, 3, 1)
    with pytest.raises(InvalidInput) as raised:
        fit_layout(torch.from_numpy(rows_first), SHAPE, 2)
    order = [int(n) for n in str(raised.value).split("transpose(")[1].split(")")[0].split(",")]
    assert np.array_equal(rows_first.transpose(order), x)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.fixture(scope="module")
def images(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand((6, 3, 2, 2), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return x, module(x).argmax(1)


@pytest.fixture(scope="module")
def network(module: nn.Module, images: tuple[torch.Tensor, torch.Tensor]) -> Network:
    return from_torch(module, images[0][:1])


@pytest.mark.slow
def test_torch_modules_go_in_directly(
    module: nn.Module, network: Network, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, y = images
    asked: list[Callable[[Any, Any], Any]] = [
        lambda net, p: [r.bound for r in softhull.verify_robustness(net, x, y, p).records],
        lambda net, p: softhull.certified_radius(net, x, y, p, steps=2).tolist(),
        lambda net, p: softhull.verify_uncertainty(net, x, y, p).column("bound").tolist(),
        lambda net, p: softhull.certify_dataset(net, x, y, p).metrics,
        lambda net, p: softhull.Conformal(net, x, y, 0.3, perturbation=p).sets(x, p).members.tolist(),
    ]
    for ask in asked:
        assert ask(module, 0.01) == ask(network, Perturbation(0.01))
    assert softhull.verify_robustness(module, x[0], int(y[0]), 0.01)[0].verdict is softhull.Verdict.CERTIFIED


@pytest.mark.slow
def test_bytes_are_scaled_once_and_said_so(network: Network, images: tuple[torch.Tensor, torch.Tensor]) -> None:
    raw = (images[0] * 255).to(torch.uint8)
    y = network.logits(raw.double()[:, None] / 255).flatten(1).argmax(1)
    with pytest.warns(InputWarning, match="divided by 255") as said:
        scaled = softhull.verify_robustness(network, raw, y, 0.001)
    assert said[0].filename == __file__
    plain = softhull.verify_robustness(network, raw.double() / 255, y, 0.001)
    assert [r.bound for r in scaled.records] == [r.bound for r in plain.records]


@pytest.mark.slow
def test_likely_mistakes_are_warned_of(network: Network, images: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = images
    with pytest.warns(InputWarning, match="counts steps of 1/255, write 8/255 = 0.03137"):
        softhull.verify_robustness(network, x, y, 8, attack=False)
    shifted = y + 1 if int(y.max()) < 2 else (y + 1) % 3
    with pytest.warns(InputWarning, match="all 6 inputs are misclassified; most labels are the predicted class plus 1"):
        softhull.verify_robustness(network, x, shifted, 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        softhull.verify_robustness(network, x, y, 0.01)


@pytest.mark.slow
def test_words_without_alternatives_are_warned_of() -> None:
    """A table in another scale matches nothing: what is certified is then the text alone."""
    table = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    network, x = from_torch(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), torch.rand(1, 3, 4)), table[[[0, 1, 2]]]
    y = network.logits(torch.from_numpy(x).double()[:, None]).flatten(1).argmax(1)
    with pytest.warns(InputWarning, match="no word of the inputs has alternatives; every region is its input alone"):
        softhull.verify_robustness(network, x, y, softhull.Alternatives(table, {4: (0,)}))
    with pytest.warns(InputWarning, match="none is a row of the table: compare their scale, dtype and added positions"):
        softhull.verify_robustness(network, x, y, softhull.Alternatives(2 * table, {0: (1,)}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        softhull.verify_robustness(network, x, y, softhull.Alternatives(table, {0: (1,)}))


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Unknown(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svd(x)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing", "example", "reason"),
    [
        (nn.Linear(3, 2), torch.rand(1, 4), "shapes cannot be multiplied"),
        (Branching(), torch.rand(1, 3), "data-dependent"),
        (Unknown(), torch.rand(1, 3, 3), "No ONNX function found for .*svd"),
    ],
)
def test_a_failed_export_ends_in_one_line_with_the_reason(
    failing: nn.Module, example: torch.Tensor, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError, match=reason) as raised:
        from_torch(failing, example)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(f"torch module {type(failing).__name__}")
    assert "".join(capfd.readouterr()) == ""
