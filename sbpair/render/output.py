"""The values of `-o/--output`, apart from the results that they show: the root's help and completion need no more."""

from enum import StrEnum


class Format(StrEnum):
    """Values of `-o/--output`. The first six work for every command, the rest where the result has checks."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    TSV = "tsv"
    MARKDOWN = "markdown"
    PROMETHEUS = "prometheus"
    NAGIOS = "nagios"
    GITHUB = "github"
    JUNIT = "junit"
    HTML = "html"


CHECK_FORMATS = (Format.PROMETHEUS, Format.NAGIOS, Format.GITHUB, Format.JUNIT)
OF_ALL = (Format.JSON, Format.JSONL, Format.YAML, Format.TSV, Format.MARKDOWN)
"""What every command has, besides the table for people."""
