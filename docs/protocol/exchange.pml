/* exchange.pml - exchanges by push and by pull over symmetric windows, with the insertion rule for the reuse of windows.
 *
 * What is modelled
 *   A rank is two processes: Caller(r), the caller's stream, and Transfer(r), the transfer stream (copy engines).  They are ordered
 *   with one another only by the two events `released` and `transferred`.  All ranks execute one endless script of exchanges whose
 *   entries are drawn nondeterministically (exchange_script.pml); the host's bookkeeping, which decides where a handshake is
 *   inserted, is computed there.  Call numbers, epochs and data versions run modulo M, so a finished search covers programs of any
 *   length.
 *     push:  [inserted handshake]; Transfer writes the part of every peer's window and signals; Caller waits for all flags, joins
 *            its own transfer, reads its own window.
 *     pull:  [inserted handshake]; Caller writes its own window, signals, waits for all flags; Transfer reads the peers' windows;
 *            Caller joins it.
 *   Each reading and each writing of a window is two steps, so that what happens between begin and end is seen.
 *
 * Properties (besides the absence of deadlock: no invalid end state)
 *   overwrites_unread      a window is written only when everything in it has been read
 *   reads_wrong_data       what is read is the data of this very call, from beginning to end: arrived, and not overwritten meanwhile
 *   input_overwritten      the caller's tensor is sent before the caller, who goes on after the call, overwrites it
 *   takes_foreign_flag     the flag that ends a wait was written for this very handshake
 *   runs_ahead             a peer is at most one epoch ahead
 *   flag_overtaken         (POSTED) no flag is written while the one before it is still under way to the same word
 *   inserts_handshake      (NEVER_INSERTS=1) the rule never fires
 *   script_too_short       not of the protocol: the ring of M script entries was too small for the lead of one rank over another
 *
 * Switches; the default is the protocol as it should be, a mutant turns one of them
 *   P=2..4             ranks (4 with LAYER only)
 *   WINDOWS=n          windows; any call may use any of them, unless
 *   IN_TURN=1          two windows a role, strictly in turn (window = 2 * role + turn; needs WINDOWS=4)
 *   PUSHES, PULLS      kinds of exchange that occur
 *   LAYER=1            the script is the attention layer for ever: push into window 0, pull out of window 1
 *   RULE=0             no handshake is ever inserted
 *   COUNT_PULLS=0      a pull does not count as a use of its window
 *   RULE_OWN=0         the rule does not govern writing one's own window
 *   PARITY=0           one flag word a peer instead of two by epoch parity;  WAIT_GEQ=1 waits take a later epoch too
 *   SIGNAL_LATE=0      the signal is sent before the transfer (push) or the writing (pull) has ended
 *   JOIN=0             the caller's stream does not wait for its own transfer;  CHECK_INPUT=0 leaves input_overwritten unchecked
 *   EVENT              the transfer stream waits for the caller's stream: 2 at an event behind the inserted handshake, 1 at one
 *                      before it, 0 not at all
 *   EPOCH              0 each stream counts epochs by itself, 1 one counter on the device, advanced by the caller's stream when a
 *                      handshake begins and read by signal and wait, 2 one counter that the wait advances and the signal reads
 *   PER_PEER=1         write and signal peer by peer (pushes only)
 *   POSTED=1           flags are posted writes that land at any later time
 *   PULL_ON_CALLER=1   pulls run on the caller's stream
 *   CALLER_HOLDS       the caller holds the windows and reads them until its next call that writes them: 1 the rule as for other
 *                      windows, 2 such a call always opens with a handshake
 *   SOURCE_HELD        pulls only; the caller overwrites the source of a pull after the call: 1 the rule as for other windows, 2
 *                      the pull ends with a handshake
 *   GROWN              the arena was re-carved, so that two windows share memory: 1 books by window, 2 books by memory region
 *   STALE_FLAGS        the flag memory was an earlier group's: 1 it is not cleared, 2 cleared, 3 cleared, then a host barrier
 *   GRAPHS=n           n graphs of GRAPH_CALLS calls are captured and replayed at any time, between eager calls (EAGER=0: without)
 *   GRAPH_WINDOWS      1 captures have windows of their own, 0 they share those of eager calls, 2 they share them and each counts as
 *                      just used at every eager call
 *   CAPTURE_OPENS=0    a capture does not begin with a handshake
 *   AFTER_CAPTURE      1 the first eager use of a window after a capture begins with a handshake, 0 the books stay as the capture
 *                      left them
 *   GRAPH_FLAGS=0      captured handshakes use the flag words of the eager ones
 *   GRAPH_EPOCH=0      captured epochs are constants, repeated by every replay
 *   GRAPH_PARITY=0     the slot of a captured handshake is chosen by the host's count at capture
 *   GRAPH_EVENT=0      captured transfers wait for an event recorded outside the capture (long past at a replay)
 */
