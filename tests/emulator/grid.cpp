#include "grid.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>

#include "mbarrier.h"
#include "memory.h"

namespace warploom::emulator {
namespace {

constexpr std::uint64_t kLatestRounds = 256;  // an asynchronous copy takes up to so many rounds
constexpr int kSlice = 4096;                  // instructions of a thread before another one runs
constexpr std::uint64_t kSlowRounds = 1024;   // the slow warp stands still, unless nothing else can run

std::uint32_t count(const std::array<std::uint32_t, 3>& extent) {
  return extent[0] * extent[1] * extent[2];
}

std::unique_ptr<Cta> make_cta(Grid& grid, std::uint32_t number) {
  const Launch& launch = *grid.launch;
  auto cta = std::make_unique<Cta>();
  cta->grid = &grid;
  cta->index = {number % launch.grid[0], number / launch.grid[0] % launch.grid[1],
                number / launch.grid[0] / launch.grid[1]};
  const std::size_t shared = static_cast<std::size_t>(launch.kernel->static_shared_bytes) + launch.shared_bytes;
  cta->shared.assign(shared, 0xFF);  // NaN in every type, until something is written
  cta->chunks.resize(shared / 16 + 1);
  const std::uint32_t threads = count(launch.block);
  const auto slots = static_cast<std::size_t>(launch.kernel->registers);
  cta->registers.assign(slots * threads, ~0ull);
  cta->threads.resize(threads);
  cta->warps.resize((threads + 31) / 32);
  cta->warpgroups.resize((cta->warps.size() + 3) / 4);
  cta->local.assign(threads * static_cast<std::size_t>(launch.kernel->local_bytes), 0xFF);
  global_memory().add(cta->local.data(), cta->local.size());
  cta->alive = static_cast<int>(threads);
  for (std::uint32_t i = 0; i < threads; ++i) {
    Thread& thread = cta->threads[i];
    thread.index = static_cast<int>(i);
    thread.registers = cta->registers.data() + i * slots;
    thread.warp = &cta->warps[i / 32];
    thread.warp->cta = cta.get();
    thread.warp->index = static_cast<int>(i / 32);
    thread.warp->lanes[i % 32] = &thread;
  }
  return cta;
}

const Instruction& at(const Thread& thread) {
  return thread.warp->cta->grid->launch->kernel->code[static_cast<std::size_t>(thread.pc)];
}

using Cluster = std::vector<std::unique_ptr<Cta>>;

Cluster make_cluster(Grid& grid, std::uint32_t first, std::uint32_t size) {
  Cluster cluster;
  std::vector<Cta*> members;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    cluster.push_back(make_cta(grid, first + rank));
    cluster.back()->rank = rank;
    members.push_back(cluster.back().get());
  }
  for (Cta* cta : members) cta->cluster = members;
  return cluster;
}

bool predicated_off(const Thread& thread, const Instruction& instruction) {
  const Operand& predicate = instruction.predicate;
  return predicate.slot >= 0 && (thread.registers[predicate.slot] != 0) == predicate.negated;
}

void end_thread(Thread& thread) {
  make_all(thread.open_stores);
  make_all(thread.open_copies);
  for (std::deque<std::vector<Copy>>* groups : {&thread.stores, &thread.copies}) {
    for (std::vector<Copy>& group : *groups) make_all(group);
    groups->clear();
  }
  thread.exited = true;
  --thread.warp->cta->alive;
  end_cluster_phase(*thread.warp->cta);
}

After run_alone(Thread& thread, const Instruction& instruction) {
  try {
    return instruction.alone(thread, instruction);
  } catch (const EmulationError& error) {
    fail(thread, error.what());
  }
}

// Runs a thread until it waits, exits or has had its share. Whether it did anything.
bool run_thread(Thread& thread) {
  if (thread.exited) return false;
  Cta& cta = *thread.warp->cta;
  if (thread.waits == Waits::for_mbarrier) {
    if (!phase_ended(cta, thread.barrier, thread.parity)) return false;
    thread.waits = Waits::for_nothing;
  } else if (thread.waits == Waits::for_cluster) {
    if (cta.cluster.front()->cluster_phases < thread.cluster_phase) return false;
    thread.waits = Waits::for_nothing;
  }
  if (thread.waits != Waits::for_nothing) return false;
  const std::vector<Instruction>& code = cta.grid->launch->kernel->code;
  for (int i = 0; i < kSlice; ++i) {
    const Instruction& instruction = code[static_cast<std::size_t>(thread.pc)];
    ++cta.grid->time;
    if (predicated_off(thread, instruction)) {
      ++thread.pc;
      continue;
    }
    if (instruction.together != nullptr) {
      thread.waits = Waits::for_warp;
      return true;
    }
    switch (run_alone(thread, instruction)) {
      case After::next:
        ++thread.pc;
        break;
      case After::jump:
        thread.pc = instruction.target;
        break;
      case After::block:
        ++thread.pc;
        return true;
      case After::exit:
        end_thread(thread);
        return true;
    }
  }
  return true;
}

// The lanes of `wanted` that have come to instruction `pc`; nothing while one of them that has not exited is elsewhere.
std::optional<std::uint32_t> lanes_at(const Warp& warp, int pc, std::uint32_t wanted) {
  std::uint32_t lanes = 0;
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const Thread* thread = warp.lanes[lane];
    if ((wanted >> lane & 1) == 0 || thread == nullptr || thread->exited) continue;
    if (thread->waits != Waits::for_warp || thread->pc != pc) return std::nullopt;
    lanes |= 1u << lane;
  }
  return lanes;
}

