#include <algorithm>
#include <cmath>
#include <string>

#include "history/history.h"
#include "history/random.h"

namespace warploom::history {

Histories generate(std::int64_t users, std::int64_t num_items, std::uint64_t seed) {
  Random random(seed);
  Histories result;
  result.num_items = num_items;
  for (std::int64_t user = 0; user < users; ++user) {
    const double drawn = std::exp(std::log(65.0) + 0.95 * random.normal());
    const std::int64_t length = std::clamp<std::int64_t>(std::llround(drawn), 20, 737);
    std::int64_t time = 880'000'000 + static_cast<std::int64_t>(random.uniform() * 15'000'000);
    for (std::int64_t event = 0; event < length; ++event) {
      // rank = N^u has the density of 1/rank; nine of ten events follow within minutes, the others within days.
      const double rank = std::pow(static_cast<double>(num_items), random.uniform());
      result.items.push_back(
          static_cast<std::int32_t>(std::min<std::int64_t>(num_items, static_cast<std::int64_t>(rank)) - 1));
      result.timestamps.push_back(time);
      const bool same_sitting = random.uniform() < 0.9;
      time += static_cast<std::int64_t>(-std::log(random.uniform()) * (same_sitting ? 60 : 200'000));
    }
    result.offsets.push_back(result.offsets.back() + length);
    result.user_ids.push_back(std::to_string(user + 1));
  }
  return result;
}

}  // namespace warploom::history
