"""``softhull check``: does what a certificate claims follow?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import MissingExtra, ModelError
from .options import Name, json_option, parse_indices
from .output import is_stdout, write_json

if TYPE_CHECKING:
    from ..certificates.write import Folder
    from ..formats.network import Network

REJECTED = 1


def certificate_folder(path: Path) -> Folder:
    """Where a command puts its certificates; made before the work begins."""
    with checker_extra():
        from ..certificates.write import Folder
    return Folder(path)


def certified_files(folder: Folder, networks: Sequence[Network], models: Sequence[str]) -> list[str]:
    """The files that certificates will be about; says at once whether the checker reads them."""
    from ..checker.network import Networks

    files = [folder.model(network, model) for network, model in zip(networks, models)]
    try:
        Networks(files)
    except ModelError as problem:
        simpler = [folder.simpler(network, model) for network, model in zip(networks, models)]
        try:
            Networks(simpler)
        except ModelError:
            for made in simpler:
                Path(made).unlink(missing_ok=True)
            click.echo(f"no certificates will be written, the checker does not read the model: {problem}", err=True)
            return files
        click.echo(
            f"the checker reads the model once its constants are computed: certificates are about {', '.join(simpler)}",
            err=True,
        )
        return simpler
    about = f"are about {', '.join(files)}" if files != list(models) else f"go to {folder.path}"
    click.echo(f"the checker reads the model; certificates {about}", err=True)
    return files


@contextmanager
def checker_extra() -> Iterator[None]:
    """Around imports that need the extra of the checker."""
    try:
        yield
    except ImportError as problem:
        package = (problem.name or "python-flint").replace("flint", "python-flint")
        raise MissingExtra(
            f"certificates need {package}, which is not installed: pip install 'softhull[check]'"
        ) from None


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
@click.option("--indices", help="Demand a statement about exactly these inputs of a data set, for example 0:500.")
@click.option("--eps", type=float, help="Demand exactly this radius; of a data set only this one is checked.")
@click.option("--norm", type=Name("norm", ("inf", "2", "1")), help="Demand this norm.")
@click.option("--clip", type=(float, float), help="Demand exactly this range of inputs.")
@click.option("--label", type=click.IntRange(min=0), help="Demand a statement about this class.")
@json_option
def command(
    certificate: str,
    models: tuple[str, ...],
    data: str | None,
    index: int | None,
    indices: str | None,
    eps: float | None,
    norm: str | None,
    clip: tuple[float, float] | None,
    label: int | None,
    json_out: Path | None,
) -> int:
    """Derive every step of CERTIFICATE again from the model file, in ball arithmetic.

    CERTIFICATE may be a statement about a data set (statement.json): then every certificate that it names is checked,
    and its metrics are worked out again in exact arithmetic.

    Exit codes: 0 accepted, 1 rejected (the first step that does not follow is named), 2 a file that cannot be read or
    an operator that the checker does not cover. Without --data the input is the one inside the certificate.

    What is accepted is printed: models, input, region and property. --index, --eps, --norm, --clip and --label demand
    that it is exactly what you want; a certificate about another region is rejected even where that one is larger.

    \b
    Examples
      softhull check certificate-00007.npz --model MODEL.onnx --data images.npz --eps 0.016 --clip 0 1
      softhull check certificate-00007.npz --model net-0.onnx --model net-1.onnx --json -
      softhull check proofs/statement.json --model MODEL.onnx --data images.npz --eps 0.01 --clip 0 1 --indices 0:100
    """
    with checker_extra():
        from ..checker.check import check_certificate
        from ..checker.dataset import check_dataset, is_statement

    began = time.process_time()
    if is_statement(certificate):
        if index is not None or label is not None:
            raise click.UsageError("--index and --label are about one input; a data set has --indices")
        wanted = None if indices is None else parse_indices(indices)
        found = check_dataset(certificate, models, data, wanted, eps=eps, norm=norm, clip=clip)
    else:
        if indices is not None:
            raise click.UsageError("--indices is about a data set; one input has --index")
        found = check_certificate(certificate, models, data, index, eps=eps, norm=norm, clip=clip, label=label)
    write_json(json_out, found.to_dict() | {"cpu_seconds": time.process_time() - began})
    if not is_stdout(json_out):
        click.echo(str(found))
    return 0 if found.accepted else REJECTED
