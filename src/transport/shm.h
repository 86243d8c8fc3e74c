// The shm transport: a symmetric heap in host memory, for ranks of one host.
#pragma once

#include <memory>

#include "fast_ulysses/heap.h"

namespace fast_ulysses {

std::unique_ptr<Transport> make_shm_transport();

}  // namespace fast_ulysses
