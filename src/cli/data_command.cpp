// sluice data INPUT --out PREFIX: writes text or JSONL as a Megatron .bin/.idx pair.
// sluice data --inspect PREFIX: describes such a pair.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "sluice/base/say.h"
#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/options.h"
#include "sluice/data/bpe.h"
#include "sluice/data/indexed.h"
#include "sluice/data/token_source.h"
#include "sluice/data/tokenizer.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string input;
  std::string out;
  std::string format;
  std::string key;
  std::string tokenizer;
  std::string inspect;
  bool force = false;

  bool standard_input() const { return input == "-"; }
};

constexpr std::int32_t kWideVocabulary = 65500;  // from here on, tokens have four bytes

// One line on standard error that is rewritten as the work goes on; only on a terminal.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::int64_t done, std::int64_t total) {
    const auto now = Clock::now();
    if (!terminal_ || total <= 0 || now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    shown_ = true;
    constexpr double kMiB = 1 << 20;
    say("\r{} {:.0f} of {:.0f} MiB ({}%)\033[K", what_, static_cast<double>(done) / kMiB,
        static_cast<double>(total) / kMiB,
        static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total)));
    std::fflush(stderr);
  }
  void clear() {
    if (std::exchange(shown_, false)) say("\r\033[K");
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  Clock::time_point last_ = Clock::now();  // short work shows nothing
};

// Writes the bytes as they come, or the tokenizer's tokens of whole documents, and the token that
// ends a document.
class PairSink : public DocumentSink {
 public:
  PairSink(IndexedWriter& writer, const BpeTokenizer* tokenizer)
      : writer_(writer), tokenizer_(tokenizer) {}
  void append(std::string_view bytes) override {
    if (tokenizer_)
      text_ += bytes;
    else
      writer_.append(encode_bytes(bytes));
  }
  void end_document() override {
    if (tokenizer_) {
      writer_.append(tokenizer_->encode(text_));
      text_.clear();
    }
    const std::int32_t end = tokenizer_ ? tokenizer_->end_of_document() : kEndOfDocument;
    if (end >= 0) writer_.append(std::span(&end, 1));
    writer_.end_document();
  }

 private:
  IndexedWriter& writer_;
  const BpeTokenizer* tokenizer_;
  std::string text_;  // of the document so far
};

TextFormat text_format(const std::string& name) {
  if (name.empty()) return TextFormat::by_name;
  if (name == "text") return TextFormat::text;
  if (name == "jsonl") return TextFormat::jsonl;
  if (name == "bytes") return TextFormat::bytes;
  throw user_error("--format is '{}': needs text, jsonl or bytes", name);
}

void refuse_overwriting(const Flags& flags, const std::string& prefix) {
  std::error_code ignored;
  for (const char* ending : {".bin", ".idx"})
    if (!flags.force && std::filesystem::exists(prefix + ending, ignored))
      throw user_error(
          "--out is '{}': {}{} exists; choose another name, or replace it with --force", flags.out,
          prefix, ending);
}

// The output must not replace a file of the input, and must not lie in its folder: a second run
// would read it as a document.
void refuse_output_inside_input(const Flags& flags, const std::string& prefix) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (flags.standard_input()) return;
  for (const char* ending : {".bin", ".idx"})
    if (fs::equivalent(flags.input, prefix + ending, error))
      throw user_error("--out is '{}': {}{} is the input itself", flags.out, prefix, ending);
  if (!fs::is_directory(flags.input, error)) return;
  const fs::path input = fs::canonical(flags.input, error);
  const fs::path folder = fs::weakly_canonical(fs::absolute(prefix, error), error).parent_path();
  const auto rest = std::mismatch(input.begin(), input.end(), folder.begin(), folder.end()).first;
  if (!error && rest == input.end())
    throw user_error("--out is '{}', inside the input '{}': choose a place outside it", flags.out,
                     flags.input);
}

