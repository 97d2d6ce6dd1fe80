"""What is published: `python .ci/release.py [FOLDER]` builds sdist and wheel, and writes beside them `SHA256SUMS` and a
bill of materials, `sbom.cdx.json` (CycloneDX 1.6).

The bill lists what `pip install sbpair` brings (scope `required`) and what its extras add (`optional`), with the
versions, licences and dependencies of the environment that runs this: install `sbpair[all]` there first. Nothing is
fetched but the build's own tools, by pip. `--no-build` describes what is in the folder already. `sha256sum -c
SHA256SUMS` checks it. With SOURCE_DATE_EPOCH set, two runs on one commit make the same bytes.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("spark", "java", "cosmos")
SBOM, SUMS = "sbom.cdx.json", "SHA256SUMS"
_REPOSITORY = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
"""RFC 4122's namespace for URLs: the serial number says what was built, and the same build has the same one."""


def build(folder: Path) -> None:
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path) -> None:
    """In the form of `sha256sum`: every file of the folder but the sums themselves."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files), encoding="utf-8")


def bill(wheel: Path) -> dict[str, Any]:
    """The CycloneDX document for a wheel.

    Raises:
        SystemExit: a package that the wheel requires, or an extra, is not installed here: its version is not known.
    """
    about = _metadata_of(wheel)
    root = {
        **_component(about, "application"),
        "hashes": [{"alg": "SHA-256", "content": sha256(wheel)}],
    }
    requirements = [Requirement(text) for text in about.get_all("Requires-Dist", [])]
    required = dict(_closure(requirements, ""))
    optional = {name: found for extra in EXTRAS for name, found in _closure(requirements, extra)}
    every = optional | required
    edges = {name: sorted({_name(one) for one in _needed(found, "")} & every.keys()) for name, found in every.items()}
    direct = sorted({_name(one) for extra in ("", *EXTRAS) for one in requirements if _applies(one, extra)})
    refs = {name: _purl(found.metadata) for name, found in every.items()}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(_REPOSITORY, sha256(wheel)).urn,
        "version": 1,
        "metadata": {"timestamp": _now(), "component": root},
        "components": [
            _component(every[name].metadata, "library") | {"scope": "required" if name in required else "optional"}
            for name in sorted(every)
        ],
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": [refs[name] for name in direct]},
            *({"ref": refs[name], "dependsOn": [refs[one] for one in edges[name]]} for name in sorted(every)),
        ],
    }


def _metadata_of(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def _closure(requirements: list[Requirement], extra: str) -> Iterator[tuple[str, metadata.Distribution]]:
    """Name and distribution of all that these requirements lead to."""
    waiting = [one for one in requirements if _applies(one, extra)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one = waiting.pop()
        name = _name(one)
        if (name, frozenset(one.extras)) in seen:
            continue
        seen.add((name, frozenset(one.extras)))
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise SystemExit(f"{name} is not installed here; its version is not known: pip install '.[all]'") from None
        yield name, found
        for wanted in ("", *one.extras):
            waiting += _needed(found, wanted)


def _needed(found: metadata.Distribution, extra: str) -> list[Requirement]:
    return [one for one in map(Requirement, found.requires or ()) if _applies(one, extra)]


def _applies(one: Requirement, extra: str) -> bool:
    """Whether the requirement holds here; with an extra: only because of it."""
    if extra:
        return one.marker is not None and "extra" in str(one.marker) and one.marker.evaluate({"extra": extra})
    return one.marker is None or one.marker.evaluate({"extra": ""})


def _name(one: Requirement) -> str:
    return canonicalize_name(one.name)


def _component(about: Any, kind: str) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": kind,
        "bom-ref": _purl(about),
        "name": about["Name"],
        "version": about["Version"],
        "purl": _purl(about),
    }
    if about["Summary"]:
        component["description"] = about["Summary"]
    licences = list(_licences(about))
    return component | ({"licenses": licences} if licences else {})


def _licences(about: Any) -> Iterator[dict[str, Any]]:
    if about["License-Expression"]:
        yield {"expression": about["License-Expression"]}
        return
    classifiers = [text for text in about.get_all("Classifier") or () if text.startswith("License ::")]
    text = (about["License"] or "").strip().partition("\n")[0]  # some put the whole licence there
    for name in [text.rpartition(" :: ")[2] for text in classifiers] or [text]:
        if name and name != "OSI Approved":
            yield {"license": {"name": name}}


def _purl(about: Any) -> str:
    return f"pkg:pypi/{canonicalize_name(about['Name'])}@{about['Version']}"


def _now() -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-build", action="store_true")
    options = parser.parse_args()
    if not options.no_build:
        build(options.folder)
    wheels = sorted(options.folder.glob("sbpair-*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"{options.folder} holds {len(wheels)} wheels of sbpair, not one: begin with an empty folder.")
    document = json.dumps(bill(wheels[0]), indent=2, ensure_ascii=False) + "\n"
    (options.folder / SBOM).write_text(document, encoding="utf-8")
    write_sums(options.folder)
    sys.stdout.write((options.folder / SUMS).read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
