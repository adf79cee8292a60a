/* Kernels of one's own on the library's device layer (kernels/ptx, geometry, tile, pipeline), compiled like the
 * library's: by the machine's NVRTC, in about a second, kept in its cache. examples/cpp/own_pipeline is one.
 */
#ifndef WARPLOOM_KERNEL_H
#define WARPLOOM_KERNEL_H

#include <stddef.h>

#include "warploom/warploom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Compiles `source`, C++20 device code that may #include "ptx/tma.h" and whatever else lies in kernels/, and nothing
 * besides. kernel: an extern "C" __global__ function of it. architecture: "sm_90a", ...; NULL: the first GPU's. *cubin
 * gets `*bytes` bytes for cuModuleLoadData, to be released with warploom_free. Needs no GPU.
 * Errors: WARPLOOM_INVALID_VALUE for a name that is not known or an include that is not in kernels/,
 * WARPLOOM_RUNTIME_ERROR with the compiler's words, which count the lines of `source` as those of kernel.cu. */
WARPLOOM_API int warploom_compile_kernel(const char* source, const char* kernel, const char* architecture, char** cubin,
                                         size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif
