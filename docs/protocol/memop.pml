/* memop.pml - handshakes by stream memory operations under graph replay.
 *
 * What is modelled
 *   The values of captured memory operations are constants, so no epoch can travel.  A handshake is: write 1 into the peers' slot;
 *   wait until the own slot of every peer is 1; write 0 into it (a step of its own).  Eager handshakes take two slots in turn.  The
 *   script mixes, without end, eager handshakes and replays of one captured graph of HANDSHAKES handshakes.
 *   As a ghost, a slot holds the number of the handshake (modulo M) instead of 1, so that it shows for which one it was written.
 *
 * Properties (besides the absence of deadlock)
 *   takes_foreign_flag   a wait is only ever satisfied by the signal of its own handshake
 *   script_too_short     not of the protocol: the ring of M script entries was too small
 *
 * Switches; the default is the protocol as it should be
 *   P=2|3, HANDSHAKES   ranks, handshakes in the graph (a graph with a single one needs a second)
 *   OWN_SLOTS=0         captured handshakes keep the slot, of the eager two, that the host's count gave them at capture
 *   RESET=0             slots are not reset
 */
#include "narrate.pml"
#ifndef P
#define P 2
#endif
#ifndef HANDSHAKES
#define HANDSHAKES 2
#endif
#ifndef OWN_SLOTS
#define OWN_SLOTS 1
#endif
#ifndef RESET
#define RESET 1
#endif
#define M 4
#define SLOTS (2 + HANDSHAKES)
#define AHEAD(a, b) (((a) + M - (b)) % M)
#define q1 ((r + 1) % P)
#define q2 ((r + 2) % P)
#define SLOT(dst, src, x) (((dst) * P + (src)) * SLOTS + (x))

PROPERTIES takes_foreign_flag, script_too_short;

byte slot[P * P * SLOTS];
byte script_slot[M], prod, at[P];
bool parity;                    /* of the host's count of eager handshakes */
bool captured, replaying;
byte graph_at, graph_slot[HANDSHAKES];
byte gi;

inline draw() {
	for (gi : 0 .. P - 1) { ALWAYS(script_too_short, AHEAD(prod, at[gi]) < M - 1) }
	if
	:: !captured -> captured = 1;
		for (gi : 0 .. HANDSHAKES - 1) {
#if OWN_SLOTS
			graph_slot[gi] = 2 + gi
#else
			graph_slot[gi] = parity; parity = 1 - parity
#endif
		}
	:: else
	fi;
	if
	:: replaying -> script_slot[prod] = graph_slot[graph_at]; graph_at++
	:: !replaying -> replaying = 1; script_slot[prod] = graph_slot[0]; graph_at = 1
	:: !replaying -> script_slot[prod] = parity; parity = 1 - parity
	fi;
	SAY("HANDSHAKE %d: slot %d, captured %d\n", prod, script_slot[prod], replaying);
	if
	:: replaying && graph_at == HANDSHAKES -> replaying = 0; graph_at = 0
	:: else
	fi;
	prod = (prod + 1) % M; gi = 0
}
proctype Rank(byte r) {
	byte n, x;
	do
	:: atomic { if :: n == prod -> draw() :: else fi; x = script_slot[n] };
		atomic { SAY("rank %d signals handshake %d\n", r, n); slot[SLOT(q1, r, x)] = n + 1 };
#if P > 2
		atomic { slot[SLOT(q2, r, x)] = n + 1 };
		atomic {
			slot[SLOT(r, q1, x)] != 0 && slot[SLOT(r, q2, x)] != 0 ->
			ALWAYS(takes_foreign_flag, slot[SLOT(r, q1, x)] == n + 1 && slot[SLOT(r, q2, x)] == n + 1)
		};
#else
		atomic { slot[SLOT(r, q1, x)] != 0 -> ALWAYS(takes_foreign_flag, slot[SLOT(r, q1, x)] == n + 1) };
#endif
#if RESET
		atomic {
			SAY("rank %d resets slot %d\n", r, x);
			slot[SLOT(r, q1, x)] = 0;
#if P > 2
			slot[SLOT(r, q2, x)] = 0
#endif
		};
#endif
		atomic { n = (n + 1) % M; at[r] = n; x = 0 }
	od
}
init { atomic { byte i; for (i : 0 .. P - 1) { run Rank(i) } i = 0 } }
