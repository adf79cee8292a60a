// A user's score function on a tile of scores: its program (expression/program.h) one step after the other, each on all
// scores of a row. Compiled once per target.
#if defined(WARPLOOM_CPU_SCORE_PROGRAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLOOM_CPU_SCORE_PROGRAM_INL_H_
#undef WARPLOOM_CPU_SCORE_PROGRAM_INL_H_
#else
#define WARPLOOM_CPU_SCORE_PROGRAM_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "cpu/scores-inl.h"
#include "expression/functions.h"

HWY_BEFORE_NAMESPACE();
namespace warploom::cpu::HWY_NAMESPACE {
namespace {

using expression::Op;
using expression::Program;

/// e^x over the whole range: +inf from where float32 ends.
HWY_INLINE Vec exp_any(Vec x) {
  return exp(hn::Min(hn::Set(F(), 89.0f), x));  // of two operands the second one may be NaN
}

/// 2 artanh(s) for |s| <= 1/3.
HWY_INLINE Vec twice_artanh(Vec s) {
  const F f;
  const Vec square = hn::Mul(s, s);
  Vec p = hn::Set(f, 1.0f / 15);
  for (const float term : {1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3}) {
    p = hn::MulAdd(p, square, hn::Set(f, term));
  }
  const Vec twice = hn::Add(s, s);
  return hn::MulAdd(hn::Mul(p, square), twice, twice);
}

/// x as 2^exponent * mantissa with the mantissa around 1. x positive and finite.
struct Split {
  Vec exponent, log_mantissa;
};

HWY_INLINE Split split(Vec x) {
  const F f;
  const I i;
  const auto tiny = hn::Lt(x, hn::Set(f, 0x1p-126f));
  const IntVec bits = hn::BitCast(i, hn::IfThenElse(tiny, hn::Mul(x, hn::Set(f, 0x1p24f)), x));
  // From sqrt(1/2) on a mantissa counts with the higher power.
  const IntVec origin = hn::Set(i, 0x3f3504f3);
  const IntVec exponent = hn::ShiftRight<23>(hn::Sub(bits, origin));
  const Vec mantissa = hn::BitCast(f, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  const Vec one = hn::Set(f, 1.0f);
  const Vec whole = hn::Sub(hn::ConvertTo(f, exponent), hn::IfThenElseZero(tiny, hn::Set(f, 24.0f)));
  return {whole, twice_artanh(hn::Div(hn::Sub(mantissa, one), hn::Add(mantissa, one)))};
}

/// `regular` where x has a logarithm, else -inf, inf or NaN.
HWY_INLINE Vec log_or_special(Vec x, Vec regular) {
  const F f;
  const Vec infinity = hn::Inf(f);
  regular = hn::IfThenElse(hn::Lt(x, infinity), regular, x);  // inf and NaN
  regular = hn::IfThenElse(hn::Eq(x, hn::Zero(f)), hn::Neg(infinity), regular);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(f)), hn::NaN(f), regular);
}

HWY_INLINE Vec log(Vec x) {
  const F f;
  const Split parts = split(x);
  // ln 2 in two parts, the first short enough for the exponent times it to be exact.
  const Vec low = hn::MulAdd(parts.exponent, hn::Set(f, -2.12194440e-4f), parts.log_mantissa);
  return log_or_special(x, hn::MulAdd(parts.exponent, hn::Set(f, 0.693359375f), low));
}

HWY_INLINE Vec log2(Vec x) {
  const Split parts = split(x);
  return log_or_special(x, hn::MulAdd(parts.log_mantissa, hn::Set(F(), 1.44269504f), parts.exponent));
}

/// By the logarithm of the rounded 1 + x, corrected by what the rounding lost (Kahan).
HWY_INLINE Vec log1p(Vec x) {
  const F f;
  const Vec one = hn::Set(f, 1.0f);
  const Vec rounded = hn::Add(one, x), gained = hn::Sub(rounded, one);
  const Vec corrected = hn::Mul(log(rounded), hn::Div(x, gained));
  const Vec small = hn::IfThenElse(hn::Eq(gained, hn::Zero(f)), x, corrected);
  return hn::IfThenElse(hn::Or(hn::Eq(rounded, hn::Zero(f)), hn::Eq(rounded, hn::Inf(f))), log(rounded), small);
}

HWY_INLINE Vec expm1(Vec x) {
  const F f;
  const Vec one = hn::Set(f, 1.0f);
  const Vec rounded = exp_any(x), gained = hn::Sub(rounded, one);
  const Vec corrected = hn::Mul(gained, hn::Div(x, log(rounded)));
  const auto plain = hn::Or(hn::Eq(gained, hn::Set(f, -1.0f)), hn::Eq(rounded, hn::Inf(f)));
  return hn::IfThenElse(plain, gained, hn::IfThenElse(hn::Eq(gained, hn::Zero(f)), x, corrected));
}

HWY_INLINE Vec softplus(Vec x) {
  const F f;
  const Vec e = exp(hn::Neg(hn::Abs(x)));
  const Vec tail = twice_artanh(hn::Div(e, hn::Add(hn::Set(f, 2.0f), e)));
  return hn::Add(hn::Max(hn::Zero(f), x), tail);
}

HWY_INLINE Vec sign(Vec x) {
  const F f;
  const Vec negative = hn::IfThenElse(hn::Lt(x, hn::Zero(f)), hn::Set(f, -1.0f), x);
  return hn::IfThenElse(hn::Gt(x, hn::Zero(f)), hn::Set(f, 1.0f), negative);
}

template <typename Mask>
HWY_INLINE Vec truth(Mask mask) {
  return hn::IfThenElseZero(mask, hn::Set(F(), 1.0f));
}

/// NaN differs from all (Ne of some targets thinks otherwise).
HWY_INLINE auto differ(Vec x, Vec y) {
  return hn::Not(hn::Eq(x, y));
}
HWY_INLINE auto is_true(Vec x) {
  return differ(x, hn::Zero(F()));
}

/// What has no vector form here goes lane by lane.
template <typename Function>
void by_lanes(const float* a, const float* b, float* to, int count, Function function) {
  for (int x = 0; x < count; ++x) to[x] = function(a[x], b[x]);
}

template <typename Function>
HWY_INLINE void by_vectors(const float* a, const float* b, float* to, int count, Function function) {
  const F f;
  for (int x = 0; x < count; x += kLanes) hn::StoreU(function(hn::LoadU(f, a + x), hn::LoadU(f, b + x)), f, to + x);
}

/// Arrays of one score each; constants and parameters are filled in once.
class ScoreInterpreter {
 public:
  ScoreInterpreter(const Program& program, const float* parameters) : program_(program) {
    for (const Program::Constant& constant : program.constants) {
      std::fill_n(slot(constant.slot), kKeyTile, static_cast<float>(constant.value));
    }
    for (const Program::Input& input : program.parameters) {
      std::fill_n(slot(input.slot), kKeyTile, parameters[input.index]);
    }
  }

