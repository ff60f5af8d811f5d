"""Every measure once more, from whole float64 maps and the definitions, with loops and no sums."""

import math

import numpy as np


def bands(length: int) -> list[int]:
    return [length * band // 8 for band in range(9)]


def late(length: int, *, causal: bool) -> range:
    edges = bands(length)
    return range(edges[4], edges[8]) if causal else range(edges[2], edges[6])


def slashes(length: int, *, causal: bool) -> range:
    reach = late(length, causal=causal).start
    return range(reach) if causal else range(1 - reach, reach)


def kernel(final: np.ndarray, seen: np.ndarray) -> dict[int, float]:
    """Mean score at each distance with a visible pair."""
    found: dict[int, list[float]] = {}
    for i, j in zip(*np.nonzero(seen), strict=True):
        found.setdefault(int(i - j), []).append(float(final[i, j]))
    return {d: float(np.mean(values)) for d, values in found.items()}


def position_share(final: np.ndarray, seen: np.ndarray) -> float:
    kappa = kernel(final, seen)
    pairs = list(zip(*np.nonzero(seen), strict=True))
    values = np.array([final[i, j] for i, j in pairs])
    left = np.array([final[i, j] - kappa[int(i - j)] for i, j in pairs])
    return 1 - float((left**2).sum() / ((values - values.mean()) ** 2).sum())


def absolute_leak(finals: np.ndarray, seen: np.ndarray, one: int) -> float:
    """Of sequence `one` among finals [b t t]."""
    edges = bands(len(seen))

    def deviations(final: np.ndarray) -> dict[tuple[int, int], float]:
        kappa = kernel(final, seen)
        found: dict[tuple[int, int], list[float]] = {}
        for i, j in zip(*np.nonzero(seen), strict=True):
            band = next(b for b in range(8) if i < edges[b + 1])
            found.setdefault((band, int(i - j)), []).append(float(final[i, j]))
        return {at: float(np.mean(values)) - kappa[at[1]] for at, values in found.items()}

    counts: dict[tuple[int, int], int] = {}
    for i, j in zip(*np.nonzero(seen), strict=True):
        band = next(b for b in range(8) if i < edges[b + 1])
        counts[band, int(i - j)] = counts.get((band, int(i - j)), 0) + 1
    own = deviations(finals[one])
    rest = [deviations(final) for at, final in enumerate(finals) if at != one]
    shared = sum(
        count * own[at] * np.mean([each[at] for each in rest]) for at, count in counts.items()
    )
    values = finals[one][seen]
    return max(0.0, float(shared / ((values - values.mean()) ** 2).sum()))


def slash(weights: np.ndarray, *, causal: bool) -> dict[int, float]:
    length = len(weights)
    queries = late(length, causal=causal)
    return {
        d: float(np.mean([weights[i, i - d] for i in queries]))
        for d in slashes(length, causal=causal)
    }


def reach(weights: np.ndarray, share: float, *, causal: bool, sink: bool) -> float:
    found = []
    for i in late(len(weights), causal=causal):
        row = weights[i].copy()
        if not sink:
            row[0] = 0.0
        total = row.sum()
        if total <= 1e-6:
            continue
        distance = np.abs(np.arange(len(row)) - i)
        found.append(
            next(d for d in range(len(row)) if row[distance <= d].sum() >= share * total - 1e-15)
        )
    return float(np.mean(found)) if found else math.nan


def entropy(weights: np.ndarray, queries: range) -> float:
    rows = [weights[i][weights[i] > 0] for i in queries]
    return float(np.mean([-(row * np.log(row)).sum() for row in rows]))


def entropy_growth(weights: np.ndarray, seen: np.ndarray) -> float:
    x, y = [], []
    for i in range(len(weights)):
        if seen[i].sum() >= 2:
            x.append(math.log(seen[i].sum()))
            y.append(entropy(weights, range(i, i + 1)))
    if np.ptp(x) < 1e-9:
        return math.nan
    return float(np.polyfit(x, y, 1)[0])


def decay(final: np.ndarray, seen: np.ndarray, *, causal: bool) -> float:
    """One point per visible pair, at the kernel's value."""
    kappa = kernel(final, seen)
    wanted = set(slashes(len(seen), causal=causal)) - {0}
    distances = [int(i - j) for i, j in zip(*np.nonzero(seen), strict=True)]
    x = [abs(d) for d in distances if d in wanted]
    y = [kappa[d] for d in distances if d in wanted]
    return -float(np.polyfit(x, y, 1)[0])


def rotation(d: int, dims: int, base: float) -> np.ndarray:
    """The matrix that turns interleaved pairs by d positions."""
    whole = np.zeros((dims, dims))
    for m in range(dims // 2):
        angle = d * base ** (-2 * m / dims)
        turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        whole[2 * m : 2 * m + 2, 2 * m : 2 * m + 2] = turn
    return whole
