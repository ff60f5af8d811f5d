"""The overview of long captures: computed by processes, checked against numpy, resumed, stale."""

import time
from pathlib import Path

import numpy as np
import pytest

from headscape.captures.capture_file import open_pack
from headscape.captures.overview_file import OverviewJob, compute_parts, overview_level, stamp
from headscape.captures.pack import Pack, make_pack
from headscape.captures.saved_call import SavedCall
from pack_files import write
from saved_calls import saved, slope


def long_pack(length: int, dims: int = 16, *, seed: int = 0) -> Pack:
    """One head of a CABLE-like layer without log-sum-exp."""
    random = np.random.default_rng(seed)
    q, k = random.standard_normal((2, 1, length, dims)).astype(np.float32)
    total = -np.cumsum(random.gamma(0.3, 0.02, (1, length)), axis=1)
    weight = random.gamma(2.0, 0.5, (1, length))
    layer = saved(q, k, slope(weight, total, total), lse=False)
    return make_pack({0: layer}, encoding="cable", heads=[5], title="long")


def dense_weights(layer: SavedCall, rows: slice) -> np.ndarray:
    """Weights of some queries with all keys, by numpy alone."""
    arrays, length = {name: np.asarray(x) for name, x in layer.arrays.items()}, layer.length
    q, k = arrays["q"][0, rows].astype(np.float64), arrays["k"][0].astype(np.float64)
    gap = arrays["bias.row"][0, rows, None] - arrays["bias.col"][0]
    final = layer.described["scale"] * q @ k.T + arrays["bias.weight"][0, rows, None] * gap
    final[np.arange(length) > np.arange(rows.start, rows.stop)[:, None]] = -np.inf
    final -= final.max(axis=1, keepdims=True)
    weights = np.exp(final)
    return weights / weights.sum(axis=1, keepdims=True)


def check(job: OverviewJob, layer: SavedCall, cells: int, every: int) -> None:
    """Compare every `every`-th row of cells with numpy."""
    found = job.result()
    assert found is not None
    side, length = 1 << job.level, layer.length
    for cell in range(0, cells, every):
        rows = slice(cell * side, min(length, (cell + 1) * side))
        weights = dense_weights(layer, rows)
        starts = np.arange(0, length, side)
        seen = np.tri(rows.stop - rows.start, length, rows.start, dtype=bool)
        count = np.add.reduceat(seen.sum(axis=0, dtype=np.float64), starts)
        total = np.add.reduceat(weights.sum(axis=0), starts)
        greatest = np.maximum.reduceat(weights.max(axis=0), starts)
        least = np.minimum.reduceat(np.where(seen, weights, np.inf).min(axis=0), starts)
        np.testing.assert_array_equal(found.count[cell], count)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        np.testing.assert_allclose(found.values("mean")[cell], mean, rtol=2e-5, atol=1e-12)
        blank = count == 0
        for name, expected in (("max", greatest), ("min", least)):
            np.testing.assert_allclose(
                found.values(name)[cell], np.where(blank, np.nan, expected), rtol=5e-5, atol=1e-30
            )


@pytest.mark.parametrize("length", [512, 777])
def test_an_overview_is_exact(length: int, tmp_path: Path) -> None:
    pack = long_pack(length)
    path = tmp_path / "long.safetensors"
    write(pack, path)
    job = OverviewJob(path, 0, 5, level=5, processes=2)
    assert job.result() is None
    assert job.progress().done == 0
    job.start()
    job.wait(120)
    state = job.progress()
    assert state.error is None
    assert state.finished
    check(job, pack.layer(0), -(-length // 32), 1)
    assert [entry.name for entry in job.folder.iterdir()] == ["layer-0-head-5.safetensors"]


def test_a_stopped_job_goes_on(tmp_path: Path) -> None:
    pack, path = long_pack(512), tmp_path / "long.safetensors"
    write(pack, path)
    job = OverviewJob(path, 0, 5, level=5, processes=1)
    parts = job._parts
    parts.mkdir(parents=True)
    compute_parts(path, 0, 5, 5, parts, 0, 2)
    assert job.progress().done == pytest.approx(sum(2 * n + 1 for n in range(15, -1, -2)) / 256)
    before = {entry.name: entry.stat().st_mtime_ns for entry in parts.iterdir()}
    compute_parts(path, 0, 5, 5, parts, 0, 1)
    after = {entry.name: entry.stat().st_mtime_ns for entry in parts.iterdir()}
    assert {name: after[name] for name in before} == before
    assert len(after) == 16


def test_a_replaced_capture_has_no_overview(tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    write(long_pack(256), path)
    job = OverviewJob(path, 0, 5, level=5, processes=1)
    job.start()
    job.wait(120)
    assert job.result() is not None
    old = stamp(path)
    write(long_pack(256, seed=1), path)
    assert stamp(path) != old
    assert OverviewJob(path, 0, 5, level=5).result() is None


def test_a_failing_process_is_told(tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    write(long_pack(256), path)
    job = OverviewJob(path, 0, 5, level=5, processes=1)
    path.write_bytes(b"damaged")
    job.start()
    job.wait(120)
    assert "not a whole safetensors file" in str(job.progress().error)


def test_levels() -> None:
    assert [overview_level(n) for n in (1, 1024, 1025, 16_384, 65_536, 1 << 20)] == [
        0,
        0,
        1,
        4,
        6,
        10,
    ]


@pytest.mark.slow
def test_65536_tokens_against_numpy(tmp_path: Path) -> None:
    pack, path = long_pack(65_536, 64), tmp_path / "long.safetensors"
    write(pack, path)
    job = OverviewJob(path, 0, 5)
    job.start()
    job.wait()
    assert job.progress().finished
    check(job, open_pack(path).layer(0), 1024, 13)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    write(long_pack(256), path)
    (tmp_path / "long.safetensors.overview").write_text("a file where the folder would be")
    job = OverviewJob(path, 0, 5, level=5, processes=1)
    job.start()
    job.wait(120)
    state = job.progress()
    assert state.finished
    assert "long.safetensors.overview cannot be written" in str(state.note)
    assert job.result() is not None
    job.stop()
    assert not job.folder.exists()


def test_two_jobs_on_one_capture_share_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscape.captures.overview_file.POLL_SECONDS", 0.05)
    pack, path = long_pack(512), tmp_path / "long.safetensors"
    write(pack, path)
    jobs = [OverviewJob(path, 0, 5, level=5, processes=1) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.wait(120)
        assert job.progress().error is None
        check(job, pack.layer(0), 16, 1)
    assert sorted(len(job._running) for job in jobs) == [0, 1]
    assert [entry.name for entry in jobs[0].folder.iterdir()] == ["layer-0-head-5.safetensors"]


def test_a_job_takes_over_from_one_that_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscape.captures.overview_file.POLL_SECONDS", 0.05)
    pack, path = long_pack(512), tmp_path / "long.safetensors"
    write(pack, path)
    first, second = (OverviewJob(path, 0, 5, level=5, processes=1) for _ in range(2))
    first.start()
    while not first._running:
        time.sleep(0.01)
    second.start()
    first.stop()
    second.wait(120)
    check(second, pack.layer(0), 16, 1)
