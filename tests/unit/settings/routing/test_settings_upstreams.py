"""The upstreams: how they are written, what they take from the variables, what is refused, each in one clear line."""

from __future__ import annotations

import datetime
import hashlib
import os
import re
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.settings.checks.test_settings_tls import certificate
from velox.cli import main
from velox.policy.routes.entries import KeyRef, ProbeEntry, Target, Timeouts, UpstreamEntry
from velox.protocol.heads.fields import HANDSHAKE, HOP_BY_HOP
from velox.settings import Settings, SettingsError, load
from velox.settings.routing.header_rules import NEVER_SET
from velox.settings.routing.upstreams import files_of, files_of_bad
from velox.settings.show import upstream_lines
from velox.settings.yaml.nodes import tree_of
from velox.types import Secret

KEY = "sk-proj-very-secret-0123456789"
ENVIRON = {"OPENAI_API_KEY": KEY, "SECOND_KEY": "second", "lower": KEY, "BAD_KEY": f"{KEY} x", "EMPTY_KEY": ""}
UPSTREAMS = """upstreams:
  - name: openai
    origin: https://api.openai.com
    keys: [env:OPENAI_API_KEY, env:SECOND_KEY]
    http2: on
    timeouts: {connect: 1s, tls: 2s, first_byte: 3s, idle: 4s, write: 5s, total: 0}
    connections: 7
    weight: 3
    concurrency: auto
    models: [gpt-4o, gpt-4o-mini*]
    headers: {X-Team: platform, x-b: a b}
  - name: vllm
    origin:
      - http://10.0.0.1:8000
      - http://10.0.0.2:8000/base
    load: vllm
    probe: {path: /health, every: 500ms}
  - {name: local, origin: unix:/run/x.sock, probe: {path: /health}}
"""


def of_file(tmp_path: Path, content: str, **environ: str) -> Settings:
    """Load settings from a file that holds `content`."""
    file = tmp_path / "velox.yaml"
    file.write_text(content)
    return load({"VELOX_CONFIG": str(file), **ENVIRON, **environ}, cores=2)


def problems(tmp_path: Path, content: str, **environ: str) -> list[str]:
    """Return what is wrong with such a file, the path cut down to its name. No key is in any of it."""
    with pytest.raises(SettingsError) as raised:
        of_file(tmp_path, content, **environ)
    told = [str(problem).replace(f"{tmp_path}/", "") for problem in raised.value.problems]
    assert "very-secret" not in repr(told)
    return told


def key_ref(ref: str, text: str) -> KeyRef:
    """Return a credential as it is found."""
    return KeyRef(ref, hashlib.sha256(text.encode()).digest(), Secret(text))


def test_list_becomes_upstreams(tmp_path: Path) -> None:
    """Each field is where it belongs; several origins are members of one upstream."""
    openai, vllm, local = of_file(tmp_path, UPSTREAMS).upstreams

    assert (openai.name, list(map(str, openai.origins))) == ("openai", ["https://api.openai.com"])
    assert openai.keys == (key_ref("env:OPENAI_API_KEY", KEY), key_ref("env:SECOND_KEY", "second"))
    assert [key.secret.reveal() for key in openai.keys] == [KEY, "second"]
    assert (openai.http2, openai.timeouts) == (
        "on",
        Timeouts(1.0, 2.0, 3.0, 4.0, 5.0, 0.0, stall_s=4.0, thinking_s=3.0),
    )
    assert (openai.connections, openai.weight, openai.concurrency) == (7, 3, "auto")
    assert openai.models == ("gpt-4o", "gpt-4o-mini*")
    assert openai.headers == ((b"x-team", b"platform"), (b"x-b", b"a b"))
    assert list(map(str, vllm.origins)) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000/base"]
    assert (vllm.load, vllm.probe, vllm.keys) == ("vllm", ProbeEntry("/health", 0.5), ())
    assert local.probe == ProbeEntry("/health", 5.0)
    assert [each.where.rpartition(":")[2] for each in (openai, vllm, local)] == ["2", "12", "18"]


