// A small call of every kind of bias, forward and backward, mixed and not: for valgrind, which
// would take minutes to start a Python with torch in it. Inputs are on the heap so that reads
// beyond them are seen.

#include <cstdio>
#include <vector>

#include "problem.hpp"

extern "C" int headscape_forward(const headscape::Problem *);
extern "C" int headscape_backward(const headscape::Problem *);

namespace {

constexpr int64_t kHeads = 2, kTokens = 150, kDim = 16, kMargin = 32, kHidden = 5, kTaps = 3;

template <class T = float>
std::vector<T> some(int64_t count) {
    std::vector<T> x(count);
    for (int64_t i = 0; i < count; i++) x[i] = static_cast<T>((i * 37 % 101) / 101.0 - 0.5);
    return x;
}

int run(int64_t kind, bool mixed) {
    using namespace headscape;
    int64_t size = kHeads * kTokens * kDim, rows = kHeads * kTokens, length = kTokens + 2 * kMargin;
    int64_t pieces = 4, channels = kHeads * (kind == kSlope || kind == kPieces ? 2 : 1);
    int64_t folded = length + 2 * kFoldMargin;
    auto q = some(size), k = some(size), v = some(size), d_out = some(size);
    std::vector<int64_t> at(kTokens);
    for (int64_t i = 0; i < kTokens; i++) at[i] = i;
    std::vector<float> out(size), lse(rows), d_q(size), d_k(size), d_v(size), d_weight(rows);
    auto table = some(kHeads * length), weight = some(rows);
    auto row = some<double>(rows), col = some<double>(rows);
    std::vector<float> knots{0.1f, 0.2f, 0.3f};
    auto slopes = some(kHeads * pieces), offsets = some(kHeads * pieces);
    std::vector<float> d_table(kHeads * length), d_slopes(kHeads * pieces), d_offsets(d_slopes);
    std::vector<double> d_row(rows), d_col(rows);
    auto in = some(channels * kTaps * kHidden), in_bias = some(kHidden);
    auto outer = some(kHidden * kTaps * kHeads), out_bias = some(kHeads);
    std::vector<double> d_in(in.size()), d_in_bias(kHidden), d_outer(outer.size()), d_ob(kHeads);
    auto fold = some((1 + kTaps) * kHidden * folded);
    std::vector<float> d_fold(fold.size());
    Problem p{};
    p.batch = 1, p.heads = kHeads, p.queries = p.keys = kTokens, p.head_dim = kDim;
    p.causal = p.threads = p.parts = 1, p.scale = 0.25, p.kind = kind;
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.q_at = p.k_at = at.data();
    p.out = out.data(), p.lse = lse.data(), p.d_out = d_out.data();
    p.d_q = d_q.data(), p.d_k = d_k.data(), p.d_v = d_v.data();
    if (kind == kToeplitz || kind == kPieces) {
        p.table = table.data(), p.table_low = -kMargin, p.table_length = length;
        p.d_table = d_table.data();
    }
    if (kind == kSlope || kind == kPieces) p.weight = weight.data(), p.d_weight = d_weight.data();
    if (kind == kSlope) p.row = row.data(), p.col = col.data();
    if (kind == kSlope) p.d_row = d_row.data(), p.d_col = d_col.data();
    if (kind == kPieces) {
        p.pieces = pieces, p.knots = knots.data();
        p.slopes = slopes.data(), p.offsets = offsets.data();
        p.d_slopes = d_slopes.data(), p.d_offsets = d_offsets.data();
    }
    if (mixed) {
        p.hidden = kHidden, p.taps = kTaps, p.adds_bias = 1;
        p.in_weight = p.in_back = in.data(), p.in_bias = in_bias.data();
        p.out_weight = p.out_back = outer.data(), p.out_bias = out_bias.data();
        p.fold = fold.data(), p.fold_low = -kMargin - kFoldMargin, p.fold_length = folded;
        p.d_fold = d_fold.data();
        p.d_in_weight = d_in.data(), p.d_in_bias = d_in_bias.data();
        p.d_out_weight = d_outer.data(), p.d_out_bias = d_ob.data();
    }
    int failed = headscape_forward(&p) || headscape_backward(&p);
    // Anything left uninitialised reaches a branch here.
    for (float x : out) failed |= !(x == x);
    for (float x : d_q) failed |= !(x == x);
    for (float x : d_k) failed |= !(x == x);
    for (float x : d_table) failed |= !(x == x);
    for (float x : d_fold) failed |= !(x == x);
    for (double x : d_col) failed |= !(x == x);
    for (double x : d_in) failed |= !(x == x);
    return failed;
}

}  // namespace

int main() {
    for (int64_t kind = 0; kind < 4; kind++)
        for (bool mixed : {false, true})
            if (run(kind, mixed)) return std::printf("kind %d failed\n", static_cast<int>(kind));
    return 0;
}
