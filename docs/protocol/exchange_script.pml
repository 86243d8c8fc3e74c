/* exchange_script.pml - included by exchange.pml: the script that all ranks execute, and the host's books of the windows.
 *
 * All ranks run one program and keep equal books, so script and books exist once.  The rank that is first to need an entry draws it;
 * an entry that all have passed is forgotten.  Drawing executes what the host would do for one call: look into the books, insert a
 * handshake or not, count.
 */
byte script_op[M], script_window[M], script_inserted[M], script_set[M];
#if GRAPHS && !GRAPH_EPOCH
byte script_epoch[M];
#endif
#if GRAPHS && !GRAPH_PARITY
byte script_slot[M];
#endif
byte prod;                      /* the next entry to draw */
byte at_caller[P], at_transfer[P]; /* how far each stream is */

/* The books: used since the last handshake, i.e. "count at its last use" == "count now". */
bool used[WINDOWS];
byte turn[2];
#if LAYER
byte phase;
#endif
#if GRAPHS
byte graph_op[GRAPH_CALLS * GRAPHS], graph_window[GRAPH_CALLS * GRAPHS], graph_inserted[GRAPH_CALLS * GRAPHS];
bool in_graphs[WINDOWS];        /* windows that some graph uses */
byte captured;                  /* graphs captured so far */
byte graph, graph_at;           /* the graph being captured or replayed, the call in it */
bool replaying;
#define GRAPH_AT (graph * GRAPH_CALLS + graph_at)
#if !GRAPH_EPOCH || !GRAPH_PARITY
byte host_epoch;                /* the host's count of captured handshakes, frozen into the graph */
byte graph_epoch[GRAPH_CALLS * GRAPHS];
#endif
#endif
byte gi, gj, gop, gw, gins;     /* scratch, zero outside draw() */

/* the bookkeeping of one call, in program order: sets gins */
inline keep_books() {
	if
	:: gop == PUSH -> gins = RULE && (used[gw] || CALLER_HOLDS == 2)
	:: gop == PULL -> gins = RULE && RULE_OWN && !SOURCE_HELD && used[gw]
	fi;
#if NEVER_INSERTS
	ALWAYS(inserts_handshake, !gins);
#endif
	for (gi : 0 .. WINDOWS - 1) { used[gi] = 0 } /* the exchange's own handshake, and the inserted one */
	if
	:: gop == PULL && (!COUNT_PULLS || SOURCE_HELD == 2) -> skip
	:: else ->
#if GROWN == 2
		for (gi : 0 .. WINDOWS - 1) { used[gi] = 1 }
#else
		used[gw] = 1
#endif
	fi
}
/* any exchange that the switches admit: sets gop, gw */
inline pick() {
#if LAYER
	if
	:: phase == 0 -> gop = PUSH; gw = 0
	:: else -> gop = PULL; gw = 1
	fi;
	phase = 1 - phase
#else
	if
#if PUSHES
	:: gop = PUSH
#endif
#if PULLS
	:: gop = PULL
#endif
	fi;
#if IN_TURN
	gw = (gop == PUSH -> turn[0] : 2 + turn[1]);
	turn[gop - 1] = 1 - turn[gop - 1]
#else
	gw = 0;
	do
#if GRAPHS && GRAPH_WINDOWS == 1
	:: gw < WINDOWS / 2 - 1 -> gw++
#else
	:: gw < WINDOWS - 1 -> gw++
#endif
	:: break
	od
#endif
#endif
}

