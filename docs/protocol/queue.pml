/* queue.pml - the order of enqueueing when the streams of a device do not make progress independently.
 *
 * What is modelled
 *   One process a rank executes everything in the order of enqueueing, as one hardware queue does (CUDA_DEVICE_MAX_CONNECTIONS=1), or
 *   a host that blocks between calls, lazy loading of a module, an implicit synchronisation.  N calls of a layer with two head
 *   groups; a step is S(x), push and signal, or R(x), wait and read.
 *
 * Property: the absence of deadlock.
 *
 * Switches
 *   P=2|3, N
 *   ORDER   0 all sends up front                    S(In0) S(In1) R(In0) S(Out0) R(In1) S(Out1) R(Out0) R(Out1)
 *           1 one group after the other             S(In0) R(In0) S(Out0) R(Out0) S(In1) R(In1) S(Out1) R(Out1)
 *           2 a wait before the own signal that answers the peers' waits     R(In0) S(In0) ...
 *           3 as 0, but rank 0 sends its groups in the other order (waits in one order)
 *           4 as 1, but rank 0 takes its groups in the other order
 */
#include "narrate.pml"
#ifndef P
#define P 2
#endif
#ifndef N
#define N 3
#endif
#ifndef ORDER
#define ORDER 0
#endif
#define IN0 0
#define IN1 1
#define OUT0 2
#define OUT1 3
#define COUNT(q, x) sent[((q) % P) * 4 + (x)]

byte sent[P * 4]; /* how often S(x) was executed by a rank */

#define S(x) atomic { SAY("rank %d sends %d (0 In0, 1 In1, 2 Out0, 3 Out1)\n", r, x); COUNT(r, x)++ }
#if P > 2
#define R(x) (COUNT(r + 1, x) > n && COUNT(r + 2, x) > n)
#else
#define R(x) (COUNT(r + 1, x) > n)
#endif
proctype Rank(byte r) {
	byte n;
	do
	:: n < N ->
#if ORDER == 0
		S(IN0); S(IN1); R(IN0); S(OUT0); R(IN1); S(OUT1); R(OUT0); R(OUT1);
#elif ORDER == 1
		S(IN0); R(IN0); S(OUT0); R(OUT0); S(IN1); R(IN1); S(OUT1); R(OUT1);
#elif ORDER == 2
		R(IN0); S(IN0); S(IN1); S(OUT0); R(IN1); S(OUT1); R(OUT0); R(OUT1);
#elif ORDER == 3
		if
		:: r == 0 -> S(IN1); S(IN0)
		:: else -> S(IN0); S(IN1)
		fi;
		R(IN0); S(OUT0); R(IN1); S(OUT1); R(OUT0); R(OUT1);
#elif ORDER == 4
		if
		:: r == 0 -> S(IN1); R(IN1); S(OUT1); R(OUT1); S(IN0); R(IN0); S(OUT0); R(OUT0)
		:: else -> S(IN0); R(IN0); S(OUT0); R(OUT0); S(IN1); R(IN1); S(OUT1); R(OUT1)
		fi;
#endif
		n++
	:: else -> break
	od
}
init { atomic { byte i; for (i : 0 .. P - 1) { run Rank(i) } } }
