// NAME_replay FOLDER: every input of a fuzz target's corpus again, where no fuzzer is built. The
// target aborts where one of them does what it must not.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  int num_inputs = 0;
  for (int arg = 1; arg < argc; ++arg)
    for (const auto& entry : std::filesystem::directory_iterator(argv[arg])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes(std::istreambuf_iterator<char>(file), {});
      std::fprintf(stderr, "%s\n", entry.path().c_str());  // the last one is the guilty one
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      ++num_inputs;
    }
  std::printf("%d inputs\n", num_inputs);
  return num_inputs > 0 ? 0 : 1;
}
