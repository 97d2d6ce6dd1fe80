"""The files of a release, used as their users would: `python .ci/release.py --docs --executable --image FOLDER`, then
`SBPAIR_RELEASE=FOLDER python -m pytest tests/test_release.py`. The executable runs on a system without Python, the
image without a container engine: both under bubblewrap, in a network namespace that has loopback alone.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sbpair.cli.app import COMMANDS
from tests.interop.test_javascript import node_folder

__all__ = ["node_folder"]

MADE = os.environ.get("SBPAIR_RELEASE")
pytestmark = [
    pytest.mark.skipif(MADE is None, reason="SBPAIR_RELEASE names no folder that .ci/release.py made"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.timeout(600),
]
FOLDER = Path(MADE or "/nonexistent").resolve()
RECORDED = ("ten-minutes", "worst-night")
MOST_IMAGE_BYTES = 120_000_000
KEY = "a-key-of-the-tests-and-no-secret"
SHELL = ("sh", "gzip", "mkdir", "mktemp", "mv", "rm", "tail", "tar", "umask", "cat")
"""All that the executable may need of a system besides its C library and zlib: no Python."""


def only(pattern: str) -> Path:
    (found,) = FOLDER.glob(pattern)
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """bubblewrap's arguments for a system of a shell, tar, gzip and the C library, with a home that can be written."""
    root = tmp_path_factory.mktemp("bare")
    for name in SHELL:
        program = shutil.which(name)
        if program is None:
            continue  # built into the shell
        wanted = [program, *re.findall(r"(/\S+) \(0x", subprocess.check_output(["ldd", program], text=True))]
        for path in wanted:
            copied = root / path.removeprefix("/")
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copied)
    for name in ("libc", "libdl", "libm", "libpthread", "librt", "libutil", "libresolv", "libz"):
        for path in Path("/lib/x86_64-linux-gnu").glob(f"{name}.so.?"):
            shutil.copy(path, root / "lib" / "x86_64-linux-gnu")
    (root / "bin").mkdir(exist_ok=True)
    if not (root / "bin" / "sh").exists():
        (root / "bin" / "sh").symlink_to("/usr/bin/sh")
    shutil.copy(only("sbpair-*-linux-*"), root / "sbpair")
    for name in ("proc", "dev", "tmp", "home"):
        (root / name).mkdir()
    home = tmp_path_factory.mktemp("home")
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", str(root), "/", "--proc", "/proc"),
        *("--dev", "/dev", "--tmpfs", "/tmp", "--bind", str(home), "/home", "--chdir", "/home", "--clearenv"),
        *("--setenv", "HOME", "/home", "--setenv", "PATH", "/usr/bin:/bin"),
    ]


def run(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **settings)


def test_the_executable_plays_the_demo_where_there_is_no_python(bare: list[str]) -> None:
    system = bare
    assert run([*system, "/bin/sh", "-c", "python3 --version"]).returncode == 127
    ran = run([*system, "/sbpair", "demo"])
    assert (ran.returncode, "PROVED: every message arrived exactly once" in ran.stderr + ran.stdout) == (0, True), ran


def test_the_executable_drains_with_processes_beside_its_own_emulator_and_gateway(bare: list[str]) -> None:
    script = """
        /sbpair emulator --sample outage --port 0 > emulator.txt 2>&1 & emulator=$!
        until /sbpair status local >/dev/null 2>&1; do kill -0 $emulator; done
        /sbpair drain local --yes --ledger drain.jsonl --processes 2 --on-missing dead-letter; echo "drain $?"
        /sbpair gateway local --listen 127.0.0.1:0 --key app=send@orders > gateway.txt 2>&1 & gateway=$!
        until case "$(cat gateway.txt)" in *Endpoint=*) true;; *) false;; esac; do kill -0 $gateway; done
        kill $gateway; wait $gateway; echo "gateway $?"
        kill $emulator; wait $emulator; echo "emulator $?"
    """
    ran = run([*bare, "/bin/sh", "-uc", script])
    assert re.findall(r"^(?:drain|gateway|emulator) \d+$", ran.stdout, re.MULTILINE) == [
        "drain 3",
        "gateway 143",
        "emulator 143",
    ], ran


