// A bias r_i . basis[i - j] on tiles of scores, and its gradients, without a matrix of pairs.
//
//     C^T[d, i]    = sum_c basis[d, c] r^T[c, i]         a product like that of keys and queries
//     S^T[j, i]   += C^T[i - j, i]                       the curves, sheared
//     dC^T[i - j, i] = dS^T[j, i]                        the gradients, sheared back
//     dr[i, c]    += sum_d dC^T[d, i] basis[d, c]        like dQ
//     dbasis[d, c] += sum_i dC^T[d, i] r[i, c]           like dK
//
// C^T of a query tile is kept for 256 distances, in rows d mod 256: the next key tile needs 128 new
// ones, so each pair of tokens costs one multiplication per dim, at the speed of a matrix product.
// Shearing a block of W queries takes log2 W blends a row: each moves the lanes with one bit of
// their index set by that many rows.
//
// By key, E[j, d] = u_j . basis[d] has the queries of key j one after the other, and a row of E,
// moved by j, is added as it is. It is made for kKeyBlock keys at a time.
//
// Distances may share a row of the basis (`source`): those beyond its end, DeBERTa's buckets. The
// products are of the rows that differ; their results are copied, and gradients summed, per distance.
#pragma once

#include "bias.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr int64_t kRing = kQueryTile + kKeyTile;  // a power of two above the distances of a pair
constexpr int64_t kRingLd = kQueryTile + 16;
constexpr int64_t kKeyBlock = 32;
constexpr int64_t kPiece = 64;  // distances whose curves are made at once
constexpr int64_t kKeyLd = kQueryTile + kKeyBlock + 2 * W;
constexpr Band kAll = {-kEverything, kEverything};
static_assert((kRing & (kRing - 1)) == 0, "a row is found by its last bits");

// yes in the lanes whose index has bit B.
template <int B>
inline V pick(V yes, V no) {
#if defined(__AVX512F__)
    constexpr __mmask16 mask = B == 1 ? 0xAAAA : B == 2 ? 0xCCCC : B == 4 ? 0xF0F0 : 0xFF00;
    return _mm512_mask_blend_ps(mask, no, yes);
#elif defined(__AVX2__)
    return _mm256_blend_ps(no, yes, B == 1 ? 0xAA : B == 2 ? 0xCC : 0xF0);
#else
    return choose((Lanes)((lane_index() & B) != 0), yes, no);
#endif
}

// x[r] <- in lane l, x[r + l]: rows 0 ... W - 1 out of 2 W - 1.
template <int B>
inline void shear(V *x) {
#pragma GCC unroll 32
    for (int64_t r = 0; r + B < 2 * W - B; r++) x[r] = pick<B>(x[r + B], x[r]);
    if constexpr (2 * B < W) shear<2 * B>(x);
}
// The reverse: x[r + l] <- in lane l, x[r], from W rows and W - 1 rows of zeros.
template <int B>
inline void unshear(V *x) {
#pragma GCC unroll 32
    for (int64_t r = 2 * W - 2; r >= 0; r--) x[r] = pick<B>(r < B ? V{} : x[r < B ? 0 : r - B], x[r]);
    if constexpr (B > 1) unshear<B / 2>(x);
}

// Rows of curves by distance, those of [low, high).
struct Ring {
    float *rows;  // [kRing, kRingLd]
    int64_t low = 0, high = 0;
    float *row(int64_t d) const { return rows + (d & (kRing - 1)) * kRingLd; }
    // run(d, count) for stretches of [from, end) that are contiguous in memory.
    template <class Run>
    static void stretches(int64_t from, int64_t end, const Run &run) {
        for (int64_t next; from < end; from = next) {
            next = smaller(end, (from & ~(kRing - 1)) + kRing);
            run(from, next - from);
        }
    }
};

// The distances of a pair that some query sees: [low, high).
struct Span {
    int64_t low, high;
    Span(const Pair &pair, int64_t padded) {
        Band band = pair.band();
        low = greater(pair.gap() - pair.k.count + 1, pair.gap() - band.high);
        high = smaller(pair.gap() + padded, pair.gap() - band.low + W);
    }
};

