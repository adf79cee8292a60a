// From what kernels saw to a machine: made-up readings of a GPU whose rates are known.
#include <gtest/gtest.h>

#include "../gpu/support.h"
#include "calibrate/calibration.h"
#include "gpu/reference_device.h"

namespace warploom::calibrate {
namespace {

/// An SM at 2 cycles a nanosecond with the model's own rates, 10 SMs.
Readings model_readings() {
  const auto took = [](double cycles, std::int64_t ctas = 10) { return Reading{cycles, cycles / 2, cycles / 2, ctas}; };
  Readings r;
  r.operations = 160000;
  r.exp = took(10000);
  r.tanh = took(20000);
  r.fma = took(1250);
  r.l2_stages = 100;
  r.bandwidth_l2 = took(100 * 768);
  r.memory_stages = 50;
  r.bandwidth_memory = took(50 * 3072);
  r.issues = 8;
  r.issue_tma = took(8 * 10, 1);
  r.issue_cp = took(8 * 100, 1);
  r.latency_loads = 4;
  r.latency_l2 = took(4 * (5 + 16 + 700), 1);  // half a stage's issue, 1024 bytes at 64 a cycle
  r.latency_memory = took(4 * (5 + 16 + 1200), 1);
  r.register_bytes = 49152;
  r.register_copy = took(192, 1);
  r.tensor_steps = 30;
  r.tensor = took(30 * 1024);
  r.hand_overs = 50;
  r.turns = took(100 * 40, 1);
  r.mbarrier = took(100 * 60, 1);
  return r;
}

TEST(Calibration, FindsTheRatesThatTheReadingsWereMadeWith) {
  const gpu::DeviceInfo device = *gpu::reference_device({9, 0, true});
  const Calibration found = derive(model_readings(), device, "mine");
  const sim::Machine& machine = found.machine;
  EXPECT_EQ(machine.name, "mine");
  EXPECT_DOUBLE_EQ(machine.exp_rate, 16);
  EXPECT_DOUBLE_EQ(found.tanh_rate, 8);
  EXPECT_DOUBLE_EQ(machine.fma_rate, 128);
  EXPECT_DOUBLE_EQ(machine.tensor_rate, 4096);
  EXPECT_DOUBLE_EQ(machine.clock_ghz, 2);
  EXPECT_DOUBLE_EQ(machine.bandwidth, 64);
  EXPECT_DOUBLE_EQ(found.memory_bandwidth, 16);
  EXPECT_NEAR(machine.dram_tb_per_s, 16.0 * 2 * 10 * 1e-3, 1e-9);
  EXPECT_EQ(machine.issue_tma, 10);
  EXPECT_EQ(machine.issue_cp, 100);
  EXPECT_EQ(machine.latency, 700);
  EXPECT_DOUBLE_EQ(found.memory_latency, 1200);
  EXPECT_DOUBLE_EQ(machine.register_copy_bandwidth, 256);
  EXPECT_DOUBLE_EQ(found.turn, 40);
  EXPECT_DOUBLE_EQ(found.mbarrier, 60);
  EXPECT_EQ(machine.sms, device.sm_count);
  EXPECT_TRUE(sim::validate(machine).ok());
}

TEST(Calibration, TheFileIsReadBackAsItWasWritten) {
  const Calibration found = derive(model_readings(), *gpu::reference_device({9, 0, true}), "mine");
  const Result<sim::Machine> read = sim::machine_from_json(sim::machine_to_json(found.machine), "here");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(sim::machine_to_json(*read), sim::machine_to_json(found.machine));
}

TEST(Calibration, ReadingsOfNothingMakeNoMachine) {
  const Calibration found = derive({}, *gpu::reference_device({9, 0, true}), "none");
  EXPECT_FALSE(sim::validate(found.machine).ok());
}

TEST(Calibration, ItsKernelsCompileWithoutSpills) {
  if (gpu::nvrtc_directory().empty()) GTEST_SKIP() << "no NVRTC";
  gpu::CompilerOptions options;
  options.settings.cache_directory = "";
  options.nvrtc_candidates = gpu::test_nvrtc;
  gpu::Compiler compiler(options);
  for (const char* kernel : {"calibrate_tensor", "calibrate_bandwidth", "calibrate_issue_cp"}) {
    const Result<gpu::CubinPointer> cubin = compiler.get({"laboratory/calibrate.cu", "", kernel, {9, 0, true}});
    ASSERT_TRUE(cubin.ok()) << cubin.status().message();
    EXPECT_TRUE((*cubin)->resources.known) << kernel;
    EXPECT_EQ((*cubin)->resources.spill_store_bytes, 0) << kernel;
    EXPECT_TRUE((*cubin)->resources.performance_warnings.empty()) << kernel;
  }
}

}  // namespace
}  // namespace warploom::calibrate