def test_what_an_upstream_leaves_out_is_as_the_variables_have_it(tmp_path: Path) -> None:
    """Time-outs one by one; but no credential: neither the key nor the client certificate is for all of them."""
    content = "upstreams:\n  - {name: a, origin: http://h, timeouts: {tls: 9s}}\n"
    (entry,) = of_file(
        tmp_path,
        content,
        VELOX_UPSTREAM_IDLE_TIMEOUT="7s",
        VELOX_UPSTREAM_HTTP2="off",
        VELOX_UPSTREAM_CONCURRENCY="5",
        VELOX_EGRESS_POOL_CONNECTIONS="11",
    ).upstreams

    assert entry.timeouts == Timeouts(3.0, 9.0, 60.0, 7.0, 30.0, 600.0, stall_s=7.0, thinking_s=600.0)
    assert (entry.http2, entry.concurrency, entry.connections, entry.weight) == ("off", 5, 11, 1)
    assert (entry.keys, entry.cert_file, entry.key_file, entry.load, entry.probe) == ((), None, None, "off", None)


def test_variables_alone_make_upstreams_and_one_route() -> None:
    """One upstream, `default`; each further origin is one more, used when those before it fail."""
    one = load({"OPENAI_API_KEY": KEY, "VELOX_UPSTREAM_CONCURRENCY": "auto"}, cores=2)
    three = load({"VELOX_UPSTREAM_ORIGIN": "http://a,http://b,http://c"}, cores=2)

    (entry,), (route,) = one.upstreams, one.routes
    assert (entry.name, entry.origins, entry.where) == ("default", one.upstream_origins, "")
    assert (entry.keys, entry.concurrency) == ((key_ref("env:OPENAI_API_KEY", KEY),), "auto")
    assert (route.name, bool(route.match), route.to, route.fallback) == ("*", False, (Target("default"),), ())
    assert [each.name for each in three.upstreams] == ["default", "default-2", "default-3"]
    assert three.routes[0].to == (Target("default"),)
    assert three.routes[0].fallback == (Target("default-2"), Target("default-3"))
    assert all(each.keys == () for each in three.upstreams)


def test_files_of_tls_make_another_upstream_where_there_is_tls(tmp_path: Path) -> None:
    """One of plain HTTP keeps its connections when the bundle of authorities is renewed."""
    bundle = tmp_path / "ca.pem"
    origins = "https://a.example,http://b.example"

    def upstreams() -> tuple[UpstreamEntry, ...]:
        return load({"VELOX_UPSTREAM_ORIGIN": origins, "VELOX_UPSTREAM_CA_FILE": str(bundle)}, cores=2).upstreams

    trustme.CA().cert_pem.write_to_path(str(bundle))
    tls, plain = upstreams()
    trustme.CA().cert_pem.write_to_path(str(bundle))
    other_tls, same_plain = upstreams()

    assert tls != other_tls and plain == same_plain
    assert files_of((tls, plain)) == {str(bundle)} and not files_of((plain,))


def test_upstreams_without_routes_share_everything(tmp_path: Path) -> None:
    """One route to any of them."""
    (route,) = of_file(tmp_path, UPSTREAMS).routes

    assert (route.name, bool(route.match), route.fallback) == ("*", False, ())
    assert route.to == (Target("openai"), Target("vllm"), Target("local"))


def test_key_is_read_from_a_file(tmp_path: Path) -> None:
    """The space around it is not part of it."""
    (tmp_path / "key").write_text(f"{KEY}\n")

    settings = of_file(tmp_path, f"upstreams: [{{name: a, origin: http://h, keys: 'file:{tmp_path}/key'}}]")

    (key,) = settings.upstreams[0].keys
    assert (key.ref, key.secret.reveal()) == (f"file:{tmp_path}/key", KEY)


