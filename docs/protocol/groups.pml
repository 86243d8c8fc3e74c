/* groups.pml - several groups with members in common, their calls interleaved differently on different ranks.
 *
 * What is modelled
 *   Every group has CALLS calls, made by its members in one order; each rank interleaves the calls of its groups as it likes or as one
 *   global order says.  A call is: [inserted handshake]; the transfer stream writes the one window of the group in every peer and
 *   signals; the caller's stream waits, joins, reads.  The reuse rule is on.  Steps that cannot block are taken for all peers at
 *   once: flags only ever become visible, so this hides no deadlock.
 *
 * Properties (besides the absence of deadlock)
 *   overwrites_unread    a window is written only when all of it has been read
 *   reads_wrong_data     what is read is the data of this very call
 *   takes_foreign_flag   the flag that ends a wait was written for this very handshake
 *
 * Switches
 *   SET                which groups: 1 {0,1} {0,1};  2 {0,1} {1,2};  3 {0,1} {1,2} {0,2};  4 {0,1,2} {0,1} {0,2};  5 {0,1,2} {0,1,2}
 *   ONE_ORDER=1        all ranks interleave the groups' calls in one global order
 *   CALLER_STREAMS     2 each group is called on a stream of its own, 1 all on one stream
 *   TRANSFER_STREAMS   2 each group has its own transfer stream, 1 one a device
 *   ONE_QUEUE=1        all streams of a device are served by one hardware queue in the order of enqueueing
 *   MEETINGS=1         the first call of a group makes its hosts meet
 *   COUNT_APART=0      handshakes are counted across all groups of the process
 */
#include "narrate.pml"
#ifndef SET
#define SET 1
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifndef ONE_ORDER
#define ONE_ORDER 0
#endif
#ifndef CALLER_STREAMS
#define CALLER_STREAMS 1
#endif
#ifndef TRANSFER_STREAMS
#define TRANSFER_STREAMS 2
#endif
#ifndef ONE_QUEUE
#define ONE_QUEUE 0
#endif
#ifndef MEETINGS
#define MEETINGS 0
#endif
#ifndef COUNT_APART
#define COUNT_APART 1
#endif
#if SET == 1
#define P 2
#define GROUPS 2
#define MEMBER(g, r) 1
#elif SET == 2
#define P 3
#define GROUPS 2
#define MEMBER(g, r) (((g) == 0 && (r) != 2) || ((g) == 1 && (r) != 0))
#elif SET == 3
#define P 3
#define GROUPS 3
#define MEMBER(g, r) (((g) == 0 && (r) != 2) || ((g) == 1 && (r) != 0) || ((g) == 2 && (r) != 1))
#elif SET == 4
#define P 3
#define GROUPS 3
#define MEMBER(g, r) ((g) == 0 || ((g) == 1 && (r) != 2) || ((g) == 2 && (r) != 1))
#elif SET == 5
#define P 3
#define GROUPS 2
#define MEMBER(g, r) 1
#endif

#define TOTAL (GROUPS * CALLS)
#define NONE 255
#define INSERTED 100
#define EMPTY 0
#define OF(r, g) ((r) * GROUPS + (g))
#define FLAG(dst, src, g, e) ((((dst) * P + (src)) * GROUPS + (g)) * 2 + ((e) & 1))
#define PART(dst, src, g) (((dst) * P + (src)) * GROUPS + (g))

PROPERTIES overwrites_unread, reads_wrong_data, takes_foreign_flag;

byte order[P * TOTAL];       /* the group of the i-th call of rank r, NONE behind the last */
bool inserted[P * TOTAL];    /* a handshake is inserted before it */
byte global_order[TOTAL];
byte flag_epoch[P * P * GROUPS * 2] = NONE, flag_signature[P * P * GROUPS * 2];
byte part[P * P * GROUPS];
byte released[P * GROUPS], transferred[P * GROUPS]; /* events: the last call of the group released, transferred */
byte enqueued[P];            /* calls enqueued by the host */
#if MEETINGS
byte met[P * GROUPS];        /* hosts that have come to the meeting of a group */
#endif

#if P > 2
#define ALL_RANKS(f) (f(0) && f(1) && f(2))
#else
#define ALL_RANKS(f) (f(0) && f(1))
#endif
#define PEER(q) ((q) != r && MEMBER(g, q))
#define ARRIVED(q) (!PEER(q) || flag_epoch[FLAG(r, q, g, epoch[g])] == epoch[g])
#define SIGNATURE_RIGHT(q) (!PEER(q) || flag_signature[FLAG(r, q, g, epoch[g])] == signature)
#define DATA_RIGHT(q) (!PEER(q) || part[PART(r, q, g)] == c)
#define FREE(q) (!PEER(q) || part[PART(q, r, g)] == EMPTY)
#define MET(q) (!MEMBER(g, q) || met[OF(q, g)])
inline signal_all(s) {
	SAY("rank %d signals epoch %d of group %d\n", r, epoch[g], g);
	for (p : 0 .. P - 1) {
		if :: PEER(p) -> flag_epoch[FLAG(p, r, g, epoch[g])] = epoch[g]; flag_signature[FLAG(p, r, g, epoch[g])] = s :: else fi
	};
	p = 0
}
inline push_all() {
	SAY("rank %d pushes call %d of group %d\n", r, c, g);
	ALWAYS(overwrites_unread, ALL_RANKS(FREE));
	for (p : 0 .. P - 1) { if :: PEER(p) -> part[PART(p, r, g)] = c :: else fi };
	p = 0
}
inline read_all() {
	SAY("rank %d has read call %d of group %d\n", r, c, g);
	ALWAYS(reads_wrong_data, ALL_RANKS(DATA_RIGHT));
	for (p : 0 .. P - 1) { if :: PEER(p) -> part[PART(r, p, g)] = EMPTY :: else fi };
	p = 0
}
#define MORE (i < TOTAL && order[r * TOTAL + i] != NONE)
#define AT order[r * TOTAL + i]

