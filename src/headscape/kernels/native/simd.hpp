// One vector of floats, and the dozen operations that the kernels are written in.
//
// `V` holds W floats: 16 with AVX-512, 8 with AVX2, 4 otherwise (NEON on ARM and SSE2 come out of
// the compiler's portable vector type). V is a compiler vector in all three cases, so + - * work on
// it as written. Each file kernel_*.cpp defines HEADSCAPE_ISA and includes everything once, inside a
// namespace of that name; only C functions and no inline library templates are used there, because
// the linker could otherwise keep the AVX-512 copy of a shared template for all machines.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace headscape {
namespace HEADSCAPE_ISA {

// The block of a product that is kept in registers: kMicroRows rows of kMicroVectors vectors.
#if defined(__AVX512F__)
constexpr int64_t W = 16;
constexpr int kMicroRows = 6, kMicroVectors = 4;
typedef __m512 V;
#elif defined(__AVX2__)
constexpr int64_t W = 8;
constexpr int kMicroRows = 6, kMicroVectors = 2;
typedef __m256 V;
#elif defined(__aarch64__)
constexpr int64_t W = 4;
constexpr int kMicroRows = 6, kMicroVectors = 4;
typedef float V __attribute__((vector_size(16)));
#else
constexpr int64_t W = 4;
constexpr int kMicroRows = 4, kMicroVectors = 2;
typedef float V __attribute__((vector_size(16)));
#endif
typedef int32_t Lanes __attribute__((vector_size(W * 4)));
typedef uint32_t Bits __attribute__((vector_size(W * 4)));
typedef double Doubles __attribute__((vector_size(W * 4)));

inline V load(const float *p) {
    V v;
    memcpy(&v, p, sizeof(V));
    return v;
}
inline void store(float *p, V v) { memcpy(p, &v, sizeof(V)); }
inline V splat(float x) {
#if defined(__AVX512F__)
    return _mm512_set1_ps(x);
#elif defined(__AVX2__)
    return _mm256_set1_ps(x);
#else
    return V{x, x, x, x};
#endif
}
// Asks for M rows of N vectors, which lie beyond the first cache, before they are wanted.
template <int M, int N>
inline void fetch(const float *p, int64_t ld) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n += (W < 16 ? 16 / W : 1)) __builtin_prefetch(p + m * ld + n * W);
}
inline Lanes bits(V v) { return (Lanes)v; }
inline V from_bits(Lanes v) { return (V)v; }

// a b + c, rounded once where the machine can.
inline V fma(V a, V b, V c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

// The larger of both; b where either is not a number.
inline V larger(V a, V b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    Lanes m = a > b;
    return from_bits((bits(a) & m) | (bits(b) & ~m));
#endif
}

// yes where mask is all ones, no where it is all zeros.
inline V choose(Lanes mask, V yes, V no) {
    return from_bits((bits(yes) & mask) | (bits(no) & ~mask));
}

// x[from[l]] in lane l; only the low bits of `from` count.
inline V permute(V x, Lanes from) {
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps((__m512i)from, x);
#elif defined(__AVX2__)
    return _mm256_permutevar8x32_ps(x, (__m256i)from);
#else
    V found;
    for (int64_t l = 0; l < W; l++) found[l] = x[from[l] & (W - 1)];
    return found;
#endif
}

inline bool any(Lanes mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    int32_t seen = 0;
    for (int64_t l = 0; l < W; l++) seen |= mask[l];
    return seen != 0;
#endif
}

inline float sum(V v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(v);
#elif defined(__AVX2__)
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
#else
    float s = 0;
    for (int64_t l = 0; l < W; l++) s += v[l];
    return s;
#endif
}

// W numbers in double, for sums that must cancel: two registers, because the compiler takes a vector
// that is wider than a register apart number by number.
struct Wide {
    Doubles low{}, high{};
    double operator[](int64_t l) const { return l < W / 2 ? low[l] : high[l - W / 2]; }
    void add(Wide x) { low += x.low, high += x.high; }
    void add(Wide x, const double *by) {
        Doubles a, b;
        memcpy(&a, by, sizeof a);
        memcpy(&b, by + W / 2, sizeof b);
        low += a * x.low, high += b * x.high;
    }
};

inline Wide widen(V v) {
#if defined(__AVX512F__)
    return {_mm512_cvtps_pd(_mm512_castps512_ps256(v)),
            _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))};
#elif defined(__AVX2__)
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(v)),
            _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
#else
    Wide w;
    for (int64_t l = 0; l < W / 2; l++) w.low[l] = v[l], w.high[l] = v[l + W / 2];
    return w;
#endif
}

inline double sum(Wide v) {
    Doubles both = v.low + v.high;
    double s = 0;
    for (int64_t l = 0; l < W / 2; l++) s += both[l];
    return s;
}

// 0, 1, 2 ... W - 1.
inline Lanes lane_index() {
    Lanes v;
    for (int32_t l = 0; l < W; l++) v[l] = l;
    return v;
}

// v, but 0 where x is below limit.
inline V zero_below(V x, float limit, V v) {
#if defined(__AVX512F__)
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, splat(limit), _CMP_NLT_UQ), v);
#else
    return from_bits(bits(v) & ~(Lanes)(x < splat(limit)));
#endif
}

// e^x for x <= 0 or a little above: 2^n times a polynomial in the remainder, relative error 1e-7.
// n is rounded by adding 1.5 * 2^23, which leaves it in the low bits, ready for the exponent.
// That is done on unsigned numbers, which may wrap: hidden scores lie far outside the range.
// Below -64 the result is 0: such a weight is lost beside one of 1, and products with anything
// smaller would be denormal numbers, which are slow. What is not a number stays so.
inline V exponential(V x) {
    V shifted = fma(x, splat(1.44269504f), splat(12582912.0f));
    V n = shifted - splat(12582912.0f);
    V r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    V p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p * r, r, r + splat(1.0f));
    Bits scaled = (Bits)p + ((Bits)shifted << 23);
    return zero_below(x, -64.0f, (V)scaled);
}

// tanh x by a quotient of polynomials in x^2, fitted to a relative error of 2e-8 up to 9, where it is
// 1 in float. If no lane exceeds 0.6, as with scores far below their cap, one polynomial is enough: its
// relative error is 3e-9.
inline V hyperbolic_tangent(V x) {
    V t = x * x;
    if (!any((Lanes)(t > splat(0.36f)))) {
        V p = fma(splat(-5.90586297e-3f), t, splat(2.08053800e-2f));
        p = fma(p, t, splat(-5.37866823e-2f));
        p = fma(p, t, splat(1.33319582e-1f));
        p = fma(p, t, splat(-3.33332993e-1f));
        return fma(p * t, x, x);
    }
    x = larger(splat(-9.0f), V{} - larger(splat(-9.0f), V{} - x));
    t = x * x;
    V p = fma(splat(1.33374645e-8f), t, splat(2.05967553e-5f));
    p = fma(p, t, splat(3.49484198e-3f));
    p = fma(p, t, splat(1.33803979e-1f));
    p = fma(p * t, x, x);
    V q = fma(splat(7.76954607e-7f), t, splat(3.28441267e-4f));
    q = fma(q, t, splat(2.58741453e-2f));
    q = fma(q, t, splat(4.67137128e-1f));
    q = fma(q, t, splat(1.0f));
    return p / q;
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}
inline int64_t rounded_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
