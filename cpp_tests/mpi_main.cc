// GoogleTest's main for tests under mpirun. A failure on one rank fails the run on all; rank 0 prints the progress,
// every rank prints its own failures with its rank in front.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

// On every rank: after each test all ranks meet and hear who failed, so that tests do not run into each other. Has a
// communicator of its own: a rank that left a test early waits here, and does not mix with the test's own messages.
class RankListener : public testing::EmptyTestEventListener {
 public:
  explicit RankListener(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }

  void OnTestStart(const testing::TestInfo& test) override {
    name_ = std::string(test.test_suite_name()) + "." + test.name();
  }

  // GoogleTest holds its own lock here: asking it for the current test would never return.
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.failed() && rank_ != 0) {  // rank 0 has GoogleTest's own printer
      std::fprintf(stderr, "[rank %d] %s: failure at %s:%d\n%s\n", rank_, name_.c_str(),
                   part.file_name() == nullptr ? "?" : part.file_name(), part.line_number(), part.message());
    }
  }

  void OnTestEnd(const testing::TestInfo& test) override {
    name_ = "outside of a test";
    const int failed = test.result()->Failed() ? 1 : 0;
    std::vector<int> all(static_cast<std::size_t>(size_));
    MPI_Allgather(&failed, 1, MPI_INT, all.data(), 1, MPI_INT, comm_);
    std::string ranks;
    for (int r = 0; r < size_; ++r) {
      if (all[static_cast<std::size_t>(r)] != 0) {
        ranks += " " + std::to_string(r);
      }
    }
    if (rank_ == 0 && !ranks.empty()) {
      std::fprintf(stderr, "%s.%s failed on ranks:%s\n", test.test_suite_name(), test.name(), ranks.c_str());
    }
  }

 private:
  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 0;
  std::string name_ = "outside of a test";
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  int rank = 0;
  MPI_Comm_rank(comm, &rank);

  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
  }
  listeners.Append(new RankListener(comm));

  int failed = RUN_ALL_TESTS() == 0 ? 0 : 1;
  if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::fprintf(stderr, "[rank %d] no test was run\n", rank);
    failed = 1;
  }
  int any_failed = 0;
  MPI_Allreduce(&failed, &any_failed, 1, MPI_INT, MPI_MAX, comm);
  MPI_Comm_free(&comm);
  MPI_Finalize();
  return any_failed;
}
