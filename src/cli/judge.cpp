#include "cli/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "cli/numbers.h"
#include "cli/terminal.h"

namespace warploom::cli {
namespace {

using std::int64_t;

constexpr int draws = 3;
constexpr double float32_limit = 2e-5;
/// However exact the arithmetic, sums of numbers of this size leave this much.
constexpr double floor_of_magnitude = 8 * 0x1p-24;

std::size_t at(int64_t index) {
  return static_cast<std::size_t>(index);
}

/// The exact results and the yardsticks: the same steps with roundings, drawn three times.
struct References {
  Reference exact;
  std::vector<Reference> drawn;  ///< empty for float32
};

References references(const warploom_attention& call) {
  References result{reference(call), {}};
  for (int draw = 0; draw < draws && call.dtype != WARPLOOM_FLOAT32; ++draw)
    result.drawn.push_back(reference(call, Rounding{draw}));
  return result;
}

using Member = ReferenceTensor Reference::*;

/// Error, bound and magnitude of the elements first .. first + count, as norms.
struct Norms {
  double error = 0, drawn_error = 0, bound = 0, magnitude = 0, exact = 0;
};

class Judge {
 public:
  Judge(const References& references, std::uint32_t dtype) : references_(references), dtype_(dtype) {}

  /// `element(i)`: the result at the reference's place i. Rows are `row` elements long; `shared` rows share the error.
  Judgement tensor(const char* name, Member member, int64_t row, bool few_numbers,
                   const std::function<double(int64_t)>& element) const {
    Judgement result{.tensor = name};
    const ReferenceTensor& exact = references_.exact.*member;
    const int64_t size = static_cast<int64_t>(exact.value.size());
    if (size == 0) return result;
    std::vector<double> errors(at(size));
    for (int64_t index = 0; index < size; ++index) {
      const double value = element(index), expected = exact.value[at(index)];
      if (!std::isfinite(value) && std::isfinite(expected))
        return fail(result, format("element %ld is %g, not %g", static_cast<long>(index), value, expected));
      if (exact.magnitude[at(index)] == 0 && value != 0)
        return fail(result, format("element %ld is %g; nothing contributes to it, so it must be 0",
                                   static_cast<long>(index), value));
      errors[at(index)] = value - expected;
    }
    const int64_t rows = size / row;
    const Norms whole = norms(member, errors, 0, size);
    const double limit = whole_limit(whole, few_numbers ? 1 : rows, few_numbers);
    result.error = whole.exact > 0 ? whole.error / whole.exact : whole.error;
    result.limit = whole.exact > 0 ? limit / whole.exact : limit;
    if (whole.error > limit) fail(result, format("error %.2e of the norm exceeds %.2e", result.error, result.limit));
    for (int64_t index = 0; index < rows; ++index) {
      const Norms one = norms(member, errors, index * row, row);
      const double share = one.error == 0 ? 0 : one.error / row_limit(one);
      if (share > result.worst_row) result.worst_row = share;
      if (share > 1 && result.ok)
        fail(result, format("row %ld has %.1f times its allowed error", static_cast<long>(index), share));
    }
    return result;
  }

  Judgement log_sum_exp(const std::function<double(int64_t)>& element) const {
    Judgement result{.tensor = "lse", .limit = float32_limit};
    const ReferenceTensor& exact = references_.exact.lse;
    for (std::size_t index = 0; index < exact.value.size(); ++index) {
      const double value = element(static_cast<int64_t>(index)), expected = exact.value[index];
      if (std::isinf(expected) || std::isinf(value)) {
        if (value != expected) return fail(result, format("element %zu is %g, not %g", index, value, expected));
        continue;
      }
      const double error = std::fabs(value - expected), share = error / (float32_limit * exact.magnitude[index]);
      result.error = std::max(result.error, error);
      result.worst_row = std::max(result.worst_row, share);
      if (!(share <= 1) && result.ok) fail(result, format("element %zu is %.8g, not %.8g", index, value, expected));
    }
    return result;
  }

 private:
  static Judgement fail(Judgement& result, std::string reason) {
    result.ok = false;
    result.reason = std::move(reason);
    return result;
  }

