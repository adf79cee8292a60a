#include "cli/demo_command.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_record.h"
#include "cli/command.h"
#include "cli/demo_batch.h"
#include "cli/devices.h"
#include "cli/history_data.h"
#include "cli/judge.h"
#include "cli/memory_use.h"
#include "cli/numbers.h"
#include "cli/runner.h"
#include "cli/terminal.h"
#include "history/read.h"
#include "problem/sequence.h"

namespace warploom::cli {
namespace {

using history::Histories;
using std::int64_t;

struct Options {
  std::string file;
  history::ReadOptions read;
  int64_t sequences = 0, max_length = 0;
  int64_t heads = 4, head_dim = 64;
  std::uint64_t seed = 1;
  int threads = 0;
  std::string device = "auto";
  JsonOption json;
};

struct Source {
  history::ReadResult read;
  std::string name;   ///< what the user calls it
  std::string path;   ///< empty: made up
  std::string notes;  ///< lines to print below
  double read_ms = 0;
};

/// The file that was named, else MovieLens-100k, else made-up histories.
Result<Source> find_histories(const Options& options) {
  Source source;
  const std::optional<std::string> file = options.file.empty() ? find_movielens() : options.file;
  if (!file) {
    source.read.histories = history::generate(943, 1682, options.seed);
    source.name = "generated histories";
    source.notes =
        "The MovieLens-100k file is not here (set-up was offline?): these histories are made up, with lengths like\n"
        "its own. `make demo` fetches the file when there is a network; --history FILE reads one of yours.\n";
    return source;
  }
  const auto start = std::chrono::steady_clock::now();
  // A name for a column is only taken for the file that it was given for.
  Result<history::ReadResult> read =
      history::read_history_file(*file, options.file.empty() ? history::ReadOptions() : options.read);
  if (!read.ok()) return read.status();
  source.read_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  source.read = *std::move(read);
  source.name = options.file.empty() ? "MovieLens-100k" : std::filesystem::path(*file).filename().string();
  source.path = *file;
  if (source.read.broken_lines > 0) {
    source.notes = with_commas(source.read.broken_lines) +
                   " broken lines were left out, the first: " + source.read.first_broken + "\n";
  }
  if (source.read.histories.num_events() == 0)
    return Status::runtime_error(*file + ": there are no events in this file, only a header; give one event a line");
  return source;
}

/// A bar for each range of lengths; ranges double.
std::string histogram(const std::vector<int64_t>& lengths) {
  std::vector<std::pair<int64_t, int64_t>> ranges;  // [first, last]
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (int64_t first = 1; first <= longest;) {
    const int64_t last = first < 16 ? 15 : first + first / 2 - (first % 2 == 0 ? 1 : 0);
    ranges.emplace_back(first, last);
    first = last + 1;
  }
  std::vector<int64_t> counts;
  for (const auto& [first, last] : ranges) {
    counts.push_back(std::count_if(lengths.begin(), lengths.end(),
                                   [&, a = first, b = last](int64_t length) { return a <= length && length <= b; }));
  }
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  std::string text;
  bool started = false;
  for (std::size_t index = 0; index < ranges.size(); ++index) {
    started |= counts[index] > 0;
    if (!started) continue;
    const double share = static_cast<double>(counts[index]) / static_cast<double>(std::max<int64_t>(most, 1));
    text += format("  %5lld to %-5lld ", static_cast<long long>(ranges[index].first),
                   static_cast<long long>(std::min(ranges[index].second, longest))) +
            paint(Colour::cyan, bar(share, 40, " ")) + format(" %lld\n", static_cast<long long>(counts[index]));
  }
  return text;
}

struct PassResult {
  double median_ms = 0;
  double gflops_per_second = 0;
};

/// Repeats a pass for about a second.
Result<PassResult> time_pass(Runner& runner, const ProblemConfig& config, bool backward) {
  PassResult result;
  Timings timings;
  timings.new_round();
  constexpr double budget_ms = 1000;
  double spent = 0;
  do {
    const Result<double> time = runner.run(backward);
    if (!time.ok()) return time.status();
    timings.add(*time);
    spent += *time;
  } while (spent < budget_ms);
  result.median_ms = timings.median();
  result.gflops_per_second = flops(config, backward) / result.median_ms * 1e-6;
  return result;
}

/// The shortest, the middle and the longest sequence up to a length that float64 can do in a second.
std::vector<int64_t> sample(const std::vector<int64_t>& lengths) {
  constexpr int64_t longest_checked = 1000;
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::erase_if(order, [&](int64_t b) {
    return lengths[static_cast<std::size_t>(b)] == 0 || lengths[static_cast<std::size_t>(b)] > longest_checked;
  });
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<std::size_t>(a)] < lengths[static_cast<std::size_t>(b)];
  });
  if (order.size() <= 3) return order;
  return {order.front(), order[order.size() / 2], order.back()};
}

