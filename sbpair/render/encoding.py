"""Text for a stream that cannot show every sign: what it lacks is written as an escape, never an error.

Terminals of Windows (cp437, cp1252), pipes under `LC_ALL=C` and `PYTHONIOENCODING=ascii` are such streams; and a name
from a file may hold half of a surrogate pair, which not even UTF-8 has.
"""

import codecs
import sys

from sbpair.render.formats import to_yaml
from sbpair.render.result import CommandResult, Format

ESCAPE = "sbpair.escape"
"""Name of the error handler: `\\u2588`, beyond the first plane two of them. JSON reads them back as what they were."""


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    escaped = (f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
    return "".join(escaped), error.end


codecs.register_error(ESCAPE, _escape)


def escape_what_stdout_lacks() -> None:
    """From now on no sign makes a write to stdout fail."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=ESCAPE)


def stdout_encoding() -> str:
    """Encoding of stdout, also while rich has put a stand-in before it."""
    return getattr(sys.stdout, "encoding", None) or getattr(sys.__stdout__, "encoding", None) or "utf-8"


def has_all_signs(encoding: str) -> bool:
    """Whether lines and blocks can be drawn."""
    return encoding.lower().startswith("utf")


def fitting(text: str, result: CommandResult, chosen: Format, encoding: str) -> str:
    """`text`, which is `result` in the chosen format, with the signs only that the encoding has.

    The escapes are the format's own, so that a reader of the format gets the text as it was.
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        if chosen is Format.YAML:
            return to_yaml(result, unicode=False)
        errors = "xmlcharrefreplace" if chosen in (Format.HTML, Format.JUNIT) else ESCAPE
        return text.encode(encoding, errors).decode(encoding)
    return text
