"""The variables of the clients' listeners: where they are, who may connect, and TLS.

Knows: as for variables. Does not know: what clients may do once they are connected.
"""

from __future__ import annotations

from typing import Final

from velox.settings import parse, parse_listen
from velox.settings.variable import Variable

__all__ = ["LISTEN_VARIABLES"]

LISTEN_VARIABLES: Final = (
    Variable(
        "VELOX_LISTEN",
        "listen",
        parse_listen.addresses,
        "127.0.0.1:8080",
        "addresses for clients, commas between them: `IP:PORT` or `unix:PATH`",
        shown_default="127.0.0.1:8080 (image: 0.0.0.0:8080)",
        plural=True,
    ),
    Variable(
        "VELOX_LISTEN_MODE",
        "listen_mode",
        parse_listen.file_mode,
        "0600",
        "mode of unix sockets in VELOX_LISTEN; who may write may connect",
    ),
    Variable(
        "VELOX_LISTEN_OWNER",
        "listen_owner",
        parse_listen.socket_owner,
        "",
        "owner of unix sockets in VELOX_LISTEN: `USER`, `USER:GROUP` or `:GROUP`, names or numbers",
        shown_default="who runs Velox",
    ),
    Variable(
        "VELOX_LISTEN_HTTP2",
        "listen_http2",
        parse.switch,
        "off",
        "`on`: clients may speak HTTP/2 ([what that means](docs/http2-ingress.md)): those that begin with it, and over"
        " TLS those that agree on it",
    ),
    Variable(
        "VELOX_TLS_CERT",
        "tls_cert_file",
        parse.file_path,
        "",
        "PEM file with the certificate that clients are shown, then its chain: every `IP:PORT` of VELOX_LISTEN then"
        " speaks TLS ([how](docs/tls.md)); read again when it changes",
    ),
    Variable(
        "VELOX_TLS_KEY",
        "tls_key_file",
        parse.file_path,
        "",
        "PEM file with its private key, without a password",
    ),
    Variable(
        "VELOX_TLS_CLIENT_CA",
        "tls_client_ca_file",
        parse.file_path,
        "",
        "PEM file with authorities: clients must then show a certificate that one of them signed",
    ),
)
