#include "cli/calibrate_command.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/calibration.h"
#include "cli/command.h"
#include "cli/devices.h"
#include "cli/simulate_options.h"
#include "cli/terminal.h"

namespace warploom::cli {
namespace {

struct Options {
  std::string device = "auto";
  std::string name = "measured";
  std::string beside = "h200";
  std::string output;
  JsonOption json;
};

void print_calibration(const calibrate::Calibration& measured, const std::string& gpu, const sim::Machine& known) {
  const sim::Machine& machine = measured.machine;
  std::printf("%s\n", paint(Colour::bold, gpu).c_str());
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const char* what, double value, double in_model, const char* unit) {
    rows.push_back({what, unit, format("%.4g", value), in_model == 0 ? "-" : format("%.4g", in_model)});
  };
  const auto cycles = [](sim::Cycles value) { return static_cast<double>(value); };
  row("tensor core", machine.tensor_rate, known.tensor_rate, "FLOP/cycle");
  row("exp", machine.exp_rate, known.exp_rate, "1/cycle");
  row("tanh", measured.tanh_rate, 0, "1/cycle");
  row("multiply-add", machine.fma_rate, known.fma_rate, "1/cycle");
  row("loads from L2, all SMs", machine.bandwidth, known.bandwidth, "B/cycle");
  row("loads from memory, all SMs", measured.memory_bandwidth, 0, "B/cycle");
  row("memory", machine.dram_tb_per_s, known.dram_tb_per_s, "TB/s");
  row("latency of L2", cycles(machine.latency), cycles(known.latency), "cycles");
  row("latency of memory", measured.memory_latency, 0, "cycles");
  row("a stage's issue by TMA", cycles(machine.issue_tma), cycles(known.issue_tma), "cycles");
  row("a stage's issue by cp.async", cycles(machine.issue_cp), cycles(known.issue_cp), "cycles");
  row("registers to shared memory", machine.register_copy_bandwidth, known.register_copy_bandwidth, "B/cycle");
  row("a turn's hand-over", measured.turn, 0, "cycles");
  row("an mbarrier's hand-over", measured.mbarrier, 0, "cycles");
  row("clock, tensor cores busy", machine.clock_ghz, known.clock_ghz, "GHz");
  std::fputs(table({"what", "unit", "measured", known.name}, rows, 2).c_str(), stdout);
}

int run_calibration(const Options& options) {
  const Result<sim::Machine> known = sim::find_machine(options.beside);
  if (!known.ok()) return report(known.status());
  const Result<Device> device = choose_device(options.device);
  if (!device.ok()) return report(device.status());
  if (!device->cuda) {
    return report(
        Status::runtime_error("what is measured is a Hopper GPU; there is none here. The machine files of "
                              "`warploom simulate machine NAME` need none"));
  }
  const Result<calibrate::Readings> readings = calibrate::measure(device->ordinal);
  if (!readings.ok()) return report(readings.status());
  const Result<gpu::DeviceInfo> info = gpu::device_info(device->ordinal);
  if (!info.ok()) return report(info.status());
  const calibrate::Calibration measured = calibrate::derive(*readings, *info, options.name);
  if (const Status status = sim::validate(measured.machine); !status.ok()) return report(status);
  if (options.json.prints_text()) print_calibration(measured, device->name, *known);
  if (const Status status =
          write_if_given("--output", options.output, [&] { return sim::machine_to_json(measured.machine); });
      !status.ok())
    return report(status);
  return report_if_error(options.json.write({{"gpu", device->name},
                                             {"machine", Json::parse(sim::machine_to_json(measured.machine))},
                                             {"tanh_rate", measured.tanh_rate},
                                             {"memory_latency", measured.memory_latency},
                                             {"memory_bandwidth", measured.memory_bandwidth},
                                             {"turn", measured.turn},
                                             {"mbarrier", measured.mbarrier}}));
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(app, "calibrate", "The simulator's parameters, measured on a Hopper GPU",
                                  "  warploom calibrate --name my-h200 --output my-h200.json\n"
                                  "  warploom simulate gemm --machine my-h200.json\n");
  add_device_option(*command, options->device);
  command->add_option("--name", options->name, "The machine's name in the file")->capture_default_str();
  is_written(command->add_option("--output", options->output, "Write a machine file for --machine")->type_name("FILE"));
  command->add_option("--beside", options->beside, "The machine to print beside")
      ->type_name("NAME|FILE")
      ->capture_default_str();
  options->json.add_to(*command);
  on_run(*command, [options] { return run_calibration(*options); });
}

}  // namespace warploom::cli
