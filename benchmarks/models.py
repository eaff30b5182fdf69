"""Models that people bring, in small random configurations, exported by the default settings of torch.

Nothing is downloaded: the configurations of ``transformers`` and ``timm`` make the networks, with random weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import io
import json
import logging
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import softhull
from softhull.attack.pgd import minimize_margin
from softhull.certificates.write import class_certificate
from softhull.checker.certificate import write_certificate
from softhull.graph.graph import Graph

Made = tuple[nn.Module, Tensor]
MODELS: dict[str, Callable[[], Made]] = {}
WIDTH, TOKENS, CLASSES = 8, 6, 3


def model(name: str, *settings: Any) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Register what makes a module and an example input."""

    def register(make: Callable[..., Made]) -> Callable[..., Made]:
        MODELS[name] = lambda: make(*settings)
        return make

    return register


class Head(nn.Module):
    """Something that maps tokens to tokens, then the mean of them to classes."""

    def __init__(self, body: nn.Module | Callable[[Tensor], Tensor], width: int = WIDTH) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x).mean(1))
        return found


def _tokens() -> Tensor:
    return torch.randn(1, TOKENS, WIDTH)


@model("encoder, 1 layer", 1, False, "relu")
@model("encoder, 1 layer, pre-norm", 1, True, "relu")
@model("encoder, 1 layer, GELU", 1, False, "gelu")
@model("encoder, 2 layers, pre-norm, GELU", 2, True, "gelu")
@model("encoder, 4 layers", 4, False, "relu")
def _encoder(layers: int, first: bool, activation: str) -> Made:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, activation=activation, batch_first=True, norm_first=first)
    return Head(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)), _tokens()


class _MultiHead(nn.Module):
    def __init__(self, mask: str) -> None:
        super().__init__()
        self.attention, self.mask = nn.MultiheadAttention(WIDTH, 2, batch_first=True), mask

    def forward(self, x: Tensor) -> Tensor:
        later = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)
        mask = {"none": None, "boolean": later, "float": torch.where(later, float("-inf"), 0.0)}[self.mask]
        found: Tensor = self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return found


@model("multi-head attention", "none")
@model("multi-head attention, boolean mask", "boolean")
@model("multi-head attention, float mask", "float")
def _multi_head(mask: str) -> Made:
    return Head(_MultiHead(mask)), _tokens()


class _DotProduct(nn.Module):
    def __init__(self, mask: str) -> None:
        super().__init__()
        self.three, self.mask = nn.Linear(WIDTH, 3 * WIDTH), mask

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.three(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        later = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)
        mask = {"boolean": ~later, "float": torch.where(later, -1e9, 0.0)}.get(self.mask)
        y = scaled_dot_product_attention(query, key, value, mask, is_causal=self.mask == "causal")
        return y.transpose(1, 2).flatten(2)


@model("dot-product attention", "none")
@model("dot-product attention, causal", "causal")
@model("dot-product attention, boolean mask", "boolean")
@model("dot-product attention, float mask", "float")
def _dot_product(mask: str) -> Made:
    return Head(_DotProduct(mask)), _tokens()


class _Padded(nn.Module):
    """An encoder that is told of its last tokens that they are padding, or of every token not to look ahead."""

    def __init__(self, layers: int, causal: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, layers), nn.Linear(WIDTH, CLASSES)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        if self.causal:
            y = self.body(x, mask=nn.Transformer.generate_square_subsequent_mask(TOKENS), is_causal=True)[:, -1]
        else:
            y = self.body(x, src_key_padding_mask=torch.arange(TOKENS)[None] >= TOKENS - 2)[:, 0]
        found: Tensor = self.head(y)
        return found


@model("encoder, 1 layer, padding mask", 1, False)
@model("encoder, 2 layers, causal", 2, True)
def _padded(layers: int, causal: bool) -> Made:
    return _Padded(layers, causal), _tokens()


