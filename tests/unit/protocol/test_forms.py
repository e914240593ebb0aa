"""C4: forms as clients write them are read for their model, whatever stands before it, and changed in their bytes."""

from __future__ import annotations

from email.parser import BytesParser
from email.policy import HTTP

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_bound import assert_cpu_below
from velox.errors import Reason, VeloxError
from velox.protocol.forms import adding_form_model, read_form, with_form_model, with_form_model_in_steps
from velox.protocol.named_models import DoubtError, form_fields, form_models
from velox.protocol.slices import finished
from velox.types import FormFields

TYPE = b"multipart/form-data; boundary=b0undary"
FILE = (b'name="file"; filename="a.wav"', b"RIFF\r\n\r\n--\r\n\x00\xff" * 100)


def form(*parts: tuple[bytes, bytes], head: bytes = b"Content-Disposition: form-data; %b") -> bytes:
    return (
        b"".join(b"--b0undary\r\n" + head % how + b"\r\n\r\n" + text + b"\r\n" for how, text in parts)
        + b"--b0undary--\r\n"
    )


def read(body: bytes | bytearray, content_type: bytes = TYPE) -> FormFields:
    return finished(read_form(content_type, body))


def parts_of(body: bytes, boundary: bytes = b"b0undary") -> list[tuple[str, str | None, bytes]]:
    """Return name, file's name and content of each part, by the standard library's reader of mail."""
    head = b"Content-Type: multipart/form-data; boundary=" + boundary + b"\r\n\r\n"
    found = BytesParser(policy=HTTP).parsebytes(head + body)
    return [
        (
            str(part.get_param("name", header="content-disposition")),
            part.get_filename(),
            bytes(part.get_payload(decode=True)),
        )
        for part in found.iter_parts()
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_model_is_read_before_and_behind_the_file(order: int) -> None:
    fields = read(form(*[(b'name="model"', b"whisper-1"), FILE, (b'name="stream"', b"True")][::order]))

    assert (fields.model, fields.stream, fields.n_text, fields.n_file) == ("whisper-1", True, 13, len(FILE[1]))


@pytest.mark.parametrize(
    ("head", "how"),
    [
        (b"Content-Disposition: form-data; %b", b'name="model"'),  # curl, Python, browsers
        (b"Content-Disposition: form-data; %b", b"name=model"),  # .NET
        (b"Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; %b", b'name="model"'),  # aiohttp
        (b"Content-Disposition: form-data; %b\r\nContent-Length: 9", b'name="model"'),  # OkHttp
        (b"content-disposition:form-data;%b\r\ncontent-transfer-encoding: 8bit", b'NAME="model"'),  # Apache's
    ],
)
def test_each_clients_spelling_is_read(head: bytes, how: bytes) -> None:
    body = form((how, b"whisper-1"), head=head)
    fields = read(body)
    renamed = with_form_model(body, fields, "whisper-large-v3")

    assert finished(with_form_model_in_steps(body, fields, "whisper-large-v3")) == renamed
    assert fields.model == "whisper-1"
    assert parts_of(renamed) == [("model", None, b"whisper-large-v3")]
    assert b"Content-Length" not in renamed  # it would not be true any more


@pytest.mark.parametrize(
    "content_type",
    [
        b'multipart/form-data; boundary="b0undary"',
        b"Multipart/Form-Data; charset=utf-8; Boundary=b0undary",
        b"multipart/form-data;boundary=b0undary;x=y",
    ],
)
def test_each_spelling_of_the_boundary_is_read(content_type: bytes) -> None:
    assert read(form((b'name="model"', b"m")), content_type).model == "m"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (form((b'name="model"', b"a"), (b'name="model"', b"b")), Reason.DUPLICATE_KEY),
        (form((b'name="model"; filename="m"', b"a")), Reason.BAD_REQUEST),
        (form((b'name="model"', b"")), Reason.BAD_REQUEST),
        (form((b'name="model"', b"a\r\nb")), Reason.BAD_REQUEST),
        (form((b'name="model"', b"m" * 300)), Reason.BAD_REQUEST),
        (form((b'name="model"; name=x', b"a")), Reason.BAD_REQUEST),
        (form((b"x=y", b"a")), Reason.BAD_REQUEST),
        (
            form(
                (b'name="model"', b"YQ=="),
                head=b"Content-Disposition: form-data; %b\r\nContent-Transfer-Encoding: base64",
            ),
            Reason.BAD_REQUEST,
        ),
        (form((b'name="model"', b"a"), (b'name="x"', b"--b0undary in it")), Reason.BAD_REQUEST),
        (form((b'name="model"', b"a"))[:-12], Reason.BAD_REQUEST),
        (b'{"model": "a"}', Reason.BAD_REQUEST),
        (b"", Reason.BAD_REQUEST),
    ],
)
def test_form_of_two_readings_is_refused(body: bytes, reason: Reason) -> None:
    """Else a client could have another model run than is counted."""
    with pytest.raises(VeloxError) as refused:
        read(body)

    assert refused.value.reason is reason


