// The teaching ladders of examples/: kernels that differ from one another by one idea, read from the clone's files and
// compiled by the library's own compiler, so that a changed file is what runs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/disassembly.h"
#include "cli/json.h"
#include "gpu/compiler.h"
#include "gpu/module.h"
#include "warploom/status.h"

namespace warploom::cli {

/// A row of a ladder's table.
struct Rung {
  std::string name;
  std::string idea;
  Json row;  ///< its sizes; "file" is missing where the product's own kernel is the rung

  bool is_product() const { return !row.contains("file"); }
};

/// examples/`folder`/ladder.json. Errors: runtime_error when no clone lies around the command, or the table is broken.
Result<std::vector<Rung>> read_ladder(const std::string& folder);

/// Only the rungs whose name contains one of `wanted`; all when it is empty. Error: invalid_value that lists the names.
Result<std::vector<Rung>> choose_rungs(std::vector<Rung> rungs, const std::vector<std::string>& wanted);

/// What is put before a rung's file: kRung from the row's `fields`, in the order of the struct's members.
gpu::KernelRequest rung_request(const std::string& folder, const Rung& rung, const std::vector<std::string>& fields,
                                const std::string& kernel, const gpu::Architecture& architecture);

/// What can be said of a rung without running it.
struct RungCode {
  gpu::CubinPointer cubin;
  std::optional<InnerLoop> loop;  ///< nothing without a disassembler
};

/// Compiles the kernels, with the files of examples/ beside those of kernels/, and disassembles them.
Result<std::vector<RungCode>> compile_rungs(const std::vector<gpu::KernelRequest>& requests);

/// {"rung", "idea", "registers", "spill_bytes", "performance_warnings", "instructions", "mma"}
Json to_json(const Rung& rung, const RungCode& code);
/// "2.40": instructions beside each mma; "-" when they are not known.
std::string others_per_mma(const RungCode& code);

}  // namespace warploom::cli
