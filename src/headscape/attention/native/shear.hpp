// A bias r_i . basis[i - j] on a tile of scores, and its gradients, without a matrix of pairs.
//
//     S^T[j, i]      += sum_c r^T[c, i] basis[c, i - j]
//     dr^T[c, i]     += sum_j dS^T[j, i] basis[c, i - j]
//     dbasis[c, d]   += sum over i - j = d of dS^T[j, i] r^T[c, i]
//
// With queries along the lanes, the basis of W queries and one key is one unaligned load, and each
// sum costs what a matrix product of that depth does. The entries (j, i) and (j + W, i + W) read the
// same part of the basis, so blocks go down diagonals: N vectors of queries, the n-th of them n W
// rows further down. Rows that a block would take from beside the tile are done one vector at a
// time. By key (kKey), u_j takes the place of r_i and is one number for all lanes.
#pragma once

#include "bias.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

// One pair of tiles: x[c, i] holds r transposed (step 1, by c `ld`) or u as it is (by j `ld`);
// basis[c * length + i - j].
struct Shear {
    const float *x;
    int64_t ld, rank;
    const float *basis;
    int64_t length;
};

template <bool kKey>
inline V coefficient(const Shear &f, int64_t c, int64_t i, int64_t j) {
    return kKey ? splat(f.x[j * f.ld + c]) : load(f.x + c * f.ld + i);
}

// Rows j + n W ... + M - 1 of vectors i + n W.
template <bool kKey, int M, int N>
inline void shear_block(const Shear &f, int64_t i, int64_t j, float *s, int64_t ld) {
    V sums[N][M];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++)
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) sums[n][m] = load(s + (j + n * W + m) * ld + i + n * W);
    for (int64_t c = 0; c < f.rank; c++) {
        const float *basis = f.basis + c * f.length + i - j;
        V own[N];
        if (!kKey)
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) own[n] = load(f.x + c * f.ld + i + n * W);
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            V shared = load(basis - m);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++)
                sums[n][m] = fma(kKey ? splat(f.x[(j + n * W + m) * f.ld + c]) : own[n], shared,
                                 sums[n][m]);
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++)
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) store(s + (j + n * W + m) * ld + i + n * W, sums[n][m]);
}

template <bool kKey, int M, int N>
inline void shear_rows(const Shear &f, int64_t i, int64_t j, int64_t end, float *s, int64_t ld) {
    for (; j + M <= end; j += M) shear_block<kKey, M, N>(f, i, j, s, ld);
    if constexpr (M > 1)
        if (j < end) shear_rows<kKey, M - 1, N>(f, i, j, end, s, ld);
}

// Goes over a tile's diagonals: all(i, first, end) for N vectors and the rows that all of them have,
// one(i, first, end) for one vector and rows of its own.
template <int N, class All, class One>
inline void down_diagonals(int64_t keys, int64_t padded, Band band, const All &all, const One &one) {
    int64_t i = 0;
    for (; i + N * W <= padded; i += N * W) {
        int64_t first = greater(band.first(i, keys), band.low + i);
        int64_t end = smaller(i + W + band.high, keys - (N - 1) * W);
        if (end <= first) {
            for (int n = 0; n < N; n++)
                one(i + n * W, band.first(i + n * W, keys), band.end(i + n * W, W, keys));
            continue;
        }
        all(i, first, end);
        for (int n = 0; n < N; n++) {
            int64_t at = i + n * W;
            one(at, band.first(at, keys), first + n * W);
            one(at, end + n * W, band.end(at, W, keys));
        }
    }
    for (; i < padded; i += W) one(i, band.first(i, keys), band.end(i, W, keys));
}

// S += the bias, where a query sees a key.
template <bool kKey>
inline void add_shear(const Shear &f, int64_t keys, int64_t padded, Band band, float *s,
                      int64_t ld) {
    down_diagonals<kShearVectors>(
        keys, padded, band,
        [&](int64_t i, int64_t j, int64_t end) {
            shear_rows<kKey, kShearRows, kShearVectors>(f, i, j, end, s, ld);
        },
        [&](int64_t i, int64_t j, int64_t end) {
            shear_rows<kKey, kShearRows, 1>(f, i, j, end, s, ld);
        });
}

// dr[c ... c + C - 1, i + n W] += over rows j ... end - 1 (+ n W).
template <int C, int N>
inline void shear_back_block(const Shear &f, int64_t c, int64_t i, int64_t j, int64_t end,
                             const float *d, int64_t ld, float *dr) {
    V sums[C][N];
#pragma GCC unroll 6
    for (int m = 0; m < C; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[m][n] = V{};
    for (; j < end; j++) {
        V ds[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) ds[n] = load(d + (j + n * W) * ld + i + n * W);
#pragma GCC unroll 6
        for (int m = 0; m < C; m++) {
            V shared = load(f.basis + (c + m) * f.length + i - j);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) sums[m][n] = fma(ds[n], shared, sums[m][n]);
        }
    }
#pragma GCC unroll 6
    for (int m = 0; m < C; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            float *to = dr + (c + m) * f.ld + i + n * W;
            store(to, load(to) + sums[m][n]);
        }
}

