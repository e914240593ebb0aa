"""`velox check` on credentials of clouds: files and variables are read, nobody is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.runtime.signing.sign_in import sign_in_lines
from velox.settings import Settings, SettingsError, load

_PROFILES = "[work]\naws_access_key_id = AKIDX\naws_secret_access_key = sec/ret\n[sso]\nsso_session = x\n"


def _settings(folder: Path, *lines: str, **environ: str) -> Settings:
    path = folder / "velox.yaml"
    path.write_text("upstreams:\n" + "".join(f"  - {line}\n" for line in lines))
    return load({"VELOX_CONFIG": str(path), **environ}, cores=2)


def _lines(folder: Path, *entries: str, **environ: str) -> list[str]:
    credentials = folder / "credentials"
    credentials.write_text(_PROFILES)
    known = {"HOME": str(folder), "AWS_SHARED_CREDENTIALS_FILE": str(credentials), **environ}
    found = list(sign_in_lines(_settings(folder, *entries, **environ), known))
    assert "sec/ret" not in str(found)
    return found


def test_a_profile_is_checked(tmp_path: Path) -> None:
    entries = [
        f"{{name: {name}, provider: bedrock, region: eu-central-1, profile: {name}}}"
        for name in ("work", "gone", "sso")
    ]
    good, gone, sso = _lines(tmp_path, *entries)

    assert good == "credentials of work: found on this machine"
    assert gone.startswith("WARNING: credentials of gone: the AWS profile 'gone' is neither in")
    assert sso.startswith("WARNING: credentials of sso: the AWS profile 'sso' uses SSO, which is not supported")


def test_a_profile_of_the_file_comes_before_a_key_in_a_variable(tmp_path: Path) -> None:
    entry = "{provider: bedrock, region: eu-central-1, profile: work}"
    assert _lines(tmp_path, entry, AWS_BEARER_TOKEN_BEDROCK="bearer")
    assert not _lines(tmp_path, "{provider: bedrock, region: eu-central-1}", AWS_BEARER_TOKEN_BEDROCK="bearer")


@pytest.mark.parametrize(
    ("entry", "environ", "said"),
    [
        ("{provider: bedrock, region: eu-central-1}", {}, "169.254.169.254 is asked for them when Velox serves"),
        ("{provider: vertex, project: p, location: global}", {}, "metadata.google.internal is asked"),
        (
            "{provider: vertex, project: p, location: global}",
            {"GOOGLE_APPLICATION_CREDENTIALS": "/x/gone"},
            "/x/gone is missing",
        ),
        ("{provider: foundry, resource: r}", {"AZURE_CLIENT_SECRET": "sec/ret"}, "AZURE_TENANT_ID is not"),
        (
            "{provider: foundry, resource: r}",
            {"AZURE_CLIENT_SECRET": "sec/ret", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c"},
            "login.microsoftonline.com is asked",
        ),
    ],
)
def test_each_cloud_is_tried_without_a_network(tmp_path: Path, entry: str, environ: dict[str, str], said: str) -> None:
    (line,) = _lines(tmp_path, entry, **environ)
    assert said in line


def test_upstreams_with_keys_have_no_line(tmp_path: Path) -> None:
    assert not _lines(tmp_path, "{provider: openai, key: env:K}", K="k")


def test_a_profile_is_for_aws_only(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="profile"):
        _settings(tmp_path, "{provider: groq, profile: work, key: none}")
