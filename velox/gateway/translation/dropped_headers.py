"""Headers of a client that no upstream gets: those that say who or where the client is, or steer who reads them.

An upstream may trust whoever stands before it. Then a client could give itself another address, another path or method,
or the credential of another account, by a header that Velox knows nothing of. What an operator sets in `headers` of an
upstream goes up all the same.

Knows: names, in lower case. Does not know: which head they are in (forward.py, access.py).
"""

from __future__ import annotations

from typing import Final

__all__ = ["CREDENTIALS", "DROPPED", "DROPPED_STARTS", "OVERRIDING"]

# Taken for another method, path or host than those of the request: by Google's servers, ASP.NET, Symfony, Azure.
OVERRIDING: Final = frozenset(
    {
        *(b"x-http-method-override", b"x-http-method", b"x-method-override"),
        *(b"x-original-url", b"x-rewrite-url", b"x-original-uri", b"x-original-method", b"x-override-url"),
        *(b"x-original-host", b"x-http-host-override", b"x-http-path-override"),
    }
)
# The address of a client, as proxies and content networks tell it.
_ADDRESSES: Final = frozenset(
    {
        *(b"forwarded", b"forwarded-for", b"x-forwarded", b"x-original-forwarded-for", b"via", b"x-real-ip"),
        *(b"true-client-ip", b"client-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-originating-ip"),
        *(b"x-remote-ip", b"x-remote-addr", b"proxy-client-ip", b"wl-proxy-client-ip", b"x-proxyuser-ip"),
        *(b"cf-connecting-ip", b"cf-connecting-ipv6", b"cf-pseudo-ipv4", b"fastly-client-ip", b"fly-client-ip"),
        *(b"do-connecting-ip", b"x-nf-client-connection-ip", b"x-azure-clientip", b"x-azure-socketip"),
        *(b"x-appengine-user-ip", b"x-appengine-remote-addr"),
    }
)
# Who a client is, where a proxy of the upstream's own has looked: certificates, sign-ins.
_IDENTITIES: Final = frozenset(
    {
        *(b"x-client-cert", b"x-arr-clientcert", b"ssl-client-cert", b"x-ssl-client-cert", b"x-ssl-cert"),
        *(b"x-amzn-oidc-identity", b"x-amzn-oidc-data", b"x-amzn-oidc-accesstoken"),
        *(b"x-goog-authenticated-user-id", b"x-goog-authenticated-user-email", b"x-goog-iap-jwt-assertion"),
        *(b"x-ms-client-principal", b"x-ms-client-principal-id", b"x-ms-client-principal-name"),
        *(b"x-remote-user", b"remote-user", b"x-auth-request-user", b"x-auth-request-email"),
        b"cf-access-jwt-assertion",
    }
)
# Never passed from client to upstream. Host, framing and hop-by-hop headers are gone before (protocol/http1).
DROPPED: Final = (
    OVERRIDING
    | _ADDRESSES
    | _IDENTITIES
    | {b"cookie", b"proxy-authorization", b"content-encoding", b"expect", b"x-host"}
    | {b"x-goog-fieldmask"}  # leaves parts of an answer out, its usage as well
    | {b"x-request-timeout-ms"}  # the client's, for Velox; the upstream's time is part of it
)
# Forwarding claims and what is for Velox are not taken from a client (B-26). protocol/heads/fields.py suspects names
# with these words, so that none of them passes beside a plan.
DROPPED_STARTS: Final = (b"x-forwarded-", b"x-velox-", b"x-envoy-")
# Dropped where another credential than the client's own goes up.
CREDENTIALS: Final = frozenset(
    {
        *(b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"),
        *(b"ocp-apim-subscription-key", b"x-functions-key", b"x-serverless-authorization"),
        *(b"x-amz-security-token", b"x-goog-iam-authorization-token", b"x-ms-authorization-auxiliary"),
        *(b"cf-aig-authorization", b"helicone-auth", b"x-portkey-api-key"),
    }
)
