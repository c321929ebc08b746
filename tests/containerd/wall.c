/* Puts another wall clock under a process that uses the C library: shifted by so many seconds, and kept right by
 * something or by nothing, as the file that EDGEHOLD_TEST_WALL names says at each call ("SECONDS RIGHT"). Monotonic
 * clocks are left alone. To be preloaded.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

static void said(long long *shift, int *right) {
    char text[64] = {0};
    const char *path = getenv("EDGEHOLD_TEST_WALL");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    *shift = 0;
    *right = 0;
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0)
            sscanf(text, "%lld %d", shift, right);
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long long shift;
    int right;
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        said(&shift, &right);
        now->tv_sec += shift;
    }
    return failed;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

int adjtimex(struct timex *state) {
    long long shift;
    int right;
    said(&shift, &right);
    state->status = right ? 0 : STA_UNSYNC;
    return right ? TIME_OK : TIME_ERROR;
}
