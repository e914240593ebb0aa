"""The software bill of materials of a release: CycloneDX 1.6 as JSON, from the lock."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from deploy.release.licences import licence_of
from deploy.release.lock import Locked

__all__ = ["sbom"]

# Serial numbers are made of the version and the lock: the same release has the same one.
_SPACE: Final = uuid.UUID("6d0ad1f2-3c0e-5b1e-9a55-0d5f5f3c6b7e")


def sbom(packages: Sequence[Locked], version: str, date: int) -> str:
    """Return the bill of velox-gateway and its locked packages, with who needs whom.

    A package's hashes are those of all its files that the lock allows. Raises LicenceError.
    """
    licences = LicenseFactory()
    velox = Component(
        type=ComponentType.APPLICATION,
        name="velox-gateway",
        version=version,
        bom_ref="velox-gateway",
        licenses=[licences.make_from_string("Apache-2.0")],
        purl=PackageURL("pypi", None, "velox-gateway", version),
    )
    components = {"": velox}
    for each in packages:
        licence = licence_of(each)
        components[each.name] = Component(
            name=each.name,
            version=each.version,
            bom_ref=each.name,
            licenses=[licences.make_from_string(licence.expression)] if licence else [],
            purl=PackageURL("pypi", None, each.name, each.version),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in each.sha256],
        )
    bom = Bom(
        components=[components[each.name] for each in packages],
        metadata=BomMetaData(component=velox, timestamp=datetime.fromtimestamp(date, UTC)),
        serial_number=uuid.uuid5(_SPACE, f"{version} {[(each.name, each.version) for each in packages]}"),
    )
    for name, component in components.items():
        bom.register_dependency(component, [components[each.name] for each in packages if name in each.asked_by])
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"this is no bill of CycloneDX 1.6: {problem}")
    return f"{text}\n"
