// Calls through the C ABI made of any bytes. Shapes are small and every buffer is exactly as large as the call says, so
// AddressSanitizer sees a read or write past it; lengths, counts, codes, options and contents are whatever the bytes
// say. A call must return one of the status codes, with a message when it is an error, and must then have written
// nothing.
#include <fuzzer/FuzzedDataProvider.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "warploom/warploom.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

/// Buffers of one call; each its own allocation.
class Buffers {
 public:
  explicit Buffers(std::uint64_t seed) : state_(seed) {}

  /// Bytes with contents that no run can foresee: among the values are NaN, infinities and subnormals.
  void* input(std::int64_t bytes) {
    auto& buffer = inputs_.emplace_back(new std::uint8_t[static_cast<std::size_t>(bytes)]);
    for (std::int64_t index = 0; index < bytes; ++index)
      buffer[static_cast<std::size_t>(index)] = static_cast<std::uint8_t>(next() >> 32);
    return buffer.get();
  }

  void* output(std::int64_t bytes) {
    auto& buffer = outputs_.emplace_back(static_cast<std::size_t>(bytes), pattern);
    return buffer.data();
  }

  bool outputs_untouched() const {
    for (const auto& buffer : outputs_)
      for (const std::uint8_t byte : buffer)
        if (byte != pattern) return false;
    return true;
  }

 private:
  static constexpr std::uint8_t pattern = 0xA5;

  std::uint64_t next() { return state_ = state_ * 6364136223846793005u + 1442695040888963407u; }

  std::uint64_t state_;
  std::vector<std::unique_ptr<std::uint8_t[]>> inputs_;
  std::vector<std::vector<std::uint8_t>> outputs_;
};

class CallMaker {
 public:
  CallMaker(FuzzedDataProvider& data, Buffers& buffers) : data_(data), buffers_(buffers) {
    warploom_attention_init(&call_);
  }

  warploom_attention make() {
    codes();
    shapes();
    lengths();
    tensors();
    mask();
    scalars();
    bias();
    corrupt();
    return call_;
  }

 private:
  /// When the bytes run out the provider answers 0: that is the ordinary case.
  bool chance(int one_in) { return data_.ConsumeIntegralInRange<int>(0, one_in - 1) == one_in - 1; }
  std::int64_t number(std::int64_t first, std::int64_t last) {
    return data_.ConsumeIntegralInRange<std::int64_t>(first, last);
  }

  void codes() {
    call_.op = static_cast<std::uint32_t>(number(0, 1));
    call_.pass = static_cast<std::uint32_t>(number(0, 1));
    call_.dtype = static_cast<std::uint32_t>(number(0, 2));
    call_.flags = static_cast<std::uint32_t>(number(0, 63));
    call_.num_threads = chance(8) ? 2 : 1;
    element_ = call_.dtype == WARPLOOM_FLOAT32 ? 4 : 2;
  }

  void shapes() {
    call_.batch = number(0, 4);
    call_.key_heads = number(1, 2);
    call_.heads = call_.key_heads * number(1, 2);
    call_.head_dim = chance(8) ? number(1, 70) : number(1, 9);
    call_.value_dim = chance(2) ? call_.head_dim : number(1, 20);
    dense_ = chance(4);
    own_k_ = !dense_ && chance(2);
  }

  /// B + 1 cumulative lengths in a buffer of their own; mostly legal.
  const void* cumulative(std::uint32_t& dtype, std::int64_t& rows) {
    std::vector<std::int64_t> values = {0};
    for (std::int64_t b = 0; b < call_.batch; ++b) values.push_back(values.back() + (chance(4) ? 0 : number(0, 12)));
    rows = values.back() + (chance(4) ? number(0, 3) : 0);
    if (chance(16)) values[static_cast<std::size_t>(number(0, call_.batch))] = data_.ConsumeIntegral<std::int64_t>();
    dtype = static_cast<std::uint32_t>(number(0, 1));
    const std::int64_t size = dtype == WARPLOOM_INT64 ? 8 : 4;
    auto* bytes = static_cast<std::uint8_t*>(buffers_.input(size * (call_.batch + 1)));
    for (std::size_t index = 0; index < values.size(); ++index) {
      const auto narrow = static_cast<std::int32_t>(values[index]);
      const void* from = dtype == WARPLOOM_INT64 ? static_cast<const void*>(&values[index]) : &narrow;
      std::memcpy(bytes + index * static_cast<std::size_t>(size), from, static_cast<std::size_t>(size));
    }
    return bytes;
  }

