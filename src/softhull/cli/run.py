"""``softhull run``: a whole campaign, safe against interruption."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Any

import click

from .options import OutFile, fail_on_option, timeout_option
from .output import console, exit_code, is_stdout, say_differences, say_note


@click.command("run", short_help="Run a campaign: many instances, kept in a store.")
@click.argument("campaign", type=click.Path(exists=True, dir_okay=False))
@click.option("--store", type=click.Path(dir_okay=False), help="Where answers are kept; default: runs.db.")
@click.option("--executor", help="local, local:N, dask or dask:ADDRESS; default: local, one process per CPU.")
@timeout_option
@click.option("--budget", type=float, help="Seconds for the whole run; what is left is for the next one.")
@click.option("--memory", help="For all local workers together (on a cluster: for each), for example 4GB.")
@click.option("--device", help="Where to compute, for example cuda; default: cpu.")
@click.option(
    "--batch", type=click.IntRange(min=1), help="Most instances worked on at once; default: 50, or 1 with branching."
)
@click.option("--retry-errors", is_flag=True, help="Work again on instances that ended in an error.")
@click.option("--recheck", is_flag=True, help="Compute again what the store knows, and say where it differs.")
@click.option("--quiet", is_flag=True, help="No progress display.")
@click.option(
    "--events", type=OutFile(dash=True), help="Write what happens, one JSON object a line ('-': standard output)."
)
@click.option("--json", "old_events", type=OutFile(dash=True), hidden=True)
@fail_on_option
def command(
    campaign: str,
    store: str | None,
    executor: str | None,
    timeout: float | None,
    budget: float | None,
    memory: str | None,
    device: str | None,
    batch: int | None,
    retry_errors: bool,
    recheck: bool,
    quiet: bool,
    events: Path | None,
    old_events: Path | None,
    fail_on: str | None,
) -> int:
    """Answer every question of CAMPAIGN about every instance, and keep the answers.

    Started again it goes on where it stopped: what is in the store is never computed twice. Several runs may work on
    one store at the same time. Ctrl-C ends it with the summary so far.

    \b
    Examples
      softhull run campaign.toml --store runs.db
      softhull run campaign.toml --executor local:4 --timeout 60 --memory 8GB
      softhull run campaign.toml --executor dask:tcp://scheduler:8786
    """
    from ..deadlines import deadline_after
    from ..devices import find_device
    from ..errors import InvalidInput
    from ..runs.campaign import STORE, load_campaign, store_of
    from ..runs.engine import Limits, conduct
    from ..runs.executors import find_executor
    from ..runs.memory import parse_size
    from ..runs.progress import find_reporter
    from ..runs.store import Store

    if old_events is not None:
        say_note("--json of softhull run is called --events now")
        events = events or old_events
    plan = load_campaign(campaign)
    options = _merged(
        {"store": STORE} | plan.run,
        {
            "store": store,
            "executor": executor,
            "timeout": timeout,
            "budget": budget,
            "memory": memory,
            "device": device,
            "batch": batch,
        },
    )
    for name in ("timeout", "budget"):
        deadline_after(options[name], name)
    if options["batch"] is not None and (not isinstance(options["batch"], int) or options["batch"] < 1):
        raise InvalidInput(f"batch must be a whole number of at least 1, got {options['batch']!r}")
    choice = find_executor(str(options["executor"]))
    total = None if options["memory"] is None else parse_size(str(options["memory"]))
    each = None if total is None else total // choice.workers
    place = str(options["device"])
    if choice.here:  # the workers of another scheduler say themselves what they have
        find_device(place)
    limits = Limits(options["timeout"], options["budget"], each, options["batch"], place, retry_errors, recheck)
    home = store_of(campaign, options["store"]) if store is None else Path(store)
    with Store.write(home, {"command": "run", "campaign": str(Path(campaign).absolute()), **options}) as opened:
        team = choice.start(plan.models, each)
        stream = _stream(events)
        try:
            why, _ = conduct(plan.works, opened, team, find_reporter(quiet, stream), limits)
        except KeyboardInterrupt:
            _summarise(opened, plan.works, quiet or is_stdout(events))
            raise
        finally:
            team.close()
            if stream is not None and stream is not sys.stdout:
                stream.close()
        verdicts = _summarise(opened, plan.works, quiet or is_stdout(events))
        if recheck:
            _differences(opened)
        if why == "budget" and not quiet:
            click.echo("the budget is used up; run the same command again to go on", err=True)
    return exit_code(fail_on, verdicts)


def _merged(file: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The command line over the campaign file over the defaults."""
    defaults = {"executor": "local", "device": "cpu"}
    return {name: value if value is not None else file.get(name, defaults.get(name)) for name, value in given.items()}


def _stream(events: Path | None) -> IO[str] | None:
    if events is None:
        return None
    return sys.stdout if is_stdout(events) else events.open("w", encoding="utf-8")


def _differences(store: Any) -> None:
    """What a recheck found, of every instance that shares the answer."""
    found = {difference.key: difference.to_dict() for difference in store.differences}
    rows = [row for row in store.rows() if row.key in found] if found else []
    say_differences([{"index": f"{row.index} of task {row.task}", **found[row.key]} for row in rows], store.rechecked)


def _summarise(store: Any, works: Any, quiet: bool) -> set[str]:
    """Print what the campaign has found so far; returns the verdicts, ``unknown`` for what is not answered."""
    from ..runs.tables import summary_tables

    hashes = {work.task.columns()["hash"] for work in works}
    own = {task["id"] for task in store.tasks() if task["hash"] in hashes}
    total = sum(progress.total for progress in store.progress() if progress.task in own)
    rows = [row for row in store.rows() if row.task in own]
    verdicts = {row.verdict for row in rows} | ({"unknown"} if len(rows) < total else set())
    if quiet:
        return verdicts
    for table in summary_tables(rows, total):
        console().print(table)
    if stored := sum(row.run != store.run for row in rows):
        click.echo(f"{stored} answers were read from the store; --recheck computes them again")
    return verdicts
