// exp, silu with its slope, tanh with its slope: float32 over the whole range. Compiled once per target.
#if defined(WARPLOOM_CPU_FUNCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLOOM_CPU_FUNCTIONS_INL_H_
#undef WARPLOOM_CPU_FUNCTIONS_INL_H_
#else
#define WARPLOOM_CPU_FUNCTIONS_INL_H_
#endif

#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace warploom::cpu::HWY_NAMESPACE {
namespace {

/// e^x for x <= 88, subnormal results included; 0 from -104 down (-inf too), NaN for NaN.
HWY_INLINE Vec exp(Vec x) {
  const F f;
  // Max and Min return their second operand when one is NaN.
  x = hn::Max(hn::Set(f, -110.0f), x);
  const Vec n = hn::Round(hn::Mul(x, hn::Set(f, 1.44269504f)));
  // Cody and Waite: ln 2 in two parts, the first short enough for n times it to be exact.
  Vec r = hn::NegMulAdd(n, hn::Set(f, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(f, -2.12194440e-4f), r);
  // 1 + r + r^2 p(r), minimax on |r| <= ln(2)/2: 1.05e-7 relative.
  Vec p = hn::MulAdd(r, hn::Set(f, 0.008312501f), hn::Set(f, 0.04189033f));
  p = hn::MulAdd(r, p, hn::Set(f, 0.16667116f));
  p = hn::MulAdd(r, p, hn::Set(f, 0.49999231f));
  p = hn::MulAdd(hn::Mul(r, r), p, r);
  p = hn::Add(p, hn::Set(f, 1.0f));
#if HWY_TARGET == HWY_AVX3
  return Vec{_mm512_scalef_ps(p.raw, n.raw)};
#else
  // 2^n in two factors: the first product stays normal, the second rounds once into the subnormals.
  const I i;
  const IntVec exponent = hn::ConvertTo(i, n);
  const IntVec first = hn::ShiftRight<1>(exponent);
  const IntVec second = hn::Sub(exponent, first);
  const IntVec bias = hn::Set(i, 127);
  const Vec by_first = hn::BitCast(f, hn::ShiftLeft<23>(hn::Add(first, bias)));
  const Vec by_second = hn::BitCast(f, hn::ShiftLeft<23>(hn::Add(second, bias)));
  return hn::Mul(hn::Mul(p, by_first), by_second);
#endif
}

/// sigmoid(z) and 1 - sigmoid(z), both without cancellation.
struct Sigmoid {
  Vec value, complement;
};

HWY_INLINE Sigmoid sigmoid(Vec z) {
  const F f;
  const Vec one = hn::Set(f, 1.0f);
  const Vec e = exp(hn::Neg(hn::Abs(z)));
  const Vec larger = hn::Div(one, hn::Add(one, e));
  const Vec smaller = hn::Mul(e, larger);
  const auto negative = hn::Lt(z, hn::Zero(f));
  return {hn::IfThenElse(negative, smaller, larger), hn::IfThenElse(negative, larger, smaller)};
}

// From here down silu and its slope are below the smallest float32; clamping there keeps -inf * 0 out. -inf is also how
// a masked score is written.
constexpr float kLowest = -120.0f;

/// z * sigmoid(z); 0 for -inf.
HWY_INLINE Vec silu(Vec z) {
  const Vec clamped = hn::Max(hn::Set(F(), kLowest), z);
  return hn::Mul(clamped, sigmoid(clamped).value);
}

struct ValueAndSlope {
  Vec value, slope;
};

/// silu and sigmoid(z) (1 + z (1 - sigmoid(z))).
HWY_INLINE ValueAndSlope silu_and_slope(Vec z) {
  const F f;
  const Vec clamped = hn::Max(hn::Set(f, kLowest), z);
  const Sigmoid s = sigmoid(clamped);
  const Vec bounded = hn::Min(hn::Set(f, -kLowest), clamped);  // inf * 0
  const Vec slope = hn::Mul(s.value, hn::MulAdd(bounded, s.complement, hn::Set(f, 1.0f)));
  return {hn::Mul(clamped, s.value), slope};
}

/// tanh(x) and 1 - tanh(x)^2.
HWY_INLINE ValueAndSlope tanh_and_slope(Vec x) {
  const F f;
  const Vec one = hn::Set(f, 1.0f);
  const Vec magnitude = hn::Abs(x);
  const Vec e = exp(hn::Mul(hn::Set(f, -2.0f), magnitude));
  const Vec inverse = hn::Div(one, hn::Add(one, e));
  const Vec far = hn::Mul(hn::Sub(one, e), inverse);
  // Near 0 the difference above cancels: x + x^3 p(x^2), Cephes tanhf.
  const Vec square = hn::Mul(x, x);
  Vec p = hn::MulAdd(square, hn::Set(f, -5.70498872745e-3f), hn::Set(f, 2.06390887954e-2f));
  p = hn::MulAdd(square, p, hn::Set(f, -5.37397155531e-2f));
  p = hn::MulAdd(square, p, hn::Set(f, 1.33314422036e-1f));
  p = hn::MulAdd(square, p, hn::Set(f, -3.33332819422e-1f));
  const Vec near = hn::MulAdd(hn::Mul(square, p), magnitude, magnitude);
  const Vec positive = hn::IfThenElse(hn::Lt(magnitude, hn::Set(f, 0.625f)), near, far);
  const Vec slope = hn::Mul(hn::Mul(hn::Set(f, 4.0f), e), hn::Mul(inverse, inverse));
  return {hn::CopySign(positive, x), slope};
}

}  // namespace
}  // namespace warploom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WARPLOOM_CPU_FUNCTIONS_INL_H_
