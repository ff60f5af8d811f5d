// What position does to scores, as classes with one shape; attention.hpp is compiled once for each.
//
//     enter(pair)         a new pair of tiles
//     column(i)           a new block of W queries, the first of them i
//     value(c, j)         the bias of key j and the W queries of column c, which is added to their
//                         scores or, where kMultiplies, multiplies them
//     learn(c, j, dv)     what the gradient of those W values adds to the parameters
//     finish(c)           the last key of the column is done
//     leave(pair, ds, ld) the pair is done; ds[key, query] holds all its score gradients, ld floats
//                         from key to key
//
// Distances inside a pair of tiles are pair.gap + i - j.
#pragma once

#include "gemm.hpp"
#include "problem.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

// One row of a score tile: W zeros, the queries, W zeros (for add_diagonals), and 16 floats more so
// that rows do not fall on the same cache sets. Tiles are addressed from their first query on.
constexpr int64_t kLd = kQueryTile + 2 * W + 16;
constexpr int64_t kScores = (kKeyTile * kLd + 63) / 64 * 64;

// A query tile against a key tile, in one head of one batch row.
struct Pair {
    const Problem &p;
    int64_t row, head, part;
    const Tile &q, &k;

    int64_t gap() const { return q.position - k.position; }
    // Which keys the queries see, by index in the tiles.
    Band band() const {
        int64_t wide = p.window ? p.window - 1 : kEverything;
        return {gap() - wide, p.causal ? gap() : gap() + wide};
    }
    int64_t of_head() const { return row * p.heads + head; }
    int64_t of_keys() const { return row * p.key_heads + head * p.key_heads / p.heads; }
    int64_t of_part() const { return part * p.batch * p.heads + of_head(); }
};

// table[d] += the sum of x[j, i] over all i - j = d - gap: down the diagonals, W of them at a time.
// x has W columns of zeros on both sides of its `queries` columns. Only what the band leaves counts.
inline void add_diagonals(const float *x, int64_t ld, int64_t keys, int64_t queries, Band band,
                          float *table) {
    int64_t last = smaller(1 - band.low, queries);
    for (int64_t d = greater(-band.high, 1 - keys); d < last; d += W) {
        int64_t j = d + W > 0 ? 0 : 1 - d - W, end = smaller(keys, queries - d);
        const float *at = x + d + j * (ld + 1);
        V a = V{}, b = V{}, c = V{}, e = V{};
        for (; j + 4 <= end; j += 4, at += 4 * (ld + 1)) {
            a += load(at);
            b += load(at + ld + 1);
            c += load(at + 2 * (ld + 1));
            e += load(at + 3 * (ld + 1));
        }
        for (; j < end; j++, at += ld + 1) a += load(at);
        V all = (a + b) + (c + e);
        if (d + W > last) all = choose((Lanes)(lane_index() < (int32_t)(last - d)), all, V{});
        store(table + d, load(table + d) + all);
    }
}

template <class Bias>
constexpr bool kMultiplies = false;

// The score of content x and a bias of `value`.
template <class Bias>
inline V joined(V x, V value) {
    return kMultiplies<Bias> ? x * value : x + value;
}

struct None {
    struct Column {};
    None(const Problem &, float *) {}
    void enter(const Pair &) {}
    Column column(int64_t) { return {}; }
    V value(Column &, int64_t) { return V{}; }
    void learn(Column &, int64_t, V) {}
    void finish(Column &) {}
    void leave(const Pair &, const float *, int64_t) {}
};

// B_ij = table[distance].
struct Toeplitz {
    struct Column {
        const float *at;
    };
    const float *table = nullptr;

    Toeplitz(const Problem &, float *) {}
    void enter(const Pair &pair) {
        table = pair.p.table + pair.head * pair.p.table_length - pair.p.table_low + pair.gap();
    }
    Column column(int64_t i) { return {table + i}; }
    V value(Column &c, int64_t j) { return load(c.at - j); }
    void learn(Column &, int64_t, V) {}
    void finish(Column &) {}
    void leave(const Pair &pair, const float *ds, int64_t ld) {
        const Problem &p = pair.p;
        if (!p.d_table) return;
        float *to = p.d_table + pair.of_part() * p.table_length - p.table_low + pair.gap();
        add_diagonals(ds, ld, pair.k.count, pair.q.count, pair.band(), to);
    }
};

// S_ij = A_ij table[distance].
struct Factor : Toeplitz {
    struct Column {
        const float *at;
        int64_t i;
    };
    float *by_table;  // [key, query] like ds: the gradients of table entries

