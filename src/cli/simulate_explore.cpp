// `warploom simulate sweep|design|work|shared|program|machine`: beyond the published model.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/simulate_options.h"
#include "cli/terminal.h"
#include "sim/design.h"
#include "sim/document_pictures.h"
#include "sim/pictures.h"
#include "sim/program_json.h"
#include "sim/share.h"
#include "sim/sweep.h"
#include "sim/work_list.h"

namespace warploom::cli {
namespace {

std::atomic<bool> interrupted{false};

extern "C" void on_interrupt(int) {
  interrupted = true;
}

// While it lives, Ctrl-C ends the work early instead of the process; a second Ctrl-C ends the process.
class KeepOnInterrupt {
 public:
  KeepOnInterrupt() {
    struct sigaction action{};
    action.sa_handler = on_interrupt;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &before_);
  }
  ~KeepOnInterrupt() { sigaction(SIGINT, &before_, nullptr); }
  KeepOnInterrupt(const KeepOnInterrupt&) = delete;
  KeepOnInterrupt& operator=(const KeepOnInterrupt&) = delete;

 private:
  struct sigaction before_{};
};

// A cell of the heat map: its colour behind the figure on a terminal, the figure or a shade in a file.
std::string heat_cell(double share, const std::string& text) {
  if (!is_terminal(stdout) || std::getenv("NO_COLOR") != nullptr) {
    static constexpr const char* kShades[] = {" ", "░", "▒", "▓", "█"};
    return text.find_first_not_of(' ') != std::string::npos ? text : kShades[static_cast<int>(share * 4 + 0.5)];
  }
  const unsigned colour = sim::heat_colour(share);
  return format("\x1b[48;2;%u;%u;%um\x1b[38;2;%sm%s\x1b[0m", colour >> 16, colour >> 8 & 255, colour & 255,
                share > 0.6 ? "0;0;0" : "255;255;255", text.c_str());
}

void print_heat_map(const sim::Sweep& sweep) {
  const sim::SweepRequest& request = sweep.request;
  const std::size_t columns = request.x.values.size(), rows = sweep.values.size() / columns;
  const std::pair<double, double> range = sim::bounds(sweep).value_or(std::pair{0.0, 0.0});
  // Figures where they fit a line of a terminal, else one shade a cell.
  std::size_t cell = 0;
  for (const std::string& value : request.x.values) cell = std::max(cell, value.size());
  for (const std::optional<double>& value : sweep.values)
    if (value) cell = std::max(cell, sim::value_text(sweep, *value).size());
  const bool figures = columns * (cell + 1) <= 110;
  std::size_t margin = request.y.name.size();
  for (const std::string& value : request.y.values) margin = std::max(margin, value.size());
  const auto share = [&](double value) {
    return range.second > range.first ? (value - range.first) / (range.second - range.first) : 1.0;
  };

  std::printf("%s over %s%s%s\n", sim::to_string(request.metric), request.x.name.c_str(), rows > 1 ? " and " : "",
              request.y.name.c_str());
  if (figures) {
    std::printf("%*s", static_cast<int>(margin), request.y.name.c_str());
    for (const std::string& value : request.x.values) std::printf(" %*s", static_cast<int>(cell), value.c_str());
    std::printf("   %s\n", request.x.name.c_str());
  }
  for (std::size_t y = 0; y < rows; ++y) {
    std::printf("%*s", static_cast<int>(margin), request.y.name.empty() ? "" : request.y.values[y].c_str());
    if (!figures) std::printf(" ");
    for (std::size_t x = 0; x < columns; ++x) {
      const std::optional<double>& value = sweep.values[y * columns + x];
      const std::string text =
          !figures ? (value ? " " : "×")
                   : format(" %*s", static_cast<int>(cell), value ? sim::value_text(sweep, *value).c_str() : "-");
      std::printf("%s", value ? heat_cell(share(*value), text).c_str() : text.c_str());
    }
    std::printf("\n");
  }
  if (!figures)
    std::printf("%*s %s %s .. %s\n", static_cast<int>(margin), "", request.x.name.c_str(),
                request.x.values.front().c_str(), request.x.values.back().c_str());
  if (sim::bounds(sweep))
    std::printf("%s .. %s\n", sim::value_text(sweep, range.first).c_str(),
                sim::value_text(sweep, range.second).c_str());
  for (const std::string& refusal : sweep.refusals) std::printf("no value: %s\n", refusal.c_str());
  std::printf("%s\n", paint(Colour::dim, sim::kOptimism).c_str());
}

// Work that may be interrupted: what is done is kept and said, and the exit code tells.
int finish_interrupted(std::int64_t done, std::int64_t all) {
  if (done == all) return exit_success;
  return report(Status::runtime_error("interrupted: " + with_commas(done) + " of " + with_commas(all) +
                                      " done; the rest is missing above"));
}

struct SweepOptions {
  ParameterOptions parameters;
  std::string x, y, metric = "TC", svg;
  unsigned threads = 0;
  JsonOption json;
};

int run_sweep(sim::ScenarioKind kind, const SweepOptions& options) {
  const Result<sim::Axis> x = sim::parse_axis(options.x);
  const Result<sim::Axis> y = options.y.empty() ? Result<sim::Axis>(sim::Axis{}) : sim::parse_axis(options.y);
  const Result<sim::Metric> metric = sim::parse_metric(options.metric);
  for (const Status& status : {x.status(), y.status(), metric.status()})
    if (!status.ok()) return report(status);
  const KeepOnInterrupt keep;
  const auto points = static_cast<std::int64_t>(x->values.size() * std::max<std::size_t>(y->values.size(), 1));
  Result<sim::Sweep> sweep = [&] {
    Progress progress("sweep", points);
    return sim::sweep({kind, options.parameters.given(), *x, *y, *metric},
                      {options.threads, &interrupted, [&](std::int64_t done) { progress.update(done); }});
  }();
  if (!sweep.ok()) return report(sweep.status());
  if (options.json.prints_text()) print_heat_map(*sweep);
  for (const Status& status : {write_if_given("--svg", options.svg, [&] { return sim::heat_map_svg(*sweep); }),
                               options.json.write(sim::sweep_json(*sweep))})
    if (!status.ok()) return report(status);
  return finish_interrupted(sweep->done, sweep->points());
}

template <typename Scenario>
void add_sweep_command(CLI::App& parent, const char* name, sim::ScenarioKind kind, const char* examples) {
  auto options = std::make_shared<SweepOptions>();
  CLI::App* command = add_command(parent, name, "Two parameters at once", examples);
  command->add_option("--x", options->x, "NAME=2..8, NAME=300..3000:300, NAME=16..256*2 or NAME=a,b")
      ->required()
      ->type_name("AXIS");
  command->add_option("--y", options->y, "A second axis")->type_name("AXIS");
  command->add_option("--metric", options->metric, "TC or MEM (percent busy), or makespan")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads (0: one a core)")
      ->type_name("N")
      ->check(CLI::Range(0, 1024));
  is_written(command->add_option("--svg", options->svg, "Write the heat map as SVG")->type_name("FILE"));
  options->parameters.add_to<Scenario>(*command);
  options->json.add_to(*command);
  on_run(*command, [kind, options] { return run_sweep(kind, *options); });
}

void print_designs(const std::vector<sim::Design>& designs, std::size_t most) {
  const auto row = [](const sim::Design& d) -> std::vector<std::string> {
    return {
        d.shape,
        d.roles,
        std::to_string(d.stages),
        format("%.0f KB", static_cast<double>(d.shared_memory) / 1024),
        format("%lld+%lld", static_cast<long long>(d.producer_registers), static_cast<long long>(d.consumer_registers)),
        with_commas(d.makespan),
        sim::fixed(d.useful, 2),
        sim::fixed(d.tensor_busy, 2),
        d.limiter,
        d.pareto ? "*" : ""};
  };
  const std::vector<std::string> head = {"tile",     "roles",    "stages", "memory",  "registers",
                                         "makespan", "useful %", "TC %",   "limiter", "Pareto"};
  std::vector<std::vector<std::string>> best, front;
  std::map<std::string, std::pair<int, std::string>> reasons;
  for (const sim::Design& d : designs) {
    if (!d.infeasible.empty()) {
      auto& [count, example] = reasons[d.infeasible.substr(0, d.infeasible.find(':'))];
      if (count++ == 0)
        example = d.shape + ", " + d.roles + ", " + std::to_string(d.stages) + " stages: " + d.infeasible;
      continue;
    }
    if (best.size() < most) best.push_back(row(d));
    if (d.pareto) front.push_back(row(d));
  }
  std::printf("%s", table(head, best, 2).c_str());
  std::printf("\n%s\n%s", paint(Colour::bold, "Pareto front of shared memory against use").c_str(),
              table(head, front, 2).c_str());
  if (!best.empty()) std::printf("\nbest design's critical path: %s\n", designs.front().path.c_str());
  if (!reasons.empty()) std::printf("\n%s\n", paint(Colour::bold, "infeasible (--json lists each)").c_str());
  for (const auto& [reason, entry] : reasons) std::printf("  %4d  %s\n", entry.first, entry.second.c_str());
  std::printf("%s\n", paint(Colour::dim, sim::kOptimism).c_str());
}

template <typename Space>
struct DesignOptions {
  std::string machine = "h100";
  Space space;
  std::size_t most = 12;
  JsonOption json;
};

template <typename Space>
int run_design(const DesignOptions<Space>& options) {
  const Result<sim::Machine> machine = sim::find_machine(options.machine);
  if (!machine.ok()) return report(machine.status());
  Space space = options.space;
  space.machine = *machine;
  const KeepOnInterrupt keep;
  const Result<std::vector<sim::Design>> designs = sim::search(space, {0, &interrupted, {}});
  if (!designs.ok()) return report(designs.status());
  if (options.json.prints_text()) print_designs(*designs, options.most);
  if (const Status status = options.json.write(sim::designs_json(*designs)); !status.ok()) return report(status);
  return interrupted ? report(Status::runtime_error("interrupted: designs are missing above")) : exit_success;
}

template <typename Space, typename AddFields>
void add_design_command(CLI::App& parent, const char* name, const char* examples, AddFields add_fields) {
  auto options = std::make_shared<DesignOptions<Space>>();
  CLI::App* command =
      add_command(parent, name, "Every tile, stage count, role and register split, best first", examples);
  command->add_option("--machine", options->machine, "h100, h200, a100, b200 or a machine file")->capture_default_str();
  command->add_option("--top", options->most, "Designs to print")->capture_default_str();
  add_fields(*command, options->space);
  options->json.add_to(*command);
  on_run(*command, [options] { return run_design(*options); });
}

template <typename T>
void add_field(CLI::App& command, const char* flag, T& field, const char* help) {
  CLI::Option* option = command.add_option(flag, field, help)->capture_default_str();
  if constexpr (!std::is_arithmetic_v<T>) option->delimiter(',');
}

void add_design_commands(CLI::App& simulate) {
  CLI::App* design =
      add_command(simulate, "design", "Design search by the model", "  warploom simulate design gemm --k 512\n");
  design->require_subcommand(1);
  add_design_command<sim::GemmDesignSpace>(
      *design, "gemm", "  warploom simulate design gemm --m 8192 --n 8192 --k 512 --machine h200\n",
      [](CLI::App& command, sim::GemmDesignSpace& space) {
        add_field(command, "--m", space.m, "Rows of the output");
        add_field(command, "--n", space.n, "Columns of the output");
        add_field(command, "--k", space.k, "Length of the sum");
        add_field(command, "--element-bytes", space.element_bytes, "Bytes of an operand");
        add_field(command, "--tile-m", space.tile_m, "Tile rows to try");
        add_field(command, "--tile-n", space.tile_n, "Tile columns to try");
        add_field(command, "--tile-k", space.tile_k, "Step lengths to try");
        add_field(command, "--stages", space.stages, "Stages to try");
        add_field(command, "--consumers", space.consumers, "Consumer warpgroups to try");
      });
  add_design_command<sim::AttentionDesignSpace>(
      *design, "attention", "  warploom simulate design attention --length 8192 --head-dim 64\n",
      [](CLI::App& command, sim::AttentionDesignSpace& space) {
        add_field(command, "--length", space.length, "Queries and keys of a sequence");
        add_field(command, "--batch", space.batch, "Sequences");
        add_field(command, "--heads", space.heads, "Heads");
        add_field(command, "--head-dim", space.head_dim, "Head dimension");
        add_field(command, "--keys", space.keys, "Keys of a block to try");
        add_field(command, "--kv-stages", space.kv_stages, "K/V blocks in the ring to try");
      });
}

struct WorkOptions {
  ParameterOptions parameters;
  sim::WorkProblem problem;
  std::string sms = "132", svg;
  bool full = false;
  JsonOption json;
};

int run_work(const WorkOptions& options) {
  sim::WorkProblem problem = options.problem;
  problem.attention.variant = sim::Variant::inter;
  problem.causal = !options.full;
  if (const Status status = sim::configure(problem.attention, options.parameters.given()); !status.ok())
    return report(status);
  const Result<sim::Axis> counts = sim::parse_axis("sms=" + options.sms);
  if (!counts.ok()) return report(counts.status());
  Json json = Json::array();
  std::vector<std::vector<std::string>> rows;
  Result<std::vector<sim::Cycles>> costs = std::vector<sim::Cycles>();
  for (const std::string& text : counts->values) {
    const Result<std::int64_t> sms = sim::parse_whole("sms", text);
    if (!sms.ok()) return report(sms.status());
    problem.sms = *sms;
    if (const Status status = sim::validate(problem); !status.ok()) return report(status);
    if (costs->empty()) costs = sim::item_costs(problem);
    if (!costs.ok()) return report(costs.status());
    json.push_back(sim::work_json(problem, *costs));
    std::vector<std::string> row = {text};
    for (const auto& entry : json.back()["schedules"])
      row.push_back(with_commas(entry["makespan"].get<sim::Cycles>()) + " / " +
                    with_commas(entry["tail"].get<sim::Cycles>()) + " / " +
                    sim::fixed(entry["balance"].get<double>(), 1) + " %");
    rows.push_back(std::move(row));
  }
  if (options.json.prints_text()) {
    std::printf("%s work items; makespan / tail (cycles) / mean busy\n",
                with_commas(static_cast<long long>(costs->size())).c_str());
    std::printf(
        "%s",
        table({"SMs", "in order, static", "in order, dynamic", "longest first, static", "longest first, dynamic"}, rows)
            .c_str());
    std::printf("%s\n", paint(Colour::dim, sim::kOptimism).c_str());
  }
  const auto picture = [&] {
    const sim::Schedule best = sim::schedule(*costs, problem.sms, sim::Order::longest_first, sim::Assignment::dynamic);
    sim::Run run{
        "longest first, dynamic", problem.attention.machine, sim::schedule_model(*costs, best), {}, std::nullopt, {}};
    run.timeline = sim::run(run.model, {.trace = true});
    return sim::timeline_svg(run, run.timeline.makespan);
  };
  for (const Status& status :
       {write_if_given("--svg", options.svg, picture), options.json.write(json.size() == 1 ? json[0] : json)})
    if (!status.ok()) return report(status);
  return exit_success;
}

void add_work_command(CLI::App& simulate) {
  auto options = std::make_shared<WorkOptions>();
  CLI::App* command = add_command(simulate, "work", "Attention's work items over SMs: order, assignment, tail",
                                  "  warploom simulate work --length 4096 --batch 8 --heads 4 --sms 66,132\n"
                                  "  warploom simulate work --sms 1..132\n");
  add_field(*command, "--length", options->problem.length, "Queries and keys of a sequence");
  add_field(*command, "--batch", options->problem.batch, "Sequences");
  add_field(*command, "--heads", options->problem.heads, "Heads");
  command->add_option("--sms", options->sms, "SMs: 132, 66,132 or 1..132")->capture_default_str();
  command->add_flag("--full", options->full, "No causal mask");
  is_written(command->add_option("--svg", options->svg, "Write longest first, dynamic as SVG")->type_name("FILE"));
  options->parameters.add_to<sim::AttentionScenario>(*command);
  options->json.add_to(*command);
  on_run(*command, [options] { return run_work(*options); });
}

void add_shared_command(CLI::App& simulate) {
  struct Options {
    ParameterOptions parameters;
    sim::SharedMemorySystem system;
    RunOutput output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(simulate, "shared", "Several SMs that share the GPU's memory",
                                  "  warploom simulate shared --sms 132 --k 1024\n"
                                  "  warploom simulate shared --sms 132 --k 1024 --l2-hit 0.8\n");
  add_field(*command, "--sms", options->system.sms, "SMs");
  add_field(*command, "--total-bandwidth", options->system.total_bandwidth,
            "Bytes per cycle of all SMs (0: the machine's DRAM)");
  add_field(*command, "--l2-hit", options->system.l2_hit, "Share of the bytes that the L2 serves");
  options->parameters.add_to<sim::GemmScenario>(*command);
  options->output.add_to(*command);
  on_run(*command, [options] {
    sim::GemmScenario scenario;
    if (const Status status = sim::configure(scenario, options->parameters.given()); !status.ok())
      return report(status);
    const Result<sim::Run> run = sim::run_shared(scenario, options->system, {.trace = true});
    return run.ok() ? options->output.finish(*run) : report(run.status());
  });
}

void add_program_command(CLI::App& simulate) {
  struct Options {
    std::string file, machine = "h100";
    RunOutput output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(simulate, "program", "Your own programs, from a JSON file",
                                  "  warploom simulate program mine.json --svg mine.svg\n");
  command->add_option("file", options->file, "The program (docs/simulator.md)")->required()->type_name("FILE.json");
  command->add_option("--machine", options->machine, "Whose clock converts cycles to time")->capture_default_str();
  options->output.add_to(*command);
  on_run(*command, [options] {
    const Result<sim::Machine> machine = sim::find_machine(options->machine);
    if (!machine.ok()) return report(machine.status());
    std::ifstream file(options->file);
    if (!file)
      return report(
          Status::invalid_value("file = '" + options->file + "' cannot be read; give the path of a JSON program"));
    std::ostringstream text;
    text << file.rdbuf();
    const Result<sim::Run> run = sim::run_program(text.str(), *machine, options->file, {.trace = true});
    return run.ok() ? options->output.finish(*run) : report(run.status());
  });
}

void add_machine_command(CLI::App& simulate) {
  struct Options {
    std::string name = "h100";
    JsonOption json;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(simulate, "machine", "A machine's numbers, to start a machine file from",
                                  "  warploom simulate machine h100 --json mine.json\n");
  command->add_option("name", options->name, "h100, h200, a100, b200 or a machine file")->capture_default_str();
  options->json.add_to(*command);
  on_run(*command, [options] {
    const Result<sim::Machine> machine = sim::find_machine(options->name);
    if (!machine.ok()) return report(machine.status());
    if (options->json.prints_text()) std::printf("%s\n", sim::machine_to_json(*machine).c_str());
    const Status status = options->json.write(Json::parse(sim::machine_to_json(*machine)));
    return status.ok() ? exit_success : report(status);
  });
}

void add_pictures_command(CLI::App& simulate) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = add_command(simulate, "pictures", "Regenerate the documentation's pictures",
                                  "  warploom simulate pictures docs/pictures\n");
  command->add_option("folder", *folder, "Where they go")->required()->check(CLI::ExistingDirectory);
  on_run(*command, [folder] {
    const Result<std::vector<sim::DocumentPicture>> pictures = sim::document_pictures();
    if (!pictures.ok()) return report(pictures.status());
    for (const sim::DocumentPicture& picture : *pictures) {
      const std::string path = *folder + "/" + picture.file;
      if (const Status status = write_file("pictures", path, picture.svg); !status.ok()) return report(status);
      std::printf("%s\n", path.c_str());
    }
    return static_cast<int>(exit_success);
  });
}

}  // namespace

void add_simulate_explore_commands(CLI::App& simulate) {
  CLI::App* sweep = add_command(simulate, "sweep", "A figure over two parameters, as a heat map",
                                "  warploom simulate sweep gemm --x stages=2..8 --y latency=300..3000:300\n");
  sweep->require_subcommand(1);
  add_sweep_command<sim::GemmScenario>(
      *sweep, "gemm", sim::ScenarioKind::gemm,
      "  warploom simulate sweep gemm --x stages=2..8 --y latency=300..3000:300 --scheme cp_async\n");
  add_sweep_command<sim::AttentionScenario>(
      *sweep, "attention", sim::ScenarioKind::attention,
      "  warploom simulate sweep attention --x variant=serial,inter,intra,both --y exp-rate=4..64*2\n");
  add_design_commands(simulate);
  add_work_command(simulate);
  add_shared_command(simulate);
  add_program_command(simulate);
  add_machine_command(simulate);
  add_pictures_command(simulate);
}

}  // namespace warploom::cli
