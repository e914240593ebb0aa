"""Outgoing proxies: what the environment and an upstream say, and which host is asked by which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from velox.policy.routes.proxies import Proxy, proxy_of
from velox.settings import Settings, SettingsError, load
from velox.settings.parse import origin
from velox.settings.routing.proxies import environment_proxies
from velox.settings.show import upstream_lines

PASSWORD = "p4ss-w0rd"


def _by(url: str, **environ: str) -> str:
    """Return the proxy before a URL, by the environment; "" for none."""
    proxies, unusable = environment_proxies(environ)
    assert not unusable
    found = proxy_of("usual", origin(url), proxies)
    return "" if found is None else str(found)


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("https://api.example", {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://api.example", {"https_proxy": "https://p"}, "https://p:443"),
        ("https://api.example", {"HTTPS_PROXY": "p:3128"}, "http://p:3128"),
        ("https://api.example", {"HTTPS_PROXY": "http://[::1]:3128/"}, "http://[::1]:3128"),
        ("https://api.example", {"HTTPS_PROXY": "http://a:1", "https_proxy": "http://b:2"}, "http://b:2"),
        ("https://api.example", {"ALL_PROXY": "http://a:1"}, "http://a:1"),
        ("https://api.example", {"ALL_PROXY": "http://a:1", "HTTPS_PROXY": "http://b:2"}, "http://b:2"),
        ("https://api.example", {"HTTP_PROXY": "http://a:1"}, ""),
        ("http://vllm:8000", {"HTTP_PROXY": "http://a:1"}, "http://a:1"),
        ("http://vllm:8000", {"HTTPS_PROXY": "http://a:1"}, ""),
        ("http://localhost:8000", {"HTTP_PROXY": "http://a:1"}, ""),
        ("http://127.0.0.9:8000", {"HTTP_PROXY": "http://a:1"}, ""),
        ("http://[::1]:8000", {"HTTP_PROXY": "http://a:1"}, ""),
        ("http://169.254.169.254", {"HTTP_PROXY": "http://a:1"}, ""),
        ("http://metadata.google.internal", {"HTTP_PROXY": "http://a:1"}, ""),
        ("unix:/run/x", {"HTTP_PROXY": "http://a:1"}, ""),
    ],
)
def test_environment_says_who_is_asked_by_which_proxy(url: str, environ: dict[str, str], proxy: str) -> None:
    """U15: lower case before upper case, as in curl; this machine and what gives it credentials are asked directly."""
    assert _by(url, **environ) == proxy


@pytest.mark.parametrize(
    ("host", "direct", "is_direct"),
    [
        ("api.example", "*", True),
        ("api.example", "example", True),
        ("api.example", ".example", True),
        ("api.example", "*.example", True),
        ("api.example", "API.Example", True),
        ("api.example", "other, api.example", True),
        ("api.example", "other api.example", True),
        ("api.example", "api.example:443", True),
        ("api.example", "api.example:8443", False),
        ("api.example:8443", "api.example:8443", True),
        ("myexample", "example", False),
        ("api.example", "api", False),
        ("api.example", "", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "2.3", False),
        ("[fd00::7]", "fd00::/8", True),
        ("[fd00::7]", "[fd00::7]", True),
        ("[fd00::7]:8443", "[fd00::7]:8443", True),
        ("[fd00::8]", "[fd00::7]", False),
    ],
)
def test_no_proxy_names_hosts_that_are_asked_directly(host: str, direct: str, is_direct: bool) -> None:
    """U15: domains with all below them, addresses, networks, each also for one port."""
    assert (_by(f"https://{host}", HTTPS_PROXY="http://p:1", NO_PROXY=direct) == "") is is_direct


@pytest.mark.parametrize("url", ["socks5://p:1080", "http://", "http://p:0", "http://p:x", "http://p/x?y", "ftp://p"])
def test_variable_that_is_no_proxy_is_told_of(url: str) -> None:
    """U15: whoever set it counts on it."""
    proxies, unusable = environment_proxies({"ALL_PROXY": url})
    assert list(proxies.each()) == [] and unusable == ("ALL_PROXY",)
    (line,) = load({"ALL_PROXY": url}).unused_variables
    assert line.startswith("set and not used: ALL_PROXY; a proxy is http://HOST:PORT")


def test_password_is_shown_nowhere() -> None:
    """It goes to the proxy, percent-encoding undone."""
    (proxy,) = environment_proxies({"HTTPS_PROXY": f"http://me:{PASSWORD}%40@p:1"})[0].each()
    assert proxy.authorization == b"Basic bWU6cDRzcy13MHJkQA=="
    settings = load({"HTTPS_PROXY": f"http://me:{PASSWORD}@p:1", "OPENAI_API_KEY": "sk-1"})
    lines = "\n".join(upstream_lines(settings))
    assert "by proxy http://p:1 (HTTPS_PROXY)" in lines
    assert PASSWORD not in lines + repr(settings) + repr(proxy) + str(proxy)


def _of(tmp_path: Path, proxy: object, **environ: str) -> Settings:
    file = tmp_path / "velox.yaml"
    file.write_text(json.dumps({"upstreams": [{"name": "u", "origin": "https://api.example", "proxy": proxy}]}))
    return load({"VELOX_CONFIG": str(file), **environ})


def test_upstream_has_its_own(tmp_path: Path) -> None:
    """U15: before the environment's; with a password only by a variable."""
    usual = {"HTTPS_PROXY": "http://usual:1"}
    found = {
        proxy: proxy_of(settings.upstreams[0].proxy, settings.upstreams[0].origins[0], settings.proxies)
        for proxy in ("http://own:3128", "env:EGRESS", "off")
        for settings in [_of(tmp_path, proxy, EGRESS=f"https://me:{PASSWORD}@egress", **usual)]
    }
    assert found["http://own:3128"] == Proxy("http", "own", 3128) and found["off"] is None
    assert str(found["env:EGRESS"]) == "https://egress:443"


@pytest.mark.parametrize(
    ("proxy", "expected"),
    [
        (f"http://me:{PASSWORD}@p:1", "expected `off`, http(s)://HOST:PORT without a password, or env:NAME"),
        ("socks5://p:1080", "expected `off`, http(s)://HOST:PORT without a password, or env:NAME"),
        ("env:NOWHERE", "expected http://HOST:PORT or https://HOST:PORT of a proxy in that variable, which is not set"),
    ],
)
def test_problem_names_no_password(proxy: str, expected: str, tmp_path: Path) -> None:
    """What is written is not shown."""
    with pytest.raises(SettingsError) as refused:
        _of(tmp_path, proxy)
    assert expected in str(refused.value) and PASSWORD not in str(refused.value)
