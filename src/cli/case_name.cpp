#include "cli/case_name.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "cli/numbers.h"
#include "cli/terminal.h"
#include "history/random.h"

namespace warploom::cli {
namespace {

using std::int64_t;

/// The parts of a name between hyphens, taken from the front.
class Parts {
 public:
  explicit Parts(const std::string& name) : name_(name) {
    std::string_view rest = name_;
    while (true) {
      const std::size_t end = std::min(rest.find('-'), rest.size());
      parts_.push_back(rest.substr(0, end));
      if (end == rest.size()) break;
      rest.remove_prefix(end + 1);
    }
  }

  std::string_view front() const { return at_ < parts_.size() ? parts_[at_] : std::string_view(); }
  bool take(std::string_view word) {
    if (front() != word) return false;
    ++at_;
    return true;
  }
  /// Takes a part like H4: a prefix and a number of at least `least`.
  bool take_number(std::string_view prefix, int64_t least, int64_t& value) {
    const std::string_view part = front();
    if (part.substr(0, prefix.size()) != prefix || !number(part.substr(prefix.size()), least, value)) return false;
    ++at_;
    return true;
  }
  /// Takes a part like L256..2048.
  bool take_range(std::string_view prefix, int64_t& first, int64_t& last) {
    const std::string_view part = front();
    const std::size_t dots = part.find("..");
    if (part.substr(0, prefix.size()) != prefix || dots == std::string_view::npos) return false;
    if (!number(part.substr(prefix.size(), dots - prefix.size()), 0, first) ||
        !number(part.substr(dots + 2), first, last))
      return false;
    ++at_;
    return true;
  }
  bool finished() const { return at_ == parts_.size(); }
  const std::string& name() const { return name_; }
  Status expected(const std::string& what) const {
    const std::string found = finished() ? "it ends there" : "\"" + std::string(front()) + "\" stands there";
    return Status::invalid_value("case " + name_ + ": expected " + what + " but " + found +
                                 "; a name is e.g. hstu-uniform-B8-L4096-H4-D128-causal-bf16");
  }

 private:
  static bool number(std::string_view text, int64_t least, int64_t& value) {
    constexpr int64_t most = 1 << 30;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
  }

