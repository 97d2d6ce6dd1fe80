"""Spark sessions as the commands use them: quiet, sized for the job, on the first usable Java, cancelled by Ctrl-C.

Spark SQL is loaded when `session.spark` is first asked for: that takes as long as all of Spark's start before it, and a
job of plain tasks needs only `session.context`.

`local[...]` and standalone masters get a JVM that is started directly (see `jvm`); any other master goes the ordinary
way through PySpark's launcher.
"""

import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.core.errors import InterruptedWorkError, SbpairError
from sbpair.files import make_private_folder, write_private
from sbpair.pipeline.errors import SparkFailedError, SparkUnavailableError, error_in
from sbpair.pipeline.spark.java import (
    Jvm,
    Sizing,
    cache_directory,
    find_java,
    launcher_home,
    sizing_for,
    start_jvm,
    write_properties,
)

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import DataFrame, SparkSession


POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Tasks of one action. `total` is 0 while Spark still plans."""

    label: str
    done: int
    total: int
    failed: int
    """Attempts that failed; Spark tries them again where it may."""
    seconds: float


def _watch(
    tracker: "StatusTracker", group: str, label: str, future: "Future[Any]", tell: Callable[[JobProgress], None] | None
) -> None:
    """Until `future` is done; tells how far its job group is."""
    began = time.monotonic()
    counts: dict[int, tuple[int, int, int]] = {}
    """Tasks, completed and failed of every stage seen so far; Spark forgets stages, this does not."""
    while not wait([future], POLL_SECONDS).done:
        if tell is not None:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            for stage in (stage for job in jobs if job is not None for stage in job.stageIds):
                if (known := tracker.getStageInfo(stage)) is not None:
                    counts[stage] = known.numTasks, known.numCompletedTasks, known.numFailedTasks
            tasks, completed, failed = (sum(one[place] for one in counts.values()) for place in range(3))
            tell(JobProgress(label, completed, tasks, failed, time.monotonic() - began))


T = TypeVar("T")

LOCAL_MASTER = "local[*,4]"
"""Every core of this machine; a task that fails is tried four times in all, as on a cluster."""
MOST_LOGS = 20
_GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
_DIRECT = ("local", "spark://")


@dataclass(slots=True)
class StartedSpark:
    """Spark, started."""

    context: "SparkContext"
    log: Path
    sizing: Sizing
    java: str
    """Which Java it runs on, for people."""
    load: "Callable[[], SparkSession]"
    """Loads Spark SQL on the running context."""
    _loaded: "SparkSession | None" = None
    _runs: int = 0

    @property
    def spark(self) -> "SparkSession":
        """Spark SQL, loaded by the first who asks. Raises SparkUnavailableError: it does not load."""
        if self._loaded is None:
            self._loaded = self.load()
        return self._loaded

    def run(self, action: Callable[[], T], label: str, *, tell: Callable[[JobProgress], None] | None = None) -> T:
        """The result of a Spark action. It runs on a thread of its own, because a Ctrl-C inside a call to the JVM can
        neither cancel the job nor be handled; here it cancels the job and comes out as the error.

        Raises:
            InterruptedWorkError: SIGINT (as KeyboardInterrupt for the caller that has no handler) or SIGTERM.
            SbpairError: what a worker process raised, or a SparkFailedError that names the log.
        """
        self._runs += 1
        group = f"sbpair-{os.getpid()}-{self._runs}"
        future: Future[T] = Future()
        context = self.context

        def work() -> None:
            try:
                context.setJobGroup(group, label, interruptOnCancel=True)
                if (spark := self._loaded) is not None:
                    # Spark keeps its active session per thread; without one a write finds no registered data source.
                    module: Any = spark._get_j_spark_session_module(spark._jvm)
                    module.setActiveSession(spark._jsparkSession)
                future.set_result(action())
            except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
                future.set_exception(error)

        thread = threading.Thread(target=work, name=f"spark {label}", daemon=True)
        thread.start()
        try:
            with signals_as_errors():
                _watch(context.statusTracker(), group, label, future, tell)
        except BaseException:
            self._cancel(group)
            raise
        try:
            return future.result()
        except SbpairError:
            raise
        except Exception as error:
            said = f"Spark: {_essence(str(error)) or type(error).__name__}"
            raise error_in(str(error)) or SparkFailedError(said, hint=f"Spark's log: {self.log}") from error

    def _cancel(self, group: str) -> None:
        """Cancel a job, if the JVM can still be told. A Ctrl-C in the middle of a call to it may spoil that connection
        and the next; what is not cancelled then ends with the JVM."""
        from py4j.protocol import Py4JError

        for _ in range(2):
            with suppress(Py4JError, OSError):
                self.context.cancelJobGroup(group)
                return


_MOST_CHARACTERS = 400
_EXCEPTION = re.compile(r"^(?:Caused by: |: )?(?:[\w$]+\.)+[\w$]*(?:Error|Exception): (?P<said>.+)$", re.MULTILINE)


def _essence(text: str) -> str:
    """What a long report of Spark comes down to: its innermost exception, else its first line."""
    found = [match["said"] for match in _EXCEPTION.finditer(text)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if text.startswith("["):
        return lines[0][:_MOST_CHARACTERS]
    return (found or lines or [""])[-1 if found else 0][:_MOST_CHARACTERS]


class Stop:
    """Whether SIGINT or SIGTERM came. Its handler raises where the program stands, and a library that stands there may
    swallow that: an import, a finalizer."""

    asked: BaseException | None = None

    def check(self) -> None:
        """Raises what the signal has raised before."""
        if self.asked is not None:
            raise self.asked


@contextmanager
def signals_as_errors() -> Iterator[Stop]:
    """SIGTERM as an error while a job is watched; Ctrl-C as Python's own, which PySpark's handler replaces."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def raising(number: int, frame: Any) -> None:
        stop.asked = KeyboardInterrupt()
        if number == signal.SIGTERM:
            stop.asked = InterruptedWorkError("Stopped by SIGTERM; the Spark job was cancelled.")
            stop.asked.exit_name = "terminated"
        raise stop.asked

    before = {number: signal.signal(number, raising) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    stop.check()


@contextmanager
def open_spark(
    *,
    rows: int | None = None,
    master: str = LOCAL_MASTER,
    conf: Mapping[str, str] = {},
    name: str = "sbpair",
    log_directory: Path | None = None,
    prepare: "Callable[[SparkSession], None] | None" = None,
) -> Iterator[StartedSpark]:
    """Open the one Spark session of this process, and end it with its JVM.

    Args:
        rows: how many are expected; None: not known.
        conf: Spark properties of the user; they win over ours.
        log_directory: where the JVM's log goes; None: a folder in the cache.
        prepare: done once Spark SQL is loaded: registering data sources.

    Raises:
        SparkUnavailableError: PySpark, PyArrow or Java is missing, or the JVM does not start.
    """
    check_installed()
    java = find_java()
    sizing = sizing_for(rows)
    log = _new_log(log_directory)
    properties = _properties(master, name, sizing) | dict(conf)
    log_libraries_to(log)
    direct = master.startswith(_DIRECT)
    jvm = start_jvm(java, sizing, properties, log, sql=prepare is not None) if direct else None
    try:
        with _way_to_the_jvm(jvm, properties, launcher_home(java, cache_directory() / "java")):
            context = _context(properties)
        session = StartedSpark(
            context, log, sizing, f"Java {java.version_text} ({java.origin})", lambda: _sql(properties, prepare)
        )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield session
        finally:
            _stop(session)
    finally:
        if jvm is not None:
            jvm.close()


class _SparkLog(logging.FileHandler):
    """Spark's log. It may be gone by now, and its folder with it."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)


def log_libraries_to(log: Path) -> None:
    """Have what libraries say through the root logger in Spark's log. py4j tells there, with stacks, of every call that
    a cancelled job interrupts; from threads of its own, so that the handler stays until the next session's."""
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if isinstance(one, _SparkLog)]:
        root.removeHandler(earlier)
        earlier.close()
    root.addHandler(_SparkLog(log, encoding="utf-8", delay=True))


