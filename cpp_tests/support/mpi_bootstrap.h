// Ranks of an MPI communicator as the ranks of a group. Only tests know MPI.
#pragma once

#include <mpi.h>

#include <climits>
#include <string>
#include <vector>

#include "fast_ulysses/bootstrap.h"
#include "fast_ulysses/errors.h"

namespace fast_ulysses {

// Works on a duplicate of the communicator, so that its messages never meet those of a test. Every member makes and
// drops it together (MPI_Comm_dup and MPI_Comm_free are collective); drop it before MPI_Finalize.
class MpiBootstrap : public Bootstrap {
 public:
  explicit MpiBootstrap(MPI_Comm comm) {
    check(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  ~MpiBootstrap() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) {
      MPI_Comm_free(&comm_);
    }
  }
  MpiBootstrap(const MpiBootstrap&) = delete;
  MpiBootstrap& operator=(const MpiBootstrap&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::string> allgather(const std::string& bytes) override {
    if (bytes.size() > static_cast<std::size_t>(INT_MAX / size_)) {
      throw InvalidArgument("MpiBootstrap::allgather: " + std::to_string(bytes.size()) + " bytes are too many");
    }
    const int own = static_cast<int>(bytes.size());
    std::vector<int> counts(static_cast<std::size_t>(size_));
    check(MPI_Allgather(&own, 1, MPI_INT, counts.data(), 1, MPI_INT, comm_), "MPI_Allgather");

    std::vector<int> offsets(counts.size());
    int total = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      offsets[r] = total;
      total += counts[r];
    }
    std::string all(static_cast<std::size_t>(total), '\0');
    check(MPI_Allgatherv(bytes.data(), own, MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE, comm_),
          "MPI_Allgatherv");

    std::vector<std::string> result;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      result.push_back(all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(counts[r])));
    }
    return result;
  }

  void barrier() override { check(MPI_Barrier(comm_), "MPI_Barrier"); }

 private:
  static void check(int status, const char* call) {
    if (status != MPI_SUCCESS) {
      throw TransportError(std::string(call) + " failed with status " + std::to_string(status));
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace fast_ulysses