class _Decoder(nn.Module):
    """A decoder layer that attends to a memory that is part of the model."""

    memory: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = (
            nn.TransformerDecoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True),
            nn.Linear(WIDTH, CLASSES),
        )
        self.register_buffer("memory", torch.randn(1, 4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(x, self.memory).mean(1))
        return found


@model("decoder layer, fixed memory")
def _decoder() -> Made:
    return _Decoder(), _tokens()


class _Rotary(nn.Module):
    """A block as large language models have it, by hand: RMS norm, rotary positions, causal attention, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ParameterList(torch.ones(WIDTH) for _ in range(2))
        self.three, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(*size, bias=False) for size in ((WIDTH, 12), (WIDTH, 12), (12, WIDTH))
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def normed(self, x: Tensor, number: int) -> Tensor:
        return self.norms[number] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def turned(self, x: Tensor) -> Tensor:
        rates = 1e4 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
        angle = torch.arange(x.shape[-2])[:, None] * rates
        even, odd = x[..., ::2], x[..., 1::2]
        both = even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()
        return torch.stack(both, -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.three(self.normed(x, 0)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(self.turned(query), self.turned(key), value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        normed = self.normed(x, 1)
        x = x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        found: Tensor = self.head(x[:, -1])
        return found


@model("rotary attention, RMS norm, SwiGLU, by hand")
def _rotary() -> Made:
    return _Rotary(), _tokens()


class _Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.three = nn.ParameterList(torch.randn(WIDTH, 2, WIDTH // 2) / 3 for _ in range(3))
        self.out, self.head = nn.Parameter(torch.randn(2, WIDTH // 2, WIDTH) / 3), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (torch.einsum("btd,dhe->bhte", x, matrix) for matrix in self.three)
        p = (torch.einsum("bhqe,bhke->bhqk", query, key) / 2).softmax(-1)
        mixed = torch.einsum("bhqk,bhke->bhqe", p, value)
        found: Tensor = self.head(torch.einsum("bhqe,hed->bqd", mixed, self.out).mean(1))
        return found


@model("attention by einsum")
def _einsum() -> Made:
    return _Einsum(), _tokens()


class _Enlarged(nn.Module):
    """A convolution and a group normalisation, enlarged in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4)
        ways: dict[str, Callable[[], nn.Module]] = {
            "nearest": lambda: nn.Upsample(scale_factor=2),
            "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
            "pixels": lambda: nn.Sequential(nn.Conv2d(4, 16, 1), nn.PixelShuffle(2)),
            "transposed": lambda: nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1),
        }
        self.up, self.out = ways[how](), nn.Conv2d(4, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.up(self.norm(self.down(x)).relu())).mean((2, 3))


@model("group norm, nearest upsampling", "nearest")
@model("group norm, bilinear upsampling", "bilinear")
@model("group norm, pixel shuffle", "pixels")
@model("group norm, transposed convolution", "transposed")
def _enlarged(how: str) -> Made:
    return _Enlarged(how), torch.rand(1, 1, 8, 8)


@model("LeNet")
def _lenet() -> Made:
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.LogSoftmax(-1)), (
        torch.rand(1, 1, 8, 8)
    )


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(4, 3, 2, stride=2), nn.Conv2d(6, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down(x).relu()
        deep = self.deep(nn.functional.max_pool2d(wide, 2)).relu()
        return self.out(torch.cat((wide, self.up(deep)), 1)).mean((2, 3))


@model("U-Net")
def _unet() -> Made:
    return _UNet(), torch.rand(1, 1, 6, 6)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(1, WIDTH)
        for token in range(x.shape[1]):
            state = self.cell(x[:, token], state)
        found: Tensor = self.head(state)
        return found


@model("recurrent cells, unrolled")
def _recurrent() -> Made:
    return _Recurrent(), _tokens()


class _Logits(nn.Module):
    """A model of ``transformers``, fed with what its arguments say, answering with its logits alone."""

    def __init__(self, model: nn.Module, argument: str) -> None:
        super().__init__()
        self.model, self.argument = model, argument

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(**{self.argument: x}).logits
        return found


_SMALL = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 2 * WIDTH}
_PICTURE = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": CLASSES, **_SMALL}


@model("transformers ViT", "ViT", "ViTForImageClassification")
@model("transformers DeiT", "DeiT", "DeiTForImageClassification")
def _vision(config: str, kind: str) -> Made:
    import transformers

    settings = getattr(transformers, f"{config}Config")(**_PICTURE)
    return _Logits(getattr(transformers, kind)(settings), "pixel_values"), torch.rand(1, 1, 8, 8)


_TEXT = {"vocab_size": 20, "max_position_embeddings": 16, "num_labels": CLASSES, "pad_token_id": 0}


