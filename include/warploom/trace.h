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
 *   cta       the CTA to show (0)                    machine   of the model: "h200", or a file of warploom calibrate
 *   capacity  marks a warp has room for (16384)      compare   the simulator's run of the same work, row by row
 *   detail    "steps": every mark, or "rings": none in the consumers' main loops, which slows nothing down
 *   rounds    of timing with and without marks (0)   svg, perfetto   the pictures as text
 *   until, width   of the rows of the timeline
 *
 * The answer is a run as warploom_simulate gives it, in cycles of the SM's clock, and: "clock_ghz" as measured, "ctas",
 * "marks", "lost" (marks that found the buffer full), "order" {checked, violated, violations}, and as asked for
 * "timing" {plain_ms, traced_ms, slow_down_percent}, "comparison" {makespan, tensor, rows, verdict}, "model" (a run).
 *
 * Traced is the matrix product's kernel for Hopper; other calls are WARPLOOM_RUNTIME_ERROR.
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
/// Traces a forward call of attention.
inline Result<std::string> trace_call(const warploom_attention& call, const std::string& request_json = "{}") {
  return detail::traced(warploom_trace_attention, call, request_json);
}

}  // namespace warploom
#endif

#endif