  /// B counts, mostly small.
  const std::int32_t* counts() {
    auto* values = static_cast<std::int32_t*>(buffers_.input(4 * call_.batch));
    for (std::int64_t b = 0; b < call_.batch; ++b)
      values[b] = static_cast<std::int32_t>(chance(16) ? data_.ConsumeIntegral<std::int32_t>() : number(-1, 6));
    return values;
  }

  void lengths() {
    if (dense_) {
      call_.max_seqlen_q = number(0, 12);
      call_.max_seqlen_k = chance(2) ? call_.max_seqlen_q : number(0, 12);
      call_.total_q = call_.batch * call_.max_seqlen_q;
      call_.total_k = call_.batch * call_.max_seqlen_k;
    } else {
      call_.cu_seqlens_q = cumulative(call_.cu_seqlens_q_dtype, call_.total_q);
      call_.total_k = call_.total_q;
      if (own_k_) call_.cu_seqlens_k = cumulative(call_.cu_seqlens_k_dtype, call_.total_k);
      if (chance(4)) call_.max_seqlen_q = number(-1, 20);
      if (chance(4)) call_.max_seqlen_k = number(-1, 20);
    }
    if (chance(6)) call_.seqused_q = counts();
    if (chance(6)) call_.seqused_k = counts();
    if (chance(8)) call_.seqused_q_all = static_cast<std::int32_t>(number(-1, 12));
    if (chance(8)) call_.seqused_k_all = static_cast<std::int32_t>(number(-1, 12));
  }

  warploom_tensor tensor(std::int64_t rows, std::int64_t per_sequence, std::int64_t heads, std::int64_t dim,
                         bool written) {
    warploom_tensor result{};
    const std::int64_t gap = chance(4) ? number(0, 3) : 0;
    result.head_stride = dim + gap;
    result.row_stride = heads * result.head_stride;
    result.batch_stride = per_sequence * result.row_stride;
    // Nothing behind the last head's elements belongs to the tensor.
    const std::int64_t elements = rows == 0 ? 0 : rows * result.row_stride - gap;
    const std::int64_t size = elements * element_;
    result.data = written ? buffers_.output(size) : buffers_.input(size);
    return result;
  }

  void tensors() {
    const bool backward = call_.pass == WARPLOOM_BACKWARD, softmax = call_.op == WARPLOOM_SOFTMAX;
    const auto q_like = [&](std::int64_t dim, bool written) {
      return tensor(call_.total_q, call_.max_seqlen_q, call_.heads, dim, written);
    };
    const auto k_like = [&](std::int64_t dim, bool written) {
      return tensor(call_.total_k, call_.max_seqlen_k, call_.key_heads, dim, written);
    };
    call_.q = q_like(call_.head_dim, false);
    call_.k = k_like(call_.head_dim, false);
    call_.v = k_like(call_.value_dim, false);
    if (!backward || softmax) call_.out = q_like(call_.value_dim, !backward);
    if (softmax && (backward || chance(2))) {
      const std::int64_t bytes = 4 * call_.heads * call_.total_q;
      call_.lse = static_cast<float*>(backward ? buffers_.input(bytes) : buffers_.output(bytes));
      call_.lse_head_stride = dense_ ? call_.max_seqlen_q : call_.total_q;
      call_.lse_batch_stride = call_.heads * call_.lse_head_stride;
    }
    if (!backward) return;
    call_.dout = q_like(call_.value_dim, false);
    call_.dq = q_like(call_.head_dim, true);
    call_.dk = k_like(call_.head_dim, true);
    call_.dv = k_like(call_.value_dim, true);
  }

