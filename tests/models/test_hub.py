"""Models by their id, from a server on loopback that speaks the Hub's API."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headscape.cli.app import app
from headscape.errors import InputError
from headscape.models.load import load
from headscape.models.transformers import hub
from headscape.models.transformers.model_folder import INDEX
from models.hub_server import COMMIT, HubServer, Repository
from pretrained.families import FAMILIES

pytest.importorskip("transformers")
constants = pytest.importorskip("huggingface_hub.constants")
NAME = "an-owner/small"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in three files, with files beside it that no model is opened from."""
    made = tmp_path_factory.mktemp("hub") / "small"
    FAMILIES["llama"].build().float().save_pretrained(made, max_shard_size="60KB")
    (made / "README.md").write_text("# small\n")
    (made / "modeling_small.py").write_text("raise SystemExit('code of a repository ran')\n")
    (made / "chat_template.jinja").write_text("{{ messages }}")
    (made / "pytorch_model.bin").write_bytes(b"a pickle")
    assert len(list(made.glob("model-*.safetensors"))) > 1
    return made


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer({NAME: Repository.of(folder)}) as made:
        connect(monkeypatch, made.url, tmp_path / "cache")
        yield made


def connect(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    """Let huggingface_hub ask this server and keep files in this cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def refused(source: str = f"hf:{NAME}", **options: Any) -> str:
    """The sentence that loading ends with."""
    with pytest.raises(InputError) as said:
        load(source, **options)
    assert "\n" not in str(said.value)
    return str(said.value)


def test_an_id_opens_as_its_folder_and_only_needed_files_are_downloaded(
    server: HubServer, folder: Path
) -> None:
    model = load(f"hf:{NAME}")
    assert model.spec.name == "small"
    assert model.spec.provenance["hub"] == f"{NAME}@{COMMIT}"
    assert model.spec.layers == load(f"hf:{folder}").spec.layers
    assert model.fingerprint
    weights = sorted(path.name for path in folder.glob("model[-.]*"))
    others = ["chat_template.jinja", "config.json", "generation_config.json"]
    assert sorted(server.downloads()) == sorted([*weights, *others])
    server.requests.clear()
    load(f"hf:{NAME}@main")
    load(f"hf:{NAME}", revision=COMMIT, offload=True)
    assert server.downloads() == []


def renamed(folder: Path, old: str, new: str) -> Repository:
    """The files of a folder with other names of its weights, in its index too."""
    made = Repository.of(folder)
    files = {name.replace(old, new): data for name, data in made.files.items()}
    files[INDEX] = files.pop(INDEX.replace(old, new)).replace(old.encode(), new.encode())
    return Repository(files)


def test_shards_have_the_names_that_their_index_lists(server: HubServer, folder: Path) -> None:
    repository = renamed(folder, "model-", "model.safetensors-")
    repository.files["model-00009-of-00009.safetensors"] = b"of no index"
    server.models["an-owner/renamed"] = repository
    model = load("hf:an-owner/renamed")
    assert model.fingerprint == load(f"hf:{folder}").fingerprint
    shards = [name for name in server.downloads() if name.endswith(".safetensors")]
    assert len(shards) > 1
    assert all(name.startswith("model.safetensors-0000") for name in shards)


def test_a_config_may_name_its_weights(server: HubServer, folder: Path) -> None:
    repository = renamed(folder, "model-", "part-")
    repository.files["other.safetensors.index.json"] = repository.files.pop(INDEX)
    config = json.loads(repository.files["config.json"])
    config["transformers_weights"] = "other.safetensors.index.json"
    repository.files["config.json"] = json.dumps(config).encode()
    server.models["an-owner/named"] = repository
    assert load("hf:an-owner/named").spec.layers == load(f"hf:{folder}").spec.layers
    config["transformers_weights"] = "../other.safetensors"
    server.models["an-owner/outside"] = Repository({"config.json": json.dumps(config).encode()})
    assert "names '../other.safetensors', which is not beside it" in refused("hf:an-owner/outside")


def test_an_index_may_not_name_files_outside_of_the_folder(server: HubServer, folder: Path) -> None:
    repository = Repository.of(folder)
    index = {"weight_map": {"a": "sub/model-00001-of-00001.safetensors"}}
    repository.files[INDEX] = json.dumps(index).encode()
    repository.files["model-00001-of-00001.safetensors"] = b"0"
    server.models["an-owner/outside"] = repository
    assert "must be .safetensors files in the model's folder" in refused("hf:an-owner/outside")
    assert not any(name.endswith(".safetensors") for name in server.downloads())


def test_offline_it_opens_from_the_cache(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(f"hf:{NAME}").fingerprint
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    server.requests.clear()
    assert load(f"hf:{NAME}").fingerprint == expected
    assert server.requests == []
    assert "other is not in the Hub's cache" in refused("hf:an-owner/other")


def test_without_a_network_it_opens_from_the_cache(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(f"hf:{NAME}").fingerprint
    # A port on which nothing listens.
    connect(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    with pytest.warns(UserWarning, match=r"127\.0\.0\.1:9 cannot be reached, so .* from the cache"):
        assert load(f"hf:{NAME}").fingerprint == expected
    said = refused("hf:an-owner/other")
    assert "no folder an-owner/other here" in said
    assert "could not be downloaded from http://127.0.0.1:9" in said


def test_a_config_alone_that_cannot_be_downloaded(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    with pytest.raises(InputError) as said:
        hub.download_config("an-owner/other")
    assert "http://127.0.0.1:9 cannot be reached" in str(said.value)
    assert "offline" not in str(said.value)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"all that is read offline \(HF_HUB_OFFLINE\)"):
        hub.download_config("an-owner/other")


def test_the_token_of_the_environment_is_sent(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a_token")
    load(f"hf:{NAME}")
    assert server.tokens
    assert set(server.tokens) == {"Bearer hf_a_token"}


def test_an_interrupted_transfer_goes_on_where_it_stopped(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = server.models[NAME]
    name = next(name for name in repository.files if name.startswith("model-00001"))
    repository.cut[name] = 1
    # What has come is written in parts of this size.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    load(f"hf:{NAME}")
    written = len(repository.files[name]) // 2 // 1024 * 1024
    ranges = [asked for _, path, asked in server.requests if path.endswith(name) and asked]
    assert ranges == [f"bytes={written}-"]


def test_a_transfer_that_never_ends_leaves_nothing_that_is_opened(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = server.models[NAME]
    name = next(name for name in repository.files if name.startswith("model-00001"))
    repository.files[name], whole = b"", repository.files[name]
    repository.stated[name] = whole
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    refused()
    assert not list((tmp_path / "cache").rglob("*.incomplete"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert name in refused()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    repository.files[name] = whole
    del repository.stated[name]
    assert load(f"hf:{NAME}").spec.name == "small"


def test_a_file_with_the_wrong_hash_is_removed(server: HubServer, tmp_path: Path) -> None:
    repository = server.models[NAME]
    name = next(name for name in repository.files if name.startswith("model-00001"))
    right = repository.files[name]
    repository.stated[name] = right
    repository.files[name] = right[:-1] + bytes([right[-1] ^ 1])
    assert "has the hash" in refused()
    assert "names 'model-00001" in _offline_refusal(tmp_path)
    repository.files[name] = right
    assert load(f"hf:{NAME}").spec.name == "small"


def _offline_refusal(tmp_path: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        return refused()


def test_what_the_hub_refuses_is_one_sentence(server: HubServer, folder: Path) -> None:
    said = refused("hf:an-owner/no-such")
    assert "no folder an-owner/no-such here and no public model an-owner/no-such on" in said
    assert server.url in said
    assert "has no revision 'v9'" in refused(f"hf:{NAME}@v9")
    assert "has no revision 'v9'" in refused(revision="v9")
    assert "names the revision main, and v9 was given" in refused(f"hf:{NAME}@main", revision="v9")
    server.models["an-owner/gated"] = Repository.of(folder, gated=True)
    said = refused("hf:an-owner/gated")
    assert "is gated: accept its terms there and log in with `hf auth login`" in said
    config = (folder / "config.json").read_bytes()
    for name, file, words in (
        ("pickled", "pytorch_model.bin", "only pytorch_model.bin, a pickle"),
        ("packed", "q4.gguf", "only GGUF: `hf download an-owner/packed q4.gguf"),
        ("text", "README.md", "is not a model"),
    ):
        server.models[f"an-owner/{name}"] = Repository({"config.json": config, file: b"0"})
        assert words in refused(f"hf:an-owner/{name}")
    assert not any(name.endswith((".bin", ".gguf", ".py")) for name in server.downloads())


def test_no_space_is_said_before_anything_is_downloaded(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = next(name for name in server.models[NAME].files if name.startswith("model-00002"))
    for name in ("config.json", shard):
        server.models[NAME].sizes[name] = 10**17
        assert "needs 1e+08 GB in" in refused()
        assert all(file in ("config.json", INDEX) for file in server.downloads())
        assert name not in server.downloads()
        server.models[NAME].sizes.clear()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    assert "No space left on device: free some disk space" in refused()


def test_a_path_that_exists_wins(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAMILIES["bloom"].build().float().save_pretrained(tmp_path / NAME)
    monkeypatch.chdir(tmp_path)
    assert load(f"hf:{NAME}").spec.encoding == "alibi"
    assert server.requests == []
    assert "has no revision: leave it out" in refused(revision="main")


@pytest.mark.parametrize(
    ("name", "is_id"),
    [("gpt2", True), ("a/b", True), ("a/b@v1.0", True), ("a/b@refs/pr/1", True), ("./a", False),
     ("/a/b", False), ("a/b/c", False), ("~/a", False), ("x.gguf", False), ("a b", False)],
)  # fmt: skip
def test_names_that_may_be_ids(name: str, is_id: bool) -> None:
    assert hub.is_hub_id(name) == is_id


def test_the_command_line_downloads_from_its_endpoint(server: HubServer, tmp_path: Path) -> None:
    environment = {
        **os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
    }  # fmt: skip

    def run(source: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "headscape.cli", "encodings", "--of", source]
        more = ["--dtype", "bfloat16", "--device", "cpu"]
        return subprocess.run(
            [*words, *more], env=environment, capture_output=True, text=True, check=False
        )

    done = run(f"hf:{NAME}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("small: 3 layers x 6 heads")
    assert done.stderr == ""
    done = run("hf:an-owner/no-such")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no folder an-owner/no-such here and no public")
    assert len(done.stderr.splitlines()) == 1


def test_the_command_line_shows_cards_of_two_models(
    server: HubServer, folder: Path, tmp_path: Path
) -> None:
    FAMILIES["bloom"].build().float().save_pretrained(tmp_path / "other")
    server.models["an-owner/other"] = Repository.of(tmp_path / "other")
    done = CliRunner().invoke(app, ["card", f"hf:{NAME}", "hf:an-owner/other"])
    assert done.exit_code == 0, done.output
    assert {"small", "other"} <= set(done.stdout.split())
    assert done.stderr == ""
    assert server.downloads() == ["config.json", "config.json"]
