"""Signatures that travel through a client of another dialect come back as they were."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from velox.dialects.canonical.model import Signature
from velox.dialects.canonical.signatures import is_redacted, tagged, tagged_base64, untagged

_SIGNATURES = st.builds(
    Signature,
    provider=st.sampled_from(["anthropic", "google", "openai", "zai"]),
    value=st.text(),
    item_id=st.none() | st.text(min_size=1),
)


@given(_SIGNATURES, st.booleans())
def test_signature_tagged_comes_back(signature: Signature, redacted: bool) -> None:
    """Provider, item id, value and kind survive, whatever characters they have."""
    for text in (tagged(signature, is_redacted=redacted), tagged_base64(signature, is_redacted=redacted)):
        assert untagged(text, "other") == signature
        assert is_redacted(text) == redacted


def test_signature_without_tag_is_of_the_dialects_provider() -> None:
    """What the dialect's own provider signed has no tag and is not changed."""
    assert untagged("EqQBCkYIBBgCKkA.x", "anthropic") == Signature("anthropic", "EqQBCkYIBBgCKkA.x")
    assert not is_redacted("EqQBCkYIBBgCKkA.x")


def test_signature_base64_of_another_alphabet_or_without_padding_is_read() -> None:
    """google-genai reads bytes and writes them with "-" and "_"."""
    signature = Signature("anthropic", "\u00ff\u00fe?>~~", "rs_1")
    plain = base64.b64decode(tagged_base64(signature))

    for text in (base64.urlsafe_b64encode(plain).decode(), base64.urlsafe_b64encode(plain).decode().rstrip("=")):
        assert untagged(text, "google") == signature


@given(st.text())
def test_signature_any_text_is_read(text: str) -> None:
    """A client may send anything; it is somebody's signature."""
    untagged(text, "google")
    untagged("velox." + text, "google")
    untagged("dmVsb3gu" + text, "google")
