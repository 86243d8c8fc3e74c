// Faults that tests and benchmarks plant, to see that their checks are armed. Read from FAST_ULYSSES_TEST_FAULT when a
// group is made; never set in production.
#pragma once

namespace fast_ulysses {

enum class TestFault {
  kNone,
  kFlipBit,      // flip-bit: one bit of every block sent to a peer
  kDropWait,     // drop-wait: results are read without waiting for the peers
  kEarlySignal,  // early-signal: the signal goes out before the rows
  kDropOpening,  // drop-opening: no handshake before peers write a window that the caller holds
};

// Throws InvalidArgument for a name that is not in the list, so that a control is never unarmed by a typing error.
// Faults that belong to other layers ("transport-fail@2") are none here.
TestFault test_fault_from_environment();

}  // namespace fast_ulysses