  Norms norms(Member member, const std::vector<double>& errors, int64_t first, int64_t count) const {
    const ReferenceTensor& exact = references_.exact.*member;
    Norms sums;
    for (int64_t index = first; index < first + count; ++index) {
      sums.error += errors[at(index)] * errors[at(index)];
      sums.bound += exact.bound_squared[at(index)];
      sums.magnitude += exact.magnitude[at(index)] * exact.magnitude[at(index)];
      sums.exact += exact.value[at(index)] * exact.value[at(index)];
    }
    for (const Reference& drawn : references_.drawn) {
      double sum = 0;
      for (int64_t index = first; index < first + count; ++index) {
        const double difference = (drawn.*member).value[at(index)] - exact.value[at(index)];
        sum += difference * difference;
      }
      sums.drawn_error = std::max(sums.drawn_error, std::sqrt(sum));
    }
    return {std::sqrt(sums.error), sums.drawn_error, std::sqrt(sums.bound), std::sqrt(sums.magnitude),
            std::sqrt(sums.exact)};
  }

  double whole_limit(const Norms& n, int64_t rows, bool few_numbers) const {
    const double floor = floor_of_magnitude * n.magnitude;
    if (dtype_ == WARPLOOM_FLOAT32) return std::max(float32_limit * n.exact, floor);
    const double limit = 1.1 * (1 + 1 / std::sqrt(static_cast<double>(std::max<int64_t>(rows, 1)))) * n.drawn_error;
    return std::max({limit, few_numbers ? n.bound : 0.0, floor});
  }
  double row_limit(const Norms& n) const {
    const double floor = floor_of_magnitude * n.magnitude;
    if (dtype_ == WARPLOOM_FLOAT32) return std::max(float32_limit * n.exact, floor);
    return std::max({1.1 * n.drawn_error, 2 * n.bound, floor});
  }

  const References& references_;
  std::uint32_t dtype_;
};

/// The gaps behind the rows still hold what make_problem wrote.
bool gaps_untouched(const OwnedTensor& tensor, std::uint32_t dtype) {
  const TensorView& view = tensor.view;
  const int64_t size = bytes_per_element(dtype), used = view.heads * view.dim, gap = view.row_stride - used;
  const auto* bytes = static_cast<const unsigned char*>(tensor.memory.data());
  for (int64_t row = 0; row < view.rows; ++row) {
    const unsigned char* start = bytes + (row * view.row_stride + used) * size;
    if (std::any_of(start, start + gap * size, [](unsigned char byte) { return byte != 0xFF; })) return false;
  }
  return true;
}

std::function<double(int64_t)> elements(const OwnedTensor& tensor) {
  const TensorView view = tensor.view;
  return [view](int64_t index) {
    const int64_t width = view.heads * view.dim;
    return load(view.data, static_cast<std::uint32_t>(view.dtype), index / width * view.row_stride + index % width);
  };
}

std::function<double(int64_t)> elements(const std::vector<float>& values) {
  return [&values](int64_t index) { return static_cast<double>(values[at(index)]); };
}

}  // namespace

std::vector<Judgement> judge(const Problem& problem, const warploom_attention& call) {
  const References both = references(call);
  const Judge judge(both, call.dtype);
  std::vector<Judgement> results;
  const auto rows_of = [&](const char* name, Member member, const OwnedTensor& tensor) {
    results.push_back(judge.tensor(name, member, tensor.view.dim, false, elements(tensor)));
    if (results.back().ok && !gaps_untouched(tensor, call.dtype)) {
      results.back().ok = false;
      results.back().reason = "memory between the rows was written";
    }
  };
  if (call.pass == WARPLOOM_FORWARD) {
    rows_of("out", &Reference::out, problem.out);
    if (call.op == WARPLOOM_SOFTMAX) results.push_back(judge.log_sum_exp(elements(problem.lse)));
    return results;
  }
  rows_of("dq", &Reference::dq, problem.dq);
  rows_of("dk", &Reference::dk, problem.dk);
  rows_of("dv", &Reference::dv, problem.dv);
  if (!problem.config.bias_gradient) return results;
  if (problem.bias_elements > 0) {
    const int64_t row =
        call.bias.kind == WARPLOOM_DENSE_BIAS ? call.bias.num_columns : call.bias.num_columns * call.bias.heads;
    results.push_back(judge.tensor("dbias", &Reference::bias, row, false, [&](int64_t index) {
      return load(problem.bias_grad.data(), call.bias.dtype, index);
    }));
  }
  if (!problem.position.empty())
    results.push_back(judge.tensor("dposition", &Reference::position, 1, true, elements(problem.position_grad)));
  if (!problem.time.empty())
    results.push_back(judge.tensor("dtime", &Reference::time, 1, true, elements(problem.time_grad)));
  return results;
}

}  // namespace warploom::cli
