// The descriptor of a tensor in global memory that TMA instructions take (PTX ISA, "Tensor-map"). The host encodes it
// (src/gpu/tensor_map.h); a kernel takes it by value, in a __grid_constant__ parameter.
#pragma once

namespace warploom::ptx {

struct alignas(64) TensorMap {
  unsigned long long opaque[16] = {};
};

static_assert(sizeof(TensorMap) == 128);

}  // namespace warploom::ptx
