// A finding as a picture: time runs down, one lane a role, and one for what lands in shared memory.
#pragma once

#include <string>
#include <vector>

#include "check/explore.h"

namespace warploom::check {

struct TimelineStep {
  std::string who;   ///< the role, or "memory"
  std::string does;  ///< "wait full[1] #2": the third phase (from 0) of full[1]; "read stage[0] #3": its fourth filling
};

struct Timeline {
  std::vector<std::string> lanes;
  std::vector<TimelineStep> steps;
  std::vector<std::string> marks;  ///< per step and lane, row by row: the text or sign in that place
  std::vector<std::string> state;  ///< barriers and slots when the fault shows: before a last step that is at fault
};

Timeline timeline(const Protocol& protocol, const Finding& finding);

/// Lines that end with a line break, indented by two.
std::string draw(const Timeline& timeline);

/// "2 stages, 3 steps, 1 consumer, 2 tiles (every second one half as long), producer drains its rings"
std::string describe(const pipeline::Sizes& sizes);

}  // namespace warploom::check
