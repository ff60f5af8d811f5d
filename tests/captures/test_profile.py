import numpy as np

from headscape.captures.profile import Profile
from plots.synthetic import alibi, cable


def test_toeplitz_has_no_spread():
    profile = Profile.of(alibi(12, 40))
    slopes = 2.0 ** (-8 * np.arange(1, 13) / 12)
    expected = (-slopes[:, None] * np.arange(40)).astype(np.float32)
    for name in ("mean", "min", "max"):
        np.testing.assert_array_equal(getattr(profile, name), expected)
    assert not profile.std.any()
    np.testing.assert_array_equal(profile.count, np.arange(40, 0, -1))
    np.testing.assert_array_equal(profile.distance, np.arange(40))


def test_spread_is_that_of_the_diagonal():
    maps = cable(3, 50, seed=1)
    profile = Profile.of(maps)
    for distance in (0, 1, 17, 49):
        entries = np.array([maps[:, i, i - distance] for i in range(distance, 50)], np.float64)
        np.testing.assert_allclose(profile.mean[:, distance], entries.mean(0), atol=1e-12)
        np.testing.assert_array_equal(profile.min[:, distance], entries.min(0))
        np.testing.assert_array_equal(profile.max[:, distance], entries.max(0))
        np.testing.assert_allclose(profile.std[:, distance], entries.std(0), atol=1e-12)
    assert (profile.std[:, 20] > 0).all()


def test_both_directions_without_a_mask():
    maps = np.arange(9, dtype=np.float32).reshape(1, 3, 3)
    profile = Profile.of(maps)
    np.testing.assert_array_equal(profile.distance, [-2, -1, 0, 1, 2])
    np.testing.assert_array_equal(profile.mean[0], [2, 3, 4, 5, 6])


def test_a_profile_is_read_in_small_blocks():
    """Longer than a band of distances, so that every diagonal is put together from blocks."""
    maps = cable(2, 300, seed=2)
    largest = 0

    def read(rows, cols):
        nonlocal largest
        block = maps[:, rows, cols]
        largest = max(largest, block.size)
        return block

    found = Profile.of_blocks(read, 300, causal=True)
    np.testing.assert_array_equal(found.distance, np.arange(300))
    for distance in (0, 1, 127, 128, 129, 255, 256, 299):
        entries = np.array([maps[:, i, i - distance] for i in range(distance, 300)], np.float64)
        np.testing.assert_allclose(found.mean[:, distance], entries.mean(0), atol=1e-12)
        np.testing.assert_array_equal(found.max[:, distance], entries.max(0))
    assert largest <= 2 * 128 * 256
