// Documents from plain text and JSONL, read in pieces: a corpus may be larger than memory.
// Plain text: one file is one document, byte for byte (a BOM is kept). JSONL: each line is one JSON
// object whose text stands under a key. A folder stands for the regular files below it, sorted by
// path; names that begin with a dot are left out.
//
// Both are UTF-8. The first 64 KiB of every file are checked, so that a compressed file or a table
// does not become training text. The format `bytes` takes any file as it is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/data/bytes.h"

namespace sluice {

enum class TextFormat {
  by_name,  // JSONL where the name ends in .jsonl, else text
  text,
  jsonl,
  bytes  // as text, without the check
};

struct DocumentOptions {
  TextFormat format = TextFormat::by_name;
  std::string key = "text";  // of JSONL objects
  // Called now and then with the bytes read so far and in all. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
  std::function<std::unique_ptr<Bytes>(const std::string& path)> open = open_file;
};

// What a reader calls: append any number of times, then end_document. Never for a document
// without a single byte.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual void append(std::string_view bytes) = 0;
  virtual void end_document() = 0;
};

struct DocumentCounts {
  std::int64_t documents = 0;
  std::int64_t empty = 0;  // left out
  std::int64_t bytes = 0;  // of text
};

// The files that `path` stands for; `path` itself where it is no folder. Throws UserError (3) for a
// folder without files.
std::vector<std::string> document_files(const std::string& path);

bool reads_as_jsonl(const std::string& path, TextFormat format);

// Reads every document of the files, in their order. Throws UserError: 2 for a missing file, 3
// naming file and line or byte; what the sink throws passes through.
DocumentCounts read_documents(const std::vector<std::string>& files, const DocumentOptions& options,
                              DocumentSink& sink);

// The text of one JSONL line (without its newline). Strict: one JSON object in valid UTF-8, at
// most 256 levels deep, `key` present exactly once and a string. Throws UserError (3) that begins
// with `where`.
std::string jsonl_text(std::string_view line, const std::string& key, const std::string& where);

}  // namespace sluice
