"""sbpair as one file for Linux, which needs no Python: `python .ci/executable.py WHEEL FILE`.

PyInstaller freezes the wheel and the locked packages of `pip install sbpair` (no Spark). Its own single file unpacks
54 MB at each start and takes three times as long as the installed command; so its folder is packed behind a shell
script here, which unpacks it once into the cache of the user and then only starts it: 1.3 times. Nuitka would have to
compile all of it as C first, and PEX needs a Python on the machine. PyInstaller's licence (GPL) has an exception
for what it freezes; the licences of the packages lie in the folder. What is built on a system runs on those with its
glibc or a newer one and zlib, of the same processor.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ROOT / "sbpair" / "render" / "install" / "requirements.txt"
TOOLS = ROOT / ".ci" / "requirements.txt"
FREEZER = ("altgraph", "packaging", "pyinstaller", "pyinstaller-hooks-contrib", "setuptools")

ENTRY = """\
import multiprocessing

if __name__ == "__main__":
    multiprocessing.freeze_support()  # `drain --processes` starts this file again
    from sbpair.cli.main import main

    main()
"""
HEADER = """\
#!/bin/sh
# sbpair {version} for {system}.
# The first start unpacks the program into the cache folder: 60 MB, for you alone.
set -eu
place="${{XDG_CACHE_HOME:-${{HOME:-/nonexistent}}/.cache}}/sbpair/{digest}"
if [ ! -x "$place/sbpair" ]; then
  mask=$(umask)
  umask 077
  new=
  if ! mkdir -p "${{place%/*}}" 2>/dev/null || ! new=$(mktemp -d "$place.XXXXXX" 2>/dev/null) \\
    || ! tail -n +{lines} "$0" | tar -xzf - -C "$new"; then
    rm -rf "$new"
    echo "Error: sbpair cannot unpack itself into ${{place%/*}}: nothing was done. Set XDG_CACHE_HOME to a folder" >&2
    echo "that you can write to, with 60 MB free." >&2
    exit 1
  fi
  # Of two first starts at the same time, one comes second: what is there is the same.
  mv -T "$new" "$place" 2>/dev/null || rm -rf "$new"
  umask "$mask"
fi
if [ ! -O "$place" ]; then
  echo "Error: $place belongs to another user: nothing was started. Set XDG_CACHE_HOME to a folder of your own." >&2
  exit 1
fi
exec "$place/sbpair" "$@"
"""


def build(wheel: Path, file: Path, epoch_seconds: int) -> None:
    """Freeze `wheel` with the locked packages into `file`; `epoch_seconds` is the time that all files in it get.

    Raises:
        CalledProcessError: a package cannot be installed, or PyInstaller fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        python = _environment(work, wheel)
        (work / "entry.py").write_text(ENTRY, encoding="utf-8")
        command = [str(python), "-m", "PyInstaller", "--noconfirm", "--onedir", "--strip", "--log-level", "ERROR"]
        command += ["--name", "sbpair", "--distpath", str(work / "made"), "--workpath", str(work / "work")]
        command += ["--specpath", str(work), "--collect-submodules", "sbpair", "--collect-data", "sbpair"]
        command += ["--recursive-copy-metadata", "sbpair", str(work / "entry.py")]
        excluded = ("pip", "pyspark", "setuptools", "tkinter")
        command += [word for name in excluded for word in ("--exclude-module", name)]
        environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_seconds), "PYTHONHASHSEED": "1"}
        subprocess.run(command, check=True, env=environ, cwd=work, stdout=subprocess.DEVNULL)
        content = packed(work / "made" / "sbpair", epoch_seconds)
    said = {"version": wheel.name.split("-")[1], "system": _system(), "digest": sha256(content).hexdigest()[:32]}
    lines = HEADER.format(lines=0, **said).count("\n") + 1
    file.write_bytes(HEADER.format(lines=lines, **said).encode() + content)
    file.chmod(0o755)


def packed(folder: Path, epoch_seconds: int) -> bytes:
    """A folder as a gzip archive whose bytes follow from its files alone."""
    layer = BytesIO()

    def tidied(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = epoch_seconds
        return entry

    with tarfile.open(fileobj=layer, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=tidied)
    return subprocess.run(["gzip", "-9n"], input=layer.getvalue(), stdout=subprocess.PIPE, check=True).stdout


def _environment(work: Path, wheel: Path) -> Path:
    """The Python of an environment with nothing but the wheel, its locked packages and PyInstaller."""
    subprocess.run([sys.executable, "-m", "venv", str(work / "venv")], check=True)
    python = work / "venv" / "bin" / "python"
    entries = re.findall(r"^\S.*\n(?:[ \t].*\n)*", TOOLS.read_text(encoding="utf-8"), re.MULTILINE)
    (work / "tools.txt").write_text("".join(each for each in entries if each.split("==")[0] in FREEZER))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", str(LOCKED), "-r", str(work / "tools.txt")], check=True)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    return python


def _system() -> str:
    machine, (libc, version) = os.uname().machine, os.confstr("CS_GNU_LIBC_VERSION").split()
    return f"Linux on {machine} with {libc} {version} or newer"


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
