"""Inputs as people hold them, in the layout and the units that a network takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInput, ModelError, warn
from ..graph.operator import Shape
from ..regions import Alternatives, Perturbation
from .network import Network

if TYPE_CHECKING:
    from ..graph.graph import Graph

BYTES = "the inputs are bytes (uint8): each is divided by 255"


def fit_inputs(network: Network | Graph, x: Any, count: int | None = None) -> Tensor:
    """Inputs ``[B, *input_shape]`` in float64 where they were given; ``count``: how many there are (default: len(x)).

    Bytes are divided by 255, with a warning that says so. What a network cut at a tensor takes may be given as that
    tensor or as what the model file takes. InvalidInput where the layout is not the network's.
    """
    refuse_fixed_batch(network)
    x = as_tensor(x)
    count = len(x) if count is None and x.ndim else 1 if count is None else count
    front = network.front if isinstance(network, Network) else None
    if front is not None and not _given_directly(x, network.input_shape, count):
        rows = fit_layout(x, front.shape, count).cpu().numpy()
        return torch.from_numpy(front.compute(rows)).to(x.device, torch.float64)
    if x.dtype == torch.uint8:
        warn(BYTES)
    found = fit_layout(in_units(x), network.input_shape, count)
    if not found.isfinite().all():
        raise InvalidInput("x has an entry that is not a finite number (NaN or infinite)")
    return found


def _given_directly(x: Tensor, shape: Shape, count: int) -> bool:
    return x.is_floating_point() and (_fits(tuple(x.shape[1:]), shape) or (count == 1 and _fits(tuple(x.shape), shape)))


def as_tensor(x: Any) -> Tensor:
    """Numbers as a tensor of their own dtype; InvalidInput where they are none."""
    try:
        found = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
    except (TypeError, ValueError):
        raise InvalidInput("x must hold numbers, in an array of one shape") from None
    if found.is_complex():
        raise InvalidInput("x must hold real numbers, not complex ones")
    return found.detach()


def in_units(x: Tensor) -> Tensor:
    """Numbers in float64; bytes are divided by 255."""
    return x.double() / 255 if x.dtype == torch.uint8 else x.double()


def fit_layout(x: Tensor, shape: Shape, count: int) -> Tensor:
    """``x [count, ...]`` (or one input alone) as ``[count, *shape]``: equal up to axes of size 1, or flat on a side.

    Entries are never put in another order; where axes look exchanged, the message names the permutation.
    """
    given = tuple(x.shape)
    if not count:
        raise InvalidInput("there is no input")
    if x.ndim and len(x) == count and _fits(given[1:], shape):
        return x.reshape(count, *shape)
    if count == 1 and _fits(given, shape):
        return x.reshape(1, *shape)
    if x.ndim and _fits(given[1:], shape):
        raise InvalidInput(f"{len(x)} inputs but {count} labels")
    wanted = "x".join(map(str, bare(shape))) or "1"
    raise InvalidInput(f"x of shape {given} does not fit the network's input {shape}{_advice(given, shape, wanted)}")


def bare(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without its axes of size 1."""
    return tuple(n for n in shape if n != 1)


def _fits(given: Shape, shape: Shape) -> bool:
    if math.prod(given) != math.prod(shape):
        return False
    return bare(given) == bare(shape) or len(bare(given)) <= 1 or len(bare(shape)) <= 1


def _advice(given: Shape, shape: Shape, wanted: str) -> str:
    """What to do about inputs that do not fit."""
    rest = given[1:]
    if sorted(bare(rest)) == sorted(bare(shape)) and math.prod(rest) == math.prod(shape):
        left = [(axis + 1, n) for axis, n in enumerate(rest)]
        order = []
        for n in bare(shape):
            axis = next(place for place, (_, size) in enumerate(left) if size == n)
            order.append(left.pop(axis)[0])
        order += [axis for axis, _ in left]
        moved = f"x.transpose({', '.join(map(str, (0, *order)))})"
        return f": its axes are in another order; give {moved} (torch: x.permute)"
    if math.prod(given) == 0:
        return ": it holds no input"
    numbers, taken = math.prod(rest), math.prod(shape)
    sizes = f": every input has {numbers} numbers, the network takes {taken}; " if len(given) > 1 else ": "
    return f"{sizes if numbers != taken else ': '}give [instances, {wanted.replace('x', ', ')}]"


def refuse_fixed_batch(network: Network | Graph) -> None:
    """ModelError for a file that takes several inputs at once, and them only."""
    if not isinstance(network, Network):
        return
    taken, given = network.graph.input_shape, network.graph.output_shape
    if len(taken) > 1 and len(given) > 1 and 1 < taken[0] == given[0]:
        raise ModelError(
            f"{network.path}: a batch of {taken[0]} is fixed in the file; export it again with one example "
            "(batch size 1) or with a dynamic batch axis"
        )


def warn_of_region(x: Tensor, perturbation: Perturbation | Alternatives) -> None:
    """A warning where nothing may move, or where a ball holds all that inputs are, with the unit that may be meant."""
    if not isinstance(perturbation, Perturbation):
        _warn_of_words(x, perturbation)
        return
    if perturbation.only is not None and not perturbation.only.any():
        warn("only names no entry that may move: every region is its input alone")
    if perturbation.normalize is not None:
        return
    eps, norm = perturbation.largest, perturbation.norm
    # A few inputs do not tell the whole range: it holds 0 and 1 at least.
    low, high = perturbation.clip or (min(0.0, float(x.min())), max(1.0, float(x.max())))
    widest = (high - low) * (1.0 if math.isinf(norm) else max(1, math.prod(x.shape[1:])) ** (1 / norm))
    if not high > low or not eps > widest:
        return
    unit = ""
    if high - low <= 8 and 1 <= eps <= 255:
        unit = f"; if eps counts steps of 1/255, write {eps:g}/255 = {eps / 255:.4g}"
    warn(f"eps = {eps:g} is more than the inputs can differ at all, they lie between {low:g} and {high:g}{unit}")


def _warn_of_words(x: Tensor, words: Alternatives) -> None:
    """A warning where no word of any input may be replaced: a certificate then says nothing."""
    options = [option for one in x.double().cpu().numpy() for option in words.options(one)]
    if any(len(option) > 1 for option in options):
        return
    known = any(words.knows(option[0]) for option in options)
    why = "" if known else ", and none is a row of the table: compare their scale, dtype and added positions"
    warn(f"no word of the inputs has alternatives{why}; every region is its input alone")


def warn_of_labels(predicted: Tensor, labels: Tensor) -> None:
    """A warning where the network gives none of at least five inputs its label."""
    if len(labels) < 5 or bool((predicted == labels).any()):
        return
    for shift in (1, -1):
        if float((predicted + shift == labels).double().mean()) > 0.5:
            hint = f"most labels are the predicted class {'plus' if shift > 0 else 'minus'} 1: count classes from 0"
            break
    else:
        hint = "are the labels counted from 0, the axes in the network's order, the inputs normalised as in training?"
    warn(f"all {len(labels)} inputs are misclassified; {hint}")
