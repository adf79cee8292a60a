#include "cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <new>
#include <sstream>

#include "cpu/kernels.h"
#include "cpu/plan.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace warploom::cpu {
namespace {

std::atomic<int> default_threads{0};

/// Scratch that a thread keeps for its next call: 4 MiB.
constexpr size_t kKeptScratch = size_t{1} << 20;

struct ForwardRun {
  const Plan* plan;
  const Kernels* kernels;
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};
};

void run_forward(void* context) {
  auto& run = *static_cast<ForwardRun*>(context);
  Scratch& scratch = Scratch::of_this_thread();
  if (!scratch.reserve(run.plan->thread_scratch)) return;  // others do the work; if none can, done says so
  const size_t count = run.plan->forward.size();
  for (size_t n; (n = run.next.fetch_add(1, std::memory_order_relaxed)) < count;) {
    run.kernels->forward(*run.plan, run.plan->forward[n], scratch);
    run.done.fetch_add(1, std::memory_order_relaxed);
  }
  scratch.trim(kKeptScratch);
}

Status no_memory() {
  return Status::runtime_error(
      "not enough memory for the scratch buffers of an attention call; free memory or pass shorter sequences");
}

Status run_plan(const Plan& plan, const Kernels& kernels) {
  if (plan.info.call->pass == WARPLOOM_FORWARD) {
    ForwardRun run{&plan, &kernels};
    run_with_helpers(plan.threads, run_forward, &run);
    return run.done == plan.forward.size() ? Status() : no_memory();
  }
  return Status::runtime_error("backward");
}

}  // namespace

Status run(const warploom_attention& call) {
  const Kernels* best = kernels();
  if (best == nullptr)
    return Status::runtime_error("this processor lacks SSE4.2, which the CPU back end needs at least");
  try {
    const Plan plan = make_plan(call);
    return run_plan(plan, *best);
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

std::string explain(const warploom_attention& call) {
  const Plan plan = make_plan(call);
  const bool forward = call.pass == WARPLOOM_FORWARD;
  const double products = forward ? 1 : 2.5;
  const double flops = 2 * products * plan.visible_pairs * static_cast<double>(call.head_dim + call.value_dim);
  std::ostringstream text;
  text << R"({"backend": "cpu", "operator": ")" << (plan.info.softmax ? "softmax" : "hstu") << R"(", "pass": ")"
       << (forward ? "forward" : "backward") << R"(", "instruction_set": ")" << instruction_set() << R"(", "threads": )"
       << plan.threads << R"(, "row_block": )" << kRowBlock << R"(, "key_tile": )" << kKeyTile;
  if (forward) {
    text << R"(, "query_tile": )" << plan.query_tile << R"(, "work_items": )" << plan.forward.size();
  } else {
    text << R"(, "chunk_keys": )" << plan.chunk_keys << R"(, "work_items": )" << plan.backward.size();
  }
  text << R"(, "flops": )" << flops << R"(, "scratch_bytes_per_thread": )" << plan.thread_scratch * sizeof(float)
       << R"(, "scratch_bytes_shared": )" << plan.shared_scratch << R"(, "scratch_bytes": )"
       << plan.thread_scratch * sizeof(float) * static_cast<size_t>(plan.threads) + plan.shared_scratch << "}";
  return text.str();
}

void set_num_threads(int count) {
  default_threads.store(std::max(0, count));
}

int num_threads() {
  const int count = default_threads.load(std::memory_order_relaxed);
  return count > 0 ? count : available_processors();
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace warploom::cpu
