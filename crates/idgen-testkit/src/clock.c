/*
 * The clocks of the program that this is preloaded into: the wall clock plus an offset, rounded down to a grain, and
 * CLOCK_BOOTTIME plus an offset of its own. All are microseconds in the file $IDGEN_CLOCK, and take effect as soon as they
 * are written. A grain of 0 does not round. Nothing here allocates or locks, so that handlers of signals can read the clock
 * too.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Beyond 64 bits in the year 2262. */
typedef __int128 nanoseconds;
#define SECOND INT64_C(1000000000)
#define MICROSECOND INT64_C(1000)

struct order {
    int64_t offset, grain, boot_offset;
};
static const volatile struct order *order;

__attribute__((constructor)) static void map_order(void)
{
    int file = open(getenv("IDGEN_CLOCK"), O_RDONLY | O_CLOEXEC);
    void *mapped = mmap(NULL, sizeof *order, PROT_READ, MAP_SHARED, file, 0);

    if (mapped == MAP_FAILED)
        abort();
    order = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    long status = syscall(SYS_clock_gettime, clock, now);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;

    if (status == 0 && order && (is_wall || clock == CLOCK_BOOTTIME)) {
        int64_t offset = is_wall ? order->offset : order->boot_offset;
        nanoseconds grain = (nanoseconds)order->grain * MICROSECOND;
        nanoseconds ns = (nanoseconds)now->tv_sec * SECOND + now->tv_nsec + (nanoseconds)offset * MICROSECOND;

        if (is_wall && grain)
            ns -= ns % grain;
        now->tv_sec = (time_t)(ns / SECOND);
        now->tv_nsec = (long)(ns % SECOND);
    }
    return (int)status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    int status = clock_gettime(CLOCK_REALTIME, &precise);

    (void)zone;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return status;
}

time_t time(time_t *now)
{
    struct timespec precise;

    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
