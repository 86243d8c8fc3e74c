/* pipeline.pml - the attention layer pipelined over head groups.
 *
 * What is modelled
 *   A rank is four processes: Caller(r); Transfer(r); and Attend(r, 0), Attend(r, 1), the two attention streams, head group g on
 *   stream g.  One call:
 *     Caller:    [inserted handshake]; release; ... ; join everything
 *     Transfer:  after the release: for each group g: push its part of q, k, v into the peers' windows, signal In[g]
 *     Attend:    after the release: wait for In[g] of all; read the window, produce output g
 *     output     OUT=0 attention writes the own output window; Caller joins both streams, ONE handshake, pulls everything
 *                OUT=1 attention writes the own output window, signals Out[g]; Attend waits for Out[g] of all and pulls
 *                OUT=2 Transfer pushes output g into the peers' windows and signals Out[g]; Caller waits and copies it out
 *                OUT=3 as 1, but waits and pulls run on the transfer stream, behind the sends
 *   All ranks execute one endless script of calls with plans drawn from PLANS; call numbers run modulo M, so a finished search covers
 *   programs of any length.  A window has two halves; a group covers one or both of them, as its plan says.  Flag words In[g] and
 *   Out[g] exist once and take the number of the call; In[0], the first arrival of a call, goes through the common flag words that
 *   plain exchanges use too (two by epoch parity).
 *
 * Properties (besides the absence of deadlock)
 *   overwrites_unread   a half window is written only when all of it has been read
 *   reads_wrong_data    what is read is the data of this very call, from beginning to end
 *   flag_overwritten    a flag word is written only when the flag before it has been taken
 *   script_too_short    not of the protocol: the ring of M script entries was too small for the lead of one rank over another
 *
 * Switches; the default is the protocol as it should be, a mutant turns one of them
 *   P=2|3, CALLS       ranks; number of calls, 0 for an endless script
 *   PLANS              mask: 1 X: two groups {0} {1};  2 Y: one group {0, 1};  4 Z: two groups {1} {0};  8 E: a plain exchange through
 *                      the same window
 *   OUT                see above
 *   COMMON=0           In[0] has a flag word of its own instead of the common ones
 *   SENDS_WAIT         the sends of a call wait 0 for the caller's stream, which has joined all of the call before, 1 those of group g
 *                      only for the output of group g of the call before, 2 for nothing
 *   RULE=0             no handshake is inserted between a plain exchange and a pipelined call through the same window
 *   JOIN_ATTEND=0      the caller's stream does not join the attention streams (only the output of group 0)
 *   SIGNAL_LATE=0      In[g] is signalled before the push has ended
 *   ONE_WORD=1         In[g] and Out[g] share a word
 *   EMPTY_SILENT=1     a rank with an empty shard neither signals In nor is waited for
 *   ALL_OUTPUTS=0      the call ends with the output handshake of group 0
 */
#include "narrate.pml"
#ifndef P
#define P 2
#endif
#ifndef OUT
#define OUT 1
#endif
#ifndef PLANS
#define PLANS 1
#endif
#ifndef CALLS
#define CALLS 0
#endif
#ifndef COMMON
#define COMMON 1
#endif
#ifndef SENDS_WAIT
#define SENDS_WAIT 0
#endif
#ifndef RULE
#define RULE 1
#endif
#ifndef JOIN_ATTEND
#define JOIN_ATTEND 1
#endif
#ifndef SIGNAL_LATE
#define SIGNAL_LATE 1
#endif
#ifndef ONE_WORD
#define ONE_WORD 0
#endif
#ifndef EMPTY_SILENT
#define EMPTY_SILENT 0
#endif
#ifndef ALL_OUTPUTS
#define ALL_OUTPUTS 1
#endif
#ifndef M
#define M 4
#endif

#define AHEAD(a, b) (((a) + M - (b)) % M)
#define REACHED(event) (AHEAD(event, n) > 0 && AHEAD(event, n) <= M / 2) /* by call n */
#define NEXT ((n + 1) % M)
#define EMPTY 0
#define BUSY 255
#define NONE 255
#define DATA(n) ((n) + 1)
#define X 1
#define Y 2
#define Z 3
#define E 4
#define GROUPS(pl) (pl == Y -> 1 : 2)
#define COVERS(pl, g, half) ((pl == X && (half) == (g)) || (pl == Y && (g) == 0) || (pl == Z && (half) != (g)))
#define IN 0
#if ONE_WORD
#define OU 0
#else
#define OU 1
#endif
#define q1 ((r + 1) % P)
#define q2 ((r + 2) % P)
#define FLAG(dst, src, k, g) ((((dst) * P + (src)) * 2 + (k)) * 2 + (g))
#define COMMON_FLAG(dst, src, e) (((dst) * P + (src)) * 2 + ((e) & 1))
#define PART(owner, x, half) (((owner) * P + (x)) * 2 + (half))

