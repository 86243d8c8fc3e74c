// The host engine: the calling thread copies, signals and waits.
#pragma once

#include <memory>

#include "core/control.h"
#include "core/test_fault.h"
#include "core/waiter.h"
#include "engine/engine.h"

namespace fast_ulysses {

std::unique_ptr<Engine> make_host_engine(ControlBoard& board, Waiter& waiter, const TestFault& fault);

}  // namespace fast_ulysses
