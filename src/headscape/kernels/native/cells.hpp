// The scores of a sequence reduced to a grid of cells: sum, least and greatest of each quantity.
//
//     content   scale q . k before rotation        final     what the softmax takes
//     bias      what position adds                 weights   exp(final - lse), lse from a forward pass,
//                                                            or parts of a stick
//
// A worker owns whole cells of queries, so that nobody else adds to them. A tile is first reduced
// over the keys of a cell, queries along the lanes, then over the queries of a cell. Sums of a tile
// are float, those of a cell double.
#pragma once

#include "mixing.hpp"
#include "sticks.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr int kQuantities = 4;

struct Tally {
    float sum[kQueryTile + 2 * W], least[kQueryTile + 2 * W], greatest[kQueryTile + 2 * W];
};

// Running sum, minimum and maximum of W lanes.
struct Lane {
    V sum = V{}, least = splat(INFINITY), greatest = splat(-INFINITY);
    void add(V x) {
        sum += x;
        least = V{} - larger(V{} - x, V{} - least);
        greatest = larger(x, greatest);
    }
    void add(V x, Lanes lanes) {
        sum += choose(lanes, x, V{});
        least = V{} - larger(choose(lanes, V{} - x, splat(-INFINITY)), V{} - least);
        greatest = larger(choose(lanes, x, splat(-INFINITY)), greatest);
    }
    void put(Tally &to, int64_t i) const {
        store(to.sum + i, sum);
        store(to.least + i, least);
        store(to.greatest + i, greatest);
    }
};

// The cell that token `at` is in.
inline int64_t cell_of(const Cells &c, int64_t at) {
    int64_t cell = at * c.cells / c.edges[c.cells];
    while (c.edges[cell] > at) cell--;
    while (c.edges[cell + 1] <= at) cell++;
    return cell;
}

// Adds a tile's tallies, one per query, to the cells of its queries and key cell `b`.
inline void add_to_cells(const Pair &pair, const Cells &c, int64_t b, const Tally *tallies) {
    int64_t from = pair.q.start, end = from + pair.q.count;
    for (int64_t a = cell_of(c, from); a < c.cells && c.edges[a] < end; a++)
        for (int q = 0; q < kQuantities; q++) {
            int64_t at = ((q * pair.p.heads + pair.head) * c.cells + a) * c.cells + b;
            const Tally &own = tallies[q];
            double sum = c.sum[at];
            float least = c.least[at], greatest = c.greatest[at];
            int64_t last = smaller(c.edges[a + 1], end) - from;
            for (int64_t i = greater(c.edges[a] - from, 0); i < last; i++) {
                sum += own.sum[i];
                least = own.least[i] < least ? own.least[i] : least;
                greatest = own.greatest[i] > greatest ? own.greatest[i] : greatest;
            }
            c.sum[at] = sum, c.least[at] = least, c.greatest[at] = greatest;
        }
}

// One pair of tiles; s holds the scores without what `bias` adds, `content` those before rotation.
// weight(i, j, final) returns the weights of key j for queries i ... i + W - 1.
template <class Bias, class Transform, class Weight>
inline void tally(const Pair &pair, const Cells &cells, Bias &bias, const Transform &transform, const float *s,
                  const float *content, int64_t ld, const Weight &weight, Tally *tallies) {
    bias.enter(pair);
    Band band = pair.band();
    int64_t start = pair.k.start, end = start + pair.k.count;
    for (int64_t b = cell_of(cells, start); b < cells.cells && cells.edges[b] < end; b++) {
        int64_t top = greater(cells.edges[b] - start, 0), bottom = smaller(cells.edges[b + 1], end) - start;
        for (int64_t i = 0; i < pair.q.count; i += W) {
            Seen seen(pair, i);
            auto c = bias.column(i);
            auto column = transform.column(i);
            Lane found[kQuantities];
            auto visit = [&](int64_t j, auto add) {
                V plain = load(content + j * ld + i), added = bias.value(c, j);
                V final = column.apply(joined<Bias>(load(s + j * ld + i), added));
                add(found[0], plain);
                add(found[1], cells.additive ? added : final - plain);
                add(found[2], final);
                add(found[3], weight(i, j, final));
            };
            for (int64_t j = clamp(seen.first, top, bottom); j < clamp(seen.end, top, bottom); j++) {
                if (j >= seen.whole && j < seen.rest) {
                    visit(j, [](Lane &to, V x) { to.add(x); });
                } else {
                    Lanes lanes = Seen::lanes(band, i, j);
                    visit(j, [&](Lane &to, V x) { to.add(x, lanes); });
                }
            }
            for (int q = 0; q < kQuantities; q++) found[q].put(tallies[q], i);
        }
        add_to_cells(pair, cells, b, tallies);
    }
}

