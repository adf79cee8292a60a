// `warploom trace gemm --rung`: a rung of the GEMM ladder with its marks on.
#pragma once

#include <string>

#include "cli/ladder.h"
#include "trace/traced_run.h"

namespace warploom::cli {

/// The rung whose name contains `name`. Errors: invalid_value when it is none or several; those of read_ladder.
Result<Rung> find_rung(const std::string& name);

/// Traces a rung on a product in GPU memory, whose device is current. Errors: invalid_value for a product that the
/// ladder does not multiply; those of traced_run and of compiling.
Result<trace::TracedRun> trace_rung(const Rung& rung, const warploom_gemm& call, const trace::TraceOptions& options);

}  // namespace warploom::cli
