#include "cli/verify_cases.h"

#include <utility>

namespace warploom::cli {
namespace {

/// Lengths with empty sequences at both ends and inside, one token, and tails of every tile.
const std::vector<std::int64_t> lengths = {0, 1, 17, 0, 64, 33, 0};

class Cases {
 public:
  Cases(bool softmax, std::uint32_t dtype) {
    start_.softmax = softmax;
    start_.dtype = dtype;
    start_.lengths_q = lengths;
    start_.heads = 2;
    start_.head_dim = 32;
    start_.right = 0;
    start_.bias_gradient = true;
  }

  /// `change` turns the starting problem (causal, `lengths`, 2 heads of 32) into the case.
  template <typename Change>
  void add(std::string name, Change change, bool cpu_only = false) {
    ProblemConfig config = start_;
    config.seed = cases_.size() + 1;
    change(config);
    cases_.push_back({std::move(name), std::move(config), cpu_only});
  }

  std::vector<VerifyCase> take() { return std::move(cases_); }

 private:
  ProblemConfig start_;
  std::vector<VerifyCase> cases_;
};

void add_batches(Cases& cases) {
  cases.add("no sequences", [](ProblemConfig& c) { c.lengths_q = {}; });
  cases.add("no tokens", [](ProblemConfig& c) { c.lengths_q = {0, 0, 0}; });
  cases.add("one token", [](ProblemConfig& c) { c.lengths_q = {1}; });
  cases.add("tile tails", [](ProblemConfig& c) {
    c.lengths_q = {15, 16, 31, 63, 65, 127, 129};
    c.heads = 1;
  });
  cases.add("long sequence", [](ProblemConfig& c) {
    c.lengths_q = {300};
    c.heads = 1;
  });
  // Work items in several groups of sequences and heads, far more of them than fit a GPU's smallest part at once.
  cases.add("many sequences", [](ProblemConfig& c) {
    c.lengths_q = {130, 1, 257, 64, 0, 200, 129, 17, 300, 90};
    c.head_dim = 64;
  });
  cases.add("dense batch", [](ProblemConfig& c) {
    c.dense = true;
    c.lengths_q = {40, 40, 40};
  });
  cases.add("dense batch, used rows", [](ProblemConfig& c) {
    c.dense = true;
    c.lengths_q = {40, 40, 40};
    c.used_q = c.used_k = {0, 40, 7};
  });
  cases.add("used rows", [](ProblemConfig& c) { c.used_q = c.used_k = {0, 1, 9, 0, 60, 0, 0}; });
  cases.add("rows behind the last sequence", [](ProblemConfig& c) { c.rows_behind = 5; });
  cases.add("strided tensors", [](ProblemConfig& c) { c.gap = 8; });
  cases.add("fewer queries than keys", [](ProblemConfig& c) {
    c.lengths_q = {3, 0, 1, 20, 0};
    c.lengths_k = {40, 5, 1, 33, 0};
  });
}

void add_heads(Cases& cases) {
  for (const std::int64_t dim : {8, 16, 40, 64, 96, 128, 256}) {
    cases.add("head dimension " + std::to_string(dim), [dim](ProblemConfig& c) {
      c.head_dim = dim;
      c.heads = 1;
    });
  }
  for (const std::int64_t dim : {1, 7, 33, 512}) {
    cases.add(
        "head dimension " + std::to_string(dim),
        [dim](ProblemConfig& c) {
          c.head_dim = dim;
          c.heads = 1;
        },
        true);
  }
  cases.add("narrow values", [](ProblemConfig& c) {
    c.head_dim = 64;
    c.value_dim = 16;
  });
  cases.add("wide values", [](ProblemConfig& c) {
    c.head_dim = 24;
    c.value_dim = 72;
  });
  cases.add("grouped queries", [](ProblemConfig& c) {
    c.heads = 4;
    c.key_heads = 2;
  });
  cases.add("one key head", [](ProblemConfig& c) {
    c.heads = 3;
    c.key_heads = 1;
  });
}

void add_masks(Cases& cases) {
  const auto window = [](std::optional<std::int64_t> left, std::optional<std::int64_t> right) {
    return [left, right](ProblemConfig& c) {
      c.left = left;
      c.right = right;
    };
  };
  cases.add("full mask", window(std::nullopt, std::nullopt));
  cases.add("window to the left", window(5, 0));
  cases.add("window to both sides", window(9, 4));
  cases.add("window to the right", window(std::nullopt, 3));
  cases.add("only the row itself", window(0, 0));
  cases.add("contexts", [](ProblemConfig& c) { c.contexts = {0, 1, 4, 0, 4, 33, 0}; });
  cases.add("targets", [](ProblemConfig& c) { c.targets = {0, 1, 5, 0, 20, 33, 0}; });
  cases.add("targets in groups", [](ProblemConfig& c) {
    c.targets = {0, 0, 17, 0, 23, 7, 0};
    c.target_group_size = 3;
  });
  cases.add("contexts, targets, window", [](ProblemConfig& c) {
    c.contexts = {0, 0, 3, 0, 4, 20, 0};
    c.targets = {0, 1, 6, 0, 25, 13, 0};
    c.left = 7;
    c.target_group_size = 2;
  });
  cases.add("window from the history's end", [](ProblemConfig& c) {
    c.targets = {0, 1, 6, 0, 25, 13, 0};
    c.left = 6;
    c.window_from_history_end = true;
  });
  cases.add("contexts and targets, fewer queries than keys", [](ProblemConfig& c) {
    c.lengths_q = {10, 5, 0};
    c.lengths_k = {50, 5, 8};
    c.contexts = {4, 2, 1};
    c.targets = {8, 3, 2};
  });
  for (const std::int64_t count : {1, 4}) {
    cases.add(std::to_string(count) + " intervals a row", [count](ProblemConfig& c) {
      c.right.reset();
      c.intervals = count;
      c.interval_heads = count == 1 ? 1 : 2;
    });
  }
}

void add_biases(Cases& cases) {
  const auto bias = [](BiasForm form, auto change) {
    return [form, change](ProblemConfig& c) {
      c.bias = form;
      change(c);
    };
  };
  cases.add("dense bias", bias(BiasForm::dense, [](ProblemConfig&) {}));
  cases.add("dense bias for all heads and sequences", bias(BiasForm::dense, [](ProblemConfig& c) {
              c.bias_heads = 1;
              c.bias_each_sequence = false;
            }));
  cases.add("dense bias by query row", bias(BiasForm::dense, [](ProblemConfig& c) {
              c.lengths_q = {3, 0, 20};
              c.lengths_k = {40, 5, 33};
              c.bias_rows = BiasRows::query;
            }));
  cases.add("dense bias with -inf", bias(BiasForm::dense, [](ProblemConfig& c) { c.bias_masked = 0.3; }));
  cases.add("dense bias in float32", bias(BiasForm::dense, [](ProblemConfig& c) { c.bias_float32 = true; }));
  cases.add("packed bias", bias(BiasForm::packed, [](ProblemConfig&) {}));
  cases.add("packed bias by query row, one head", bias(BiasForm::packed, [](ProblemConfig& c) {
              c.lengths_q = {3, 0, 20};
              c.lengths_k = {40, 5, 33};
              c.bias_rows = BiasRows::query;
              c.bias_heads = 1;
            }));
  cases.add("bucketed bias", bias(BiasForm::bucketed, [](ProblemConfig& c) {
              c.positions = 20;
              c.times = 16;
            }));
  cases.add("bucketed bias, position only, one head", bias(BiasForm::bucketed, [](ProblemConfig& c) {
              c.positions = 100;
              c.bias_heads = 1;
            }));
  cases.add("bucketed bias, time only", bias(BiasForm::bucketed, [](ProblemConfig& c) { c.times = 32; }));
  cases.add("bucketed bias, own thresholds", bias(BiasForm::bucketed, [](ProblemConfig& c) {
              c.positions = 1;
              c.times = 8;
              c.own_thresholds = true;
            }));
  cases.add("bucketed bias, full mask", bias(BiasForm::bucketed, [](ProblemConfig& c) {
              c.right.reset();
              c.positions = 16;
              c.times = 8;
            }));
}

void add_scalars(Cases& cases, bool softmax) {
  cases.add("alpha 0", [](ProblemConfig& c) { c.alpha = 0.0; });
  cases.add("negative alpha", [](ProblemConfig& c) { c.alpha = -0.4; });
  cases.add("large scores", [](ProblemConfig& c) {
    c.alpha = 1.0;
    c.deviation = 2;
  });
  if (softmax) {
    cases.add("softcap", [](ProblemConfig& c) {
      c.softcap = 2.0;
      c.deviation = 2;
    });
    cases.add("softcap with a bias", [](ProblemConfig& c) {
      c.softcap = 3.0;
      c.bias = BiasForm::dense;
    });
    cases.add("more queries than keys", [](ProblemConfig& c) {
      c.lengths_q = {20, 7, 3};
      c.lengths_k = {5, 0, 3};
    });
    cases.add("more queries than keys, full mask", [](ProblemConfig& c) {
      c.lengths_q = {20, 7, 3};
      c.lengths_k = {5, 0, 3};
      c.right.reset();
    });
  } else {
    cases.add("divisor", [](ProblemConfig& c) { c.divisor = 7.5; });
    cases.add("a divisor for each row", [](ProblemConfig& c) { c.divisor_for_each_row = true; });
    cases.add("bias outside alpha", [](ProblemConfig& c) {
      c.bias = BiasForm::dense;
      c.bias_scaled_by_alpha = false;
    });
    cases.add("bucketed bias outside alpha", [](ProblemConfig& c) {
      c.bias = BiasForm::bucketed;
      c.positions = 30;
      c.times = 12;
      c.bias_scaled_by_alpha = false;
    });
  }
}

}  // namespace

std::vector<VerifyCase> verify_cases(bool softmax, std::uint32_t dtype) {
  Cases cases(softmax, dtype);
  add_batches(cases);
  add_heads(cases);
  add_masks(cases);
  add_biases(cases);
  add_scalars(cases, softmax);
  return cases.take();
}

}  // namespace warploom::cli
