"""The request as it goes up: built from what may pass, never copied.

Knows: which of the client's headers go up, which credential, which path. Does not know: connections.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from velox.errors import Reason
from velox.gateway.auth import presented_key
from velox.gateway.reply.headers import ID_FORM, REQUEST_ID, is_id
from velox.gateway.translation.dropped_headers import CREDENTIALS, DROPPED, DROPPED_STARTS
from velox.gateway.translation.own_query import OwnQuery
from velox.heads import Header, Headers, HeadShape, ReplyHead, RequestHead, ShapeField, WebSocketOffer, filled
from velox.memo import Memo
from velox.net.upstream.interface import PlainFields, RequestFields, UpstreamFailure, UpstreamRequest
from velox.outcomes import Retry
from velox.policy.routes.entries import NO_RULES, HeaderRules
from velox.protocol.google_query import is_googles, without_system_parameters
from velox.protocol.head_template import HeadTemplate, TemplateBeside
from velox.protocol.json.edit import with_query_model
from velox.protocol.websocket.handshake import offer_fields
from velox.providers.authority import Authority, NoCredentialsError
from velox.providers.provider import Provider
from velox.types import BodyFields

__all__ = ["Forwarder"]

_RATE_LIMIT: Final = b"ratelimit"  # in the names of fields that tell what is left of an account's limits
# RFC 9110 §8.6: a request of these methods states its length though it is 0; without it some servers answer 411.
_WITH_CONTENT: Final = frozenset({b"POST", b"PUT", b"PATCH"})
_KEPT_HEADS: Final = 512
_GOOGLE_HOSTS: Final = b".googleapis.com"
# Of a client's headers, those that mean the same whatever dialect the body is in.
_OF_ANY_DIALECT: Final = frozenset({b"traceparent", b"tracestate", b"baggage", b"user-agent", REQUEST_ID})
_JSON: Final = (b"content-type", b"application/json")
_IDENTITY: Final = (b"accept-encoding", b"identity")
_FRAMED: Final = frozenset({_JSON[0], _IDENTITY[0]})


_Key: TypeAlias = tuple[HeadShape, bool, HeaderRules | None]
_CallKey: TypeAlias = tuple[HeadShape, tuple[Header, ...], HeaderRules | None]


class _Built(NamedTuple):
    """What goes up for heads of one shape. id_at: which of their values is an id that passes only if it is plain."""

    target: bytes
    template: HeadTemplate
    id_at: int | None
    without_id: HeadTemplate


class Forwarder:
    """Builds upstream requests for one upstream.

    base_path: "" or "/x". key: the upstream's credential; without it the client's own passes, unless
    client_keys_are_ours (clients present keys of Velox, which no upstream may see). account_headers_pass: those of the
    provider, also where the client's own key does not pass. added: to every request, in place of the client's. usual:
    where the client sends none of that name. authority: signs each request in, where there is no key. host: of the
    origin, as signatures name it.
    query: parameters of every request's target; None: there are none.
    kept_heads: how many shapes of heads of clients are kept, with what becomes of them.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        base_path: str,
        root_path: str,
        key: str | None,
        client_keys_are_ours: bool,
        account_headers_pass: bool = False,
        added: tuple[Header, ...] = (),
        usual: tuple[Header, ...] = (),
        authority: Authority | None = None,
        host: bytes = b"",
        kept_heads: int = _KEPT_HEADS,
        query: OwnQuery | None = None,
    ) -> None:
        self._base_path: Final = base_path.encode("ascii")
        self._passed_path: Final = self._base_path + provider.before  # of paths that go up as they came
        self._root_path: Final = root_path.encode("ascii")
        # What no reply may show; None where the client's own key passes, or `authority` knows it.
        self.secret: Final = None if key is None else key.encode("latin-1")
        self._provider: Final = provider
        self._credential: Final[tuple[Header, ...]] = () if key is None else provider.credentials(key)
        # A credential in a header of the entry's own is the upstream's, too: no other goes up beside it.
        has_own = key is not None or authority is not None or any(name in CREDENTIALS for name, _ in added)
        self._client_key_passes: Final = not has_own and not client_keys_are_ours
        self.query: Final = query
        self._added: Final = added
        self._usual: Final = tuple(field for field in usual if all(field[0] != name for name, _ in added))
        dropped = DROPPED | {name for name, _ in (*added, *self._credential)}
        dropped_protocols: tuple[bytes, ...] = ()
        self.authority: Final = authority
        self._host: Final = host
        self._is_google: Final = provider.is_google or host.partition(b":")[0].endswith(_GOOGLE_HOSTS)
        if not self._client_key_passes:
            dropped |= CREDENTIALS if account_headers_pass else CREDENTIALS | provider.account_headers
            dropped_protocols = (provider.key_protocol, *(() if account_headers_pass else provider.account_protocols))
        passes = account_headers_pass and not self._client_key_passes
        self._accounts: Final = provider.account_headers - dropped if passes else frozenset[bytes]()
        self._account_protocols: Final = provider.account_protocols if passes else ()
        self._dropped: Final = dropped
        self._dropped_if_plain: Final = dropped | {_IDENTITY[0]}
        self._dropped_protocols: Final = dropped_protocols
        ours = (*usual, *added, *self._credential, _IDENTITY)
        self._not_beside: Final = dropped | {name for name, _ in ours}
        self._built: Final[Memo[_Key, _Built]] = Memo(kept_heads)
        self._built_calls: Final[Memo[_CallKey, _Built]] = Memo(kept_heads)

    def build(
        self,
        head: RequestHead,
        peek: BodyFields,
        body: bytes | bytearray | None,
        *,
        to_be_read: bool = False,
        rules: HeaderRules = NO_RULES,
        target: bytes | None = None,
    ) -> UpstreamRequest:
        """Return the request to send. to_be_read: Velox reads the reply, which must not be compressed then.

        rules: for the client's headers. target: path and query in place of the client's, below the base path.
        """
        is_plain = peek.stream or to_be_read
        shape = head.shape
        extras = head.extras
        if shape.is_shared and (extras is None or self._only_passes(extras.names, rules)):
            # The same for all heads of a shape but for the values of its volatile fields, whatever their bodies.
            key = (shape, is_plain, None if rules is NO_RULES else rules)
            built = self._built.known.get(key) or self._built.find(key)
            if built is None:
                chosen = self._chosen(shape.fields, rules, is_plain=is_plain)
                built = self._built.put(key, _built(self._target(shape), chosen, shape))
            usual, values = built.target, head.values
            passes = built.id_at is None or ID_FORM.fullmatch(values[built.id_at]) is not None
            template = built.template if passes else built.without_id
            fields: RequestFields = template if extras is None else TemplateBeside(template, extras)
        else:
            usual, values = self._target(shape), ()
            fields = PlainFields(self._headers(head, rules, is_plain=is_plain))
        if body is None and shape.method in _WITH_CONTENT:
            body = b""
        up = usual if target is None else self._placed(target)
        request = UpstreamRequest(shape.method, up, fields, values, body)
        return request if self.authority is None else self._signed(request, self.authority)

    def sets(self, name: bytes) -> bool:
        """Say whether a field goes up as the upstream's entry has it, whatever the client sends."""
        return any(name == each for each, _ in self._added)

    def names_account(self, head: RequestHead, rules: HeaderRules = NO_RULES) -> bool:
        """Say whether an account of the client's goes up beside our key: the upstream may refuse either of them."""
        accounts = self._accounts - rules.names
        protocols = head.offer.protocols if self._account_protocols and head.offer is not None else ()
        return (bool(accounts) and any(name in accounts for name, _ in head.headers)) or any(
            each.startswith(self._account_protocols) for each in protocols
        )

    def counts_clients_key(self, head: RequestHead, refused: ReplyHead) -> bool:
        """Say whether a key of the client's own goes up, and a refusal tells what is left of its limits.

        A model server that takes whatever key a client sends counts nobody's requests: its 429 is about itself.
        """
        return (
            self._client_key_passes
            and any(_RATE_LIMIT in name for name, _ in refused.headers)
            and any(name in CREDENTIALS for name, _ in head.headers)
        )

    def _signed(self, request: UpstreamRequest, authority: Authority) -> UpstreamRequest:
        """Sign a request in. Raises UpstreamFailure: there is nothing to do that with."""
        headers, now_s = request.headers, time.time()
        try:
            more = authority.headers(request.method, self._host, request.target, headers, request.body or b"", now_s)
        except NoCredentialsError as exc:
            message = f"there are no credentials for the upstream: {exc.reason}"
            raise UpstreamFailure(Reason.UPSTREAM_CREDENTIALS, message, unprocessed=Retry.CONNECT) from exc
        request.fields, request.values = PlainFields([*headers, *more]), ()
        return request

    def build_call(
        self,
        head: RequestHead,
        target: bytes,
        headers: tuple[Header, ...],
        body: bytes,
        rules: HeaderRules = NO_RULES,
    ) -> UpstreamRequest:
        """Return a request in another dialect than its client's, of whose headers few mean anything there.

        headers: that the dialect needs. A key of the client's own goes up as the provider wants it presented. Raises
        VeloxError where it sends two.
        """
        shape = head.shape
        values: Sequence[bytes]
        fields: RequestFields
        if self._client_key_passes:
            values, fields = (), PlainFields(self._with_client_key(head, headers, rules))
        elif shape.is_shared and (head.extras is None or _OF_ANY_DIALECT.isdisjoint(head.extras.names)):
            key = (shape, headers, None if rules is NO_RULES else rules)
            built = self._built_calls.get(key) or self._built_calls.find(key)
            if built is None:
                built = self._built_calls.put(key, _built(b"", self._chosen_call(shape.fields, headers, rules), shape))
            values = head.values
            passes = built.id_at is None or ID_FORM.fullmatch(values[built.id_at]) is not None
            fields = built.template if passes else built.without_id
        else:
            values, fields = (), PlainFields(filled(self._chosen_call(head.headers, headers, rules), ()))
        request = UpstreamRequest(b"POST", self._placed(target), fields, values, body)
        return request if self.authority is None else self._signed(request, self.authority)

    def _with_client_key(self, head: RequestHead, headers: tuple[Header, ...], rules: HeaderRules) -> Headers:
        chosen = filled(self._chosen_call(head.headers, headers, rules), ())
        key = presented_key(head)
        if key:
            names = {name for name, _ in chosen}  # of what the upstream's entry sets
            chosen += (field for field in self._provider.credentials(key.decode("latin-1")) if field[0] not in names)
        return chosen

    def _chosen_call(
        self, fields: Iterable[ShapeField], headers: tuple[Header, ...], rules: HeaderRules
    ) -> list[ShapeField]:
        """Choose what goes up of the client's fields in another dialect, and add our own."""
        ours = {**dict(headers), **dict(self._added), **dict(rules.set)}
        chosen: list[ShapeField] = [
            field
            for field in fields
            if field[0] in _OF_ANY_DIALECT
            and field[0] not in rules.names
            and field[0] not in ours
            and (field[0] != REQUEST_ID or _is_id(field[1]))
        ]
        chosen += [_JSON, _IDENTITY, *((name, value) for name, value in ours.items() if name not in _FRAMED)]
        chosen += self._credential
        return chosen

    def build_upgrade(
        self, head: RequestHead, model: str | None = None, rules: HeaderRules = NO_RULES
    ) -> UpstreamRequest:
        """Return the request to send for a WebSocket. model: in place of the one that the query names."""
        assert head.offer is not None, "asked for heads that offer one"
        protocols = tuple(each for each in head.offer.protocols if not each.startswith(self._dropped_protocols))
        offer = WebSocketOffer(head.offer.key, protocols, head.offer.extensions)
        headers = [*self._headers(head, rules, is_plain=False), *offer_fields(offer)]
        target = self._target(head.shape)
        if model is not None and head.query:
            path, _, query = target.partition(b"?")
            target = path + b"?" + with_query_model(query, model)
        request = UpstreamRequest.of(head.method, target, headers, None, offer)
        return request if self.authority is None else self._signed(request, self.authority)

    def _only_passes(self, names: frozenset[bytes], rules: HeaderRules) -> bool:
        """Say whether no field of these names is dropped, or stands in the place of another one."""
        return self._not_beside.isdisjoint(names) and (rules is NO_RULES or rules.names.isdisjoint(names))

    def _headers(self, head: RequestHead, rules: HeaderRules, *, is_plain: bool) -> Headers:
        return filled(self._chosen(head.headers, rules, is_plain=is_plain), ())

    def _chosen(self, fields: Iterable[ShapeField], rules: HeaderRules, *, is_plain: bool) -> list[ShapeField]:
        """Choose what goes up of the client's fields, and add our own. is_plain: no compressed reply may come."""
        chosen: list[ShapeField] = []
        replaced = rules.names
        ours = [*rules.set, *[field for field in self._added if field[0] not in replaced]]
        dropped = self._dropped_if_plain if is_plain else self._dropped
        if replaced:
            dropped |= replaced
        for field in fields:
            name, value = field
            if name in dropped or name.startswith(DROPPED_STARTS):
                continue
            if name != REQUEST_ID or _is_id(value):
                chosen.append(field)
        if is_plain:
            # A compressed stream could not be watched for its end, and would be held up by its compressor.
            chosen.append((b"accept-encoding", b"identity"))
        chosen.extend(field for field in ours if not is_plain or field[0] != b"accept-encoding")
        if self._usual:
            names = {name for name, _ in chosen}
            chosen.extend(field for field in self._usual if field[0] not in names)
        chosen.extend(self._credential)
        return chosen

    def warmup(self, path: str) -> UpstreamRequest:
        """Return the HEAD that warms a connection."""
        target = self._placed(path.encode("ascii"))
        headers = [(b"user-agent", b"velox"), *self._usual, *self._credential]
        return UpstreamRequest.of(b"HEAD", target, headers, None)

    def _placed(self, target: bytes) -> bytes:
        """Return a target of the provider's where this upstream has it."""
        placed = self._base_path + target
        return placed if self.query is None else self.query.on(placed)

    def _target(self, shape: HeadShape) -> bytes:
        passed = self._passed_target(shape)
        return passed if self.query is None else self.query.on(passed)

    def _passed_target(self, shape: HeadShape) -> bytes:
        is_bare = shape.path == b"/" and shape.method == b"POST"
        query = shape.query
        if query and self._takes_system_parameters(shape):
            query, _ = without_system_parameters(query, shape.method, keeps_key=self._client_key_passes)
        elif not is_bare:
            return self._passed_path + shape.target
        path = self._root_path if is_bare else shape.path
        return self._passed_path + path + (b"?" + query if query else b"")

    def _takes_system_parameters(self, shape: HeadShape) -> bool:
        return self._is_google or is_googles(shape.path)

    def dropped_parameters(self, shape: HeadShape) -> list[str]:
        """Return the names in a client's query that don't go up, but for credentials."""
        if not self._takes_system_parameters(shape):
            return []
        return without_system_parameters(shape.query, shape.method)[1]


def _built(target: bytes, chosen: list[ShapeField], shape: HeadShape) -> _Built:
    """Return what goes up for heads of a shape. chosen: of its fields, and ours."""
    template = without_id = HeadTemplate(chosen, shape.fields)
    id_at = None
    if (REQUEST_ID, None) in chosen:
        id_at = [name for name, value in shape.fields if value is None].index(REQUEST_ID)
        without_id = HeadTemplate([field for field in chosen if field != (REQUEST_ID, None)], shape.fields)
    return _Built(target, template, id_at, without_id)


def _is_id(value: bytes | None) -> bool:
    """Say of an x-request-id whether it may pass. value: None where each head has another one, looked at then."""
    return value is None or is_id(value)
