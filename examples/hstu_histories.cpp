// HSTU attention over three user histories of different lengths, forward and backward, with a bias that depends on how
// far apart two events are. Prints what one event attends to most; ends with 0 when the outputs are as they must be.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <random>
#include <vector>

#include "warploom/attention.h"

int main() {
  // Three histories of 5, 0 and 12 events, one after the other: 17 rows in all, no padding.
  const std::vector<std::int64_t> offsets = {0, 5, 5, 17};
  constexpr std::int64_t rows = 17, heads = 2, dim = 32;

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto filled = [&] {
    std::vector<float> values(rows * heads * dim);
    for (float& value : values) value = normal(random);
    return values;
  };
  const std::vector<float> q = filled(), k = filled(), v = filled(), dout = filled();
  std::vector<float> out(q.size()), dq(q.size()), dk(q.size()), dv(q.size());

  // One value for each distance of 0 to 7 events (more counts as 7), shared by both heads, and room for its gradient.
  const std::vector<float> position = {0.9f, 0.7f, 0.5f, 0.3f, 0.2f, 0.1f, 0.0f, -0.2f};
  std::vector<float> position_gradient(position.size());

  warploom::HstuOptions options;
  options.mask = warploom::Mask::causal();
  options.divisor = 12;  // given, a sequence's result does not depend on the others in the batch
  options.bias = warploom::BucketedBias{.position = position,
                                        .time = {},
                                        .timestamps = {},
                                        .time_bucket = {},
                                        .position_grad = position_gradient,
                                        .time_grad = {}};

  const auto tensor = [](auto& values) { return warploom::view(values, heads, dim); };
  const warploom::Sequences sequences = warploom::jagged(offsets);
  if (const warploom::Status status =
          warploom::hstu_attention(tensor(q), tensor(k), tensor(v), tensor(out), sequences, options);
      !status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }
  // The throwing form, for programs that prefer it.
  warploom::throw_if_error(warploom::hstu_attention_backward(tensor(dout), tensor(q), tensor(k), tensor(v),
                                                             {tensor(dq), tensor(dk), tensor(dv)}, sequences, options));

  std::cout << "warploom " << warploom_version() << "\nout[first event][0..3] =";
  for (int d = 0; d < 4; ++d) std::cout << " " << out[static_cast<std::size_t>(d)];
  std::cout << "\nposition bias gradient =";
  for (const float gradient : position_gradient) std::cout << " " << gradient;
  std::cout << "\n";

  // The first event of a history sees only itself: out = silu(alpha (q . k + bias)) v / divisor.
  double score = static_cast<double>(position[0]);
  for (std::size_t d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * static_cast<double>(k[d]);
  score /= std::sqrt(static_cast<double>(dim));
  const double expected = score / (1 + std::exp(-score)) * static_cast<double>(v[0]) / 12;
  return std::fabs(expected - static_cast<double>(out[0])) < 1e-5 ? 0 : 1;
}