def test_key_that_has_changed_makes_another_upstream(tmp_path: Path) -> None:
    """What a reload compares: the key itself counts, where the upstream stands in the file does not."""
    content = "upstreams: [{name: a, origin: http://h, keys: env:OPENAI_API_KEY}]"
    before, same = of_file(tmp_path, content).upstreams, of_file(tmp_path, f"# moved\n\n{content}").upstreams
    after = of_file(tmp_path, content, OPENAI_API_KEY="other").upstreams

    assert before == same and hash(before) == hash(same)
    assert before != after


def test_key_is_shown_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not in a repr, not by `velox check`: there its reference stands, and no value of a header."""
    settings = of_file(tmp_path, UPSTREAMS)
    assert main(["check"], {"VELOX_CONFIG": str(tmp_path / "velox.yaml"), **ENVIRON}) == 0
    out = capsys.readouterr().out

    assert KEY not in repr(settings) + out and "platform" not in repr(settings.upstreams) + out
    assert "keys env:OPENAI_API_KEY, env:SECOND_KEY" in out


def test_check_prints_each_upstream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its name, where it is, what was said of it, where it was written."""
    of_file(tmp_path, UPSTREAMS)

    assert main(["check"], {"VELOX_CONFIG": str(tmp_path / "velox.yaml"), **ENVIRON}) == 0

    out = capsys.readouterr().out.replace(f"{tmp_path}/", "")
    printed = [" ".join(line.split()) for line in out[out.index("upstream: ") :].splitlines()]
    assert printed[:6] == [
        "upstream: openai https://api.openai.com velox.yaml:2",
        "keys env:OPENAI_API_KEY, env:SECOND_KEY; http2 on; weight 3; concurrency auto; models gpt-4o, gpt-4o-mini*;"
        " sets x-team, x-b",
        "upstream: vllm http://10.0.0.1:8000, http://10.0.0.2:8000/base velox.yaml:12",
        "the client's own key; http2 auto; load vllm; probe /health every 0.5s",
        "upstream: local unix:/run/x.sock velox.yaml:18",
        "the client's own key; http2 auto; probe /health every 5s",
    ]
    assert "VELOX_UPSTREAM_ORIGIN" not in out
    assert main(["check", "--all"], {"VELOX_CONFIG": str(tmp_path / "velox.yaml"), **ENVIRON}) == 0
    assert re.search(r"VELOX_UPSTREAM_ORIGIN +see below", capsys.readouterr().out)


