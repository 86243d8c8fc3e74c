/* exchange_switches.pml - included by exchange.pml: the defaults of its switches, which are explained there. */
#ifndef P
#define P 2
#endif
#ifndef M
#define M 4
#endif
#ifndef WINDOWS
#define WINDOWS 2
#endif
#ifndef IN_TURN
#define IN_TURN 0
#endif
#ifndef SOURCE_HELD
#define SOURCE_HELD 0
#endif
#ifndef PUSHES
#define PUSHES (!SOURCE_HELD)
#endif
#ifndef PULLS
#define PULLS 1
#endif
#ifndef LAYER
#define LAYER 0
#endif
#ifndef RULE
#define RULE 1
#endif
#ifndef NEVER_INSERTS
#define NEVER_INSERTS 0
#endif
#ifndef COUNT_PULLS
#define COUNT_PULLS 1
#endif
#ifndef RULE_OWN
#define RULE_OWN 1
#endif
#ifndef PARITY
#define PARITY 1
#endif
#ifndef WAIT_GEQ
#define WAIT_GEQ 0
#endif
#ifndef SIGNAL_LATE
#define SIGNAL_LATE 1
#endif
#ifndef JOIN
#define JOIN 1
#endif
#ifndef CHECK_INPUT
#define CHECK_INPUT 1
#endif
#ifndef EVENT
#define EVENT 2
#endif
#ifndef EPOCH
#define EPOCH 0
#endif
#ifndef PER_PEER
#define PER_PEER 0
#endif
#ifndef POSTED
#define POSTED 0
#endif
#ifndef PULL_ON_CALLER
#define PULL_ON_CALLER 0
#endif
#ifndef CALLER_HOLDS
#define CALLER_HOLDS 0
#endif
#ifndef GROWN
#define GROWN 0
#endif
#ifndef STALE_FLAGS
#define STALE_FLAGS 0
#endif
#ifndef GRAPHS
#define GRAPHS 0
#endif
#ifndef GRAPH_CALLS
#define GRAPH_CALLS 1
#endif
#ifndef EAGER
#define EAGER 1
#endif
#ifndef GRAPH_WINDOWS
#define GRAPH_WINDOWS 1
#endif
#ifndef CAPTURE_OPENS
#define CAPTURE_OPENS 1
#endif
#ifndef AFTER_CAPTURE
#define AFTER_CAPTURE 1
#endif
#ifndef GRAPH_FLAGS
#define GRAPH_FLAGS 1
#endif
#ifndef GRAPH_EPOCH
#define GRAPH_EPOCH 1
#endif
#ifndef GRAPH_PARITY
#define GRAPH_PARITY 1
#endif
#ifndef GRAPH_EVENT
#define GRAPH_EVENT 1
#endif
