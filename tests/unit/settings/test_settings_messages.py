"""Bad files and variables, each with its whole message: where, what, what was expected, and no secret.

Each message was read as somebody reads it who has never seen Velox: change one only to make it clearer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.settings import SettingsError, load

FILES: dict[str, tuple[str | bytes, list[str]]] = {
    "clients": (
        "clients:\n  - {name: a, key: secret}\n",
        ["velox.yaml:1: clients: expected `api_keys`, a list such as `- {name: web-shop, key: sha256:HEX}`"],
    ),
    "server": (
        "server:\n  port: 8080\nzones: {a: {b: c}}\n",
        [
            "velox.yaml:1: server: expected `listen`, such as `listen: 127.0.0.1:8080`",
            "velox.yaml:3: zones: there is no such field",
        ],
    ),
    "lists where fields belong": (
        "upstreams:\n  - name: a\n    origin: http://h\n    timeouts: [3s]\n    probe: /health\n"
        "routes:\n  - {name: r, match: [gpt-4o], to: a, hedge: p95, mirror: a}\n",
        [
            "velox.yaml:4: timeouts: expected fields, such as `timeouts: {first_byte: 60s}`",
            "velox.yaml:5: probe: expected fields, such as `probe: {path: /health, every: 5s}`",
            "velox.yaml:7: mirror: expected fields, such as `mirror: {to: next, percent: 5}`",
            "velox.yaml:7: match: expected fields, such as `match: {models: [gpt-4o*]}`",
            "velox.yaml:7: hedge: expected fields, such as `hedge: {after: p95, at_most: 5%}`",
        ],
    ),
    "fields of an upstream at a route": (
        "upstreams:\n  - {name: a, origin: http://h}\n"
        "routes:\n  - {name: r, to: {upstream: a, weight: 3}, retries: 2, timeout: 3s}\n",
        [
            "velox.yaml:4: retries: expected it as a field of the file: it is the same for all routes",
            "velox.yaml:4: timeout: expected it at the upstream",
            "velox.yaml:4: to.weight: expected it at the upstream",
        ],
    ),
    "field of a key": (
        "upstreams:\n  - {name: a, origin: http://h}\napi_keys:\n  - {name: a, key: secret, rmp: 5, sk-secret: 1}\n",
        [
            "velox.yaml:4: rmp: there is no such field of a key; did you mean rpm?",
            "velox.yaml:4: a key: there is no such field of a key",
        ],
    ),
    "tab": ("workers: 2\n\tqueue_batch: 1\n", ["velox.yaml:2:1: the file: expected spaces before a field, not a tab"]),
    "indent": (
        "workers: 2\n  queue_batch: 1\n",
        [
            (
                "velox.yaml:2:14: the file: expected this line at the indent of the field before: it "
                "continues the value of that"
            )
        ],
    ),
    "colon in a value": (
        "listen: 127.0.0.1:8080\nadmin_token: a: b\n",
        ["velox.yaml:2:15: the file: expected no second `: ` in this line; put the value in quotes"],
    ),
    "no colon": (
        "workers 2\nqueue_batch: 1\n",
        ["velox.yaml:2:12: the file: expected `: ` after the name of the field in the line before"],
    ),
    "open bracket": (
        "upstreams: [{name: a, origin: http://h}\nroutes: []\n",
        ["velox.yaml:2:1: the file: expected `,` or `]`: a list is not closed; it begins in line 1"],
    ),
    "open brace": (
        "upstreams:\n  - {name: a, origin: http://h\nroutes:\n  - {name: r, to: a}\n",
        [("velox.yaml:3:7: the file: expected `,` or `}`: fields in braces are not closed; it begins in line 2")],
    ),
    "open quote": (
        'admin_token: "secret-secret\nworkers: 2\n',
        [
            (
                "velox.yaml:3:1: the file: expected the closing quote of a text; the file ends before "
                "it; it begins in line 1"
            )
        ],
    ),
    "star": (
        "routes:\n  - {name: r, match: {models: *}, to: a}\n",
        ["velox.yaml:2:32: the file: expected the value in quotes: it begins with `*` or `&`"],
    ),
    "star word": (
        "paths: *all\n",
        [
            (
                "velox.yaml:1:8: the file: expected the value in quotes: without them `*` refers to "
                "another part of the file"
            )
        ],
    ),
    "at": (
        "admin_token: @secret\n",
        [
            (
                "velox.yaml:1:14: the file: expected the value in quotes: it begins with a character "
                "that means something else in YAML"
            )
        ],
    ),
    "percent": (
        "%x\nworkers: 2\n",
        [("velox.yaml:2:1: the file: expected fields; a line that begins with `%` means something else in YAML")],
    ),
    "two documents": (
        "workers: 2\n---\nworkers: 3\n",
        [
            (
                "velox.yaml:2:1: the file: expected one document in the file; `---` begins another one; "
                "it begins in line 1"
            )
        ],
    ),
    "escape": (
        'config_name: "C:\\Users"\n',
        [
            (
                "velox.yaml:1:19: the file: expected single quotes around this text: `\\` means something "
                "else in double quotes"
            )
        ],
    ),
    "list in line": (
        "upstreams: - name: a\n",
        [("velox.yaml:1:12: the file: expected the `-` of a list in a line of its own, below its field")],
    ),
    "deeper list": (
        "upstreams:\n  - name: a\n    origin: http://h\n - name: b\n",
        [
            (
                "velox.yaml:4:2: the file: expected the same indent as the field before, or `: ` after a "
                "name; it begins in line 1"
            )
        ],
    ),
    "not utf-8": (
        b"workers: 2\naccess_log: \xff\xfe\n",
        ["velox.yaml:2:13: the file: expected text in UTF-8 without control characters"],
    ),
    "nul": ("workers: 2\nx: \x00\n", ["velox.yaml:2:4: the file: expected text in UTF-8 without control characters"]),
    "a list": ("- workers\n", ["velox.yaml:1: the file: expected fields such as `rate_limit_rpm: 600`"]),
    "a text": ("hello\n", ["velox.yaml:1: the file: expected fields such as `rate_limit_rpm: 600`"]),
    "empty": ("", ["VELOX_CONFIG is 'velox.yaml': expected at least one field in the file, it is empty"]),
    "unknown": ("workerz: 2\n", ["velox.yaml:1: workerz: there is no such field; did you mean workers?"]),
    "unknown upper": (
        "VELOX_WORKERS: 2\n",
        ["velox.yaml:1: VELOX_WORKERS: there is no such field; did you mean workers?"],
    ),
    "unknown dashes": (
        "rate-limit-rpm: 2\n",
        ["velox.yaml:1: rate-limit-rpm: there is no such field; did you mean rate_limit_rpm?"],
    ),
    "unknown, nothing near": ("colour: red\n", ["velox.yaml:1: colour: there is no such field"]),
    "secret as a field": ("sk-proj-abcdef0123456789abcdef: x\n", ["velox.yaml:1: a field: there is no such field"]),
    "other tool": (
        "model_list: []\n",
        [
            (
                "velox.yaml:1: model_list: expected `upstreams` and `routes`; `velox import litellm` "
                "makes them of a LiteLLM file"
            )
        ],
    ),
    "port field": ("port: 8080\n", ["velox.yaml:1: port: expected `listen`, such as `listen: 127.0.0.1:8080`"]),
    "unknown in upstream": (
        "upstreams:\n  - {name: a, orign: http://h}\n",
        [
            "velox.yaml:2: orign: there is no such field of an upstream; did you mean origin?",
            "velox.yaml:2: an upstream: expected `origin`, such as `origin: https://api.openai.com`",
        ],
    ),
    "url in upstream": (
        "upstreams:\n  - {name: a, url: http://h}\n",
        [
            "velox.yaml:2: url: expected `origin`, such as `origin: https://api.openai.com`",
            "velox.yaml:2: an upstream: expected `origin`, such as `origin: https://api.openai.com`",
        ],
    ),
    "models in route": (
        "upstreams: [{name: a, origin: http://h}]\nroutes:\n  - {name: r, models: [x], to: a}\n",
        ["velox.yaml:3: models: expected it inside `match`, such as `match: {models: [...]}`"],
    ),
    "unknown timeout": (
        "upstreams:\n  - {name: a, origin: http://h, timeouts: {first: 1s}}\n",
        [("velox.yaml:2: timeouts.first: there is no such field of `timeouts`; did you mean first_byte?")],
    ),
    "unknown upstream": (
        "upstreams: [{name: azure, origin: http://h}]\nroutes:\n  - {name: r, to: azur}\n",
        ["velox.yaml:3: to is 'azur': there is no such upstream; did you mean azure?"],
    ),
    "bad number": ("workers: two\n", ["velox.yaml:1: workers is 'two': expected a whole number from 1 to 512"]),
    "bad duration": (
        "queue_timeout: 5\n",
        [
            (
                "velox.yaml:1: queue_timeout is '5': expected a number with its unit (ms, s, m or h), "
                "for example 500ms or 25s"
            )
        ],
    ),
    "bad size": (
        "max_body: 5 apples\n",
        [
            (
                "velox.yaml:1: max_body is '5 apples': expected bytes, or a whole number with its unit, "
                "for example 65536, 64MiB or 1GB"
            )
        ],
    ),
    "bad switch": ("pin_cpus: maybe\n", ["velox.yaml:1: pin_cpus is 'maybe': expected on, off or auto"]),
    "bad word": ("access_log: some\n", ["velox.yaml:1: access_log is 'some': expected off, errors or all"]),
    "list for one": ("workers: [1, 2]\n", ["velox.yaml:1: workers: expected one value, not a list"]),
    "fields for one": (
        "max_body: {a: 1}\n",
        ["velox.yaml:1: max_body: expected one value, or a list of values without commas"],
    ),
    "twice": ("workers: 1\nworkers: 2\n", ["velox.yaml:2: workers: expected once, but it stands at velox.yaml:1 too"]),
    "bad port": (
        "listen: 127.0.0.1:99999\n",
        [
            (
                "velox.yaml:1: listen is '127.0.0.1:99999': expected a port from 0 to 65535 after the "
                "last colon, or unix:PATH"
            )
        ],
    ),
    "no port": (
        "listen: 10.0.0\n",
        [
            (
                "velox.yaml:1: listen is '10.0.0': expected IP:PORT, [IPV6]:PORT, localhost:PORT or "
                "unix:PATH, such as 127.0.0.1:8080, or 0.0.0.0:8080 for all addresses"
            )
        ],
    ),
    "only port": (
        'listen: ":8080"\n',
        [
            (
                "velox.yaml:1: listen is ':8080': expected IP:PORT, [IPV6]:PORT, localhost:PORT or "
                "unix:PATH, such as 127.0.0.1:8080, or 0.0.0.0:8080 for all addresses"
            )
        ],
    ),
    "name": (
        "listen: example.com:80\n",
        [
            (
                "velox.yaml:1: listen is 'example.com:80': expected IP:PORT, [IPV6]:PORT, localhost:PORT "
                "or unix:PATH: names are not looked up here"
            )
        ],
    ),
    "ipv6": (
        "listen: ::1:80\n",
        [
            (
                "velox.yaml:1: listen is '::1:80': expected IP:PORT, [IPV6]:PORT, localhost:PORT or "
                "unix:PATH: an IPv6 address stands in brackets"
            )
        ],
    ),
    "origin without scheme": (
        "upstreams: [{name: a, origin: api.example.com}]\n",
        [
            (
                "velox.yaml:1: origin is 'api.example.com': expected http://HOST[:PORT][/PATH] or "
                "https://HOST[:PORT][/PATH]"
            )
        ],
    ),
    "origin port": (
        'upstreams: [{name: a, origin: "http://h:99999"}]\n',
        ["velox.yaml:1: origin is 'http://h:99999': expected a port from 1 to 65535"],
    ),
    "origin user": (
        'upstreams: [{name: a, origin: "http://user:very-secret@h"}]\n',
        [
            (
                "velox.yaml:1: origin is 'http://hidden@h': expected a URL without user or password: "
                "give the key in `keys`"
            )
        ],
    ),
    "origin query": (
        'upstreams: [{name: a, origin: "http://h?key=very-secret"}]\n',
        ["velox.yaml:1: origin is 'http://h?hidden': expected a URL without query and fragment"],
    ),
    "key itself": (
        "upstreams: [{name: a, origin: http://h, keys: [sk-very-secret]}]\n",
        ["velox.yaml:1: keys: expected env:NAME or file:PATH, and never a key itself"],
    ),
    "missing variable": (
        "upstreams: [{name: a, origin: http://h, keys: [env:NOT_THERE]}]\n",
        ["velox.yaml:1: keys: expected a key in the variable NOT_THERE, which is not set"],
    ),
    "missing variable, short": (
        "upstreams: [{name: a, origin: http://h, keys: [env:OPENAIKEY]}]\n",
        ["velox.yaml:1: keys: expected a key in the variable OPENAIKEY, which is not set"],
    ),
    "missing variable, lower": (
        "upstreams: [{name: a, origin: http://h, keys: [env:openai_key]}]\n",
        ["velox.yaml:1: keys: expected a key in the variable openai_key, which is not set"],
    ),
    "variable like a key": (
        "upstreams: [{name: a, origin: http://h, keys: [env:gsk_a8Fh2kPq91Lm3xZ]}]\n",
        ["velox.yaml:1: keys: expected a key in the variable that is named here, which is not set"],
    ),
    "missing file": (
        "upstreams: [{name: a, origin: http://h, keys: ['file:/run/secrets/none']}]\n",
        [
            (
                "velox.yaml:1: keys: expected a key in the file '/run/secrets/none', which can't be read "
                "(No such file or directory)"
            )
        ],
    ),
    "burst": (
        "rate_limit_burst: 5\n",
        [
            (
                "velox.yaml:1: rate_limit_burst is '5': expected `rate_limit_rpm` with it: a burst is "
                "how much of a rate may come at once"
            )
        ],
    ),
    "key limits without keys": (
        "key_rpm: 5\n",
        [
            (
                "velox.yaml:1: key_rpm is 5: expected `api_keys` or `api_keys_file` with it: without "
                "keys all callers are one"
            )
        ],
    ),
    "listener without keys": (
        "listen: 0.0.0.0:80\n",
        [
            (
                "velox.yaml:1: listen is '0.0.0.0:80': expected `api_keys` or `api_keys_file` when "
                "clients can come from other machines (`auth: none` lets everyone in)"
            )
        ],
    ),
    "budget": (
        "max_body: 1GiB\nbody_budget: 1MiB\n",
        [
            (
                "velox.yaml:2: body_budget is 1048576: expected at least `max_body`, 1073741824 bytes: "
                "such a body would never be taken"
            )
        ],
    ),
    "memory": (
        "memory_soft: 2GiB\nmemory_hard: 1GiB\n",
        [
            (
                "velox.yaml:2: memory_hard is 1073741824: expected at least `memory_soft`, 2147483648 "
                "bytes: refusing comes before replacing"
            )
        ],
    ),
    "shares": (
        "workers: 8\nmax_inflight: 4\n",
        [("velox.yaml:2: max_inflight is 4: expected at least `workers`, 8: each worker gets a share")],
    ),
    "shares of an upstream": (
        "workers: 3\nupstreams:\n  - name: a\n    origin: http://a\n    concurrency: 2\n"
        "  - {name: b, origin: http://b, concurrency: 3}\n  - {name: c, origin: http://c, concurrency: off}\n",
        [("velox.yaml:5: concurrency is '2': expected at least `workers`, 3: each worker gets a share")],
    ),
    "shares of upstreams that do not say": (
        "workers: 3\nupstream_concurrency: 2\nupstreams: [{name: a, origin: http://a}, {name: b, origin: http://b}]\n",
        [("velox.yaml:2: upstream_concurrency is 2: expected at least `workers`, 3: each worker gets a share")],
    ),
    "tls without key": (
        "tls_cert: /absent.pem\n",
        [("velox.yaml:1: tls_cert is '/absent.pem': expected `tls_key` with it: the certificate's private key")],
    ),
    "key file": (
        "api_keys_file: /absent\n",
        [("velox.yaml:1: api_keys_file is '/absent': expected a file that can be read (No such file or directory)")],
    ),
    "token file": (
        "admin_token_file: /absent\n",
        [("velox.yaml:1: admin_token_file is '/absent': expected a file that can be read (No such file or directory)")],
    ),
    "both tokens": (
        "admin_token: token-token-token\nadmin_token_file: /absent\n",
        ["velox.yaml:2: admin_token_file is '/absent': expected this or `admin_token`, not both"],
    ),
    "admin address": (
        "listen: 127.0.0.1:8080\nadmin_listen: 127.0.0.1:8080\n",
        ["velox.yaml:2: admin_listen is 127.0.0.1:8080: expected another address than `listen`"],
    ),
    "origin with upstreams": (
        "upstream_origin: http://h\nupstreams: [{name: a, origin: http://h}]\n",
        [
            (
                "velox.yaml:1: upstream_origin is 'http://h': expected this or `upstreams` "
                "(velox.yaml:2), not both: remove it, and give `origin` there"
            )
        ],
    ),
    "upstreams nothing": (
        "upstreams:\n",
        [
            (
                "velox.yaml:1: upstreams: expected a list of upstreams, such as `- {name: openai, "
                "origin: https://api.openai.com}`"
            )
        ],
    ),
    "upstreams text": (
        "upstreams: nonsense\n",
        [
            (
                "velox.yaml:1: upstreams: expected a list of upstreams, such as `- {name: openai, "
                "origin: https://api.openai.com}`"
            )
        ],
    ),
    "upstream text": (
        "upstreams: [a]\n",
        [("velox.yaml:1: an upstream: expected fields such as `name: openai` and `origin: https://api.openai.com`")],
    ),
    "upstream twice": (
        "upstreams:\n  - {name: a, origin: http://h}\n  - {name: a, origin: http://i}\n",
        ["velox.yaml:3: name is 'a': expected each name once; the upstream at velox.yaml:2 has it"],
    ),
    "route without to": (
        "upstreams: [{name: a, origin: http://h}]\nroutes:\n  - {name: r}\n",
        ["velox.yaml:3: a route: expected `to`, such as `to: [openai]`"],
    ),
    "cycle": (
        "upstreams: [{name: a, origin: http://h}]\nroutes:\n  - {name: r, to: a, fallback: [a]}\n",
        [
            (
                "velox.yaml:3: fallback is 'a': expected an upstream, or a model of it, that is not in "
                "`to`: this one was tried already (a cycle)"
            )
        ],
    ),
    "unreachable": (
        "upstreams: [{name: a, origin: http://h}]\nroutes:\n  - {name: r, to: a}\n  - {name: s, to: a}\n",
        [
            (
                "velox.yaml:4: a route is 's': it never matches: r (velox.yaml:3) matches all of its "
                "requests first; move it before r"
            )
        ],
    ),
    "limit of nothing": (
        "limits: [{per: gateway}]\n",
        ["velox.yaml:1: a limit: expected rpm, tpm or concurrency: it limits nothing"],
    ),
    "end mark": ("end: true\nworkers: 2\n", ["velox.yaml:1: end: expected `end: true`, as the last field of the file"]),
}
VARIABLES: dict[str, tuple[str, list[str]]] = {
    "VELOX_WORKER": ("2", ["VELOX_WORKER: there is no such variable; did you mean VELOX_WORKERS?"]),
    "VELOX_UPSTREAMS": (
        "[]",
        [("VELOX_UPSTREAMS: expected `upstreams:` in the file that VELOX_CONFIG names: there is no such variable")],
    ),
    "VELOX_LISTEN": (
        "0.0.0.0:80",
        [
            (
                "VELOX_LISTEN is '0.0.0.0:80': expected VELOX_API_KEYS or VELOX_API_KEYS_FILE when "
                "clients can come from other machines (VELOX_AUTH=none lets everyone in)"
            )
        ],
    ),
    "VELOX_UPSTREAM_ORIGIN": ("http://h:0", ["VELOX_UPSTREAM_ORIGIN is 'http://h:0': expected a port from 1 to 65535"]),
    "VELOX_QUEUE_TIMEOUT": (
        "5",
        [("VELOX_QUEUE_TIMEOUT is '5': expected a number with its unit (ms, s, m or h), for example 500ms or 25s")],
    ),
    "VELOX_RATE_LIMIT_BURST": (
        "5",
        [
            (
                "VELOX_RATE_LIMIT_BURST is '5': expected VELOX_RATE_LIMIT_RPM with it: a burst is how "
                "much of a rate may come at once"
            )
        ],
    ),
    "VELOX_BODY_BUDGET": (
        "1MiB",
        [
            (
                "VELOX_BODY_BUDGET is 1048576: expected at least VELOX_MAX_BODY, 67108864 bytes: such a "
                "body would never be taken"
            )
        ],
    ),
    "VELOX_CONFIG": (
        "/absent.yaml",
        [("VELOX_CONFIG is '/absent.yaml': expected a file that can be read (No such file or directory)")],
    ),
    "VELOX_REDIS_URL": ("redis://:very-secret@h:99999", ["VELOX_REDIS_URL is hidden: expected a port from 1 to 65535"]),
    "VELOX_API_KEYS": (
        "good,two words,x",
        [
            "VELOX_API_KEYS is hidden: in key 2 of those between commas, expected 1 to 512 visible ASCII"
            " characters; in a YAML list a key may have spaces inside"
        ],
    ),
    "VELOX_ADMIN_LISTEN": (
        "0.0.0.0:1",
        [
            (
                "VELOX_ADMIN_LISTEN is '0.0.0.0:1': expected VELOX_ADMIN_TOKEN or VELOX_ADMIN_TOKEN_FILE "
                "when other machines can connect"
            )
        ],
    ),
    "VELOX_LIMITS": (
        "[{per: group, rpm: 5}]",
        ["VELOX_LIMITS is '[{per: group, rpm: 5}]': per: expected gateway, team, user, key, model or key+model"],
    ),
    "VELOX_TLS_KEY": (
        "/absent",
        [("VELOX_TLS_KEY is '/absent': expected VELOX_TLS_CERT with it: the certificate that the key belongs to")],
    ),
    "OPENAI_API_KEY": (
        "sk-very secret",
        [
            (
                "OPENAI_API_KEY is hidden: expected visible ASCII characters only: no space, line end or "
                "other control character"
            )
        ],
    ),
}


def said(folder: Path, environ: dict[str, str], **overrides: str) -> list[str]:
    """Return the messages, with paths as a person in that folder gives them."""
    with pytest.raises(SettingsError) as caught:
        load(environ, overrides, cores=2, memory_bytes=0)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


@pytest.mark.parametrize("name", FILES)
def test_file_that_is_bad_is_told(tmp_path: Path, name: str) -> None:
    """File and line, of what is no YAML the column too; the field as it stands there; what was expected."""
    content, wanted = FILES[name]
    (tmp_path / "velox.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())

    told = said(tmp_path, {"VELOX_CONFIG": str(tmp_path / "velox.yaml")})

    assert told == wanted
    assert "-secret" not in "".join(told)


@pytest.mark.parametrize("name", VARIABLES)
def test_variable_that_is_bad_is_told(tmp_path: Path, name: str) -> None:
    """The variable, its value unless it may be a secret, what was expected."""
    text, wanted = VARIABLES[name]

    told = said(tmp_path, {name: text})

    assert told == wanted
    assert "-secret" not in "".join(told)


def test_option_that_is_bad_is_told(tmp_path: Path) -> None:
    """By its own name."""
    told = said(tmp_path, {}, VELOX_CONFIG="/absent.yaml")

    assert told == ["--config is '/absent.yaml': expected a file that can be read (No such file or directory)"]


def test_advice_names_what_is_given_elsewhere_by_its_variable(tmp_path: Path) -> None:
    """A field of the file that contradicts a variable."""
    (tmp_path / "velox.yaml").write_text("max_inflight: 4\n")

    told = said(tmp_path, {"VELOX_CONFIG": str(tmp_path / "velox.yaml"), "VELOX_WORKERS": "8"})

    assert told == ["velox.yaml:1: max_inflight is 4: expected at least VELOX_WORKERS, 8: each worker gets a share"]


def test_messages_are_many() -> None:
    """A table that shrinks by mistake is noticed."""
    assert len(FILES) + len(VARIABLES) >= 80