PROPERTIES overwrites_unread, reads_wrong_data, flag_overwritten, script_too_short;

byte flag[P * P * 4] = NONE;
bool untaken[P * P * 4];          /* ghost: written and not taken yet */
byte common_flag[P * P * 2] = NONE;
byte in_part[P * P * 2];          /* the windows of q, k, v */
byte out_part[P * P * 2];         /* the output windows: the writer's own (pull) or the receiver's (push) */
/* events of one rank */
byte released[P], transferred[P];
byte attended[P * 2];             /* attention stream g has finished its part of the call */
byte produced[P * 2];             /* output of group g exists */
byte delivered[P * 2];            /* output of group g is complete here */
/* the script */
byte script_plan[M], prod;
bool script_inserted[M];
byte at_caller[P], at_transfer[P], at_attend[P * 2];
bool used;                        /* the books: a plain exchange used the window since the last handshake that counts for it */
byte gi, gj, gp;
#if CALLS
byte drawn;
#define MORE (n != prod || drawn < CALLS)
#else
#define MORE true
#endif

inline draw() {
	for (gi : 0 .. P - 1) {
		ALWAYS(script_too_short, AHEAD(prod, at_caller[gi]) < M - 1 && AHEAD(prod, at_transfer[gi]) < M - 1 &&
			AHEAD(prod, at_attend[2 * gi]) < M - 1 && AHEAD(prod, at_attend[2 * gi + 1]) < M - 1)
	}
	if
#if PLANS & 1
	:: gp = X
#endif
#if PLANS & 2
	:: gp = Y
#endif
#if PLANS & 4
	:: gp = Z
#endif
#if PLANS & 8
	:: gp = E
#endif
	fi;
#if CALLS
	drawn++;
#endif
	script_plan[prod] = gp; script_inserted[prod] = RULE && used;
	SAY("CALL %d: plan %d (1 X, 2 Y, 3 Z, 4 plain), handshake inserted %d\n", prod, gp, script_inserted[prod]);
	used = (gp == E);
	prod = (prod + 1) % M;
	gp = 0; /* the largest lag */
	for (gi : 0 .. P - 1) {
		if :: AHEAD(prod, at_caller[gi]) > gp -> gp = AHEAD(prod, at_caller[gi]) :: else fi;
		if :: AHEAD(prod, at_transfer[gi]) > gp -> gp = AHEAD(prod, at_transfer[gi]) :: else fi;
		if :: AHEAD(prod, at_attend[2 * gi]) > gp -> gp = AHEAD(prod, at_attend[2 * gi]) :: else fi;
		if :: AHEAD(prod, at_attend[2 * gi + 1]) > gp -> gp = AHEAD(prod, at_attend[2 * gi + 1]) :: else fi
	}
	for (gi : 1 .. M) { if :: gi > gp -> gj = (prod + M - gi) % M; script_plan[gj] = 0; script_inserted[gj] = 0 :: else fi }
	gi = 0; gj = 0; gp = 0
}
inline next_call() {
	if
	:: n == prod -> draw()
	:: else
	fi;
	plan = script_plan[n]; ins = script_inserted[n]
}

#if EMPTY_SILENT
#define SILENT(x, k) ((x) == P - 1 && (k) == IN)
#else
#define SILENT(x, k) 0
#endif
inline signal(q, k, g) {
	ALWAYS(flag_overwritten, !untaken[FLAG(q, r, k, g)]);
	flag[FLAG(q, r, k, g)] = DATA(n); untaken[FLAG(q, r, k, g)] = 1
}
inline signal_all(k, g) {
	SAY("rank %d signals flag %d (0 In, 1 Out) of group %d, call %d\n", r, k, g, n);
	if
	:: SILENT(r, k) -> skip
	:: else -> signal(q1, k, g);
#if P > 2
		signal(q2, k, g)
#endif
	fi
}
/* `untaken` makes call numbers modulo M as good as real ones: a flag may rest for many calls when plans differ in their groups */
#define ARRIVED_FROM(q, k, g) ((flag[FLAG(r, q, k, g)] == DATA(n) && untaken[FLAG(r, q, k, g)]) || SILENT(q, k))
#define SIGNAL_COMMON(q, a, b) common_flag[COMMON_FLAG(q, r, e)] = e
#define TAKE(q, k, g) untaken[FLAG(r, q, k, g)] = 0
#if P > 2
#define ARRIVED(k, g) (ARRIVED_FROM(q1, k, g) && ARRIVED_FROM(q2, k, g))
#define EACH_PEER(f, a, b) f(q1, a, b); f(q2, a, b)
#define EACH_PART(f, half) f(q1, half); f(q2, half)
#define COMMON_ARRIVED (common_flag[COMMON_FLAG(r, q1, e)] == e && common_flag[COMMON_FLAG(r, q2, e)] == e)
#else
#define ARRIVED(k, g) ARRIVED_FROM(q1, k, g)
#define EACH_PEER(f, a, b) f(q1, a, b)
#define EACH_PART(f, half) f(q1, half)
#define COMMON_ARRIVED (common_flag[COMMON_FLAG(r, q1, e)] == e)
#endif
#define NEXT_EPOCH e = (e + 1) % M
#if COMMON
#define IN_ARRIVED(g) ((g == 0 && COMMON_ARRIVED) || (g != 0 && ARRIVED(IN, g)))
#define TAKE_IN(g) if :: g == 0 -> skip :: else -> EACH_PEER(TAKE, IN, g) fi
#else
#define IN_ARRIVED(g) ARRIVED(IN, g)
#define TAKE_IN(g) EACH_PEER(TAKE, IN, g)
#endif

