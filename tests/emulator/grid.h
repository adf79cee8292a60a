// A running grid: clusters of CTAs, their warps and threads, and what they wait for.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "module.h"

namespace warploom::emulator {

struct Cta;
struct Grid;

/// What keeps a thread from going on.
enum class Waits : std::uint8_t { for_nothing, for_warp, for_named_barrier, for_mbarrier, for_cluster };

struct Copy {  ///< one asynchronous copy, not yet made
  std::function<void()> make;
};

struct Thread {
  std::uint64_t* registers = nullptr;
  int pc = 0;
  int index = 0;  ///< threadIdx, flattened
  Waits waits = Waits::for_nothing;
  std::uint32_t barrier = 0;  ///< the named barrier's id, or the mbarrier's address
  std::uint32_t parity = 0;
  std::uint64_t cluster_phase = 0;  ///< of barrier.cluster: the last one it came to, from 1
  std::uint64_t last_fence = 0;     ///< when it last executed fence.proxy.async (Grid::time)
  bool exited = false;
  Warp* warp = nullptr;
  std::vector<Copy> open_copies;         ///< cp.async since the last commit
  std::deque<std::vector<Copy>> copies;  ///< committed groups of cp.async
  std::vector<Copy> open_stores;         ///< bulk stores since the last commit
  std::deque<std::vector<Copy>> stores;  ///< committed groups of bulk stores
};

struct Warp {
  Cta* cta = nullptr;
  int index = 0;
  std::array<Thread*, 32> lanes = {};
  std::uint64_t commits = 0;  ///< wgmma groups that it has closed
};

/// The wgmmas of four warps. They are one operation: none of the warps can be ahead of it.
struct Warpgroup {
  /// 16-byte chunks of shared memory that wgmmas in flight read: since the last commit, and in committed groups.
  std::vector<std::uint32_t> open_reads;
  std::deque<std::vector<std::uint32_t>> reads;
  std::uint64_t finished = 0;  ///< groups that a wait has found complete
};

struct NamedBarrier {
  int arrived = 0;
  bool predicate_or = false;
  std::vector<Thread*> waiting;
};

/// Who last wrote a 16-byte chunk of shared memory by ordinary stores, and when.
struct Chunk {
  std::uint64_t written = 0;
  const Thread* writer = nullptr;
  std::uint16_t readers = 0;  ///< wgmmas in flight that read it
};

struct Cta {
  Grid* grid = nullptr;
  std::array<std::uint32_t, 3> index = {};
  std::uint32_t rank = 0;  ///< in its cluster
  std::vector<Cta*> cluster;
  std::vector<std::uint8_t> shared;
  std::vector<Chunk> chunks;
  std::vector<std::uint64_t> registers;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::array<NamedBarrier, 16> barriers;
  std::uint64_t cluster_phases = 0;  ///< of barrier.cluster that ended; kept by rank 0
  std::vector<std::uint8_t> local;   ///< Kernel::local_bytes of each thread
  int alive = 0;

  Cta() = default;
  Cta(const Cta&) = delete;
  Cta& operator=(const Cta&) = delete;
  ~Cta();
};

/// How asynchronous copies and warps are ordered. seed 0: copies are made at once and warps take turns. Other seeds:
/// copies are made some time later, warps run in random order, and one of each CTA is far slower than the others, as
/// only a barrier can make them wait for it.
struct Order {
  std::uint64_t seed = 0;
};

struct Launch {
  const Kernel* kernel = nullptr;
  std::array<std::uint32_t, 3> grid = {1, 1, 1};
  std::array<std::uint32_t, 3> block = {1, 1, 1};
  std::uint32_t shared_bytes = 0;  ///< dynamic
  std::vector<std::uint8_t> parameters;
  std::uint32_t cluster = 1;
  std::uint32_t resident_ctas = 4;
  Order order;
};

struct Grid {
  const Launch* launch = nullptr;
  std::uint64_t time = 0;  ///< instructions executed
  std::mt19937_64 random;
  struct Pending {
    std::uint64_t due = 0;  ///< round
    Copy copy;
  };
  std::vector<Pending> pending;
  std::uint64_t round = 0;
  int slow_warp = -1;              ///< of each CTA; none: -1
  std::uint64_t rounds_since = 0;  ///< in which the slow warps had to stand still

  /// Makes the copy now or, with a seed, later.
  void start(Copy copy);
};

/// Makes the copies, which are then under way no more.
void make_all(std::vector<Copy>& copies);

/// Runs the whole grid. Error: EmulationError that says which thread did what, or who waits for what in a deadlock.
void run_grid(const Launch& launch);

// What instructions use.

std::uint64_t read_special(const Thread& thread, const Operand& operand);

inline std::uint64_t read(const Thread& thread, const Operand& operand) {
  if (operand.slot >= 0) return thread.registers[operand.slot] + operand.value;
  return operand.special == Special::none ? operand.value : read_special(thread, operand);
}

inline void write(Thread& thread, const Operand& operand, std::uint64_t value) {
  if (operand.slot >= 0) thread.registers[operand.slot] = value;
}

/// Host memory behind `bytes` at a shared address. write: by an ordinary store of `writer` (null: by an asynchronous
/// copy). Errors: out of bounds, misaligned, or a wgmma in flight still reads what is written.
std::uint8_t* shared_memory(Cta& cta, std::uint32_t address, std::size_t bytes, bool write, const Thread* writer);
/// Ends the phase of barrier.cluster that every thread of the cluster has come to; those that exited are not waited
/// for.
void end_cluster_phase(Cta& cta);
/// The CTA of the cluster and the address within it.
Cta& owner(Cta& cta, std::uint32_t address);
/// Host memory behind a global or generic address.
std::uint8_t* any_memory(Thread& thread, std::uint64_t address, std::size_t bytes, bool write);
std::uint8_t* global_range(std::uint64_t address, std::size_t bytes);
/// Error when chunks of the range were written by ordinary stores that no fence.proxy.async ordered before this read.
void check_async_read(Cta& cta, std::uint32_t address, std::size_t bytes, const Thread& reader);

/// "CTA (1,0,0), thread 37, PTX line 10: st.shared.u32 [%r1], %r2".
std::string where(const Thread& thread);
[[noreturn]] void fail(const Thread& thread, const std::string& why);

}  // namespace warploom::emulator
