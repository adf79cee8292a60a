#include "gpu/user_score.h"

#include "expression/functions.h"
#include "expression/parse.h"
#include "problem/sequence.h"

namespace warploom::gpu {

static_assert(kMaxFunctionParameters == expression::kMaxParameters);

int user_score_number(const warploom_attention& call) {
  return has_score_function(call) ? (*expression::find_score(call.score))->number : 0;  // validated
}

std::string user_score_member(int number) {
  return number == 0 ? ", .user_score = 0" : ", .user_score = 1";
}

std::string user_score_text(int number) {
  return number == 0 ? "" : expression::score_of_number(number).device_text;
}

std::string user_score_name(int number) {
  return number == 0 ? "" : " user score";
}

std::string user_score_failure(int number, const std::string& message) {
  return number == 0 ? message : expression::with_score_lines(number, message);
}

std::vector<int> sample_scores() {
  std::vector<int> numbers;
  for (const char* text : {"z * (0.5 + 0.5 * z / (1 + abs(z)))", "gelu(z) + softplus(z) * tanh(z)"}) {
    warploom_function function{};
    function.text = text;
    numbers.push_back((*expression::find_score(function))->number);
  }
  return numbers;
}

void fill_score_parameters(const warploom_attention& call, float (&parameters)[kMaxFunctionParameters]) {
  for (int64_t n = 0; n < call.score.num_values; ++n) parameters[n] = static_cast<float>(call.score.values[n]);
}

}  // namespace warploom::gpu
