// The matrix products of attention, on tiles that sit in the cache.
//
// A tile of scores is kept transposed: one row per key, the queries along the vector lanes. Then
// softmax runs over rows (no sums across lanes), a bias by distance is one unaligned load, and
// every product below finds its right-hand side already in row order: nothing is packed but the
// queries, once per query tile.
//
//     along_queries   S^T[j, i]  = sum_e K[j, e] Q^T[e, i]        also dP^T = V dO^T
//     over_keys       O[i, e]   += sum_j P^T[j, i] V[j, e]        also dQ from dS^T and K
//     over_queries    dV[j, e]  += sum_i P^T[j, i] dO[i, e]       also dK from dS^T and Q
//
// `Band` is what the causal limit and the window leave: query column i sees key row j when
// i + low <= j <= i + high. Blocks outside are skipped, which makes a tile on the diagonal cost half.
#pragma once

#include "simd.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr int64_t kEverything = INT64_C(1) << 40;  // a limit that hides nothing

struct Band {
    int64_t low, high;
    // The keys that some of `count` queries from i on see: [first, end) of `keys`.
    int64_t first(int64_t i, int64_t keys) const { return clamp(i + low, 0, keys); }
    int64_t end(int64_t i, int64_t count, int64_t keys) const {
        return clamp(i + count + high, 0, keys);
    }
    Band after(int64_t i) const { return {low + i, high + i}; }
};

// Memory that a later product reads. Every block of this product prefetches an equal share of its
// cache lines; prefetching all at once would delay this product's own loads.
struct Ahead {
    const float *at = nullptr;
    int64_t lines = 0, share = 0;

    Ahead() = default;
    Ahead(const float *from, int64_t count) : at(from), lines((count + 15) / 16) {}
    void spread(int64_t blocks) { share = (lines + blocks - 1) / blocks; }
    void step() {
        for (int64_t n = smaller(share, lines); n > 0; n--, lines--, at += 16)
            __builtin_prefetch(at, 0, 2);
    }
};

// How many blocks of kMicroRows rows and N vectors a product has.
template <int N>
inline int64_t blocks_of(int64_t rows, int64_t columns) {
    return rounded_up(rows, kMicroRows) / kMicroRows * (rounded_up(columns, N * W) / (N * W));
}

enum class Into { kStore, kAdd, kScaleAdd };

