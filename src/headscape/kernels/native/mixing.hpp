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
    Unchanged unchanged(p, row, 0, q);
    for (int64_t t = plan.k_begin[row]; t < plan.k_begin[row + 1]; t++) {
        if (!sees(p, q, plan.k[t])) continue;
        Tile k = seen_part(p, q, plan.k[t]);
        mix(Pair{p, row, 0, 0, q, k}, Halo(p, k), maps, bias, turned);
        for (int64_t h = 0; h < p.heads; h++) {
            Pair pair{p, row, h, 0, q, k};
            float *s = maps.s + h * maps.size;
            const float *value = values + (pair.of_head() * p.keys + k.start) * e;
            if (p.adds_bias)
                to_weights(pair, bias, unchanged, s, kMapLd, top + h * kRow, total + h * kRow, factor);
            else
                to_weights(pair, none, unchanged, s, kMapLd, top + h * kRow, total + h * kRow, factor);
            over_keys<Into::kScaleAdd>(q.count, e, k.count, s, kMapLd, value, e,
                                       out + (pair.of_head() * p.queries + q.start) * e, e, factor,
                                       pair.band(), next_head(pair, value));
        }
    }
    for (int64_t h = 0; h < p.heads; h++) {
        int64_t at = (row * p.heads + h) * p.queries + q.start;
        normalise(q.count, e, top + h * kRow, total + h * kRow, out + at * e, p.lse + at);
    }
}

// The backward pass: gradients of q, k, v, the bias and both convolutions.

// dS of one head, in the place of S; dV on the way.
template <class Bias, bool kLearns>
inline void differentiate_mixed(const Pair &pair, const Maps &maps, Bias &bias,
                                const float *d_turned, const float *lse, const float *delta) {
    const Problem &p = pair.p;
    int64_t e = p.head_dim, m = pair.k.count;
    float *s = maps.s + pair.head * maps.size, *d = maps.spare;
    const float *value = (const float *)p.v + (pair.of_head() * p.keys + pair.k.start) * e;
    const float *d_out = (const float *)p.d_out;
    float *d_v = p.d_v + (pair.of_part() * p.keys + pair.k.start) * e;
    None none(p, nullptr);
    Unchanged unchanged(p, pair.row, pair.head, pair.q);
    along_queries(m, kRow, e, value, e, d_turned, kRow, d, kMapLd, pair.band(),
                  {d_v, m * e});
    if (p.adds_bias)
        differentiate<Bias, kLearns>(pair, bias, unchanged, s, d, kMapLd, lse, delta);
    else
        differentiate<None, false>(pair, none, unchanged, s, d, kMapLd, lse, delta);
    over_queries(m, e, pair.q.count, s, kMapLd,
                 d_out + (pair.of_head() * p.queries + pair.q.start) * e, e, d_v, e, pair.band(),
                 next_head(pair, value));
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = 0; i < kRow; i += W)
            store(s + j * kMapLd + i, i < pair.q.count ? load(d + j * kMapLd + i) : V{});
    hide(pair, s);
    maps.clear_room(s, m);
}

// From dS to dZ in the place of Z, to dX in the place of X, and to the convolutions' weights.
template <bool kLearns>
inline void unmix(const Pair &pair, const Halo &halo, const Maps &maps) {
    const Problem &p = pair.p;
    int64_t c = maps.channels, m = pair.k.count, group = pair.part * p.batch + pair.row;
    correlate({maps.s, p.heads, p.hidden * p.taps}, {maps.z, p.hidden, p.taps}, p.taps, m, maps.size,
              p.d_out_weight + group * p.heads * p.hidden * p.taps);
    add_up(p.heads, m, maps.s, maps.size, p.d_out_bias + group * p.heads);
    convolve({p.heads, p.hidden, p.taps, p.out_back, p.hidden}, halo.z_rows, maps.s - maps.room,
             maps.size, {nullptr, 0, 0}, maps.z, maps.points, [](V dz, int64_t, const float *z) {
                 return choose((Lanes)(load(z) > V{}), dz, dz * splat(kLeak));
             });
    for (int64_t o = 0; o < p.hidden; o++) {
        float *d = maps.z + o * maps.size;
        memset(d, 0, halo.z_first * kMapLd * sizeof(float));
        memset(d + halo.z_last * kMapLd, 0, (halo.z_rows - halo.z_last) * kMapLd * sizeof(float));
        maps.clear_room(d, halo.z_rows);
    }
    correlate({maps.z, p.hidden, c * p.taps}, {maps.x, c, p.taps}, p.taps, halo.z_rows, maps.size,
              p.d_in_weight + group * p.hidden * c * p.taps);
    if (p.kind == kToeplitz) {
        float *d_fold = p.d_fold + group * (1 + p.taps) * p.hidden * p.fold_length;
        d_fold += fold_at(pair, halo);
        for (int64_t o = 0; o < p.hidden; o++) {
            const float *d = maps.z + o * maps.size;
            add_diagonals(d, kMapLd, halo.z_rows, pair.q.count, {-kEverything, kEverything},
                          d_fold + o * p.fold_length);
            for (int64_t r = halo.z_first; r < halo.z_last; r++) {
                if (!halo.at_edge(r)) continue;
                for (int64_t t = 0; t < p.taps; t++) {
                    if (!halo.leads_out(r, t)) continue;
                    float *to = d_fold + ((1 + t) * p.hidden + o) * p.fold_length - r;
                    for (int64_t i = 0; i < kRow; i += W)
                        store(to + i, load(to + i) - load(d + r * kMapLd + i));
                }
            }
        }
    } else {
        add_up(p.hidden, halo.z_rows, maps.z, maps.size, p.d_in_bias + group * p.hidden);
    }
    auto plain = [](V x, int64_t, const float *) { return x; };
    convolve({p.hidden, p.heads, p.taps, p.in_back, c}, halo.x_rows, maps.z - maps.room, maps.size,
             {maps.s - maps.room, maps.size, kMapLd}, maps.x, maps.points, plain);
    if (kLearns && c > p.heads)
        convolve({p.hidden, p.heads, p.taps, p.in_back + p.heads, c}, halo.x_rows,
                 maps.z - maps.room, maps.size, {nullptr, 0, 0}, maps.x + p.heads * maps.size,
                 maps.points, plain);
}

