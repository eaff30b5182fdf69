"""``softhull check``: does what a certificate claims follow?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from .options import write_json

if TYPE_CHECKING:
    from ..certificates.write import Folder

REJECTED = 1


def certificate_folder(path: str) -> Folder:
    """Where a command puts its certificates; made before the work begins."""
    try:
        from ..certificates.write import Folder
    except ImportError as problem:
        raise click.ClickException(f"{problem.name} is missing; install softhull[check]") from None
    return Folder(path)


@click.command("check", short_help="Replay a certificate with the independent checker.")
@click.argument("certificate", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="The ONNX file that the certificate is about; repeated, in the same order, for an ensemble.",
)
@click.option("--data", type=click.Path(exists=True, dir_okay=False), help="npz with the input the certificate names.")
@click.option("--index", type=click.IntRange(min=0), help="Demand a statement about this input (of --data).")
@click.option("--eps", type=float, help="Demand exactly this radius.")
@click.option("--norm", type=click.Choice(["inf", "2", "1"]), help="Demand this norm.")
@click.option("--clip", type=(float, float), help="Demand exactly this range of inputs.")
@click.option("--label", type=click.IntRange(min=0), help="Demand a statement about this class.")
@click.option(
    "--json", "out", type=click.Path(dir_okay=False), help="Write the verdict to this file ('-': standard output)."
)
def command(
    certificate: str,
    models: tuple[str, ...],
    data: str | None,
    index: int | None,
    eps: float | None,
    norm: str | None,
    clip: tuple[float, float] | None,
    label: int | None,
    out: str | None,
) -> int:
    """Derive every step of CERTIFICATE again from the model file, in ball arithmetic.

    Exit codes: 0 accepted, 1 rejected (the first step that does not follow is named), 2 a file that cannot be read or
    an operator that the checker does not cover. Without --data the input is the one inside the certificate.

    What is accepted is printed: models, input, region and property. --index, --eps, --norm, --clip and --label demand
    that it is exactly what you want; a certificate about another region is rejected even where that one is larger.

    \b
    Examples
      softhull check certificate-00007.npz --model MODEL.onnx --data images.npz --eps 0.016 --clip 0 1
      softhull check certificate-00007.npz --model net-0.onnx --model net-1.onnx --json -
    """
    try:
        from ..checker.check import check_certificate
    except ImportError as problem:
        raise click.ClickException(f"{problem.name} is missing; install softhull[check]") from None

    began = time.process_time()
    found = check_certificate(certificate, models, data, index, eps=eps, norm=norm, clip=clip, label=label)
    write_json(out, found.to_dict() | {"cpu_seconds": time.process_time() - began})
    if out != "-":
        click.echo(str(found))
    return 0 if found.accepted else REJECTED