#if GRAPHS
inline capture() { /* nothing is executed */
	SAY("HOST captures graph %d\n", captured);
	graph = captured; graph_at = 0;
#if CAPTURE_OPENS
	for (gi : 0 .. WINDOWS - 1) { used[gi] = 1 }
#endif
	do
	:: graph_at < GRAPH_CALLS ->
		pick();
#if GRAPH_WINDOWS == 1 /* the upper half belongs to captures */
		gw = gw + WINDOWS / 2;
#endif
		keep_books();
		graph_op[GRAPH_AT] = gop; graph_window[GRAPH_AT] = gw; graph_inserted[GRAPH_AT] = gins; in_graphs[gw] = 1;
#if !GRAPH_EPOCH || !GRAPH_PARITY
		host_epoch = (host_epoch + gins + 1) % M; graph_epoch[GRAPH_AT] = host_epoch;
#endif
		graph_at++
	:: else -> break
	od;
#if AFTER_CAPTURE
	for (gi : 0 .. WINDOWS - 1) { used[gi] = 1 }
#endif
	graph = 0; graph_at = 0; captured++
}
inline replay_entry() { /* the library's host code is not called: the books do not see it */
	gop = graph_op[GRAPH_AT]; gw = graph_window[GRAPH_AT]; gins = graph_inserted[GRAPH_AT];
	script_set[prod] = 1;
#if !GRAPH_EPOCH
	script_epoch[prod] = graph_epoch[GRAPH_AT];
#endif
#if !GRAPH_PARITY
	script_slot[prod] = graph_epoch[GRAPH_AT] & 1;
#endif
	graph_at++;
	if
	:: graph_at == GRAPH_CALLS -> replaying = 0; graph = 0; graph_at = 0
	:: else
	fi
}
#endif
inline draw() {
	for (gi : 0 .. P - 1) { ALWAYS(script_too_short, AHEAD(prod, at_caller[gi]) < M - 1 && AHEAD(prod, at_transfer[gi]) < M - 1) }
#if GRAPHS
	do
	:: replaying -> break
	:: !replaying && captured < GRAPHS -> capture()
	:: !replaying && captured > 0 -> replaying = 1; graph = 0; SAY("HOST replays graph %d\n", graph)
	:: !replaying && captured > 1 -> replaying = 1; graph = 1; SAY("HOST replays graph %d\n", graph)
	:: !replaying && EAGER -> break
	od;
	if
	:: replaying -> replay_entry()
	:: else ->
#if GRAPH_WINDOWS == 2
		for (gi : 0 .. WINDOWS - 1) { if :: captured && in_graphs[gi] -> used[gi] = 1 :: else fi }
#endif
		pick(); keep_books()
	fi;
#else
	pick(); keep_books();
#endif
	SAY("ENTRY %d: %d (1 push, 2 pull), window %d, handshake inserted %d, replayed %d\n", prod, gop, gw, gins, script_set[prod]);
	script_op[prod] = gop; script_window[prod] = gw; script_inserted[prod] = gins;
	prod = (prod + 1) % M;
	gop = 0; /* the largest lag */
	for (gi : 0 .. P - 1) {
		if :: AHEAD(prod, at_caller[gi]) > gop -> gop = AHEAD(prod, at_caller[gi]) :: else fi;
		if :: AHEAD(prod, at_transfer[gi]) > gop -> gop = AHEAD(prod, at_transfer[gi]) :: else fi
	}
	for (gi : 1 .. M) { /* forget the entries that all have passed */
		if
		:: gi > gop ->
			gj = (prod + M - gi) % M;
			script_op[gj] = 0; script_window[gj] = 0; script_inserted[gj] = 0; script_set[gj] = 0
#if GRAPHS && !GRAPH_EPOCH
			; script_epoch[gj] = 0
#endif
#if GRAPHS && !GRAPH_PARITY
			; script_slot[gj] = 0
#endif
		:: else
		fi
	}
	gi = 0; gj = 0; gop = 0; gw = 0; gins = 0
}
/* entry n into op, w, ins, set of the calling process */
inline next_entry() {
	atomic {
		if
		:: n == prod -> draw()
		:: else
		fi;
		op = script_op[n]; w = script_window[n]; ins = script_inserted[n]; set = script_set[n]
	}
}
