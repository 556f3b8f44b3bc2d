/* What the Python package calls of the link to this node's agent (python/lockstep/_library.py, by ctypes).
 *
 * Role: the part of a rank that must run while Python holds its lock. A thread of its own marks the process as alive,
 * reads the link, and shuts the sockets of a group down that was cut, so that a collective which is blocked in it
 * throws. No torch, no Python. It is the same AgentSession that lockstep-worker has.
 * Lines are messages of contract/messages.h, without their newline.
 * Errors: a function that fails says so by its value, and lockstep_error() says why. Texts that are returned as char*
 * are the caller's, who frees them with lockstep_free.
 * Threads: any, except watch, formed and retire: one thread at a time. Waits take at most `patience_ms`.
 * A rank has one link, which lives as long as the process. After a fork the child must not use it. */
#pragma once

/* NOLINTBEGIN(modernize-use-using,modernize-deprecated-headers,modernize-redundant-void-arg): read as C */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function changes its meaning: the package refuses a library with another number. */
#define LOCKSTEP_ABI 1
int lockstep_abi(void);

typedef struct lockstep_link lockstep_link;

/* Takes both descriptors: the socket to the agent, and the beat page's. NULL: the page cannot be mapped. */
lockstep_link* lockstep_open(int link_fd, int page_fd, int local_rank);

/* 0; or -1: the line is no message of a worker. */
int lockstep_send(lockstep_link* link, const char* line);

/* The next assignment as a line; NULL: there is none yet. */
char* lockstep_assignment(lockstep_link* link, int patience_ms);

/* Sends a store request, whose own id is not used, and returns the id for lockstep_reply. 0: it is no store request, or
 * the link has ended. */
uint64_t lockstep_ask(lockstep_link* link, const char* line);
/* The reply as a line; NULL: it is not there yet. A request of a generation that is cut gets the status "stale". Each
 * reply is taken once. */
char* lockstep_reply(lockstep_link* link, uint64_t id, int patience_ms);

/* From now on a cut of `generation` shuts down the TCP sockets that this process opens until lockstep_formed(). A
 * generation that is cut already is shut down at each of these calls. Ends with lockstep_retire(). */
void lockstep_watch(lockstep_link* link, uint64_t generation);
void lockstep_formed(lockstep_link* link);
/* The group's sockets are about to be closed: their descriptors may be used for others. */
void lockstep_retire(lockstep_link* link);
/* Shuts the sockets of the watched group down now. */
void lockstep_shut(lockstep_link* link);

/* The newest generation that was cut, and all before it; 0: none. The cause is a word ("SignalKILL"). */
uint64_t lockstep_cut_generation(lockstep_link* link);
char* lockstep_cut_cause(lockstep_link* link);

/* When the ranks of `generation` are to leave the group together, at the end of a step: the exit code with which this
 * process then ends, 0 when it goes on in the next group; -1: they are not to. */
int lockstep_leave_together(lockstep_link* link, uint64_t generation);

/* On the beat page: what the rank does now (contract/phase.h: Activity and Phase as numbers); and that `step` steps are
 * committed. */
void lockstep_beat(lockstep_link* link, int activity, int phase);
void lockstep_commit(lockstep_link* link, int64_t step);

/* Nanoseconds of CLOCK_MONOTONIC, as messages have them. */
int64_t lockstep_now_ns(void);
/* Why the last call of this thread that failed did; never NULL. The library's own. */
const char* lockstep_error(void);
void lockstep_free(char* text);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-use-using,modernize-deprecated-headers,modernize-redundant-void-arg) */
