// Mistakes that authors of pipelines make, planted in a shipped protocol: what the checker must find, and a way to see
// what a fault looks like (`warploom check --plant NAME`).
#pragma once

#include <span>
#include <string>

#include "check/check.h"

namespace warploom::check {

struct Plant {
  const char* name;
  const char* story;     ///< the mistake, in a few words
  const char* pipeline;  ///< where it is planted by default
  FaultKind shows;       ///< what the checker reports there
  void (*apply)(Protocol&);
};

std::span<const Plant> plants();

/// The plant of that name; nullptr when there is none.
const Plant* find_plant(const std::string& name);

/// The pipeline with the mistake in it.
Describe planted(const Plant& plant, const pipeline::Pipeline& pipeline);

}  // namespace warploom::check