def check_columnar() -> None:
    """Raises SparkUnavailableError when PyArrow or DuckDB is missing: what the analysis works with in any engine."""
    _check_packages("PyArrow and DuckDB", "duckdb", "pyarrow")


def check_installed() -> None:
    """Raises SparkUnavailableError when PySpark or PyArrow is missing or too old."""
    _check_packages("PySpark and PyArrow", "pyarrow", "pyspark")
    check_release((4, 0), "This")


def _check_packages(what: str, *packages: str) -> None:
    for name in packages:
        if find_spec(name) is None:
            raise SparkUnavailableError(f"This needs {what}, and {name} is not installed.")


def check_release(least: tuple[int, int], what: str) -> None:
    """Raises SparkUnavailableError: `what` needs this release of Spark, and an older one is installed."""
    found = _pyspark_version()
    if tuple(int(part) for part in found.split(".")[:2]) < least:
        needed = ".".join(map(str, least))
        raise SparkUnavailableError(
            f"{what} needs Spark {needed} or newer, and this is PySpark {found}.",
            hint="Spark 4.0 brought data sources in Python, 4.1 streams that write Arrow, 4.2 limits of a micro-batch: "
            "sbpair help spark",
        )


def _pyspark_version() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError:  # it lies on the path of a cluster's Python
        import pyspark

        return pyspark.__version__


