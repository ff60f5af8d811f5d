#!/bin/sh
# The native kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer, for every
# instruction set of this machine, and a small case under valgrind where that is installed.
# Builds into a folder of its own; the package's library stays as it is.
#
#     benchmarks/sanitize.sh [python]
set -eu
cd "$(dirname "$0")/.."
PYTHON=${1:-.venv/bin/python}
OUT=$(mktemp -d)
trap 'rm -rf "$OUT"' EXIT

build() {
    HEADSCAPE_CXXFLAGS="$1" "$PYTHON" setup.py --quiet build_ext --build-temp "$OUT/$2.tmp" \
        --build-lib "$OUT/$2"
    find "$OUT/$2" -name 'kernels*.so'
}

# Python builds extensions with -fwrapv, under which signed overflow is not looked for.
flags="-fno-wrapv -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
library=$(build "$flags" checked)
for set in avx512 avx2 portable; do
    echo "sanitizers: $set"
    HEADSCAPE_LIBRARY=$library HEADSCAPE_NATIVE=$set ASAN_OPTIONS=detect_leaks=0 \
        LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
        "$PYTHON" -m pytest tests/attention/test_native.py tests/attention/test_native_calls.py \
        tests/attention/test_decode.py tests/attention/test_cells.py -q -p no:cacheprovider \
        -k "not thousand and not long_sums and not registered"
done

if command -v valgrind > /dev/null; then
    echo "valgrind"
    library=$(build "-g -O1" plain)
    g++ -g -O1 -std=c++17 -I src/headscape/attention/native benchmarks/valgrind_case.cpp "$library" \
        -Wl,-rpath,"$(dirname "$library")" -o "$OUT/case"
    HEADSCAPE_NATIVE=avx2 valgrind --quiet --error-exitcode=1 --exit-on-first-error=no "$OUT/case"
fi
