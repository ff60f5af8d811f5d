// One query per head against all keys of a cache, which is read once and where it lies.
//
// A worker takes a head of keys (all query heads that share it, so that keys are read once) and a
// stretch of them, in blocks: scores, bias, online softmax, weighted sum of values. Stretches of one
// head are put together at the end.
#pragma once

#include "half.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr int64_t kBlock = 128;  // keys whose scores are held at once
constexpr float kNothing = -1e30f;

// scores[i] = q . k_i for W keys: sums of products by lane, then across lanes.
inline void dots(const float *q, const float *k, int64_t stride, int64_t e, int64_t count,
                 float *scores) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        V sums[4] = {V{}, V{}, V{}, V{}};
        const float *at = k + i * stride;
        for (int64_t n = 0; n < e; n += W) {
            V own = load(q + n);
#pragma GCC unroll 4
            for (int m = 0; m < 4; m++) sums[m] = fma(own, load(at + m * stride + n), sums[m]);
        }
#pragma GCC unroll 4
        for (int m = 0; m < 4; m++) scores[i + m] = sum(sums[m]);
    }
    for (; i < count; i++) {
        V all = V{};
        for (int64_t n = 0; n < e; n += W) all = fma(load(q + n), load(k + i * stride + n), all);
        scores[i] = sum(all);
    }
}

// out += sum_i p_i v_i, N vectors of it at a time.
template <int N>
inline void weigh(const float *p, const float *v, int64_t stride, int64_t count, float *out,
                  int64_t left) {
    if constexpr (N > 1)
        if (left < N) return weigh<N / 2>(p, v, stride, count, out, left);
    V sums[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) sums[n] = load(out + n * W);
    for (int64_t i = 0; i < count; i++) {
        V by = splat(p[i]);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) sums[n] = fma(by, load(v + i * stride + n * W), sums[n]);
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) store(out + n * W, sums[n]);
    if (left > N) weigh<N>(p, v + N * W, stride, count, out + N * W, left - N);
}

// One head's running state: maximum, sum, weighted sum of values.
struct Running {
    float *top, *total, *out;
};

// Bias and softmax of a block of scores that starts at key `from`; `count` is padded with zeros.
inline void block_softmax(const Decode &p, int64_t row, int64_t head, int64_t from, int64_t count,
                       float *s, const Running &state) {
    const float *bias = p.bias ? p.bias + row * p.bias_stride + head * p.bias_head + from : nullptr;
    float tau = p.temperature ? p.temperature[row * p.heads + head] : 1;
    bool sloped = p.bias_base != nullptr;
    float base = sloped ? p.bias_base[row * p.base_batch + head * p.base_head] : 0;
    float weight = 1;
    if (p.bias_weight) weight = p.bias_weight[row * p.weight_batch + head * p.weight_head];
    float cap = (float)p.softcap, now = *state.top;
    V high = splat(now);
    for (int64_t i = 0; i < count; i += W) {
        V x = load(s + i) * splat((float)p.scale);
        V added = V{};
        if (bias && i + W <= count) added = load(bias + i);
        if (bias && i + W > count)
            for (int64_t l = 0; i + l < count; l++) added[l] = bias[i + l];
        if (sloped) added = splat(weight) * (splat(base) - added);
        x = (x + added) * splat(tau);
        if (cap > 0) x = splat(cap) * hyperbolic_tangent(x * splat(1 / cap));
        if (i + W > count) x = choose((Lanes)(lane_index() < (int32_t)(count - i)), x, splat(kNothing));
        store(s + i, x);
        high = larger(x, high);
    }
    for (int64_t l = 0; l < W; l++) now = high[l] > now || high[l] != high[l] ? high[l] : now;
    V sums = V{};
    for (int64_t i = 0; i < count; i += W) {
        V x = exponential(load(s + i) - splat(now));
        store(s + i, x);
        sums += x;
    }
    float keep = expf(*state.top - now);
    *state.total = *state.total * keep + sum(sums);
    *state.top = now;
    if (keep != 1)
        for (int64_t n = 0; n < p.value_dim; n += W)
            store(state.out + n, load(state.out + n) * splat(keep));
}

