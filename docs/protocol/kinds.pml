/* kinds.pml - calls of different kinds must meet in the same flags, and hosts that meet must not wait for ever.
 *
 * What is modelled
 *   Each rank makes one call of a kind drawn nondeterministically: a plain exchange, a layer pipelined over one or over two head
 *   groups, or a call that first meets the other hosts (growth, reserve).  A second, plain call common to all follows unless the rank
 *   is in error.  Waits on the device are never released by a timer, so that a hang is seen as a deadlock.
 *
 * Properties (besides the absence of deadlock: every rank ends)
 *   outcome_differs   the ranks are in error if and only if their kinds differ
 *   noticed_late      no meeting runs to its bound although the error word of the rank is set
 *
 * Switches; the default is the protocol as it should be
 *   P=2|3, KINDS      ranks; mask of the kinds that occur: 1 plain, 2 one head group, 4 two head groups, 8 a meeting of hosts
 *   COMMON=0          each kind begins in flags of its own instead of in the common ones
 *   HOST_BOUND=0      a meeting of hosts waits for ever;  HOST_LOOK=0 it does not look at the error word
 */
#include "narrate.pml"
#ifndef P
#define P 2
#endif
#ifndef KINDS
#define KINDS 15
#endif
#ifndef COMMON
#define COMMON 1
#endif
#ifndef HOST_BOUND
#define HOST_BOUND 1
#endif
#ifndef HOST_LOOK
#define HOST_LOOK 1
#endif

#define PLAIN 0
#define ONE_GROUP 1
#define TWO_GROUPS 2
#define MEETING 3
/* flags: each used once; the common one twice, by epoch parity */
#define COMMON_FIRST 0
#define GROUP_0 1
#define GROUP_1 2
#define COMMON_SECOND 3
#define SECOND_CALL 20
#define SIGNATURE(kind) (10 + (kind))

#define q1 ((r + 1) % P)
#define q2 ((r + 2) % P)
#define FLAG(dst, src, f) (((dst) * P + (src)) * 4 + (f))
#if P > 2
#define ALL_PEERS(p, f) (p(q1, f) && p(q2, f))
#define ANY_PEER(p, f) (p(q1, f) || p(q2, f))
#define EACH_PEER(p, f) p(q1, f); p(q2, f)
#define SET_ALL_WORDS error_word[0] = 1; error_word[1] = 1; error_word[2] = 1
#define ALL_HERE (here[q1] && here[q2])
#else
#define ALL_PEERS(p, f) p(q1, f)
#define ANY_PEER(p, f) p(q1, f)
#define EACH_PEER(p, f) p(q1, f)
#define SET_ALL_WORDS error_word[0] = 1; error_word[1] = 1
#define ALL_HERE here[q1]
#endif

PROPERTIES outcome_differs, noticed_late;

byte flag[P * P * 4]; /* the signature in it, 0 none yet */
bool error_word[P];
bool here[P];         /* hosts that have come to the meeting */
byte kind[P];
byte ended;

#define SIGNAL(q, f) flag[FLAG(q, r, f)] = signature
#define ARRIVED(q, f) (flag[FLAG(r, q, f)] != 0)
#define DIFFERS(q, f) (flag[FLAG(r, q, f)] != 0 && flag[FLAG(r, q, f)] != signature)
inline handshake(f, s) {
	signature = s;
	atomic { SAY("rank %d signals in flag %d, signature %d\n", r, f, s); EACH_PEER(SIGNAL, f) };
	if
	:: atomic { ANY_PEER(DIFFERS, f) -> SAY("rank %d sees a foreign signature in flag %d\n", r, f); SET_ALL_WORDS }
	:: atomic { ALL_PEERS(ARRIVED, f) && !ANY_PEER(DIFFERS, f) -> skip }
	:: error_word[r] -> skip
	fi
}
proctype Rank(byte r) {
	byte signature;
	if
	:: kind[r] == PLAIN -> handshake(COMMON_FIRST, SIGNATURE(PLAIN))
	:: kind[r] == ONE_GROUP || kind[r] == TWO_GROUPS ->
#if COMMON
		handshake(COMMON_FIRST, SIGNATURE(kind[r]));
#else
		handshake(GROUP_0, SIGNATURE(kind[r]));
#endif
		if
		:: kind[r] == TWO_GROUPS && !error_word[r] -> handshake(GROUP_1, SIGNATURE(kind[r]))
		:: else
		fi
	:: kind[r] == MEETING ->
		SAY("rank %d comes to the meeting of hosts\n", r);
		here[r] = 1;
		if
		:: ALL_HERE -> skip
#if HOST_LOOK
		:: error_word[r] -> skip
#endif
#if HOST_BOUND
		:: atomic { timeout -> SAY("rank %d gives the meeting up\n", r); ALWAYS(noticed_late, !error_word[r]); SET_ALL_WORDS }
#endif
		fi;
		if
		:: !error_word[r] -> handshake(COMMON_FIRST, SIGNATURE(PLAIN))
		:: else
		fi
	fi;
	if
	:: !error_word[r] -> handshake(COMMON_SECOND, SECOND_CALL)
	:: else
	fi;
	ended++
}
init {
	byte i;
	bool differ;
	atomic {
		for (i : 0 .. P - 1) {
			if
#if KINDS & 1
			:: kind[i] = PLAIN
#endif
#if KINDS & 2
			:: kind[i] = ONE_GROUP
#endif
#if KINDS & 4
			:: kind[i] = TWO_GROUPS
#endif
#if KINDS & 8
			:: kind[i] = MEETING
#endif
			fi;
			if
			:: i > 0 && kind[i] != kind[0] -> differ = 1
			:: else
			fi
		}
		for (i : 0 .. P - 1) { run Rank(i) }
	}
	ended == P;
	for (i : 0 .. P - 1) { ALWAYS(outcome_differs, error_word[i] == differ) }
}