def _properties(master: str, name: str, sizing: Sizing) -> dict[str, str]:
    ours = {
        "spark.master": master,
        "spark.app.name": name,
        "spark.driver.memory": sizing.heap,
        "spark.sql.shuffle.partitions": str(sizing.shuffle_partitions),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # What a job keeps in memory is a summary; packing it takes longer than it saves.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.speculation": "false",
        "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    }
    if master.startswith("local"):
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return ours


@contextmanager
def _way_to_the_jvm(jvm: Jvm | None, properties: Mapping[str, str], java_home: Path) -> Iterator[None]:
    """Environment variables by which PySpark finds the running JVM, or starts one by its own launcher."""
    with tempfile.TemporaryDirectory(prefix="sbpair-spark-") as directory:
        changes = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        if jvm is not None:
            changes |= dict(zip(_GATEWAY, (str(jvm.port), jvm.secret), strict=True))
        else:
            file = Path(directory) / "spark.conf"
            write_properties(file, properties)
            changes["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {file} pyspark-shell"
            changes["JAVA_HOME"] = str(java_home)
        before = {name: os.environ[name] for name in changes if name in os.environ}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name in changes:
                os.environ.pop(name, None)
            os.environ.update(before)


def _context(properties: Mapping[str, str]) -> "SparkContext":
    from pyspark import SparkConf, SparkContext

    try:
        return SparkContext(conf=SparkConf().setAll(list(properties.items())))
    except Exception as error:
        raise SparkUnavailableError(f"Spark does not start: {_essence(str(error))}") from error


def _sql(properties: Mapping[str, str], prepare: "Callable[[SparkSession], None] | None") -> "SparkSession":
    """Spark SQL on the context that runs."""
    from pyspark.sql import SparkSession

    # Spark's own errors reach the user as one sentence; this logger would put the whole stack on stderr besides.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message=".*does not yet fully support pandas.*", category=FutureWarning)
    try:
        spark = SparkSession.builder.config(map=dict(properties)).getOrCreate()
    except Exception as error:
        raise SparkUnavailableError(f"Spark SQL does not start: {_essence(str(error))}") from error
    if prepare is not None:
        prepare(spark)
    return spark


def _stop(session: StartedSpark) -> None:
    """End session and gateway; what PySpark keeps of them would be in the way of the next session."""
    from pyspark import SparkContext

    if session._loaded is not None:
        session._loaded.stop()
    session.context.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


def _new_log(directory: Path | None) -> Path:
    """A log file of this run; the oldest of a folder's logs go."""
    folder = directory or cache_directory() / "logs"
    try:
        make_private_folder(folder)
        for old in sorted(folder.glob("spark-*.log"), key=lambda path: path.stat().st_mtime)[:-MOST_LOGS]:
            old.unlink(missing_ok=True)
        log = folder / f"spark-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.log"
        write_private(log, b"")
    except OSError as error:
        raise SparkUnavailableError(f"Cannot write Spark's log into {folder}: {error}.") from error
    return log


def explained(frame: "DataFrame") -> str:
    """How Spark will carry a frame out, as text. Sources show their names only: secrets are not in a plan."""
    said = StringIO()
    with redirect_stdout(said):
        frame.explain("formatted")
    return said.getvalue()