// Floats of room that a worker needs besides its states.
inline int64_t decode_floats(const Decode &p) {
    int64_t share = p.heads / p.key_heads, wide = p.head_dim + p.value_dim;
    return share * (p.head_dim + kBlock + W) + (p.type == kFloat ? 0 : kBlock * wide);
}

// A stretch of keys for all heads that share them. `states` is [share, 2 + value_dim].
inline void decode_stretch(const Decode &p, int64_t row, int64_t key_head, int64_t from, int64_t to,
                           float *states, int64_t each, float *room) {
    int64_t e = p.head_dim, ev = p.value_dim, share = p.heads / p.key_heads;
    float *q = room, *s = q + share * e;
    float *k_room = s + share * (kBlock + W), *v_room = k_room + kBlock * e;
    int64_t first = key_head * share;
    const void *queries = p.q;
    for (int64_t h = 0; h < share; h++) {
        int64_t at = (row * p.heads + first + h) * e;
        if (p.type == kFloat)
            memcpy(q + h * e, (const float *)queries + at, e * sizeof(float));
        else
            widen_rows(p.type, (const uint16_t *)queries + at, e, q + h * e);
        float *own = states + h * each;
        memset(own, 0, each * sizeof(float));
        own[0] = kNothing;
    }
    for (int64_t i = from; i < to; i += kBlock) {
        int64_t count = smaller(kBlock, to - i);
        int64_t k_at = row * p.k_batch + key_head * p.k_head + i * p.k_row;
        int64_t v_at = row * p.v_batch + key_head * p.v_head + i * p.v_row;
        const float *k = (const float *)p.k + k_at, *v = (const float *)p.v + v_at;
        int64_t k_row = p.k_row, v_row = p.v_row;
        if (p.type != kFloat) {
            for (int64_t j = 0; j < count; j++) {
                widen_rows(p.type, (const uint16_t *)p.k + k_at + j * p.k_row, e, k_room + j * e);
                widen_rows(p.type, (const uint16_t *)p.v + v_at + j * p.v_row, ev, v_room + j * ev);
            }
            k = k_room, v = v_room, k_row = e, v_row = ev;
        }
        for (int64_t h = 0; h < share; h++) {
            float *scores = s + h * (kBlock + W), *own = states + h * each;
            dots(q + h * e, k, k_row, e, count, scores);
            block_softmax(p, row, first + h, i, count, scores, {own, own + 1, own + 16});
            weigh<8>(scores, v, v_row, count, own + 16, ev / W);
        }
    }
}

// The stretches of one head put together.
inline void decode_finish(const Decode &p, int64_t row, int64_t head, const float *states,
                          int64_t stretches, int64_t step, float *sums) {
    int64_t ev = p.value_dim;
    float top = p.sink ? p.sink[head] : kNothing;
    for (int64_t n = 0; n < stretches; n++) top = states[n * step] > top ? states[n * step] : top;
    float total = p.sink ? expf(p.sink[head] - top) : 0;
    memset(sums, 0, ev * sizeof(float));
    for (int64_t n = 0; n < stretches; n++) {
        const float *own = states + n * step;
        float by = expf(own[0] - top);
        total += by * own[1];
        for (int64_t i = 0; i < ev; i++) sums[i] += by * own[16 + i];
    }
    for (int64_t i = 0; i < ev; i++) sums[i] /= total;
    int64_t at = (row * p.heads + head) * ev;
    if (p.type == kFloat)
        memcpy((float *)p.out + at, sums, ev * sizeof(float));
    else
        narrow_rows(p.type, sums, ev, (uint16_t *)p.out + at);
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
