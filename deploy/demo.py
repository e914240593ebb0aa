"""`make run`: start Velox, stream one chat answer through it with the OpenAI SDK, and keep it running.

Without VELOX_UPSTREAM_ORIGIN, and without upstreams in VELOX_CONFIG, the upstream is the built-in simulator, whatever
keys of providers lie in the environment. An upstream that is named may charge for an answer: it is asked for one with
`make run KEY=yes` only. VELOX_* variables hold as for `velox serve`, and:

    VELOX_DEMO_PAYS=yes what KEY=yes is
    VELOX_DEMO_MODEL    the model to ask (default: gpt-4o-mini at OpenAI, elsewhere the first one listed)
    VELOX_DEMO_KEY      the Velox key to present (default: the first that stands in VELOX_API_KEYS as it is)
    VELOX_DEMO_KEEP=1   keep the gateway running without a terminal too; else it is stopped after the answer
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from velox.build import BUILD, DESCRIPTION
from velox.settings import Settings, SettingsError, load
from velox.types import Address

QUESTION = "Why is the sky blue? Answer in two sentences."
PLAIN = " Compiled, a request takes about two fifths less CPU: `make compiled`, then `make -C .compiled run`."
PAYS = ("yes", "y", "1", "on", "true")
READY_WITHIN_S = 15.0
STOPPED_WITHIN_S = 40.0


def main() -> int:
    """Run the demo; 0 when the answer came, 1 when it did not, 2 when the settings are wrong."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("VELOX_DEMO_")}
    began_s = time.monotonic()
    moved = []
    try:
        settings = load(environ)
        for name, address in (
            ("VELOX_LISTEN", settings.listen[0]),
            ("VELOX_ADMIN_LISTEN", settings.admin_listen),
        ):
            if address and settings.origins[name] == "default" and not is_free(address):
                environ[name] = f"127.0.0.1:{free_port()}"
                moved.append(f"Port {address.port} is taken, so {name} is {environ[name]}.\n")
        settings = load(environ)
    except SettingsError as exc:
        say(f"{exc}\n")
        return 2
    if settings.listen[0].kind != "tcp" or settings.tls_cert_file:
        say("the demo needs VELOX_LISTEN=IP:PORT, and no TLS\n")
        return 2
    # SIGTERM leaves through the `with` too: no gateway stays behind.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    key = demo_key(settings)
    if key is None:
        say("VELOX_API_KEYS has no key that the demo could present: set VELOX_DEMO_KEY to one of them\n")
        return 2
    is_named = settings.upstreams[0].where or settings.origins["VELOX_UPSTREAM_ORIGIN"] != "default"
    is_sim = not is_named
    say(f"This is Velox {DESCRIPTION}.{PLAIN if BUILD == 'plain' else ''}\n")
    upstream = "built-in simulator (VELOX_UPSTREAM_ORIGIN or VELOX_CONFIG names another upstream)"
    say(f"Velox -> {upstream if is_sim else settings.upstream_origins[0]}\n{''.join(moved)}")
    pays = os.environ.get("VELOX_DEMO_PAYS", "").lower() in PAYS
    with gateway(environ, is_sim=is_sim) as process:
        if not wait_ready(process, settings):
            say("Velox did not become ready\n")
            return 1
        say(f"ready after {time.monotonic() - began_s:.1f} s\n")
        if is_sim or pays:
            try:
                stream_answer(settings, key, is_sim=is_sim)
            except openai.OpenAIError as exc:
                say(f"\nno answer: {exc}\n")
                return 1
        else:
            say("No request was sent, as this upstream may charge for one: `make run KEY=yes` sends one.\n")
        say(next_steps(settings, is_sim=is_sim))
        if os.environ.get("VELOX_DEMO_KEEP") == "1" or (sys.stdin.isatty() and sys.stdout.isatty()):
            say(f"Running at http://{settings.listen[0]}/v1, admin at {admin_url(settings)}. Ctrl-C stops it.\n")
            return wait(process)
    return 0


