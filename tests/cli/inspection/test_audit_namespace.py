"""`sbpair audit --namespace` on an embedded namespace that is left as applications leave theirs."""

from tests.cli.process import Sbpair


def test_one_namespace_is_checked_for_what_loses_messages(local: Sbpair) -> None:
    clean = local("audit", "--namespace", "local-primary", "-o", "json")
    (one,) = clean.data["pairs"]
    before = {finding["code"] for finding in one["findings"]}
    assert (before <= {"SBP025"}, clean.code) == (True, 0), one["findings"]

    def make(*arguments: str) -> None:
        assert local("entity", "create", *arguments, "--yes").code == 0, arguments

    make("losing", "--ttl", "1h")
    make("tidy", "--ttl", "1h", "--dead-letter-expired")
    make("fleeting", "--auto-delete", "1h")
    make("second")
    make("first", "--forward-to", "second")
    make("news", "--topic")
    make("news/Subscriptions/german")
    make("news/Subscriptions/german/Rules/never", "--filter", "a = 1 AND a = 2")
    assert local("entity", "delete", "news/Subscriptions/german/Rules/$Default", "--yes").code == 0
    assert local("rules", "unmatched", "news", "--create", "rest", "--yes").code == 0
    make("news/Subscriptions/german/Rules/german", "--filter", "country = 'DE'")
    assert local("entity", "delete", "second", "--yes", stdin="second\n").code == 0

    ran = local("audit", "--namespace", "local-primary", "-o", "json")
    (one,) = ran.data["pairs"]
    found = {(finding["code"], finding["subject"]) for finding in one["findings"]} - {("SBP025", "local-primary")}
    assert {code for code, _ in found} - {"SBP025"} == {"SBP029", "SBP031", "SBP033", "SBP034", "SBP041"}, found
    assert {("SBP029", "losing"), ("SBP031", "fleeting"), ("SBP033", "first")} <= found
    assert (ran.code, one["not_read"]) == (5, [])
    remedy = next(finding["remedy"] for finding in one["findings"] if finding["code"] == "SBP041")
    assert remedy == "sbpair rules unmatched local-primary:news --create rest"
    assert local(*remedy.split()[1:], "--yes").code == 0
    again = local("audit", "--namespace", "local-primary", "--check", "SBP041", "-o", "json")
    assert (again.code, again.data["pairs"][0]["findings"]) == (0, [])

    for form, text in (("nagios", "SBP029"), ("prometheus", 'sbpair_audit_check_findings{namespace="local-primary"')):
        assert text in local("audit", "--namespace", "local-primary", "-o", form).stdout
    page = local("audit", "--namespace", "local-primary", "-o", "html").stdout
    assert "Expired messages are deleted" in page
    assert "in 1 namespace" in local("audit", "--namespace", "local-primary", "-o", "tsv").stderr


def test_what_does_not_fit_together_is_refused(local: Sbpair) -> None:
    for wrong in (("local", "--namespace", "local-primary"), ("--namespace", "local-primary", "--check", "SBP001"),
                  ("local", "--check", "SBP029"), ("local", "--auth", "azure-cli")):  # fmt: skip
        ran = local("audit", *wrong)
        assert (ran.code, ran.stdout) == (2, ""), wrong


def test_a_destination_that_is_gone_is_found_without_entities(local: Sbpair) -> None:
    assert local("provision", "local").code == 0
    local.python(PUT)
    ran = local("audit", "local", "--check", "SBP040", "-o", "json")
    assert [finding["subject"] for finding in ran.data["pairs"][0]["findings"]] == ["nowhere"]
    assert ran.code == 5


PUT = """\
import asyncio
from sbpair.connect import open_sides
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load

async def main():
    async with open_sides(load().pair("local")) as sides:
        sender = sides.secondary.sender("local-primary/x-servicebus-transfer/3")
        for number, path in enumerate(("news", "nowhere")):
            payload = compose(message_id=f"m{number}", subject="a", body="b")
            await sender.send([for_backlog(payload, path)], timeout_seconds=30)
        await sender.close()

asyncio.run(main())
"""
