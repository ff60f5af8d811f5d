"""What the fuzzer calls: every reader of a file, given bytes, in a folder of its own.

A reader returns what it read, or raises InputError; anything else is a finding. The first byte of
an input chooses between the plain file and a file with right checksums, so that the fuzzer gets
past them. `SEEDS` are whole files to start from.
"""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers
import zstandard
from safetensors.numpy import save_file

from headscape.captures import capture_file
from headscape.captures.capture_file import open_pack
from headscape.data.corpus.reading import read_documents
from headscape.data.tokenize.tokenizer import load_tokenizer
from headscape.data.tokens.shards import Shard
from headscape.errors import InputError
from headscape.evaluation.journal import Journal
from headscape.evaluation.row import read_all
from headscape.evaluation.table import Table
from headscape.gpt2 import weights
from headscape.io.files import read_json
from headscape.training import checkpoint, metrics, provenance
from headscape.training.config import preset, read_toml, to_toml

Reader = Callable[[bytes, Path], object]
MAPS = {f"layer.0.{name}": np.zeros((2, 3, 3), np.float32) for name in capture_file.QUANTITIES}
FACTORS = {
    "factors.1.q": np.ones((2, 3, 4), np.float32), "factors.1.k": np.ones((1, 3, 4), np.float32),
    "factors.1.turn.q": np.ones((2, 3, 2), np.float32),
    "factors.1.turn.k": np.ones((2, 3, 2), np.float32),
    "factors.1.bias.table": np.ones((2, 3), np.float32), "factors.1.lse": np.ones((2, 3)),
}  # fmt: skip
KIND = {
    "scale": 0.5, "group": 2, "pairing": "halves", "bias": {"kind": "toeplitz", "zero": 0},
    "mix": None, "window": 2, "softcap": 3.0,
}  # fmt: skip
CAPTURED = {"tokens": np.arange(3), "positions": np.arange(3), **MAPS, **FACTORS}
DESCRIBED = {
    "format": 4, "kind": "capture", "encoding": "alibi", "conventions": {},
    "claims": {"toeplitz": True}, "model": {"name": "ALiBi", "shows": "bias", "heads": 2},
    "layers": [0, 1], "heads": [0, 1], "length": 3, "resolution": None, "causal": True,
    "sequence": {"pieces": ["a", "b", "c"]}, "provenance": {}, "trained": True,
    "shown": ["content", "bias", "final", "weights"], "refused": "layer 1: why",
    "factors": {"1": KIND},
}  # fmt: skip


