#include "sluice/data/documents.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "sluice/base/text.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// A line is held in memory more than once while it is parsed.
constexpr std::size_t kMaxLineBytes = std::size_t{256} << 20;

constexpr std::size_t kCheckedBytes = std::size_t{64} << 10;

// `beginning` goes beyond the checked bytes where the file does, so that no character is cut there.
void require_text(std::string_view beginning, const std::string& name) {
  std::size_t at = 0;
  while (at < std::min(beginning.size(), kCheckedBytes)) {
    const std::size_t length = utf8_length(beginning.substr(at));
    if (beginning[at] == '\0' || length == 0 || length == std::string_view::npos)
      throw bad_data(
          "'{}' is not UTF-8 text: byte {} is {:#04x}; decompress or convert it first, or read it "
          "as raw bytes with data.format = \"bytes\" (sluice data: --format bytes)",
          name, at, static_cast<unsigned char>(beginning[at]));
    at += length;
  }
}

class Reader {
 public:
  Reader(const DocumentOptions& options, DocumentSink& sink, std::int64_t total_bytes)
      : options_(options), sink_(sink), total_bytes_(total_bytes) {}

  void read_text(const Bytes& file) {
    ByteStream stream(file);
    bool empty = true;
    for (std::string_view piece = stream.next(); !piece.empty(); piece = stream.next()) {
      if (empty && options_.format != TextFormat::bytes) require_text(piece, file.name());
      sink_.append(piece);
      counts_.bytes += static_cast<std::int64_t>(piece.size());
      empty = false;
      advance(piece.size());
    }
    end_document(empty);
  }

  void read_jsonl(const Bytes& file) {
    ByteStream stream(file);
    std::string rest;  // the line that the last piece began
    std::int64_t line = 0;
    bool first = true;
    for (std::string_view piece = stream.next(); !piece.empty(); piece = stream.next()) {
      if (std::exchange(first, false)) require_text(piece, file.name());
      advance(piece.size());
      for (auto end = piece.find('\n'); end != std::string_view::npos; end = piece.find('\n')) {
        rest.append(piece.substr(0, end));
        read_line(rest, file.name(), ++line);
        rest.clear();
        piece.remove_prefix(end + 1);
      }
      rest.append(piece);
      if (rest.size() > kMaxLineBytes)
        throw bad_data("{}:{}: the line has more than {} MiB: a line holds one document",
                       file.name(), line + 1, kMaxLineBytes >> 20);
    }
    if (!rest.empty()) read_line(rest, file.name(), ++line);
  }

  const DocumentCounts& counts() const { return counts_; }

 private:
  void read_line(std::string_view line, const std::string& file, std::int64_t number) {
    if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (trim(line).empty()) return;
    const std::string text = jsonl_text(line, options_.key, fmt::format("{}:{}", file, number));
    if (!text.empty()) sink_.append(text);
    counts_.bytes += static_cast<std::int64_t>(text.size());
    end_document(text.empty());
  }

  void end_document(bool empty) {
    if (empty) {
      ++counts_.empty;
      return;
    }
    sink_.end_document();
    ++counts_.documents;
  }

  void advance(std::size_t bytes) {
    done_bytes_ += static_cast<std::int64_t>(bytes);
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

  const DocumentOptions& options_;
  DocumentSink& sink_;
  std::int64_t total_bytes_;
  std::int64_t done_bytes_ = 0;
  DocumentCounts counts_;
};

bool hidden(const fs::path& path) { return path.filename().native().starts_with("."); }

}  // namespace

std::vector<std::string> document_files(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  fs::recursive_directory_iterator entry(path, error), end;
  while (!error && entry != end) {
    std::error_code gone;
    if (hidden(entry->path()))
      entry.disable_recursion_pending();
    else if (entry->is_regular_file(gone))
      files.push_back(entry->path().string());
    entry.increment(error);
  }
  if (error) throw bad_data("cannot list '{}': {}", path, error.message());
  if (files.empty()) throw bad_data("'{}' holds no file: nothing to read", path);
  std::sort(files.begin(), files.end());
  return files;
}

bool reads_as_jsonl(const std::string& path, TextFormat format) {
  return format == TextFormat::jsonl || (format == TextFormat::by_name && path.ends_with(".jsonl"));
}

DocumentCounts read_documents(const std::vector<std::string>& files, const DocumentOptions& options,
                              DocumentSink& sink) {
  std::int64_t total_bytes = 0;
  for (const std::string& path : files)
    total_bytes += options.open(path)->size();
  Reader reader(options, sink, total_bytes);
  for (const std::string& path : files) {
    const std::unique_ptr<Bytes> file = options.open(path);
    if (reads_as_jsonl(path, options.format))
      reader.read_jsonl(*file);
    else
      reader.read_text(*file);
  }
  return reader.counts();
}

}  // namespace sluice
