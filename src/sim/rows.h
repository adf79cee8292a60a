// A resource's intervals as a row of letters: simulator.md section 7.5.
#pragma once

#include <string>
#include <vector>

#include "sim/engine.h"

namespace warploom::sim {

/// `width` characters over [0, until): character c is the tag of the interval that holds the middle of its bucket,
/// (c + 1/2) * until / width, or '.' when none does. until >= 1, width >= 1.
std::string sample_row(const std::vector<Interval>& intervals, Cycles until, int width);

/// "9. 7M 9." for ".........MMMMMMM.........".
std::string run_lengths(const std::string& row);

/// The row as a terminal shows it: idle is a middle dot.
std::string drawn(const std::string& row);

/// Ok when a timeline can be sampled: until in [1, 2^48], width in [1, 10000].
Status validate_window(Cycles until, std::int64_t width);

}  // namespace warploom::sim