void convert(const Flags& flags) {
  if (flags.out.empty())
    throw user_error("--out is missing: sluice data {} --out PREFIX writes PREFIX.bin, PREFIX.idx",
                     flags.input);
  if (flags.out.ends_with("/"))
    throw user_error("--out is '{}': needs a file name, to which .bin and .idx are added",
                     flags.out);
  DocumentOptions options;
  options.format = text_format(flags.format);
  if (!flags.key.empty()) options.key = flags.key;
  if (options.format == TextFormat::bytes && !flags.tokenizer.empty())
    throw user_error(
        "--format is bytes and --tokenizer is '{}': raw bytes are their own tokens; leave one out",
        flags.tokenizer);
  const std::string prefix = indexed_prefix(flags.out);
  refuse_output_inside_input(flags, prefix);
  refuse_overwriting(flags, prefix);
  std::vector<std::string> files = {flags.input};
  if (flags.standard_input())
    options.open = [](const std::string&) { return open_standard_input(); };
  else
    files = document_files(flags.input);
  check_needs(!flags.key.empty(), "--key",
              std::any_of(files.begin(), files.end(),
                          [&](const auto& file) { return reads_as_jsonl(file, options.format); }),
              "--format jsonl");
  Progress progress("reading");
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.show(done, total); };
  const auto tokenizer = flags.tokenizer.empty() ? nullptr : open_tokenizer(flags.tokenizer);
  IndexedWriter::Options wide;
  if (tokenizer && tokenizer->vocab_size() > kWideVocabulary) wide.type = ItemType::i32;
  IndexedWriter writer(prefix, wide);
  PairSink sink(writer, tokenizer.get());
  const DocumentCounts counts = read_documents(files, options, sink);
  if (counts.documents == 0)
    throw UserError(
        fmt::format("'{}' holds no text: nothing to write",
                    flags.standard_input() ? std::string("standard input") : flags.input),
        ExitCode::bad_data);
  writer.commit();
  progress.clear();
  fmt::print("{}: {}, {}, {}{}\n", prefix, counted(writer.num_documents(), "document"),
             counted(writer.num_tokens(), "token"), counted(writer.bytes(), "byte"),
             counts.empty == 0
                 ? ""
                 : fmt::format(" ({} left out)", counted(counts.empty, "empty document")));
}

void inspect(const Flags& flags) {
  if (!flags.input.empty() || !flags.out.empty() || !flags.format.empty() || !flags.key.empty() ||
      !flags.tokenizer.empty() || flags.force)
    throw user_error("--inspect is given with an input or another flag: it takes neither");
  const std::string prefix = indexed_prefix(flags.inspect);
  const IndexedTokens tokens(prefix);
  const TokenIndex& index = tokens.index();
  const std::int64_t width = item_bytes(index.type);

  Progress progress("scanning");
  std::vector<std::int32_t> piece(std::size_t{1} << 18);
  std::int32_t largest = -1;
  for (std::int64_t begin = 0; begin < index.num_tokens;) {
    const auto count = std::min(static_cast<std::int64_t>(piece.size()), index.num_tokens - begin);
    const std::span part = std::span(piece).first(static_cast<std::size_t>(count));
    tokens.read(begin, part);
    largest = std::max(largest, *std::max_element(part.begin(), part.end()));
    begin += count;
    progress.show(begin * width, index.num_tokens * width);
  }
  progress.clear();
  std::int64_t shortest = index.num_tokens, longest = 0;
  for (std::size_t d = 0; d + 1 < index.document_starts.size(); ++d) {
    const std::int64_t length = index.document_starts[d + 1] - index.document_starts[d];
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
  }
  const auto documents = static_cast<std::int64_t>(index.document_starts.size()) - 1;
  fmt::print("{}: {}, {}, {}, {} ({})\n", prefix, counted(documents, "document"),
             counted(index.num_sequences, "sequence"), counted(index.num_tokens, "token"),
             counted(index.num_tokens * width, "byte"), item_name(index.type));
  if (index.num_tokens > 0)
    fmt::print("documents have {} to {}; the largest token is {}\n",
               with_commas(std::to_string(shortest)), counted(longest, "token"), largest);
}

void run(const Flags& flags) {
  if (!flags.inspect.empty()) return inspect(flags);
  if (flags.input.empty())
    throw user_error("data needs an input: sluice data TEXT --out PREFIX, or --inspect PREFIX");
  convert(flags);
}

}  // namespace

void add_data(CLI::App& app, ExitCode&) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("data", "convert text or JSONL to token files (Megatron .bin and .idx)");
  command->add_option("input", flags->input,
                      "a file, a folder (every file in it whose name begins with no dot), or - for "
                      "standard input");
  add_text(*command, "--out", flags->out, "write PREFIX.bin and PREFIX.idx")->type_name("PREFIX");
  add_text(*command, "--format", flags->format,
           "text: each file is one document; jsonl: each line is; bytes: as text, but any file "
           "instead of UTF-8 only (default: jsonl where the name ends in .jsonl, else text)")
      ->type_name("NAME");
  add_text(*command, "--key", flags->key, "key of the text in a jsonl line (default text)")
      ->type_name("NAME");
  add_text(*command, "--tokenizer", flags->tokenizer,
           "a tokenizer.json, byte-level BPE (default: tokens are bytes)")
      ->type_name("FILE");
  command->add_flag("--force", flags->force, "replace PREFIX.bin and PREFIX.idx");
  add_text(*command, "--inspect", flags->inspect, "describe an existing pair")->type_name("PREFIX");
  command->callback([flags] { run(*flags); });
}

}  // namespace sluice::cli