// The weights of a softmax whose denominators are known.
struct SoftmaxWeights {
    const float *lse;
    V operator()(int64_t i, int64_t, V final) const { return exponential(final - load(lse + i)); }
};

inline int64_t cells_floats(const Problem &p) {
    return kQuantities * (sizeof(Tally) / sizeof(float)) + (p.sticks ? 3 : 2) * kScores +
           (2 * p.head_dim + 1) * kQueryTile + RelativeCurves::floats(p);
}

// The set-up of one query tile of one head: its scratch, and its queries transposed.
struct CellTile {
    const Problem &p;
    const Cells &cells;
    const Tile &q;
    int64_t e, padded, at;
    Tally *tallies;
    float *s, *content, *turned, *raw;

    CellTile(const Problem &problem, const Cells &c, int64_t head, const Tile &q_, Room &room)
        : p(problem), cells(c), q(q_), e(p.head_dim), padded(rounded_up(q.count, W)),
          at(head * p.queries + q.start) {
        tallies = (Tally *)room.take(kQuantities * (sizeof(Tally) / sizeof(float)));
        s = room.take(kScores) + W, content = room.take(kScores) + W;
        turned = room.take(e * kQueryTile), raw = room.take(e * kQueryTile);
        transpose((const float *)p.q + at * e, q.count, e, padded, (float)p.scale, turned, kQueryTile);
        if (cells.raw_q)
            transpose(cells.raw_q + at * e, q.count, e, padded, (float)p.scale, raw, kQueryTile);
    }
    // Writes the scores of a key tile to `s` and, if there are any, those before rotation to `content`.
    void score(const Pair &pair) const {
        int64_t from = (pair.of_keys() * p.keys + pair.k.start) * e, count = pair.k.count;
        Band band = pair.band();
        along_queries(count, padded, e, (const float *)p.k + from, e, turned, kQueryTile, s, kLd, band);
        if (cells.raw_q)
            along_queries(count, padded, e, cells.raw_k + from, e, raw, kQueryTile, content, kLd, band);
    }
};

// One query tile of one head.
template <class Bias, class Transform>
inline void cells_tile(const Problem &p, const Cells &cells, const Plan &plan, int64_t head,
                       const Tile &q, float *scratch, float *bias_scratch) {
    Room room{scratch};
    CellTile tile(p, cells, head, q, room);
    float *lse = room.take(kQueryTile);
    RelativeCurves sheared(p, 0, head, q, tile.padded, reach_of(p, plan, 0, q), room, false);
    for (int64_t i = 0; i < tile.padded; i++) lse[i] = i < q.count ? p.lse[tile.at + i] : -kHidden;
    Bias bias(p, bias_scratch);
    Transform transform(p, 0, head, q);
    for (int64_t t = plan.k_begin[0]; t < plan.k_begin[1]; t++) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, 0, head, 0, q, k};
        tile.score(pair);
        if (!cells.raw_q && p.r) memcpy(tile.content - W, tile.s - W, kScores * sizeof(float));
        sheared.add(pair, tile.padded, tile.s);
        tally(pair, cells, bias, transform, tile.s, cells.raw_q || p.r ? tile.content : tile.s, kLd,
              SoftmaxWeights{lse}, tile.tallies);
    }
}