#include "narrate.pml"
#include "exchange_switches.pml"

#define PUSH 1
#define PULL 2
#define EMPTY 0            /* a part of a window: nothing in it, or all of it read */
#define BUSY 255           /* being written */
#define NONE 255           /* a flag word that was never written */
#define DATA(n) ((n) + 1)  /* the data of script entry n */
#define INSERTED 100       /* the signature of an inserted handshake; that of an exchange is its script entry */

#define q1 ((r + 1) % P)
#define q2 ((r + 2) % P)
#define q3 ((r + 3) % P)
#define AHEAD(a, b) (((a) + M - (b)) % M) /* by how much a is ahead of b, circular */

#if GRAPHS && (POSTED || EPOCH || STALE_FLAGS)
#error "not modelled together"
#endif

/* Eager and captured handshakes are counted apart (`set`) and have flag words apart. */
#if GRAPHS
#define SETS 2
#else
#define SETS 1
#endif
#if GRAPHS && GRAPH_FLAGS
#define FLAG(dst, src, set, slot) (((((set) * P + (dst)) * P) + (src)) * 2 + (slot))
#define FLAG_SETS 2
#else
#define FLAG(dst, src, set, slot) (((dst) * P + (src)) * 2 + (slot))
#define FLAG_SETS 1
#endif
#if PARITY
#define SLOT(e) ((e) & 1)
#else
#define SLOT(e) 0
#endif
/* the part of window w of rank `owner` that belongs to the pair (owner, x) */
#if GROWN
#define PART(owner, w, x) ((owner) * P + (x))
#define PARTS (P * P)
#else
#define PART(owner, w, x) (((owner) * WINDOWS + (w)) * P + (x))
#define PARTS (P * WINDOWS * P)
#endif

PROPERTIES overwrites_unread, reads_wrong_data, input_overwritten, takes_foreign_flag, runs_ahead, flag_overtaken, inserts_handshake,
	script_too_short;

/* memory that peers write or read */
byte flag_epoch[FLAG_SETS * P * P * 2] = NONE;
byte flag_signature[FLAG_SETS * P * P * 2];
#if POSTED
byte posted_epoch[FLAG_SETS * P * P * 2] = NONE;
byte posted_signature[FLAG_SETS * P * P * 2];
#endif
byte part[PARTS];
/* memory and events of one rank */
byte released[P];    /* event caller's stream -> transfer stream: entries released */
byte transferred[P]; /* event transfer stream -> caller's stream: entries finished */
#if EPOCH
byte device_epoch[SETS * P];
#endif
#if STALE_FLAGS >= 3
bool cleared[P];
#endif
/* ghosts: what the properties speak of */
byte completed_epoch[SETS * P]; /* the last epoch whose flags the rank has all read */
#if CHECK_INPUT
byte input[P]; /* the version of the caller's input tensor */
#endif

#include "exchange_script.pml"

inline write_flag(dst) {
#if POSTED
	ALWAYS(flag_overtaken, posted_epoch[FLAG(dst, r, set, slot)] == NONE);
	posted_epoch[FLAG(dst, r, set, slot)] = e;
	posted_signature[FLAG(dst, r, set, slot)] = signature
#else
	flag_epoch[FLAG(dst, r, set, slot)] = e;
	flag_signature[FLAG(dst, r, set, slot)] = signature
#endif
}
inline signal(dst) {
	atomic {
		SAY("rank %d signals epoch %d to rank %d\n", r, e, dst);
		ALWAYS(runs_ahead, AHEAD(e, completed_epoch[set * P + dst]) == 1 || AHEAD(e, completed_epoch[set * P + dst]) == 2);
		write_flag(dst)
	}
}
inline signal_all() {
	signal(q1);
#if P > 2
	signal(q2);
#endif
#if P > 3
	signal(q3);
#endif
}
#if WAIT_GEQ
#define ARRIVED(src) (flag_epoch[FLAG(r, src, set, slot)] != NONE && AHEAD(flag_epoch[FLAG(r, src, set, slot)], e) < M / 2)
#else
#define ARRIVED(src) (flag_epoch[FLAG(r, src, set, slot)] == e)
#endif
#define TAKE_FLAG(src) ARRIVED(src) -> ALWAYS(takes_foreign_flag, flag_signature[FLAG(r, src, set, slot)] == signature)
inline wait_all() {
	atomic { TAKE_FLAG(q1);
#if P > 2
	}
	atomic { TAKE_FLAG(q2);
#endif
#if P > 3
	}
	atomic { TAKE_FLAG(q3);
#endif
		completed_epoch[set * P + r] = e;
		SAY("rank %d completes handshake %d\n", r, e);
#if EPOCH == 2
		device_epoch[set * P + r] = e
#endif
	}
}

