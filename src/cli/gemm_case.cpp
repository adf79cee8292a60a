#include "cli/gemm_case.h"

#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "problem/gemm.h"
#include "problem/message.h"

namespace warploom::cli {
namespace {

constexpr std::string_view prefix = "gemm-";

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<std::uint32_t> dtype_of_name(std::string_view name) {
  if (name == "fp16") return WARPLOOM_FLOAT16;
  if (name == "bf16") return WARPLOOM_BFLOAT16;
  if (name == "fp32") return WARPLOOM_FLOAT32;
  if (name == "fp8") return WARPLOOM_FLOAT8_E4M3;
  return std::nullopt;
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
  return parts;
}

bool parse_sizes(const std::string& text, GemmCase& result) {
  const std::vector<std::string> sizes = split(text, 'x');
  if (sizes.size() != 3) return false;
  std::int64_t* const targets[] = {&result.rows, &result.columns, &result.depth};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::optional<std::int64_t> value = number(sizes[i]);
    if (!value) return false;
    *targets[i] = *value;
  }
  return true;
}

/// What may follow the type, in any order.
bool parse_option(const std::vector<std::string>& parts, std::size_t& i, GemmCase& result) {
  const std::string& part = parts[i];
  for (std::size_t before = 3; before < i; ++before) {
    if (parts[before] == part) return false;  // twice
  }
  if (part == "bias") return result.bias = true;
  if (part == "silu") return result.silu = true;
  if (part == "residual") return result.residual = true;
  if (part == "to" && i + 1 < parts.size()) {
    const std::optional<std::uint32_t> out = dtype_of_name(parts[++i]);
    if (!out || *out == WARPLOOM_FLOAT8_E4M3) return false;
    result.out_dtype = *out;
    return true;
  }
  if (part.starts_with('B')) {
    const std::optional<std::int64_t> batch = number(std::string_view(part).substr(1));
    if (batch) result.batch = *batch;
    return batch.has_value();
  }
  return false;
}

}  // namespace

bool is_gemm_name(const std::string& name) {
  return name.starts_with(prefix);
}

Result<GemmCase> parse_gemm_case(const std::string& name) {
  const Status wrong = Status::invalid_value(
      message("case ", name,
              " is no matrix product; write gemm-MxNxK-TYPE, TYPE bf16, fp16 or fp8, followed by any of "
              "-to-fp32, -B8 (batch), -bias, -silu, -residual, e.g. gemm-8192x8192x8192-bf16"));
  GemmCase result;
  const std::vector<std::string> parts = split(name, '-');
  if (!is_gemm_name(name) || parts.size() < 3 || !parse_sizes(parts[1], result)) return wrong;
  const std::optional<std::uint32_t> dtype = dtype_of_name(parts[2]);
  if (!dtype || *dtype == WARPLOOM_FLOAT32) return wrong;
  result.dtype = *dtype;
  result.out_dtype = *dtype == WARPLOOM_FLOAT8_E4M3 ? std::uint32_t{WARPLOOM_BFLOAT16} : *dtype;
  for (std::size_t i = 3; i < parts.size(); ++i) {
    if (!parse_option(parts, i, result)) return wrong;
  }
  return result;
}

std::int64_t padded_columns(std::int64_t columns, std::uint32_t dtype) {
  const std::int64_t aligned_values = 16 / gemm_value_bytes(dtype);
  return (columns + aligned_values - 1) / aligned_values * aligned_values;
}

warploom_gemm describe_case(const GemmCase& gemm) {
  static void* const somewhere = reinterpret_cast<void*>(std::uintptr_t{4096});  // aligned, and never read
  const auto matrix = [](std::int64_t rows, std::int64_t columns, std::uint32_t dtype) {
    const std::int64_t stride = padded_columns(columns, dtype);
    return warploom_matrix{somewhere, rows * stride, stride};
  };
  warploom_gemm call;
  warploom_gemm_init(&call);
  call.dtype = gemm.dtype;
  call.out_dtype = gemm.out_dtype;
  call.activation = gemm.silu ? WARPLOOM_SILU : WARPLOOM_NO_ACTIVATION;
  call.batch = gemm.batch;
  call.rows = gemm.rows;
  call.columns = gemm.columns;
  call.depth = gemm.depth;
  call.a = matrix(gemm.rows, gemm.depth, gemm.dtype);
  call.b = matrix(gemm.columns, gemm.depth, gemm.dtype);
  call.out = matrix(gemm.rows, gemm.columns, gemm.out_dtype);
  if (gemm.residual) call.c = call.out;
  if (gemm.residual) call.beta = 1;
  if (gemm.bias) call.bias = somewhere;
  return call;
}

}  // namespace warploom::cli
