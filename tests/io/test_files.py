"""What is written replaces a file, follows a link, and never replaces anything else."""

import errno
import os
from pathlib import Path

import pytest

from headscape.errors import InputError
from headscape.io import files


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "deep" / "target.txt", tmp_path / "link.txt"
    target.parent.mkdir()
    link.symlink_to(target)
    files.write_text(link, "first")
    assert link.is_symlink()
    assert target.read_text() == "first"
    files.write_text(link, "second")
    assert target.read_text() == "second"
    assert [path.name for path in target.parent.iterdir()] == ["target.txt"]


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    fifo, folder, loop = tmp_path / "fifo", tmp_path / "folder", tmp_path / "loop"
    os.mkfifo(fifo)
    folder.mkdir()
    loop.symlink_to(loop)
    cases = {fifo: "a FIFO", folder: "a folder", Path("/dev/null"): "a device", loop: "loop"}
    for path, reason in cases.items():
        with pytest.raises(InputError, match=f"cannot write {path}: .*{reason}"):
            files.write_text(path, "x")
    assert fifo.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "folder", "loop"]


def test_a_full_disk_is_a_sentence_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.txt"
    files.write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"No space left on device: free some disk space"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_safetensors_is_a_sentence(tmp_path: Path) -> None:
    from safetensors import SafetensorError

    with (
        pytest.raises(InputError, match=r"cannot write .*x\.safetensors: no room"),
        files.replacing(tmp_path / "x.safetensors"),
    ):
        raise SafetensorError("no room")
    assert not list(tmp_path.iterdir())


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "new"
    with files.new_folder(target) as part:
        (part / "a").write_text("a")
        assert not target.exists()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["new"]
    assert (target / "a").read_text() == "a"


def test_a_new_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with files.new_folder(tmp_path / "deep" / "new") as part:
            (part / "a").write_text("a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_replaces_an_empty_one_only(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with files.new_folder(tmp_path / "empty") as part:
        (part / "a").write_text("a")
    with (
        pytest.raises(InputError, match="is not empty: choose a new folder"),
        files.new_folder(tmp_path / "empty"),
    ):
        raise AssertionError
    assert (tmp_path / "empty" / "a").read_text() == "a"
