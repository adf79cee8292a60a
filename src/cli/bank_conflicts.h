// Shared-memory bank conflicts of the ladder's kernels, counted by Nsight Compute where it is installed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace warploom::cli {

/// Share of a launch's shared-memory wavefronts that are there for bank conflicts, launch after launch, from what
/// `ncu --csv` prints for kConflictMetrics. Launches with a metric missing have -1.
std::vector<double> conflict_shares(std::string_view csv);

/// Runs this command again under ncu, with `arguments`, and reads what it counted; empty without ncu, or when it may
/// not count (ERR_NVGPUCTRPERM).
std::vector<double> count_bank_conflicts(const std::vector<std::string>& arguments);

}  // namespace warploom::cli
