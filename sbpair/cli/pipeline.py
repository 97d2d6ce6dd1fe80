"""`sbpair pipeline`: the contents page of the Spark commands."""

import typer

from sbpair.cli import (
    pipeline_analyze,
    pipeline_archive,
    pipeline_reconcile,
    pipeline_replay,
    pipeline_trend,
    pipeline_usage,
    pipeline_warm,
)
from sbpair.cli.options import before_the_command

app = typer.Typer(
    help="Archive, analyse, replay and reconcile large backlogs on Spark, here or on a cluster (--master).",
    no_args_is_help=True,
)
app.callback()(before_the_command)
app.command("archive")(pipeline_archive.archive)
app.command("replay")(pipeline_replay.replay)
app.command("reconcile")(pipeline_reconcile.reconcile)
app.command("warm")(pipeline_warm.warm)
app.command("analyze")(pipeline_analyze.analyze)
app.command("usage")(pipeline_usage.usage)
app.command("trend")(pipeline_trend.trend)
