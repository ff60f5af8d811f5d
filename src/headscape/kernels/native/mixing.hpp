// DAPE and DAPEv2: attention whose scores pass through a convolution across heads and keys.
//
//     X = [A ; B], 0 where hidden        A = scale Q K^T, B the bias, h heads each
//     Z = leaky(conv1 X)                 0 left of the first key; see `Halo` for the right
//     S = A (+ B) + conv2 Z
//
// For a tile of m keys, with p = taps / 2, Z is needed on p more keys on either side and X on 2 p,
// so these are recomputed at the seams. Backward, a tile sends the gradients of its own m columns of
// S to all m + 4 p columns of X: the parts of neighbouring tiles add up, since everything is linear
// in dS once the signs of Z are known. All heads of a tile are held at once.
//
// A bias by distance is no channel of X: conv1 B depends on the distance alone, and so the caller
// hands over `fold`, the sum of conv1's bias and all taps at each distance, and every tap by itself,
// to be taken away in the few columns of Z where it falls beside the keys.
#pragma once

#include "attention.hpp"
#include "convolution.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr float kLeak = 0.01f;
constexpr int64_t kChannelGap = 16;  // a cache line after each map, see convolution.hpp

// Where a key tile's neighbourhood lies: `x` is the part of it that has keys.
struct Halo {
    int64_t p, x_rows, z_rows;          // rows of X: the tile's and 2 p on either side; of Z: p
    Tile x;                             // the keys that X covers
    int64_t x_row;                      // the row of X that holds the first of them
    int64_t z_first, z_last;            // rows of Z that are not zero by definition

    Halo(const Problem &problem, const Tile &k)
        : p(problem.taps / 2), x_rows(k.count + 4 * p), z_rows(k.count + 2 * p) {
        int64_t from = k.start - 2 * p, to = k.start + k.count + 2 * p;
        int64_t first = from > k.run_start ? from : k.run_start;
        x = {first, smaller(to, k.run_end) - first, k.position + first - k.start, k.group,
             k.run_start, k.run_end};
        x_row = first - from;
        int64_t z_from = k.start - p, z_end = problem.keys + (problem.released ? 0 : p);
        z_first = clamp(k.run_start - z_from, 0, z_rows);
        z_last = clamp(z_end - z_from, 0, z_rows);
    }
    bool leads_out(int64_t z_row, int64_t tap) const {
        return z_row + tap < x_row || z_row + tap >= x_row + x.count;
    }
    bool at_edge(int64_t z_row) const { return leads_out(z_row, 0) || leads_out(z_row, 2 * p); }
};

// The maps of one tile, see convolution.hpp. Z and S lie amid 2 p rows of room on either side; when
// their gradients have taken their place, these are zeros.
struct Maps {
    int64_t channels, size, room;
    float *x, *z, *s;
    float *spare;   // one map
    float *start;   // [hidden, kRow]
    float *points;  // [4, channels, hidden], the factors of convolve_pair

    static int64_t channel_count(const Problem &p) {
        return p.heads * (p.kind == kSlope || p.kind == kPieces ? 2 : 1);
    }
    static int64_t map_size(const Problem &p) {
        return ((kMixKeys + 6 * (p.taps / 2)) | 1) * kMapLd + kChannelGap;
    }
    static int64_t floats(const Problem &p) {
        int64_t maps = channel_count(p) + p.hidden + p.heads + 1;
        int64_t rest = p.hidden * (kRow + 4 * channel_count(p));
        return 16 + maps * map_size(p) + rounded_up(rest, 16);
    }
    Maps(const Problem &p, float *scratch)
        : channels(channel_count(p)), size(map_size(p)), room(2 * (p.taps / 2) * kMapLd) {
        x = scratch + 16;
        z = x + channels * size + room;
        s = z + p.hidden * size;
        spare = s - room + p.heads * size;
        start = spare + size;
        points = start + p.hidden * kRow;
    }
    // Zeros about the `count` rows from `rows` on, in the room that they have.
    void clear_room(float *rows, int64_t count) const {
        memset(rows - room, 0, room * sizeof(float));
        memset(rows + count * kMapLd, 0, room * sizeof(float));
    }
};