bool warpgroup_is_at(const Warp& warp, int pc) {
  const auto first = static_cast<std::size_t>(warp.index / 4 * 4);
  const std::vector<Warp>& warps = warp.cta->warps;
  if (first + 4 > warps.size()) throw EmulationError("a wgmma of fewer than four warps");
  return std::all_of(warps.begin() + static_cast<std::ptrdiff_t>(first),
                     warps.begin() + static_cast<std::ptrdiff_t>(first + 4),
                     [pc](const Warp& one) { return lanes_at(one, pc, ~0u) == ~0u; });
}

void go_on(Warp& warp, std::uint32_t lanes) {
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    warp.lanes[lane]->waits = Waits::for_nothing;
    ++warp.lanes[lane]->pc;
  }
}

// Executes what the lanes of a warp, or the warps of a warpgroup, have all come to. Whether there was anything.
bool run_together(Warp& warp) {
  bool did = false;
  for (Thread* first : warp.lanes) {
    if (first == nullptr || first->exited || first->waits != Waits::for_warp) continue;
    const Instruction& instruction = at(*first);
    std::uint32_t wanted = ~0u;
    if (instruction.mask_operand >= 0) {
      wanted = static_cast<std::uint32_t>(
          read(*first, instruction.operands[static_cast<std::size_t>(instruction.mask_operand)][0]));
    }
    const std::optional<std::uint32_t> lanes = lanes_at(warp, first->pc, wanted);
    if (!lanes) continue;
    try {
      if (instruction.warpgroup) {
        if (!warpgroup_is_at(warp, first->pc)) continue;
        Warp* group = &warp.cta->warps[static_cast<std::size_t>(warp.index / 4 * 4)];
        instruction.together(*group, instruction, ~0u);
        for (int i = 0; i < 4; ++i) go_on(group[i], ~0u);
      } else {
        instruction.together(warp, instruction, *lanes);
        go_on(warp, *lanes);
      }
    } catch (const EmulationError& error) {
      fail(*first, error.what());
    }
    did = true;
  }
  return did;
}

bool run_warp(Warp& warp) {
  bool did = false;
  for (bool again = true; again;) {
    for (Thread* thread : warp.lanes) {
      if (thread != nullptr && run_thread(*thread)) did = true;
    }
    again = run_together(warp);
    did = did || again;
  }
  return did;
}

std::string describe(const Thread& thread) {
  switch (thread.waits) {
    case Waits::for_warp:
      return "waits for the other lanes of its warp";
    case Waits::for_named_barrier:
      return "waits at named barrier " + std::to_string(thread.barrier) + ", where " +
             std::to_string(thread.warp->cta->barriers[thread.barrier].arrived) + " threads have come";
    case Waits::for_mbarrier:
      return "waits for the mbarrier at shared address " + std::to_string(thread.barrier - kSharedBase) +
             " to end its phase of parity " + std::to_string(thread.parity) + "; " +
             describe_mbarrier(*thread.warp->cta, thread.barrier);
    case Waits::for_cluster:
      return "waits for the cluster";
    default:
      return "runs";
  }
}

[[noreturn]] void deadlock(const std::vector<Cluster>& clusters) {
  constexpr int kMostThreads = 24;
  std::ostringstream text;
  text << "deadlock: nothing can go on";
  int lines = 0;
  for (const Cluster& cluster : clusters) {
    for (const auto& cta : cluster) {
      std::string before;
      for (const Thread& thread : cta->threads) {
        if (thread.exited) continue;
        // Neighbours that wait for the same are told once.
        std::string state = std::to_string(thread.pc) + describe(thread);
        if (state == before) continue;
        before = std::move(state);
        if (++lines <= kMostThreads) text << "\n  " << where(thread) << "\n    " << describe(thread);
      }
    }
  }
  throw EmulationError(text.str());
}

}  // namespace