NAMES = st.text("abcdefgm[]_-", min_size=1, max_size=8)
TEXTS = st.binary(max_size=40).filter(lambda text: b"--b0undary" not in text and not text.endswith(b"\r"))


@given(st.lists(st.tuples(NAMES, st.booleans(), TEXTS), max_size=5), st.integers(0, 5), st.booleans())
def test_nothing_but_the_model_is_changed(others: list[tuple[str, bool, bytes]], at: int, has_model: bool) -> None:
    """Every other part is as it was, and the model is there once."""
    parts = [
        (b'name="%b"%b' % (name.encode(), b'; filename="f"' if is_file else b""), text)
        for name, is_file, text in others
    ]
    if has_model:
        parts.insert(at, (b'name="model"', b"alias"))
    body = form(*parts) if parts else form((b'name="x"', b""))
    fields = read(bytearray(body))
    changed = (
        with_form_model(body, fields, "own/model:1") if has_model else adding_form_model(body, fields, "own/model:1")
    )

    again = read(changed)
    assert (again.model, again.model_at, fields.model_at > 0) == ("own/model:1", fields.model_at, True)
    assert (body[: fields.model_at] + b"alias" if has_model else body) and changed.count(b"own/model:1") == 1
    kept = changed[: again.model_at] + changed[again.model_end :] if has_model else changed[again.model_end + 2 :]
    original = body[: fields.model_at] + body[fields.model_end :] if has_model else body
    assert kept == original
    assert with_form_model(changed, again, "own/model:1") == changed


HEADS = [
    b'Content-Disposition: form-data; name="model"',
    b"Content-Disposition: form-data; name=model",
    b'content-disposition: form-data; name="file"; filename="a"',
    b'Content-Disposition: form-data; name="Model"',
    b'Content-Disposition: form-data; name="x"\r\nContent-Type: text/plain',
    b'Content-Disposition: form-data; name="x"; name="model"',
    b"Content-Disposition: form-data; name*=utf-8''model",
    b"Content-Type: text/plain",
]
PIECES = [b"\r\n", b"\n", b"--b0undary", b"--", b"m", b"n", b"\r\n\r\n", b"--b0undary\r\n", *HEADS]


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.lists(st.sampled_from(HEADS), max_size=3))
def test_reader_for_keys_and_reader_for_routes_find_the_same_model(pieces: list[bytes], heads: list[bytes]) -> None:
    """A model that a limited key was checked for is the one that is routed; what is in doubt is refused."""
    body = b"--b0undary\r\n" + b"".join(pieces)
    body += b"".join(b"--b0undary\r\n" + head + b"\r\n\r\nm\r\n" for head in heads) + b"--b0undary--\r\n"
    try:
        models = form_models(finished(form_fields(TYPE, body)), body)
        fields = read(body)
    except (DoubtError, VeloxError):
        return
    assert models == ([] if fields.model is None else [fields.model])


@pytest.mark.parametrize(
    "body",
    [
        b"--b0undary\r\n" + b"\r\n" * 1_000_000,
        b"--b0undary\r\nContent-Disposition: form-data; name=a\r\n\r\n" + b"--b0undar" * 700_000,
        form(*[(b'name="a"', b"")] * 20_000),
        form((b'name="a"; ' + b"a; " * 1300, b"")),
        form((b'name="' + b"\\" * 3900, b"")),
    ],
)
def test_no_form_takes_long(body: bytes) -> None:
    """B-35: at most 100 ms of CPU per MB."""

    def look() -> None:
        with pytest.raises(VeloxError):
            read(body)

    assert_cpu_below(0.05 + 0.1 * len(body) / 1e6, look)


@pytest.mark.parametrize(
    "content_type", [b"multipart/form-data;" + b"; " * 4000, b"multipart/form-data; " + b"boundary=" * 900]
)
def test_no_content_type_takes_long(content_type: bytes) -> None:

    def look() -> None:
        with pytest.raises(VeloxError):
            read(b"--", content_type)

    assert_cpu_below(0.02, look)


def test_large_file_is_looked_through_in_steps() -> None:
    """Others have their turns meanwhile."""
    body = form((b'name="file"; filename="f"', b"\0" * 8_000_000), (b'name="model"', b"m"))
    steps = read_form(TYPE, body)

    assert sum(1 for _ in steps) >= 7