@model("transformers BERT", "BertConfig", "BertForSequenceClassification", _SMALL)
@model("transformers RoBERTa", "RobertaConfig", "RobertaForSequenceClassification", _SMALL)
@model(
    "transformers DistilBERT",
    "DistilBertConfig",
    "DistilBertForSequenceClassification",
    {"dim": WIDTH, "n_layers": 1, "n_heads": 2, "hidden_dim": 2 * WIDTH},
)
@model(
    "transformers GPT-2",
    "GPT2Config",
    "GPT2ForSequenceClassification",
    {"n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_positions": 16},
)
@model("transformers Llama", "LlamaConfig", "LlamaForSequenceClassification", {**_SMALL, "num_key_value_heads": 1})
def _text(config: str, kind: str, sizes: dict[str, int]) -> Made:
    """What is perturbed are the embeddings."""
    import transformers

    settings = getattr(transformers, config)(**{**_TEXT, **sizes})
    settings.use_cache = False
    return _Logits(getattr(transformers, kind)(settings), "inputs_embeds"), 0.1 * _tokens()


class _Nothing(type):
    """A class whose every attribute is another one."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Nothing(name, (nn.Module,), {})


class _Unused(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A torchvision of classes that do nothing.

    timm imports torchvision for its data sets, which no model here needs, and the wheel of it on PyPI does not load
    beside the CPU wheel of torch.
    """

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        found = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def exec_module(self, module: Any) -> None:
        module.__getattr__ = lambda name: getattr(_Nothing("torchvision", (), {}), name)


def _import_timm() -> Any:
    sys.meta_path.insert(0, _Unused())
    import timm

    return timm


_TIMM = {"num_classes": CLASSES, "in_chans": 1, "img_size": 8}


@model("timm ViT", "VisionTransformer", {"patch_size": 4, "embed_dim": WIDTH, "depth": 1, "num_heads": 2, **_TIMM})
@model(
    "timm Swin",
    "SwinTransformer",
    {"patch_size": 2, "embed_dim": WIDTH, "depths": (2,), "num_heads": (2,), "window_size": 2, "mlp_ratio": 2, **_TIMM},
)
@model("timm MLP-Mixer", "MlpMixer", {"patch_size": 4, "embed_dim": WIDTH, "num_blocks": 1, **_TIMM})
@model(
    "timm ConvNeXt",
    "ConvNeXt",
    {"depths": (1, 1, 1, 1), "dims": (4, 4, 4, 4), "patch_size": 1, "num_classes": CLASSES, "in_chans": 1},
)
def _timm(kind: str, settings: dict[str, Any]) -> Made:
    module = getattr(_import_timm().models, kind)(**settings)
    nn.init.normal_(module.head.weight if isinstance(module.head, nn.Linear) else module.head.fc.weight)
    return module, torch.rand(1, 1, 8, 8)


@model("timm ResNet-18")
def _resnet() -> Made:
    models = _import_timm().models.resnet
    module = models.ResNet(models.BasicBlock, (2, 2, 2, 2), CLASSES, 1, channels=(4, 4, 8, 8), stem_width=4)
    return module, torch.rand(1, 1, 16, 16)


# Measuring

EPS = 1e-3  # of the scale of the input, which is 1 for pictures and the standard deviation of tokens
SAMPLES, ATTACKED = 1000, 100
LONGEST = 2400  # seconds for one model
PAGE = Path(__file__).parent.parent / "docs" / "models.md"
ROWS = Path("out") / "models"
BEGIN, END = "<!-- generated by `make models` -->", "<!-- end -->"


def export(name: str, folder: Path) -> tuple[Path, Tensor]:
    """One model as a file written by the default settings of torch, and inputs to ask about."""
    torch.manual_seed(0)
    module, example = MODELS[name]()
    path = folder / "model.onnx"
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        torch.onnx.export(module.eval(), (example,), str(path), dynamo=True, verbose=False)
    return path, example


