// Marks the functions that the host and the kernels both compile.
#pragma once

#if defined(__CUDACC__)
#define WARPLOOM_HD __host__ __device__
#else
#define WARPLOOM_HD
#endif
