/* The in-kernel tracer (docs/tracer.md): runs a call on its GPU with the marks of its kernel on, and answers with the
 * timeline of one CTA in the simulator's form. The call's output is written as by an ordinary run, several times.
 *
 *   char* response;
 *   if (warploom_trace_gemm(&call, "{\"compare\": true, \"svg\": true}", &response) == WARPLOOM_OK) {
 *     ...
 *     warploom_free(response);
 *   }
 *
 * The request is a JSON object, all of whose fields may be left out (null: all of them are):
 *
 *   cta       the CTA to show (-1: one is chosen)    machine   of the model: "h200", or a file of warploom calibrate
 *   record    CTAs that record, from cta on (1; 0: all of them, which slows the kernel down)
 *   kernel    of a call that runs several with marks: "keys", "dq" ("": the first)
 *   capacity  marks a warp has room for (16384)      compare   the simulator's run of the same work, row by row
 *   detail    "steps": every mark, or "rings": none in the consumers' main loops, which slows nothing down
 *   rounds    of timing with and without marks (0)   svg, perfetto   the pictures as text
 *   until, width   of the rows of the timeline
 *
 * The answer is a run as warploom_simulate gives it, in cycles of the SM's clock, and: "clock_ghz" as measured, "ctas",
 * "marks", "lost" (marks that found the buffer full), "order" {checked, violated, violations}, and as asked for
 * "timing" {plain_ms, traced_ms, slow_down_percent}, "comparison" {makespan, tensor, rows, verdict}, "model" (a run),
 * of attention "schedules" [{name, makespan, tensor}].
 *
 * Traced are the kernels for Hopper of products and of attention, forward and backward; other calls are
 * WARPLOOM_RUNTIME_ERROR.
 */
#ifndef WARPLOOM_TRACE_H
#define WARPLOOM_TRACE_H

#include "warploom/warploom.h"

#ifdef __cplusplus
extern "C" {
#endif

WARPLOOM_API int warploom_trace_gemm(const warploom_gemm* call, const char* request_json, char** response);
WARPLOOM_API int warploom_trace_attention(const warploom_attention* call, const char* request_json, char** response);

#ifdef __cplusplus
}

#include <string>

#include "warploom/attention.h"

namespace warploom {

namespace detail {

template <typename Call>
Result<std::string> traced(int (*function)(const Call*, const char*, char**), const Call& call,
                           const std::string& request_json) {
  char* text = nullptr;
  if (Status status = status_of(function(&call, request_json.c_str(), &text)); !status.ok()) return status;
  std::string result(text);
  warploom_free(text);
  return result;
}

}  // namespace detail

/// Traces a product (gemm_call() describes one). `request_json` and the answer: above.
inline Result<std::string> trace_call(const warploom_gemm& call, const std::string& request_json = "{}") {
  return detail::traced(warploom_trace_gemm, call, request_json);
}
/// Traces a call of attention, forward or backward.
inline Result<std::string> trace_call(const warploom_attention& call, const std::string& request_json = "{}") {
  return detail::traced(warploom_trace_attention, call, request_json);
}

}  // namespace warploom
#endif

#endif