// Gradients of one head's channels of X: to q and k, and to the bias.
template <class Bias, bool kLearns>
inline void send_back(const Pair &wide, const Halo &halo, const Maps &maps, Bias &bias) {
    const Problem &p = wide.p;
    int64_t e = p.head_dim, h = wide.head, count = wide.k.count;
    float *da = maps.x + h * maps.size + halo.x_row * kMapLd, *db = da + p.heads * maps.size;
    int64_t q_at = (wide.of_head() * p.queries + wide.q.start) * e;
    const float *key = (const float *)p.k + (wide.of_head() * p.keys + wide.k.start) * e;
    float *d_k = p.d_k + (wide.of_part() * p.keys + wide.k.start) * e;
    hide(wide, da);
    over_keys<Into::kAdd>(wide.q.count, e, count, da, kMapLd, key, e, p.d_q + q_at, e, nullptr,
                          wide.band(), {d_k, count * e});
    over_queries(count, e, wide.q.count, da, kMapLd, (const float *)p.q + q_at, e, d_k, e,
                 wide.band(), next_head(wide, key));
    if (!kLearns || maps.channels == p.heads) return;
    hide(wide, db);
    bias.enter(wide);
    for (int64_t i = 0; i < wide.q.count; i += W) {
        auto c = bias.column(i);
        int64_t seen = Seen(wide, i).end;
        for (int64_t j = 0; j < seen; j++) {
            bias.value(c, j);
            bias.learn(c, j, load(db + j * kMapLd + i));
        }
        bias.finish(c);
    }
    bias.leave(wide, db, kMapLd);
}

template <class Bias, bool kLearns>
inline void mixed_backward_tile(const Problem &p, const Plan &plan, int64_t row, int64_t part,
                                const Tile &q, float *scratch, Bias &bias) {
    int64_t e = p.head_dim;
    Maps maps(p, scratch);
    const float *queries = (const float *)p.q, *d_out = (const float *)p.d_out;
    const float *out = (const float *)p.out;
    float *turned = scratch + Maps::floats(p), *d_turned = turned + p.heads * e * kRow;
    float *lse = d_turned + p.heads * e * kRow, *delta = lse + p.heads * kRow;
    for (int64_t h = 0; h < p.heads; h++) {
        int64_t at = (row * p.heads + h) * p.queries + q.start;
        transpose(queries + at * e, q.count, e, kRow, (float)p.scale, turned + h * e * kRow, kRow);
        transpose(d_out + at * e, q.count, e, kRow, 1, d_turned + h * e * kRow, kRow);
        memset(p.d_q + at * e, 0, q.count * e * sizeof(float));
        load_lse_and_delta(p, at, q.count, kRow, d_out + at * e, out + at * e, lse + h * kRow,
               delta + h * kRow);
    }
    for (int64_t t = plan.k_begin[row]; t < plan.k_begin[row + 1]; t++) {
        if (!sees(p, q, plan.k[t])) continue;
        Tile k = seen_part(p, q, plan.k[t]);
        Halo halo(p, k);
        Pair all{p, row, 0, part, q, k};
        mix(all, halo, maps, bias, turned);
        for (int64_t h = 0; h < p.heads; h++)
            differentiate_mixed<Bias, kLearns>(Pair{p, row, h, part, q, k}, maps, bias,
                                               d_turned + h * e * kRow, lse + h * kRow,
                                               delta + h * kRow);
        unmix<kLearns>(all, halo, maps);
        for (int64_t h = 0; h < p.heads; h++)
            send_back<Bias, kLearns>(Pair{p, row, h, part, q, halo.x}, halo, maps, bias);
    }
    V by = splat((float)p.scale);
    for (int64_t h = 0; h < p.heads; h++) {
        float *d_q = p.d_q + ((row * p.heads + h) * p.queries + q.start) * e;
        for (int64_t n = 0; n < q.count * e; n += W) store(d_q + n, load(d_q + n) * by);
    }
}

template <class Bias, bool kLearns>
inline void mixed_backward_part(const Problem &p, const Plan &plan, int64_t row, int64_t part,
                                float *scratch, float *bias_scratch) {
    Bias bias(p, bias_scratch);
    int64_t size = p.heads * p.keys * p.head_dim, at = (part * p.batch + row) * size;
    memset(p.d_k + at, 0, size * sizeof(float));
    memset(p.d_v + at, 0, size * sizeof(float));
    for (int64_t t = plan.q_begin[row] + part; t < plan.q_begin[row + 1]; t += p.parts)
        mixed_backward_tile<Bias, kLearns>(p, plan, row, part, plan.q[t], scratch, bias);
    V by = splat((float)p.scale);
    for (int64_t n = 0; n < size; n += W) store(p.d_k + at + n, load(p.d_k + at + n) * by);
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
