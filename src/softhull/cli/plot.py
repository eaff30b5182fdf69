"""``softhull plot``: pictures of the bounds."""

from __future__ import annotations

from pathlib import Path

import click

from .options import BOUND_LIST, IMAGE, out_option
from .output import counting
from .subject import Subject, subject_options


@click.group("plot")
def command() -> None:
    """Pictures of the bounds.

    \b
    Example
      softhull plot sigmoid --interval -2 2 --out figure1.png
    """


@command.command()
@click.option("--interval", type=float, nargs=2, default=(-2.0, 2.0), show_default=True, help="The range of x_2 - x_1.")
@click.option(
    "--bounds", type=BOUND_LIST, help="Which bounds, separated by commas; default: all with two curved or sloped sides."
)
@out_option("figure1.png", IMAGE)
def sigmoid(interval: tuple[float, float], bounds: str | None, out: Path) -> None:
    """Figure 1 of the paper with the new bounds: softmax of two logits over an interval of their difference.

    \b
    Example
      softhull plot sigmoid --interval -2 2 --bounds lin,er,lse,hull --out figure1.png
    """
    from ..report.figures import names_in_table, save, sigmoid_figure

    names = None if bounds is None else names_in_table((name.strip() for name in bounds.split(",")), size=2)
    click.echo(f"wrote {save(sigmoid_figure(interval, names), out)}")


@command.command("margins")
@click.option("--index", type=click.IntRange(min=0), default=0, show_default=True, help="Which of the bundled digits.")
@click.option("--eps", type=float, default=0.08, show_default=True, help="The largest radius.")
@click.option("--radii", type=click.IntRange(min=2), default=9, show_default=True, help="How many radii.")
@out_option("second-order.png", IMAGE)
def margins(index: int, eps: float, radii: int, out: Path) -> None:
    """Margins of a digit on the bundled attention network against the radius: linear, second order, attack.

    \b
    Example
      softhull plot margins --index 0 --eps 0.08 --out second-order.png
    """
    import torch

    from ..data import bundled
    from ..errors import InvalidInput
    from ..formats.datasets import load_dataset
    from ..formats.onnx import load_onnx
    from ..report.figures import save
    from ..report.second_order_figure import margins as find
    from ..report.second_order_figure import margins_figure

    if not eps > 0:
        raise InvalidInput(f"--eps must be positive, got {eps}")
    network, digits = load_onnx(bundled("digits-attention.onnx")), load_dataset(bundled("digits.npz"))
    if index >= len(digits):
        raise InvalidInput(f"--index {index}: there are {len(digits)} digits")
    graph = network.logits.to(torch.float64)
    x = torch.as_tensor(digits.take([index]), dtype=torch.float64).reshape(1, *graph.input_shape)
    at = torch.linspace(0, eps, radii, dtype=torch.float64)
    found = find(graph, x, torch.tensor([int(digits.y[index])]), at)
    click.echo(f"wrote {save(margins_figure(at, found), out)}")


@command.command("reliability")
@click.argument("result", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--eps", type=float, help="Which radius; default: the largest.")
@out_option("reliability.png", IMAGE)
def reliability(result: Path, eps: float | None, out: Path) -> None:
    """The reliability diagram of RESULT, a file of softhull dataset --json, with its certified bands.

    \b
    Example
      softhull plot reliability metrics.json --eps 0.008 --out reliability.png
    """
    from ..report.figures import save
    from ..report.reliability_figure import read_radius, reliability_figure

    click.echo(f"wrote {save(reliability_figure(read_radius(result, eps)), out)}")


@command.command("tree")
@subject_options(ensemble=False)
@click.option("--seconds", type=click.FloatRange(min=0), default=10.0, show_default=True, help="CPU seconds of search.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the attack.")
@out_option("tree.png", IMAGE)
def tree(subject: Subject, seconds: float, seed: int, out: Path) -> None:
    """The cells that branch and bound makes of one instance (--indices), and its bound against time.

    \b
    Example
      softhull plot tree MODEL.onnx --data images.npz --eps 0.03 --clip 0 1 --indices 7 --out tree.png
    """
    from ..errors import InvalidInput
    from ..formats.inputs import fit_inputs
    from ..propagate.methods import Branch
    from ..report.figures import save
    from ..report.tree_figure import tree_figure
    from ..verify.robustness import verify_robustness

    (network,), (eps, *more) = subject.networks(), subject.radii
    dataset = subject.dataset([network])
    wanted = subject.wanted(dataset)
    if len(wanted) != 1 or more:
        raise InvalidInput("a tree is that of one instance at one radius; name it with --indices")
    x, label = fit_inputs(network, dataset.take(wanted)), dataset.y[wanted]
    method = Branch(seconds=seconds)
    with counting("instances") as progress:
        found = verify_robustness(
            network, x, label, subject.perturbation(eps), method=method, seed=seed, proofs=True, progress=progress
        )[0]
    if found.grown is None:
        raise InvalidInput(
            f"instance {wanted[0]} is {found.verdict.value} before anything is cut; choose another radius"
        )
    cells = sum(cut is None for tree in found.grown.trees for _, cut in tree)
    title = f"instance {wanted[0]}: {found.verdict.value}, {cells} cells"
    click.echo(f"wrote {save(tree_figure(found.grown, found.attack, title), out)}")