template <int C, int N>
inline void shear_back_rows(const Shear &f, int64_t c, int64_t i, int64_t j, int64_t end,
                            const float *d, int64_t ld, float *dr) {
    if (j >= end) return;
    for (; c + C <= f.rank; c += C) shear_back_block<C, N>(f, c, i, j, end, d, ld, dr);
    if constexpr (C > 1)
        if (c < f.rank) shear_back_rows<C - 1, N>(f, c, i, j, end, d, ld, dr);
}

// dr^T, [c, i] like r.
inline void shear_to_queries(const Shear &f, int64_t keys, int64_t padded, Band band,
                             const float *d, int64_t ld, float *dr) {
    down_diagonals<kShearVectors>(
        keys, padded, band,
        [&](int64_t i, int64_t j, int64_t end) {
            shear_back_rows<kShearRows, kShearVectors>(f, 0, i, j, end, d, ld, dr);
        },
        [&](int64_t i, int64_t j, int64_t end) {
            shear_back_rows<kShearRows, 1>(f, 0, i, j, end, d, ld, dr);
        });
}

// du[j, c], like u: sums along the lanes.
template <int C>
inline void shear_to_key(const Shear &f, int64_t c, int64_t j, int64_t first, int64_t end,
                         const float *ds, float *du) {
    for (; c + C <= f.rank; c += C) {
        V sums[C];
#pragma GCC unroll 8
        for (int m = 0; m < C; m++) sums[m] = V{};
        for (int64_t i = first; i < end; i += W) {
            V own = load(ds + i);
#pragma GCC unroll 8
            for (int m = 0; m < C; m++)
                sums[m] = fma(own, load(f.basis + (c + m) * f.length + i - j), sums[m]);
        }
        for (int m = 0; m < C; m++) du[j * f.ld + c + m] += sum(sums[m]);
    }
    if constexpr (C > 1)
        if (c < f.rank) shear_to_key<C / 2>(f, c, j, first, end, ds, du);
}
inline void shear_to_keys(const Shear &f, int64_t keys, int64_t queries, Band band, const float *d,
                          int64_t ld, float *du) {
    for (int64_t j = 0; j < keys; j++)
        shear_to_key<8>(f, 0, j, clamp(j - band.high, 0, queries) / W * W,
                        clamp(j - band.low + 1, 0, queries), d + j * ld, du);
}

// dbasis at distances from `lead - m W` on, m < M, over the vectors of queries [from, end): the
// m-th reads rows m W further down.
template <bool kKey, int C, int M>
inline void shear_basis_block(const Shear &f, int64_t c, int64_t lead, int64_t from, int64_t end,
                              const float *d, int64_t ld, float *to) {
    V sums[C][M];
#pragma GCC unroll 6
    for (int l = 0; l < C; l++)
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) sums[l][m] = V{};
    for (int64_t i = from; i < end; i += W) {
        V ds[M];
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) ds[m] = load(d + (i - lead + m * W) * ld + i);
#pragma GCC unroll 6
        for (int l = 0; l < C; l++)
#pragma GCC unroll 4
            for (int m = 0; m < M; m++)
                sums[l][m] = fma(coefficient<kKey>(f, c + l, i, i - lead + m * W), ds[m],
                                 sums[l][m]);
    }
#pragma GCC unroll 6
    for (int l = 0; l < C; l++)
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            float *at = to + (c + l) * f.length + lead - m * W;
            store(at, load(at) + sums[l][m]);
        }
}

template <bool kKey, int C, int M>
inline void shear_basis_rows(const Shear &f, int64_t c, int64_t lead, int64_t from, int64_t end,
                             const float *d, int64_t ld, float *to) {
    if (from >= end) return;
    for (; c + C <= f.rank; c += C)
        shear_basis_block<kKey, C, M>(f, c, lead, from, end, d, ld, to);
    if constexpr (C > 1)
        if (c < f.rank) shear_basis_rows<kKey, C - 1, M>(f, c, lead, from, end, d, ld, to);
}

// A vector of queries from i on and key j add to the distances i - j ... i - j + W - 1.
template <bool kKey>
inline void shear_to_basis(const Shear &f, int64_t keys, int64_t padded, Band band, const float *d,
                           int64_t ld, float *to) {
    constexpr int M = kShearVectors;
    int64_t least = greater(1 - keys, 1 - W - band.high), most = smaller(padded - W, -band.low);
    for (int64_t rest = 0; rest < W; rest++)
        for (int64_t lead = most - rest; lead >= least; lead -= M * W) {
            // The vectors that have rows for the first and for the last of M leads.
            auto from = [&](int64_t m) { return rounded_up(clamp(lead - m * W, 0, padded), W); };
            auto end = [&](int64_t m) {
                return smaller(padded, rounded_up(greater(keys + lead - m * W, 0), W));
            };
            int64_t first = from(0), last = end(M - 1);
            if (lead - (M - 1) * W < least || last <= first) {
                for (int64_t m = 0; m < M && lead - m * W >= least; m++)
                    shear_basis_rows<kKey, kShearRows, 1>(f, 0, lead - m * W, from(m), end(m), d, ld,
                                                          to);
                continue;
            }
            shear_basis_rows<kKey, kShearRows, M>(f, 0, lead, first, last, d, ld, to);
            for (int64_t m = 0; m < M; m++) {
                shear_basis_rows<kKey, kShearRows, 1>(f, 0, lead - m * W, from(m), first, d, ld, to);
                shear_basis_rows<kKey, kShearRows, 1>(f, 0, lead - m * W, last, end(m), d, ld, to);
            }
        }
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