    // scratch: a tile of by_table; not used in the forward pass.
    Factor(const Problem &p, float *scratch) : Toeplitz(p, scratch), by_table(scratch + W) {}
    Column column(int64_t i) { return {table + i, i}; }
    V value(Column &c, int64_t j) { return load(c.at - j); }
    void learn(Column &c, int64_t j, V dv) { store(by_table + j * kLd + c.i, dv); }
    void finish(Column &) {}
    void leave(const Pair &pair, const float *, int64_t) {
        int64_t end = rounded_up(pair.q.count, W);
        for (int64_t j = 0; j < pair.k.count; j++) store(by_table + j * kLd + end, V{});
        Toeplitz::leave(pair, by_table, kLd);
    }
};
template <>
constexpr bool kMultiplies<Factor> = true;

// B_ij = weight_i (row_i - col_j), running sums in double. They are taken relative to the tile's
// first row and split into two floats, so that a difference is rounded once and never its terms.
// The gradients of row and col cancel in sums over tokens, so both are exact sums of the same
// numbers, in double.
struct Slope {
    struct Column {
        int64_t i;
        V weight, row, row_low, gap;
        V sum_gap;
        Wide sum;
    };
    double wide[kQueryTile + 2 * W];  // the weights again
    float weight[kQueryTile + 2 * W], row[kQueryTile + 2 * W], row_low[kQueryTile + 2 * W];
    float col[kKeyTile], col_low[kKeyTile];
    int64_t base = 0;   // of the tile's first query in the gradients' arrays
    int64_t count = 0;  // queries in the tile
    const Problem &p;

    Slope(const Problem &problem, float *) : p(problem) {}
    static void split(double x, float &high, float &low) {
        high = (float)x;
        low = (float)(x - high);
    }
    void enter(const Pair &pair) {
        int64_t h = pair.head, t = p.queries, s = p.keys;
        const double *rows = p.row + pair.row * p.row_stride + h * t + pair.q.start;
        const double *cols = p.col + pair.row * p.col_stride + h * s + pair.k.start;
        count = pair.q.count;
        for (int64_t i = 0; i < count + W; i++) {
            split(i < count ? rows[i] - rows[0] : 0, row[i], row_low[i]);
            weight[i] = i < count ? 1 : 0;
        }
        if (p.weight) {
            const float *weights = p.weight + pair.row * p.weight_stride + h * t + pair.q.start;
            memcpy(weight, weights, count * sizeof(float));
        }
        for (int64_t i = 0; i < count + W; i++) wide[i] = weight[i];
        for (int64_t j = 0; j < pair.k.count; j++) split(cols[j] - rows[0], col[j], col_low[j]);
        base = pair.of_head() * t + pair.q.start;
    }
    Column column(int64_t i) {
        return {i, load(weight + i), load(row + i), load(row_low + i), V{}, V{}, Wide{}};
    }
    V value(Column &c, int64_t j) {
        c.gap = (c.row - splat(col[j])) + (c.row_low - splat(col_low[j]));
        return c.weight * c.gap;
    }
    void learn(Column &c, int64_t, V ds) {
        c.sum.add(widen(ds));
        c.sum_gap = fma(ds, c.gap, c.sum_gap);
    }
    void finish(Column &c) {
        int64_t last = smaller(c.i + W, count) - c.i;
        for (int64_t l = 0; l < last; l++) {
            if (p.d_weight) p.d_weight[base + c.i + l] += c.sum_gap[l];
            p.d_row[base + c.i + l] += (double)c.weight[l] * c.sum[l];
        }
    }
    void leave(const Pair &pair, const float *ds, int64_t ld) {
        double *to = p.d_col + pair.of_part() * p.keys + pair.k.start;
        for (int64_t j = 0; j < pair.k.count; j++) {
            int64_t first = clamp(j - pair.band().high, 0, count) / W * W;
            int64_t last = clamp(j - pair.band().low + 1, 0, count);
            Wide total = Wide{};
            for (int64_t i = first; i < last; i += W)
                total.add(widen(load(ds + j * ld + i)), wide + i);
            to[j] -= sum(total);
        }
    }
};

// FIRE exactly. A perceptron of one input with (leaky) rectifiers is linear between its knots, so
// B_ij = slope_m u + offset_m with u = near[distance] / far_i, m the piece that u falls into.
// Neighbouring u mostly share a piece: that case is two comparisons and one multiply-add.
struct Pieces {
    struct Column {
        int64_t i, piece, top;  // lanes lie in pieces piece ... top
        V scale, near, u, slope, offset, low, high;
        V sum_slope, sum_offset, sum_scale;  // over keys; the first two for `piece` alone
    };
    const Problem &p;
    const float *near = nullptr, *slopes = nullptr, *offsets = nullptr;
    float scale[kQueryTile + 2 * W];
    float *by_slope, *by_offset;  // [pieces, W] sums over everything seen in this head
    float *by_near;               // like ds: gradients by distance
    int64_t base = 0, count = 0;