void end_cluster_phase(Cta& cta) {
  Cta& first = *cta.cluster.front();
  for (const Cta* each : cta.cluster) {
    for (const Thread& thread : each->threads) {
      if (!thread.exited && thread.cluster_phase <= first.cluster_phases) return;
    }
  }
  ++first.cluster_phases;
}

Cta::~Cta() {
  global_memory().remove(local.data());
}

void make_all(std::vector<Copy>& copies) {
  for (Copy& copy : copies) copy.make();
  copies.clear();
}

void Grid::start(Copy copy) {
  if (launch->order.seed == 0) {
    copy.make();
  } else {
    // Some come soon, in another order than they began; some come when whoever forgot to wait is long past.
    const std::uint64_t latest = random() % 2 == 0 ? 8 : kLatestRounds;
    pending.push_back({round + random() % latest, std::move(copy)});
  }
}

namespace {

bool make_due_copies(Grid& grid) {
  std::vector<Grid::Pending> later;
  std::vector<Grid::Pending> due;
  for (Grid::Pending& one : grid.pending) (one.due <= grid.round ? due : later).push_back(std::move(one));
  grid.pending = std::move(later);
  for (Grid::Pending& one : due) one.copy.make();
  return !due.empty();
}

bool run_round(Grid& grid, const std::vector<Cluster>& clusters) {
  ++grid.round;
  bool did = make_due_copies(grid);
  std::vector<Warp*> warps;
  for (const Cluster& cluster : clusters) {
    for (const auto& cta : cluster) {
      for (Warp& warp : cta->warps) warps.push_back(&warp);
    }
  }
  if (grid.launch->order.seed != 0) std::shuffle(warps.begin(), warps.end(), grid.random);
  const auto slow = std::stable_partition(warps.begin(), warps.end(),
                                          [&grid](const Warp* warp) { return warp->index != grid.slow_warp; });
  for (auto warp = warps.begin(); warp != slow; ++warp) did = run_warp(**warp) || did;
  const bool others_go_on = did || !grid.pending.empty();
  if (!others_go_on || ++grid.rounds_since > kSlowRounds) {
    grid.rounds_since = 0;
    for (auto warp = slow; warp != warps.end(); ++warp) did = run_warp(**warp) || did;
  }
  if (did) return true;
  if (grid.pending.empty()) return false;
  // Nothing can run before the next copy is made.
  grid.round = std::min_element(grid.pending.begin(), grid.pending.end(),
                                [](const auto& a, const auto& b) { return a.due < b.due; })
                   ->due -
               1;
  return true;
}

}  // namespace

void run_grid(const Launch& launch) {
  Grid grid;
  grid.launch = &launch;
  grid.random.seed(launch.order.seed);
  if (launch.order.seed != 0) grid.slow_warp = static_cast<int>(grid.random() % ((count(launch.block) + 31) / 32));
  const std::uint32_t ctas = count(launch.grid);
  const std::uint32_t cluster = std::max(1u, launch.cluster);
  if (ctas % cluster != 0) throw EmulationError("the grid is no whole number of clusters");
  global_memory().add(launch.parameters.data(), launch.parameters.size());
  struct Parameters {
    const Launch& launch;
    ~Parameters() { global_memory().remove(launch.parameters.data()); }
  } parameters{launch};
  std::vector<Cluster> resident;
  std::uint32_t next = 0;
  while (next < ctas || !resident.empty()) {
    while (next < ctas && (resident.empty() || (resident.size() + 1) * cluster <= launch.resident_ctas)) {
      resident.push_back(make_cluster(grid, next, cluster));
      next += cluster;
    }
    if (!run_round(grid, resident)) deadlock(resident);
    // Shared memory stays until the whole cluster has ended and no copy is under way.
    if (!grid.pending.empty()) continue;
    std::erase_if(resident, [](const Cluster& one) {
      return std::all_of(one.begin(), one.end(), [](const auto& cta) { return cta->alive == 0; });
    });
  }
}

