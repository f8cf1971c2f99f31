#include "sluice/runtime/files/pieces.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "sluice/base/text.h"

namespace sluice {
namespace {

struct Place {
  const TensorPiece* piece;
  const std::string* file;
};

// Sweeps over the rows. The pieces at one row lie beside each other in the order of their columns,
// so a new one can only meet its two neighbours.
class Sweep {
 public:
  Sweep(const TensorSpec& tensor, const std::vector<Place>& places) : tensor_(tensor) {
    for (const Place& place : places)
      if (!place.piece->box.empty()) begins_.push_back(&place);
    ends_ = begins_;
    std::sort(begins_.begin(), begins_.end(), [](const Place* a, const Place* b) {
      return a->piece->box.rows.begin < b->piece->box.rows.begin;
    });
    std::sort(ends_.begin(), ends_.end(), [](const Place* a, const Place* b) {
      return a->piece->box.rows.end < b->piece->box.rows.end;
    });
  }

  std::string problem() {
    std::size_t begun = 0, ended = 0;
    for (std::int64_t row = 0; row < num_rows(tensor_);) {
      for (; ended < ends_.size() && ends_[ended]->piece->box.rows.end == row; ++ended)
        leave(*ends_[ended]->piece);
      for (; begun < begins_.size() && begins_[begun]->piece->box.rows.begin == row; ++begun)
        if (std::string overlap = enter(*begins_[begun]); !overlap.empty()) return overlap;
      std::int64_t next = num_rows(tensor_);
      if (begun < begins_.size()) next = std::min(next, begins_[begun]->piece->box.rows.begin);
      if (ended < ends_.size()) next = std::min(next, ends_[ended]->piece->box.rows.end);
      if (width_ != num_columns(tensor_)) return hole({row, next});
      row = next;
    }
    return "";
  }

 private:
  void leave(const TensorPiece& piece) {
    here_.erase(piece.box.columns.begin);
    width_ -= piece.box.columns.size();
  }

  std::string enter(const Place& place) {
    const Range columns = place.piece->box.columns;
    const auto after = here_.lower_bound(columns.begin);
    if (after != here_.end() && after->first < columns.end) return overlap(place, *after->second);
    if (after != here_.begin())
      if (const auto before = std::prev(after);
          before->second->piece->box.columns.end > columns.begin)
        return overlap(place, *before->second);
    here_.emplace_hint(after, columns.begin, &place);
    width_ += columns.size();
    return "";
  }

  std::string overlap(const Place& a, const Place& b) const {
    return fmt::format("{} are in two shards, {} and {}",
                       piece_text({tensor_, intersection(a.piece->box, b.piece->box)}), *b.file,
                       *a.file);
  }

  std::string hole(const Range& rows) const {
    std::int64_t column = 0;
    for (const auto& [begin, place] : here_) {
      if (begin > column) return hole(rows, {column, begin});
      column = place->piece->box.columns.end;
    }
    return hole(rows, {column, num_columns(tensor_)});
  }
  std::string hole(const Range& rows, const Range& columns) const {
    return fmt::format("{} are in no shard", piece_text({tensor_, {rows, columns}}));
  }

  const TensorSpec& tensor_;
  std::vector<const Place*> begins_, ends_;    // by first row, by last
  std::map<std::int64_t, const Place*> here_;  // at this row, by first column
  std::int64_t width_ = 0;                     // of them all
};

std::string tensor_problem(const std::vector<Place>& places) {
  const Place& first = places.front();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const TensorSpec& tensor = places[i].piece->tensor;
    if (tensor != first.piece->tensor)
      return fmt::format("tensor {} is {} [{}] in {} and {} [{}] in {}", json_quote(tensor.name),
                         dtype_name(first.piece->tensor.dtype),
                         fmt::join(first.piece->tensor.shape, ","), *first.file,
                         dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), *places[i].file);
    if (i > 0 && places[i].file == places[i - 1].file)
      return fmt::format("tensor {} appears twice in {}", json_quote(tensor.name), *places[i].file);
  }
  return Sweep(first.piece->tensor, places).problem();
}

// A dimension that the tensor does not have cannot be cut.
bool inside(const Range& range, std::int64_t size, bool has_dimension) {
  if (!has_dimension) return range == Range{0, 1};
  return 0 <= range.begin && range.begin <= range.end && range.end <= size;
}

}  // namespace

std::int64_t num_rows(const TensorSpec& tensor) {
  return tensor.shape.empty() ? 1 : tensor.shape[0];
}

std::int64_t num_columns(const TensorSpec& tensor) {
  return tensor.shape.size() < 2 ? 1 : tensor.shape[1];
}

Box whole_box(const TensorSpec& tensor) { return rows_of(tensor, 0, num_rows(tensor)); }

Box rows_of(const TensorSpec& tensor, std::int64_t begin, std::int64_t end) {
  return {{begin, end}, {0, num_columns(tensor)}};
}

TensorPiece whole_tensor(TensorSpec tensor) {
  const Box box = whole_box(tensor);
  return {std::move(tensor), box};
}

Box intersection(const Box& a, const Box& b) {
  const auto meet = [](const Range& x, const Range& y) {
    const std::int64_t begin = std::max(x.begin, y.begin);
    return Range{begin, std::max(begin, std::min(x.end, y.end))};
  };
  return {meet(a.rows, b.rows), meet(a.columns, b.columns)};
}

TensorSpec stored_form(const TensorPiece& piece) {
  TensorSpec stored = piece.tensor;
  if (!stored.shape.empty()) stored.shape[0] = piece.box.rows.size();
  if (stored.shape.size() > 1) stored.shape[1] = piece.box.columns.size();
  return stored;
}

std::string piece_problem(const TensorPiece& piece) {
  const TensorSpec& tensor = piece.tensor;
  if (!inside(piece.box.rows, num_rows(tensor), !tensor.shape.empty()) ||
      !inside(piece.box.columns, num_columns(tensor), tensor.shape.size() > 1))
    return fmt::format("{}, and the tensor has {} rows and {} columns", piece_text(piece),
                       num_rows(tensor), num_columns(tensor));
  // Parts of a row would have to begin and end at whole bytes, each row of them.
  const bool part_of_bytes = dtype_bits(tensor.dtype) % 8 != 0;
  if ((part_of_bytes && piece.box.columns.size() != num_columns(tensor)) ||
      !tensor_bytes(tensor.dtype, stored_form(piece).shape))
    return fmt::format("{} end inside a byte", piece_text(piece));
  return "";
}

std::string piece_text(const TensorPiece& piece) {
  const auto& [rows, columns] = piece.box;
  const bool all = columns == Range{0, num_columns(piece.tensor)};
  return fmt::format("rows [{}, {}){} of tensor {}", rows.begin, rows.end,
                     all ? "" : fmt::format(", columns [{}, {})", columns.begin, columns.end),
                     json_quote(piece.tensor.name));
}

std::string tiling_problem(const std::vector<ShardRecord>& shards) {
  std::map<std::string_view, std::vector<Place>> tensors;
  for (const ShardRecord& shard : shards)
    for (const TensorPiece& piece : shard.pieces)
      tensors[piece.tensor.name].push_back({&piece, &shard.file});
  for (const auto& [name, places] : tensors)
    if (std::string problem = tensor_problem(places); !problem.empty()) return problem;
  return "";
}

}  // namespace sluice
