#include "cli/trace_command.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/case_name.h"
#include "cli/command.h"
#include "cli/devices.h"
#include "cli/gemm_case.h"
#include "cli/gemm_memory.h"
#include "cli/history_data.h"
#include "cli/runner.h"
#include "cli/simulate_options.h"
#include "cli/terminal.h"
#include "cli/trace_rung.h"
#include "trace/report.h"

namespace warploom::cli {
namespace {

struct Options {
  std::string name;
  std::string device = "auto";
  std::string machine = "h200";
  std::string op, pass = "forward";  // attention
  std::int64_t head_dim = 128;       // of a problem without a name
  std::string detail = "steps";
  std::string rung_name;  // of the GEMM ladder
  std::optional<Rung> rung;
  bool compare = false;
  trace::TraceOptions trace;
  RunOutput output;
};

Result<trace::TracedRun> trace_gemm(const Options& options, const Device& device) {
  const Result<GemmCase> gemm = parse_gemm_case(options.name);
  if (!gemm.ok()) return gemm.status();
  const Result<gpu::ContextScope> context = gpu::ContextScope::enter(device.ordinal);
  if (!context.ok()) return context.status();
  GemmMemory memory(**gpu::driver());
  if (Status status = memory.fill(*gemm, device.ordinal); !status.ok()) return status;
  if (options.rung) return trace_rung(*options.rung, memory.call(), options.trace);
  return trace::traced_run(memory.call(), options.trace);
}

Result<trace::TracedRun> trace_attention(const Options& options, const Device& device) {
  const Result<Case> problem = parse_case(options.name);
  if (!problem.ok()) return problem.status();
  const Result<ProblemConfig> config = config_of(*problem, movielens_shape());
  if (!config.ok()) return config.status();
  const bool backward = options.pass == "backward";
  Problem memory = make_problem(*config, backward);
  Result<Runner> runner = Runner::make(memory, device, backward);
  if (!runner.ok()) return runner.status();
  if (backward) {  // which reads what forward wrote
    if (const Result<double> forward = runner->run(/*backward=*/false); !forward.ok()) return forward.status();
  }
  return trace::traced_run(runner->device_call(backward), options.trace);
}

/// The problem's name: the one that was given, or the standard problem of the operator.
Result<std::string> name_of(const Options& options, bool gemm) {
  if (gemm) return options.name;
  if (!options.op.empty() && options.op != "hstu" && options.op != "softmax")
    return Status::invalid_value("op = '" + options.op + "' must be hstu or softmax");
  if (options.pass != "forward" && options.pass != "backward")
    return Status::invalid_value("pass = '" + options.pass + "' must be forward or backward");
  if (options.name.empty()) {
    Case standard;
    standard.softmax = options.op == "softmax";
    standard.head_dim = standard.value_dim = options.head_dim;
    return case_name(standard);
  }
  if (!options.op.empty() && !options.name.starts_with(options.op + "-")) {
    return Status::invalid_value("op = '" + options.op + "' contradicts the problem's name, " + options.name +
                                 "; leave one of them out");
  }
  return options.name;
}

/// The name, before a device is looked for.
Status check_name(const std::string& name, bool gemm) {
  if (gemm != is_gemm_name(name)) {
    return Status::invalid_value(name + (gemm ? " is no matrix product; write gemm-MxNxK-TYPE, e.g. "
                                                "gemm-8192x8192x8192-bf16, or use `warploom trace attention`"
                                              : " is a matrix product; use `warploom trace gemm`"));
  }
  return gemm ? parse_gemm_case(name).status() : parse_case(name).status();
}

std::string cells(const trace::Activity& activity) {
  if (activity.count == 0) return "-";
  return format("%.0f x %.0f", activity.count, activity.mean);
}

std::string percent(const trace::Activity& activity) {
  return activity.count == 0 ? "-" : format("%.1f", activity.share);
}

void print_comparison(const trace::Comparison& comparison) {
  std::printf("\n%s\n",
              paint(Colour::bold, "beside the model (for each warp: times x cycles, share of the makespan)").c_str());
  std::vector<std::vector<std::string>> rows;
  for (const trace::ComparedRow& row : comparison.rows) {
    rows.push_back({row.tag, row.what, cells(row.model), cells(row.measured), percent(row.model), percent(row.measured),
                    format("%+.1f", row.measured.share - row.model.share)});
  }
  std::fputs(table({"tag", "what", "model", "measured", "model %", "measured %", "points"}, rows, 2).c_str(), stdout);
  std::printf("  makespan %s cycles, the model's %s; products under way %.1f %% of it, the model's %.1f %%\n",
              with_commas(comparison.measured_makespan).c_str(), with_commas(comparison.model_makespan).c_str(),
              comparison.measured_tensor, comparison.model_tensor);
  std::printf("  %s\n", comparison.verdict.c_str());
}

/// The other schedules that the model knows, for the same work.
void print_schedules(const trace::Report& report) {
  if (report.schedules.empty()) return;
  std::vector<std::vector<std::string>> rows;
  for (const trace::ScheduledModel& model : report.schedules)
    rows.push_back({"model, " + model.name, with_commas(model.makespan), format("%.1f", model.tensor)});
  rows.push_back({"measured", with_commas(report.comparison->measured_makespan),
                  format("%.1f", report.comparison->measured_tensor)});
  std::printf("\n%s\n", paint(Colour::bold, "the schedules of the model").c_str());
  std::fputs(table({"schedule", "cycles", "products under way %"}, rows, 1).c_str(), stdout);
  std::printf("  %s\n", paint(Colour::dim, sim::kOptimism).c_str());
}

void print_report(const trace::Report& report, const std::string& name, const sim::Window& window) {
  const sim::Run& run = report.run;
  std::printf("%s\n", paint(Colour::bold, name + ", measured: " + run.title).c_str());
  std::printf("  %s cycles = %.1f us at %.2f GHz, %s marks\n", with_commas(run.timeline.makespan).c_str(),
              sim::microseconds(run.machine, run.timeline.makespan), run.machine.clock_ghz,
              with_commas(run.timeline.events).c_str());
  print_lanes(run, window);
  if (const std::optional<double> slow_down = report.slow_down()) {
    std::printf("  the kernel takes %.4f ms, with marks %.4f ms: %+.2f %%\n", report.plain_ms, report.traced_ms,
                *slow_down);
  }
  std::printf(
      "  order of the marks: %s pairs, %s\n", with_commas(report.order.checked).c_str(),
      report.order.violated == 0
          ? "all as the barriers promise"
          : paint(Colour::red, with_commas(report.order.violated) + " are not as the barriers promise").c_str());
  for (const std::string& violation : report.order.violations) std::printf("    %s\n", violation.c_str());
  if (report.comparison) print_comparison(*report.comparison);
  print_schedules(report);
}

int trace_problem(Options options, bool gemm) {
  const Result<std::string> name = name_of(options, gemm);
  if (!name.ok()) return warploom::cli::report(name.status());
  options.name = *name;
  if (Status status = check_name(options.name, gemm); !status.ok()) return warploom::cli::report(status);
  if (!options.rung_name.empty()) {
    const Result<Rung> rung = find_rung(options.rung_name);
    if (!rung.ok()) return warploom::cli::report(rung.status());
    options.rung = *rung;
  }
  const Result<sim::Machine> machine = sim::find_machine(options.machine);
  if (!machine.ok()) return warploom::cli::report(machine.status());
  options.trace.machine = *machine;
  const Result<trace::Level> level = trace::parse_level(options.detail);
  if (!level.ok()) return warploom::cli::report(level.status());
  options.trace.level = *level;
  if (Status status = trace::validate(options.trace); !status.ok()) return warploom::cli::report(status);
  const Result<Device> device = choose_device(options.device);
  if (!device.ok()) return warploom::cli::report(device.status());
  if (!device->cuda) {
    return warploom::cli::report(Status::runtime_error(
        "what is traced are the kernels for Hopper GPUs; there is none here. `warploom simulate` shows the model"));
  }
  const Result<trace::TracedRun> traced = gemm ? trace_gemm(options, *device) : trace_attention(options, *device);
  if (!traced.ok()) return warploom::cli::report(traced.status());
  const Result<trace::Report> report = trace::report_of(*traced, options.compare);
  if (!report.ok()) return warploom::cli::report(report.status());
  const int written = options.output.finish(
      report->run, [&](const sim::Window& window) { print_report(*report, options.name, window); },
      [&](const sim::Window& window) {
        Json json = {{"case", options.name}};
        if (!gemm) json["pass"] = options.pass;
        json.update(Json(trace::report_json(*report, window)));
        return json;
      });
  if (written != exit_success) return written;
  return report->order.violated == 0 ? exit_success : exit_check_failed;
}

void add_kind(CLI::App& parent, bool gemm) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      gemm ? add_command(parent, "gemm", "The matrix product's kernel",
                         "  warploom trace gemm gemm-8192x8192x8192-bf16 --compare --until 20000\n"
                         "  warploom trace gemm gemm-65536x2048x512-bf16 --svg gemm.svg --perfetto gemm.json\n"
                         "  warploom trace gemm gemm-4096x4096x4096-bf16 --rung cp-async --until 20000\n")
           : add_command(parent, "attention", "The attention kernels, forward and backward",
                         "  warploom trace attention hstu-uniform-B8-L4096-H4-D128-causal-bf16 --compare\n"
                         "  warploom trace attention --op softmax --head-dim 64 --pass backward --perfetto out.json\n"
                         "  warploom trace attention --pass backward --head-dim 256 --kernel dq --rounds 20\n");
  CLI::Option* problem = command->add_option("problem", options->name, "A benchmark case's name, see docs/cli.md");
  add_device_option(*command, options->device);
  if (gemm) {
    problem->required();
    command->add_option("--rung", options->rung_name, "A rung of the GEMM ladder instead of the kernel that is fastest")
        ->type_name("NAME");
  } else {
    command->add_option("--pass", options->pass, "Which pass")->type_name("forward|backward")->capture_default_str();
    command->add_option("--op", options->op, "The operator, where no problem is named (hstu)")
        ->type_name("hstu|softmax");
    command
        ->add_option("--head-dim", options->head_dim,
                     "Without a name: of OP-uniform-B8-L4096-H4-DN-causal-bf16, the problem that is traced then")
        ->type_name("N")
        ->capture_default_str();
    command->add_option("--kernel", options->trace.kernel, "Of a call that runs several: the one to trace")
        ->type_name("forward|backward|keys|dq");
  }
  command->add_option("--cta", options->trace.cta, "The CTA to show; -1: one whose marks cost least")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--record", options->trace.record, "CTAs that record, from --cta on; 0: all, which costs most")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--compare", options->compare, "The simulator's run of the same work beside it");
  command->add_option("--machine", options->machine, "The simulator's machine: a name, or a file of machine rates")
      ->type_name("NAME|FILE")
      ->capture_default_str();
  command
      ->add_option("--detail", options->detail,
                   "steps: all marks, which slow consumers down; rings: loads and what becomes of them")
      ->type_name("steps|rings")
      ->capture_default_str();
  command->add_option("--capacity", options->trace.capacity, "Marks that each warp has room for")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--rounds", options->trace.rounds, "Rounds of timing with and without marks; 0: no timing")
      ->type_name("N")
      ->capture_default_str();
  options->output.add_to(*command);
  on_run(*command, [options, gemm] { return trace_problem(*options, gemm); });
}

}  // namespace

void add_trace_command(CLI::App& app) {
  CLI::App* command =
      add_command(app, "trace", "The real kernel, traced: what each warp did when, as `simulate` shows it",
                  "  warploom trace gemm gemm-8192x8192x8192-bf16 --compare\n"
                  "  warploom trace attention hstu-uniform-B8-L4096-H4-D128-causal-bf16 --until 30000\n");
  command->require_subcommand(1);
  add_kind(*command, true);
  add_kind(*command, false);
}

}  // namespace warploom::cli
