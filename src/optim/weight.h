// A weight with its gradient, as an optimizer sees it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>

#include "sluice/comm/tensors/group.h"

namespace sluice {

// A weight as this rank holds it. The tensors share the model's memory and are contiguous.
struct Weight {
  std::string name;
  at::Tensor value;
  at::Tensor gradient;
  bool decay = true;    // weight decay applies
  bool counted = true;  // in the gradient norm: exactly one of the ranks that hold it counts it
  RowRange own;         // the rows that this rank updates; other data ranks update the others
  std::string drawn_as = {};  // the name that stochastic rounding uses; empty: `name`
  std::int64_t place = 0;     // of its first element in the whole weight
  int owner = -1;             // the shard rank that updates all of its rows; -1: each has its own
  // Of a matrix that Muon updates: its whole shape, and the dimension that tensor ranks divide.
  struct Matrix {
    std::int64_t rows = 0, columns = 0;
    int divided = 0;
  };
  std::optional<Matrix> matrix = std::nullopt;
  // Of a sharded weight, whose tensors hold the own rows only: all rows there are. 0: they hold
  // all.
  std::int64_t sharded_rows = 0;

  std::int64_t rows() const { return sharded_rows > 0 ? sharded_rows : value.size(0); }
  std::int64_t width() const {  // elements of a row
    return c10::multiply_integers(value.sizes().slice(1));
  }
  // Some rows of one of its tensors. REQUIRES: own ones, of a sharded weight.
  at::Tensor rows_of(const at::Tensor& tensor, const RowRange& rows) const {
    const std::int64_t first = sharded_rows > 0 ? own.begin : 0;
    return tensor.slice(0, rows.begin - first, rows.end - first);
  }
  at::Tensor own_value() const { return rows_of(value, own); }
  at::Tensor own_gradient() const { return rows_of(gradient, own); }
};

}  // namespace sluice