A = "name: a, origin: http://h"
BAD = {
    "{origin: http://h}": ["an upstream: expected `name`, such as `name: openai`"],
    "{name: a}": ["an upstream: expected `origin`, such as `origin: https://api.openai.com`"],
    "{name: a b, origin: http://h}": ["name: expected a name of 1 to 64 letters"],
    "{name: [a], origin: http://h}": ["name: expected one value"],
    "{name: , origin: http://h}": ["name: expected a name"],
    "text": ["an upstream: expected fields such as `name: openai`"],
    "[a]": ["an upstream: expected fields such as `name: openai`"],
    "{name: a, origin: ftp://h}": ["origin is 'ftp://h': expected http://HOST[:PORT][/PATH] or https://"],
    "{name: a, origin: http://u:very-secret@h}": ["origin is 'http://hidden@h': expected a URL without user"],
    "{name: a, origin: 'http://h?very-secret'}": ["origin is 'http://h?hidden': expected a URL without query"],
    "{name: a, origin: 'http://h/a/../b'}": ["origin is 'http://h/a/../b': expected a path"],
    "{name: a, origin: []}": ["origin: expected at least one value"],
    "{name: a, origin: [http://h, http://h]}": ["origin: expected each value once"],
    "{name: a, origin: {b: c}}": ["origin: expected a list of values"],
    f"{{{A}, orign: x}}": ["orign: there is no such field of an upstream; did you mean origin?"],
    f"{{{A}, {KEY}: x}}": ["a field: there is no such field of an upstream"],
    f"{{{A}, weight: 0}}": ["weight is '0': expected a whole number from 1 to 1000"],
    f"{{{A}, weight: 1001}}": ["weight is '1001': expected a whole number from 1 to 1000"],
    f"{{{A}, weight: [1]}}": ["weight: expected one value"],
    f"{{{A}, http2: maybe}}": ["http2 is 'maybe': expected auto, on or off"],
    f"{{{A}, load: tgi}}": ["load is 'tgi': expected off, vllm or sglang"],
    f"{{{A}, concurrency: 0}}": ["concurrency is '0': expected a whole number from 1 to 10000000, auto or off"],
    f"{{{A}, connections: 0}}": ["connections is '0': expected a whole number from 1 to 4096"],
    f"{{{A}, models: []}}": ["models: expected at least one value; leave the field out for none"],
    f"{{{A}, models: [a b]}}": ["models: expected names of models"],
    f"{{{A}, timeouts: 5s}}": ["timeouts: expected fields"],
    f"{{{A}, timeouts: {{conect: 5s}}}}": [
        "timeouts.conect: there is no such field of `timeouts`; did you mean connect?"
    ],
    f"{{{A}, timeouts: {{connect: 5}}}}": ["timeouts.connect is '5': expected a number with its unit"],
    f"{{{A}, timeouts: {{connect: 0}}}}": ["timeouts.connect is '0': expected a duration from 0.001s"],
    f"{{{A}, probe: {{every: 5s}}}}": ["`probe`: expected `path`, such as `path: /health`"],
    f"{{{A}, probe: {{path: health, every: 1ms}}}}": [
        "probe.path is 'health': expected a path such as",
        "probe.every is '1ms': expected a duration from 0.1s",
    ],
    f"{{{A}, headers: [x]}}": ["headers: expected fields"],
    f"{{{A}, headers: {{a b: very-secret}}}}": ["headers: expected the name of a header field"],
    f'{{{A}, headers: {{a: "very-secret\\r\\nb: c"}}}}': ["headers: expected 1 to 4096 visible ASCII characters"],
    f"{{{A}, headers: {{a: ''}}}}": ["headers: expected 1 to 4096 visible ASCII"],
    f"{{{A}, headers: {{a: b, A: c}}}}": ["headers: expected each name once"],
    f"{{{A}, headers: {{a: [b]}}}}": ["headers: expected one value for each name"],
    f"{{{A}, headers: {{Transfer-Encoding: chunked}}}}": ["headers: expected no transfer-encoding: Velox itself"],
    f"{{{A}, headers: {{Authorization: Bearer {KEY}}}}}": [
        "headers: expected no authorization: a key is given in `keys`"
    ],
    f"{{{A}, headers: {{x-velox-a: b}}}}": ["headers: expected no x-velox-...: Velox itself"],
    # W11: as `keys` have it, or not at all.
    f"{{{A}, headers: {{x-a: env:NOT_SET}}}}": ["headers: expected a value in the variable NOT_SET, which is not set"],
    f"{{{A}, headers: {{x-a: env:EMPTY_KEY}}}}": [
        "headers: expected a value in the variable EMPTY_KEY, which is empty"
    ],
    f"{{{A}, headers: {{x-a: env:very-secret}}}}": ["headers: expected env:NAME with the name of a variable"],
    f"{{{A}, headers: {{x-a: file:/absent}}}}": [
        "headers: expected a value in the file '/absent', which can't be read"
    ],
    f"{{{A}, headers: {{x-a: 'file:'}}}}": ["headers: expected a value in the file that is named here, which can't be"],
    f"{{{A}, keys: [env:OPENAI_API_KEY], headers: {{Authorization: env:OPENAI_API_KEY}}}}": [
        "headers: expected no authorization beside `keys`, which stand in it"
    ],
    f"{{{A}, query: {{a b: very-secret}}}}": ["query: expected the name of a parameter"],
    f"{{{A}, query: {{a: b, A: c}}}}": ["query: expected each name once"],
    f"{{{A}, query: {{a: env:NOT_SET}}}}": ["query: expected a value in the variable NOT_SET, which is not set"],
    f"{{{A}, query: a=b}}": ["query: expected fields"],
    f"{{{A}, auth: basic}}": ["auth: expected `keys` with it"],
    f"{{{A}, keys: [env:OPENAI_API_KEY], auth: basic}}": ["auth: expected USER:PASSWORD in each of `keys`"],
    f"{{{A}, keys: [env:OPENAI_API_KEY], auth: authorization}}": ["auth is 'authorization': expected bearer, basic"],
    f"{{{A}, keys: [env:OPENAI_API_KEY], auth: host}}": ["auth is 'host': expected bearer, basic"],
    f"{{{A}, keys: {KEY}}}": ["keys: expected env:NAME or file:PATH, and never a key itself"],
    f"{{{A}, keys: [env:{KEY}]}}": ["keys: expected env:NAME or file:PATH, and never a key itself"],
    f"{{{A}, keys: ['env:']}}": ["keys: expected env:NAME or file:PATH"],
    f"{{{A}, keys: ['file:']}}": ["keys: expected env:NAME or file:PATH"],
    f"{{{A}, keys: [env:NOT_SET]}}": ["keys: expected a key in the variable NOT_SET, which is not set"],
    f"{{{A}, keys: [env:EMPTY_KEY]}}": ["keys: expected a key in the variable EMPTY_KEY, which is empty"],
    f"{{{A}, keys: [env:skprojverysecret]}}": ["keys: expected a key in the variable that is named here, which is"],
    f"{{{A}, keys: [env:BAD_KEY]}}": ["keys: in the variable BAD_KEY, expected visible ASCII characters only"],
    f"{{{A}, keys: [env:OPENAI_API_KEY, env:OPENAI_API_KEY]}}": ["keys: expected each value once"],
    f"{{{A}, keys: [env:OPENAI_API_KEY, env:lower]}}": ["keys: expected each key once: two of these"],
    f"{{{A}, keys: [file:/absent/key]}}": [
        "keys: expected a key in the file '/absent/key', which can't be read (No such"
    ],
    f"{{{A}, keys: [file:very-secret]}}": ["keys: expected a key in the file that is named here, which can't be read"],
    f"{{{A}, keys: [file:/dev/zero]}}": ["keys: expected a key in the file '/dev/zero', which can't be read (it is no"],
    f"{{{A}, keys: [{{env: {KEY}}}]}}": ["keys: expected a list of values"],
    f"{{{A}, ca_file: /absent.pem}}": ["ca_file is '/absent.pem': expected a PEM file of certificates (No such"],
    f"{{{A}, ca_file: }}": ["ca_file is '': expected the path of a file"],
    f"{{{A}, cert_file: /absent.pem}}": ["cert_file is '/absent.pem': expected a file that can be read"],
    f"{{{A}, key_file: /absent.pem}}": ["key_file: expected cert_file with it"],
    f"{{{A}, weight: 1, weight: 2}}": ["weight: expected once, but it stands at velox.yaml:2 too"],
    f"{{{A}, ? [x] : 2}}": ["a field's name: expected a word"],
    f"{{{A}, weight: 0, http2: 1}}\n  - {{name: a, origin: x, load: y}}": [
        "http2 is '1'",
        "weight is '0'",
        "origin is 'x'",
        "load is 'y'",
        "name is 'a': expected each name once; the upstream at velox.yaml:2 has it",
    ],
}


