"""What a question on the command line is about: models, fixed inputs, data and the region around each input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from .options import NumberList, together

if TYPE_CHECKING:
    from ..formats.datasets import Dataset
    from ..formats.network import Network
    from ..regions import Alternatives, Perturbation

_FILE = click.Path(exists=True, dir_okay=False)
_NAMES = ("norm", "clip", "normalize", "only", "box", "alternatives", "at_most")


@dataclass(frozen=True)
class Subject:
    """The options of a command that say what it is about."""

    fix: tuple[str, ...]
    perturb: str | None
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

    def radii(self, given: tuple[float, ...] | None) -> tuple[float | None, ...]:
        """The radii to ask about: those named, or none where the region has none."""
        if not given and self.needs_radius:
            raise click.UsageError("name --eps")
        return given or (None,)

    def networks(self, models: Sequence[str]) -> list[Network]:
        """The models, with some inputs fixed and cut at the tensor to perturb."""
        from ..formats.datasets import load_array
        from ..formats.onnx import load_onnx

        fixed = {}
        for entry in self.fix:
            name, equals, file = entry.rpartition("=")
            if not equals or not name:
                raise click.BadParameter(f"{entry!r} is not NAME=FILE", param_hint="--fix")
            fixed[name] = load_array(file)
        return [load_onnx(model, fixed, self.perturb) for model in models]

    def data(self, path: str, networks: Sequence[Network]) -> Dataset:
        """A data set, its inputs as the networks take them."""
        from ..formats.datasets import load_dataset

        return load_dataset(path).through(networks[0])

    def perturbation(self, eps: float | None) -> Perturbation | Alternatives:
        """The region around every input."""
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
        return Perturbation(eps, float(self.norm), self.clip, self.normalize, only, lower, upper)

    def described(self) -> dict[str, Any]:
        """The options for records; those that were not given are left out, but for norm and clip."""
        given = {name: getattr(self, name) for name in (*_NAMES, "fix", "perturb")}
        return {name: value for name, value in given.items() if value or name in ("norm", "clip")}


def subject_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options behind ``Subject``, which the command gets as ``subject``."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        own = {name: options.pop(name) for name in ("fix", "perturb", *_NAMES)}
        return command(*args, subject=Subject(**own), **options)

    return together(
        click.option("--norm", type=click.Choice(["inf", "2", "1"]), default="inf", show_default=True),
        click.option("--clip", type=(float, float), help="The range inputs live in, for example 0 1."),
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
        click.option("--fix", multiple=True, metavar="NAME=FILE", help="Fix an input of the model to an npy file."),
        click.option("--perturb", metavar="TENSOR", help="Perturb this tensor of the model, or embeddings."),
    )(run)