    // scratch: 2 pieces W floats, then a tile like that of ds.
    Pieces(const Problem &problem, float *scratch)
        : p(problem),
          by_slope(scratch),
          by_offset(scratch + problem.pieces * W),
          by_near(scratch + 2 * problem.pieces * W + W) {
        memset(scratch, 0, 2 * problem.pieces * W * sizeof(float));
    }

    void enter(const Pair &pair) {
        near = p.table - p.table_low + pair.gap();
        slopes = p.slopes + pair.head * p.pieces;
        offsets = p.offsets + pair.head * p.pieces;
        const float *from = p.weight + pair.row * p.weight_stride + pair.q.start;
        count = pair.q.count;
        for (int64_t i = 0; i < count + W; i++) scale[i] = from[smaller(i, count - 1)];
        base = pair.of_head() * p.queries + pair.q.start;
    }
    Column column(int64_t i) {
        Column c{};
        c.i = i;
        c.scale = load(scale + i);
        set_piece(c, 0);
        return c;
    }
    // All lanes lie in one piece from here on, until they do not.
    void set_piece(Column &c, int64_t piece) {
        c.piece = c.top = piece;
        c.slope = splat(slopes[piece]);
        c.offset = splat(offsets[piece]);
        c.low = splat(piece > 0 ? p.knots[piece - 1] : -INFINITY);
        c.high = splat(piece + 1 < p.pieces ? p.knots[piece] : INFINITY);
    }
    V value(Column &c, int64_t j) {
        c.near = load(near + c.i - j);
        c.u = c.near * c.scale;
        if (c.top > c.piece || any((Lanes)(c.u < c.low) | (Lanes)(c.u >= c.high))) move(c);
        return fma(c.slope, c.u, c.offset);
    }
    // Finds the pieces that the lanes lie in.
    void move(Column &c) {
        flush(c);
        int64_t m = c.piece;
        while (m > 0 && any((Lanes)(c.u < splat(p.knots[m - 1])))) m--;
        while (m + 1 < p.pieces && !any((Lanes)(c.u < splat(p.knots[m])))) m++;
        set_piece(c, m);
        while (c.top + 1 < p.pieces) {
            Lanes above = (Lanes)(c.u >= splat(p.knots[c.top]));
            if (!any(above)) break;
            c.top++;
            c.slope = choose(above, splat(slopes[c.top]), c.slope);
            c.offset = choose(above, splat(offsets[c.top]), c.offset);
        }
    }
    void flush(Column &c) {
        float *a = by_slope + c.piece * W, *b = by_offset + c.piece * W;
        store(a, load(a) + c.sum_slope);
        store(b, load(b) + c.sum_offset);
        c.sum_slope = c.sum_offset = V{};
    }
    void learn(Column &c, int64_t j, V ds) {
        V through = ds * c.slope;
        c.sum_scale = fma(through, c.near, c.sum_scale);
        store(by_near + j * kLd + c.i, through * c.scale);
        if (c.top == c.piece) {
            c.sum_slope = fma(ds, c.u, c.sum_slope);
            c.sum_offset += ds;
            return;
        }
        for (int64_t m = c.piece; m <= c.top; m++) {
            Lanes in = bits(V{}) - 1;
            if (m > c.piece) in &= (Lanes)(c.u >= splat(p.knots[m - 1]));
            if (m < c.top) in &= (Lanes)(c.u < splat(p.knots[m]));
            V part = choose(in, ds, V{});
            float *a = by_slope + m * W, *b = by_offset + m * W;
            store(a, fma(part, c.u, load(a)));
            store(b, load(b) + part);
        }
    }
    void finish(Column &c) {
        flush(c);
        int64_t last = smaller(c.i + W, count) - c.i;
        if (p.d_weight)
            for (int64_t l = 0; l < last; l++) p.d_weight[base + c.i + l] += c.sum_scale[l];
    }
    void leave(const Pair &pair, const float *, int64_t) {
        if (p.d_table) {
            int64_t end = rounded_up(count, W);
            for (int64_t j = 0; j < pair.k.count; j++) store(by_near + j * kLd + end, V{});
            float *to = p.d_table + pair.of_part() * p.table_length - p.table_low + pair.gap();
            add_diagonals(by_near, kLd, pair.k.count, pair.q.count, pair.band(), to);
        }
        if (p.d_slopes) {
            int64_t at = pair.of_part() * p.pieces;
            for (int64_t m = 0; m < p.pieces; m++) {
                p.d_slopes[at + m] += sum(load(by_slope + m * W));
                p.d_offsets[at + m] += sum(load(by_offset + m * W));
            }
        }
        memset(by_slope, 0, 2 * p.pieces * W * sizeof(float));
    }
};

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