def test_two_first_starts_at_once_leave_one_program(bare: list[str], tmp_path: Path) -> None:
    system = [*bare, "--bind", str(tmp_path), "/home"]
    started = [subprocess.Popen([*system, "/sbpair", "--version"], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert {process.communicate(timeout=120)[0] for process in started} == {f"sbpair {version()}\n"}
    assert len(list((tmp_path / ".cache" / "sbpair").iterdir())) == 1


@pytest.mark.parametrize("cache", ["/proc", "/usr"])
def test_a_cache_that_cannot_be_written_is_an_error_with_the_way_out(bare: list[str], cache: str) -> None:
    ran = run([*bare, "--setenv", "XDG_CACHE_HOME", cache, "/sbpair", "--version"])
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "nothing was done. Set XDG_CACHE_HOME" in ran.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_a_program_that_another_user_unpacked_is_not_started(tmp_path: Path) -> None:
    program = only("sbpair-*-linux-*")
    environ = {"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    assert run([str(program), "--version"], env=environ).returncode == 0
    (place,) = (tmp_path / "sbpair").iterdir()
    os.chown(place, 10001, 10001)
    ran = run([str(program), "--version"], env=environ)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "belongs to another user" in ran.stderr


def version() -> str:
    return only("sbpair-*.whl").name.split("-")[1]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image as `umoci` unpacks it: a root file system and a run-time configuration."""
    if shutil.which("umoci") is None:
        pytest.skip("umoci is not installed")
    work = tmp_path_factory.mktemp("image")
    with tarfile.open(only("sbpair-*-image.tar")) as archive:
        archive.extractall(work / "layout", filter="data")
    subprocess.run(["umoci", "unpack", "--image", f"{work / 'layout'}:{version()}", str(work / "bundle")], check=True)
    return work / "bundle"


def test_the_image_is_small_and_has_nothing_of_the_machine_that_made_it(image: Path) -> None:
    archive = only("sbpair-*-image.tar")
    assert archive.stat().st_size < MOST_IMAGE_BYTES
    sources = [*Path("/etc/apt").glob("sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    hosts = {host for path in sources for host in re.findall(r"https?://([^/\s]+)", path.read_text())}
    assert hosts
    held = [path for path in image.joinpath("rootfs", "etc").rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [(path, host) for path in held for host in hosts if host.encode() in path.read_bytes()]
    assert not [name for name in ("etc/hostname", "etc/machine-id") if (image / "rootfs" / name).exists()]
    assert not list((image / "rootfs" / "var" / "log").iterdir())
    process = json.loads((image / "config.json").read_text())["process"]
    assert (process["user"]["uid"], process["user"]["gid"]) == (10001, 10001)


def in_image(image: Path, *arguments: str, more: tuple[str, ...] = ("--unshare-net",)) -> list[str]:
    """The image's program with these arguments, as its user, with a file system that cannot be written."""
    configured = json.loads((image / "config.json").read_text())["process"]
    environ = [word for each in configured["env"] for word in ("--setenv", *each.split("=", 1))]
    return [
        *("bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--as-pid-1"),
        *("--uid", "10001", "--gid", "10001", "--ro-bind", str(image / "rootfs"), "/", "--proc", "/proc"),
        *("--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/var/lib/sbpair", "--chdir", "/var/lib/sbpair"),
        *("--clearenv", *environ, "--setenv", "SBPAIR_EMULATOR_KEY", KEY, *more),
        *(configured["args"][0], *arguments),
    ]


def test_the_image_plays_the_demo(image: Path) -> None:
    ran = run(in_image(image, "demo"))
    assert ran.returncode == 0, ran
    assert "PROVED: every message arrived exactly once" in ran.stderr + ran.stdout


@pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js with npm is not installed")
def test_a_client_of_another_language_uses_the_image_as_a_namespace_until_sigterm(
    image: Path, node_folder: Path, tmp_path: Path
) -> None:
    """What a container engine does: the health check of the image's configuration, and its signal to process 1."""
    seed = tmp_path / "Config.json"
    seed.write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "plain"}]}]}})
    )
    more = ("--ro-bind", str(seed), "/var/lib/sbpair/Config.json", "--info-fd", "3")
    emulator = in_image(image, "emulator", "--microsoft-ports", "--seed", "/var/lib/sbpair/Config.json", more=more)
    blobs = (path.read_bytes() for path in (image.parent / "layout" / "blobs" / "sha256").iterdir())
    (configured,) = (json.loads(blob) for blob in blobs if blob.startswith(b'{"created"'))
    healthy = shlex.join(configured["config"]["Healthcheck"]["Test"][1:])
    script = f"""
        {shlex.join(emulator)} 3> info > emulator.txt 2>&1 & engine=$!
        until {healthy} 2>/dev/null; do kill -0 $engine; done
        (cd {shlex.quote(str(node_folder))} && node scenarios.mjs sendAndComplete)
        kill -TERM $(sed -n 's/.*"child-pid": \\([0-9]*\\).*/\\1/p' info)
        code=0; wait $engine || code=$?
        echo "ended with $code"
    """
    connection = f"Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={KEY}"
    connection += ";UseDevelopmentEmulator=true"
    inside = ["bwrap", "--unshare-net", "--die-with-parent", "--dev-bind", "/", "/", "sh", "-euc", script]
    ran = run(inside, cwd=tmp_path, env={**os.environ, "CONNECTION": connection})
    assert ran.returncode == 0, (ran, (tmp_path / "emulator.txt").read_text())
    seen, ended = ran.stdout.strip().splitlines()
    assert json.loads(seen)["seen"]["body"] == {"hello": "world"}
    assert ended == "ended with 143"


def test_manual_pages_and_site_have_every_command(tmp_path: Path) -> None:
    with tarfile.open(only("sbpair-*-docs.tgz")) as archive:
        archive.extractall(tmp_path, filter="data")
    pages = {path.stem for path in (tmp_path / "man" / "man1").iterdir()}
    assert {"sbpair", "sbpair-drain", "sbpair-dlq-resubmit"} <= pages
    assert {f"sbpair-{name}" for name in COMMANDS} <= pages
    assert (tmp_path / "site" / "index.html").is_file()
    if (tmp_path / "site" / "recordings.html").is_file():  # made where npm has the player
        casts = [(tmp_path / "site" / f"{name}.cast").read_text(encoding="utf-8") for name in RECORDED]
        assert "no message of any kind" in casts[0]
        assert "No line of" in casts[1]
        assert "recordings.html" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    if shutil.which("groff") is not None:
        files = map(str, (tmp_path / "man" / "man1").iterdir())
        warned = run(["groff", "-man", "-ww", "-Tutf8", *files])
        assert (warned.returncode, warned.stderr) == (0, "")
