// User histories: for each user the items they met, in the order of time. The jagged batches of the demo and the
// benchmarks are made from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace warploom::history {

/// Histories of all users one after the other; user u owns entries offsets[u] .. offsets[u + 1].
struct Histories {
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> items;       ///< 0 .. num_items - 1, numbered as they first appear in the file
  std::vector<std::int64_t> timestamps;  ///< seconds (or the file's unit), not decreasing within a user
  std::vector<std::string> user_ids;     ///< as written in the file
  std::int64_t num_items = 0;

  std::int64_t num_users() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t num_events() const { return offsets.back(); }
  std::int64_t length(std::int64_t user) const {
    return offsets[static_cast<std::size_t>(user) + 1] - offsets[static_cast<std::size_t>(user)];
  }
  std::int64_t longest() const;
};

/// One event as read; `user` and `item` are numbered from 0 by first appearance.
struct Event {
  std::int32_t user;
  std::int32_t item;
  std::int64_t timestamp;
};

/// Groups events by user, in time's order; events of equal time keep the order that they are given in.
Histories group_by_user(const std::vector<Event>& events, std::vector<std::string> user_ids, std::int64_t num_items);

/// The first `users` users, each with the last (most recent) `max_length` events; 0 means no limit.
Histories shorten(const Histories& histories, std::int64_t users, std::int64_t max_length);

/// Histories without a file: lengths like MovieLens-100k's (log-normal, 20 to 737, median 65), items drawn with a
/// popularity that falls as 1/rank, timestamps in bursts. The same seed gives the same histories everywhere.
Histories generate(std::int64_t users, std::int64_t num_items, std::uint64_t seed);

}  // namespace warploom::history
