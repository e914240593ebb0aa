"""What a release reads: locks, the licences of installed packages, the date of its files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.release.licences import LicenceError, licence_of
from deploy.release.lock import Locked, read_lock
from deploy.sources import ROOT, source_date

LOCKED = read_lock((ROOT / "requirements.lock").read_text())


def test_lock_is_read_whole() -> None:
    """Versions, hashes, markers and who asks: Velox itself is the empty name."""
    found = {each.name: each for each in LOCKED}

    assert len(found) == (ROOT / "requirements.lock").read_text().count("==") - sum("==" in p.marker for p in LOCKED)
    assert found["uvloop"].asked_by == ("",) and found["httpcore"].asked_by == ("httpx",)
    assert set(found["httpx"].asked_by) == {""} and "python_full_version" in found["backports-zstd"].marker
    assert all(len(digest) == 64 for each in LOCKED for digest in each.sha256)


def test_line_that_is_no_package_is_refused() -> None:
    """A package that is passed over would be missing in the bill."""
    with pytest.raises(ValueError, match="no package with a version and hashes: 'a @ file:///b'"):
        read_lock("a @ file:///b\n")


@pytest.mark.parametrize("package", LOCKED, ids=lambda package: package.name)
def test_package_has_a_licence_that_is_named(package: Locked) -> None:
    """In SPDX's words; none that asks for the sources of what it is used in."""
    licence = licence_of(package)

    if licence is None:
        assert package.marker
        return
    allowed = {"MIT", "MIT-0", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "PSF-2.0", "MPL-2.0", "AND", "OR"}
    assert set(licence.expression.replace("(", "").replace(")", "").split()) <= allowed
    assert all(text.strip() for _, text in licence.texts)


def test_other_version_than_the_lock_has_is_refused() -> None:
    """Its licence may be another."""
    with pytest.raises(LicenceError, match="is installed, the lock has"):
        licence_of(replace(LOCKED[0], version="0.0"))


def test_date_is_the_one_that_is_given() -> None:
    """SOURCE_DATE_EPOCH, no earlier than a wheel can say."""
    assert source_date({"SOURCE_DATE_EPOCH": "1700000000"}) == 1_700_000_000
    assert source_date({"SOURCE_DATE_EPOCH": "0"}) == source_date({"SOURCE_DATE_EPOCH": "315532800"})
    assert source_date({}) >= source_date({"SOURCE_DATE_EPOCH": "0"})
    with pytest.raises(SystemExit, match="SOURCE_DATE_EPOCH='soon': expected seconds since 1970"):
        source_date({"SOURCE_DATE_EPOCH": "soon"})
