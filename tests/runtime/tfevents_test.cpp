#include "runtime/files/tfevents.h"

#include <gtest/gtest.h>

#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice::test {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes)
    out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

const std::string kFirst =
    "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a";
const std::string kLoss =
    "1a00000000000000129bd82d09000000000000004010072a0d0a0b0a046c6f73731500002040c2dfec60";

TEST(Tfevents, ChecksumsAreCrc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Tfevents, RecordsAreTheGoldenBytes) {
  EXPECT_EQ(hex(tfevents_first_record(1.0)), kFirst);
  EXPECT_EQ(hex(tfevents_scalar_record(2.0, 7, "loss", 2.5F)), kLoss);
}

TEST(Tfevents, LargeStepsAreVarints) {
  // 300 = 0xAC 0x02.
  EXPECT_NE(hex(tfevents_scalar_record(2.0, 300, "loss", 2.5F)).find("0000004010ac022a0d"),
            std::string::npos);
  EXPECT_EQ(tfevents_scalar_record(2.0, 0, "loss", 2.5F).size(), 40U);
}

TEST(Tfevents, FileGrowsByWholeStepsAndIsNeverContinued) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string folder = scratch.path() + "/metrics/tb";
  TfeventsWriter writer(files, folder, "host", 1.0);
  EXPECT_EQ(writer.path(), folder + "/events.out.tfevents.1.host");
  EXPECT_EQ(hex(read_text(writer.path())), kFirst);
  const std::vector<Scalar> scalars = {{"loss", 2.5}, {"loss", 2.5}};
  writer.append(2.0, 7, scalars);
  EXPECT_EQ(hex(read_text(writer.path())), kFirst + kLoss + kLoss);
  const TfeventsWriter second(files, folder, "host", 1.5);
  EXPECT_EQ(second.path(), folder + "/events.out.tfevents.1.host.1");
}

}  // namespace
}  // namespace sluice::test
