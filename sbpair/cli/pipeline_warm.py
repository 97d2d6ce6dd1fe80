"""`sbpair pipeline warm`: makes later starts of Spark twice as fast."""

import os
from typing import Annotated

import typer

from sbpair.cli.options import Options, command
from sbpair.cli.pipeline_session import JobTalk
from sbpair.render.result import Column, CommandResult, Table
from sbpair.settings import state_directory


@command
def warm(
    options: Options,
    again: Annotated[bool, typer.Option("--again", help="Make it anew even if it is there.")] = False,
) -> CommandResult:
    """Keep the classes that Spark loads in a file of about 200 MB, so that the other pipeline commands start faster.

    For the Java and PySpark in use; others of either are warmed separately. The file is in the cache folder and can be
    deleted at any time.

    \b
    Examples:
      sbpair pipeline warm
      SBPAIR_JAVA=/opt/jdk-21 sbpair pipeline warm --again
    """
    from sbpair.pipeline.warm import warm as make_archive_of_classes

    with JobTalk(options) as talk:
        talk.say("Warming up")
        warmed = make_archive_of_classes(again=again, log_directory=state_directory(os.environ) / "spark")
    data = {
        "file": str(warmed.file),
        "bytes": warmed.bytes,
        "java": warmed.java,
        "seconds": round(warmed.seconds, 1),
        "existed": warmed.existed,
    }
    columns = (Column("file", "File"), Column("bytes", "Bytes", right=True), Column("java", "Java"))
    done = "was there already" if warmed.existed else f"was made in {warmed.seconds:.0f} s"
    return CommandResult("pipeline warm", data, (Table("", columns, [data]),), summary=f"The file {done}.")