  std::string name_;
  std::vector<std::string_view> parts_;
  std::size_t at_ = 0;
};

Status parse_shape(Parts& parts, Case& result) {
  if (parts.take("movielens")) {
    result.shape = Case::Shape::movielens;
    return {};
  }
  if (parts.take("jagged")) {
    result.shape = Case::Shape::jagged;
    if (!parts.take_number("B", 0, result.batch)) return parts.expected("B and the number of sequences");
    if (!parts.take_range("L", result.shortest, result.longest))
      return parts.expected("L, the shortest length, .. and the longest (L256..2048)");
    return {};
  }
  if (!parts.take("uniform")) return parts.expected("uniform, jagged or movielens");
  if (!parts.take_number("B", 0, result.batch)) return parts.expected("B and the number of sequences");
  if (!parts.take_number("L", 0, result.longest)) return parts.expected("L and the length");
  result.shortest = result.longest;
  return {};
}

Status parse_heads(Parts& parts, Case& result) {
  if (!parts.take_number("H", 1, result.heads)) return parts.expected("H and the number of heads");
  if (!parts.take_number("Hkv", 1, result.key_heads)) result.key_heads = result.heads;
  if (!parts.take_number("D", 1, result.head_dim)) return parts.expected("D and the head dimension");
  if (!parts.take_number("Dv", 1, result.value_dim)) result.value_dim = result.head_dim;
  return {};
}

Status parse_mask(Parts& parts, Case& result) {
  result.causal = parts.take("causal");
  if (!result.causal && !parts.take("full")) return parts.expected("causal or full");
  parts.take_number("left", 0, result.left);
  parts.take_number("ctx", 0, result.contexts);
  parts.take_number("tgt", 0, result.targets);
  if (!result.causal && result.contexts + result.targets > 0)
    return Status::invalid_value("case " + parts.name() + ": ctx and tgt need a causal mask; write causal for full");
  return {};
}

void parse_bias(Parts& parts, Case& result) {
  if (!parts.take("rab")) return;
  result.bias = parts.take("bucketed") ? BiasForm::bucketed : parts.take("packed") ? BiasForm::packed : BiasForm::dense;
  result.bias_gradient = result.bias != BiasForm::dense || parts.take("drab");
}

}  // namespace

std::string case_name(const Case& problem) {
  std::string name = problem.softmax ? "softmax" : "hstu";
  const auto number = [](const char* prefix, int64_t value) {
    return "-" + std::string(prefix) + std::to_string(value);
  };
  if (problem.shape == Case::Shape::movielens) name += "-movielens";
  if (problem.shape == Case::Shape::uniform)
    name += "-uniform" + number("B", problem.batch) + number("L", problem.longest);
  if (problem.shape == Case::Shape::jagged) {
    name +=
        "-jagged" + number("B", problem.batch) + number("L", problem.shortest) + ".." + std::to_string(problem.longest);
  }
  name += number("H", problem.heads);
  if (problem.key_heads != problem.heads) name += number("Hkv", problem.key_heads);
  name += number("D", problem.head_dim);
  if (problem.value_dim != problem.head_dim) name += number("Dv", problem.value_dim);
  name += problem.causal ? "-causal" : "-full";
  if (problem.left >= 0) name += number("left", problem.left);
  if (problem.contexts > 0) name += number("ctx", problem.contexts);
  if (problem.targets > 0) name += number("tgt", problem.targets);
  if (problem.bias == BiasForm::dense) name += problem.bias_gradient ? "-rab-drab" : "-rab";
  if (problem.bias == BiasForm::packed) name += "-rab-packed";
  if (problem.bias == BiasForm::bucketed) name += "-rab-bucketed";
  return name + "-" + type_name(problem.dtype);
}

Result<Case> parse_case(const std::string& name) {
  Parts parts(name);
  Case result;
  result.softmax = parts.take("softmax");
  if (!result.softmax && !parts.take("hstu")) return parts.expected("hstu or softmax");
  if (Status status = parse_shape(parts, result); !status.ok()) return status;
  if (Status status = parse_heads(parts, result); !status.ok()) return status;
  if (Status status = parse_mask(parts, result); !status.ok()) return status;
  parse_bias(parts, result);
  bool known = false;
  for (const std::uint32_t dtype : {WARPLOOM_FLOAT32, WARPLOOM_FLOAT16, WARPLOOM_BFLOAT16}) {
    if (!parts.take(type_name(dtype))) continue;
    result.dtype = dtype;
    known = true;
    break;
  }
  if (!known) return parts.expected("left<n>, ctx<n>, tgt<n>, rab, or the type: fp32, bf16, fp16");
  if (!parts.finished()) return parts.expected("the end of the name");
  return result;
}

Result<ProblemConfig> config_of(const Case& problem, const HistoryShape& movielens) {
  history::Random random(0);
  ProblemConfig config;
  if (problem.shape == Case::Shape::movielens) {
    if (movielens.lengths.empty()) {
      return Status::runtime_error("case " + case_name(problem) +
                                   " needs the MovieLens-100k histories, which are not here; `make demo` fetches them");
    }
    config.lengths_q = movielens.lengths;
    config.timestamps = movielens.timestamps;
  } else {
    for (int64_t b = 0; b < problem.batch; ++b)
      config.lengths_q.push_back(random.between(problem.shortest, problem.longest));
  }
  if (problem.contexts > 0 || problem.targets > 0) {
    for (const int64_t length : config.lengths_q) {
      const int64_t targets = std::min(random.between(0, problem.targets), length);
      config.targets.push_back(static_cast<std::int32_t>(targets));
      config.contexts.push_back(static_cast<std::int32_t>(std::min(problem.contexts, length - targets)));
    }
  }
  config.softmax = problem.softmax;
  config.dtype = problem.dtype;
  config.heads = problem.heads;
  config.key_heads = problem.key_heads;
  config.head_dim = problem.head_dim;
  config.value_dim = problem.value_dim;
  if (problem.causal) config.right = 0;
  if (problem.left >= 0) config.left = problem.left;
  config.bias = problem.bias;
  config.bias_gradient = problem.bias_gradient;
  if (problem.bias == BiasForm::bucketed) {
    config.positions = 1024;
    config.times = 64;
  }
  return config;
}

}  // namespace warploom::cli