@pytest.mark.parametrize("content", BAD, ids=range(len(BAD)))
def test_upstream_that_is_wrong_is_told_with_its_line(content: str, tmp_path: Path) -> None:
    """File and line, field, what was expected; all of them at once, and no key."""
    told = problems(tmp_path, f"upstreams:\n  - {content}\n")

    expected = BAD[content]
    assert len(told) == len(expected), told
    for line, begins in zip(told, expected, strict=True):
        place, _, rest = line.partition(": ")
        assert place in ("velox.yaml:2", "velox.yaml:3")
        assert rest.startswith(begins), line


@pytest.mark.parametrize("content", ["upstreams: []", "upstreams: {a: b}", "upstreams: a", "upstreams: {name: a}"])
def test_list_of_another_shape_is_refused(content: str, tmp_path: Path) -> None:
    """There must be one upstream at least."""
    (told,) = problems(tmp_path, content)

    assert told.startswith("velox.yaml:1: upstreams: expected a list of upstreams, such as")


def test_empty_list_is_refused(tmp_path: Path) -> None:
    """A file that was cut off there must not send requests to the default upstream."""
    told = problems(tmp_path, "upstreams:\nroutes: ~\n")
    assert [each.partition(", such")[0] for each in told] == [
        "velox.yaml:1: upstreams: expected a list of upstreams",
        "velox.yaml:2: routes: expected a list of routes",
    ]


