"""Models of torch by the default settings of its exporter: read, bounded, sampled and attacked; some proved.

All models, those of transformers and timm among them, with certificates and figures: ``make models``.
"""

from __future__ import annotations

import pytest
from benchmarks.models import BEGIN, END, MODELS, PAGE, measure, table

LONG = {"encoder, 4 layers", "encoder, 1 layer, pre-norm", "group norm, nearest upsampling"}
LONG |= {"multi-head attention, float mask", "group norm, transposed convolution"}
# Each is another here but for its mask, its activation or the order of its layers.
LONG |= {"encoder, 2 layers, pre-norm, GELU", "encoder, 1 layer", "dot-product attention, float mask"}
LONG |= {"multi-head attention", "dot-product attention", "encoder, 1 layer, GELU"}
TORCH = [name for name in MODELS if not name.startswith(("transformers", "timm")) and name not in LONG]
PROVED = {"dot-product attention, boolean mask", "LeNet", "U-Net", "recurrent cells, unrolled"}
PROVED |= {"group norm, bilinear upsampling"}


@pytest.mark.parametrize("name", TORCH)
def test_a_default_export_is_bounded_and_proved(name):
    row = measure(name, certificate=name in PROVED, samples=100)
    assert row["verdict"] == "certified"
    assert row["gap"] <= 0.1
    if name in PROVED:
        assert row["certificate"].startswith("accepted")


def test_the_documentation_has_a_row_for_every_model():
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert [name for name in MODELS if f"| {name} |" not in shown] == []
    assert table([{"model": "m", "refused": "why"}]).endswith("| m | | not run: why | | | | | |")
