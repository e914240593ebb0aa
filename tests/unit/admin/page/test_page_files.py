"""The files of the admin listener's page: who gets them, their policy, what is vendored among them."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from pathlib import Path
from typing import Final

import pytest

from tests.unit.admin.test_sign_in import Browser, header
from velox.admin import app as admin_app
from velox.admin.message import AdminRequest, Reply, reply_headers

FOLDER: Final = Path(admin_app.__file__).with_name("page")
NAMES: Final = sorted(each.relative_to(FOLDER).as_posix() for each in FOLDER.rglob("*.*"))
# SHA-256 of what others have made, as their packages in npm's registry have it.
VENDORED: Final = {
    "vendor/preact.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "vendor/uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "vendor/uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
}


def get(path: str, **headers: str) -> Reply:
    """Ask for a file without having signed in."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Browser().ask("GET", path, headers={"accept": "*/*"} | given)


@pytest.mark.parametrize("name", NAMES)
def test_files_need_no_token_and_are_what_is_in_the_folder(name: str) -> None:
    """There is nothing of a gateway in them. Each has a type that browsers believe."""
    reply = get(f"/page/{name}")
    assert (reply.status, reply.body) == (200, (FOLDER / name).read_bytes())
    assert dict(reply_headers(reply))[b"x-content-type-options"] == b"nosniff"
    assert reply.content_type.startswith(
        {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".txt": "text/plain"}[Path(name).suffix]
    )
    packed = get(f"/page/{name}", accept_encoding="gzip, br")
    assert header(packed, "Content-Encoding") == "gzip" and gzip.decompress(packed.body or b"") == reply.body


def test_browser_that_has_a_file_is_told_so() -> None:
    """By its digest, and asked again each time: an upgrade shows at once."""
    reply = get("/page/app.js")
    tag = header(reply, "ETag")
    again = get("/page/app.js", if_none_match=tag)
    assert (again.status, again.body, header(again, "ETag")) == (304, None, tag)
    assert dict(reply_headers(reply))[b"cache-control"] == b"no-cache"
    assert get("/page/app.js", if_none_match='"x"').status == 200


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../app.py", "../../cli.py", "vendor", "vendor/"),
        *("/etc/passwd", "app.js/", "%2e%2e/app.py", "\x00"),
    ],
)
def test_only_files_of_the_folder_are_served(name: str) -> None:
    """Whatever a path says."""
    assert get(f"/page/{name}").status == 404


def test_page_is_for_who_has_signed_in_and_takes_no_script_from_elsewhere() -> None:
    """Programs get the index as before."""
    browser = Browser()
    browser.sign_in()
    page = browser.ask("GET", "/")
    policy = header(page, "Content-Security-Policy")
    assert b'src="/page/app.js"' in (page.body or b"")
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert b"/debug/pprof" not in (browser.ask("GET", "/", headers={"accept": "*/*"}).body or b"")


def test_no_file_of_the_page_names_another_host() -> None:
    """Nothing is fetched from outside, so nothing tells others who looks."""
    for name in NAMES:
        if not name.startswith("vendor/"):
            text = (FOLDER / name).read_text("utf-8")
            assert not re.search(r"""(?:src|href|import|fetch\(|url\()\s*=?\s*["'(]*https?:""", text), name


def test_vendored_files_are_those_of_their_packages() -> None:
    """With their licences beside them."""
    for name, digest in VENDORED.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name
    found = {name for name in NAMES if name.startswith("vendor/")}
    assert found == {*VENDORED, "vendor/LICENSES.txt"}


def test_gateway_says_what_the_page_shows_of_it() -> None:
    """Its version and build, where clients reach it, and what is wrong."""
    browser = Browser()
    assert browser.ask("GET", "/gateway", headers={"accept": "*/*"}).status == 401
    browser.sign_in()
    request = AdminRequest("GET", "/gateway", "", browser.host, {"cookie": browser.cookie})
    body = asyncio.run(browser.app.reply(request)).body or b""
    for name in (b'"version"', b'"build"', b'"address"', b'"problems":[]'):
        assert name in body
