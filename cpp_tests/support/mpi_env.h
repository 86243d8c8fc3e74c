// Ranks as processes under mpirun.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "support/mpi_bootstrap.h"
#include "support/rank_env.h"

namespace fast_ulysses::tests {

class MpiEnv final : public RankEnv {
 public:
  MpiEnv() : world_(MPI_COMM_WORLD) {}
  Bootstrap& world() override { return world_; }
  bool one_process() const override { return false; }
  std::unique_ptr<Bootstrap> subgroup(const std::vector<int>& members) override {
    const auto found = std::find(members.begin(), members.end(), rank());
    const bool member = found != members.end();
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, member ? 1 : MPI_UNDEFINED, static_cast<int>(found - members.begin()), &comm);
    if (!member) return nullptr;
    auto bootstrap = std::make_unique<MpiBootstrap>(comm);
    MPI_Comm_free(&comm);
    return bootstrap;
  }

 private:
  MpiBootstrap world_;
};

}  // namespace fast_ulysses::tests