def measure(name: str, certificate: bool = True, samples: int = SAMPLES) -> dict[str, Any]:
    """Load, bound, sample, attack and prove one model; AssertionError where a point lies outside the bounds."""
    with tempfile.TemporaryDirectory() as folder:
        path, example = export(name, Path(folder))
        network = softhull.load_onnx(path)
        x = example.double()
        eps = EPS * (1.0 if x.ndim == 4 else float(x.std()))
        graph = network.logits
        with torch.no_grad():
            logits = graph(x.reshape(1, *network.input_shape)).reshape(-1)
        label = int(logits.argmax())
        clean = float(logits[label] - logits[torch.arange(len(logits)) != label].max())
        started = time.process_time()
        found = softhull.verify_robustness(network, x.numpy(), [label], softhull.Perturbation(eps))
        record = found.to_dict()["instances"][0]
        cost = time.process_time() - started
        attacked = _worst(graph, x.reshape(1, *network.input_shape), label, eps, samples)
        assert attacked >= record["bound"], f"{name}: {attacked} below the bound {record['bound']}"
        row = {
            "model": name,
            "nodes": len(network.graph.nodes),
            "verdict": record["verdict"],
            "clean": clean,
            "gap": (attacked - record["bound"]) / clean,
            "seconds": cost,
        }
        if certificate:
            row["certificate"] = _proved(path, Path(folder) / "proof.npz", x, label, eps)
    row["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row


def _worst(graph: Graph, x: Tensor, label: int, eps: float, samples: int) -> float:
    """The smallest margin of sampled points, corners, and attacked points."""
    region = softhull.Perturbation(eps).around(x)
    generator = torch.Generator().manual_seed(0)

    def margin(points: Tensor, which: Tensor) -> Tensor:
        logits = graph(points).flatten(1)
        others = logits[:, torch.arange(logits.shape[1]) != label]
        return logits[:, label] - others.amax(1)

    shifts = 2 * torch.rand((samples, *x.shape[1:]), generator=generator, dtype=torch.float64) - 1
    corners = torch.where(torch.arange(samples).reshape(-1, *[1] * (x.ndim - 1)) % 2 == 0, shifts, shifts.sign())
    with torch.no_grad():
        sampled = float(margin((x + eps * corners).clamp(region.lower, region.upper), torch.arange(samples)).min())
    many = region.take(torch.zeros(ATTACKED if samples >= SAMPLES else 4, dtype=torch.long))
    start = many.sample(generator)
    found, _ = minimize_margin(margin, many, start, steps=20, restarts=1, target=-math.inf)
    return min(sampled, float(found.min()))


def _proved(path: Path, proof: Path, x: Tensor, label: int, eps: float) -> str:
    """ "accepted" with the CPU seconds of writing and checking, or why there is no certificate."""
    started = time.process_time()
    try:
        write_certificate(proof, class_certificate(path, x.numpy(), label, softhull.Perturbation(eps)))
    except softhull.SofthullError as problem:
        return str(problem).splitlines()[0].removeprefix(f"{path}: ")
    checked = softhull.check_certificate(proof, [path])
    return f"accepted ({time.process_time() - started:.0f} s)" if checked.accepted else f"rejected: {checked.reason}"


def _code() -> str:
    """A hash of all code that a row depends on."""
    sources = [*sorted(Path(softhull.__file__).parent.rglob("*.py")), Path(__file__)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def _alone(name: str, code: str) -> dict[str, Any]:
    """One model in a process of its own, with memory of its own; a row of the same code is not measured again."""
    stored = ROWS / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.json"
    if stored.exists() and (known := json.loads(stored.read_text()))["code"] == code:
        return dict(known)
    command = [sys.executable, "-m", "benchmarks.models", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
        lines, errors = done.stdout.strip().splitlines(), done.stderr.strip().splitlines()
        bad, why = bool(done.returncode) or not lines, (errors or ["ended without a word"])[-1]
    except subprocess.TimeoutExpired:
        lines, bad, why = [], True, f"not done after {LONGEST // 60} minutes"
    row = {"model": name, "refused": why[:160]} if bad else json.loads(lines[-1])
    ROWS.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(row | {"code": code}))
    return dict(row)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | nodes | verdict | clean margin | bound to attack, % of it | CPU s | peak MB | certificate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['model']} | | not run: {row['refused']} | | | | | |")
            continue
        numbers = f"{row['clean']:.3g} | {100 * row['gap']:.1f} | {row['seconds']:.1f} | {row['megabytes']:.0f}"
        lines.append(f"| {row['model']} | {row['nodes']} | {row['verdict']} | {numbers} | {row['certificate']} |")
    return "\n".join(lines)


def run() -> None:
    """All models, two at a time, the table printed and written into the documentation.

    Rows are kept in ``out/models`` as they come: a run that was stopped goes on where it was, on the same code.
    """
    code = _code()
    rows: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        # Those that take longest come first.
        started = [pool.submit(_alone, name, code) for name in reversed(MODELS)]
        for done in as_completed(started):
            row = done.result()
            rows[row["model"]] = row
            print(row, flush=True)
    found = table([rows[name] for name in MODELS])
    print(found)
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        run()
