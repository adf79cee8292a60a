#include "cli/history_data.h"

#include <filesystem>
#include <string>
#include <vector>

#include "history/read.h"

namespace warploom::cli {
namespace {

namespace fs = std::filesystem;

const char* const file_name = "ml-100k.inter";

/// The places in order; those below a Python environment are found by looking, because its folder names the version.
std::vector<fs::path> candidates() {
  std::error_code ignored;
  std::vector<fs::path> places = {fs::path(".data") / "ml-100k" / file_name};
  const fs::path command = fs::read_symlink("/proc/self/exe", ignored);
  for (fs::path folder = command.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    places.push_back(folder / ".data" / "ml-100k" / file_name);
    if (folder == folder.root_path()) break;
  }
  const fs::path prefix = command.parent_path().parent_path();
  places.push_back(prefix / "share" / "warploom" / file_name);
  for (const fs::directory_entry& entry : fs::directory_iterator(prefix / "lib", ignored)) {
    places.push_back(entry.path() / "site-packages" / "recbole" / "dataset_example" / "ml-100k" / file_name);
  }
  return places;
}

}  // namespace

std::optional<std::string> find_movielens() {
  std::error_code ignored;
  for (const fs::path& place : candidates())
    if (fs::is_regular_file(place, ignored)) return place.string();
  return std::nullopt;
}

HistoryShape movielens_shape() {
  const std::optional<std::string> path = find_movielens();
  if (!path) return {};
  const Result<history::ReadResult> read = history::read_history_file(*path);
  return read.ok() ? shape_of(read->histories) : HistoryShape();
}

HistoryShape shape_of(const history::Histories& histories) {
  HistoryShape shape{{}, histories.timestamps};
  for (std::int64_t user = 0; user < histories.num_users(); ++user) shape.lengths.push_back(histories.length(user));
  return shape;
}

}  // namespace warploom::cli