/* Steps on half a window of one pair: write begins, ends; read begins, ends.  The same for the three places a part can be in. */
#define WRITE_BEGIN(array, i) ALWAYS(overwrites_unread, array[i] == EMPTY); array[i] = BUSY
#define WRITE_END(array, i) array[i] = DATA(n)
#define READ_BEGIN(array, i) ALWAYS(reads_wrong_data, array[i] == DATA(n))
#define READ_END(array, i) ALWAYS(reads_wrong_data, array[i] == DATA(n)); array[i] = EMPTY
#define PUSH_BEGIN(q, half) WRITE_BEGIN(in_part, PART(q, r, half))
#define PUSH_END(q, half) WRITE_END(in_part, PART(q, r, half))
#define IN_BEGIN(q, half) READ_BEGIN(in_part, PART(r, q, half))
#define IN_END(q, half) READ_END(in_part, PART(r, q, half))
#define OWN_BEGIN(q, half) WRITE_BEGIN(out_part, PART(r, q, half))
#define OWN_END(q, half) WRITE_END(out_part, PART(r, q, half))
#define PULL_BEGIN(q, half) READ_BEGIN(out_part, PART(q, r, half))
#define PULL_END(q, half) READ_END(out_part, PART(q, r, half))
#define OUT_PUSH_BEGIN(q, half) WRITE_BEGIN(out_part, PART(q, r, half))
#define OUT_PUSH_END(q, half) WRITE_END(out_part, PART(q, r, half))
#define COPY_BEGIN(q, half) READ_BEGIN(out_part, PART(r, q, half))
#define COPY_END(q, half) READ_END(out_part, PART(r, q, half))
#define HALVES(f, g) if :: COVERS(plan, g, 0) -> EACH_PART(f, 0) :: else fi; if :: COVERS(plan, g, 1) -> EACH_PART(f, 1) :: else fi
#define BOTH_HALVES(f) EACH_PART(f, 0); EACH_PART(f, 1)

proctype Caller(byte r) {
	byte n, e, plan, g;
	bool ins;
end:	do
	:: atomic { MORE -> next_call() };
		if
		:: ins -> atomic { NEXT_EPOCH; EACH_PEER(SIGNAL_COMMON, 0, 0) }; COMMON_ARRIVED
		:: else
		fi;
		atomic { released[r] = NEXT };
		if
		:: plan == E ->
			atomic { NEXT_EPOCH };
			atomic { COMMON_ARRIVED && REACHED(transferred[r]) -> BOTH_HALVES(IN_BEGIN) };
			atomic { BOTH_HALVES(IN_END) }
		:: else ->
#if COMMON
			NEXT_EPOCH;
#endif
#if OUT == 0
			atomic { REACHED(attended[2 * r]) && REACHED(attended[2 * r + 1]) && REACHED(transferred[r]) -> signal_all(OU, 0) };
			atomic { ARRIVED(OU, 0) -> EACH_PEER(TAKE, OU, 0); BOTH_HALVES(PULL_BEGIN) };
			atomic { BOTH_HALVES(PULL_END) }
#elif OUT == 2
			g = 0;
			do
			:: g < GROUPS(plan) ->
				atomic { ARRIVED(OU, g) -> EACH_PEER(TAKE, OU, g); HALVES(COPY_BEGIN, g) };
				atomic { HALVES(COPY_END, g); delivered[2 * r + g] = NEXT; g++ };
#if !ALL_OUTPUTS
				break
#endif
			:: else -> break
			od;
			atomic { g = 0; delivered[2 * r] = NEXT; delivered[2 * r + 1] = NEXT }
#endif
		fi;
#if JOIN_ATTEND
		REACHED(attended[2 * r]) && REACHED(attended[2 * r + 1]) && REACHED(transferred[r]);
#elif OUT == 1 || OUT == 3
		plan == E || REACHED(delivered[2 * r]);
#endif
		atomic { n = NEXT; at_caller[r] = n; plan = 0; ins = 0 }
	od
}