// The part of a key tile that some query sees.
inline Tile seen_part(const Problem &p, const Tile &q, Tile k) {
    if (p.causal) k.count = smaller(k.count, q.position - k.position + q.count);
    return k;
}

// The keys or values of the next head, in the place of `rows`. The cache does not fit those of all
// heads, so they are prefetched.
inline Ahead next_head(const Pair &pair, const float *rows) {
    const Problem &p = pair.p;
    if (pair.head + 1 == p.heads) return {};
    return {rows + p.keys * p.head_dim, pair.k.count * p.head_dim};
}

// Zeros where a query does not see a key.
inline void hide(const Pair &pair, float *map) {
    if (!pair.p.causal || pair.gap() >= pair.k.count - 1) return;
    for (int64_t i = 0; i < kRow; i += W) {
        Seen seen(pair, i);
        for (int64_t j = seen.rest; j < seen.end; j++) {
            float *at = map + j * kMapLd + i;
            store(at, choose(Seen::lanes(pair.band(), i, j), load(at), V{}));
        }
        for (int64_t j = seen.end; j < pair.k.count; j++) store(map + j * kMapLd + i, V{});
    }
}

// The column of `fold` for row 0 of Z and the first query.
inline int64_t fold_at(const Pair &pair, const Halo &halo) {
    return pair.gap() + halo.p - pair.p.fold_low;
}

// What row r of Z starts from, in maps.start: `fold` without the taps that lead out of the keys.
inline Start without_lost_taps(const Pair &pair, const Halo &halo, const Maps &maps, int64_t r,
                               const Start &fold) {
    const Problem &p = pair.p;
    for (int64_t o = 0; o < p.hidden; o++)
        for (int64_t i = 0; i < kRow; i += W) {
            V x = load(fold.at + o * p.fold_length + i);
            for (int64_t t = 0; t < p.taps; t++)
                if (halo.leads_out(r, t))
                    x -= load(fold.at + ((1 + t) * p.hidden + o) * p.fold_length + i);
            store(maps.start + o * kRow + i, x);
        }
    return {maps.start, kRow, 0};
}

// Z from X, rows r ... end - 1.
inline void find_hidden(const Problem &p, const Maps &maps, int64_t r, int64_t end,
                        const Start &start) {
    convolve({maps.channels, p.hidden, p.taps, p.in_weight, p.hidden}, end - r, maps.x + r * kMapLd,
             maps.size, start, maps.z + r * kMapLd, maps.points,
             [](V x, int64_t, const float *) { return larger(x * splat(kLeak), x); });
}

// Z and A + conv2 Z from X.
inline void convolve_scores(const Pair &pair, const Halo &halo, const Maps &maps) {
    const Problem &p = pair.p;
    for (int64_t o = 0; o < p.hidden; o++) {
        float *z = maps.z + o * maps.size;
        memset(z, 0, halo.z_first * kMapLd * sizeof(float));
        memset(z + halo.z_last * kMapLd, 0, (halo.z_rows - halo.z_last) * kMapLd * sizeof(float));
    }
    if (p.kind == kToeplitz) {
        const float *fold = p.fold + fold_at(pair, halo);
        for (int64_t r = halo.z_first, end; r < halo.z_last; r = end) {
            Start start{fold - r, p.fold_length, -1};
            end = r + 1;
            if (halo.at_edge(r))
                start = without_lost_taps(pair, halo, maps, r, start);
            else
                while (end < halo.z_last && !halo.at_edge(end)) end++;
            find_hidden(p, maps, r, end, start);
        }
    } else {
        for (int64_t o = 0; o < p.hidden; o++)
            for (int64_t i = 0; i < kRow; i += W)
                store(maps.start + o * kRow + i, splat(p.in_bias[o]));
        find_hidden(p, maps, halo.z_first, halo.z_last, {maps.start, kRow, 0});
    }
    convolve({p.hidden, p.heads, p.taps, p.out_weight, p.heads}, pair.k.count, maps.z, maps.size,
             {maps.x + maps.room, maps.size, kMapLd}, maps.s, maps.points,
             [&](V x, int64_t h, const float *) { return x + splat(p.out_bias[h]); });
}