def test_variable_that_makes_an_upstream_and_the_list_are_not_both_taken(tmp_path: Path) -> None:
    """Each such variable is named, with what to do about it."""
    content = f"upstreams:\n- {{{A}}}\n"
    told = problems(tmp_path, content, VELOX_UPSTREAM_ORIGIN="http://x")
    in_file = problems(tmp_path, content + "upstream_origin: http://x\n")

    rest = "is 'http://x': expected this or `upstreams` (velox.yaml:1), not both: remove it, and give `origin` there"
    assert told == [f"VELOX_UPSTREAM_ORIGIN {rest}"]
    assert in_file == [f"velox.yaml:3: upstream_origin {rest}"]


def test_simulator_and_the_list_are_not_both_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with VELOX_UPSTREAM_ORIGIN."""
    (tmp_path / "velox.yaml").write_text(f"upstreams: [{{{A}}}]\n")

    assert main(["serve", "--sim"], {"VELOX_CONFIG": str(tmp_path / "velox.yaml")}) == 2

    assert "--sim and `upstreams` of the file name two upstreams" in capsys.readouterr().err


def test_key_file_that_is_empty_or_too_long_is_refused(tmp_path: Path) -> None:
    """A file that was not filled, or is another one."""
    file = tmp_path / "key"
    content = f"upstreams: [{{{A}, keys: 'file:{file}'}}]"
    told = []
    for text in (" \n", "a\nb", "x" * 16_385):
        file.write_text(text)
        told += problems(tmp_path, content)
    file.write_text("x" * 16_384)

    assert [line.partition("file ")[2] for line in told] == [
        "'key', which is empty",
        "'key', expected visible ASCII characters only: no space, line end or other control character",
        "'key', which can't be read (it is over 16384 bytes)",
    ]
    assert len(of_file(tmp_path, content).upstreams[0].keys[0].secret.reveal()) == 16_384


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "content"),
    [
        (256, lambda n: "upstreams:\n" + "".join(f"- {{name: u{k}, origin: http://h}}\n" for k in range(n))),
        (64, lambda n: f"upstreams: [{{name: a, origin: [{','.join(f'http://h{k}' for k in range(n))}]}}]"),
        (64, lambda n: f"upstreams: [{{{A}, keys: [{','.join(f'env:KEY_{k}' for k in range(n))}]}}]"),
        (64, lambda n: f"upstreams: [{{{A}, headers: {{{','.join(f'x-{k}: a' for k in range(n))}}}}}]"),
    ],
    ids=["upstreams", "origins", "keys", "headers"],
)
def test_number_of_each_is_bounded(most: int, content: object, tmp_path: Path) -> None:
    """At the bound they pass, one more is told."""
    assert callable(content)
    keys = {f"KEY_{k}": f"k{k}" for k in range(most + 1)}

    assert of_file(tmp_path, content(most), **keys).upstreams
    (told,) = problems(tmp_path, content(most + 1), **keys)
    assert f"expected at most {most}" in told


LARGE = {
    "upstreams: &a [*a]": "at most 8 levels",
    "upstreams: [[[[[[[[[a]]]]]]]]]": "at most 8 levels",
    "upstreams: {a: {b: {c: {d: {e: {f: {g: {h: i}}}}}}}}": "at most 8 levels",
    # 1.6 million values in four lines.
    "upstreams:\n- &a ["
    + "x, " * 40
    + "]\n- &b ["
    + "*a, " * 200
    + "]\n- &c ["
    + "*b, " * 200
    + "]\n": "at most 250000 val",
    "upstreams:\n- &a " + "x" * 100_000 + "\n" + "- *a\n" * 30: "at most 2097152 characters",
}


@pytest.mark.parametrize("content", LARGE, ids=["itself", "deep", "fields", "many", "long"])
@pytest.mark.slow
def test_aliases_and_nesting_without_end_are_refused(content: str, tmp_path: Path) -> None:
    """What they stand for is counted each time; nothing grows without bound."""
    (told,) = problems(tmp_path, content)

    assert f"upstreams: expected {LARGE[content]}" in told


def test_client_certificate_is_for_https_and_goes_with_its_key(tmp_path: Path) -> None:
    """It is looked at before a handshake does it."""
    until = datetime.datetime(2040, 1, 1)
    cert, key = certificate(tmp_path, ec.generate_private_key(ec.SECP256R1()), until=until)
    (tmp_path / "other").mkdir()
    _, other = certificate(tmp_path / "other", ec.generate_private_key(ec.SECP256R1()), until=until)
    content = "upstreams: [{{name: a, origin: {}, ca_file: {}, cert_file: {}, key_file: {}}}]"

    (entry,) = of_file(tmp_path, content.format("https://h", cert, cert, key)).upstreams
    assert (entry.ca_file, entry.cert_file, entry.key_file) == (cert, cert, key)
    (plain,) = problems(tmp_path, content.format("http://h", cert, cert, key))
    assert "cert_file: expected an https origin with it" in plain
    (foreign,) = problems(tmp_path, content.format("https://h", cert, cert, other))
    assert "expected a PEM certificate and its own private key without a password" in foreign
    (absent,) = problems(tmp_path, content.format("https://h", cert, cert, "/absent"))
    assert "key_file is '/absent': expected a file that can be read" in absent


def test_names_that_no_one_may_set_are_those_that_end_at_this_hop() -> None:
    """RFC 9110 §7.6.1, as the protocol has them: this floor can't import it."""
    assert {name.decode() for name in HOP_BY_HOP | HANDSHAKE} <= NEVER_SET