proctype Transfer(byte r) {
	byte n, e, plan, g;
	bool ins;
end:	do
#if SENDS_WAIT == 0
	:: REACHED(released[r]) ->
#else
	:: AHEAD(prod, n) > 0 && AHEAD(prod, n) <= M / 2 ->
#endif
		atomic { next_call(); e = (e + ins) % M };
		if
		:: plan == E ->
			atomic { REACHED(released[r]) -> NEXT_EPOCH; BOTH_HALVES(PUSH_BEGIN) };
			atomic { BOTH_HALVES(PUSH_END) };
			atomic { EACH_PEER(SIGNAL_COMMON, 0, 0) }
		:: else ->
			g = 0;
			do
			:: g < GROUPS(plan) ->
#if SENDS_WAIT == 1
				delivered[2 * r + g] == n;
#endif
				atomic { SAY("rank %d begins to push group %d of call %d\n", r, g, n); HALVES(PUSH_BEGIN, g) };
#if SIGNAL_LATE
				atomic { HALVES(PUSH_END, g) };
#endif
#if COMMON
				atomic { if :: g == 0 -> NEXT_EPOCH; EACH_PEER(SIGNAL_COMMON, 0, 0) :: else -> signal_all(IN, g) fi };
#else
				atomic { signal_all(IN, g) };
#endif
#if !SIGNAL_LATE
				atomic { HALVES(PUSH_END, g) };
#endif
				g++
			:: else -> break
			od;
#if OUT == 2
			g = 0;
			do
			:: g < GROUPS(plan) ->
				atomic { produced[2 * r + g] == NEXT -> HALVES(OUT_PUSH_BEGIN, g) };
				atomic { HALVES(OUT_PUSH_END, g) };
				atomic { signal_all(OU, g); g++ }
			:: else -> break
			od;
#elif OUT == 3
			g = 0;
			do
			:: g < GROUPS(plan) ->
				atomic { produced[2 * r + g] == NEXT && ARRIVED(OU, g) -> EACH_PEER(TAKE, OU, g); HALVES(PULL_BEGIN, g) };
				atomic { HALVES(PULL_END, g); delivered[2 * r + g] = NEXT; g++ }
			:: else -> break
			od;
			atomic { delivered[2 * r] = NEXT; delivered[2 * r + 1] = NEXT };
#endif
			g = 0
		fi;
		atomic { n = NEXT; transferred[r] = n; at_transfer[r] = n; plan = 0; ins = 0 }
	od
}

proctype Attend(byte r; byte g) {
	byte n, plan;
	bool ins;
#if COMMON
	byte e;
#endif
end:	do
	:: REACHED(released[r]) ->
#if COMMON
		atomic { next_call(); e = (e + ins + 1) % M };
#else
		atomic { next_call() };
#endif
		if
		:: plan != E && g < GROUPS(plan) ->
			atomic {
				IN_ARRIVED(g) -> TAKE_IN(g);
				SAY("rank %d attends to group %d of call %d\n", r, g, n);
				HALVES(IN_BEGIN, g);
#if OUT != 2
				HALVES(OWN_BEGIN, g)
#endif
			};
			atomic {
				HALVES(IN_END, g);
#if OUT != 2
				HALVES(OWN_END, g);
#endif
				produced[2 * r + g] = NEXT
			};
#if OUT == 1 || OUT == 3
			atomic { signal_all(OU, g) };
#endif
#if OUT == 1
			atomic { ARRIVED(OU, g) -> EACH_PEER(TAKE, OU, g); HALVES(PULL_BEGIN, g) };
			atomic { HALVES(PULL_END, g); delivered[2 * r + g] = NEXT }
#endif
		:: else -> /* nothing to do for this group: its events count as reached */
			atomic { produced[2 * r + g] = NEXT
#if OUT == 1
				; delivered[2 * r + g] = NEXT
#endif
			}
		fi;
		atomic { n = NEXT; attended[2 * r + g] = n; at_attend[2 * r + g] = n; plan = 0; ins = 0 }
	od
}

init {
	byte i;
	atomic {
		for (i : 0 .. P - 1) { run Caller(i); run Transfer(i); run Attend(i, 0); run Attend(i, 1) }
		i = 0
	}
}