// One query tile of one head whose weights break a stick; p.lse is what is left.
template <class Transform>
inline void sticks_cells_tile(const Problem &p, const Cells &cells, const Plan &plan, int64_t head,
                              const Tile &q, float *scratch) {
    Room room{scratch};
    CellTile tile(p, cells, head, q, room);
    float *weights = room.take(kScores) + W;
    None none(p, nullptr);
    Transform transform(p, 0, head, q);
    Sticks sticks(p, plan, 0, head, q);
    for (int64_t t = plan.k_begin[1] - 1; t >= plan.k_begin[0]; t--) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, 0, head, 0, q, k};
        tile.score(pair);
        memcpy(weights - W, tile.s - W, kScores * sizeof(float));
        sticks.weigh(pair, transform, weights);
        for (int64_t i = 0; p.keeps_rest && i < q.count; i++)
            if (sticks.own[i] >= k.start && sticks.own[i] < k.start + k.count)
                weights[(sticks.own[i] - k.start) * kLd + i] += p.lse[tile.at + i];
        auto weight = [&](int64_t i, int64_t j, V) { return load(weights + j * kLd + i); };
        tally(pair, cells, none, transform, tile.s, cells.raw_q ? tile.content : tile.s, kLd, weight,
              tile.tallies);
    }
}

inline int64_t mixed_cells_floats(const Problem &p) {
    return kQuantities * (sizeof(Tally) / sizeof(float)) + Maps::floats(p) +
           p.heads * kRow * (2 * p.head_dim + 1);
}

// One query tile, all heads.
template <class Bias>
inline void mixed_cells_tile(const Problem &p, const Cells &cells, const Plan &plan, const Tile &q,
                             float *scratch, float *bias_scratch) {
    int64_t e = p.head_dim;
    Maps maps(p, scratch);
    Room room{scratch + Maps::floats(p)};
    Tally *tallies = (Tally *)room.take(kQuantities * (sizeof(Tally) / sizeof(float)));
    float *turned = room.take(p.heads * e * kRow), *raw = room.take(p.heads * e * kRow);
    float *lse = room.take(p.heads * kRow);
    for (int64_t h = 0; h < p.heads; h++) {
        int64_t at = h * p.queries + q.start;
        transpose((const float *)p.q + at * e, q.count, e, kRow, (float)p.scale,
                  turned + h * e * kRow, kRow);
        if (cells.raw_q)
            transpose(cells.raw_q + at * e, q.count, e, kRow, (float)p.scale, raw + h * e * kRow,
                      kRow);
        for (int64_t i = 0; i < kRow; i++)
            lse[h * kRow + i] = i < q.count ? p.lse[at + i] : -kHidden;
    }
    Bias bias(p, bias_scratch);
    None none(p, nullptr);
    Unchanged unchanged(p, 0, 0, q);
    for (int64_t t = plan.k_begin[0]; t < plan.k_begin[1]; t++) {
        if (!sees(p, q, plan.k[t])) continue;
        Tile k = seen_part(p, q, plan.k[t]);
        mix(Pair{p, 0, 0, 0, q, k}, Halo(p, k), maps, bias, turned);
        for (int64_t h = 0; h < p.heads; h++) {
            Pair pair{p, 0, h, 0, q, k};
            const float *s = maps.s + h * maps.size, *content = maps.x + h * maps.size + maps.room;
            if (cells.raw_q) {
                along_queries(k.count, kRow, e, cells.raw_k + (h * p.keys + k.start) * e, e,
                              raw + h * e * kRow, kRow, maps.spare, kMapLd, pair.band());
                content = maps.spare;
            }
            SoftmaxWeights weight{lse + h * kRow};
            if (p.adds_bias)
                tally(pair, cells, bias, unchanged, s, content, kMapLd, weight, tallies);
            else
                tally(pair, cells, none, unchanged, s, content, kMapLd, weight, tallies);
        }
    }
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
