"""Starts a peer: one worker on one core, before an upstream, with its configuration filled in.

A configuration is a file of configs/ as the peer reads it, in which @port@ and the like stand for what a run decides.

Knows: command lines and environments. Does not know: how a peer was installed, beyond where its programs are.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bench.payloads import API_KEY, CHAT_PATH, chat_body
from bench.peers.catalogue import Origin, PeerError, peer
from bench.peers.installing import last_lines, program_path, programs
from bench.servers import Server, Servers, free_port
from bench.traffic import KEYS

__all__ = ["chat_status", "start"]

_CONFIGS: Final = Path(__file__).parent / "configs"
_MARK: Final = re.compile(r"@([a-z0-9_]+)@")
# LiteLLM imports for many seconds; a machine under load takes longer still.
_READY_S: Final = 120.0
# In a configuration that names all upstreams, for those which are not there: nobody listens on it.
_NO_PORT: Final = 9
_CREDENTIALS: Final = tuple(f"Bearer {key}" for key in (API_KEY, *KEYS))


@dataclass(frozen=True, slots=True)
class Launch:
    """How a peer is started. Words and values may hold marks, as files of configs/ may.

    words: the command line. arguments: a file of configs/ with more of it. files: those that are filled into @folder@.
    """

    words: tuple[str, ...]
    arguments: str = ""
    files: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


_ONE_THREAD: Final = {"TOKIO_WORKER_THREADS": "1", "RAYON_NUM_THREADS": "1"}
_LAUNCHES: Final[Mapping[str, Launch]] = {
    "nginx": Launch(
        ("nginx", "-p", "@folder@", "-c", "@folder@/nginx.conf", "-e", "@folder@/error.log"),
        files=("nginx.conf",),
    ),
    "HAProxy": Launch(
        ("@programs@/haproxy", "-db", "-f", "@folder@/haproxy.cfg"), files=("haproxy.cfg", "haproxy.keys")
    ),
    "Envoy": Launch(
        ("@programs@/envoy", "-c", "@folder@/envoy.yaml"),
        arguments="envoy.args",
        files=("envoy.yaml",),
    ),
    "vllm-router": Launch(("@programs@/vllm-router",), arguments="vllm-router.args", environment=_ONE_THREAD),
    "sglang-router": Launch(
        ("@programs@/sglang-router", "launch"), arguments="sglang-router.args", environment=_ONE_THREAD
    ),
    "smg": Launch(("@programs@/smg", "launch"), arguments="smg.args", environment=_ONE_THREAD),
    "Portkey": Launch(
        ("node", "--import", "@folder@/portkey.mjs", "@programs@/start-server.js", "--headless", "--port=@port@"),
        files=("portkey.mjs",),
        environment={"NODE_ENV": "production", "UV_THREADPOOL_SIZE": "1"},
    ),
    "LiteLLM": Launch(
        ("@programs@/litellm",),
        arguments="litellm.args",
        files=("litellm.yaml",),
        environment={
            # As its page on production says.
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            # Without a key of its own it starts on request only.
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            # The list of prices comes with it; otherwise it is fetched at start.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DONT_SHOW_FEEDBACK_BOX": "True",
            "AIOHTTP_CONNECTOR_LIMIT": "0",
            "AIOHTTP_CONNECTOR_LIMIT_PER_HOST": "0",
            "AIOHTTP_KEEPALIVE_TIMEOUT": "3600",
        },
    ),
}


def start(
    name: str,
    servers: Servers,
    origin: Origin,
    *,
    upstream: str = "http1",
    streaming: bool,
    api: Literal["openai", "anthropic"] = "openai",
    statuses: Collection[int] = (200,),
) -> Server:
    """Start a peer that is installed; it has answered a chat request when this returns. Raises PeerError.

    streaming: replies will be event streams, which must not be buffered; nginx and HAProxy have to be told.
    api: what the upstream speaks; clients speak Chat Completions (LiteLLM and smg are told). statuses: of that answer.
    """
    wanted, launch = peer(name), _LAUNCHES[name]
    origin_port = {"http1": origin.http1, "http2": origin.http2, "tls": origin.tls}[upstream]
    if upstream not in wanted.upstreams or not origin_port:
        raise PeerError(f"{name}: {upstream} is not what it, or the upstream here, speaks")
    where = programs(name)
    port = free_port()
    folder = servers.folder_of(f"{name}-{port}")
    values = {
        "port": str(port),
        "spare_port": str(free_port()),
        "folder": str(folder),
        "programs": str(where),
        "keys_map": "\n".join(f'        "{each}" 1;' for each in _CREDENTIALS),
        "keys_list": "\n".join(_CREDENTIALS),
        "keys_regex": "|".join(_CREDENTIALS),
        "upstream": upstream,
        "origin_port": str(origin_port),
        "api": api,
        "base": "/v1" if api == "openai" else "",
        "http1_port": str(origin.http1),
        "http2_port": str(origin.http2 or _NO_PORT),
        "tls_port": str(origin.tls or _NO_PORT),
        "scheme": "https" if upstream == "tls" else "http",
        "authority": str(origin.authority or servers.certificate.authority),
        "buffering": "off" if streaming else "on",
        "no_if_whole": "" if streaming else "no ",
        "user": "user root;" if os.geteuid() == 0 else "",
    }
    for file in launch.files:
        (folder / file).write_text(filled((_CONFIGS / file).read_text(), values))
    command = [filled(word, values) for word in (*launch.words, *_arguments(launch.arguments, (upstream, api)))]
    command[0] = shutil.which(command[0], path=program_path()) or command[0]
    log = folder / "log"
    try:
        return servers.start(
            command, port, launch.environment, log, lambda: chat_status(port) in statuses, within_s=_READY_S
        )
    except (RuntimeError, OSError) as error:
        raise PeerError(f"{name} did not start: {error}\n{last_lines(_read(log))}") from error


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return the text with each @name@ replaced. Raises KeyError for a name that there is none of."""
    return _MARK.sub(lambda found: values[found[1]], text)


def chat_status(port: int, key: str = API_KEY) -> int:
    """Return the status of a chat request, 0 when there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        connection.request("POST", CHAT_PATH, chat_body(stream=False), headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _read(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def _arguments(name: str, kinds: Collection[str]) -> list[str]:
    """Return the words of a file of configs/: a line is an option and its value, `#` begins a comment.

    A line that begins with [http2] or the like is only for that kind of upstream. kinds: those of this one.
    """
    if not name:
        return []
    words: list[str] = []
    for line in (_CONFIGS / name).read_text().splitlines():
        kind, _, rest = line.removeprefix("[").partition("] ") if line.startswith("[") else ("", "", line)
        if (not kind or kind in kinds) and not line.startswith("#"):
            words += rest.split(maxsplit=1)
    return words
