"""``softhull check``: does what a certificate claims follow?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import MissingExtra, ModelError
from .options import Name, json_option, parse_indices
from .output import is_stdout, write_json

if TYPE_CHECKING:
    from ..certificates.write import Folder
    from ..checker.check import Checked
    from ..formats.network import Network

REJECTED, UNREADABLE = 1, 2


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


@click.command("check", short_help="Replay certificates with the independent checker.")
@click.argument(
    "certificates",
    metavar="CERTIFICATE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False),
)
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
    certificates: tuple[str, ...],
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
    """Derive every step of each CERTIFICATE again from the model file, in ball arithmetic.

    A CERTIFICATE may be a statement about a data set (statement.json): then every certificate that it names is checked,
    and its metrics are worked out again in exact arithmetic.

    Exit codes: 0 all accepted, 1 one rejected (the first step that does not follow is named), 2 a file that cannot be
    read or an operator that the checker does not cover. Without --data the input is the one inside the certificate.

    What is accepted is printed: models, input, region and property. --index, --eps, --norm, --clip and --label demand
    that it is exactly what you want; a certificate about another region is rejected even where that one is larger.

    \b
    Examples
      softhull check certificate-00007.npz --model MODEL.onnx --data images.npz --eps 0.016 --clip 0 1
      softhull check proofs/*.npz --model MODEL.onnx --data images.npz --eps 0.016 --clip 0 1
      softhull check certificate-00007.npz --model net-0.onnx --model net-1.onnx --json -
      softhull check proofs/statement.json --model MODEL.onnx --data images.npz --eps 0.01 --clip 0 1 --indices 0:100
    """
    with checker_extra():
        from ..checker.certificate import CertificateError
        from ..checker.check import check_certificate
        from ..checker.dataset import check_dataset, is_statement

    def check(certificate: str) -> Checked:
        if is_statement(certificate):
            if index is not None or label is not None:
                raise click.UsageError("--index and --label are about one input; a data set has --indices")
            wanted = None if indices is None else parse_indices(indices)
            return check_dataset(certificate, models, data, wanted, eps=eps, norm=norm, clip=clip)
        if indices is not None:
            raise click.UsageError("--indices is about a data set; one input has --index")
        return check_certificate(certificate, models, data, index, eps=eps, norm=norm, clip=clip, label=label)

    several = len(certificates) > 1
    records: list[dict[str, Any]] = []
    for certificate in certificates:
        began = time.process_time()
        try:
            found = check(certificate)
            record, text = found.to_dict(), f"{certificate}: {_in_one_line(found)}" if several else str(found)
        except CertificateError as problem:
            if not several:
                raise
            record, text = {"verdict": "error", "reason": str(problem)}, f"error: {problem}"
        records.append({"file": certificate, **record, "cpu_seconds": time.process_time() - began})
        if not is_stdout(json_out):
            click.echo(text)
    if several and not is_stdout(json_out):
        click.echo(_summary(records))
    write_json(json_out, records if several else records[0])
    verdicts = {record["verdict"] for record in records}
    return REJECTED if "rejected" in verdicts else UNREADABLE if "error" in verdicts else 0


def _in_one_line(found: Checked) -> str:
    """The verdict, and of what was accepted the input and the region; names of files prove nothing about these."""
    verdict, *lines = str(found).split("\n  ")
    kept = (line.partition("; sha256")[0] for line in lines if not line.startswith(("model:", "property:")))
    return "; ".join([verdict, *kept])


def _summary(records: Sequence[dict[str, Any]]) -> str:
    """How many were accepted, and whether they say different things: a copied file proves nothing new."""
    accepted = [str(record["statement"]) for record in records if record["verdict"] == "accepted"]
    different = len(set(accepted))
    same = f", ONLY {different} of them different" if different < len(accepted) else ""
    return f"{len(accepted)} of {len(records)} accepted{same}"