// X, Z and A + conv2 Z of one pair of tiles.
template <class Bias>
inline void mix(const Pair &pair, const Halo &halo, const Maps &maps, Bias &bias,
                const float *turned) {
    const Problem &p = pair.p;
    int64_t e = p.head_dim, x_at = halo.x_row * kMapLd, after = halo.x_row + halo.x.count;
    for (int64_t c = 0; c < maps.channels; c++) {
        float *x = maps.x + c * maps.size;
        memset(x, 0, x_at * sizeof(float));
        memset(x + after * kMapLd, 0, (halo.x_rows - after) * kMapLd * sizeof(float));
    }
    for (int64_t h = 0; h < p.heads; h++) {
        Pair wide{p, pair.row, h, pair.part, pair.q, halo.x};
        float *a = maps.x + h * maps.size + x_at, *b = a + p.heads * maps.size;
        const float *key = (const float *)p.k + (wide.of_head() * p.keys + halo.x.start) * e;
        along_queries(halo.x.count, kRow, e, key, e, turned + h * e * kRow, kRow, a, kMapLd,
                      wide.band(), next_head(wide, key));
        hide(wide, a);
        if (maps.channels == p.heads) continue;
        bias.enter(wide);
        for (int64_t i = 0; i < kRow; i += W) {
            auto c = bias.column(i < pair.q.count ? i : 0);
            int64_t seen = i < pair.q.count ? Seen(wide, i).end : 0;
            for (int64_t j = 0; j < seen; j++) store(b + j * kMapLd + i, bias.value(c, j));
            for (int64_t j = seen; j < halo.x.count; j++) store(b + j * kMapLd + i, V{});
        }
        hide(wide, b);
    }
    convolve_scores(pair, halo, maps);
}

template <class Bias>
inline void mixed_forward_tile(const Problem &p, const Plan &plan, int64_t row, const Tile &q,
                               float *scratch, float *bias_scratch) {
    int64_t e = p.head_dim;
    Maps maps(p, scratch);
    const float *queries = (const float *)p.q, *values = (const float *)p.v;
    float *out = (float *)p.out, *turned = scratch + Maps::floats(p);
    float *top = turned + p.heads * e * kRow, *total = top + p.heads * kRow;
    float *factor = total + p.heads * kRow;
    for (int64_t h = 0; h < p.heads; h++) {
        int64_t at = ((row * p.heads + h) * p.queries + q.start) * e;
        transpose(queries + at, q.count, e, kRow, (float)p.scale, turned + h * e * kRow, kRow);
        memset(out + at, 0, q.count * e * sizeof(float));
    }
    for (int64_t i = 0; i < p.heads * kRow; i++) top[i] = kHidden, total[i] = 0;
    Bias bias(p, bias_scratch);
    None none(p, nullptr);
    Straight straight(p, row, 0, q);
    for (int64_t t = plan.k_begin[row]; t < plan.k_begin[row + 1]; t++) {
        if (!sees(p, q, plan.k[t])) continue;
        Tile k = seen_part(p, q, plan.k[t]);
        mix(Pair{p, row, 0, 0, q, k}, Halo(p, k), maps, bias, turned);
        for (int64_t h = 0; h < p.heads; h++) {
            Pair pair{p, row, h, 0, q, k};
            float *s = maps.s + h * maps.size;
            const float *value = values + (pair.of_head() * p.keys + k.start) * e;
            if (p.adds_bias)
                soften(pair, bias, straight, s, kMapLd, top + h * kRow, total + h * kRow, factor);
            else
                soften(pair, none, straight, s, kMapLd, top + h * kRow, total + h * kRow, factor);
            over_keys<Into::kScaleAdd>(q.count, e, k.count, s, kMapLd, value, e,
                                       out + (pair.of_head() * p.queries + q.start) * e, e, factor,
                                       pair.band(), next_head(pair, value));
        }
    }
    for (int64_t h = 0; h < p.heads; h++) {
        int64_t at = (row * p.heads + h) * p.queries + q.start;
        conclude(q.count, e, top + h * kRow, total + h * kRow, out + at * e, p.lse + at);
    }
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