// rows(first, end, at): rows first ... end - 1 of the scores, in blocks of W from the last on, and
// the smallest distance of the block.
template <class Rows>
inline void sheared_blocks(const Pair &pair, int64_t i, const Rows &rows) {
    Band band = pair.band();
    int64_t first = band.first(i, pair.k.count), end = band.end(i, W, pair.k.count);
    for (; end > first; end -= W) rows(greater(first, end - W), end, pair.gap() + i - end + 1);
}

// `constant` is a number per key, or null.
inline void add_curves(const Pair &pair, const Ring &ring, int64_t padded, const float *constant,
                       float *s, int64_t ld) {
    for (int64_t i = 0; i < padded; i += W)
        sheared_blocks(pair, i, [&](int64_t first, int64_t end, int64_t at) {
            V x[2 * W - 1];
#pragma GCC unroll 32
            for (int64_t r = 0; r < 2 * W - 1; r++) x[r] = load(ring.row(at + r) + i);
            shear<1>(x);
            float *to = s + i + (end - 1) * ld;
            if (constant)
#pragma GCC unroll 16
                for (int64_t r = 0; r < W; r++) x[r] += splat(constant[greater(first, end - 1 - r)]);
            if (end - first == W) {
#pragma GCC unroll 16
                for (int64_t r = 0; r < W; r++) store(to - r * ld, load(to - r * ld) + x[r]);
                return;
            }
            for (int64_t r = 0; r < end - first; r++) store(to - r * ld, load(to - r * ld) + x[r]);
        });
}

// Adds the gradients of a tile of scores to those of the curves.
inline void gather_curves(const Pair &pair, const Ring &ring, int64_t padded, const float *d,
                          int64_t ld) {
    for (int64_t i = 0; i < padded; i += W)
        sheared_blocks(pair, i, [&](int64_t first, int64_t end, int64_t at) {
            V x[2 * W - 1];
            const float *from = d + i + (end - 1) * ld;
#pragma GCC unroll 32
            for (int64_t r = 0; r < 2 * W - 1; r++)
                x[r] = r < end - first && r < W ? load(from - r * ld) : V{};
            unshear<W / 2>(x);
#pragma GCC unroll 32
            for (int64_t r = 0; r < 2 * W - 1; r++) {
                float *to = ring.row(at + r) + i;
                store(to, load(to) + x[r]);
            }
        });
}

inline float sum_of(const float *x, int64_t count) {
    V all = V{};
    int64_t n = 0;
    for (; n + W <= count; n += W) all += load(x + n);
    float total = sum(all);
    for (; n < count; n++) total += x[n];
    return total;
}

// total[j] += the sum of row j of a tile's gradients.
inline void add_rows(const Pair &pair, const float *d, int64_t ld, float *total) {
    Band band = pair.band();
    for (int64_t j = 0; j < pair.k.count; j++) {
        int64_t i = clamp(j - band.high, 0, pair.q.count) / W * W;
        int64_t end = clamp(j - band.low + 1, 0, pair.q.count);
        V all = V{};
        for (; i < end; i += W) all += load(d + j * ld + i);
        total[j] += sum(all);
    }
}

// Keys of one block and the queries that see some of them: query i of key j is in column
// i - from + (count - 1) - (j - start) of E, whose column 0 is distance `at`.
struct KeyBlock {
    int64_t start, count, from, end, at, width;
    KeyBlock(const Pair &pair, int64_t j, int64_t padded) {
        Band band = pair.band();
        start = j, count = smaller(kKeyBlock, pair.k.count - j);
        from = clamp(j - band.high, 0, padded) / W * W;
        end = smaller(padded, rounded_up(clamp(j + count - band.low, 0, padded), W));
        at = pair.gap() + from - (start + count - 1);
        width = end - from + count - 1;
    }
    // move(score, e) for every vector of queries and key that see each other.
    template <class Move>
    void visit(const Pair &pair, const Move &move) const {
        Band band = pair.band();
        for (int64_t i = from; i < end; i += W) {
            int64_t first = greater(start, band.first(i, pair.k.count));
            int64_t last = smaller(start + count, band.end(i, W, pair.k.count));
            for (int64_t j = first; j < last; j++)
                move(j * kLd + i, (j - start) * kKeyLd + i - from + count - 1 - (j - start));
        }
    }
};

