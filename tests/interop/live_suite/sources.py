"""Fetches the SDK's tests and the packages they need into a private folder."""

import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
EXTRA_PACKAGES = ("azure-common", "websocket-client", "opentelemetry-sdk", "azure-core-tracing-opentelemetry")


class FetchError(Exception):
    """Something could not be fetched; the text says what and why."""


def prepare(folder: Path) -> Path:
    """Fill the folder with `tests`, `extra` (packages) and `shim`; gives the tests' folder."""
    _pip("install", "--target", str(folder / "extra"), *EXTRA_PACKAGES)
    shutil.copytree(HERE / "shim", folder / "shim", ignore=shutil.ignore_patterns("__pycache__"))
    return _fetch_tests(folder)


def module_path(folder: Path) -> list[str]:
    """What the tests' processes import from before the environment: our stand-ins come first."""
    tests = folder / "tests"
    places = [folder / "shim", tests, tests / "mgmt_tests", tests / "async_tests", tests / "mgmt_tests" / "async"]
    return [str(place) for place in (*places, folder / "extra")]


def _fetch_tests(folder: Path) -> Path:
    release = version("azure-servicebus")
    sources = folder / "source"
    options = ("--no-deps", "--no-binary", "azure-servicebus", "--dest", str(sources))
    _pip("download", *options, f"azure-servicebus=={release}")
    archive = next(iter(sources.glob("*.tar.gz")), None)
    if archive is None:
        raise FetchError(f"azure-servicebus {release} has no source distribution")
    with tarfile.open(archive) as opened:
        opened.extractall(sources, filter="data")
    tests = next(iter(sources.glob("*/tests")), None)
    if tests is None:
        raise FetchError(f"the source distribution of azure-servicebus {release} carries no tests")
    return Path(shutil.copytree(tests, folder / "tests"))


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(f"pip {arguments[0]} failed:\n{done.stderr.strip()}")
