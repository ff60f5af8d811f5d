// The kernels for AVX2; built with the flags that setup.py names for this file.
#if defined(__AVX2__)
#define HEADSCAPE_ISA avx2
#include "kernel.hpp"
#endif