struct Check {
  std::vector<int64_t> sequences;
  std::vector<int64_t> lengths;
  std::vector<Judgement> judgements;

  bool ok() const {
    return std::all_of(judgements.begin(), judgements.end(), [](const Judgement& one) { return one.ok; });
  }
};

/// Rows of the batch's own results against float64. The gradients of the two tables are sums over the whole batch,
/// which would take float64 minutes: those are checked on a run of the sampled sequences alone.
Result<Check> check_results(const Problem& whole, const Device& device) {
  Check check;
  check.sequences = sample(whole.config.lengths_q);
  Problem part = copy_sequences(whole, check.sequences);
  check.lengths = part.config.lengths_q;
  const Result<warploom_attention> forward = forward_call(part);
  if (!forward.ok()) return forward.status();
  check.judgements = judge(part, *forward);

  Result<Runner> runner = Runner::make(part, device, true);
  if (!runner.ok()) return runner.status();
  const std::vector<std::byte> dq_of_batch(
      static_cast<const std::byte*>(part.dq.memory.data()),
      static_cast<const std::byte*>(part.dq.memory.data()) + part.dq.memory.bytes());
  Problem of_batch = copy_sequences(whole, check.sequences);
  if (const Result<double> time = runner->run(true); !time.ok()) return time.status();
  if (const Status status = runner->fetch(); !status.ok()) return status;
  of_batch.position_grad = part.position_grad;
  of_batch.time_grad = part.time_grad;
  const Result<warploom_attention> backward = backward_call(of_batch);
  if (!backward.ok()) return backward.status();
  for (Judgement& one : judge(of_batch, *backward)) check.judgements.push_back(std::move(one));
  return check;
}

/// Everything that is printed.
struct Outcome {
  Source source;
  Histories histories;
  std::vector<int64_t> lengths;
  BatchWork work;
  Device device;
  std::string device_note;
  std::uint32_t dtype = WARPLOOM_FLOAT32;
  int64_t heads = 0, head_dim = 0;
  PassResult forward, backward;
  std::optional<int64_t> peak_memory;  ///< of both passes, beyond inputs and outputs
  Check check;

  /// Bytes of one float32 score matrix for every head and sequence, as unfused attention stores several of.
  double score_bytes() const { return 4.0 * static_cast<double>(heads) * work.pairs; }
  double padded_score_bytes() const { return 4.0 * static_cast<double>(heads) * work.padded_pairs; }
  double saved_share() const { return work.padded_pairs > 0 ? 1 - work.pairs / work.padded_pairs : 0; }
};

Json to_json(const Outcome& o) {
  const auto pass = [](const PassResult& result) {
    return Json{{"median_ms", result.median_ms}, {"gflops_per_second", result.gflops_per_second}};
  };
  Json checks = Json::array();
  for (const Judgement& one : o.check.judgements) {
    checks.push_back({{"tensor", one.tensor},
                      {"ok", one.ok},
                      {"error", one.error},
                      {"limit", one.limit},
                      {"worst_row", one.worst_row}});
  }
  return {{"source", o.source.name},
          {"path", o.source.path},
          {"users", o.histories.num_users()},
          {"items", o.histories.num_items},
          {"events", o.histories.num_events()},
          {"broken_lines", o.source.read.broken_lines},
          {"longest", o.work.longest},
          {"device", o.device.name},
          {"dtype", dtype_name(o.dtype)},
          {"heads", o.heads},
          {"head_dim", o.head_dim},
          {"padded_work_saved", o.saved_share()},
          {"score_bytes", o.score_bytes()},
          {"padded_score_bytes", o.padded_score_bytes()},
          {"forward", pass(o.forward)},
          {"backward", pass(o.backward)},
          {"peak_memory", o.peak_memory ? Json(*o.peak_memory) : Json(nullptr)},
          {"checked_lengths", o.check.lengths},
          {"checks", checks},
          {"ok", o.check.ok()}};
}