/* Each takes the part of every peer at once: parts of different pairs never meet. */
inline write_begin(o1, x1, o2, x2, o3, x3) {
	SAY("rank %d begins to write window %d for entry %d\n", r, w, n);
	ALWAYS(overwrites_unread, part[PART(o1, w, x1)] == EMPTY); part[PART(o1, w, x1)] = BUSY;
#if P > 2
	ALWAYS(overwrites_unread, part[PART(o2, w, x2)] == EMPTY); part[PART(o2, w, x2)] = BUSY;
#endif
#if P > 3
	ALWAYS(overwrites_unread, part[PART(o3, w, x3)] == EMPTY); part[PART(o3, w, x3)] = BUSY;
#endif
}
inline write_end(o1, x1, o2, x2, o3, x3) {
	SAY("rank %d has written window %d for entry %d\n", r, w, n);
	part[PART(o1, w, x1)] = DATA(n);
#if P > 2
	part[PART(o2, w, x2)] = DATA(n);
#endif
#if P > 3
	part[PART(o3, w, x3)] = DATA(n);
#endif
}
inline read(o1, x1, o2, x2, o3, x3, left) {
	SAY("rank %d reads window %d for entry %d (%d: 0 = to the end)\n", r, w, n, left);
	ALWAYS(reads_wrong_data, part[PART(o1, w, x1)] == DATA(n)); part[PART(o1, w, x1)] = left;
#if P > 2
	ALWAYS(reads_wrong_data, part[PART(o2, w, x2)] == DATA(n)); part[PART(o2, w, x2)] = left;
#endif
#if P > 3
	ALWAYS(reads_wrong_data, part[PART(o3, w, x3)] == DATA(n)); part[PART(o3, w, x3)] = left;
#endif
}
#define OWN_PARTS r, q1, r, q2, r, q3
#define PEERS_PARTS q1, r, q2, r, q3, r
inline read_held(x) {
	SAY("rank %d: the caller has read window %d, which it holds\n", r, x);
	ALWAYS(reads_wrong_data, part[PART(r, x, q1)] == held[x]); part[PART(r, x, q1)] = EMPTY;
#if P > 2
	ALWAYS(reads_wrong_data, part[PART(r, x, q2)] == held[x]); part[PART(r, x, q2)] = EMPTY;
#endif
	held[x] = EMPTY
}
#if CHECK_INPUT
#define INPUT_INTACT ALWAYS(input_overwritten, input[r] == DATA(n))
#define NEW_INPUT input[r] = DATA(n)
#else
#define INPUT_INTACT skip
#define NEW_INPUT skip
#endif

/* the epoch, slot and signature of the handshake at hand; `own` tells the exchange's handshake from the inserted one before it */
inline count_epoch(own) {
#if GRAPHS && !GRAPH_EPOCH
	if
	:: set == 1 -> epoch[set] = (own -> script_epoch[n] : (script_epoch[n] + M - 1) % M)
	:: else -> epoch[set] = (epoch[set] + 1) % M
	fi;
#else
	epoch[set] = (epoch[set] + 1) % M;
#endif
	e = epoch[set];
	slot = SLOT(e);
#if GRAPHS && !GRAPH_PARITY
	if
	:: set == 1 -> slot = (own -> script_slot[n] : 1 - script_slot[n])
	:: else
	fi;
#endif
	signature = (own -> n : INSERTED)
}

proctype Caller(byte r) {
	byte n, op, w, ins, set;
	byte e, slot, signature, epoch[SETS];
#if CALLER_HOLDS
	byte held[WINDOWS];
#endif
#if STALE_FLAGS >= 2
	d_step {
		e = 0;
		do
		:: e < 2 * P -> flag_epoch[r * 2 * P + e] = NONE; e++
		:: else -> break
		od;
		e = 0
	};
#endif
#if STALE_FLAGS >= 3
	cleared[r] = 1;
	cleared[q1];
#if P > 2
	cleared[q2];
#endif
#endif
	do
#if CALLER_HOLDS
	:: atomic { held[0] != EMPTY -> read_held(0) }
	:: atomic { held[1] != EMPTY -> read_held(1) }
#endif
	:: next_entry();
#if CALLER_HOLDS
		atomic { if :: held[w] != EMPTY -> read_held(w) :: else fi };
#endif
#if EVENT == 1
		atomic { NEW_INPUT; released[r] = (n + 1) % M };
#endif
		if
		:: ins -> atomic { count_epoch(0) }; signal_all(); wait_all()
		:: else
		fi;
		atomic { count_epoch(1) };
#if EPOCH == 1
		device_epoch[set * P + r] = e;
#endif
		if
		:: op == PUSH ->
#if EVENT != 1
			atomic { NEW_INPUT; released[r] = (n + 1) % M };
#endif
			wait_all();
#if JOIN
			transferred[r] == (n + 1) % M;
#endif
#if CALLER_HOLDS
			held[w] = DATA(n)
#else
			atomic { read(OWN_PARTS, DATA(n)) };
			atomic { read(OWN_PARTS, EMPTY) }
#endif
		:: op == PULL ->
			atomic { write_begin(OWN_PARTS) };
#if !SIGNAL_LATE
			signal_all();
#endif
			atomic { write_end(OWN_PARTS) };
#if SIGNAL_LATE
			signal_all();
#endif
			wait_all();
#if PULL_ON_CALLER
			released[r] = (n + 1) % M;
			atomic { read(PEERS_PARTS, DATA(n)) };
			atomic { read(PEERS_PARTS, EMPTY) };
#elif EVENT != 1
			released[r] = (n + 1) % M;
#endif
#if JOIN
			transferred[r] == (n + 1) % M;
#endif
#if SOURCE_HELD == 2
			atomic { count_epoch(0) };
			signal_all();
			wait_all()
#endif
		fi;
		atomic { n = (n + 1) % M; at_caller[r] = n; op = 0; w = 0; ins = 0; set = 0; e = 0; slot = 0; signature = 0 }
	od
}

