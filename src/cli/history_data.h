// Where the command finds the MovieLens-100k histories that set-up prepares.
#pragma once

#include <optional>
#include <string>

#include "cli/case_name.h"
#include "history/history.h"

namespace warploom::cli {

/// The file, looked for as .data/ml-100k/ml-100k.inter in the working directory and in every folder above the command,
/// as share/warploom/ml-100k.inter beside the command's bin folder, and inside an installed recbole package, which
/// ships it. Nothing when it is in none of them.
std::optional<std::string> find_movielens();

/// Lengths and timestamps of those histories; empty when the file is not there or cannot be read.
HistoryShape movielens_shape();

HistoryShape shape_of(const history::Histories& histories);

}  // namespace warploom::cli