// C[M, N W] (=, +=, = factor C +) A[M, depth] B[depth, N W] with all of C in registers. A is read
// one number at a time: at a[m, k] = a[m * lda + k], or a[k * lda + m] when it is transposed.
template <int M, int N, bool kTransposed, Into kInto>
inline void micro(int64_t depth, const float *__restrict a, int64_t lda, const float *__restrict b,
                  int64_t ldb, float *__restrict c, int64_t ldc, const float *factor) {
    V sums[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[m][n] = V{};
    if (kInto != Into::kStore) fetch<M, N>(c, ldc);
    for (int64_t k = 0; k < depth; k++) {
        V right[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) right[n] = load(b + k * ldb + n * W);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            V left = splat(kTransposed ? a[k * lda + m] : a[m * lda + k]);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) sums[m][n] = fma(left, right[n], sums[m][n]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            float *to = c + m * ldc + n * W;
            if (kInto == Into::kAdd) sums[m][n] = load(to) + sums[m][n];
            if (kInto == Into::kScaleAdd) sums[m][n] = fma(splat(factor[m]), load(to), sums[m][n]);
            store(to, sums[m][n]);
        }
}

// The same for `rows` <= M rows.
template <int M, int N, bool kTransposed, Into kInto>
inline void micro_rows(int64_t rows, int64_t depth, const float *a, int64_t lda, const float *b,
                       int64_t ldb, float *c, int64_t ldc, const float *factor) {
    if constexpr (M > 1) {
        if (rows < M) {
            micro_rows<M - 1, N, kTransposed, kInto>(rows, depth, a, lda, b, ldb, c, ldc, factor);
            return;
        }
    }
    micro<M, N, kTransposed, kInto>(depth, a, lda, b, ldb, c, ldc, factor);
}

// Each product goes over its columns in panels of N vectors, the last ones in narrower panels.

// S^T[rows, columns] = A[rows, depth] B[depth, columns]. Blocks outside the band are left as they
// are.
template <int N = kMicroVectors>
inline void along_queries(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda,
                          const float *b, int64_t ldb, float *c, int64_t ldc, Band band,
                          Ahead ahead = {}) {
    ahead.spread(blocks_of<N>(rows, columns));
    int64_t i = 0;
    for (; i + N * W <= columns; i += N * W) {
        int64_t end = band.end(i, N * W, rows);
        for (int64_t j = band.first(i, rows); j < end; j += kMicroRows) {
            // The first panel brings in the rows that all panels use.
            if (i == 0 && j + 2 * kMicroRows <= end)
                for (int64_t n = 0; n < depth; n += 16)
                    fetch<kMicroRows, 1>(a + (j + kMicroRows) * lda + n, lda);
            ahead.step();
            micro_rows<kMicroRows, N, false, Into::kStore>(end - j, depth, a + j * lda, lda, b + i,
                                                           ldb, c + j * ldc + i, ldc, nullptr);
        }
    }
    if constexpr (N > 1)
        if (i < columns)
            along_queries<N - 1>(rows, columns - i, depth, a, lda, b + i, ldb, c + i, ldc,
                                 band.after(i), ahead);
}

// C[queries, columns] = (factor_i C, C) + sum_j T[j, i] B[j, columns], keys j that query i may see.
template <Into kInto, int N = kMicroVectors>
inline void over_keys(int64_t queries, int64_t columns, int64_t keys, const float *t, int64_t ldt,
                      const float *b, int64_t ldb, float *c, int64_t ldc, const float *factor,
                      Band band, Ahead ahead = {}) {
    ahead.spread(blocks_of<N>(queries, columns));
    int64_t n = 0;
    for (; n + N * W <= columns; n += N * W)
        for (int64_t i = 0; i < queries; i += kMicroRows) {
            int64_t first = band.first(i, keys), end = band.end(i, kMicroRows, keys);
            const float *by = kInto == Into::kScaleAdd ? factor + i : nullptr;
            ahead.step();
            micro_rows<kMicroRows, N, true, kInto>(queries - i, end - first, t + first * ldt + i,
                                                   ldt, b + first * ldb + n, ldb, c + i * ldc + n,
                                                   ldc, by);
        }
    if constexpr (N > 1)
        if (n < columns)
            over_keys<kInto, N - 1>(queries, columns - n, keys, t, ldt, b + n, ldb, c + n, ldc,
                                    factor, band, ahead);
}

// C[keys, columns] += sum_i T[j, i] B[i, columns], queries i that may see key j.
template <int N = kMicroVectors>
inline void over_queries(int64_t keys, int64_t columns, int64_t queries, const float *t,
                         int64_t ldt, const float *b, int64_t ldb, float *c, int64_t ldc,
                         Band band, Ahead ahead = {}) {
    ahead.spread(blocks_of<N>(keys, columns));
    int64_t n = 0;
    for (; n + N * W <= columns; n += N * W)
        for (int64_t j = 0; j < keys; j += kMicroRows) {
            int64_t first = clamp(j - band.high, 0, queries);
            int64_t end = clamp(j + kMicroRows - band.low, 0, queries);
            if (first >= end) continue;
            ahead.step();
            micro_rows<kMicroRows, N, false, Into::kAdd>(
                keys - j, end - first, t + j * ldt + first, ldt, b + first * ldb + n, ldb,
                c + j * ldc + n, ldc, nullptr);
        }
    if constexpr (N > 1)
        if (n < columns)
            over_queries<N - 1>(keys, columns - n, queries, t, ldt, b + n, ldb, c + n, ldc, band,
                                ahead);
}

// out[e, i] = factor x[i, e] for `count` tokens; columns up to `padded` are zero.
inline void transpose(const float *x, int64_t count, int64_t width, int64_t padded, float factor,
                      float *out, int64_t ld) {
    for (int64_t e = 0; e < width; e++) {
        for (int64_t i = 0; i < count; i++) out[e * ld + i] = factor * x[i * width + e];
        for (int64_t i = count; i < padded; i++) out[e * ld + i] = 0;
    }
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