void print_batch(const Outcome& o) {
  std::printf("%s  %s users, %s items, %s events\n", paint(Colour::bold, o.source.name).c_str(),
              with_commas(o.histories.num_users()).c_str(), with_commas(o.histories.num_items).c_str(),
              with_commas(o.histories.num_events()).c_str());
  if (!o.source.path.empty()) {
    std::printf("%s\n",
                paint(Colour::dim, format("%s, read in %s", o.source.path.c_str(), duration(o.source.read_ms).c_str()))
                    .c_str());
  }
  std::fputs(paint(Colour::yellow, o.source.notes).c_str(), stdout);
  std::vector<int64_t> sorted = o.lengths;
  std::sort(sorted.begin(), sorted.end());
  std::printf("\n%s  shortest %lld, median %lld, longest %lld events\n", paint(Colour::bold, "Lengths").c_str(),
              static_cast<long long>(sorted.front()), static_cast<long long>(sorted[sorted.size() / 2]),
              static_cast<long long>(sorted.back()));
  std::fputs(histogram(o.lengths).c_str(), stdout);
}

void print_results(const Outcome& o) {
  std::printf("\n%s  %lld heads of %lld, causal, position + time bias, %s\n",
              paint(Colour::bold, "HSTU attention").c_str(), static_cast<long long>(o.heads),
              static_cast<long long>(o.head_dim), type_name(o.dtype));
  std::printf("on %s%s\n", o.device.name.c_str(),
              o.device.cuda ? "" : format(", %d threads", warploom_get_num_threads()).c_str());
  std::fputs(paint(Colour::yellow, o.device_note).c_str(), stdout);
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, pass] :
       {std::pair<const char*, const PassResult&>{"forward", o.forward}, {"backward", o.backward}}) {
    rows.push_back({name, duration(pass.median_ms), format("%.1f", pass.gflops_per_second),
                    with_commas(std::llround(1e3 * static_cast<double>(o.histories.num_events()) / pass.median_ms))});
  }
  std::printf("\n%s", table({"pass", "time", "GFLOP/s", "events/s"}, rows).c_str());

  std::printf("\n%s  a batch padded to its longest sequence would do %.1f times the work: %s of it saved\n",
              paint(Colour::bold, "Padding").c_str(), 1 / (1 - o.saved_share()),
              paint(Colour::green, format("%.1f %%", 100 * o.saved_share())).c_str());
  std::printf("%s   unfused, each matrix of scores would take %s (padded %s);\n", paint(Colour::bold, "Memory").c_str(),
              bytes(o.score_bytes()).c_str(), bytes(o.padded_score_bytes()).c_str());
  if (o.peak_memory) {
    std::printf("         fused attention used %s beyond its inputs and outputs\n",
                paint(Colour::green, bytes(static_cast<double>(*o.peak_memory))).c_str());
  } else {
    std::printf("         fused attention stores none of them\n");
  }

  std::string lengths;
  for (const int64_t length : o.check.lengths) lengths += (lengths.empty() ? "" : ", ") + std::to_string(length);
  std::printf("%s    sequences of %s events against float64, relative error:\n         ",
              paint(Colour::bold, "Check").c_str(), lengths.c_str());
  for (const Judgement& one : o.check.judgements)
    std::printf("%s %s  ", one.tensor.c_str(),
                paint(one.ok ? Colour::green : Colour::red, format("%.1e", one.error)).c_str());
  std::printf("%s\n", o.check.ok() ? paint(Colour::green, "ok").c_str() : paint(Colour::red, "FAILED").c_str());
  for (const Judgement& one : o.check.judgements)
    if (!one.ok) std::printf("         %s: %s\n", one.tensor.c_str(), one.reason.c_str());
  std::printf("\n%s\n", paint(Colour::dim,
                              "Your own histories: warploom demo --history FILE (see --help). Against torch: warploom "
                              "bench attention --peers")
                            .c_str());
}