// Room of one thread: pieces of one block of memory, in order.
struct Room {
    float *at;
    float *take(int64_t floats) {
        float *found = at;
        at += floats;
        return found;
    }
};

// The positions of the keys that a query tile sees, from the first to the last.
struct Reach {
    int64_t first = kEverything, last = -kEverything;
    void add(const Tile &k) {
        first = smaller(first, k.position), last = greater(last, k.position + k.count - 1);
    }
};

// The sheared bias of a query tile. Rows of r, u and the bases are `wide` floats long, zeros behind
// their rank.
struct RelativeCurves {
    const Problem &p;
    int64_t head, row, wide, key_wide;
    const Tile &q;
    const Reach reach;
    float *turned, *block, *piece;
    Ring curves, grads;

    static int64_t floats(const Problem &p) {
        if (!p.r) return 0;
        int64_t block = kKeyBlock * kKeyLd, piece = kPiece * kRingLd;
        return rounded_up(p.rank, 16) * kQueryTile + 2 * kRing * kRingLd + block + piece + block;
    }
    RelativeCurves(const Problem &problem, int64_t row_, int64_t head_, const Tile &q_, int64_t padded,
            const Reach &reach_, Room &room, bool learns)
        : p(problem), head(head_), row(row_), q(q_), reach(reach_) {
        if (!p.r) return;
        wide = rounded_up(p.rank, 16), key_wide = rounded_up(p.key_rank, 16);
        turned = room.take(wide * kQueryTile), block = room.take(kKeyBlock * kKeyLd);
        piece = room.take(kPiece * kRingLd + kKeyBlock * kKeyLd);
        curves.rows = room.take(kRing * kRingLd), grads.rows = room.take(kRing * kRingLd);
        transpose(queries(), q.count, wide, padded, 1, turned, kQueryTile);
        // Rows that no query sees are read, and must be finite.
        memset(curves.rows, 0, kRing * kRingLd * sizeof(float));
        if (learns) memset(grads.rows, 0, kRing * kRingLd * sizeof(float));
    }
    const float *queries() const {
        return p.r + row * p.r_stride + (head * p.queries + q.start) * wide;
    }
    int64_t source(int64_t d) const { return p.source[d - p.basis_low]; }
    const float *basis(int64_t at) const { return p.basis + head * p.basis_stride + at * wide; }
    // run(d, count, first, rows): stretches of distances that share or follow each other's rows of
    // the basis, those from `first` on.
    template <class Run>
    void pieces(int64_t d, int64_t end, int64_t most, const Run &run) const {
        for (int64_t next; d < end; d = next) {
            for (next = d + 1; next < smaller(end, d + most); next++)
                if ((uint64_t)(source(next) - source(next - 1)) > 1) break;
            run(d, next - d, source(d), source(next - 1) - source(d) + 1);
        }
    }
    // Which rows of the basis the W distances from d on have; only those before `end` count. The row
    // of lane l is from[l] rows after that of lane 0.
    struct Shared {
        Lanes from, last, same[4];  // last: for each of the rows, the last lane that has it
        int64_t rows, steps = 0;
        Shared(const RelativeCurves &s, int64_t d, int64_t end) {
            int32_t row[W], lane[W] = {};
            int64_t most = smaller(W, end - d), first = s.source(d);
            for (int64_t l = 0; l < W; l++)
                row[l] = (int32_t)(s.source(d + smaller(l, most - 1)) - first);
            for (int32_t l = 0; l < most; l++) lane[row[l]] = l;
            memcpy(&from, row, sizeof from);
            memcpy(&last, lane, sizeof last);
            rows = row[most - 1] + 1;
            // same[n]: the lanes that have the row of the lane 2^n before them.
            for (int64_t by = 1; by < W; by *= 2, steps++) {
                for (int64_t l = 0; l < W; l++) same[steps][l] = -(l >= by && row[l] == row[l - by]);
                if (!any(same[steps])) break;
            }
        }
        // The sum over the lanes of each row, in the lane of its number.
        V sums(V x) const {
            for (int64_t n = 0; n < steps; n++)
                x += from_bits(bits(permute(x, lane_index() - (1 << n))) & same[n]);
            return choose((Lanes)(lane_index() < (int32_t)rows), permute(x, last), V{});
        }
    };
    // Which rows of curves from distance d on each query needs: at the ends of `reach`, not all.
    Band needed(int64_t d) const {
        return {q.position - reach.last - d, q.position - reach.first - d};
    }
    const float *keys(int64_t j) const {
        return p.u + row * p.u_stride + (head * p.keys + j) * key_wide;
    }

