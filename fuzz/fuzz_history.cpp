// Any bytes as a history file: the reader returns histories that hold together, or an error that names the place.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "history/read.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const warploom::history::Histories& histories) {
  const auto events = static_cast<std::size_t>(histories.num_events());
  require(histories.items.size() == events && histories.timestamps.size() == events);
  require(histories.user_ids.size() == static_cast<std::size_t>(histories.num_users()));
  for (std::int64_t user = 0; user < histories.num_users(); ++user) {
    const std::int64_t first = histories.offsets[static_cast<std::size_t>(user)];
    require(histories.length(user) > 0);
    require(std::is_sorted(histories.timestamps.begin() + first,
                           histories.timestamps.begin() + first + histories.length(user)));
    std::int64_t difference = 0;
    require(!__builtin_sub_overflow(histories.timestamps[static_cast<std::size_t>(first + histories.length(user) - 1)],
                                    histories.timestamps[static_cast<std::size_t>(first)], &difference));
  }
  for (const std::int32_t item : histories.items) require(item >= 0 && item < histories.num_items);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool skip_broken : {false, true}) {
    warploom::history::ReadOptions options;
    options.skip_broken = skip_broken;
    const auto result = warploom::history::read_histories(text, "fuzz", options);
    if (result.ok()) {
      require(result->lines == result->histories.num_events());
      require(skip_broken || result->broken_lines == 0);
      check(result->histories);
      check(warploom::history::shorten(result->histories, 2, 3));
    } else {
      require(result.status().message().rfind("fuzz:", 0) == 0);
    }
  }
  return 0;
}
