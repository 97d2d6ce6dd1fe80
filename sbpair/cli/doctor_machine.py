"""What `sbpair doctor` looks at on this machine: versions, the SDK's insides, Java and Spark."""

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from sbpair.cli.doctor_rows import Diagnosis, Verdict
from sbpair.core.errors import IncompatibleSdkError, SbpairError
from sbpair.version import __version__

OLDEST_PYTHON = (3, 11)
_SDKS = ("azure-servicebus", "azure-mgmt-servicebus", "azure-identity")


def machine() -> Iterator[Diagnosis]:
    """Rows about this machine; nothing is contacted."""
    yield _python()
    yield from _packages()
    yield _self_test()
    yield from _spark()


def _python() -> Diagnosis:
    text = f"sbpair {__version__}, Python {platform.python_version()} on {platform.system()}"
    if sys.version_info < OLDEST_PYTHON:
        return Diagnosis("versions", "sbpair", Verdict.ERROR, text, "Install Python 3.11 or newer.")
    return Diagnosis("versions", "sbpair", Verdict.OK, text)


def _packages() -> Iterator[Diagnosis]:
    for name in _SDKS:
        try:
            yield Diagnosis("versions", name, Verdict.OK, version(name))
        except PackageNotFoundError:
            yield Diagnosis("versions", name, Verdict.ERROR, "not installed", "pip install --force-reinstall sbpair")


def _self_test() -> Diagnosis:
    """The lossless passage stands on insides of the SDK; they prove themselves on synthetic bytes."""
    from sbpair.azure.wire import self_test

    try:
        self_test()
    except IncompatibleSdkError as error:
        return Diagnosis("sdk self-test", "azure-servicebus", Verdict.ERROR, error.message, error.hint)
    return Diagnosis("sdk self-test", "azure-servicebus", Verdict.OK, "bytes pass unchanged")


def _spark() -> Iterator[Diagnosis]:
    if find_spec("pyspark") is None:
        advice = "Only `sbpair pipeline` needs it: pip install 'sbpair[spark,java]'"
        yield Diagnosis("spark", "pyspark", Verdict.SKIPPED, "not installed", advice)
        yield Diagnosis("java", "java", Verdict.SKIPPED, "only Spark needs it", advice)
        return
    yield Diagnosis("spark", "pyspark", Verdict.OK, version("pyspark"))
    yield _java()


def _java() -> Diagnosis:
    from sbpair.pipeline.java import find_java

    try:
        found = find_java()
    except SbpairError as error:
        return Diagnosis("java", "java", Verdict.WARNING, error.message, error.hint)
    return Diagnosis("java", str(found.executable), Verdict.OK, f"Java {found.version_text} (from {found.origin})")
