"""What a question on the command line is about: models, fixed inputs, data and the region around each input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from .options import Command, Name, NumberList, parse_indices, together

if TYPE_CHECKING:
    from ..formats.datasets import Dataset
    from ..formats.network import Network
    from ..regions import Alternatives, Perturbation

_FILE = click.Path(exists=True, dir_okay=False)
_NAMES = ("norm", "clip", "normalize", "only", "box", "alternatives", "at_most")
_FIELDS = ("models", "data", "indices", "eps", *_NAMES, "fix", "perturb", "output")


class Radii(click.ParamType):
    """Radii as a tuple, each a number, one number per channel, or the name of an npy file of them.

    Commas stand between ``several`` radii, or between the channels of the only one.
    """

    name = "radius"

    def __init__(self, several: bool) -> None:
        self.several = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        found = tuple(self._one(entry.strip(), param, ctx) for entry in str(value).split(","))
        if self.several or len(found) == 1:
            return found
        if any(isinstance(entry, str) for entry in found):
            self.fail(f"{value!r} must be numbers, one per channel, or one npy file", param, ctx)
        return (found,)

    def _one(self, entry: str, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """A number, or a file that is there."""
        if entry.endswith(".npy"):
            return str(_FILE.convert(entry, param, ctx))
        try:
            return float(entry)
        except ValueError:
            self.fail(f"{entry!r} is neither a number nor an npy file", param, ctx)


@dataclass(frozen=True)
class Subject:
    """The options of a command that say what it is about."""

    models: tuple[str, ...]
    data: str | None
    indices: str | None
    eps: tuple[Any, ...] | None  # radii: see Radii
    fix: tuple[str, ...]
    perturb: str | None
    output: str | None
    norm: str
    clip: tuple[float, float] | None
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None
    only: str | None
    box: tuple[str, str] | None
    alternatives: str | None
    at_most: int | None

    @property
    def needs_radius(self) -> bool:
        """Whether the region is not one without a radius."""
        return self.alternatives is None and self.box is None

    @property
    def radii(self) -> tuple[Any, ...]:
        """The radii to ask about: those named, or none where the region has none."""
        if not self.eps and self.needs_radius:
            raise click.UsageError("name --eps")
        return self.eps or (None,)

    def networks(self) -> list[Network]:
        """The models, with some inputs fixed and cut at the tensor to perturb."""
        from ..formats.datasets import load_dataset
        from ..formats.onnx import load_onnx

        fixed = fixed_inputs(self.fix)
        example = None
        if self.perturb is not None and self.data is not None:
            data = load_dataset(self.data)
            example = data.raw[self.wanted(data)[:1]]
        return [load_onnx(model, fixed, self.perturb, self.output, example) for model in self.models]

    def dataset(self, networks: Sequence[Network], path: str | None = None) -> Dataset:
        """The data (or those at another path), the inputs as the networks take them."""
        from ..formats.datasets import load_dataset

        if path is None and self.data is None:
            raise click.UsageError("name --data")
        return load_dataset(path or str(self.data)).through(networks[0])

    def wanted(self, dataset: Dataset) -> list[int]:
        """The inputs to ask about."""
        return parse_indices(self.indices, len(dataset))

    def with_data(self, answer: dict[str, Any], dataset: Dataset) -> dict[str, Any]:
        """An answer for JSON, which says where its data are from."""
        file = {"path": dataset.path, "file_sha256": dataset.sha256, "indices": self.indices}
        return answer | {"data": answer.get("data", {}) | file}

    def perturbation(self, eps: Any) -> Perturbation | Alternatives:
        """The region around every input; the radius is one of ``radii``."""
        from ..formats.datasets import load_alternatives, load_array
        from ..regions import Perturbation

        if self.alternatives is not None:
            if eps is not None or self.norm != "inf" or any((self.clip, self.normalize, self.only, self.box)):
                raise click.UsageError("--alternatives is a region of its own; leave radius, norm and limits out")
            return load_alternatives(self.alternatives, self.at_most)
        if self.at_most is not None:
            raise click.UsageError("--at-most belongs to --alternatives")
        lower, upper = (None, None) if self.box is None else (load_array(file) for file in self.box)
        only = None if self.only is None else load_array(self.only)
        eps = load_array(eps) if isinstance(eps, str) else eps
        return Perturbation(eps, float(self.norm), self.clip, self.normalize, only, lower, upper)

    def described(self) -> dict[str, Any]:
        """The options for records; those that were not given are left out, but for norm and clip."""
        given = {name: getattr(self, name) for name in (*_NAMES, "fix", "perturb", "output")}
        about = {"models": list(self.models), "data": self.data}
        return about | {name: value for name, value in given.items() if value or name in ("norm", "clip")}


def fixed_inputs(given: Sequence[str]) -> dict[str, Any]:
    """The arrays of ``--fix``, by name."""
    from ..formats.datasets import load_array

    fixed = {}
    for entry in given:
        name, equals, file = entry.rpartition("=")
        if not equals or not name:
            raise click.BadParameter(f"{entry!r} is not NAME=FILE", param_hint="--fix")
        fixed[name] = load_array(file)
    return fixed


def model_options(command: Command) -> Command:
    """The options that say which part of a model file is the network."""
    return together(
        click.option("--fix", multiple=True, metavar="NAME=FILE", help="Fix an input of the model to an npy file."),
        click.option("--perturb", metavar="TENSOR", help="Perturb this tensor of the model, or embeddings."),
        click.option("--output", metavar="NAME", help="The output to bound, of a model with several."),
    )(command)


def subject_options(ensemble: bool = True, radii: bool = False) -> Callable[[Command], Command]:
    """The options behind ``Subject``, which the command gets as ``subject``.

    ``ensemble``: several models, and data are required; ``radii``: several radii.
    """
    kind = {"metavar": "MODELS...", "nargs": -1} if ensemble else {"metavar": "MODEL", "nargs": 1}

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(*args: Any, **options: Any) -> Any:
            own = {name: options.pop(name) for name in _FIELDS}
            if not ensemble:
                own["models"] = (own["models"],)
            return command(*args, subject=Subject(**own), **options)

        several = "Radii, separated by commas; an npy file is one radius per entry."
        one = "Radius of the perturbation; 0.01,0.02: one per channel; an npy file: one per entry."
        return _options(kind, ensemble, Radii(radii), several if radii else one)(run)

    return decorate


def _options(kind: dict[str, Any], required: bool, numbers: Any, radius: str) -> Callable[[Command], Command]:
    """The options that name models, data and region, for one command."""
    return together(
        click.argument("models", required=True, type=_FILE, **kind),
        click.option("--data", required=required, type=_FILE, help="npz with x and y, IDX or a CIFAR-10 batch."),
        click.option("--indices", help="Which inputs, for example 0:500 or 3,7,10:20; default: all."),
        click.option("--eps", type=numbers, help=radius),
        click.option(
            "--norm",
            type=Name("norm", ("inf", "2", "1")),
            default="inf",
            show_default=True,
            help="Norm that --eps is in.",
        ),
        click.option("--clip", type=(float, float), help="Valid input range, such as 0 1; the region is cut to it."),
        click.option(
            "--normalize",
            type=(NumberList(), NumberList()),
            metavar="MEAN STD",
            help="Inputs are (pixel - MEAN) / STD, by channel: 0.4,0.5 0.2,0.3; --eps and --clip are in pixels.",
        ),
        click.option("--only", type=_FILE, help="An npy mask of the entries that may move."),
        click.option("--box", type=(_FILE, _FILE), metavar="LOWER UPPER", help="Two npy files: limits of inputs."),
        click.option(
            "--alternatives",
            type=_FILE,
            help="npz with embeddings [words, d] and pairs [n, 2] of a word and what may stand for it.",
        ),
        click.option("--at-most", type=click.IntRange(min=0), help="Words that may change at once; default: all."),
        model_options,
    )