#if MEETINGS
proctype Host(byte r) {
	byte i, g;
	bool seen[GROUPS];
	do
	:: atomic { MORE -> g = AT };
		if
		:: atomic { !seen[g] -> met[OF(r, g)] = 1; seen[g] = 1 }; ALL_RANKS(MET)
		:: else
		fi;
		atomic { i++; enqueued[r] = i }
	:: atomic { !MORE -> break }
	od
}
#endif

/* `only` is the group that the stream serves, NONE for all */
#define SKIP_OTHERS do :: MORE && only != NONE && only != AT -> i++ :: else -> break od
proctype Caller(byte r; byte only) {
	byte i, g, c, p, signature, count[GROUPS], epoch[GROUPS];
	atomic { SKIP_OTHERS };
	do
	:: atomic {
			MORE && enqueued[r] > i -> g = AT; count[g]++; c = count[g]; epoch[g]++; signature = INSERTED;
			if
			:: inserted[r * TOTAL + i] -> signal_all(INSERTED); ALL_RANKS(ARRIVED) -> ALWAYS(takes_foreign_flag, ALL_RANKS(SIGNATURE_RIGHT)); epoch[g]++
			:: else
			fi;
			signature = c; released[OF(r, g)] = c
		};
#if ONE_QUEUE /* push and signal come next in the one queue, then the wait */
		atomic { push_all(); signal_all(c); transferred[OF(r, g)] = c };
#endif
		atomic {
			ALL_RANKS(ARRIVED) && transferred[OF(r, g)] >= c ->
			ALWAYS(takes_foreign_flag, ALL_RANKS(SIGNATURE_RIGHT)); ALWAYS(reads_wrong_data, ALL_RANKS(DATA_RIGHT))
		};
		atomic { read_all(); c = 0; g = 0; i++; signature = 0; SKIP_OTHERS }
	:: atomic { !MORE -> break }
	od
}
#if !ONE_QUEUE
proctype Transfer(byte r; byte only) {
	byte i, g, c, p, count[GROUPS], epoch[GROUPS];
	atomic { SKIP_OTHERS };
	do
	:: atomic {
			MORE && enqueued[r] > i && released[OF(r, AT)] >= count[AT] + 1 ->
			g = AT; count[g]++; c = count[g]; epoch[g] = epoch[g] + 1 + inserted[r * TOTAL + i]; push_all()
		};
		atomic { signal_all(c); transferred[OF(r, g)] = c; c = 0; g = 0; i++; SKIP_OTHERS }
	:: atomic { !MORE -> break }
	od
}
#endif

inline draw_global_order() {
	for (g : 0 .. GROUPS - 1) { left[g] = CALLS }
	i = 0;
	do
	:: i < TOTAL ->
		if
		:: left[0] > 0 -> g = 0
		:: left[1] > 0 -> g = 1
#if GROUPS > 2
		:: left[2] > 0 -> g = 2
#endif
		fi;
		left[g]--; global_order[i] = g; i++
	:: else -> break
	od
}
inline order_calls() { /* of rank r */
	for (k : 0 .. TOTAL - 1) { order[r * TOTAL + k] = NONE }
	i = 0;
#if ONE_ORDER
	for (k : 0 .. TOTAL - 1) { if :: MEMBER(global_order[k], r) -> AT = global_order[k]; i++ :: else fi }
#else
	for (g : 0 .. GROUPS - 1) { left[g] = (MEMBER(g, r) -> CALLS : 0) }
	do
	:: left[0] > 0 -> left[0]--; AT = 0; i++
	:: left[1] > 0 -> left[1]--; AT = 1; i++
#if GROUPS > 2
	:: left[2] > 0 -> left[2]--; AT = 2; i++
	:: left[0] == 0 && left[1] == 0 && left[2] == 0 -> break
#else
	:: left[0] == 0 && left[1] == 0 -> break
#endif
	od
#endif
}
inline keep_books() { /* of rank r, one window a group */
	for (g : 0 .. GROUPS - 1) { used[g] = 0 }
	i = 0;
	do
	:: MORE ->
		g = AT;
		inserted[r * TOTAL + i] = used[g];
#if !COUNT_APART
		for (k : 0 .. GROUPS - 1) { used[k] = 0 }
#endif
		used[g] = 1;
		i++
	:: else -> break
	od
}
init {
	byte r, i, g, k, left[GROUPS];
	bool used[GROUPS];
	atomic {
		draw_global_order();
		for (r : 0 .. P - 1) { order_calls(); keep_books() }
		for (g : 0 .. TOTAL - 1) { global_order[g] = 0 }
		i = 0; k = 0;
		for (r : 0 .. P - 1) {
#if MEETINGS
			run Host(r);
#else
			enqueued[r] = TOTAL; /* the host has enqueued everything */
#endif
#if ONE_QUEUE || CALLER_STREAMS == 1
			run Caller(r, NONE);
#else
			for (g : 0 .. GROUPS - 1) { if :: MEMBER(g, r) -> run Caller(r, g) :: else fi }
#endif
#if !ONE_QUEUE
#if TRANSFER_STREAMS == 1
			run Transfer(r, NONE);
#else
			for (g : 0 .. GROUPS - 1) { if :: MEMBER(g, r) -> run Transfer(r, g) :: else fi }
#endif
#endif
		}
	}
}
