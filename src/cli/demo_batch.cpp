#include "cli/demo_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cli/history_data.h"
#include "cli/numbers.h"
#include "history/random.h"

namespace warploom::cli {
namespace {

using history::Histories;
using history::Random;
using std::int64_t;

/// Writes each event's vector: that of its item in a random table.
void embed(const OwnedTensor& tensor, const Histories& histories, Random& random) {
  const TensorView& view = tensor.view;
  const auto dtype = static_cast<std::uint32_t>(view.dtype);
  const int64_t width = view.heads * view.dim;
  std::vector<float> table(static_cast<std::size_t>(histories.num_items * width));
  for (float& value : table) value = static_cast<float>(random.normal());
  for (int64_t row = 0; row < view.rows; ++row) {
    const int64_t item = histories.items[static_cast<std::size_t>(row)];
    for (int64_t index = 0; index < width; ++index) {
      store(view.data, dtype, row * view.row_stride + index,
            static_cast<double>(table[static_cast<std::size_t>(item * width + index)]));
    }
  }
}

/// Touches every page, so that memory measured later is not that of results.
void clear(const OwnedTensor& tensor) {
  std::memset(tensor.memory.data(), 0xFF, tensor.memory.bytes());
}

void fill_small(std::vector<float>& table, double deviation, Random& random) {
  for (float& value : table) value = static_cast<float>(deviation * random.normal());
}

void copy_rows(const OwnedTensor& from, int64_t first_from, const OwnedTensor& to, int64_t first_to, int64_t rows) {
  const auto size = static_cast<int64_t>(bytes_per_element(static_cast<std::uint32_t>(from.view.dtype)));
  const int64_t row_bytes = from.view.row_stride * size;
  std::memcpy(static_cast<char*>(to.memory.data()) + first_to * row_bytes,
              static_cast<const char*>(from.memory.data()) + first_from * row_bytes,
              static_cast<std::size_t>(rows * row_bytes));
}

}  // namespace

Problem make_demo_problem(const Histories& histories, int64_t heads, int64_t head_dim, std::uint32_t dtype,
                          std::uint64_t seed) {
  ProblemConfig config;
  config.dtype = dtype;
  config.lengths_q = shape_of(histories).lengths;
  config.heads = heads;
  config.head_dim = head_dim;
  config.right = 0;
  config.bias = BiasForm::bucketed;
  config.positions = std::clamp<int64_t>(histories.longest(), 1, 4096);
  config.times = 64;
  config.timestamps = histories.timestamps;
  config.divisor = static_cast<double>(std::max<int64_t>(histories.longest(), 1));
  config.seed = seed;
  Problem problem = make_problem(config, true, Contents::untouched);
  Random random(seed);
  embed(problem.q, histories, random);
  embed(problem.k, histories, random);
  embed(problem.v, histories, random);
  fill_small(problem.position, 0.5, random);
  fill_small(problem.time, 0.5, random);
  const TensorView& dout = problem.dout.view;
  for (int64_t index = 0; index < dout.rows * dout.row_stride; ++index) store(dout.data, dtype, index, random.normal());
  for (const OwnedTensor* tensor : {&problem.out, &problem.dq, &problem.dk, &problem.dv}) clear(*tensor);
  return problem;
}

Problem copy_sequences(const Problem& whole, const std::vector<int64_t>& sequences) {
  ProblemConfig config = whole.config;
  config.lengths_q.clear();
  config.timestamps.clear();
  for (const int64_t b : sequences) {
    const int64_t first = whole.offsets_q[static_cast<std::size_t>(b)],
                  last = whole.offsets_q[static_cast<std::size_t>(b) + 1];
    config.lengths_q.push_back(last - first);
    config.timestamps.insert(config.timestamps.end(), whole.timestamps.begin() + first,
                             whole.timestamps.begin() + last);
  }
  Problem part = make_problem(config, true, Contents::untouched);
  part.position = whole.position;
  part.time = whole.time;
  for (std::size_t index = 0; index < sequences.size(); ++index) {
    const int64_t from = whole.offsets_q[static_cast<std::size_t>(sequences[index])], to = part.offsets_q[index];
    const std::pair<const OwnedTensor*, const OwnedTensor*> tensors[] = {
        {&whole.q, &part.q},       {&whole.k, &part.k},   {&whole.v, &part.v},   {&whole.out, &part.out},
        {&whole.dout, &part.dout}, {&whole.dq, &part.dq}, {&whole.dk, &part.dk}, {&whole.dv, &part.dv}};
    for (const auto& [source, target] : tensors) copy_rows(*source, from, *target, to, config.lengths_q[index]);
  }
  return part;
}

BatchWork work_of(const std::vector<int64_t>& lengths) {
  BatchWork work;
  for (const int64_t length : lengths) {
    work.pairs += static_cast<double>(length) * static_cast<double>(length);
    work.longest = std::max(work.longest, length);
  }
  work.padded_pairs =
      static_cast<double>(lengths.size()) * static_cast<double>(work.longest) * static_cast<double>(work.longest);
  return work;
}

}  // namespace warploom::cli