def test_depth_of_a_tree_is_that_of_a_route() -> None:
    """Eight levels pass, nine don't."""
    import yaml

    eight, nine = (yaml.compose("[" * depth + "]" * depth) for depth in (8, 9))

    assert tree_of("f", "x", eight)[1] == []
    assert "at most 8 levels" in str(tree_of("f", "x", nine)[1][0])


def test_key_is_read_from_the_environment_that_was_given(tmp_path: Path) -> None:
    """And from no other: a test's, or a service's, is not the process's."""
    assert "PATH" in os.environ

    (told,) = problems(tmp_path, f"upstreams: [{{{A}, keys: env:PATH}}]")

    assert "which is not set" in told


def test_silence_inside_a_text_is_bounded_unless_another_bound_was_chosen(tmp_path: Path) -> None:
    """Whoever allows longer silences means every one; the shorter default is for those who have said nothing."""
    content = "upstreams:\n  - {name: a, origin: http://h, timeouts: {%s}}\n"
    cases: list[tuple[str, dict[str, str], tuple[float, float]]] = [
        ("tls: 1s", {}, (600.0, 40.0)),
        ("idle: 5m", {}, (300.0, 300.0)),
        ("idle: 5m, stall: 90s", {}, (300.0, 90.0)),
        ("tls: 1s", {"VELOX_UPSTREAM_IDLE_TIMEOUT": "2m"}, (120.0, 120.0)),
        ("tls: 1s", {"VELOX_UPSTREAM_IDLE_TIMEOUT": "2m", "VELOX_UPSTREAM_STALL_TIMEOUT": "50s"}, (120.0, 50.0)),
    ]
    for fields, environ, wanted in cases:
        (entry,) = of_file(tmp_path, content % fields, **environ).upstreams
        assert (entry.timeouts.idle_s, entry.timeouts.stall_s) == wanted, (fields, environ)


