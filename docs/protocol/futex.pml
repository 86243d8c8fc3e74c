/* futex.pml - how a wait of the host engine sleeps, and why its wake-up is not lost.
 *
 * What is modelled
 *   One waiter and SIGNALLERS peers.  Each signaller stores its flag, once a round; the waiter sleeps on a doorbell word by futex,
 *   which puts a thread to sleep only if the word still has the value it was given.
 *     signaller:  flag = epoch;  fence;  if (sleeping) { doorbell++; futex_wake }
 *     waiter:     spin: looks at the flags some times;  sleeping = 1;  fence;  seen = doorbell;  look at the flags again;
 *                 futex_wait(doorbell, seen) if one is missing, and again from `seen = doorbell` on;  sleeping = 0
 *   The waiter needs all flags of the round.  Rounds follow one another without end, with epochs modulo 4 and two flag slots by
 *   parity.  The 100 ms after which the library looks in any case are left out: no wake-up may be lost.
 *   TSO=1 gives each side a store buffer of one entry (x86: a store becomes visible after a later load, unless a fence stands
 *   between them), so that the two fences show.
 *
 * Properties: the absence of deadlock (a lost wake-up is one: the waiter sleeps for ever) and
 *   takes_stale_flag   what ends the wait is the flags of this round
 *
 * Switches; the default is the protocol as it should be
 *   SIGNALLERS=1|2     peers
 *   LEAD=1             a peer may signal the next round before the waiter has completed this one (which could wake it by luck)
 *   TSO=0              no store buffers
 *   FENCE_SIGNALLER=0, FENCE_WAITER=0   the fence is left out (shows with TSO=1)
 *   READ_EARLY=0       the doorbell is read after the flags have been looked at again
 *   RECHECK=0          the flags are not looked at again after sleeping = 1
 *   FLAG_FIRST=0       the signaller looks at `sleeping` before it stores the flag
 *   RING=0             the signaller wakes without changing the doorbell
 */
#include "narrate.pml"
#ifndef SIGNALLERS
#define SIGNALLERS 2
#endif
#ifndef LEAD
#define LEAD 0
#endif
#ifndef TSO
#define TSO 1
#endif
#ifndef FENCE_SIGNALLER
#define FENCE_SIGNALLER 1
#endif
#ifndef FENCE_WAITER
#define FENCE_WAITER 1
#endif
#ifndef READ_EARLY
#define READ_EARLY 1
#endif
#ifndef RECHECK
#define RECHECK 1
#endif
#ifndef FLAG_FIRST
#define FLAG_FIRST 1
#endif
#ifndef RING
#define RING 1
#endif
#define M 4
#define NONE 255

PROPERTIES takes_stale_flag;

byte flag[SIGNALLERS * 2] = NONE; /* by signaller and parity of the epoch */
bool sleeping;
byte doorbell;                    /* modulo 8, more than can ring while the waiter stands still */
bool asleep;                      /* the kernel's: the waiter is in futex_wait */
byte completed;                   /* the last round that the waiter has completed, as the peers learn of it */
#if TSO
/* store buffers: what a side has stored and others do not see yet */
bool flag_buffered[SIGNALLERS];
bool sleeping_buffered, sleeping_value;
#endif

#define SLOT(s, e) ((s) * 2 + ((e) & 1))
#define HERE(s) (flag[SLOT(s, e)] == e)
#if SIGNALLERS > 1
#define ALL_HERE (HERE(0) && HERE(1))
#else
#define ALL_HERE HERE(0)
#endif

inline ring() {
#if TSO
	!flag_buffered[s]; /* a read-modify-write empties the store buffer */
#endif
	atomic {
#if RING
		doorbell = (doorbell + 1) % 8;
#endif
		SAY("signaller %d rings\n", s)
	};
	atomic { asleep = 0; SAY("signaller %d wakes\n", s) } /* futex_wake: nothing happens if nobody sleeps */
}
inline store_flag() {
#if TSO
	atomic { SAY("signaller %d stores the flag of round %d\n", s, e); flag_buffered[s] = 1; buffered = e };
#if FENCE_SIGNALLER
	!flag_buffered[s]
#endif
#else
	atomic { SAY("signaller %d stores the flag of round %d\n", s, e); flag[SLOT(s, e)] = e }
#endif
}
proctype Signaller(byte s) {
	byte e, buffered;
	bool peer_sleeps;
	do
	:: atomic { completed == e || (LEAD && (completed + 1) % M == e) -> e = (e + 1) % M };
#if !FLAG_FIRST
		peer_sleeps = sleeping;
#endif
#if TSO
		!flag_buffered[s]; /* the buffer has one entry */
#endif
		store_flag();
#if FLAG_FIRST
		peer_sleeps = sleeping;
#endif
		if
		:: peer_sleeps -> ring()
		:: else
		fi;
		peer_sleeps = 0
	od
}
inline store_sleeping(value) {
#if TSO
	!sleeping_buffered;
	atomic { SAY("waiter stores sleeping = %d\n", value); sleeping_value = value; sleeping_buffered = 1 }
#else
	atomic { SAY("waiter stores sleeping = %d\n", value); sleeping = value }
#endif
}
proctype Waiter() {
	byte e, seen;
	bool all;
	do
	:: e = (e + 1) % M;
		if
		:: ALL_HERE -> skip /* came while spinning */
		:: true -> /* the spinning is over, whether or not they came */
			store_sleeping(1);
#if TSO && FENCE_WAITER
			!sleeping_buffered;
#endif
			do
			:: true ->
#if READ_EARLY
				seen = doorbell;
#endif
#if RECHECK
				all = ALL_HERE;
#else
				all = 0;
#endif
				if
				:: all -> break
				:: else
				fi;
#if !READ_EARLY
				seen = doorbell;
#endif
				/* futex_wait: compares and goes to sleep in one step */
				if
				:: atomic { doorbell == seen -> asleep = 1; SAY("waiter sleeps in round %d\n", e) }; !asleep; SAY("waiter wakes\n")
				:: doorbell != seen -> skip
				fi;
#if !RECHECK /* the flags are looked at only when the sleep is over */
				if
				:: ALL_HERE -> break
				:: else
				fi
#endif
			od;
			store_sleeping(0)
		fi;
		ALWAYS(takes_stale_flag, ALL_HERE);
		atomic { SAY("waiter completes round %d\n", e); completed = e; seen = 0; all = 0 }
	od
}
#if TSO
proctype FlagBuffer(byte s) { /* writes the buffered flag of signaller s to memory, at any time */
	byte e;
	do
	:: atomic { flag_buffered[s] -> e = (e + 1) % M; flag[SLOT(s, e)] = e; flag_buffered[s] = 0 }
	od
}
proctype SleepingBuffer() {
	do
	:: atomic { sleeping_buffered -> sleeping = sleeping_value; sleeping_buffered = 0; sleeping_value = 0 }
	od
}
#endif
init {
	byte s;
	atomic {
		for (s : 0 .. SIGNALLERS - 1) {
			run Signaller(s);
#if TSO
			run FlagBuffer(s)
#endif
		}
		run Waiter();
#if TSO
		run SleepingBuffer();
#endif
		s = 0
	}
}