def _object(text: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_checked(path: Path, described: dict[str, object], arrays: dict[str, np.ndarray]) -> None:
    """Write a capture with right checksums."""
    sums: dict[str, object] = {
        name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in arrays.items()
    }
    facts = {name: value for name, value in described.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    text = json.dumps(facts | {"sha256": {"description": digest, **sums}})
    save_file(arrays, path, metadata={"headscape": text})


def capture(data: bytes, folder: Path) -> object:
    """A capture: the file itself, or a description with right checksums."""
    path = folder / "a.safetensors"
    described = _object(data[1:])
    if data[:1] == b"0":
        path.write_bytes(data[1:])
    elif described is None:
        text = data[1:].decode("utf-8", "replace")
        save_file(CAPTURED, path, metadata={"headscape": text})
    else:
        write_checked(path, described, CAPTURED)
    read = capture_file.load(path)
    if all(layer in read.calls for layer in read.layers):
        pack = open_pack(path)
        assert pack.length == read.length
    return [read.map(name, layer) for name in read.quantities for layer in read.layers]


def factors(data: bytes, folder: Path) -> object:
    """The factors of a layer: its description, and arrays of the shapes that the input names."""
    given = _object(data) or {}
    shapes = given.get("shapes")
    arrays: dict[str, np.ndarray] = {"tokens": np.arange(3), "positions": np.arange(3)}
    for name, shape in shapes.items() if isinstance(shapes, dict) else []:
        sizes = shape if isinstance(shape, list) else [shape]
        if name and all(type(size) is int and 0 <= size < 9 for size in sizes) and len(sizes) < 5:
            dtype = np.float64 if name in ("lse", "bias.row", "bias.col") else np.float32
            # Files name tensors in any Unicode but lone surrogates.
            legal = name.encode("utf-8", "replace").decode()
            arrays[f"factors.1.{legal}"] = np.ones(sizes, dtype)
    path = folder / "a.safetensors"
    write_checked(path, DESCRIBED | {"layers": [1], "factors": {"1": given.get("layer")}}, arrays)
    pack = open_pack(path)
    with np.errstate(all="ignore"):
        return [pack.layer(1).whole(name, [0, 1]) for name in capture_file.QUANTITIES]


def checkpoint_state(data: bytes, folder: Path) -> object:
    """state.json of a checkpoint: as it is, or with the right checksum of itself."""
    (folder / "model.safetensors").write_bytes(b"weights")
    state = _object(data[1:]) if data[:1] != b"0" else None
    if state is not None:
        state.pop("sha256", None)
        text = json.dumps(state, sort_keys=True)
        state["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        data = b"1" + json.dumps(state).encode()
    (folder / checkpoint.STATE).write_bytes(data[1:])
    return checkpoint.verify(folder)


def checkpoint_header(data: bytes, folder: Path) -> object:
    """headscape.json of a checkpoint."""
    (folder / weights.HEADER).write_bytes(data)
    return weights.read_header(folder)


def checkpoint_tensors(data: bytes, folder: Path) -> object:
    """The tensors of a checkpoint."""
    (folder / weights.WEIGHTS).write_bytes(data)
    return weights.read_tensors(folder / weights.WEIGHTS)


def shard(data: bytes, folder: Path) -> object:
    """The header of a token shard."""
    (folder / "header.json").write_bytes(data)
    (folder / "tokens.bin").write_bytes(b"\1\0\2\0")
    (folder / "offsets.bin").write_bytes(_OFFSETS)
    opened = Shard.open(folder)
    opened.verify()
    return opened.tokens, opened.offsets


def config(data: bytes, folder: Path) -> object:
    """config.toml of a run."""
    (folder / "config.toml").write_bytes(data)
    return read_toml(folder / "config.toml")


def journal(data: bytes, folder: Path) -> object:
    """The journal of an evaluation, after its header."""
    made = Journal(folder, {"model": "m"})
    made.path.write_bytes(made.path.read_bytes() + data)
    return Journal(folder, {"model": "m"}).finished


def tokenizer(data: bytes, folder: Path) -> object:
    """tokenizer.json of a run."""
    (folder / "tokenizer.json").write_bytes(data)
    loaded = load_tokenizer(read_json(folder / "tokenizer.json"))
    return loaded.decode(loaded.encode("a text"))


def evaluation(data: bytes, folder: Path) -> object:
    """evaluation.json, and the table made from it."""
    (folder / "evaluation.json").write_bytes(data)
    return Table.of(read_all([folder])).to_markdown()


def run_lines(data: bytes, folder: Path) -> object:
    """metrics.jsonl and provenance.json of a run, which are read as far as they are whole."""
    (folder / metrics.NAME).write_bytes(data)
    (folder / provenance.NAME).write_bytes(data)
    return metrics.read(folder), provenance.fingerprint_of(folder, "corpus")


def corpus(data: bytes, folder: Path) -> object:
    """A file of text: the first byte chooses its kind, and whether it is compressed here."""
    kinds = ("a.txt", "a.jsonl", "a.jsonl.gz", "a.txt.zst", "a.txt.gz", "a.jsonl.zst")
    number = data[0] if data else 0
    name, body = kinds[number % len(kinds)], data[1:]
    if number >= 128 and name.endswith(".gz"):
        body = gzip.compress(body, 1)
    if number >= 128 and name.endswith(".zst"):
        body = zstandard.compress(body)
    (folder / name).write_bytes(body)
    return list(read_documents(folder / name, name))


READERS: dict[str, Reader] = {
    "capture": capture,
    "factors": factors,
    "checkpoint-state": checkpoint_state,
    "checkpoint-header": checkpoint_header,
    "checkpoint-tensors": checkpoint_tensors,
    "shard": shard,
    "config": config,
    "journal": journal,
    "tokenizer": tokenizer,
    "evaluation": evaluation,
    "run-lines": run_lines,
    "corpus": corpus,
}


def read(name: str, data: bytes, folder: Path) -> bool:
    """Read an input; return whether it could be read, and raise what a reader must not raise."""
    try:
        READERS[name](data, folder)
    except InputError as error:
        if "\n" in str(error):
            raise AssertionError("more than one line") from error
        return False
    return True


def seeds(name: str) -> list[bytes]:
    """Return whole files to start from."""
    return [item if isinstance(item, bytes) else item.encode() for item in SEEDS[name]]


_ROW = {
    "method": "ALiBi", "length": 8, "protocol": "nonoverlap", "corpus": "c", "text": "t",
    "model": "m", "recipe": None, "longest": None, "train_length": 8, "seed": 0, "windows": 2,
    "tokens": 16, "bytes": 16, "words": 4, "loss": 1.5, "low": 1.0, "high": 2.0,
    "by_position": None, "refused": None,
}  # fmt: skip
_TASK = {
    "method": "ALiBi", "encoding": "alibi", "recipe": None, "seed": 0, "task": "parity",
    "length": 8, "depth": None, "examples": 4, "symbols": 0.5, "exact": 0.25, "questions": "q",
    "model": "m", "refused": None,
}  # fmt: skip
_OFFSETS = b"\0" * 8 + b"\2" + b"\0" * 7
_SHARD = {
    "format": 1, "corpus": "c", "tokenizer": "t", "split": "train", "dtype": "<u2", "tokens": 2,
    "documents": 1, "text_bytes": 2,
    "files": {
        "tokens.bin": {"bytes": 4, "sha256": hashlib.sha256(b"\1\0\2\0").hexdigest()},
        "offsets.bin": {"bytes": 16, "sha256": hashlib.sha256(_OFFSETS).hexdigest()},
    },
}  # fmt: skip
_STATE = {
    "format": 1, "state": {"step": 2, "tokens": 9, "seconds": 1.5},
    "files": {"model.safetensors": {
        "bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}},
}  # fmt: skip
_MODEL = {
    "format": 1, "model": preset("nano", tokenizer="bytes").model_for(257).to_json(),
    "conventions": {}, "sha256": "0" * 64,
}  # fmt: skip
_BPE = tokenizers.Tokenizer(
    tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}, [("a", "b")])
)
_TINY = b"\x40\0\0\0\0\0\0\0" + json.dumps(
    {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
).encode().ljust(64) + b"\0" * 8  # fmt: skip
_ARRAYS = {"q": [2, 3, 4], "k": [1, 3, 4], "lse": [2, 3]}
_PLAIN = {**KIND, "pairing": None, "bias": None, "window": None, "softcap": None}
_MIXED = {
    "mix.inner.weight": [5, 4], "mix.inner.bias": [5], "mix.outer.weight": [2, 5],
    "mix.outer.bias": [2],
}  # fmt: skip
_LAYERS: list[tuple[dict[str, object], dict[str, list[int]]]] = [
    ({**KIND}, {"turn.q": [2, 3, 2], "turn.k": [2, 3, 2], "bias.table": [2, 3]}),
    (
        {**_PLAIN, "bias": {"kind": "slope", "weighted": True}},
        {"bias.row": [2, 3], "bias.col": [2, 3], "bias.weight": [2, 3]},
    ),
    (
        {**_PLAIN, "bias": {"kind": "perceptron", "zero": 0, "leak": 0.1}},
        {"bias.near": [3], "bias.far": [3], "bias.in_weight": [4], "bias.in_bias": [4],
         "bias.out_weight": [2, 4], "bias.out_bias": [2]},
    ),
    ({**_PLAIN, "bias": {"kind": "dense"}}, {"bias.map": [2, 3, 3]}),
    (
        {**_PLAIN, "bias": {"kind": "toeplitz", "zero": 0}, "mix": {"kind": "dape", "added": True}},
        {"bias.table": [2, 3], **_MIXED},
    ),
    (
        {**_PLAIN, "bias": {"kind": "toeplitz", "zero": 0},
         "mix": {"kind": "dapev2", "kernel": 3, "boundary": "masked"}},
        {"bias.table": [2, 3], **_MIXED, "mix.inner.weight": [5, 4, 3],
         "mix.outer.weight": [2, 5, 3]},
    ),
    ({**_PLAIN, "mix": {"kind": "cope", "divide": "sum"}}, {"mix.table": [4, 5]}),
    ({**_PLAIN}, {"temperature": [2, 3], "sink": [2]}),
]  # fmt: skip
SEEDS: dict[str, list[bytes | str]] = {
    "factors": [
        json.dumps({"layer": layer, "shapes": _ARRAYS | shapes}) for layer, shapes in _LAYERS
    ],
    "capture": [f"1{json.dumps(DESCRIBED)}", b"0" + _TINY],
    "checkpoint-state": [f"1{json.dumps(_STATE)}", f"0{json.dumps(_STATE)}"],
    "checkpoint-header": [json.dumps(_MODEL)],
    "checkpoint-tensors": [_TINY],
    "shard": [json.dumps(_SHARD)],
    "config": [to_toml(preset("nano", encoding="dapev2+kerple")), "steps = 3"],
    "journal": ['{"batch": 0, "losses": [[1.5, 2.0]]} 3d3b901e\n{"batch": 1'],
    "tokenizer": ['{"kind": "bytes"}', json.dumps({"kind": "bpe", "json": _BPE.to_str()})],
    "evaluation": [
        json.dumps({"format": 2, "measurements": [_ROW]}),
        json.dumps({"format": 1, "scores": [_TASK]}),
    ],
    "run-lines": ['{"step": 1, "loss": 2.5}\n', '[{"corpus": {"fingerprint": "a"}}]'],
    "corpus": [
        b"\0a text\n",
        b'\1{"text": "a"}\n{"text": "b"}\n',
        b'\x82{"text": "a"}\n',
        b"\x81a text",
        b"\2" + gzip.compress(b'{"text": "a"}\n', mtime=0),
        b"\3" + zstandard.compress(b"a text"),
    ],
}
