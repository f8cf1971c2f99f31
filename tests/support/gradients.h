// Gradients of one run against those of another, each to a share of its norm.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

namespace sluice::test {

using Gradients = std::map<std::string, at::Tensor>;

// What an error of a gradient is measured by: its norm. Queries, keys and values are measured
// together: a key's bias has no gradient in exact arithmetic, and near uniform attention those of
// queries and keys are the small difference of large numbers.
inline double gradient_scale(const Gradients& gradients, const std::string& name) {
  const auto part = name.find(".attention.");
  const auto letter = part + std::string_view(".attention.").size();
  if (part == name.npos || name[letter + 1] != '.') return gradients.at(name).norm().item<double>();
  double squares = 0;
  for (const char c : {'q', 'k', 'v'}) {
    std::string other = name;
    other[letter] = c;
    squares += gradients.at(other).to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

inline void expect_close_gradients(const Gradients& actual, const Gradients& expected,
                                   double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, wanted] : expected) {
    const double scale = gradient_scale(expected, name);
    EXPECT_GT(scale, 0) << name;
    EXPECT_LE((actual.at(name) - wanted).norm().item<double>(), tolerance * scale) << name;
  }
}

}  // namespace sluice::test
