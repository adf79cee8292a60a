#include "expression/functions.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace warploom::expression {
namespace {

warploom_function function_of(const char* text, const char* names = nullptr, const double* values = nullptr,
                              int64_t count = 0, const char* slope = nullptr) {
  return {text, slope, names, values, count};
}

TEST(FunctionsTest, TheSameTextIsTheSameFunction) {
  const double values[] = {1, 2, 3};
  std::string first = "z * sigmoid(a * z) + b", second = first;
  const auto* one = *find_score(function_of(first.c_str(), "a, b", values, 2));
  const auto* two = *find_score(function_of(second.c_str(), "a, b", values + 1, 2));
  EXPECT_EQ(one, two) << "other values, the same function";
  EXPECT_EQ(&score_of_number(one->number), one);
  EXPECT_NE(*find_score(function_of(first.c_str(), "b, a", values, 2)), one) << "the parameters' order";
  EXPECT_NE(*find_score(function_of(first.c_str(), "a, b", values, 2, "1")), one) << "a slope of its own";
  EXPECT_TRUE(one->derived);
  EXPECT_EQ((*find_score(function_of("z", nullptr, nullptr, 0, "2 * z")))->slope, "2 * z");
}

TEST(FunctionsTest, AKernelsTextHoldsNoNumberOfTheProcess) {
  const auto* one = *find_score(function_of("z * tanh(z)"));
  EXPECT_EQ(one->device_text.find(std::to_string(one->number) + "_"), std::string::npos);
  EXPECT_NE(one->device_text.find("score_math::tanh"), std::string::npos);
  EXPECT_NE(one->device_text.find("#line 1 \"score\""), std::string::npos);
  const auto* two = *find_score(function_of("t = z;\n\nt * 3", nullptr, nullptr, 0, "\n3 + 0 * z"));
  EXPECT_NE(two->device_text.find("#line 3 \"score\""), std::string::npos) << two->device_text;
  EXPECT_NE(two->device_text.find("#line 2 \"slope\""), std::string::npos) << two->device_text;
}

TEST(FunctionsTest, ValuesOfParametersAreChecked) {
  const double values[] = {1e39, 2.5, 3e9};
  const auto error = [](const auto& found) { return found.status().message(); };
  EXPECT_NE(error(find_score(function_of("a * z", "a"))).find("1 names and 0 values"), std::string::npos);
  EXPECT_NE(error(find_score(function_of("z", nullptr, values, 1))).find("0 names and 1 values"), std::string::npos);
  EXPECT_NE(error(find_score(function_of("a * z", "a", values, 1))).find("a = 1e+39 is not a finite float32"),
            std::string::npos);
  EXPECT_NE(error(find_mask(function_of("[0, w)", "w", values + 1, 1))).find("w = 2.5 is not an int32"),
            std::string::npos);
  EXPECT_NE(error(find_mask(function_of("[0, w)", "w", values + 2, 1))).find("w = 3e+09 is not an int32"),
            std::string::npos);
  EXPECT_NE(error(find_mask(function_of("[0, r)", nullptr, nullptr, 0, "1"))).find("slope"), std::string::npos);
  EXPECT_NE(error(find_score(function_of("z", nullptr, nullptr, 0, "zz"))).find("slope: unknown name zz"),
            std::string::npos);
}

TEST(FunctionsTest, AFunctionTooLargeIsRefused) {
  std::string text = "z";
  for (int n = 0; n < 600; ++n) text += "+" + std::to_string(n % 10) + "*z";
  EXPECT_NE(find_score(function_of(text.c_str())).status().message().find("operations"), std::string::npos)
      << find_score(function_of(text.c_str())).ok();
}

TEST(FunctionsTest, ThreadsFindTheSameFunction) {
  std::vector<const ScoreFunction*> found(8, nullptr);
  std::vector<std::thread> threads;
  for (size_t n = 0; n < found.size(); ++n) {
    threads.emplace_back([&found, n] { found[n] = *find_score(function_of("z * z * sigmoid(3 - z)")); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const ScoreFunction* function : found) EXPECT_EQ(function, found.front());
}

TEST(FunctionsTest, OnlyAMaskThatAsksForTheHeadDiffersByIt) {
  EXPECT_FALSE((*find_mask(function_of("[0, r + 1)")))->by_head);
  EXPECT_TRUE((*find_mask(function_of("[r - (head + 1) * 16, r + 1)")))->by_head);
  EXPECT_EQ((*find_mask(function_of("[0, nc), [r, r + 1)")))->intervals, 2);
}

}  // namespace
}  // namespace warploom::expression
