/* narrate.pml - included by the models, not a model of its own.
 *
 * SAY(...) prints one line of the story when a counterexample is replayed with -DNARRATE (tools/check_models.py --trail ID) and is
 * an empty step otherwise.
 */
#ifdef NARRATE
#define SAY(...) printf(__VA_ARGS__)
#else
#define SAY(...) skip
#endif

/* Every property has a name.  pan prints the text of the assertion that failed, and with it the name, so that the checker can tell a
 * mutant that broke the expected property from one that broke another.  A name is a variable that is always 0, declared with PROPERTIES;
 * it is hidden, i.e. no part of the state, except where a breadth-first search looks for a short story (it admits none). */
#ifdef NARRATE
#define PROPERTIES byte
#else
#define PROPERTIES hidden byte
#endif
#define ALWAYS(name, condition) assert((condition) || name)
