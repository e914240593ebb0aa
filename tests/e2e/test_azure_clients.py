"""Clients of Azure's SDK: the version that they name is not of our path."""

from __future__ import annotations

import openai
import pytest

from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import routed
from tests.vendors.azure import AZURE, FOUNDRY
from tests.vendors.vendor import Vendor, playing

UPSTREAMS = {
    "azure": (AZURE, {}),
    "azure, preview": (AZURE, {"api_version": "preview"}),
    "azure, dated": (AZURE, {"api_version": "2024-10-21"}),
    "foundry": (FOUNDRY, {}),
}


@pytest.mark.parametrize("kind", UPSTREAMS)
def test_client_of_azures_sdk_is_answered(kind: str) -> None:
    """W5: whichever version its SDK sends: the upstream's paths have their own, or none."""
    vendor, more = UPSTREAMS[kind]
    vendor_of: Vendor = vendor
    with RecordingUpstream(script=playing(vendor_of)) as upstream:
        entry = {"name": "it", "provider": vendor_of.row, "origin": upstream.upstream.url, "key": "env:IT", **more}
        with routed({"upstreams": [entry]}, IT="k" * 20) as velox:
            sdk = openai.AzureOpenAI(
                azure_endpoint=velox.base_url, api_version="2023-05-15", api_key="none-needed", max_retries=0
            )
            with sdk:
                chat = sdk.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "Hi"}])
                response = sdk.responses.create(model="gpt-4o", input="Hi")
                vectors = sdk.embeddings.create(model="e", input="Hi")
    assert chat.choices[0].message.content == response.output_text == "Hello."
    assert vectors.data[0].embedding == [1.0]
