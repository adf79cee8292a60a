// What steers a thread: branches, barriers, fences, and where it is in its cluster.
#include <cstring>

#include "decode.h"
#include "mbarrier.h"
#include "operands.h"

namespace warploom::emulator {
namespace {

After branch(Thread&, const Instruction&) {
  return After::jump;
}
After leave(Thread&, const Instruction&) {
  return After::exit;
}
After nothing(Thread&, const Instruction&) {
  return After::next;
}
After trap(Thread&, const Instruction&) {
  throw EmulationError("trap");
}

// numbers: 0 arrive and wait, 1 arrive only, 2 wait for the disjunction of predicates.
After named_barrier(Thread& thread, const Instruction& instruction) {
  const bool reduces = instruction.numbers[0] == 2;
  const std::size_t first = reduces ? 1 : 0;
  const auto id = get<std::uint32_t>(thread, instruction, first);
  Cta& cta = *thread.warp->cta;
  const std::size_t plain = reduces ? 3 : 1;
  const std::uint32_t expected = instruction.operands.size() > plain
                                     ? get<std::uint32_t>(thread, instruction, first + 1)
                                     : static_cast<std::uint32_t>(cta.threads.size());
  if (id >= cta.barriers.size()) throw EmulationError("there is no named barrier " + std::to_string(id));
  if (expected == 0 || expected % 32 != 0)
    throw EmulationError("a named barrier of " + std::to_string(expected) + " threads");
  NamedBarrier& barrier = cta.barriers[id];
  if (reduces && get<Predicate>(thread, instruction, instruction.operands.size() - 1) != 0) barrier.predicate_or = true;
  const bool waits = instruction.numbers[0] != 1;
  if (waits) {
    barrier.waiting.push_back(&thread);
    thread.waits = Waits::for_named_barrier;
    thread.barrier = id;
  }
  if (static_cast<std::uint32_t>(++barrier.arrived) == expected) {
    for (Thread* one : barrier.waiting) {
      one->waits = Waits::for_nothing;
      if (reduces) write(*one, instruction.operands[0][0], barrier.predicate_or ? 1 : 0);
    }
    barrier = {};
  }
  return waits ? After::block : After::next;
}

After mbarrier_init(Thread& thread, const Instruction& instruction) {
  init_mbarrier(*thread.warp->cta, get<std::uint32_t>(thread, instruction, 0),
                get<std::uint32_t>(thread, instruction, 1));
  return After::next;
}
After mbarrier_end(Thread& thread, const Instruction& instruction) {
  std::memset(shared_memory(*thread.warp->cta, get<std::uint32_t>(thread, instruction, 0), 8, true, nullptr), 0xFF, 8);
  return After::next;
}
After mbarrier_arrive(Thread& thread, const Instruction& instruction) {
  const auto address = get<std::uint32_t>(thread, instruction, 1);
  Cta& cta = *thread.warp->cta;
  Cta& target = owner(cta, address);
  arrive(target, address & ((1u << kSharedRankShift) - 1));
  return After::next;
}
After mbarrier_arrive_expecting(Thread& thread, const Instruction& instruction) {
  const auto address = get<std::uint32_t>(thread, instruction, 1);
  expect_bytes(*thread.warp->cta, address, get<std::uint32_t>(thread, instruction, 2));
  arrive(*thread.warp->cta, address);
  return After::next;
}
After mbarrier_expect(Thread& thread, const Instruction& instruction) {
  expect_bytes(*thread.warp->cta, get<std::uint32_t>(thread, instruction, 0),
               get<std::uint32_t>(thread, instruction, 1));
  return After::next;
}
// try_wait may wait as long as it likes, so here it waits until the phase has ended.
After mbarrier_try_wait(Thread& thread, const Instruction& instruction) {
  write(thread, instruction.operands[0][0], 1);
  thread.barrier = get<std::uint32_t>(thread, instruction, 1);
  thread.parity = get<std::uint32_t>(thread, instruction, 2);
  if (phase_ended(*thread.warp->cta, thread.barrier, thread.parity)) return After::next;
  thread.waits = Waits::for_mbarrier;
  return After::block;
}
After mbarrier_test_wait(Thread& thread, const Instruction& instruction) {
  const bool ended = phase_ended(*thread.warp->cta, get<std::uint32_t>(thread, instruction, 1),
                                 get<std::uint32_t>(thread, instruction, 2));
  write(thread, instruction.operands[0][0], ended ? 1 : 0);
  return After::next;
}

After fence_async(Thread& thread, const Instruction&) {
  thread.last_fence = ++thread.warp->cta->grid->time;
  return After::next;
}

After map_shared(Thread& thread, const Instruction& instruction) {
  const auto address = get<std::uint32_t>(thread, instruction, 1);
  const auto rank = get<std::uint32_t>(thread, instruction, 2);
  put<std::uint32_t>(thread, instruction, (address & ((1u << kSharedRankShift) - 1)) | (rank + 1) << kSharedRankShift);
  return After::next;
}
After cluster_arrive(Thread& thread, const Instruction&) {
  Cta& cta = *thread.warp->cta;
  thread.cluster_phase = cta.cluster.front()->cluster_phases + 1;
  end_cluster_phase(cta);
  return After::next;
}
After cluster_wait(Thread& thread, const Instruction&) {
  if (thread.warp->cta->cluster.front()->cluster_phases >= thread.cluster_phase) return After::next;
  thread.waits = Waits::for_cluster;
  return After::block;
}

Table make_table() {
  Table table;
  table["bra"] = table["bra.uni"] = branch;
  table["ret"] = table["exit"] = leave;
  table["trap"] = trap;
  table["bar.sync"] = table["barrier.sync"] = table["bar.arrive"] = table["barrier.arrive"] = table["bar.red.or.pred"] =
      named_barrier;
  table["mbarrier.init.shared::cta.b64"] = mbarrier_init;
  table["mbarrier.inval.shared::cta.b64"] = mbarrier_end;
  table["mbarrier.arrive.shared::cta.b64"] = table["mbarrier.arrive.shared::cluster.b64"] = mbarrier_arrive;
  table["mbarrier.arrive.expect_tx.shared::cta.b64"] = mbarrier_arrive_expecting;
  table["mbarrier.expect_tx.relaxed.cta.shared::cta.b64"] = mbarrier_expect;
  table["mbarrier.try_wait.parity.shared::cta.b64"] = mbarrier_try_wait;
  table["mbarrier.test_wait.parity.shared::cta.b64"] = mbarrier_test_wait;
  table["fence.proxy.async.shared::cta"] = table["fence.proxy.async"] = table["fence.proxy.async.global"] = fence_async;
  table["mapa.shared::cluster.u32"] = map_shared;
  for (const char* order : {".release", ".relaxed", ""}) {
    table[std::string("barrier.cluster.arrive") + order + ".aligned"] = cluster_arrive;
  }
  table["barrier.cluster.wait.acquire.aligned"] = table["barrier.cluster.wait.aligned"] = cluster_wait;
  for (const char* name :
       {"fence.mbarrier_init.release.cluster", "griddepcontrol.wait", "griddepcontrol.launch_dependents",
        "prefetch.tensormap", "prefetch.global.L2", "membar.gl", "membar.cta", "fence.acq_rel.gpu", "fence.acq_rel.cta",
        "fence.sc.gpu", "nanosleep.u32", "setmaxnreg.dec.sync.aligned.u32", "setmaxnreg.inc.sync.aligned.u32"}) {
    table[name] = nothing;
  }
  return table;
}

}  // namespace

bool decode_control(const std::string& opcode, Instruction& instruction) {
  static const Table table = make_table();
  if (opcode.starts_with("cp.async.bulk.prefetch")) {  // there is no cache
    instruction.alone = nothing;
    return true;
  }
  const std::vector<std::string> parts = parts_of(opcode);
  if (parts.front() == "bar") instruction.numbers[0] = parts[1] == "arrive" ? 1 : parts[1] == "red" ? 2 : 0;
  return take(table, opcode, instruction);
}

}  // namespace warploom::emulator
