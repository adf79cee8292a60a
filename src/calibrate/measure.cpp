#include <algorithm>
#include <utility>
#include <vector>

#include "calibrate/calibration.h"
#include "gpu/compiler.h"
#include "gpu/module.h"
#include "gpu/reference_device.h"
#include "gpu/scratch.h"
#include "median.h"
#include "problem/message.h"

namespace warploom::calibrate {
namespace {

/// As in kernels/laboratory/calibrate.cu.
struct Measured {
  long long cycles = 0;
  unsigned long long start_ns = 0, end_ns = 0;
};
constexpr long long kStageBytes = 49152, kRingBytes = 4 * kStageBytes + 64;
constexpr long long kMemoryBytes = 1ll << 30;  // far more than L2
constexpr long long kSharedInL2 = 24ll << 20;  // what all SMs read over and over

/// Launches kernels of the file and reads what they saw.
class Bench {
 public:
  Bench(const gpu::Driver& driver, const gpu::DeviceInfo& device, gpu::DevicePointer results)
      : driver_(driver), device_(device), results_(results) {}

  struct Shape {
    std::int64_t ctas;
    int threads;
    long long shared_bytes = 0;
    int times = 2;  ///< the last one counts; 1 where a second one would find its data in L2
  };

  /// `arguments` follow the kernel's result pointer.
  template <typename... Arguments>
  Result<Reading> run(const char* kernel, Shape shape, Arguments... arguments) const {
    gpu::KernelRequest request;
    request.entry_file = "laboratory/calibrate.cu";
    request.kernel_name = kernel;
    request.architecture = gpu::compile_architecture(device_);
    const Result<gpu::CubinPointer> cubin = gpu::compiler().get(request);
    if (!cubin.ok()) return cubin.status();
    const Result<const gpu::LoadedKernel*> loaded =
        gpu::load_kernel(*cubin, device_.ordinal, static_cast<int>(shape.shared_bytes));
    if (!loaded.ok()) return loaded.status();
    gpu::LaunchShape launch;
    launch.grid_x = static_cast<std::uint32_t>(shape.ctas);
    launch.block_x = static_cast<std::uint32_t>(shape.threads);
    gpu::DevicePointer results = results_;
    void* pointers[] = {&results, &arguments...};
    for (int time = 0; time < shape.times; ++time) {
      if (Status status = gpu::launch(**loaded, launch, nullptr, pointers); !status.ok()) return status;
    }
    std::vector<Measured> seen(static_cast<std::size_t>(shape.ctas));
    Status status =
        gpu::driver_status(driver_, driver_.cuMemcpyDtoH(seen.data(), results_, seen.size() * sizeof(Measured)),
                           message("running ", kernel));
    if (!status.ok()) return status;
    return reading_of(seen);
  }

 private:
  static Reading reading_of(const std::vector<Measured>& seen) {
    const auto median = [&](auto value_of) {
      std::vector<double> values;
      for (const Measured& each : seen) values.push_back(static_cast<double>(value_of(each)));
      return median_of(std::move(values));
    };
    unsigned long long first = seen[0].start_ns, last = seen[0].end_ns;
    for (const Measured& each : seen) {
      first = std::min(first, each.start_ns);
      last = std::max(last, each.end_ns);
    }
    return {median([](const Measured& m) { return m.cycles; }),
            median([](const Measured& m) { return m.end_ns - m.start_ns; }), static_cast<double>(last - first),
            static_cast<std::int64_t>(seen.size())};
  }

  const gpu::Driver& driver_;
  const gpu::DeviceInfo& device_;
  gpu::DevicePointer results_;
};

}  // namespace

Result<Readings> measure(int ordinal) {
  const Result<const gpu::Driver*> driver = gpu::driver();
  if (!driver.ok()) return driver.status();
  const Result<gpu::DeviceInfo> device = gpu::device_info(ordinal);
  if (!device.ok()) return device.status();
  if (device->major != 9) {
    return Status::runtime_error(message(device->name, " has compute capability ", device->major, ".", device->minor,
                                         "; the kernels that measure are for 9.0 (Hopper)"));
  }
  const Result<gpu::ContextScope> context = gpu::ContextScope::enter(ordinal);
  if (!context.ok()) return context.status();
  const Result<gpu::Scratch> memory = gpu::Scratch::allocate(**driver, ordinal, kMemoryBytes, nullptr);
  if (!memory.ok()) return memory.status();
  const std::int64_t sms = device->sm_count;
  const Result<gpu::Scratch> results =
      gpu::Scratch::allocate(**driver, ordinal, static_cast<std::size_t>(sms) * sizeof(Measured), nullptr);
  if (!results.ok()) return results.status();
  Status status = gpu::driver_status(**driver, (*driver)->cuMemsetD8Async(memory->address(), 0, kMemoryBytes, nullptr),
                                     "clearing device memory");
  if (!status.ok()) return status;

  const Bench bench(**driver, *device, results->address());
  const gpu::DevicePointer data = memory->address();
  Readings r;
  const auto into = [&](Reading& target, const Result<Reading>& reading) {
    if (!reading.ok() && status.ok()) status = reading.status();
    if (reading.ok()) target = *reading;
  };
  const Bench::Shape everywhere{sms, 512};
  const int operations = 4096;
  r.operations = 512 * 8 * operations;
  into(r.exp, bench.run("calibrate_exp", everywhere, operations));
  into(r.tanh, bench.run("calibrate_tanh", everywhere, operations));
  into(r.fma, bench.run("calibrate_fma", everywhere, operations));

  const int loads = 200;
  r.latency_loads = loads;
  const long long same = 0, far = (kMemoryBytes - kStageBytes) / loads / 1024 * 1024;
  into(r.latency_l2, bench.run("calibrate_latency", {1, 32, 2048}, loads, data, same));
  into(r.latency_memory, bench.run("calibrate_latency", {1, 32, 2048, 1}, loads, data, far));

  const int l2_stages = 1024, memory_stages = static_cast<int>(kMemoryBytes / sms / kStageBytes);
  r.l2_stages = l2_stages;
  r.memory_stages = memory_stages;
  into(r.bandwidth_l2, bench.run("calibrate_bandwidth", {sms, 32, kRingBytes}, l2_stages, data, kSharedInL2,
                                 kSharedInL2 / sms / 1024 * 1024));
  into(r.bandwidth_memory, bench.run("calibrate_bandwidth", {sms, 32, kRingBytes}, memory_stages, data, kMemoryBytes,
                                     memory_stages * kStageBytes));

  const int issues = 64;
  r.issues = issues;
  into(r.issue_tma, bench.run("calibrate_issue_tma", {1, 32, kRingBytes}, issues, data));
  into(r.issue_cp, bench.run("calibrate_issue_cp", {1, 256, kStageBytes}, issues, data));

  const int copies = 4096;
  r.register_bytes = 256ll * 16 * copies;
  into(r.register_copy, bench.run("calibrate_register_copy", {1, 256, 32768}, copies));

  const int steps = 40000;  // some 20 ms: long enough for the clock to settle
  r.tensor_steps = steps;
  into(r.tensor, bench.run("calibrate_tensor", {sms, 256, kStageBytes}, steps));

  const int hand_overs = 2048;
  r.hand_overs = hand_overs;
  into(r.turns, bench.run("calibrate_turns", {1, 256}, hand_overs));
  into(r.mbarrier, bench.run("calibrate_mbarrier", {1, 64, 1024}, hand_overs));
  if (!status.ok()) return status;
  return r;
}

}  // namespace warploom::calibrate
