#include "cli/machine_rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace warploom::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int chains = 12;  // independent multiply-adds in flight: latency times units, on any processor so far
constexpr long steps = 20000;

/// Runs multiply-adds on vectors of `Lanes` floats; returns how many operations that was. Inlined into functions that
/// are compiled for one instruction set each.
template <int Lanes>
[[gnu::always_inline]] inline double multiply_adds(float seed) {
  typedef float Vector __attribute__((vector_size(Lanes * sizeof(float))));
  Vector sums[chains];
  for (int chain = 0; chain < chains; ++chain) sums[chain] = Vector{} + seed;
  const Vector factor = Vector{} + (1 - seed), term = Vector{} + seed;
  for (long step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int chain = 0; chain < chains; ++chain) sums[chain] = sums[chain] * factor + term;
  }
  for (int chain = 0; chain < chains; ++chain) asm volatile("" : : "m"(sums[chain]));
  return 2.0 * chains * Lanes * static_cast<double>(steps);
}

#if defined(__x86_64__)
[[gnu::target("avx512f,fma")]] double multiply_adds_avx512(float seed) {
  return multiply_adds<16>(seed);
}
[[gnu::target("avx2,fma")]] double multiply_adds_avx2(float seed) {
  return multiply_adds<8>(seed);
}
#endif
double multiply_adds_baseline(float seed) {
  return multiply_adds<4>(seed);
}

using MultiplyAdds = double (*)(float seed);

MultiplyAdds best_multiply_adds() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_adds_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_adds_avx2;
#endif
  return multiply_adds_baseline;
}

/// The sum of what `work(thread)` returns on every thread, by the longest time that one took.
template <typename Work>
double rate(int threads, Work work) {
  std::vector<double> amounts(static_cast<std::size_t>(threads)), seconds(static_cast<std::size_t>(threads));
  {
    std::vector<std::jthread> running;
    for (std::size_t thread = 0; thread < amounts.size(); ++thread) {
      running.emplace_back([&, thread] {
        const Clock::time_point start = Clock::now();
        amounts[thread] = work();
        seconds[thread] = std::chrono::duration<double>(Clock::now() - start).count();
      });
    }
  }
  double amount = 0;
  for (const double one : amounts) amount += one;
  return amount / *std::max_element(seconds.begin(), seconds.end());
}

}  // namespace

MachineRates measure_rates(int threads) {
  MachineRates best;
  const MultiplyAdds kernel = best_multiply_adds();
  constexpr std::size_t copied = std::size_t{64} << 20;
  for (int round = 0; round < 3; ++round) {
    best.flops_per_second = std::max(best.flops_per_second, rate(threads, [&] {
                                       double operations = 0;
                                       for (int repeat = 0; repeat < 50; ++repeat) operations += kernel(1e-3f);
                                       return operations;
                                     }));
  }
  // Memory is touched before the clock starts: fresh pages would measure the system instead.
  std::vector<std::unique_ptr<char[]>> buffers;
  for (int thread = 0; thread < 2 * threads; ++thread) {
    buffers.push_back(std::make_unique<char[]>(copied / static_cast<std::size_t>(threads)));
  }
  for (int round = 0; round < 3; ++round) {
    std::size_t next = 0;
    std::vector<std::pair<char*, char*>> pairs;
    for (; next + 1 < buffers.size(); next += 2) pairs.emplace_back(buffers[next].get(), buffers[next + 1].get());
    std::atomic<std::size_t> taken = 0;
    best.bytes_per_second = std::max(best.bytes_per_second, rate(threads, [&] {
                                       const auto [from, to] = pairs[taken++];
                                       const std::size_t size = copied / static_cast<std::size_t>(threads);
                                       std::memcpy(to, from, size);
                                       asm volatile("" : : "r"(to) : "memory");
                                       return 2.0 * static_cast<double>(size);
                                     }));
  }
  return best;
}

}  // namespace warploom::cli