  void mask() {
    if (chance(2)) call_.right = chance(2) ? 0 : number(-1, 10);
    if (chance(4)) call_.left = chance(8) ? data_.ConsumeIntegral<std::int64_t>() : number(-1, 10);
    if (chance(4)) call_.num_contexts = counts();
    if (chance(4)) call_.num_targets = counts();
    if (chance(8)) call_.num_contexts_all = static_cast<std::int32_t>(number(-1, 6));
    if (chance(8)) call_.num_targets_all = static_cast<std::int32_t>(number(-1, 6));
    if (chance(4)) call_.target_group_size = chance(4) ? data_.ConsumeIntegral<std::int64_t>() : number(0, 4);
    if (!chance(4)) return;
    if (chance(2)) {
      call_.left = call_.right = WARPLOOM_UNBOUNDED;
      call_.num_contexts = call_.num_targets = nullptr;
      call_.num_contexts_all = call_.num_targets_all = -1;
    }
    call_.interval_heads = chance(2) ? 1 : call_.heads;
    call_.num_intervals = number(0, 3);
    auto* values =
        static_cast<std::int32_t*>(buffers_.input(8 * call_.interval_heads * call_.total_q * call_.num_intervals));
    call_.intervals = values;  // random bits are legal; smaller numbers meet more rows
    if (chance(4)) return;
    for (std::int64_t index = 0; index < 2 * call_.interval_heads * call_.total_q * call_.num_intervals; ++index)
      values[index] %= 16;
  }

  void scalars() {
    call_.alpha = chance(4) ? data_.ConsumeFloatingPoint<double>() : 0.3;
    call_.softcap = call_.op == WARPLOOM_SOFTMAX && chance(4) ? data_.ConsumeFloatingPointInRange<double>(-1, 50) : 0;
    call_.divisor = chance(4) ? data_.ConsumeFloatingPoint<double>() : 5;
    if (chance(8)) call_.divisor_rows = static_cast<const float*>(buffers_.input(4 * call_.total_q));
    if (call_.op == WARPLOOM_SOFTMAX && !chance(8)) call_.flags &= ~(WARPLOOM_HAS_DIVISOR | WARPLOOM_BIAS_NOT_SCALED);
  }

  std::int64_t longest(bool keys) const {
    const void* values = keys && call_.cu_seqlens_k != nullptr ? call_.cu_seqlens_k : call_.cu_seqlens_q;
    const std::uint32_t dtype =
        keys && call_.cu_seqlens_k != nullptr ? call_.cu_seqlens_k_dtype : call_.cu_seqlens_q_dtype;
    if (dense_) return keys ? call_.max_seqlen_k : call_.max_seqlen_q;
    const std::int64_t given = keys ? call_.max_seqlen_k : call_.max_seqlen_q;
    if (given >= 0) return given;
    std::int64_t result = 0;
    for (std::int64_t b = 0; b < call_.batch; ++b) result = std::max(result, slot(values, dtype, b));
    return std::min<std::int64_t>(result, 64);
  }
  static std::int64_t entry(const void* values, std::uint32_t dtype, std::int64_t b) {
    return dtype == WARPLOOM_INT64 ? static_cast<const std::int64_t*>(values)[b]
                                   : static_cast<const std::int32_t*>(values)[b];
  }
  static std::int64_t slot(const void* values, std::uint32_t dtype, std::int64_t b) {
    std::int64_t length = 0;
    return __builtin_sub_overflow(entry(values, dtype, b + 1), entry(values, dtype, b), &length) ? 0 : length;
  }

  std::int64_t packed_elements(bool by_key, std::int64_t size) const {
    std::int64_t elements = 0;
    for (std::int64_t b = 0; b < call_.batch; ++b) {
      std::int64_t rows = by_key ? call_.max_seqlen_k : call_.max_seqlen_q, keys = call_.max_seqlen_k;
      if (!dense_) {
        const bool own = call_.cu_seqlens_k != nullptr;
        keys = own ? slot(call_.cu_seqlens_k, call_.cu_seqlens_k_dtype, b)
                   : slot(call_.cu_seqlens_q, call_.cu_seqlens_q_dtype, b);
        rows = by_key ? keys : slot(call_.cu_seqlens_q, call_.cu_seqlens_q_dtype, b);
      }
      if (rows < 0 || keys < 0 || rows > 64 || keys > 64) return 0;
      elements += rows * ((keys * size + 15) / 16 * 16 / size);
    }
    return elements;
  }

