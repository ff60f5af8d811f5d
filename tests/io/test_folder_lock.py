"""A folder has one writer, and a dead writer blocks nobody."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headscape.errors import InputError
from headscape.io.folder_lock import FolderLock

HOLD = """
import sys, time
from pathlib import Path
from headscape.io.folder_lock import FolderLock
with FolderLock(Path(sys.argv[1])) as lock:
    lock.acquire()
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with FolderLock(folder) as lock:
        lock.acquire()
        lock.acquire()
        with (
            FolderLock(folder) as second,
            pytest.raises(InputError, match=f"{folder} is in use by process {os.getpid()} "),
        ):
            second.acquire()
        with pytest.raises(InputError, match="in use"), FolderLock(folder) as third:
            third.acquire()
    with FolderLock(folder) as lock:
        lock.acquire()


def test_a_kill_releases_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with (
            FolderLock(tmp_path) as lock,
            pytest.raises(InputError, match=f"process {process.pid} "),
        ):
            lock.acquire()
        process.kill()
    with FolderLock(tmp_path) as lock:
        lock.acquire()


def test_an_unused_lock_makes_no_folder(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_system_without_locks_is_warned_of_and_written_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    for name in [name for name in sys.modules if name.startswith("headscape.io.folder_lock")]:
        monkeypatch.delitem(sys.modules, name)
    module = importlib.import_module("headscape.io.folder_lock")
    with (
        pytest.warns(UserWarning, match="^this system has no locks: make sure that no ") as warned,
        module.FolderLock(tmp_path) as lock,
    ):
        lock.acquire()
    assert [one.filename for one in warned] == [__file__]
    assert (tmp_path / ".lock").read_text().startswith(f"{os.getpid()} on ")
