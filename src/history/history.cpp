#include "history/history.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace warploom::history {

std::int64_t Histories::longest() const {
  std::int64_t result = 0;
  for (std::int64_t user = 0; user < num_users(); ++user) result = std::max(result, length(user));
  return result;
}

Histories group_by_user(const std::vector<Event>& events, std::vector<std::string> user_ids, std::int64_t num_items) {
  std::vector<std::size_t> order(events.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(events[a].user, events[a].timestamp) < std::pair(events[b].user, events[b].timestamp);
  });
  Histories result;
  result.offsets.assign(user_ids.size() + 1, 0);
  result.items.reserve(events.size());
  result.timestamps.reserve(events.size());
  for (const std::size_t index : order) {
    const Event& event = events[index];
    ++result.offsets[static_cast<std::size_t>(event.user) + 1];
    result.items.push_back(event.item);
    result.timestamps.push_back(event.timestamp);
  }
  std::partial_sum(result.offsets.begin(), result.offsets.end(), result.offsets.begin());
  result.user_ids = std::move(user_ids);
  result.num_items = num_items;
  return result;
}

Histories shorten(const Histories& histories, std::int64_t users, std::int64_t max_length) {
  Histories result;
  result.num_items = histories.num_items;
  const std::int64_t kept = users > 0 ? std::min(users, histories.num_users()) : histories.num_users();
  for (std::int64_t user = 0; user < kept; ++user) {
    const std::int64_t length = histories.length(user);
    const std::int64_t events = max_length > 0 ? std::min(length, max_length) : length;
    const std::int64_t end = histories.offsets[static_cast<std::size_t>(user) + 1];
    result.items.insert(result.items.end(), histories.items.begin() + (end - events), histories.items.begin() + end);
    result.timestamps.insert(result.timestamps.end(), histories.timestamps.begin() + (end - events),
                             histories.timestamps.begin() + end);
    result.user_ids.push_back(histories.user_ids[static_cast<std::size_t>(user)]);
    result.offsets.push_back(result.offsets.back() + events);
  }
  return result;
}

}  // namespace warploom::history