def test_wait_for_a_model_that_thinks_is_as_long_as_sdks_wait_unless_another_was_chosen(tmp_path: Path) -> None:
    """C9: 600 s, as OpenAI's and Anthropic's SDKs have; who has set the wait for a first byte means every one."""
    content = "upstreams:\n  - {name: a, origin: http://h, timeouts: {%s}}\n"
    cases: list[tuple[str, dict[str, str], tuple[float, float]]] = [
        ("tls: 1s", {}, (60.0, 600.0)),
        ("first_byte: 20s", {}, (20.0, 20.0)),
        ("first_byte: 20s, thinking: 5m", {}, (20.0, 300.0)),
        ("thinking: 5m", {}, (60.0, 300.0)),
        ("tls: 1s", {"VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT": "2m"}, (120.0, 120.0)),
        ("tls: 1s", {"VELOX_UPSTREAM_THINKING_TIMEOUT": "2m"}, (60.0, 120.0)),
    ]
    for fields, environ, wanted in cases:
        (entry,) = of_file(tmp_path, content % fields, **environ).upstreams
        assert (entry.timeouts.first_byte_s, entry.timeouts.thinking_s) == wanted, (fields, environ)


def test_header_of_a_variable_is_what_it_holds(tmp_path: Path) -> None:
    """W11: the text `env:NAME` itself never goes up; a route's rules, whose values anybody may see, take none."""
    content = "upstreams: [{name: a, origin: http://h, headers: {x-tenant: env:TENANT, x-b: a:b}}]"
    (entry,) = of_file(tmp_path, content, TENANT="acme 1").upstreams
    assert entry.headers == ((b"x-tenant", b"acme 1"), (b"x-b", b"a:b"))

    routes = "\nroutes: [{name: r, to: a, request_headers: {set: {x-tenant: env:TENANT}}}]"
    (told,) = problems(tmp_path, content + routes, TENANT="acme")
    assert "in `headers` of an upstream also env:NAME" in told


def test_values_of_files_are_read_and_watched(tmp_path: Path) -> None:
    """A credential in a header of its own stands there by reference, and a reload takes another one."""
    (tmp_path / "token").write_text("Basic dTpw\n")
    content = "upstreams: [{{name: a, origin: http://h, headers: {{authorization: file:{0}}}, query: {{k: file:{0}}}}}]"
    (entry,) = of_file(tmp_path, content.format(tmp_path / "token")).upstreams
    assert entry.headers == ((b"authorization", b"Basic dTpw"),) and entry.query == (("k", "Basic dTpw"),)
    assert files_of([entry]) == {str(tmp_path / "token")} and "dTpw" not in repr(entry)
    assert files_of_bad(str(tmp_path / "velox.yaml")) == {str(tmp_path / "token")}
    (line, more, *_) = upstream_lines(of_file(tmp_path, content.format(tmp_path / "token")))
    assert "sets authorization; asks with k" in more and "dTpw" not in line + more


@pytest.mark.parametrize("end", ["/v1/chat/completions", "/completions", "/v1/messages", "/responses"])
def test_origin_of_the_variable_is_no_endpoint(end: str) -> None:
    """W10: the paths of requests have that already."""
    with pytest.raises(SettingsError) as refused:
        load({"VELOX_UPSTREAM_ORIGIN": f"https://h.test/base{end}"}, cores=2)
    assert f"expected it without {end} at its end" in str(refused.value)
