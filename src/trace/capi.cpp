#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "last_error.h"
#include "problem/gemm.h"
#include "problem/validate.h"
#include "sim/fields.h"
#include "sim/pictures.h"
#include "trace/report.h"
#include "warploom/trace.h"

namespace warploom::trace {
namespace {

Status validated(const warploom_gemm& call) {
  return validate_gemm(call);
}

Status validated(const warploom_attention& call) {
  return validate_description(call);
}

template <typename Call>
Result<std::string> answer(const Call& call, const char* request_json) {
  if (call.device == WARPLOOM_CPU) return Status::invalid_value("device = cpu; what is traced are the GPU's kernels");
  if (Status status = validated(call); !status.ok()) return status;
  const sim::Json json = sim::Json::parse(request_json == nullptr ? "{}" : request_json, nullptr, false);
  if (!json.is_object()) return Status::invalid_value("request_json is not a JSON object");
  sim::Fields fields(json);
  TraceOptions options;
  options.capacity = fields.whole("capacity", options.capacity);
  options.rounds = static_cast<int>(std::clamp<std::int64_t>(fields.whole("rounds", 0), -1, 1 << 20));
  const Result<sim::Machine> machine = sim::find_machine(fields.text("machine", "h200"));
  options.cta = fields.whole("cta", options.cta);
  options.record = fields.whole("record", options.record);
  options.kernel = fields.text("kernel", "");
  const std::string detail = fields.text("detail", "steps");
  const bool compare = fields.flag("compare"), svg = fields.flag("svg"), perfetto = fields.flag("perfetto");
  const sim::Window asked{fields.whole("until", 0), fields.whole("width", 72)};
  for (const Status& status : {fields.status(), machine.status()})
    if (!status.ok()) return status;
  const Result<Level> level = parse_level(detail);
  if (!level.ok()) return level.status();
  options.level = *level;
  options.machine = *machine;

  const Result<TracedRun> traced = traced_run(call, options);
  if (!traced.ok()) return traced.status();
  const Result<Report> report = report_of(*traced, compare);
  if (!report.ok()) return report.status();
  const Result<sim::Window> window = sim::resolve(asked, report->run.timeline);
  if (!window.ok()) return window.status();
  sim::Json result = report_json(*report, *window);
  if (svg) result["svg"] = sim::timeline_svg(report->run, window->until);
  if (perfetto) result["perfetto"] = sim::perfetto_json(report->run);
  return result.dump();
}

template <typename Call>
int respond(const Call* call, const char* request_json, char** response) {
  return guarded([&]() -> Status {
    if (response == nullptr) return Status::invalid_value("response = null must point to a char*");
    *response = nullptr;
    if (call == nullptr) return Status::invalid_value("call = null must be the call to trace");
    const Result<std::string> text = answer(*call, request_json);
    if (!text.ok()) return text.status();
    *response = static_cast<char*>(std::malloc(text->size() + 1));  // warploom_free is free()
    if (*response == nullptr) throw std::bad_alloc();
    std::memcpy(*response, text->c_str(), text->size() + 1);
    return {};
  });
}

}  // namespace
}  // namespace warploom::trace

extern "C" int warploom_trace_gemm(const warploom_gemm* call, const char* request_json, char** response) {
  return warploom::trace::respond(call, request_json, response);
}

extern "C" int warploom_trace_attention(const warploom_attention* call, const char* request_json, char** response) {
  return warploom::trace::respond(call, request_json, response);
}
