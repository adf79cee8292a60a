#include "cli/explain_command.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/case_name.h"
#include "cli/command.h"
#include "cli/devices.h"
#include "cli/function_options.h"
#include "cli/gemm_case.h"
#include "cli/history_data.h"
#include "cli/json_text.h"
#include "cli/library_text.h"
#include "cli/terminal.h"

namespace warploom::cli {
namespace {

struct Options {
  std::string name;
  std::string device = "auto";
  FunctionOptions functions;
  JsonOption json;
};

Result<Json> plan(const ProblemConfig& config, const Device& device, bool backward) {
  // The plan follows from shapes and lengths: the tensors' memory is never touched.
  Problem problem = make_problem(config, backward, Contents::untouched);
  const Result<warploom_attention> call =
      backward ? backward_call(problem, device.execution()) : forward_call(problem, device.execution());
  if (!call.ok()) return call.status();
  const Result<std::string> text = explain(*call);
  if (!text.ok()) return text.status();
  return parse_library_json(*text);
}

int explain_gemm(const Options& options) {
  const Result<GemmCase> gemm = parse_gemm_case(options.name);
  if (!gemm.ok()) return report(gemm.status());
  warploom_gemm call = describe_case(*gemm);
  Json result = {{"case", options.name}};
  // Left to itself it is about the GPU's kernels, whether there is a GPU or not.
  if (options.device != "auto") {
    const Result<Device> device = choose_device(options.device);
    if (!device.ok()) return report(device.status());
    call.device = device->cuda ? WARPLOOM_CUDA : WARPLOOM_CPU;
    call.device_index = device->ordinal;
    result["device"] = device->name;
  }
  char* text = nullptr;
  if (Status status = detail::status_of(warploom_gemm_explain(&call, &text)); !status.ok()) return report(status);
  const Result<Json> plan = parse_library_json(text);
  warploom_free(text);
  if (!plan.ok()) return report(plan.status());
  result.update(*plan);
  if (options.json.prints_text()) std::fputs(json_text(result).c_str(), stdout);
  return report_if_error(options.json.write(result));
}

int explain_problem(const Options& options) {
  if (is_gemm_name(options.name)) return explain_gemm(options);
  const Result<Case> problem = parse_case(options.name);
  if (!problem.ok()) return report(problem.status());
  const Result<Device> device = choose_device(options.device);
  if (!device.ok()) return report(device.status());
  Result<ProblemConfig> config = config_of(*problem, movielens_shape());
  if (!config.ok()) return report(config.status());
  options.functions.apply_to(*config);

  Json result = {{"case", case_name(*problem)}, {"device", device->name}};
  Status worst;
  for (const bool backward : {false, true}) {
    const char* pass = backward ? "backward" : "forward";
    const Result<Json> answer = plan(*config, *device, backward);
    result[pass] = answer.ok() ? *answer : Json{{"not_served", answer.status().message()}};
    if (!answer.ok() && !backward) worst = answer.status();
  }
  if (options.json.prints_text()) std::fputs(json_text(result).c_str(), stdout);
  if (const Status written = options.json.write(result); !written.ok()) return report(written);
  return report_if_error(worst);
}

}  // namespace

void add_explain_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      add_command(app, "explain", "Which kernel, tile and schedule a problem gets, and why",
                  "  warploom explain hstu-uniform-B8-L4096-H4-D128-causal-bf16\n"
                  "  warploom explain gemm-8192x8192x8192-bf16\n"
                  "  warploom explain gemm-64x4096x4096-fp8-bias-silu --device cpu\n"
                  "  warploom explain softmax-jagged-B64-L256..2048-H8-Hkv2-D64-full-fp32 --device cpu\n"
                  "  warploom explain hstu-jagged-B64-L256..2048-H4-D128-causal-ctx4-tgt64-bf16 --json\n"
                  "  warploom explain hstu-uniform-B8-L4096-H4-D128-causal-bf16 --score 'z * tanh(softplus(z))'\n");
  command->add_option("problem", options->name, "A benchmark case's name, see docs/cli.md")->required();
  options->functions.add_to(*command);
  add_device_option(*command, options->device);
  options->json.add_to(*command);
  on_run(*command, [options] { return explain_problem(*options); });
}

}  // namespace warploom::cli
