// What this machine's processors can do at most, measured: the roofline that `bench` compares with.
#pragma once

namespace warploom::cli {

struct MachineRates {
  double flops_per_second = 0;  ///< float32 multiply-adds from registers, counted as two
  double bytes_per_second = 0;  ///< copying arrays that no cache holds, read and written bytes
};

/// Measured on `threads` threads in about a quarter of a second.
MachineRates measure_rates(int threads);

}  // namespace warploom::cli
