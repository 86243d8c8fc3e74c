/* deviation.pml - one rank deviates or dies, or a peer is merely slow: who notices, who hangs, what is used in silence.
 *
 * What is modelled
 *   One process a rank (its transfers are joined at the end of each call).  N calls, then `destroy`.  Call n pushes into window n % 2,
 *   or as KIND says, and carries a signature of its own.  A window is written and read in two steps each.  The call in which a
 *   rank deviates is drawn nondeterministically.  An error word is one word in its rank's memory; "in error" means that it is set.
 *   A result is marked good or poisoned; the next host touch of a rank in error raises.
 *
 * Properties (besides the absence of deadlock)
 *   wrong_result_used     no result that is wrong, or was computed from data overwritten meanwhile, is delivered without poison
 *   deviation_unnoticed   with a deviation, every rank ends in error
 *   silent_end            (CHECK_TOUCH=1) with a deviation, the last host touch of every living rank raises
 *   call_not_poisoned     (CHECK_CALL=1) every rank poisons the very call in which a rank made another one
 *   false_alarm           without a deviation and with no wait that expires early, no rank ends in error
 *
 * Switches; the default is the protocol as it should be, a mutant turns one of them
 *   P=2|3, N           ranks, calls
 *   KIND               0 pushes, 1 pulls, 2 attention layers: push q, k, v; handshake A; attention reads them in place and writes the
 *                      own output window; handshake B; pull
 *   DEVIATION          0 none
 *                      1 another call: another signature, any window, the rank's own books followed
 *                      2 one or more calls fewer at the end: the rank goes on to destroy
 *                      3 one call left out, the rank goes on with the next
 *                      4 the rank dies before a call
 *   TIMEOUT            0 no wait expires, 1 a wait expires only when nothing else can move (the peer is dead or stuck), 2 at any time
 *                      (the peer is slow)
 *   COMPARE=0          signatures are not compared
 *   LOOK=0             waits do not look at the own error word
 *   VALIDATE=0         the error word is not looked at again after the windows have been read
 *   SET_PEERS=0        an error does not set the peers' error words
 *   WORDS_LATE=1       error words land in the peers' memory at any later time
 *   GATE               2 a rank in error writes no window any more, 1 it does not push but goes on writing its own windows that
 *                      peers pull from, 0 it goes on with both (copies that are enqueued already cannot be held back)
 *   ERROR_SIGNATURE=0  a rank in error goes on signalling with the signatures of its calls
 *   DESTROY            2 destroy is a handshake with a signature of its own, 1 it has the signature of a call, 0 it is no handshake
 *   SAME_SIGNATURES=1  all calls carry one signature;  CHECK_RESULT=0 leaves wrong_result_used unchecked
 */
#include "narrate.pml"
#ifndef P
#define P 3
#endif
#ifndef N
#define N 3
#endif
#ifndef KIND
#define KIND 0
#endif
#ifndef DEVIATION
#define DEVIATION 1
#endif
#ifndef TIMEOUT
#define TIMEOUT 2
#endif
#ifndef COMPARE
#define COMPARE 1
#endif
#ifndef LOOK
#define LOOK 1
#endif
#ifndef VALIDATE
#define VALIDATE 1
#endif
#ifndef SET_PEERS
#define SET_PEERS 1
#endif
#ifndef WORDS_LATE
#define WORDS_LATE 0
#endif
#ifndef GATE
#define GATE 2
#endif
#ifndef ERROR_SIGNATURE
#define ERROR_SIGNATURE 1
#endif
#ifndef DESTROY
#define DESTROY 2
#endif
#ifndef SAME_SIGNATURES
#define SAME_SIGNATURES 0
#endif
#ifndef CHECK_RESULT
#define CHECK_RESULT 1
#endif
#ifndef CHECK_CALL
#define CHECK_CALL 0
#endif
#ifndef CHECK_TOUCH
#define CHECK_TOUCH 0
#endif

#define NONE 255
#define BUSY 255
/* signatures (and data) other than those of calls */
#define WRONG 90 /* of the call that only the deviating rank makes */
#define GARBAGE 91 /* data: computed from rows that were overwritten meanwhile */
#define NOT_A_NUMBER 92 /* data: poison that travels on */
#define DESTROYING 97
#define INSERTED 98
#define ERROR 99
#define SIGNATURE(n) (SAME_SIGNATURES -> 1 : (n) + 1)
#define GOOD 1
#define POISONED 2
#define IN_ERROR (sick || error_word[r])

#define q1 ((r + 1) % P)
#define q2 ((r + 2) % P)
#define FLAG(dst, src, e) (((dst) * P + (src)) * 2 + ((e) & 1))
#define PART(owner, w, x) (((owner) * 2 + (w)) * P + (x))
#if P > 2
#define EACH_PEER(f) f(q1); f(q2)
#define ALL_PEERS(f) (f(q1) && f(q2))
#define ALL_TAKEN 3
#else
#define EACH_PEER(f) f(q1)
#define ALL_PEERS(f) f(q1)
#define ALL_TAKEN 1
#endif

