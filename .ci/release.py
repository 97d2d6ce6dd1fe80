"""What is published: `python .ci/release.py [FOLDER]` builds sdist and wheel, and writes beside them `SHA256SUMS`, a
bill of materials (`sbom.cdx.json`, CycloneDX 1.6) and a statement of how they were built (`provenance.json`, in-toto's
Statement with SLSA's provenance). `--docs` adds the site of the pages and the manual pages, `--recordings` sessions
to it (`recordings.py`), `--executable` one file that needs no Python (`executable.py`), and `--image` a container image
(`image.py`); these three install packages.
`tests/test_release.py` tries them all.

The bill lists what `pip install sbpair` brings (scope `required`) and what its extras add (`optional`), with licences
and dependencies of the environment that runs this, which has the locked versions, and with the hashes of the lock.
`--no-build` describes what is in the folder already. `sha256sum -c SHA256SUMS` checks it.

`--verify FOLDER` checks the sums, builds the commit that the statement names once more, and compares every byte: it
needs this repository and the locked build tools, and no network. `--lock` resolves all dependencies anew, with the
hashes of their files: `pip install uv` first. What the exported images install is in the package, the rest in `.ci`.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import uuid
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import Any

import executable
import image
import recordings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
DEVELOPERS_EXTRAS = frozenset({"all", "bench", "dev", "stories", "test"})
"""All but these are for users."""
SBOM, SUMS, PROVENANCE = "sbom.cdx.json", "SHA256SUMS", "provenance.json"
LOCKS = (ROOT / "sbpair" / "render" / "install" / "requirements.txt", ROOT / ".ci" / "requirements.txt")
"""What `pip install sbpair` brings; what the extras and the checks add."""
KINDS = {
    "docs": "site and manual pages",
    "recordings": "the docs with two sessions recorded now",
    "executable": "one file",
    "image": "container image",
}
_REPOSITORY = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
"""RFC 4122's namespace for URLs: the serial number says what was built, and the same build has the same one."""


def build(source: Path, folder: Path, epoch_seconds: int) -> None:
    """Sdist and wheel of a checkout; `epoch_seconds` is the time that all files in them get."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_seconds)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)


def docs(archive: Path, version: str, epoch_seconds: int, *, recorded: bool) -> None:
    """The site of `sbpair help`, with the recorded sessions or without, and a manual page for each command."""
    with tempfile.TemporaryDirectory() as work:
        site, manual = Path(work) / "site", Path(work) / "man" / "man1"
        program = str(Path(sys.executable).with_name("sbpair"))
        subprocess.run([program, "help", "--html", str(site)], check=True, stdout=subprocess.DEVNULL)
        if recorded:
            recordings.write(site, Path(program))
        manual.mkdir(parents=True)
        start = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
        (manual / "sbpair.1").write_text(manual_page("sbpair", start, version, epoch_seconds), encoding="utf-8")
        for path in sorted(site.glob("*.md")):
            found = re.fullmatch(r"# (sbpair .+)\n\n```text\n(Usage: .*)```\n", path.read_text("utf-8"), re.DOTALL)
            if found:
                name = found[1].replace(" ", "-")
                (manual / f"{name}.1").write_text(manual_page(name, found[2], version, epoch_seconds), encoding="utf-8")
        archive.write_bytes(executable.packed(Path(work), epoch_seconds))


def manual_page(name: str, text: str, version: str, epoch_seconds: int) -> str:
    """The help of a command as a page for `man`: its paragraphs, and its tables as they stand."""
    usage, *parts = re.split(r"\n(?=\S)", text.rstrip())
    synopsis, _, described = usage.removeprefix("Usage: ").partition("\n\n")
    first = " ".join(described.partition("\n\n")[0].split())
    day = datetime.fromtimestamp(epoch_seconds, UTC).date()
    lines = [f'.TH "{name.upper()}" 1 {day} "sbpair {version}"', ".SH NAME", f"{_roff(name)} \\- {_roff(first)}"]
    lines += [".SH SYNOPSIS", _roff(" ".join(synopsis.split())), ".SH DESCRIPTION", *_verbatim(described)]
    for part in parts:
        heading, colon, body = part.partition(":\n")
        lines += (
            [f".SH {_roff(heading.upper())}", *_verbatim(body)] if colon else [".PP", _roff(" ".join(part.split()))]
        )
    return "\n".join([*lines, ""])


def _verbatim(text: str) -> list[str]:
    return [".nf", *(_roff(line) for line in textwrap.dedent(text).strip("\n").splitlines()), ".fi"]


def _roff(text: str) -> str:
    """Text whose first sign makes no request, and whose hyphens can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in ".'" else escaped


def provenance(folder: Path) -> dict[str, Any]:
    """How the files of a folder were built: from which commit, with which tools, at which time."""
    tools = {name: metadata.version(name) for name in ("build", "hatchling")}
    commit = _git("rev-parse", "HEAD")
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": sha256(path)}} for path in _built(folder)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "python -m build --no-isolation",
                "externalParameters": {"SOURCE_DATE_EPOCH": _epoch_seconds()},
                "internalParameters": {"python": sys.version.split()[0], **tools},
                "resolvedDependencies": [{"uri": "git+.", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": ".ci/release.py"}},
        },
    }


def verify(folder: Path) -> list[str]:
    """What is wrong with published files: sums that differ, or bytes that the named commit does not give."""
    wrong = []
    for line in (folder / SUMS).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            wrong.append(f"{name} is missing or is not what {SUMS} says.")
    statement = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    definition = statement["predicate"]["buildDefinition"]
    commit = definition["resolvedDependencies"][0]["digest"]["gitCommit"]
    with tempfile.TemporaryDirectory() as work:
        source, again = Path(work) / "source", Path(work) / "dist"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(source), commit], check=True)
        try:
            build(source, again, definition["externalParameters"]["SOURCE_DATE_EPOCH"])
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(source)], check=True)
        made = {path.name: sha256(path) for path in again.iterdir()}
    named = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    wrong += [f"{name}: {commit} gives other bytes." for name in sorted(named) if made.get(name) != named[name]]
    wrong += [f"{path.name} is in no statement." for path in _built(folder) if path.name not in named]
    return wrong