std::uint64_t read_special(const Thread& thread, const Operand& operand) {
  const Cta& cta = *thread.warp->cta;
  const Launch& launch = *cta.grid->launch;
  const auto index = static_cast<std::uint32_t>(thread.index);
  switch (operand.special) {
    case Special::tid_x:
      return index % launch.block[0];
    case Special::tid_y:
      return index / launch.block[0] % launch.block[1];
    case Special::tid_z:
      return index / launch.block[0] / launch.block[1];
    case Special::ntid_x:
      return launch.block[0];
    case Special::ntid_y:
      return launch.block[1];
    case Special::ntid_z:
      return launch.block[2];
    case Special::ctaid_x:
      return cta.index[0];
    case Special::ctaid_y:
      return cta.index[1];
    case Special::ctaid_z:
      return cta.index[2];
    case Special::nctaid_x:
      return launch.grid[0];
    case Special::nctaid_y:
      return launch.grid[1];
    case Special::nctaid_z:
      return launch.grid[2];
    case Special::laneid:
      return index % 32;
    case Special::warpid:
      return index / 32;
    case Special::clock:
      return cta.grid->time;
    case Special::cluster_ctarank:
      return cta.rank;
    case Special::cluster_nctarank:
      return cta.cluster.size();
    case Special::local:
      return reinterpret_cast<std::uint64_t>(cta.local.data()) +
             index * static_cast<std::uint64_t>(launch.kernel->local_bytes) + operand.value;
    case Special::parameters:
      return reinterpret_cast<std::uint64_t>(launch.parameters.data()) + operand.value;
    default:
      return 0;
  }
}

Cta& owner(Cta& cta, std::uint32_t address) {
  const std::uint32_t rank = address >> kSharedRankShift;
  if (rank == 0) return cta;
  if (rank > cta.cluster.size()) throw EmulationError("a shared address names no CTA of the cluster");
  return *cta.cluster[rank - 1];
}

std::uint8_t* shared_memory(Cta& cta, std::uint32_t address, std::size_t bytes, bool write, const Thread* writer) {
  Cta& target = owner(cta, address);
  const std::uint32_t offset = (address & ((1u << kSharedRankShift) - 1)) - kSharedBase;
  if (offset > target.shared.size() || bytes > target.shared.size() - offset) {
    throw EmulationError("shared address " + std::to_string(static_cast<std::int32_t>(offset)) + " + " +
                         std::to_string(bytes) + " bytes lies outside of the CTA's " +
                         std::to_string(target.shared.size()));
  }
  if (write && bytes > 0) {
    for (std::size_t chunk = offset / 16; chunk <= (offset + bytes - 1) / 16; ++chunk) {
      if (target.chunks[chunk].readers > 0) {
        throw EmulationError("shared address " + std::to_string(offset) +
                             " is written while a wgmma in flight may still read it");
      }
      target.chunks[chunk].writer = writer;
      target.chunks[chunk].written = target.grid->time;
    }
  }
  return target.shared.data() + offset;
}

void check_async_read(Cta& cta, std::uint32_t address, std::size_t bytes, const Thread& reader) {
  const std::uint32_t offset = address - kSharedBase;
  for (std::size_t chunk = offset / 16; chunk <= (offset + bytes - 1) / 16; ++chunk) {
    const Chunk& one = cta.chunks[chunk];
    if (one.writer == nullptr || one.writer->last_fence > one.written || reader.last_fence > one.written) continue;
    throw EmulationError("shared address " + std::to_string(chunk * 16) +
                         " was written by an ordinary store of thread " + std::to_string(one.writer->index) +
                         " and is read by the asynchronous proxy without a fence.proxy.async between");
  }
}

std::uint8_t* global_range(std::uint64_t address, std::size_t bytes) {
  if (!global_memory().holds(address, bytes)) {
    std::ostringstream text;
    text << "global address 0x" << std::hex << address << std::dec << " + " << bytes << " bytes lies in no allocation";
    throw EmulationError(text.str());
  }
  return reinterpret_cast<std::uint8_t*>(address);
}

std::uint8_t* any_memory(Thread& thread, std::uint64_t address, std::size_t bytes, bool write) {
  if ((address & kGenericShared) != 0) {
    return shared_memory(*thread.warp->cta, static_cast<std::uint32_t>(address), bytes, write, &thread);
  }
  return global_range(address, bytes);
}

std::string where(const Thread& thread) {
  const Cta& cta = *thread.warp->cta;
  const Instruction& instruction = at(thread);
  std::string text = *instruction.text;
  if (text.size() > 160) text = text.substr(0, 80) + " ... " + text.substr(text.size() - 70);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return cta.grid->launch->kernel->name + ", CTA (" + std::to_string(cta.index[0]) + "," +
         std::to_string(cta.index[1]) + "," + std::to_string(cta.index[2]) + "), thread " +
         std::to_string(thread.index) + ", PTX line " + std::to_string(instruction.line) + ": " + text;
}

void fail(const Thread& thread, const std::string& why) {
  throw EmulationError(where(thread) + "\n    " + why);
}

}  // namespace warploom::emulator
