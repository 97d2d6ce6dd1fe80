"""A test that never ends and whose processes nobody ends: run by `tests/test_survivors.py`, which interrupts it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from sbpair.pipeline.spark.java import find_java
from tests.cli.process import Sbpair

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_it_waits_for_ever(local: Sbpair) -> None:
    """Below it: the embedded namespaces, the server that forks commands and a command of it, one in a session of its
    own, one below a shell that ignores signals, and a JVM."""
    subprocess.Popen(SLEEP, start_new_session=True)
    subprocess.Popen(["bash", "-c", "trap '' HUP INT TERM; \"$@\" & wait", "bash", *SLEEP])
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None and spark.origin is not None
    jars = f"{Path(spark.origin).parent}/jars/*"
    subprocess.Popen([str(find_java().executable), "-cp", jars, "py4j.GatewayServer"], stdin=subprocess.PIPE)
    local.python(f"open({os.environ['READY_FILE']!r}, 'w').close(); import time; time.sleep(600)", timeout=600)