PROPERTIES wrong_result_used, deviation_unnoticed, silent_end, call_not_poisoned, false_alarm;

byte flag_epoch[P * P * 2] = NONE, flag_signature[P * P * 2];
byte part[P * 2 * P];
bool error_word[P];
#if WORDS_LATE
bool word_under_way[P];
#endif
/* ghosts */
#if CHECK_TOUCH
bool raised[P];
#endif
#if CHECK_CALL
byte result[P * N];
#define RESULT(x) result[r * N + n] = x
#else
#define RESULT(x) skip
#endif
byte ended;
byte deviating = NONE, deviating_call = NONE;
#define DEVIATES (r == deviating && n == deviating_call)

inline set_error_words() {
	atomic {
		SAY("rank %d is in error\n", r);
		error_word[r] = 1
#if SET_PEERS && WORDS_LATE
		; word_under_way[q1] = 1
#if P > 2
		; word_under_way[q2] = 1
#endif
	}
#elif SET_PEERS
		; error_word[q1] = 1
	}
#if P > 2
	; error_word[q2] = 1
#endif
#else
	}
#endif
}
inline signal(q, signature) {
	atomic {
		SAY("rank %d signals epoch %d to rank %d, signature %d\n", r, e, q, signature);
		flag_epoch[FLAG(q, r, e)] = e;
		flag_signature[FLAG(q, r, e)] = (ERROR_SIGNATURE && IN_ERROR -> ERROR : signature)
	}
}
#define ARRIVED(q) (flag_epoch[FLAG(r, q, e)] == e)
inline take_flag(q, mask, signature) {
	SAY("rank %d takes the flag of rank %d, epoch %d\n", r, q, e);
	taken = taken | mask;
	bad = (COMPARE && flag_signature[FLAG(r, q, e)] != signature)
}
/* signal all, wait for all; sets bad, and sick for good, when the wait ended with an error */
inline handshake(signature) {
	e++; taken = 0; bad = 0;
	signal(q1, signature);
#if P > 2
	signal(q2, signature);
#endif
	do
	:: atomic { !(taken & 1) && ARRIVED(q1) && !bad -> take_flag(q1, 1, signature) }
#if P > 2
	:: atomic { !(taken & 2) && ARRIVED(q2) && !bad -> take_flag(q2, 2, signature) }
#endif
#if LOOK
	:: atomic { error_word[r] -> SAY("rank %d sees its error word in epoch %d\n", r, e); bad = 1; break }
#endif
#if TIMEOUT == 1
	:: atomic { timeout -> SAY("rank %d times out in epoch %d\n", r, e); bad = 1; break }
#endif
#if TIMEOUT == 2
	:: atomic { taken != ALL_TAKEN -> SAY("rank %d times out in epoch %d\n", r, e); bad = 1; break }
#endif
	:: atomic {
		taken == ALL_TAKEN || bad ->
#if LOOK
		if :: error_word[r] -> bad = 1 :: else fi;
#endif
		break
	}
	od;
	if
	:: bad -> set_error_words(); sick = 1
	:: else
	fi
}
#define BUSY_IN_PEER(q) part[PART(q, w, r)] = BUSY
#define DATA_IN_PEER(q) part[PART(q, w, r)] = data
inline push() { /* into window w of every peer */
	if
	:: GATE && IN_ERROR -> skip
	:: else ->
		atomic { SAY("rank %d begins to push call %d into window %d\n", r, n, w); EACH_PEER(BUSY_IN_PEER) };
		atomic { EACH_PEER(DATA_IN_PEER) }
	fi
}
#define BUSY_IN_OWN(q) part[PART(r, w, q)] = BUSY
#define DATA_IN_OWN(q) part[PART(r, w, q)] = data
#define OWN_RIGHT(q) (part[PART(r, w, q)] == data)
#define PEER_RIGHT(q) (part[PART(q, w, r)] == data)
#define PEER_RIGHT_OR_POISON(q) (part[PART(q, w, r)] == data || part[PART(q, w, r)] == NOT_A_NUMBER)
#if P > 2
#define LOOK_AT(f) ok = ok && f(q1); ok = ok && f(q2)
#else
#define LOOK_AT(f) ok = ok && f(q1)
#endif
inline deliver(poison) {
	atomic {
		SAY("rank %d delivers call %d, right %d\n", r, n, ok);
		if
		:: VALIDATE && error_word[r] -> RESULT(POISONED); sick = 1
		:: else ->
#if CHECK_RESULT
			ALWAYS(wrong_result_used, ok);
#endif
			RESULT((poison -> POISONED : GOOD))
		fi
	}
}