    void add(const Pair &pair, int64_t padded, float *s) {
        if (!p.r) return;
        Span span(pair, padded);
        if (span.high > curves.high || span.high < curves.low) curves.low = curves.high = span.high;
        Ring::stretches(span.low, curves.low, [&](int64_t from, int64_t all) {
            pieces(from, from + all, kPiece, [&](int64_t d, int64_t count, int64_t at, int64_t rows) {
                float *to = rows == count ? curves.row(d) : piece;
                along_queries(rows, padded, p.rank, basis(at), wide, turned, kQueryTile, to, kRingLd,
                              rows == count ? needed(d) : kAll);
                for (int64_t n = 0; rows < count && n < count; n++)
                    memcpy(curves.row(d + n), piece + (source(d + n) - at) * kRingLd,
                           padded * sizeof(float));
            });
        });
        curves.low = smaller(curves.low, span.low);
        curves.high = smaller(curves.high, curves.low + kRing);
        const float *constant = nullptr;
        if (p.constant)
            constant = p.constant + row * p.constant_stride + head * p.keys + pair.k.start;
        add_curves(pair, curves, padded, constant, s, kLd);
        for (int64_t j = 0; p.u && j < pair.k.count; j += kKeyBlock) {
            KeyBlock b(pair, j, padded);
            if (b.from >= b.end) continue;
            pieces(b.at, b.at + b.width, kEverything,
                   [&](int64_t d, int64_t count, int64_t at, int64_t rows) {
                const float *by = p.key_turned + head * p.key_turned_stride + at;
                float *to = rows == count ? block + d - b.at : piece;
                along_queries(b.count, rounded_up(rows, W), p.key_rank, keys(pair.k.start + j),
                              key_wide, by, p.turned_length, to, kKeyLd, kAll);
                if (rows < count) spread(d, count, at, b.count, block + d - b.at);
            });
            b.visit(pair, [&](int64_t at, int64_t e) {
                store(s + at, load(s + at) + load(block + e));
            });
        }
    }
    void learn(const Pair &pair, int64_t padded, const float *d) {
        if (!p.d_r) return;
        Span span(pair, padded);
        if (span.high > grads.high || span.high < grads.low) {
            flush(pair, grads.low);
            grads.low = grads.high = span.high;
        }
        flush(pair, span.high);
        grads.low = smaller(grads.low, span.low);
        gather_curves(pair, grads, padded, d, kLd);
        if (p.d_constant)
            add_rows(pair, d, kLd, p.d_constant + pair.of_part() * p.keys + pair.k.start);
        for (int64_t j = 0; p.u && j < pair.k.count; j += kKeyBlock) {
            KeyBlock b(pair, j, padded);
            if (b.from >= b.end) continue;
            for (int64_t n = 0; n < b.count; n++)
                memset(block + n * kKeyLd, 0, kKeyLd * sizeof(float));
            b.visit(pair, [&](int64_t at, int64_t e) { store(block + e, load(d + at)); });
            int64_t part = pair.of_part();
            float *d_u = p.d_u + (part * p.keys + pair.k.start + j) * key_wide;
            pieces(b.at, b.at + b.width, kEverything,
                   [&](int64_t d, int64_t count, int64_t at, int64_t rows) {
                const float *by = p.key_basis + head * p.key_basis_stride + at * key_wide;
                float *d_by = p.d_key_basis + (part * p.basis_rows + at) * key_wide;
                const float *ds = block + d - b.at;
                if (rows < count) ds = collect(d, count, at, rows, b.count, ds);
                if (p.key_rank == 1) return learn_one(b, pair, at, rows, ds, d_u, d_by);
                over_queries(b.count, key_wide, rows, ds, kKeyLd, by, key_wide, d_u, key_wide, kAll);
                over_keys<Into::kAdd>(rows, key_wide, b.count, ds, kKeyLd, keys(pair.k.start + j),
                                      key_wide, d_by, key_wide, nullptr, kAll);
            });
        }
    }
    // The gradients of u and its basis at rank 1, where matrix products would be mostly padding.
    void learn_one(const KeyBlock &b, const Pair &pair, int64_t at, int64_t rows, const float *ds,
                   float *d_u, float *d_by) const {
        const float *by = p.key_turned + head * p.key_turned_stride + at;
        const float *u = keys(pair.k.start + b.start);
        V sums[kKeyLd / W + 1] = {};
        for (int64_t j = 0; j < b.count; j++) {
            V dot = V{}, own = splat(u[j * key_wide]);
            for (int64_t n = 0; n < rows; n += W) {
                V x = load(ds + j * kKeyLd + n);
                if (n + W > rows) x = choose((Lanes)(lane_index() < (int32_t)(rows - n)), x, V{});
                dot = fma(x, load(by + n), dot);
                sums[n / W] = fma(x, own, sums[n / W]);
            }
            d_u[j * key_wide] += sum(dot);
        }
        for (int64_t n = 0; n < rows; n++) d_by[n * key_wide] += sums[n / W][n % W];
    }
    // `spread` copies E of every row of the basis, in `piece`, to its distances; `collect` sums the
    // other way. What a vector store writes past the end of a piece, the next one overwrites.
    void spread(int64_t d, int64_t count, int64_t at, int64_t keys, float *to) const {
        for (int64_t n = 0; n < count; n += W) {
            Shared shared(*this, d + n, d + count);
            const float *e = piece + source(d + n) - at;
            for (int64_t j = 0; j < keys; j++)
                store(to + j * kKeyLd + n, permute(load(e + j * kKeyLd), shared.from));
        }
    }
    const float *collect(int64_t d, int64_t count, int64_t at, int64_t rows, int64_t keys,
                         const float *ds) const {
        if (rows == 1) {
            for (int64_t j = 0; j < keys; j++) piece[j * kKeyLd] = sum_of(ds + j * kKeyLd, count);
            return piece;
        }
        for (int64_t j = 0; j < keys; j++)
            memset(piece + j * kKeyLd, 0, (rows + W) * sizeof(float));
        for (int64_t n = 0; n < count; n += W) {
            Shared shared(*this, d + n, d + count);
            float *to = piece + source(d + n) - at;
            for (int64_t j = 0; j < keys; j++, to += kKeyLd)
                store(to, load(to) + shared.sums(load(ds + j * kKeyLd + n)));
        }
        return piece;
    }
    // Hands on the gradients of curves at distances of at least `from`, which no later key has.
    void flush(const Pair &pair, int64_t from) {
        float *d_r = p.d_r + ((row * p.heads + head) * p.queries + q.start) * wide;
        float *d_basis = p.d_basis + pair.of_part() * p.basis_rows * wide;
        from = greater(from, grads.low);
        Ring::stretches(from, grads.high, [&](int64_t first, int64_t all) {
            pieces(first, first + all, kPiece, [&](int64_t d, int64_t count, int64_t at, int64_t rows) {
                float *ds = grads.row(d);
                if (rows < count) {
                    memset(piece, 0, rows * kRingLd * sizeof(float));
                    for (int64_t n = 0; n < count; n++)
                        for (int64_t i = 0; i < q.count; i += W) {
                            float *to = piece + (source(d + n) - at) * kRingLd + i;
                            store(to, load(to) + load(ds + n * kRingLd + i));
                        }
                }
                const float *sums = rows < count ? piece : ds;
                Band band = rows < count ? kAll : needed(d);
                over_keys<Into::kAdd>(q.count, wide, rows, sums, kRingLd, basis(at), wide, d_r, wide,
                                      nullptr, band);
                over_queries(rows, wide, q.count, sums, kRingLd, queries(), wide, d_basis + at * wide,
                             wide, band);
                memset(ds, 0, count * kRingLd * sizeof(float));
            });
        });
        grads.high = smaller(grads.high, from);
    }
    void finish(const Pair &pair) {
        if (p.d_r) flush(pair, grads.low);
    }
};

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