  void bias() {
    warploom_bias& bias = call_.bias;
    bias.kind = static_cast<std::uint32_t>(number(0, 3));
    bias.dtype = chance(4) ? static_cast<std::uint32_t>(number(0, 2)) : call_.dtype;
    const std::int64_t size = bias.dtype == WARPLOOM_FLOAT32 ? 4 : 2;
    const bool gradient = call_.pass == WARPLOOM_BACKWARD && !chance(4);
    bias.heads = chance(2) ? 1 : call_.heads;
    bias.rows = static_cast<std::uint32_t>(number(0, 2));
    if (bias.kind == WARPLOOM_DENSE_BIAS) {
      bias.batch = chance(2) ? 1 : call_.batch;
      bias.num_columns = chance(16) ? number(0, 20) : longest(true);
      bias.num_rows = chance(16) ? number(0, 20) : longest(bias.rows != WARPLOOM_ROWS_QUERY);
      bias.row_stride = bias.grad_row_stride = bias.num_columns;
      bias.head_stride = bias.grad_head_stride = bias.num_rows * bias.num_columns;
      bias.batch_stride = bias.grad_batch_stride = bias.heads * bias.head_stride;
      bias.values = buffers_.input(bias.batch * bias.batch_stride * size);
      if (gradient) bias.grad = buffers_.output(bias.batch * bias.batch_stride * size);
    }
    if (bias.kind == WARPLOOM_PACKED_BIAS) {
      bias.num_columns = chance(16) ? number(0, 50) : packed_elements(bias.rows == WARPLOOM_ROWS_KEY, size);
      bias.head_stride = bias.grad_head_stride = bias.num_columns;
      bias.values = buffers_.input(bias.heads * bias.num_columns * size);
      if (gradient) bias.grad = buffers_.output(bias.heads * bias.num_columns * size);
    }
    if (bias.kind != WARPLOOM_BUCKETED_BIAS) return;
    const auto table = [&](const float*& values, float*& grad, std::int64_t& heads, std::int64_t& entries,
                           std::int64_t& head_stride) {
      heads = chance(2) ? 1 : call_.heads;
      entries = chance(16) ? 0 : number(1, 12);
      head_stride = entries;
      values = static_cast<const float*>(buffers_.input(4 * heads * entries));
      if (gradient && !chance(4)) grad = static_cast<float*>(buffers_.output(4 * heads * entries));
    };
    if (!chance(4))
      table(bias.position, bias.position_grad, bias.position_heads, bias.num_positions, bias.position_head_stride);
    if (chance(4)) return;
    table(bias.time, bias.time_grad, bias.time_heads, bias.num_times, bias.time_head_stride);
    auto* timestamps = static_cast<std::int64_t*>(buffers_.input(8 * call_.total_k));
    if (!chance(4))
      for (std::int64_t row = 0; row < call_.total_k; ++row) timestamps[row] = number(-1000000, 1000000);
    bias.timestamps = timestamps;
    if (!chance(4) || bias.num_times < 1) return;
    auto* thresholds = static_cast<std::int64_t*>(buffers_.input(8 * (bias.num_times - 1)));
    for (std::int64_t n = 0; n + 1 < bias.num_times; ++n)
      thresholds[n] = chance(16) ? data_.ConsumeIntegral<std::int64_t>() : n * n * 7;
    bias.time_bucket = thresholds;
  }

