/* watchdog.pml - a wait by stream memory operations, which cannot expire, bounded by a watchdog of the host.
 *
 * What is modelled
 *   The stream of one rank and its PEERS peers.  In each of N calls the stream signals, waits for the flag of every peer (epoch >= e is
 *   all that a stream memory wait compares), reads its window, and validates: it looks at the error word and at the signatures.
 *   While the stream waits, at any time (the peer is slow) or for ever (it has died), the watchdog may set the error word and then
 *   release the wait by writing the awaited value into each flag.  Enqueued work runs on after an error; results are poisoned.
 *   A peer may die before any call, or make another call (another signature, other data).
 *
 * Properties (besides the absence of deadlock: the stream ends whatever the peers do)
 *   wrong_result_used   no result read from a window whose data had not arrived, or was another call's, goes without poison
 *
 * Switches; the default is the protocol as it should be
 *   PEERS=1|2, N
 *   WATCHDOG=0            there is none
 *   WORD_FIRST=0          the wait is released before the error word is set
 *   VALIDATE=0            the error word is not looked at after the window has been read
 *   COMPARE=0             the signatures are not compared
 */
#include "narrate.pml"
#ifndef PEERS
#define PEERS 2
#endif
#ifndef N
#define N 3
#endif
#ifndef WATCHDOG
#define WATCHDOG 1
#endif
#ifndef WORD_FIRST
#define WORD_FIRST 1
#endif
#ifndef VALIDATE
#define VALIDATE 1
#endif
#ifndef COMPARE
#define COMPARE 1
#endif
#define WRONG 90
#define SLOT(s, e) ((s) * 2 + ((e) & 1))

PROPERTIES wrong_result_used;

byte flag_epoch[PEERS * 2], flag_signature[PEERS * 2]; /* call e has signature e and data e */
byte part[PEERS * 2];                                  /* two windows in turn */
bool error_word;
byte signalled;                                        /* the last epoch that the stream has signalled */
byte waiting;                                          /* the epoch that the stream waits for, 0 while it does not wait */

proctype Peer(byte s) {
	byte e, data;
	do
	:: e == N -> break
	:: e < N -> SAY("peer %d dies before call %d\n", s, e + 1); break
	:: e < N && signalled >= e -> /* it has completed e, and goes on to the next */
		e++;
		if
		:: data = e
		:: SAY("peer %d makes another call instead of %d\n", s, e); data = WRONG
		fi;
		part[SLOT(s, e)] = data;
		atomic { SAY("peer %d signals epoch %d, signature %d\n", s, e, data); flag_epoch[SLOT(s, e)] = e; flag_signature[SLOT(s, e)] = data };
		data = 0
	od
}
#define PASSED(s) (flag_epoch[SLOT(s, e)] >= e)
#define RIGHT(s) (part[SLOT(s, e)] == e)
#define FOREIGN(s) (flag_signature[SLOT(s, e)] != e)
#if PEERS > 1
#define ALL(f) (f(0) && f(1))
#define ANY(f) (f(0) || f(1))
#else
#define ALL(f) f(0)
#define ANY(f) f(0)
#endif
proctype Stream() {
	byte e;
	bool right;
	do
	:: e == N -> break
	:: e < N ->
		atomic { e++; signalled = e; waiting = e };
		atomic { ALL(PASSED) -> waiting = 0; SAY("the stream passes the wait for epoch %d\n", e) };
		right = ALL(RIGHT);
		right = right && ALL(RIGHT);
		atomic {
			SAY("the stream delivers call %d, right %d\n", e, right);
			if
			:: VALIDATE && error_word -> skip /* poisoned */
			:: else ->
				if
				:: COMPARE && ANY(FOREIGN) -> error_word = 1 /* poisoned */
				:: else -> ALWAYS(wrong_result_used, right)
				fi
			fi;
			right = 0
		}
	od
}
#if WATCHDOG
inline set_word() { atomic { SAY("the watchdog sets the error word\n"); error_word = 1 } }
inline release(s) {
	atomic {
		SAY("the watchdog releases the wait for peer %d, epoch %d\n", s, e);
		if
		:: flag_epoch[SLOT(s, e)] < e -> flag_epoch[SLOT(s, e)] = e; flag_signature[SLOT(s, e)] = e
		:: else
		fi
	}
}
proctype Watchdog() {
	byte e;
end:	do
	:: atomic { waiting != 0 -> e = waiting };
#if WORD_FIRST
		set_word();
#endif
		release(0);
#if PEERS > 1
		release(1);
#endif
#if !WORD_FIRST
		set_word();
#endif
		e = 0
	od
}
#endif
init {
	byte s;
	atomic {
		for (s : 0 .. PEERS - 1) { run Peer(s) }
		run Stream();
#if WATCHDOG
		run Watchdog();
#endif
		s = 0
	}
}
