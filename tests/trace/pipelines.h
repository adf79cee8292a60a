// Marks of made-up pipelines whose every time is known.
#pragma once

#include "buffer.h"
#include "trace/subject.h"

namespace warploom::trace {

inline GemmConfig cooperative_gemm() {
  return {.tile_columns = 256, .stages = 2, .consumers = 2};
}

/// One tile of four steps through two slots, by one producer and two consumers that share it and mark at the same
/// times. In cycles from 1000 on, by filling:
///
///   asked for   10    20   165   270    each but the first two when both consumers had let its slot go
///   landed     110   121   260   311
///   issued     110   121   260   311    two are under way from the second on
///   waited for 160   264   314   361
inline std::vector<std::vector<Made>> cooperative_marks() {
  const std::vector<Made> producer = {
      {1005, Mark::wait_empty, 0, 0}, {1010, Mark::load, 0, 0},       {1015, Mark::wait_empty, 0, 1},
      {1020, Mark::load, 0, 1},       {1025, Mark::wait_empty, 0, 2}, {1165, Mark::load, 0, 2},
      {1170, Mark::wait_empty, 0, 3}, {1270, Mark::load, 0, 3},       {1275, Mark::wait_empty, 0, 4},
      {1318, Mark::wait_empty, 0, 5},
  };
  const std::vector<Made> consumer = {
      {1006, Mark::wait_full, 0, 0},    {1110, Mark::product, 0, 0},
      {1115, Mark::wait_full, 0, 1},    {1121, Mark::product, 0, 1},
      {1125, Mark::wait_product, 0, 0}, {1160, Mark::wait_full, 0, 2},
      {1260, Mark::product, 0, 2},      {1262, Mark::wait_product, 0, 1},
      {1264, Mark::wait_full, 0, 3},    {1311, Mark::product, 0, 3},
      {1313, Mark::wait_product, 0, 2}, {1314, Mark::wait_product, 0, 3},
      {1361, Mark::epilogue, 0, 0},     {1400, Mark::idle},
  };
  return {producer, consumer, consumer};
}

inline Result<Recording> recorded(const std::vector<std::vector<Made>>& marks, std::int64_t capacity = 64) {
  Buffer buffer({.ctas = 1, .strips = static_cast<int>(marks.size()), .capacity = capacity});
  for (std::size_t s = 0; s < marks.size(); ++s)
    buffer.put(0, static_cast<int>(s), strip(1000, 1, 420, 7, static_cast<unsigned>(4 * s)), marks[s]);
  return buffer.decoded();
}

inline Subject cooperative_subject() {
  return subject_of(cooperative_gemm(), sim::Machine{}, /*steps=*/4);
}

}  // namespace warploom::trace