/// Runs both passes on the device; `problem` holds the results.
Status run_on(const Device& device, Problem& problem, Outcome& outcome, Progress& progress) {
  Result<Runner> runner = Runner::make(problem, device, true);
  if (!runner.ok()) return runner.status();
  // Memory is that of the first runs, before anything can be used again.
  const PeakMemory memory;
  for (const bool backward : {false, true}) {
    if (const Result<double> first = runner->run(backward); !first.ok()) return first.status();
    progress.advance();
  }
  if (!device.cuda) outcome.peak_memory = memory.bytes();
  for (const bool backward : {false, true}) {
    Result<PassResult> result = time_pass(*runner, problem.config, backward);
    if (!result.ok()) return result.status();
    (backward ? outcome.backward : outcome.forward) = *result;
    progress.advance();
  }
  outcome.device = device;
  outcome.dtype = problem.config.dtype;
  return runner->fetch();
}

int demo(const Options& options) {
  const Result<Device> device = choose_device(options.device);
  if (!device.ok()) return report(device.status());
  if (const Status status = detail::status_of(warploom_set_num_threads(options.threads)); !status.ok())
    return report(status);
  Result<Source> source = find_histories(options);
  if (!source.ok()) return report(source.status());

  Outcome outcome;
  outcome.source = *std::move(source);
  outcome.histories = history::shorten(outcome.source.read.histories, options.sequences, options.max_length);
  outcome.lengths = shape_of(outcome.histories).lengths;
  outcome.work = work_of(outcome.lengths);
  outcome.heads = options.heads;
  outcome.head_dim = options.head_dim;
  if (options.json.prints_text()) print_batch(outcome);

  auto progress = std::make_unique<Progress>("attention over all histories", 6);
  const auto make = [&](const Device& on) {
    return make_demo_problem(outcome.histories, options.heads, options.head_dim,
                             on.cuda ? WARPLOOM_BFLOAT16 : WARPLOOM_FLOAT32, options.seed);
  };
  Problem problem = make(*device);
  progress->advance();
  Status status = run_on(*device, problem, outcome, *progress);
  if (!status.ok() && device->cuda && options.device == "auto") {
    outcome.device_note = device->name + " does not serve this call: " + status.message() +
                          "\nIt was run on the CPU instead; --device cuda makes that an error.\n";
    const Result<Device> cpu = choose_device("cpu");
    if (!cpu.ok()) return report(cpu.status());
    problem = make(*cpu);
    status = run_on(*cpu, problem, outcome, *progress);
  }
  if (!status.ok()) return report(status);
  Result<Check> check = check_results(problem, outcome.device);
  if (!check.ok()) return report(check.status());
  outcome.check = *std::move(check);
  progress.reset();  // its line is wiped before anything else is printed

  if (options.json.prints_text()) print_results(outcome);
  if (const Status written = options.json.write(to_json(outcome)); !written.ok()) return report(written);
  return outcome.check.ok() ? exit_success : exit_check_failed;
}

}  // namespace

void add_demo_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      add_command(app, "demo", "Fused attention over real user histories, end to end on this machine's best device",
                  "  warploom demo                               MovieLens-100k: 943 users, 100,000 events\n"
                  "  warploom demo --history events.inter\n"
                  "  warploom demo --history log.csv --user-column who --item-column what --time-column when\n"
                  "  warploom demo --sequences 100 --max-length 200 --json demo.json\n");
  CLI::Option* history =
      command->add_option("--history", options->file,
                          "Histories: tab separated (.inter) or CSV, one event a line, columns named in the first");
  const auto column = [&](const char* name, std::string& of, const char* help) {
    command->add_option(name, of, help)->needs(history)->capture_default_str();
  };
  column("--user-column", options->read.user_column, "Its column of user ids");
  column("--item-column", options->read.item_column, "Its column of item ids");
  column("--time-column", options->read.time_column, "Its column of timestamps, seconds");
  command->add_flag("--skip-broken", options->read.skip_broken, "Leave broken lines out and count them")
      ->needs(history);
  command->add_option("--sequences", options->sequences, "Only the first N users; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--max-length", options->max_length, "Only the last N events of each user; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--heads", options->heads, "Heads")->check(CLI::Range(1, 256))->capture_default_str();
  command->add_option("--head-dim", options->head_dim, "Head dimension")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  not_negative(command->add_option("--seed", options->seed, "Seed of the item vectors"))->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads, 0: all")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  add_device_option(*command, options->device);
  options->json.add_to(*command);
  on_run(*command, [options] { return demo(*options); });
}

}  // namespace warploom::cli
