"""sbpair as a container image without a container engine: `python .ci/image.py WHEEL ARCHIVE`, as root on Debian.

mmdebstrap installs Debian's Python, of this machine's release and from this machine's sources; pip adds the wheel and
the locked packages of `pip install sbpair` by their hashes. Both are layers of an OCI image, which is written here: an
archive in OCI's layout. skopeo and umoci were tried with it, Docker and podman were not. The program runs as user
10001, needs no file system that can be written but /tmp and /var/lib/sbpair, and ends orderly at SIGTERM.
"""

import gzip
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ROOT / "sbpair" / "render" / "install" / "requirements.txt"
USER = 10001
PACKAGES = "/usr/lib/python3/dist-packages"
# An image starts with nothing of the machine that made it: no sources, caches, logs, or identity.
OF_THIS_MACHINE = "etc/apt/sources.list* etc/hostname etc/machine-id etc/resolv.conf var/cache/* var/log/* var/lib/apt"
HEALTH = """\
import os, urllib.request
port = os.environ.get("EMULATOR_HTTP_PORT") or 5300
urllib.request.urlopen(os.environ.get("SBPAIR_HEALTH_URL") or f"http://127.0.0.1:{port}/health", timeout=4)
"""


def build(wheel: Path, archive: Path, epoch_seconds: int) -> None:
    """Write the image with the locked packages of `wheel`; `epoch_seconds` is the time that all in it gets.

    Raises:
        CalledProcessError: mmdebstrap or pip fails.
        SystemExit: the Python that Debian has is not of the release that runs this.
    """
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as folder:
        layers = [_debian(Path(folder), epoch_seconds), _program(Path(folder), wheel, epoch_seconds)]
    created = datetime.fromtimestamp(epoch_seconds, UTC).isoformat().replace("+00:00", "Z")
    blobs = [gzip.compress(layer, 9, mtime=0) for layer in layers]
    config = {
        "created": created,
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/var/lib/sbpair", "LANG=C.UTF-8"],
            "Entrypoint": ["/usr/local/bin/sbpair"],
            "Cmd": ["--help"],
            "WorkingDir": "/var/lib/sbpair",
            "Volumes": {"/var/lib/sbpair": {}},
            "ExposedPorts": {"5300/tcp": {}, "5671/tcp": {}, "5672/tcp": {}, "9464/tcp": {}},
            "StopSignal": "SIGTERM",
            # OCI's configuration has none; Docker heeds its own key here as well. In nanoseconds.
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/python3", "-c", HEALTH],
                "Interval": 2 * 10**9,
                "Timeout": 5 * 10**9,
                "StartPeriod": 30 * 10**9,
                "Retries": 15,
            },
            "Labels": {"org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "MIT"},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
        "history": [{"created": created, "created_by": name} for name in ("mmdebstrap", "pip")],
    }
    described = json.dumps(config).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", described),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar+gzip", blob) for blob in blobs],
        }
    ).encode()
    named = {"org.opencontainers.image.ref.name": version}
    pointer = {**_descriptor("application/vnd.oci.image.manifest.v1+json", manifest), "annotations": named}
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [pointer]}).encode(),
        **{f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in (manifest, described, *blobs)},
    }
    with tarfile.open(archive, "w") as made:
        for name, content in files.items():
            _add(made, name, content, epoch_seconds, mode=0o644)


def _debian(work: Path, epoch_seconds: int) -> bytes:
    """The first layer: Debian's smallest system with a Python."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    sources = [*Path("/etc/apt/sources.list.d").glob("*.sources"), *Path("/etc/apt").glob("sources.list")]
    layer = work / "debian.tar"
    command = ["mmdebstrap", "--quiet", "--variant=essential", "--include=python3,ca-certificates"]
    command += ['--aptopt=APT::Install-Recommends "false"', "--dpkgopt=path-exclude=/usr/share/man/*"]
    command += ["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    command += [
        f"--customize-hook=cd $1 && rm -rf {OF_THIS_MACHINE}",
        release["VERSION_CODENAME"],
        str(layer),
        *map(str, sources),
    ]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch_seconds)})
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    with tarfile.open(layer) as made:
        if f"./usr/bin/{python}" not in made.getnames():
            raise SystemExit(f"Debian's Python is of another release than {python}, which picks the wheels.")
    return layer.read_bytes()


def _program(work: Path, wheel: Path, epoch_seconds: int) -> bytes:
    """The second layer: the packages, the command and its user."""
    target = work / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(target)]
    subprocess.run([*pip, "--only-binary", ":all:", "--require-hashes", "-r", str(LOCKED)], check=True)
    subprocess.run([*pip, "--no-deps", "--upgrade", str(wheel)], check=True)
    # Nothing can be compiled at the start of a program that may write nowhere.
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compiled, "-s", str(target), "-p", PACKAGES, str(target)], check=True)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as made:
        for path in sorted(target.rglob("*")):
            inside = path.relative_to(target)
            if path.is_file() and inside.parts[0] != "bin":
                mode = 0o755 if path.suffix == ".so" else 0o644
                _add(made, f"{PACKAGES[1:]}/{inside}", path.read_bytes(), epoch_seconds, mode=mode)
        start = "#!/usr/bin/python3\nfrom sbpair.cli.main import main\n\nmain()\n"
        _add(made, "usr/local/bin/sbpair", start.encode(), epoch_seconds, mode=0o755)
        home = tarfile.TarInfo("var/lib/sbpair")
        home.type, home.mode, home.mtime, home.uid, home.gid = tarfile.DIRTYPE, 0o700, epoch_seconds, USER, USER
        made.addfile(home)
    return layer.getvalue()


def _add(made: tarfile.TarFile, name: str, content: bytes, epoch_seconds: int, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), mode, epoch_seconds
    made.addfile(entry, io.BytesIO(content))


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