@contextmanager
def gateway(environ: dict[str, str], *, is_sim: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Run `velox serve`; on leaving it is told to drain and stop, and killed only if it does not."""
    command = [sys.executable, "-m", "velox", "serve", *(["--sim"] if is_sim else [])]
    process = subprocess.Popen(command, env=environ)  # noqa: S603 - every word is ours
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the gateway to end. Ctrl-C reaches it too (same terminal): that is a good end."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        say("\n")
        return 0


def wait_ready(process: subprocess.Popen[bytes], settings: Settings) -> bool:
    """Wait until the gateway says that it is ready; False if it ended, or took too long."""
    deadline = time.monotonic() + READY_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline:
        if is_ready(settings):
            return True
        time.sleep(0.05)
    return False


def is_ready(settings: Settings) -> bool:
    """Ask /readyz on the admin listener; without one, see whether the data listener takes a connection."""
    admin = settings.admin_listen
    try:
        if admin is None or admin.kind != "tcp":
            socket.create_connection((reachable(settings.listen[0]), settings.listen[0].port), timeout=1).close()
            return True
        connection = http.client.HTTPConnection(reachable(admin), admin.port, timeout=1)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False


def demo_key(settings: Settings) -> str | None:
    """Return the key that the demo presents; None where clients must have one, and none is known."""
    given = [key.strip() for key in os.environ.get("VELOX_API_KEYS", "").split(",")]
    usable = [key for key in (os.environ.get("VELOX_DEMO_KEY", ""), *given) if key and not key.startswith("sha256:")]
    return usable[0] if usable else None if settings.requires_keys else "none-needed"


def stream_answer(settings: Settings, key: str, *, is_sim: bool) -> None:
    """Ask QUESTION and print the answer token by token, as it arrives."""
    base_url = base_url_of(settings)
    # trust_env: a proxy in the environment is for the internet, not for this machine.
    with openai.OpenAI(
        base_url=base_url, api_key=key, max_retries=0, http_client=openai.DefaultHttpxClient(trust_env=False)
    ) as client:
        model = os.environ.get("VELOX_DEMO_MODEL") or (
            "gpt-4o-mini"
            if settings.upstream_origins[0].host == "api.openai.com" and not is_sim
            else client.models.list().data[0].id
        )
        say(f"{model}: {QUESTION}\n\n")
        started = time.perf_counter()
        first_s = None
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": QUESTION}], stream=True
        )
        for chunk in stream:
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                first_s = first_s or time.perf_counter() - started
                say(text)
        whole_s = time.perf_counter() - started
    if first_s is None:
        raise openai.OpenAIError("the stream held no text")
    say(f"\n\nfirst token after {first_s * 1000:.0f} ms, whole answer after {whole_s * 1000:.0f} ms\n")


def next_steps(settings: Settings, *, is_sim: bool) -> str:
    """Return what a person may try now, each a line to type or to paste."""
    model = "velox-sim" if is_sim else "MODEL"
    key = " -H 'authorization: Bearer YOUR_KEY'" if settings.requires_keys else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return (
        "\nNext:\n"
        f"  curl {base_url_of(settings)}/chat/completions -H 'content-type: application/json'{key} -d '{body}'\n"
        f"  an SDK: base_url {base_url_of(settings)}    a browser: {admin_url(settings)}\n"
        "  .venv/bin/velox init    a configuration of your own; README.md goes on from there\n"
    )


def base_url_of(settings: Settings) -> str:
    """Return where an SDK of OpenAI asks the gateway."""
    host = reachable(settings.listen[0])
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.listen[0].port}/v1"


def reachable(address: Address) -> str:
    """Return a host to connect to for a listener: the wildcard addresses are reached over loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)


def admin_url(settings: Settings) -> str:
    """Return where the admin listener is, for a person."""
    return f"http://{settings.admin_listen}/" if settings.admin_listen else "off"


def is_free(address: Address) -> bool:
    """Tell whether nothing listens on a tcp address yet."""
    try:
        socket.create_connection((address.host, address.port), timeout=1).close()
    except OSError:
        return True
    return False


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def say(text: str) -> None:
    """Write to standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
