// bfloat16 and float16 in memory, float in the kernels: rows are converted a tile at a time.
#pragma once

#include "problem.hpp"
#include "simd.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

inline float from_word(uint32_t word) {
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}
inline uint32_t to_word(float x) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

// A bfloat16 is the upper half of a float, rounded to even; what is not a number stays so.
inline uint16_t to_bfloat16(float x) {
    uint32_t word = to_word(x);
    if (x != x) return (uint16_t)(word >> 16 | 64);
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

inline float from_float16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return from_word(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400) return from_word(sign | ((rest << 13) + (112u << 23)));
    float small = (float)rest * 0x1p-24f;  // a denormal number, exactly
    return sign ? -small : small;
}
inline uint16_t to_float16(float x) {
    uint32_t word = to_word(x), sign = word >> 16 & 0x8000, rest = word & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // rounds to infinity
    if (rest >= 0x38800000) return (uint16_t)(sign | (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13);
    // Adding 1/2 leaves the denormal number, rounded, in the lowest bits.
    return (uint16_t)(sign | (to_word(from_word(rest) + 0.5f) - 0x3f000000));
}

// `count` numbers, a multiple of W, from memory of type `type`.
inline void widen_rows(int64_t type, const uint16_t *from, int64_t count, float *to) {
    if (type == kBfloat16) {
        for (int64_t n = 0; n < count; n++) to[n] = from_word((uint32_t)from[n] << 16);
        return;
    }
#if defined(__AVX512F__)
    for (int64_t n = 0; n < count; n += W)
        store(to + n, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + n))));
#elif defined(__F16C__)
    for (int64_t n = 0; n < count; n += W)
        store(to + n, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + n))));
#else
    for (int64_t n = 0; n < count; n++) to[n] = from_float16(from[n]);
#endif
}
inline void narrow_rows(int64_t type, const float *from, int64_t count, uint16_t *to) {
    if (type == kBfloat16) {
        for (int64_t n = 0; n < count; n++) to[n] = to_bfloat16(from[n]);
        return;
    }
#if defined(__AVX512F__)
    for (int64_t n = 0; n < count; n += W)
        _mm256_storeu_si256((__m256i *)(to + n), _mm512_cvtps_ph(load(from + n), 0));
#elif defined(__F16C__)
    for (int64_t n = 0; n < count; n += W)
        _mm_storeu_si128((__m128i *)(to + n), _mm256_cvtps_ph(load(from + n), 0));
#else
    for (int64_t n = 0; n < count; n++) to[n] = to_float16(from[n]);
#endif
}

// `count` numbers from number `at` of a tensor on: where they are, or converted in `room`.
inline const float *rows_of(const Problem &p, const void *all, int64_t at, int64_t count,
                            float *room) {
    if (p.type == kFloat) return (const float *)all + at;
    widen_rows(p.type, (const uint16_t *)all + at, count, room);
    return room;
}

// Where the rows of one tile are, in elements: the first at `at`, each `stride` after the one before
// and `width` long.
struct Rows {
    int64_t at, stride, count, width;
    // The rows of q, and of a tensor with one row of `width` elements per query (out, d_out, d_q).
    static Rows of_q(const Problem &p, int64_t row, int64_t head, const Tile &q) {
        return {row * p.q_batch + head * p.q_head + q.start * p.q_row, p.q_row, q.count, p.head_dim};
    }
    static Rows per_query(const Problem &p, int64_t row, int64_t head, const Tile &q,
                          int64_t width) {
        int64_t token = row * p.queries + q.start, by_head = (row * p.heads + head) * p.queries;
        if (p.by_token)
            return {(token * p.heads + head) * width, p.heads * width, q.count, width};
        return {(by_head + q.start) * width, width, q.count, width};
    }
    bool dense(const Problem &p) const { return p.type == kFloat && stride == width; }
    // The rows as one contiguous array: in place if they are one, otherwise copied to `room`.
    const float *gather(const Problem &p, const void *all, float *room) const {
        if (dense(p)) return (const float *)all + at;
        for (int64_t i = 0; i < count; i++) {
            if (p.type == kFloat)
                memcpy(room + i * width, (const float *)all + at + i * stride, width * sizeof(float));
            else
                widen_rows(p.type, (const uint16_t *)all + at + i * stride, width, room + i * width);
        }
        return room;
    }
    void scatter(const float *from, float *all) const {
        for (int64_t i = 0; i < count; i++)
            memcpy(all + at + i * stride, from + i * width, width * sizeof(float));
    }
    void scatter(const Problem &p, const float *from, void *all) const {
        if (p.type == kFloat) return scatter(from, (float *)all);
        for (int64_t i = 0; i < count; i++)
            narrow_rows(p.type, from + i * width, width, (uint16_t *)all + at + i * stride);
    }
};

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