  /// count: up to kKeyTile, a multiple of kLanes.
  HWY_NOINLINE void run(const float* z, int count) {
    for (const Program::Input& input : program_.symbols) std::copy_n(z, count, slot(input.slot));
    for (const expression::Step& step : program_.steps) run_step(step, count);
  }
  const float* result(int n) const { return slots_ + program_.results[static_cast<std::size_t>(n)] * kKeyTile; }

 private:
  float* slot(int n) { return slots_ + std::max(n, 0) * kKeyTile; }

#define WARPLOOM_STEP(op, ...) \
  case Op::op:                 \
    return by_vectors(a, b, to, count, [&](Vec x, [[maybe_unused]] Vec y) HWY_ATTR -> Vec { return __VA_ARGS__; })
#define WARPLOOM_LANE_STEP(op, ...) \
  case Op::op:                      \
    return by_lanes(a, b, to, count, [](float x, [[maybe_unused]] float y) -> float { return __VA_ARGS__; })

  HWY_INLINE void run_step(const expression::Step& step, int count) {
    const F f;
    const float *a = slot(step.a), *b = slot(step.b), *c = slot(step.c);
    float* const to = slot(step.to);
    switch (step.op) {
      WARPLOOM_STEP(negate, hn::Neg(x));
      WARPLOOM_STEP(is_zero, truth(hn::Eq(x, hn::Zero(f))));
      WARPLOOM_STEP(absolute, hn::Abs(x));
      WARPLOOM_STEP(sign, sign(x));
      WARPLOOM_STEP(exp, exp_any(x));
      WARPLOOM_LANE_STEP(exp2, std::exp2(x));
      WARPLOOM_STEP(expm1, expm1(x));
      WARPLOOM_STEP(log, log(x));
      WARPLOOM_STEP(log2, log2(x));
      WARPLOOM_STEP(log1p, log1p(x));
      WARPLOOM_STEP(tanh, tanh_and_slope(x).value);
      WARPLOOM_STEP(sigmoid, sigmoid(x).value);
      WARPLOOM_STEP(softplus, softplus(x));
      WARPLOOM_STEP(sqrt, hn::Sqrt(x));
      WARPLOOM_LANE_STEP(erf, std::erf(x));
      WARPLOOM_LANE_STEP(erfc, std::erfc(x));
      WARPLOOM_STEP(add, hn::Add(x, y));
      WARPLOOM_STEP(subtract, hn::Sub(x, y));
      WARPLOOM_STEP(multiply, hn::Mul(x, y));
      WARPLOOM_STEP(divide, hn::Div(x, y));
      WARPLOOM_LANE_STEP(power, std::pow(x, y));
      WARPLOOM_STEP(minimum, hn::IfThenElse(hn::Or(hn::IsNaN(x), hn::Lt(x, y)), x, y));
      WARPLOOM_STEP(maximum, hn::IfThenElse(hn::Or(hn::IsNaN(x), hn::Gt(x, y)), x, y));
      WARPLOOM_STEP(less, truth(hn::Lt(x, y)));
      WARPLOOM_STEP(less_equal, truth(hn::Le(x, y)));
      WARPLOOM_STEP(equal, truth(hn::Eq(x, y)));
      WARPLOOM_STEP(not_equal, truth(differ(x, y)));
      WARPLOOM_STEP(logical_and, truth(hn::And(is_true(x), is_true(y))));
      WARPLOOM_STEP(logical_or, truth(hn::Or(is_true(x), is_true(y))));
      case Op::select:
        for (int x = 0; x < count; x += kLanes) {
          const Vec chosen = hn::IfThenElse(is_true(hn::LoadU(f, a + x)), hn::LoadU(f, b + x), hn::LoadU(f, c + x));
          hn::StoreU(chosen, f, to + x);
        }
        return;
      case Op::constant:
      case Op::symbol:
      case Op::parameter:
      case Op::remainder:
        return;  // no step of a score
    }
  }
#undef WARPLOOM_STEP
#undef WARPLOOM_LANE_STEP

  const Program& program_;
  HWY_ALIGN float slots_[expression::kMaxSlots * kKeyTile];
};

/// Whether a score was marked by finish_scores as one that nobody sees.
HWY_INLINE auto is_hidden(Vec z) {
  return hn::RebindMask(F(), hn::Eq(hn::BitCast(U(), z), hn::Set(U(), kHiddenScore)));
}

}  // namespace
}  // namespace warploom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WARPLOOM_CPU_SCORE_PROGRAM_INL_H_
