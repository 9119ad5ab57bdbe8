// Real spherical harmonics up to degree 4 of a unit direction, and their gradients (spec section 1.6).
#pragma once

#include <type_traits>

#include "common/math/number.h"

LG_BEGIN

// Calls visit(index, value, gradient) for each of the (degree + 1)^2 functions of a unit direction. The gradient, a
// Vector, treats x, y and z as independent variables.
template <int kDegree, class Vector, class Visit>
LG_INLINE void each_harmonic(const Vector& d, Visit&& visit) {
  using F = std::remove_cvref_t<decltype(d.x)>;
  const F x = d.x, y = d.y, z = d.z, zero = F(0.0f);
  visit(0, F(0.28209479f), Vector{zero, zero, zero});
  if constexpr (kDegree >= 1) {
    const F k = F(0.48860251f);
    visit(1, -k * y, Vector{zero, -k, zero});
    visit(2, k * z, Vector{zero, zero, k});
    visit(3, -k * x, Vector{-k, zero, zero});
  }
  const F xx = x * x, yy = y * y, zz = z * z, two = F(2.0f);
  if constexpr (kDegree >= 2) {
    const F k4 = F(1.0925484f), k6 = F(0.31539157f), k8 = F(0.54627422f);
    visit(4, k4 * x * y, Vector{k4 * y, k4 * x, zero});
    visit(5, -k4 * y * z, Vector{zero, -k4 * z, -k4 * y});
    visit(6, k6 * (two * zz - xx - yy), Vector{-two * k6 * x, -two * k6 * y, F(4.0f) * k6 * z});
    visit(7, -k4 * x * z, Vector{-k4 * z, zero, -k4 * x});
    visit(8, k8 * (xx - yy), Vector{two * k8 * x, -two * k8 * y, zero});
  }
  const F xy = x * y, xz = x * z, yz = y * z, three = F(3.0f), six = F(6.0f);
  if constexpr (kDegree >= 3) {
    const F k9 = F(-0.59004359f), k10 = F(2.8906114f), k11 = F(-0.45704580f), k12 = F(0.37317633f), k14 = F(1.4453057f);
    const F four = F(4.0f), inner = four * zz - xx - yy;
    visit(9, k9 * y * (three * xx - yy), Vector{six * k9 * xy, three * k9 * (xx - yy), zero});
    visit(10, k10 * xy * z, Vector{k10 * yz, k10 * xz, k10 * xy});
    visit(11, k11 * y * inner, Vector{-two * k11 * xy, k11 * (inner - two * yy), F(8.0f) * k11 * yz});
    visit(12, k12 * z * (two * zz - three * (xx + yy)),
          Vector{-six * k12 * xz, -six * k12 * yz, three * k12 * (two * zz - xx - yy)});
    visit(13, k11 * x * inner, Vector{k11 * (inner - two * xx), -two * k11 * xy, F(8.0f) * k11 * xz});
    visit(14, k14 * z * (xx - yy), Vector{two * k14 * xz, -two * k14 * yz, k14 * (xx - yy)});
    visit(15, k9 * x * (xx - three * yy), Vector{three * k9 * (xx - yy), -six * k9 * xy, zero});
  }
  if constexpr (kDegree >= 4) {
    const F k16 = F(2.5033429f), k17 = F(-1.7701308f), k18 = F(0.94617470f), k19 = F(-0.66904654f),
            k20 = F(0.10578555f), k22 = F(0.47308735f), k24 = F(0.62583574f);
    const F seven = F(7.0f), one = F(1.0f), s1 = seven * zz - one, s3 = seven * zz - three;
    visit(16, k16 * xy * (xx - yy), Vector{k16 * y * (three * xx - yy), k16 * x * (xx - three * yy), zero});
    visit(17, k17 * yz * (three * xx - yy),
          Vector{six * k17 * xy * z, three * k17 * z * (xx - yy), k17 * y * (three * xx - yy)});
    visit(18, k18 * xy * s1, Vector{k18 * y * s1, k18 * x * s1, F(14.0f) * k18 * xy * z});
    visit(19, k19 * yz * s3, Vector{zero, k19 * z * s3, three * k19 * y * s1});
    visit(20, k20 * (F(35.0f) * zz * zz - F(30.0f) * zz + three),
          Vector{zero, zero, k20 * z * (F(140.0f) * zz - F(60.0f))});
    visit(21, k19 * xz * s3, Vector{k19 * z * s3, zero, three * k19 * x * s1});
    visit(22, k22 * (xx - yy) * s1, Vector{two * k22 * x * s1, -two * k22 * y * s1, F(14.0f) * k22 * z * (xx - yy)});
    visit(23, k17 * xz * (xx - three * yy),
          Vector{three * k17 * z * (xx - yy), -six * k17 * xy * z, k17 * x * (xx - three * yy)});
    visit(24, k24 * (xx * (xx - three * yy) - yy * (three * xx - yy)),
          Vector{F(4.0f) * k24 * x * (xx - three * yy), F(4.0f) * k24 * y * (yy - three * xx), zero});
  }
}

LG_END
