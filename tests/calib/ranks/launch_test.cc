#include "calib/ranks/launch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "formats/core/error.h"

namespace kvcc {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch(const Variables& set) {
  return read_launch([&](const std::string& name) {
    const auto found = set.find(name);
    return found == set.end() ? "" : found->second;
  });
}

std::string refusal(const Variables& set) {
  try {
    launch(set);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

TEST(Launch, OneProcessByDefault) {
  const Launch alone = launch({{"MASTER_ADDR", "n1"}});  // says nothing of ranks
  EXPECT_TRUE(alone.alone());
  EXPECT_TRUE(alone.first());
  EXPECT_EQ(alone.note, "");
}

TEST(Launch, Torchrun) {
  const Launch found = launch({{"RANK", "3"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "n1"},
                               {"MASTER_PORT", "1234"},
                               {"TORCHELASTIC_RUN_ID", "x"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.local_size, 4);
  EXPECT_EQ(found.address, "n1");
  EXPECT_EQ(found.port, 1234);
  EXPECT_EQ(found.by, "torchrun");
  EXPECT_TRUE(found.served);
  EXPECT_EQ(found.attempt, "2");
}

TEST(Launch, Mpirun) {
  const Variables local{
      {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(launch(local).address, "127.0.0.1");
  EXPECT_EQ(launch(local).rank, 1);
  Variables spread = local;
  spread["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_NE(refusal(spread).find("MASTER_ADDR"), std::string::npos);
  spread["MASTER_ADDR"] = "n7";
  EXPECT_EQ(launch(spread).address, "n7");
  EXPECT_EQ(launch({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}).rank, 1);
}

TEST(Launch, Srun) {
  const Variables job{{"SLURM_PROCID", "5"},
                      {"SLURM_NTASKS", "8"},
                      {"SLURM_JOB_ID", "12345"},
                      {"SLURM_JOB_NODELIST", "gpu[08-11]"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x4)"}};
  const Launch script = launch(job);  // of a batch script that calls kvcc without srun
  EXPECT_TRUE(script.alone());
  EXPECT_NE(script.note.find("srun"), std::string::npos);
  Variables step = job;
  step["SLURM_STEP_ID"] = "0";
  const Launch found = launch(step);
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_EQ(found.address, "gpu08");
  EXPECT_EQ(found.port, 29500 + 12345 % 3000);
  step["MASTER_ADDR"] = "login";
  step["MASTER_PORT"] = "77";
  EXPECT_EQ(launch(step).address, "login");
  EXPECT_EQ(launch(step).port, 77);
}

TEST(Launch, HalfSetOrWrongIsRefusedByName) {
  EXPECT_NE(refusal({{"RANK", "0"}}).find("WORLD_SIZE: not set"), std::string::npos);
  EXPECT_NE(refusal({{"WORLD_SIZE", "2"}}).find("RANK: not set"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).find("MASTER_ADDR"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n"}}).find("RANK: 2"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("RANK: 'x'"), std::string::npos);
  EXPECT_NE(
      refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n"}, {"MASTER_PORT", "0"}}).find("MASTER_PORT"),
      std::string::npos);
  EXPECT_NE(refusal({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}}).find("SLURM_PROCID"), std::string::npos);
}

TEST(Launch, FirstHostOfANodeList) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("n1,n2"), "n1");
  EXPECT_EQ(first_host("node[007-010,12],gpu1"), "node007");
  EXPECT_EQ(first_host("rack[2-3]n[4,6].x"), "rack2n4.x");
  for (const char* wrong : {"", "n[", "n[a]", "n]", ",n1"}) EXPECT_THROW(first_host(wrong), Error) << wrong;
}

TEST(Launch, EachRankOfAMachineHasAGpu) {
  Launch third = launch({{"RANK", "6"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "2"}, {"MASTER_ADDR", "n"}});
  EXPECT_EQ(gpu_of_rank(third, ""), "2");
  EXPECT_EQ(gpu_of_rank(third, "4,5,6,7"), "6");
  EXPECT_EQ(gpu_of_rank(third, "3"), "3");  // srun --gpus-per-task=1
  EXPECT_EQ(launch({{"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "2"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}})
                .local_rank,
            1);
}

TEST(Launch, ThreadsAreDividedAmongTheRanksOfAMachine) {
  Launch two;
  two.local_size = 2;
  const int bound = 1;  // fewer cores than any machine of several has
  EXPECT_GE(threads_of_rank(two, bound), 1);
  EXPECT_EQ(threads_of_rank(two, 1 << 20), 1 << 19);
  two.local_size = 1 << 30;
  EXPECT_EQ(threads_of_rank(two, 1 << 20), 1);
}

}  // namespace
}  // namespace kvcc