def lock() -> None:
    """Write both lock files: the newest versions that fit, with the hashes of all their files."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-header", "--no-annotate"]
    command += ["--python-version", "3.11", "--native-tls", str(ROOT / "pyproject.toml")]
    with tempfile.TemporaryDirectory() as work:
        every = Path(work) / "every.txt"
        subprocess.run([*command, "--all-extras", "--output-file", str(every)], check=True)
        fixed = ["--constraint", str(every), "--output-file", str(LOCKS[0])]
        subprocess.run([*command, *fixed], check=True, stdout=subprocess.DEVNULL)
        shipped = set(_locked(LOCKS[0].read_text(encoding="utf-8")))
        rest = [entry for entry in _locked(every.read_text(encoding="utf-8")) if entry not in shipped]
        LOCKS[1].write_text("".join(rest), encoding="utf-8")


def _locked(text: str) -> list[str]:
    """The entries of a lock file, each with its hashes."""
    entries: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith((" ", "\t")):
            entries[-1] += line
        elif line.strip() and not line.startswith("#"):
            entries.append(line)
    return entries


def locked_hashes() -> dict[tuple[str, str], list[str]]:
    """Name and version -> SHA-256 of the files that may be installed as it."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in LOCKS:
        for entry in _locked(path.read_text(encoding="utf-8")):
            name, _, version = entry.split(maxsplit=1)[0].partition("==")
            found[canonicalize_name(name), version] = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
    return found


def _built(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])


def _git(*arguments: str) -> str:
    ran = subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def _epoch_seconds() -> int:
    """SOURCE_DATE_EPOCH, else the time of the commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))


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
    root = {**_component(about, "application"), "hashes": [{"alg": "SHA-256", "content": sha256(wheel)}]}
    requirements = [Requirement(text) for text in about.get_all("Requires-Dist", [])]
    required = dict(_closure(requirements, ""))
    extras = sorted(set(about.get_all("Provides-Extra", [])) - DEVELOPERS_EXTRAS)
    optional = {name: found for extra in extras for name, found in _closure(requirements, extra)}
    every = optional | required
    # `textual` needs `markdown-it-py[linkify]`: what an extra brings is needed by the package that has it.
    asked: dict[str, set[str]] = {}
    for one in (*requirements, *(each for found in every.values() for each in _needed(found, ""))):
        asked.setdefault(_name(one), {""}).update(one.extras)
    edges = {
        name: sorted({_name(one) for extra in asked.get(name, {""}) for one in _needed(found, extra)} & every.keys())
        for name, found in every.items()
    }
    direct = sorted({_name(one) for extra in ("", *extras) for one in requirements if _applies(one, extra)})
    hashes = locked_hashes()
    refs = {name: _purl(found.metadata) for name, found in every.items()}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(_REPOSITORY, sha256(wheel)).urn,
        "version": 1,
        "metadata": {"timestamp": _now(), "component": root},
        "components": [
            _component(every[name].metadata, "library")
            | {"scope": "required" if name in required else "optional"}
            | _hashes_of(hashes, name, every[name].version)
            for name in sorted(every)
        ],
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": [refs[name] for name in direct]},
            *({"ref": refs[name], "dependsOn": [refs[one] for one in edges[name]]} for name in sorted(every)),
        ],
    }


def _hashes_of(hashes: dict[tuple[str, str], list[str]], name: str, version: str) -> dict[str, Any]:
    """Of all files that the lock allows; none where another version is installed than the locked one."""
    return {"hashes": [{"alg": "SHA-256", "content": digest} for digest in hashes.get((name, version), ())]}


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
    moment = datetime.fromtimestamp(_epoch_seconds(), UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--verify", action="store_true", help="check FOLDER against this repository")
    parser.add_argument("--lock", action="store_true", help="write the lock files")
    for name, what in KINDS.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"make that as well: {what}")
    options = parser.parse_args()
    if options.lock:
        lock()
        return 0
    if options.verify:
        wrong = verify(options.folder)
        sys.stdout.write("".join(f"{line}\n" for line in wrong) or "Every byte is what its commit gives.\n")
        return 1 if wrong else 0
    if not options.no_build:
        build(ROOT, options.folder, _epoch_seconds())
    wheels = sorted(options.folder.glob("sbpair-*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"{options.folder} holds {len(wheels)} wheels of sbpair, not one: begin with an empty folder.")
    version, epoch_seconds = wheels[0].name.split("-")[1], _epoch_seconds()
    if options.docs or options.recordings:
        archive = options.folder / f"sbpair-{version}-docs.tgz"
        docs(archive, version, epoch_seconds, recorded=options.recordings)
    if options.executable:
        file = options.folder / f"sbpair-{version}-linux-{os.uname().machine}"
        executable.build(wheels[0], file, epoch_seconds)
    if options.image:
        image.build(wheels[0], options.folder / f"sbpair-{version}-image.tar", epoch_seconds)
    document = json.dumps(bill(wheels[0]), indent=2, ensure_ascii=False) + "\n"
    (options.folder / SBOM).write_text(document, encoding="utf-8")
    statement = json.dumps(provenance(options.folder), indent=2) + "\n"
    (options.folder / PROVENANCE).write_text(statement, encoding="utf-8")
    write_sums(options.folder)
    sys.stdout.write((options.folder / SUMS).read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
