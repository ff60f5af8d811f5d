#!/bin/sh
# Debian's clang and lld; no C library. Usage: build.sh OUT.wasm
set -eu
cd "$(dirname "$0")"
exec clang --target=wasm32 -std=c11 -O3 -msimd128 -mbulk-memory -nostdlib -ffreestanding -fno-builtin -Wall -Wextra \
  -Wl,--no-entry -Wl,--strip-all -Wl,--stack-first -Wl,-z,stack-size=16384 -o "$1" kernel.c