#if EVENT == 0
#define MAY_START (AHEAD(prod, n) > 0)
#elif GRAPHS && !GRAPH_EVENT
#define MAY_START (AHEAD(prod, n) > 0 && (script_set[n] == 1 || RELEASED))
#else
#define MAY_START RELEASED
#endif
#define RELEASED (AHEAD(released[r], n) > 0 && AHEAD(released[r], n) <= M / 2)
proctype Transfer(byte r) {
	byte n, op, w, ins, set;
	byte e, slot, signature, epoch[SETS];
	do
	:: MAY_START ->
		atomic {
			next_entry();
			epoch[set] = (epoch[set] + ins) % M;
			count_epoch(1)
		};
		if
		:: op == PUSH ->
#if PER_PEER
			atomic { INPUT_INTACT; ALWAYS(overwrites_unread, part[PART(q1, w, r)] == EMPTY); part[PART(q1, w, r)] = BUSY };
			atomic { INPUT_INTACT; part[PART(q1, w, r)] = DATA(n) };
			signal(q1);
#if P > 2
			atomic { INPUT_INTACT; ALWAYS(overwrites_unread, part[PART(q2, w, r)] == EMPTY); part[PART(q2, w, r)] = BUSY };
			atomic { INPUT_INTACT; part[PART(q2, w, r)] = DATA(n) };
			signal(q2);
#endif
#else
			atomic { INPUT_INTACT; write_begin(PEERS_PARTS) };
#if !SIGNAL_LATE
			signal_all();
#endif
			atomic { INPUT_INTACT; write_end(PEERS_PARTS) };
#if EPOCH == 1
			atomic { e = device_epoch[set * P + r]; slot = SLOT(e) };
#elif EPOCH == 2
			atomic { e = (device_epoch[set * P + r] + 1) % M; slot = SLOT(e) };
#endif
#if SIGNAL_LATE
			signal_all();
#endif
#endif
		:: op == PULL ->
#if PULL_ON_CALLER
			skip
#else
			atomic { read(PEERS_PARTS, DATA(n)) };
			atomic { read(PEERS_PARTS, EMPTY) }
#endif
#if SOURCE_HELD == 2
			; epoch[set] = (epoch[set] + 1) % M
#endif
		fi;
		atomic { n = (n + 1) % M; transferred[r] = n; at_transfer[r] = n; op = 0; w = 0; ins = 0; set = 0; e = 0; slot = 0; signature = 0 }
	od
}

#if POSTED
inline land(i) {
	atomic {
		posted_epoch[i] != NONE ->
		flag_epoch[i] = posted_epoch[i]; flag_signature[i] = posted_signature[i];
		posted_epoch[i] = NONE; posted_signature[i] = 0
	}
}
proctype Link(byte dst; byte src) {
	do
	:: land(FLAG(dst, src, 0, 0))
	:: land(FLAG(dst, src, 0, 1))
	od
}
#endif

init {
	byte i, j;
	atomic {
#if STALE_FLAGS /* the last flags of the earlier group: epochs 1 and 2, with the signatures that this group will use */
		for (i : 0 .. P * P - 1) {
			flag_epoch[2 * i + 1] = 1; flag_signature[2 * i + 1] = 0;
			flag_epoch[2 * i] = 2; flag_signature[2 * i] = 1
		}
#endif
		for (i : 0 .. P - 1) { run Caller(i); run Transfer(i) }
#if POSTED
		for (i : 0 .. P - 1) { for (j : 0 .. P - 1) { if :: i != j -> run Link(i, j) :: else fi } }
#endif
		i = 0; j = 0
	}
}
