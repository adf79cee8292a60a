/* The pipeline model over the C ABI: JSON in, JSON out.
 *
 *   char* response;
 *   if (warploom_simulate("{\"what\": \"gemm\", \"parameters\": {\"scheme\": \"cp_async\", \"stages\": 3}}", &response)
 * == WARPLOOM_OK) {
 *     ...
 *     warploom_free(response);
 *   }
 *
 * Requests ("parameters" and everything else that is not marked with a star may be left out):
 *
 *   what          fields                                                answer
 *   "gemm"        parameters {name: value}                              the run
 *   "attention"   parameters {name: value}                              the run
 *   "program"     program* (docs/simulator.md, "Your own programs")     the run; a deadlock is WARPLOOM_RUNTIME_ERROR
 * with its report "experiment"  name*                                                 the run with its claims
 *   "experiments"                                                       every named experiment, closed forms, the
 * ablation "report"                                                            {"html": one page with every experiment
 * and its timeline} "sweep"       kind "gemm"|"attention", x*, y ("stages=2..8"),       values[y][x], null where a
 * point is refused metric "TC"|"MEM"|"makespan", parameters, threads "design"      kind, machine, and the fields of the
 * design space     designs, best first "work"        parameters (of attention), length, batch, heads,      schedules:
 * order, assignment, makespan, tail, balance causal, sms "shared"      parameters (of gemm), sms, total_bandwidth,
 * l2_hit    the run "parameters"  kind                                                  names, values and help of the
 * parameters "axis"        x* ("stages=2..8")                                    name and values "machine"     name*
 * the machine, as a machine file
 *
 * A run is {"makespan", "utilisation" {resource: percent}, "busy" {resource: cycles}, "events", "timeline" {resource:
 * row}, ...}. To a run these may be added: "until" and "width" (of the rows), "intervals": true (arrays per resource),
 * "svg": true, "perfetto": true. Times are cycles.
 */
#ifndef WARPLOOM_SIMULATE_H
#define WARPLOOM_SIMULATE_H

#include "warploom/warploom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Answers a request. *response is JSON text to be given back with warploom_free, and null after an error. */
WARPLOOM_API int warploom_simulate(const char* request_json, char** response);

#ifdef __cplusplus
}
#endif

#endif