#if KIND == 2
/* Window 0 takes q, k, v; window 1 is the output. */
inline call() {
	w = 0;
	push();
	handshake(signature); poison = bad;
	ok = 1;
	LOOK_AT(OWN_RIGHT); /* attention reads window 0 from here */
	gated = (GATE == 2 && IN_ERROR);
	w = 1;
	if
	:: gated -> skip
	:: else -> atomic { EACH_PEER(BUSY_IN_OWN) }
	fi;
	w = 0;
	LOOK_AT(OWN_RIGHT); /* to here, and writes window 1 meanwhile */
	w = 1;
	atomic {
		keep = data;
		data = (poison -> NOT_A_NUMBER : (ok -> data : GARBAGE));
		if
		:: gated -> skip
		:: else -> EACH_PEER(DATA_IN_OWN)
		fi;
		ok = (data != GARBAGE); /* the own rows of the output */
		data = keep; keep = 0; gated = 0
	};
	handshake(signature + 10);
	if
	:: !bad ->
		LOOK_AT(PEER_RIGHT_OR_POISON);
		LOOK_AT(PEER_RIGHT_OR_POISON);
		deliver(poison)
	:: else -> RESULT(POISONED)
	fi
}
#else
inline call() {
	ok = 1;
	if
	:: used[w] -> used[0] = 0; used[1] = 0; handshake(INSERTED); ok = !bad
	:: else
	fi;
#if KIND == 1
	if
	:: GATE == 2 && IN_ERROR -> skip
	:: else -> atomic { EACH_PEER(BUSY_IN_OWN) }; atomic { EACH_PEER(DATA_IN_OWN) }
	fi;
#else
	push();
#endif
	used[0] = 0; used[1] = 0;
	handshake(signature);
	used[w] = 1;
	if
	:: ok && !bad ->
#if KIND == 1
		LOOK_AT(PEER_RIGHT);
		LOOK_AT(PEER_RIGHT);
#else
		LOOK_AT(OWN_RIGHT);
		LOOK_AT(OWN_RIGHT);
#endif
		deliver(0)
	:: else -> RESULT(POISONED)
	fi
}
#endif

proctype Rank(byte r) {
	byte n, e, w, data, signature, taken;
	bool bad, ok, sick;
#if KIND == 2
	bool poison, gated;
	byte keep;
#else
	bool used[2];
#endif
	do
	:: n == N -> break
	:: DEVIATES && DEVIATION == 2 -> break
	:: DEVIATES && DEVIATION == 4 -> SAY("rank %d dies before call %d\n", r, n); goto dead
	:: DEVIATES && DEVIATION == 3 -> SAY("rank %d leaves out call %d\n", r, n); n++
	:: n < N && !(DEVIATES && DEVIATION != 1) ->
		atomic { w = n % 2; data = n + 1; signature = SIGNATURE(n) };
		if
		:: DEVIATES ->
			atomic {
				SAY("rank %d makes another call instead of call %d\n", r, n);
				signature = WRONG; data = WRONG;
				if
				:: w = 0
				:: w = 1
				fi
			}
		:: else
		fi;
		call();
		atomic { n++; w = 0; data = 0; signature = 0; ok = 0; taken = 0; bad = 0
#if KIND == 2
			; poison = 0
#endif
		}
	od;
#if DESTROY == 2
	handshake(DESTROYING);
#elif DESTROY == 1
	handshake(1);
#endif
#if CHECK_TOUCH
	raised[r] = error_word[r];
#endif
dead:
	ended++
}

#if WORDS_LATE
inline land(q) { atomic { word_under_way[q] -> word_under_way[q] = 0; error_word[q] = 1 } }
proctype Link() {
end:	do
	:: land(0)
	:: land(1)
#if P > 2
	:: land(2)
#endif
	od
}
#endif

init {
	byte i;
	atomic {
#if DEVIATION /* ranks stand in a ring and treat q1 before q2, so that rank 0 stands for any */
		deviating = 0;
		select(i : 0 .. N - 1); deviating_call = i;
#endif
		for (i : 0 .. P - 1) { run Rank(i) }
#if WORDS_LATE
		run Link();
#endif
		i = 0
	}
	ended == P;
#if WORDS_LATE
	!word_under_way[0] && !word_under_way[1];
#if P > 2
	!word_under_way[2];
#endif
#endif
	atomic {
		for (i : 0 .. P - 1) {
#if DEVIATION
			if
			:: i == deviating && DEVIATION == 4
			:: else ->
				ALWAYS(deviation_unnoticed, error_word[i]);
#if CHECK_TOUCH
				ALWAYS(silent_end, raised[i]);
#endif
#if CHECK_CALL
				ALWAYS(call_not_poisoned, result[i * N + deviating_call] == POISONED);
#endif
				skip
			fi
#elif TIMEOUT < 2
			ALWAYS(false_alarm, !error_word[i])
#else
			skip
#endif
		}
	}
}
