#include "cli/compile_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/case_name.h"
#include "cli/command.h"
#include "cli/function_options.h"
#include "cli/gemm_case.h"
#include "cli/history_data.h"
#include "cli/terminal.h"
#include "gpu/choose_plan.h"
#include "gpu/compiler.h"
#include "gpu/gemm_plan.h"
#include "gpu/mask_intervals.h"
#include "gpu/reference_device.h"
#include "problem/gemm.h"
#include "problem/mask_rows.h"
#include "problem/sequence.h"
#include "problem/validate.h"

namespace warploom::cli {
namespace {

struct Options {
  std::vector<std::string> problems;
  std::vector<std::string> architectures;
  std::vector<int> head_dims;
  std::vector<std::string> dtypes;
  std::vector<std::string> left_out;
  std::string masks = "sequence";
  bool whole_table = false;
  FunctionOptions functions;
  std::string pack;
  int jobs = 0;
  JsonOption json;
};

/// One kernel to compile.
struct Variant {
  std::string name;
  gpu::KernelRequest request;
};

/// The devices to compile for: those named, else those of this machine.
Result<std::vector<gpu::DeviceInfo>> target_devices(const Options& options) {
  std::vector<gpu::DeviceInfo> result;
  for (const std::string& name : options.architectures) {
    const Result<gpu::Architecture> architecture = gpu::parse_architecture(name);
    if (!architecture.ok()) return architecture.status();
    const Result<gpu::DeviceInfo> device = gpu::reference_device(*architecture);
    if (!device.ok()) return device.status();
    result.push_back(*device);
  }
  if (!result.empty()) return result;
  const Result<int> count = gpu::device_count();
  if (!count.ok() || *count == 0) {
    return Status::invalid_value(
        "there is no GPU here to compile for; name the architectures, e.g. --arch sm_80 sm_90a");
  }
  for (int ordinal = 0; ordinal < *count; ++ordinal) {
    const Result<gpu::DeviceInfo> device = gpu::device_info(ordinal);
    if (!device.ok()) return device.status();
    result.push_back(*device);
  }
  return result;
}

/// The kernels of a plan's launches.
std::vector<gpu::KernelVariant> kernels_of(const gpu::GpuPlan& plan) {
  std::vector<gpu::KernelVariant> result;
  for (int n = 0; n < plan.launch_count; ++n) {
    const gpu::PlannedLaunch& launch = plan.launches[static_cast<std::size_t>(n)];
    result.push_back(launch.family->variant(launch.config));
  }
  return result;
}

Result<std::vector<gpu::KernelVariant>> product_kernels(const std::string& name, const gpu::DeviceInfo& device) {
  const Result<GemmCase> gemm = parse_gemm_case(name);
  if (!gemm.ok()) return gemm.status();
  const warploom_gemm call = describe_case(*gemm);
  if (Status status = validate_gemm(call); !status.ok()) return status;
  const auto plan = std::make_unique<gpu::GpuPlan>();
  if (Status planned = gpu::plan_gemm(call, device, *plan); !planned.ok()) return planned;
  return kernels_of(*plan);
}

/// The kernels that a problem's calls launch, forward and backward.
Result<std::vector<gpu::KernelVariant>> kernels_for(const std::string& name, const FunctionOptions& functions,
                                                    const gpu::DeviceInfo& device) {
  if (is_gemm_name(name)) return product_kernels(name, device);
  const Result<Case> parsed = parse_case(name);
  if (!parsed.ok()) return parsed.status();
  Result<ProblemConfig> config = config_of(*parsed, movielens_shape());
  if (!config.ok()) return config.status();
  functions.apply_to(*config);
  std::vector<gpu::KernelVariant> result;
  for (const bool backward : {false, true}) {
    Problem problem = make_problem(*config, backward, Contents::untouched);
    const Execution execution{.cuda = true};
    Result<warploom_attention> call = backward ? backward_call(problem, execution) : forward_call(problem, execution);
    if (!call.ok()) return call.status();
    if (Status status = validate_description(*call); !status.ok()) return status;
    if (has_mask_function(*call)) {
      const expression::MaskFunction& mask = **expression::find_mask(call->mask_function);
      result.push_back(gpu::kMaskIntervals.variant({mask.number}));
      *call = with_interval_shape(*call, mask, nullptr);
    }
    const auto plan = std::make_unique<gpu::GpuPlan>();
    if (Status planned = gpu::choose_plan(*call, device, /*cuda=*/nullptr, *plan); !planned.ok()) return planned;
    const std::vector<gpu::KernelVariant> needed = kernels_of(*plan);
    result.insert(result.end(), needed.begin(), needed.end());
  }
  return result;
}

bool wanted(const Options& options, const gpu::KernelVariant& kernel) {
  const auto has = [](const auto& list, const auto& value) {
    return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
  };
  for (const std::string& part : options.left_out) {
    if (kernel.name.find(part) != std::string::npos) return false;
  }
  const bool mask = options.masks == "all" || kernel.interval_mask == (options.masks == "intervals");
  return mask && has(options.head_dims, kernel.head_dim) &&
         has(options.dtypes, std::string(kernel.bfloat16 ? "bf16" : "fp16"));
}

Result<std::vector<Variant>> variants(const Options& options, const std::vector<gpu::DeviceInfo>& devices) {
  std::vector<Variant> result;
  std::set<std::pair<std::string, std::string>> seen;  // two equal GPUs need one kernel
  for (const gpu::DeviceInfo& device : devices) {
    const gpu::Architecture architecture = gpu::compile_architecture(device);
    std::vector<gpu::KernelVariant> kernels;
    for (const std::string& problem : options.problems) {
      const Result<std::vector<gpu::KernelVariant>> needed = kernels_for(problem, options.functions, device);
      if (!needed.ok()) return needed.status();
      kernels.insert(kernels.end(), needed->begin(), needed->end());
    }
    if (options.problems.empty()) {
      for (gpu::KernelVariant& kernel : gpu::kernel_variants(device, options.whole_table))
        if (wanted(options, kernel)) kernels.push_back(std::move(kernel));
    }
    for (const gpu::KernelVariant& kernel : kernels) {
      gpu::KernelRequest request = kernel.family->request(kernel.config, architecture);
      const std::string what = request.entry_file + request.kernel_name + request.config_text;
      if (!seen.emplace(to_string(architecture), what).second) continue;
      result.push_back({kernel.name + " " + to_string(architecture), std::move(request)});
    }
  }
  if (result.empty())
    return Status::invalid_value(
        "no kernel matches; head dimensions are multiples of 8 up to 256, types bf16 and fp16");
  return result;
}

const char* origin_name(gpu::CubinOrigin origin) {
  switch (origin) {
    case gpu::CubinOrigin::compiled:
      return "compiled";
    case gpu::CubinOrigin::disk:
      return "was there";
    case gpu::CubinOrigin::pack:
      return "in a pack";
  }
  return "";
}

struct Outcome {
  std::vector<std::string> names;
  std::vector<Result<gpu::CubinPointer>> cubins;
  double seconds = 0;
};

Outcome compile_all(const std::vector<Variant>& planned, gpu::Compiler& compiler, int jobs) {
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  Progress progress("compiling", static_cast<std::int64_t>(planned.size()));
  const auto step = static_cast<std::size_t>(jobs);
  for (std::size_t first = 0; first < planned.size(); first += step) {
    std::vector<gpu::KernelRequest> requests;
    for (std::size_t index = first; index < std::min(first + step, planned.size()); ++index) {
      requests.push_back(planned[index].request);
      outcome.names.push_back(planned[index].name);
    }
    for (Result<gpu::CubinPointer>& cubin : compiler.get_many(requests, jobs))
      outcome.cubins.push_back(std::move(cubin));
    progress.advance(static_cast<std::int64_t>(requests.size()));
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

Json to_json(const Outcome& outcome, const std::string& directory) {
  Json kernels = Json::array();
  for (std::size_t index = 0; index < outcome.names.size(); ++index) {
    const Result<gpu::CubinPointer>& result = outcome.cubins[index];
    if (!result.ok()) {
      kernels.push_back({{"kernel", outcome.names[index]}, {"ok", false}, {"error", result.status().message()}});
      continue;
    }
    const gpu::Cubin& cubin = **result;
    kernels.push_back({{"kernel", outcome.names[index]},
                       {"ok", true},
                       {"origin", origin_name(cubin.origin)},
                       {"kept", cubin.kept.ok()},
                       {"key", cubin.key},
                       {"bytes", cubin.image.size()},
                       {"registers", cubin.resources.registers},
                       {"spill_bytes", cubin.resources.spill_store_bytes + cubin.resources.spill_load_bytes},
                       {"performance_warnings", cubin.resources.performance_warnings}});
  }
  return {{"directory", directory}, {"seconds", outcome.seconds}, {"kernels", kernels}};
}

void print(const Outcome& outcome, const std::string& directory) {
  std::vector<std::vector<std::string>> rows;
  int kept = 0;
  for (std::size_t index = 0; index < outcome.names.size(); ++index) {
    const Result<gpu::CubinPointer>& result = outcome.cubins[index];
    if (!result.ok()) {
      rows.push_back({outcome.names[index], paint(Colour::red, "failed"), "", "", ""});
      continue;
    }
    const gpu::Cubin& cubin = **result;
    const int spilled = cubin.resources.spill_store_bytes + cubin.resources.spill_load_bytes;
    kept += cubin.kept.ok() ? 1 : 0;
    const char* origin = cubin.kept.ok() ? origin_name(cubin.origin) : "not kept";
    rows.push_back({outcome.names[index], origin, bytes(static_cast<double>(cubin.image.size())),
                    cubin.resources.known ? std::to_string(cubin.resources.registers) : "",
                    cubin.resources.known ? std::to_string(spilled) : ""});
  }
  std::fputs(table({"kernel", "", "size", "registers", "spilled bytes"}, rows, 2).c_str(), stdout);
  std::printf("\n%d of %zu kernels in %s, %.1f s\n", kept, outcome.names.size(), directory.c_str(), outcome.seconds);
}

int compile(const Options& options) {
  const Result<std::vector<gpu::DeviceInfo>> devices = target_devices(options);
  if (!devices.ok()) return report(devices.status());
  const Result<std::vector<Variant>> planned = variants(options, *devices);
  if (!planned.ok()) return report(planned.status());
  gpu::Settings settings = gpu::settings_from_environment();
  if (!options.pack.empty()) {
    // A pack holds all it should hold, whatever this machine's cache and other packs already have.
    settings.cache_directory = options.pack;
    settings.pack_directories.clear();
  }
  if (settings.cache_directory.empty()) {
    return report(Status::runtime_error(
        "there is no folder to keep kernels in, as HOME is not set; set WARPLOOM_CACHE_DIR, or pass --pack FOLDER"));
  }
  gpu::Compiler compiler(settings);
  const int jobs =
      options.jobs > 0 ? options.jobs : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const Outcome outcome = compile_all(*planned, compiler, jobs);
  if (options.json.prints_text()) print(outcome, settings.cache_directory);
  if (const Status written = options.json.write(to_json(outcome, settings.cache_directory)); !written.ok())
    return report(written);
  for (const Result<gpu::CubinPointer>& cubin : outcome.cubins) {
    if (!cubin.ok()) return report(Status::runtime_error(cubin.status().message()));
    if (!(*cubin)->kept.ok()) return report((*cubin)->kept);
  }
  return exit_success;
}

}  // namespace

void add_compile_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(
      app, "compile", "Fills the cache, or a pack to ship, with kernels; works without a GPU",
      "  warploom compile                                  every kernel for this machine's GPUs, into the cache\n"
      "  warploom compile --arch sm_80 sm_90a --head-dim 64 128 --pack kernels.pack\n"
      "  warploom compile hstu-uniform-B8-L4096-H4-D128-causal-bf16 --arch sm_90a\n"
      "  warploom compile hstu-uniform-B8-L4096-H4-D128-causal-bf16 --score 'z * tanh(softplus(z))' --arch sm_90a\n"
      "A pack is a folder; WARPLOOM_PACKS=kernels.pack makes programs read it.\n");
  CLI::Option* problems = command->add_option("problems", options->problems,
                                              "Only what these problems need (benchmark cases' names, docs/cli.md)");
  command->add_option("--arch", options->architectures,
                      "Architectures, e.g. sm_80 sm_90a; default: those of this machine's GPUs");
  command->add_option("--head-dim", options->head_dims, "Only these head dimensions; default: 8, 16, ... 256")
      ->check(CLI::Range(8, 256))
      ->excludes(problems);
  command->add_option("--dtype", options->dtypes, "Only these types: bf16, fp16")
      ->check(CLI::IsMember({"bf16", "fp16"}))
      ->excludes(problems);
  command->add_option("--leave-out", options->left_out, "Not the kernels whose names contain one of these, e.g. bias")
      ->excludes(problems);
  command->add_option("--mask", options->masks, "sequence (windows, contexts, targets), intervals or all")
      ->check(CLI::IsMember({"sequence", "intervals", "all"}))
      ->excludes(problems)
      ->capture_default_str();
  options->functions.add_to(*command);
  for (const char* name : {"--score", "--mask-function"}) command->get_option(name)->needs(problems);
  command
      ->add_flag("--whole-table", options->whole_table,
                 "The tile table's other rows too, at the ends of their range: what CI compiles")
      ->excludes(problems);
  command->add_option("--pack", options->pack, "Write into this folder instead of the cache");
  command->add_option("--jobs", options->jobs, "Kernels compiled at a time; 0: one for each processor")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  options->json.add_to(*command);
  on_run(*command, [options] { return compile(*options); });
}

}  // namespace warploom::cli