  /// One field gets a value that breaks a rule, whatever the rest is. None of these can make a call larger than its
  /// buffers.
  void corrupt() {
    if (!chance(3)) return;
    const std::int64_t hostile[] = {-1, -7, std::numeric_limits<std::int64_t>::min()};
    const std::int64_t value = hostile[number(0, 2)];
    const auto any = data_.ConsumeIntegral<std::uint32_t>();
    switch (number(0, 20)) {
      case 0:
        call_.abi_version = any;
        break;
      case 1:
        call_.struct_bytes = any;
        break;
      case 2:
        call_.op = 2 + any % 1000;
        break;
      case 3:
        call_.pass = 2 + any % 1000;
        break;
      case 4:
        call_.dtype = 3 + any % 1000;
        break;
      case 5:
        call_.device = any % 4;
        break;  // 1: a GPU that is not there
      case 6:
        call_.flags |= 64 + any;
        break;
      case 7:
        call_.batch = value;
        break;
      case 8:
        call_.heads = value;
        break;
      case 9:
        call_.key_heads = value;
        break;
      case 10:
        call_.head_dim = chance(2) ? value : 513 + std::int64_t{any};
        break;
      case 11:
        call_.value_dim = chance(2) ? value : 513 + std::int64_t{any};
        break;
      case 12:
        call_.total_q = value;
        break;
      case 13:
        call_.total_k = value;
        break;
      case 14:
        call_.num_intervals = value;
        break;
      case 15:
        call_.bias.kind = 4 + any % 1000;
        break;
      case 16:
        call_.bias.heads = value;
        break;
      case 17:
        call_.bias.reserved = any;
        break;
      case 18:
        call_.num_threads = -1;
        break;
      case 19:
        call_.q.data = nullptr;
        break;
      case 20:
        call_.cu_seqlens_q_dtype = 2 + any % 1000;
        break;
    }
  }

  FuzzedDataProvider& data_;
  Buffers& buffers_;
  warploom_attention call_;
  bool dense_ = false, own_k_ = false;
  std::int64_t element_ = 4;
};

/// The bytes themselves as a structure, all pointers null: nothing to read, nothing to write.
warploom_attention raw_call(FuzzedDataProvider& data) {
  warploom_attention call{};
  const std::vector<std::uint8_t> bytes = data.ConsumeBytes<std::uint8_t>(sizeof call);
  if (!bytes.empty()) std::memcpy(&call, bytes.data(), bytes.size());
  call.abi_version = WARPLOOM_ABI_VERSION;
  call.struct_bytes = sizeof call;
  call.batch %= 1000;  // many empty sequences only take time
  for (warploom_tensor* tensor : {&call.q, &call.k, &call.v, &call.out, &call.dout, &call.dq, &call.dk, &call.dv})
    tensor->data = nullptr;
  call.stream = nullptr;
  call.lse = nullptr;
  call.cu_seqlens_q = call.cu_seqlens_k = nullptr;
  call.seqused_q = call.seqused_k = call.num_contexts = call.num_targets = call.intervals = nullptr;
  call.divisor_rows = nullptr;
  warploom_bias& bias = call.bias;
  bias.values = nullptr;
  bias.grad = nullptr;
  bias.position = bias.time = nullptr;
  bias.position_grad = bias.time_grad = nullptr;
  bias.timestamps = bias.time_bucket = nullptr;
  call.num_threads &= 3;
  return call;
}

void exercise(const warploom_attention& call, const Buffers& buffers) {
  const int valid = warploom_validate(&call);
  require(buffers.outputs_untouched());
  const int status = warploom_run(&call);
  require(status >= WARPLOOM_OK && status <= WARPLOOM_RUNTIME_ERROR);
  require(valid == WARPLOOM_OK || status == valid);
  if (status != WARPLOOM_OK) {
    require(warploom_last_error()[0] != '\0');
    require(buffers.outputs_untouched());
  }
  char* text = nullptr;
  if (warploom_explain(&call, &text) == WARPLOOM_OK) {
    require(text != nullptr && text[0] == '{');
    warploom_free(text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  FuzzedDataProvider data(bytes, size);
  Buffers buffers(data.ConsumeIntegral<std::uint32_t>());
  exercise(data.ConsumeIntegralInRange<int>(0, 7) == 7 ? raw_call(data) : CallMaker(data, buffers).make(), buffers);
  return 0;
}
